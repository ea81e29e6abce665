//! Idempotency keys: one attempt owns a key, its outcome is kept byte for byte, whatever dies in between.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use onceward_tests::{
    client::{Answer, Api, NoAnswer, Outcome},
    cluster::Cluster,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const ACCOUNT: &str = "shop 1/ü";
const ACCOUNT_PATH: &str = "shop%201%2F%C3%BC";

fn begin(key: &str) -> Value {
    json!({ "account": ACCOUNT, "key": key, "fingerprint": "f" })
}

/// `begin` with members added or replaced.
fn begin_with(key: &str, members: Value) -> Value {
    let mut body = begin(key);
    for (name, value) in members.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn complete(key: &str, token: u64, body: &str) -> Value {
    let response = json!({ "status": 201, "headers": { "Content-Type": "text/plain" }, "body": body });
    json!({ "account": ACCOUNT, "key": key, "token": token, "response": response })
}

fn owned(key: &str, token: u64) -> Value {
    json!({ "account": ACCOUNT, "key": key, "token": token })
}

async fn post(api: &Api, call: &str, body: &Value) -> Answer {
    try_post(api, call, body).await.unwrap_or_else(|error| panic!("{call} {body}: {error:?}"))
}

async fn try_post(api: &Api, call: &str, body: &Value) -> Result<Answer, NoAnswer> {
    api.try_json("POST", &format!("/v1/idempotency/{call}"), body).await
}

async fn read(api: &Api, key: &str) -> Answer {
    api.get(&format!("/v1/idempotency/{ACCOUNT_PATH}/{key}")).await
}

#[track_caller]
fn token(answer: &Answer) -> u64 {
    assert_eq!((answer.status, answer.json()["state"].as_str()), (201, Some("started")), "{answer:?}");
    answer.json()["token"].as_u64().unwrap_or_else(|| panic!("{answer:?}"))
}

#[track_caller]
fn expect_code(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)), "{answer:?}");
}

#[track_caller]
fn expect_replay(answer: &Answer, body: &str) {
    assert_eq!((answer.status, answer.header("idempotent-replayed")), (200, Some("true")), "{answer:?}");
    let stored = json!({ "status": 201, "headers": { "Content-Type": "text/plain" }, "body": body });
    assert_eq!((&answer.json()["state"], &answer.json()["response"]), (&json!("completed"), &stored), "{answer:?}");
}

/// Asks until `answer` is as wanted.
async fn until<F: Future<Output = Answer>>(
    what: &str,
    ask: impl Fn() -> F,
    wanted: impl Fn(&Answer) -> bool,
) -> Answer {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let answer = ask().await;
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_concurrent_begins_of_a_key_have_one_winner_and_then_the_same_replay_fifty_times() {
    let cluster = Cluster::builder().start().await;
    let apis = Arc::new(cluster.apis());
    for round in 0..50 {
        let key = format!("race-{round}");
        let all = |key: String| {
            let mut calls = JoinSet::new();
            for n in 0..1_000 {
                let (apis, body) = (apis.clone(), begin(&key));
                calls.spawn(async move { post(&apis[n % apis.len()], "begin", &body).await });
            }
            calls.join_all()
        };
        let answers = all(key.clone()).await;
        let winners: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 201).collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        for loser in answers.iter().filter(|answer| answer.status != 201) {
            expect_code(loser, 409, "in_progress");
            assert!(loser.header("retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok_and(|wait| wait >= 1)));
        }
        let body = format!("answer {round}");
        post(&apis[round % 3], "complete", &complete(&key, token(winners[0]), &body)).await.expect_status(200);
        let replays: BTreeSet<String> = all(key)
            .await
            .iter()
            .map(|answer| {
                expect_replay(answer, &body);
                answer.body.clone()
            })
            .collect();
        assert_eq!(replays.len(), 1, "round {round}: byte for byte");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_of_the_contract_comes_through_every_node() {
    let cluster = Cluster::builder().start().await;
    let apis = cluster.apis();
    let other = |n: usize| &apis[(n + 1) % apis.len()];
    for (n, api) in apis.iter().enumerate() {
        let key = format!("k{n}");
        let first = token(&post(api, "begin", &begin_with(&key, json!({ "attempt_id": "a" }))).await);
        let again = post(other(n), "begin", &begin_with(&key, json!({ "attempt_id": "a" }))).await;
        assert_eq!(token(&again), first, "a lost answer costs nothing");
        expect_code(&post(other(n), "begin", &begin(&key)).await, 409, "in_progress");
        expect_code(
            &post(api, "begin", &begin_with(&key, json!({ "fingerprint": "g" }))).await,
            422,
            "fingerprint_mismatch",
        );
        expect_code(&post(api, "complete", &complete(&key, first + 1, "no")).await, 409, "fenced");
        expect_code(&post(api, "abandon", &owned("never begun", first)).await, 409, "fenced");
        let mut extend = owned(&key, first);
        extend["lease_ms"] = json!(60_000);
        let extended = post(other(n), "extend", &extend).await.expect_status(200).json();
        assert!((50_000..=60_000).contains(&extended["lease_remaining_ms"].as_u64().unwrap()), "{extended}");
        let reading = read(other(n), &key).await.expect_status(200);
        assert_eq!(reading.json()["state"], "in_progress");
        assert!(!reading.body.contains("token"), "{reading:?}");

        post(api, "abandon", &owned(&key, first)).await.expect_status(200);
        read(other(n), &key).await.expect_status(404);
        let second = token(&post(other(n), "begin", &begin(&key)).await);
        assert!(second > first);
        let done = post(other(n), "complete", &complete(&key, second, "done")).await.expect_status(200);
        assert_eq!(done.json()["messages"], json!([]));
        assert_eq!(post(api, "complete", &complete(&key, second, "done")).await.expect_status(200).body, done.body);
        expect_code(&post(api, "complete", &complete(&key, second, "other")).await, 409, "already_completed");
        expect_code(&post(api, "abandon", &owned(&key, second)).await, 409, "already_completed");
        expect_code(&post(api, "complete", &complete(&key, first, "done")).await, 409, "fenced");
        for api in &apis {
            expect_replay(&post(api, "begin", &begin(&key)).await, "done");
            expect_replay(&post(api, "begin", &begin(&format!("\"{key}\""))).await, "done");
            expect_code(
                &post(api, "begin", &begin_with(&key, json!({ "fingerprint": "g" }))).await,
                422,
                "fingerprint_mismatch",
            );
            assert_eq!(read(api, &key).await.expect_status(200).json()["response"]["body"], "done");
        }
        let path = format!("/v1/idempotency/{ACCOUNT_PATH}/{key}");
        other(n).send("DELETE", &path, &[], Vec::new()).await.unwrap().expect_status(204);
        api.send("DELETE", &path, &[], Vec::new()).await.unwrap().expect_status(404);
        assert!(token(&post(api, "begin", &begin(&key)).await) > second);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_comes_back_byte_for_byte_up_to_the_limit_and_one_over_it_leaves_the_key_held() {
    const BODY_MAX: usize = 256 << 10;
    let cluster = Cluster::builder().start().await;
    let response = |status: u16, headers: Value, body: &str, encoding: Option<&str>| {
        let mut response = json!({ "status": status, "headers": headers, "body": body });
        if let Some(encoding) = encoding {
            response["body_encoding"] = json!(encoding);
        }
        response
    };
    let wide: Value =
        (0..32).map(|n| (format!("X-{n}"), json!(["a", "ü", ""]))).collect::<serde_json::Map<_, _>>().into();
    let zeros = base64_of_zeros(BODY_MAX);
    let escapes = "\u{1}".repeat(BODY_MAX);
    let stored = [
        response(404, json!({ "Set-Cookie": ["a=1", "b=2"], "ETag": "\"x\"" }), "{\"a\": [1,  2]}\n", None),
        response(599, json!({}), "/wA=", Some("base64")),
        response(100, wide, "", None),
        response(200, json!({ "content-type": "application/octet-stream" }), &zeros, Some("base64")),
        response(200, json!({ "content-type": "text/plain" }), &escapes, None),
    ];
    for (n, stored) in stored.iter().enumerate() {
        let key = format!("k{n}");
        let token = token(&post(&cluster.api(1), "begin", &begin(&key)).await);
        let mut body = owned(&key, token);
        body["response"] = stored.clone();
        post(&cluster.api(2), "complete", &body).await.expect_status(200);
        for api in cluster.apis() {
            assert!(post(&api, "begin", &begin(&key)).await.expect_status(200).json()["response"] == *stored, "{n}");
            assert!(read(&api, &key).await.expect_status(200).json()["response"] == *stored, "{n}");
        }
    }
    let too_large = [
        response(200, json!({}), &"x".repeat(BODY_MAX + 1), None),
        response(200, json!({}), &base64_of_zeros(BODY_MAX + 1), Some("base64")),
        response(200, json!({ "X": "v".repeat(8 << 10) }), "", None),
        response(200, json!({}), &"x".repeat(8 << 20), None),
    ];
    for (n, response) in too_large.into_iter().enumerate() {
        let key = format!("large {n}");
        let token = token(&post(&cluster.api(1), "begin", &begin(&key)).await);
        let mut body = owned(&key, token);
        body["response"] = response;
        expect_code(&post(&cluster.api(1), "complete", &body).await, 413, "too_large");
        expect_code(&post(&cluster.api(2), "begin", &begin(&key)).await, 409, "in_progress");
        post(&cluster.api(3), "complete", &complete(&key, token, "smaller")).await.expect_status(200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_large_replays_at_once_leave_the_links_to_everybody_else() {
    let cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("wide", crate::plenty()).await.expect_status(201);
    let held = token(&post(&cluster.api(1), "begin", &begin("large")).await);
    let body = "x".repeat(256 << 10);
    post(&cluster.api(1), "complete", &complete("large", held, &body)).await.expect_status(200);
    let mut replays = JoinSet::new();
    for n in 0..300 {
        let (api, request) = (cluster.api(1 + n % 3), begin_with("large", json!({ "wait_ms": 5_000 })));
        replays.spawn(async move { post(&api, "begin", &request).await });
    }
    let (mut checks, mut whole) = (0, 0);
    while !replays.is_empty() {
        for api in cluster.apis() {
            api.check("wide", &format!("k{checks}")).await.expect_status(200);
            checks += 1;
        }
        while let Some(replay) = replays.try_join_next() {
            let replay = replay.unwrap();
            // A node without room for more of them says so.
            if replay.status == 503 {
                assert!(replay.header("retry-after").is_some(), "{:?}", replay.headers);
            } else {
                assert!(replay.expect_status(200).json()["response"]["body"] == body.as_str());
                whole += 1;
            }
        }
    }
    println!("{whole} large replays beside {checks} checks");
    assert!(whole >= 100 && checks >= 3, "{whole} replays, {checks} checks");
}

/// That many zero bytes in base64.
fn base64_of_zeros(bytes: usize) -> String {
    let (whole, rest) = (bytes / 3, bytes % 3);
    let tail = ["", "AA==", "AAA="][rest];
    "AAAA".repeat(whole) + tail
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_gets_the_outcome_or_takes_over_when_the_holder_died() {
    // Of five nodes two hold no replica of the shard: they wait in another way.
    for nodes in [3, 5] {
        let cluster = Cluster::builder().nodes(nodes).start().await;
        let wait = |key: &str| {
            let mut calls = JoinSet::new();
            for api in cluster.apis() {
                for _ in 0..8 {
                    let (api, body) = (api.clone(), begin_with(key, json!({ "wait_ms": 3_000, "lease_ms": 400 })));
                    calls.spawn(async move { post(&api, "begin", &body).await });
                }
            }
            calls
        };
        let held = token(&post(&cluster.api(1), "begin", &begin("done")).await);
        let waiting = wait("done");
        tokio::time::sleep(Duration::from_millis(500)).await;
        post(&cluster.api(2), "complete", &complete("done", held, "outcome")).await.expect_status(200);
        waiting.join_all().await.iter().for_each(|answer| expect_replay(answer, "outcome"));

        // Nobody completes: each waiter gets it in turn, with a greater token than the one before.
        let held = token(&post(&cluster.api(1), "begin", &begin_with("dead", json!({ "lease_ms": 300 }))).await);
        let began = Instant::now();
        let answers = wait("dead").join_all().await;
        let tokens: BTreeSet<u64> = answers.iter().filter(|answer| answer.status == 201).map(token).collect();
        let won = answers.iter().filter(|answer| answer.status == 201).count();
        assert!(tokens.len() == won && tokens.first() > Some(&held), "{tokens:?} after {held}");
        let turns = began.elapsed().as_millis() as usize / 400 + 1;
        assert!((2..=turns).contains(&won), "{won} took over in {:?}", began.elapsed());
        answers.iter().filter(|answer| answer.status != 201).for_each(|answer| expect_code(answer, 409, "in_progress"));

        // An abandoned key goes on to whoever waits for it.
        let held = token(&post(&cluster.api(1), "begin", &begin("free")).await);
        let body = begin_with("free", json!({ "wait_ms": 8_000 }));
        let api = cluster.api(nodes);
        let waiting = tokio::spawn(async move { post(&api, "begin", &body).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        post(&cluster.api(2), "abandon", &owned("free", held)).await.expect_status(200);
        assert!(token(&waiting.await.unwrap()) > held);

        // And whoever waited in vain is told so.
        let impatient = begin_with("free", json!({ "wait_ms": 300 }));
        expect_code(&post(&cluster.api(1), "begin", &impatient).await, 409, "in_progress");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_answered_although_the_leader_dies_and_none_keeps_a_node_from_stopping() {
    let mut cluster = Cluster::builder().start().await;
    let held = token(&post(&cluster.api(1), "begin", &begin("k")).await);
    let shard = cluster.shard_of_account(ACCOUNT);
    let leader = cluster.leader_of_shard(shard).await;
    let survivors: Vec<u16> = cluster.ids().filter(|id| *id != leader).collect();
    let mut calls = JoinSet::new();
    for n in 0..16 {
        let (api, body) = (cluster.api(survivors[n % 2]), begin_with("k", json!({ "wait_ms": 8_000 })));
        calls.spawn(async move { post(&api, "begin", &body).await });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.node(leader).kill();
    let api = cluster.api(survivors[0]);
    let done = until(
        "completing",
        || async { post(&api, "complete", &complete("k", held, "late")).await },
        |answer| {
            assert!(matches!(answer.status, 200 | 503 | 504), "{answer:?}");
            answer.status == 200
        },
    );
    done.await;
    calls.join_all().await.iter().for_each(|answer| expect_replay(answer, "late"));

    cluster.node(leader).start();
    cluster.wait_ready(leader).await;
    let body = begin_with("other", json!({ "wait_ms": 8_000 }));
    token(&post(&cluster.api(1), "begin", &body).await);
    let api = cluster.api(2);
    let waiting = tokio::spawn(async move { post(&api, "begin", &body).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.node(2).stop().await;
    expect_code(&waiting.await.unwrap(), 409, "in_progress");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_shard_forgets_what_expired_and_notices_what_became_indeterminate() {
    let mut cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    let short = token(&post(&api, "begin", &begin_with("short", json!({ "ttl_ms": 1_000, "lease_ms": 60_000 }))).await);
    let dead = begin_with("dead", json!({ "lease_ms": 500, "ttl_ms": 1_000 }));
    token(&post(&api, "begin", &dead).await);
    let hold = begin_with("hold", json!({ "lease_ms": 500, "on_lease_expiry": "hold", "ttl_ms": 1_000 }));
    let late = token(&post(&api, "begin", &hold).await);
    let second =
        token(&post(&api, "begin", &begin_with("hold 2", json!({ "lease_ms": 500, "on_lease_expiry": "hold" }))).await);
    post(&api, "complete", &complete("short", short, "x")).await.expect_status(200);
    read(&api, "short").await.expect_status(200);

    // Nothing is asked of the shard but reads, which don't move its clock.
    for key in ["short", "dead"] {
        until(key, || read(&api, key), |answer| answer.status == 404).await;
    }
    let list = format!("/v1/idempotency/{ACCOUNT_PATH}?state=indeterminate");
    let listed = until(
        "the list",
        || async { api.get(&list).await.expect_status(200) },
        |answer| answer.json()["data"].as_array().is_some_and(|data| data.len() == 2),
    )
    .await
    .json();
    let keys: Vec<&str> = listed["data"].as_array().unwrap().iter().map(|item| item["key"].as_str().unwrap()).collect();
    assert_eq!((keys, &listed["done"]), (vec!["hold", "hold 2"], &json!(true)));
    assert_eq!(read(&cluster.api(2), "hold").await.json()["state"], "indeterminate");
    expect_code(&post(&api, "begin", &hold).await, 409, "indeterminate");

    // Across a restart of everything, too; then its late owner settles one, and a person the other.
    cluster.kill_all();
    cluster.start_all();
    cluster.wait_all_ready().await;
    let api = cluster.api(3);
    let answer = until("begin", || post(&api, "begin", &hold), |answer| answer.status != 503).await;
    expect_code(&answer, 409, "indeterminate");
    post(&api, "complete", &complete("hold", late, "settled")).await.expect_status(200);
    expect_replay(&post(&api, "begin", &hold).await, "settled");
    let path = format!("/v1/idempotency/{ACCOUNT_PATH}/hold%202");
    api.send("DELETE", &path, &[], Vec::new()).await.unwrap().expect_status(204);
    expect_code(&post(&api, "complete", &complete("hold 2", second, "too late")).await, 409, "fenced");
    assert_eq!(api.get(&list).await.json()["data"], json!([]));
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_is_fenced_after_a_takeover_and_changes_nothing() {
    let cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    let zombie = token(&post(&api, "begin", &begin_with("k", json!({ "lease_ms": 200 }))).await);
    tokio::time::sleep(Duration::from_millis(250)).await;
    let heir = post(&cluster.api(2), "begin", &begin_with("k", json!({ "wait_ms": 5_000 }))).await;
    assert!(token(&heir) > zombie);
    let mut extend = owned("k", zombie);
    extend["lease_ms"] = json!(1_000);
    expect_code(&post(&api, "complete", &complete("k", zombie, "zombie")).await, 409, "fenced");
    expect_code(&post(&api, "extend", &extend).await, 409, "fenced");
    expect_code(&post(&api, "abandon", &owned("k", zombie)).await, 409, "fenced");
    post(&api, "complete", &complete("k", token(&heir), "heir")).await.expect_status(200);
    expect_code(&post(&api, "complete", &complete("k", zombie, "zombie")).await, 409, "fenced");
    expect_replay(&post(&cluster.api(3), "begin", &begin("k")).await, "heir");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_every_call_is_refused_and_none_was_applied() {
    let mut cluster = Cluster::builder().start().await;
    let held = token(&post(&cluster.api(1), "begin", &begin("k")).await);
    let replayed = token(&post(&cluster.api(1), "begin", &begin("done")).await);
    post(&cluster.api(1), "complete", &complete("done", replayed, "x")).await.expect_status(200);
    let api = cluster.api(1);
    let waiter = {
        let (api, body) = (api.clone(), begin_with("k", json!({ "wait_ms": 3_000 })));
        tokio::spawn(async move { post(&api, "begin", &body).await })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    cluster.node(2).kill();
    cluster.node(3).kill();
    let deadline = Instant::now() + Duration::from_secs(20);
    while api.is_ready().await {
        assert!(Instant::now() < deadline, "node 1 still says that it is ready");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut extend = owned("k", held);
    extend["lease_ms"] = json!(1_000);
    let calls = [
        ("begin", begin("new")),
        ("begin", begin("done")),
        ("begin", begin_with("k", json!({ "wait_ms": 300 }))),
        ("complete", complete("k", held, "x")),
        ("abandon", owned("k", held)),
        ("extend", extend),
    ];
    let refused = async |method: &str, path: &str, body: Vec<u8>| {
        let headers = [("content-type", "application/json"), ("onceward-timeout-ms", "300")];
        let answer = api.send(method, path, &headers, body).await.unwrap();
        expect_code(&answer, 503, "unavailable");
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
    };
    for (call, body) in &calls {
        refused("POST", &format!("/v1/idempotency/{call}"), body.to_string().into_bytes()).await;
    }
    let path = format!("/v1/idempotency/{ACCOUNT_PATH}/k");
    refused("GET", &path, Vec::new()).await;
    refused("GET", &format!("/v1/idempotency/{ACCOUNT_PATH}"), Vec::new()).await;
    refused("DELETE", &path, Vec::new()).await;
    // What was true when it began to wait may not be true any more.
    expect_code(&waiter.await.unwrap(), 503, "unavailable");
    cluster.node(2).start();
    cluster.node(3).start();
    cluster.wait_all_ready().await;
    let api = cluster.api(2);
    until("the cluster", || read(&api, "new"), |answer| answer.status == 404).await;
    assert_eq!(read(&api, "k").await.expect_status(200).json()["state"], "in_progress");
    post(&api, "complete", &complete("k", held, "x")).await.expect_status(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_cannot_see_probe_or_disturb_each_other() {
    let secret = |name: &str| format!("secret-of-{name}-0123456789");
    let tokens: Vec<toml::Value> =
        [("admin", "admin", None), ("all", "service", None), ("a", "service", Some("a")), ("b", "service", Some("b"))]
            .into_iter()
            .map(|(name, role, account)| {
                let mut token = toml::Table::new();
                token.insert("name".into(), name.into());
                token.insert("secret".into(), secret(name).into());
                token.insert("role".into(), role.into());
                if let Some(account) = account {
                    token.insert("account".into(), account.into());
                }
                token.into()
            })
            .collect();
    let cluster = Cluster::builder().set("auth.tokens", tokens).start().await;
    let api = cluster.api(1);
    let call = async |who: &str, method: &str, path: &str, body: Option<Value>| {
        let authorization = format!("Bearer {}", secret(who));
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        api.send(method, path, &headers, body).await.unwrap()
    };
    let begin = |account: &str, key: &str| Some(json!({ "account": account, "key": key, "fingerprint": "f" }));
    let ready = Instant::now() + Duration::from_secs(20);
    let first = loop {
        let answer = call("a", "POST", "/v1/idempotency/begin", begin("a", "k")).await;
        if answer.status == 201 {
            break token(&answer);
        }
        assert!(answer.status == 503 && Instant::now() < ready, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    // The same key of another account is another key.
    token(&call("b", "POST", "/v1/idempotency/begin", begin("b", "k")).await);
    // Whether it exists or not, the answer is the same.
    let forbidden = async |key: &str| {
        let mut answers = BTreeSet::new();
        let owned = json!({ "account": "a", "key": key, "token": first });
        let with = |name: &str, value: Value| {
            let mut body = owned.clone();
            body[name] = value;
            Some(body)
        };
        let calls = [
            ("POST", "/v1/idempotency/begin".to_owned(), begin("a", key)),
            ("POST", "/v1/idempotency/complete".to_owned(), with("response", json!({ "status": 200 }))),
            ("POST", "/v1/idempotency/abandon".to_owned(), Some(owned.clone())),
            ("POST", "/v1/idempotency/extend".to_owned(), with("lease_ms", json!(1_000))),
            ("GET", format!("/v1/idempotency/a/{key}"), None),
            ("GET", "/v1/idempotency/a".to_owned(), None),
            ("DELETE", format!("/v1/idempotency/a/{key}"), None),
        ];
        for (method, path, body) in calls {
            let answer = call("b", method, &path, body).await;
            expect_code(&answer, 403, "forbidden");
            answers.insert((method, path.replace(key, "KEY"), answer.body));
        }
        answers
    };
    assert_eq!(forbidden("k").await, forbidden("nothing").await);
    call("a", "DELETE", "/v1/idempotency/a/k", None).await.expect_status(403);
    call("all", "DELETE", "/v1/idempotency/a/k", None).await.expect_status(403);
    assert_eq!(call("all", "GET", "/v1/idempotency/a/k", None).await.expect_status(200).json()["state"], "in_progress");
    let done = json!({ "account": "a", "key": "k", "token": first, "response": { "status": 200 } });
    call("a", "POST", "/v1/idempotency/complete", Some(done)).await.expect_status(200);
    assert_eq!(call("b", "GET", "/v1/idempotency/b/k", None).await.expect_status(200).json()["state"], "in_progress");
    call("admin", "DELETE", "/v1/idempotency/a/k", None).await.expect_status(204);
}

/// What the clients of the test below know of one key.
#[derive(Default)]
struct Seen {
    /// By token: when the attempt certainly had its lease, from the answer on; and until when, unless it ended it.
    leases: Vec<Held>,
    /// Bodies that were acknowledged, by token.
    completed: BTreeMap<u64, String>,
    /// Completions of which nothing is known.
    unknown: BTreeSet<u64>,
}

#[derive(Debug, Clone)]
struct Held {
    token: u64,
    asked: Instant,
    answered: Instant,
    /// The lease counts from the entry, which is later than this.
    until: Instant,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_all_nodes_ten_times_under_load_loses_no_completion_and_no_key_has_two_owners() {
    const WORKERS: u64 = 24;
    const LEASE: Duration = Duration::from_millis(400);
    let mut cluster = Cluster::builder().start().await;
    let seen: Arc<std::sync::Mutex<BTreeMap<String, Seen>>> = Arc::default();
    let fresh = Arc::new(AtomicU64::new(0));
    for round in 0..10_u64 {
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let (apis, seen, fresh, stop) = (cluster.apis(), seen.clone(), fresh.clone(), stop.clone());
            workers.spawn(async move {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // Half of the workers fight over few keys, whose attempts often die; the others make new ones.
                    let contended = worker % 2 == 0;
                    let key = match contended {
                        true => format!("c{}", (worker / 2 + n) % 48),
                        false => format!("n{}", fresh.fetch_add(1, Ordering::Relaxed)),
                    };
                    let api = &apis[(worker + n) as usize % apis.len()];
                    work(api, &key, LEASE, contended, &seen).await;
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(900 + 67 * round)).await;
        cluster.kill_all();
        stop.store(true, Ordering::Relaxed);
        workers.join_all().await;
        cluster.start_all();
        cluster.wait_all_ready().await;
    }
    let api = cluster.api(1);
    until("the cluster", || read(&api, "never"), |answer| answer.status == 404).await;
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let (mut completions, mut takeovers, mut unknown, mut came_true) = (0, 0, 0, 0);
    for (key, seen) in &seen {
        assert_one_owner(key, seen);
        takeovers += usize::from(seen.leases.len() > 1);
        assert!(seen.completed.len() <= 1, "{key} was completed twice: {:?}", seen.completed);
        let Some((token, body)) = seen.completed.iter().next() else {
            unknown += seen.unknown.len();
            came_true += usize::from(has_unknown_outcome(&api, key, seen).await);
            continue;
        };
        completions += 1;
        assert!(
            seen.leases.iter().all(|held| held.token <= *token),
            "{key}: {token} completed, then {:?}",
            seen.leases
        );
        expect_replay(&post(&api, "begin", &begin(key)).await, body);
    }
    println!(
        "{} keys, {completions} acknowledged completions, {takeovers} keys taken over, {unknown} completions unknown, of \
         which {came_true} were applied",
        seen.len()
    );
    assert!(completions > 100 && takeovers > 0 && unknown > 0, "the load was no load");
    cluster.assert_equal_state().await;
}

/// Whether a key without an acknowledged completion has one of which nothing was known. It has no other: a completion
/// that was refused was not applied.
async fn has_unknown_outcome(api: &Api, key: &str, seen: &Seen) -> bool {
    let body = begin(key);
    let answer = until("begin", || post(api, "begin", &body), |answer| answer.status != 503).await;
    if answer.status != 200 {
        assert!(matches!(answer.status, 201 | 409), "{answer:?}");
        return false;
    }
    let possible: Vec<Value> = seen.unknown.iter().map(|token| json!(work_body(key, *token))).collect();
    let found = &answer.json()["response"]["body"];
    assert!(possible.contains(found), "{key} has the outcome {found}, unknown are {possible:?}, {:?}", seen.leases);
    true
}

/// What an attempt completes its key with.
fn work_body(key: &str, token: u64) -> String {
    format!("{key} by {token}")
}

/// One attempt of a key; `often_dies`: three of four don't complete.
async fn work(
    api: &Api,
    key: &str,
    lease: Duration,
    often_dies: bool,
    seen: &std::sync::Mutex<BTreeMap<String, Seen>>,
) {
    let asked = Instant::now();
    let body = begin_with(key, json!({ "lease_ms": lease.as_millis() as u64 }));
    let answer = try_post(api, "begin", &body).await;
    match Outcome::of(&answer) {
        Outcome::NotApplied | Outcome::Unknown => return tokio::time::sleep(Duration::from_millis(10)).await,
        Outcome::Other(409) => return tokio::time::sleep(Duration::from_millis(10)).await,
        Outcome::Done => {}
        other => panic!("{other:?}: {answer:?}"),
    }
    let answer = answer.unwrap();
    if answer.status == 200 {
        return;
    }
    let held = Held { token: token(&answer), asked, answered: Instant::now(), until: asked + lease };
    let token = held.token;
    seen.lock().unwrap().entry(key.to_owned()).or_default().leases.push(held);
    if often_dies && !token.is_multiple_of(4) {
        return;
    }
    let body = work_body(key, token);
    let ending = Instant::now();
    let answer = try_post(api, "complete", &complete(key, token, &body)).await;
    let mut seen = seen.lock().unwrap();
    let seen = seen.get_mut(key).unwrap();
    if let Some(held) = seen.leases.iter_mut().find(|held| held.token == token) {
        held.until = held.until.min(ending);
    }
    match Outcome::of(&answer) {
        Outcome::Done => drop(seen.completed.insert(token, body)),
        Outcome::Unknown => drop(seen.unknown.insert(token)),
        Outcome::NotApplied | Outcome::Other(409) => {}
        other => panic!("{other:?}: {answer:?}"),
    }
}

/// While an attempt certainly has its lease no other is let in; and tokens grow in the order of time.
fn assert_one_owner(key: &str, seen: &Seen) {
    for held in &seen.leases {
        for other in seen.leases.iter().filter(|other| other.token != held.token) {
            let within = held.answered < other.asked && other.answered < held.until;
            assert!(!within, "two owners of {key}: {held:?} and {other:?}");
            assert!(held.answered >= other.asked || held.token < other.token, "{key}: {held:?} then {other:?}");
        }
    }
    let tokens: BTreeSet<u64> = seen.leases.iter().map(|held| held.token).collect();
    assert_eq!(tokens.len(), seen.leases.len(), "a token of {key} was given out twice: {:?}", seen.leases);
}
