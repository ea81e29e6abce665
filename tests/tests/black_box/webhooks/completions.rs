//! A completion and its messages are one: never one without the other, whatever is killed and when.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use onceward_tests::{
    client::{Answer, Api, Outcome},
    cluster::Cluster,
    receiver::Receiver,
    webhooks::{Accepted, judge},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{SOON, cluster, long, schedule, until};

fn begin(account: &str, key: &str) -> Value {
    json!({ "account": account, "key": key, "fingerprint": "f", "lease_ms": 3_600_000 })
}

fn complete(account: &str, key: &str, token: u64, messages: &[Value]) -> Value {
    let response = json!({ "status": 201, "body": "done" });
    json!({ "account": account, "key": key, "token": token, "response": response, "messages": messages })
}

fn message(event_id: &str, n: usize) -> Value {
    json!({ "eventType": "payment.created", "eventId": event_id, "payload": { "event": event_id, "n": n } })
}

async fn token(api: &Api, account: &str, key: &str) -> u64 {
    let answer = api.try_json("POST", "/v1/idempotency/begin", &begin(account, key)).await.unwrap();
    answer.expect_status(201).json()["token"].as_u64().unwrap()
}

async fn post(api: &Api, body: &Value) -> Answer {
    api.try_json("POST", "/v1/idempotency/complete", body).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_stores_its_messages_with_it_or_refuses_all_and_names_which() {
    let cluster = cluster().start().await;
    let (receiver, apis) = (Receiver::start().await, cluster.apis());
    let api = &apis[0];
    let id = api.create_app("shop").await;
    let endpoint = api.create_endpoint("shop", &receiver, "/", json!({})).await;
    let held = token(api, "shop", "k").await;
    let refused = async |status: u16, names: &str, messages: &[Value]| {
        let answer = post(api, &complete("shop", "k", held, messages)).await.expect_status(status);
        assert!(answer.body.contains(names), "{names} in {answer:?}");
        assert!(answer.json()["code"].is_string(), "{answer:?}");
        let state = api.get("/v1/idempotency/shop/k").await.expect_status(200).json();
        assert_eq!(state["state"], "in_progress", "{state}");
    };
    let good = message("e1", 1);
    let published = json!({ "eventType": "t", "eventId": "taken", "payload": { "n": 0 } });
    let first = api.webhooks("POST", "/app/shop/msg", &published).await.expect_status(202).json();
    refused(409, "messages[1]", &[good.clone(), message("taken", 1)]).await;
    refused(400, "messages[1]", &[good.clone(), json!({ "eventType": "not a type", "payload": {} })]).await;
    refused(400, "messages[1]", &[good.clone(), json!({ "eventType": "t", "payload": [] })]).await;
    refused(400, "messages[1]", &[good.clone(), json!({ "payload": {} })]).await;
    refused(400, "messages", &vec![good.clone(); 17]).await;
    let large = |bytes: usize| json!({ "eventType": "t", "payload": { "x": "x".repeat(bytes) } });
    refused(413, "messages", &[large(256 << 10)]).await;
    refused(413, "messages", &vec![large(200 << 10); 3]).await;
    api.webhooks_get("/app/shop/msg/e1").await.expect_status(404);
    let nobody = token(api, "nobody", "k").await;
    post(api, &complete("nobody", "k", nobody, std::slice::from_ref(&good))).await.expect_status(404);

    // Fields that this version does not know are ignored inside of messages, as SDKs of other versions send them.
    let mut extended = message("e2", 2);
    extended["deliverInTheFuture"] = json!(true);
    let same = json!({ "eventType": "t", "eventId": "taken", "payload": { "n": 0 } });
    let body = complete("shop", "k", held, &[good, extended, same, message("", 3)]);
    let body = body.to_string().replace(r#""eventId":"","#, "");
    let done = api.send("POST", "/v1/idempotency/complete", &[("content-type", "application/json")], body.into());
    let done = done.await.unwrap().expect_status(200);
    let messages = done.json()["messages"].as_array().unwrap().clone();
    let event_ids: Vec<&Value> = messages.iter().map(|message| &message["eventId"]).collect();
    assert_eq!(event_ids, [&json!("e1"), &json!("e2"), &json!("taken"), &json!(null)], "{done:?}");
    assert_eq!(messages[2]["id"], first["id"], "published before with the same content");
    for (n, api) in apis.iter().enumerate() {
        let found = api.webhooks_get(&format!("/app/{id}/msg/e2")).await.expect_status(200).json();
        assert_eq!(found["id"], messages[1]["id"], "through node {}", n + 1);
        let replay = api.try_json("POST", "/v1/idempotency/begin", &begin("shop", "k")).await.unwrap();
        assert_eq!(replay.expect_status(200).json()["response"]["body"], "done");
    }
    let again = json!({ "eventType": "t", "payload": {} });
    let again = post(api, &complete("shop", "k", held, &[again])).await.expect_status(409);
    assert_eq!(again.json()["code"], "already_completed");
    receiver.wait("/", 4, SOON).await;
    assert!(receiver.deliveries("/").iter().all(|delivery| delivery.is_signed_with(&endpoint.secret)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(receiver.count("/"), 4);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Acknowledged,
    /// 503: it was not applied, and won't be.
    Refused,
    Unknown,
}

/// A key that was begun, and what its completion came to.
#[derive(Debug, Clone)]
struct Try {
    account: String,
    key: String,
    messages: usize,
    ending: Ending,
}

/// Even enough to choose victims and instants.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) % bound
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_kill_at_any_instant_leaves_a_completion_without_its_messages_or_messages_without_it() {
    const ACCOUNTS: usize = 4;
    const WORKERS: usize = 8;
    let kills = if long() { 150 } else { 8 };
    let mut cluster = cluster().set("webhooks.retry_schedule_ms", schedule(&[500; 20])).start().await;
    let (receiver, api) = (Receiver::start().await, cluster.api(1));
    let mut secrets = BTreeMap::new();
    let accounts: Vec<String> = (0..ACCOUNTS).map(|n| format!("shop-{n}")).collect();
    for account in &accounts {
        api.create_app(account).await;
        let endpoint = api.create_endpoint(account, &receiver, &format!("/{account}"), json!({})).await;
        secrets.insert(account.clone(), endpoint.secret);
    }
    let (tries, stop) = (Arc::<Mutex<Vec<Try>>>::default(), Arc::<AtomicBool>::default());
    let interrupted = Arc::<AtomicUsize>::default();
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let (apis, accounts, tries, stop) = (cluster.apis(), accounts.clone(), tries.clone(), stop.clone());
        let interrupted = interrupted.clone();
        workers.spawn(async move {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (account, api) = (&accounts[(worker + n) % ACCOUNTS], &apis[(worker + n / 2) % apis.len()]);
                let done = begin_and_complete(api, account, &format!("k{worker}-{n}"), n % 3 + 1).await;
                if done.as_ref().is_none_or(|done| done.ending != Ending::Acknowledged) {
                    interrupted.fetch_add(1, Ordering::Relaxed);
                }
                tries.lock().unwrap().extend(done);
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        });
    }
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    kill_at_random(&mut cluster, &mut Draw(seed), kills).await;
    stop.store(true, Ordering::Relaxed);
    workers.join_all().await;

    let tries = std::mem::take(&mut *tries.lock().unwrap());
    assert!(interrupted.load(Ordering::Relaxed) > 0, "nothing was under way when nodes died");
    let accepted = join(&cluster, tries).await;
    for (account, secret) in &secrets {
        let path = format!("/{account}");
        let expected: Vec<Accepted> =
            accepted.iter().filter(|(of, _)| of == account).map(|(_, message)| message.clone()).collect();
        until(&format!("{} at {path}", expected.len()), 3 * SOON, async || receiver.distinct(&path) >= expected.len())
            .await;
        judge(&path, &receiver.deliveries(&path), &expected, secret);
    }
    cluster.assert_equal_state().await;
}

/// `None`: the key could not be begun.
async fn begin_and_complete(api: &Api, account: &str, key: &str, messages: usize) -> Option<Try> {
    let begun = api.try_json("POST", "/v1/idempotency/begin", &begin(account, key)).await.ok()?;
    if begun.status != 201 {
        assert!([503, 504].contains(&begun.status), "{begun:?}");
        return None;
    }
    let token = begun.json()["token"].as_u64().unwrap();
    let bodies: Vec<Value> = (0..messages).map(|n| message(&format!("{key}-{n}"), n)).collect();
    let answer = api.try_json("POST", "/v1/idempotency/complete", &complete(account, key, token, &bodies)).await;
    let ending = match Outcome::of(&answer) {
        Outcome::Done => Ending::Acknowledged,
        Outcome::NotApplied => Ending::Refused,
        Outcome::Unknown => Ending::Unknown,
        other => panic!("{other:?}: {answer:?}"),
    };
    Some(Try { account: account.to_owned(), key: key.to_owned(), messages, ending })
}

/// Kills one node, or now and then all, again and again, and starts them again; when, chance decides.
async fn kill_at_random(cluster: &mut Cluster, draw: &mut Draw, kills: usize) {
    let began = Instant::now();
    for kill in 0..kills {
        tokio::time::sleep(Duration::from_millis(100 + draw.below(500))).await;
        if kill % 4 == 3 {
            cluster.kill_all();
            cluster.start_all();
            cluster.wait_all_ready().await;
        } else {
            let victim = 1 + draw.below(3) as u16;
            cluster.node(victim).kill();
            tokio::time::sleep(Duration::from_millis(draw.below(700))).await;
            cluster.node(victim).start();
            cluster.wait_ready(victim).await;
        }
    }
    println!("{kills} kills and restarts in {:?}", began.elapsed());
}

/// Joins the histories of keys and messages; returns all messages that are there.
async fn join(cluster: &Cluster, tries: Vec<Try>) -> Vec<(String, Accepted)> {
    const READERS: usize = 8;
    let count = |ending: Ending| tries.iter().filter(|done| done.ending == ending).count();
    let (acknowledged, refused, unknown) =
        (count(Ending::Acknowledged), count(Ending::Refused), count(Ending::Unknown));
    assert!(acknowledged > 100, "no load: {acknowledged} acknowledged");
    let total = tries.len();
    let queue = Arc::new(Mutex::new(tries));
    let mut readers = JoinSet::new();
    for n in 0..READERS {
        let (api, queue) = (cluster.api((n % 3 + 1) as u16), queue.clone());
        readers.spawn(async move {
            let mut found = Vec::new();
            loop {
                let Some(done) = queue.lock().unwrap().pop() else { return found };
                let completed = is_completed(&api, &done).await;
                let messages = messages_of(&api, &done).await;
                let expected = if completed { done.messages } else { 0 };
                assert_eq!(messages.len(), expected, "completed: {completed}, of {done:?} there are {messages:?}");
                assert!(completed || done.ending != Ending::Acknowledged, "lost: {done:?}");
                assert!(!completed || done.ending != Ending::Refused, "applied although it was refused: {done:?}");
                found.extend(messages.into_iter().map(|message| (done.account.clone(), message)));
            }
        });
    }
    let accepted = readers.join_all().await.concat();
    println!(
        "{total} completions: {acknowledged} acknowledged, {refused} refused, {unknown} unknown; {} messages",
        accepted.len()
    );
    accepted
}

async fn is_completed(api: &Api, done: &Try) -> bool {
    let path = format!("/v1/idempotency/{}/{}", done.account, done.key);
    let answer = until_served(api, &path).await.expect_status(200);
    answer.json()["state"] == "completed"
}

async fn messages_of(api: &Api, done: &Try) -> Vec<Accepted> {
    let mut found = Vec::new();
    for n in 0..done.messages {
        let path = format!("/api/v1/app/{}/msg/{}-{n}", done.account, done.key);
        let answer = until_served(api, &path).await;
        if answer.status == 404 {
            continue;
        }
        let message = answer.expect_status(200).json();
        let text = |name: &str| message[name].as_str().unwrap().to_owned();
        found.push(Accepted { id: text("id"), event_type: text("eventType"), payload: message["payload"].to_string() });
    }
    found
}

async fn until_served(api: &Api, path: &str) -> Answer {
    let deadline = Instant::now() + SOON;
    loop {
        let answer = api.get(path).await;
        if answer.status < 500 {
            return answer;
        }
        assert!(Instant::now() < deadline, "{path}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
