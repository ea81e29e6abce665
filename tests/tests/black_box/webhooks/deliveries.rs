//! What a receiver answers decides what becomes of a delivery; how deliveries are signed, numbered and throttled.

use std::time::{Duration, Instant};

use onceward_tests::{
    client::Api,
    cluster::Cluster,
    receiver::{Behaviour, Delivery, Receiver},
    webhooks::{Endpoint, judge},
};
use serde_json::{Value, json};

use super::{SOON, cluster, schedule, until};

const TIMEOUT_MS: i64 = 1_000;
/// What is kept of an answer.
const ANSWER_BYTES_MAX: usize = 16 << 10;

fn answers(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Behaviour {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Behaviour::AnswerWith { status, headers, body: body.to_vec() }
}

async fn app(api: &Api, uid: &str, receiver: &Receiver, path: &str) -> Endpoint {
    api.create_app(uid).await;
    api.create_endpoint(uid, receiver, path, json!({ "uid": "ep" })).await
}

async fn endpoint(api: &Api, app: &str) -> Value {
    api.webhooks_get(&format!("/app/{app}/endpoint/ep")).await.expect_status(200).json()
}

/// An operational endpoint at a path of the receiver; returns its secret.
async fn watch(api: &Api, receiver: &Receiver, path: &str) -> String {
    let body = json!({ "url": receiver.url(path) });
    let made = api.webhooks("POST", "/operational-webhook/endpoint", &body).await.expect_status(201).json();
    let id = made["id"].as_str().unwrap().to_owned();
    let secret = api.webhooks_get(&format!("/operational-webhook/endpoint/{id}/secret")).await.expect_status(200);
    secret.json()["key"].as_str().unwrap().to_owned()
}

/// What the owner was told of an application.
fn told(receiver: &Receiver, path: &str, app: &str) -> Vec<(Delivery, Value)> {
    let all = receiver.deliveries(path).into_iter().map(|delivery| {
        let body: Value = serde_json::from_str(delivery.text()).unwrap();
        (delivery, body)
    });
    all.filter(|(_, body)| body["data"]["appUid"] == app).collect()
}

fn kinds(told: &[(Delivery, Value)]) -> Vec<&str> {
    told.iter().map(|(_, body)| body["type"].as_str().unwrap()).collect()
}

/// The owner was told this of an application, and nothing else.
async fn assert_told(receiver: &Receiver, path: &str, app: &str, secret: &str, kind: &str) {
    until(&format!("{kind} of {app} is told"), SOON, async || !told(receiver, path, app).is_empty()).await;
    let told = told(receiver, path, app);
    assert_eq!(kinds(&told), [kind], "{told:?}");
    let (delivery, body) = &told[0];
    assert!(delivery.is_signed_with(secret), "{delivery:?}");
    assert_eq!(delivery.headers.get("onceward-sequence"), None, "operational messages have no sequence");
    assert!(body["data"]["endpointId"].as_str().is_some_and(|id| id.starts_with("ep_")), "{body}");
}

/// A node with short waits.
async fn node() -> Cluster {
    let waits = schedule(&[200, 400]);
    let node = cluster().nodes(1).set("webhooks.retry_schedule_ms", waits).set("webhooks.timeout_ms", TIMEOUT_MS);
    node.start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_says_410_gets_nothing_more_and_what_comes_then_is_kept_and_has_its_number() {
    let mut cluster = cluster().set("webhooks.retry_schedule_ms", schedule(&[200, 400])).start().await;
    let (receiver, api) = (Receiver::start().await, cluster.api(1));
    let secret = watch(&api, &receiver, "/ops").await;
    app(&api, "gone", &receiver, "/gone").await;
    receiver.behave("/gone", Behaviour::Answer(410));
    let first = api.publish("gone", "t", &json!({ "n": 1 })).await;
    let attempts = api.wait_attempts("gone", &first.id, 1, SOON).await;
    assert_eq!((&attempts[0]["status"], &attempts[0]["responseStatusCode"]), (&json!(2), &json!(410)), "{attempts:?}");
    assert_eq!(endpoint(&api, "gone").await["disabled"], true);
    let withheld = api.publish("gone", "t", &json!({ "n": 2 })).await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(receiver.count("/gone"), 1, "it said that it wants no more");
    let kept = api.webhooks_get(&format!("/app/gone/msg/{}", withheld.id)).await.expect_status(200).json();
    assert_eq!(kept["payload"], json!({ "n": 2 }));

    receiver.behave("/gone", Behaviour::Answer(200));
    api.webhooks("PATCH", "/app/gone/endpoint/ep", &json!({ "disabled": false })).await.expect_status(200);
    api.publish("gone", "t", &json!({ "n": 3 })).await;
    let deliveries = receiver.wait("/gone", 2, SOON).await;
    let seen: Vec<(u64, &str)> = deliveries.iter().map(|delivery| (delivery.sequence(), delivery.text())).collect();
    assert_eq!(seen, [(1, r#"{"n":1}"#), (3, r#"{"n":3}"#)], "the hole tells of the second");
    assert_told(&receiver, "/ops", "gone", &secret, "endpoint.disabled").await;
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_is_a_failure_and_is_never_followed() {
    let cluster = node().await;
    let (receiver, api) = (Receiver::start().await, cluster.api(1));
    app(&api, "redirected", &receiver, "/redirected").await;
    let elsewhere = receiver.url("/elsewhere");
    receiver.behave("/redirected", answers(307, &[("location", &elsewhere)], b""));
    let message = api.publish("redirected", "t", &json!({})).await;
    let attempts = api.wait_attempts("redirected", &message.id, 3, SOON).await;
    assert!(attempts.iter().all(|attempt| attempt["responseStatusCode"] == 307), "{attempts:?}");
    assert_eq!(receiver.count("/elsewhere"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_that_fails_on_and_on_is_given_up_when_its_schedule_is_over_visibly_and_with_a_notice() {
    let mut cluster = cluster().set("webhooks.retry_schedule_ms", schedule(&[200, 400])).start().await;
    let (receiver, api) = (Receiver::start().await, cluster.api(1));
    let secret = watch(&api, &receiver, "/ops").await;
    app(&api, "exhausted", &receiver, "/exhausted").await;
    receiver.behave("/exhausted", answers(500, &[], b"down for maintenance"));
    let message = api.publish("exhausted", "t", &json!({})).await;
    let attempts = api.wait_attempts("exhausted", &message.id, 3, SOON).await;
    let failed = |attempt: &Value| attempt["status"] == 2 && attempt["response"] == "down for maintenance";
    assert!(attempts.iter().all(failed), "{attempts:?}");
    for (status, count) in [(0, 0), (2, 3)] {
        let path = format!("/app/exhausted/attempt/msg/{}?status={status}", message.id);
        let listed = api.webhooks_get(&path).await.expect_status(200).json();
        assert_eq!(listed["data"].as_array().unwrap().len(), count, "status {status}: {listed}");
    }
    let path = format!("/app/exhausted/msg/{}/endpoint", message.id);
    let standing = api.webhooks_get(&path).await.expect_status(200).json()["data"][0].clone();
    assert_eq!((&standing["status"], &standing["nextAttempt"]), (&json!(2), &json!(null)), "{standing}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(receiver.count("/exhausted"), 3);
    assert_eq!(endpoint(&api, "exhausted").await["disabled"], false);
    assert_told(&receiver, "/ops", "exhausted", &secret, "message.attempt.exhausted").await;
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_waited_out_where_it_is_longer_than_the_schedule() {
    let cluster = node().await;
    let (receiver, api) = (Receiver::start().await, cluster.api(1));
    app(&api, "retry-after", &receiver, "/retry-after").await;
    receiver.script("/retry-after", [answers(503, &[("retry-after", "2")], b""), Behaviour::Answer(200)]);
    let message = api.publish("retry-after", "t", &json!({})).await;
    let deliveries = receiver.wait("/retry-after", 2, SOON).await;
    let waited = deliveries[1].at - deliveries[0].at;
    assert!(waited >= Duration::from_secs(2), "asked to wait 2 s, came after {waited:?}");
    assert!(deliveries.iter().all(|delivery| delivery.id() == message.id && delivery.sequence() == 1));
    let stamps: Vec<u64> =
        deliveries.iter().map(|delivery| delivery.header("webhook-timestamp").parse().unwrap()).collect();
    assert!(stamps[1] > stamps[0], "the time is that of the attempt: {stamps:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_kept_up_to_its_limit_and_cut_between_characters() {
    let cluster = node().await;
    let (receiver, api) = (Receiver::start().await, cluster.api(1));
    app(&api, "cut", &receiver, "/cut").await;
    let body = format!("a{}", "ü".repeat(ANSWER_BYTES_MAX));
    receiver.script("/cut", [answers(500, &[], body.as_bytes()), answers(200, &[], b"\xff\xfe ok")]);
    let message = api.publish("cut", "t", &json!({})).await;
    let attempts = api.wait_attempts("cut", &message.id, 2, SOON).await;
    let kept = attempts[1]["response"].as_str().unwrap();
    assert!(body.starts_with(kept), "{kept:?}");
    assert!((ANSWER_BYTES_MAX - 2..=ANSWER_BYTES_MAX).contains(&kept.len()), "{} bytes are kept", kept.len());
    assert!(attempts[0]["response"].as_str().unwrap().ends_with(" ok"), "{attempts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_hangs_or_drips_has_one_deadline_however_slowly_its_bytes_come() {
    let cluster = node().await;
    let (receiver, api) = (Receiver::start().await, cluster.api(1));
    let ways = [("hang", Behaviour::Hang), ("drip-head", Behaviour::DripHead), ("drip-body", Behaviour::DripBody)];
    for (name, behaviour) in &ways {
        let path = format!("/{name}");
        app(&api, name, &receiver, &path).await;
        receiver.script(&path, [behaviour.clone(), Behaviour::Answer(200)]);
    }
    for (name, _) in ways {
        let message = api.publish(name, "t", &json!({})).await;
        let attempts = api.wait_attempts(name, &message.id, 2, SOON).await;
        let (last, first) = (&attempts[0], &attempts[1]);
        assert_eq!((&last["status"], &first["status"]), (&json!(0), &json!(2)), "{attempts:?}");
        let took_ms = first["responseDurationMs"].as_i64().unwrap();
        assert!((TIMEOUT_MS - 50..TIMEOUT_MS + 2_000).contains(&took_ms), "{name}: {first}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_fails_for_the_whole_window_is_disabled_with_a_notice_in_the_same_change() {
    let mut cluster = cluster()
        .set("webhooks.retry_schedule_ms", schedule(&[400; 20]))
        .set("webhooks.disable_after_ms", 3_000)
        .start()
        .await;
    let (receiver, api) = (Receiver::start().await, cluster.api(1));
    watch(&api, &receiver, "/ops").await;
    app(&api, "failing", &receiver, "/failing").await;
    app(&api, "mending", &receiver, "/mending").await;
    receiver.behave("/failing", Behaviour::Answer(500));
    // One that succeeds now and then is not disabled, however long it fails in between.
    receiver.script("/mending", [500, 500, 500, 200, 500, 500, 500, 200].map(Behaviour::Answer));
    let began = Instant::now();
    api.publish("failing", "t", &json!({ "n": 1 })).await;
    api.publish("mending", "t", &json!({ "n": 1 })).await;
    receiver.wait("/mending", 4, SOON).await;
    api.publish("mending", "t", &json!({ "n": 2 })).await;
    until("it is disabled", SOON, async || endpoint(&api, "failing").await["disabled"] == true).await;
    assert!(began.elapsed() >= Duration::from_secs(3), "after {:?}", began.elapsed());
    let sent = receiver.count("/failing");
    until("the owner is told", SOON, async || !told(&receiver, "/ops", "failing").is_empty()).await;
    receiver.wait("/mending", 8, SOON).await;
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(receiver.count("/failing"), sent, "it is disabled");
    let told = told(&receiver, "/ops", "failing");
    assert_eq!(kinds(&told), ["endpoint.disabled"]);
    assert!(told[0].1["data"]["failSince"].is_string(), "{told:?}");
    assert_eq!(endpoint(&api, "mending").await["disabled"], false);
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_secret_and_a_new_url_hold_from_the_next_attempt_on_while_traffic_keeps_everything_warm() {
    const MESSAGES: usize = 60;
    const GRACE: Duration = Duration::from_secs(2);
    let cluster = cluster().set("webhooks.retry_schedule_ms", schedule(&[300; 10])).start().await;
    let (receiver, apis) = (Receiver::start().await, cluster.apis());
    let old = app(&apis[0], "shop", &receiver, "/old").await.secret;
    let mut accepted = Vec::new();
    let (mut rotated_at, mut rotation) = (0, Instant::now());
    let mut new = old.clone();
    for n in 0..MESSAGES {
        if n == MESSAGES / 3 {
            let rotate = json!({ "gracePeriodSeconds": GRACE.as_secs() });
            let path = "/app/shop/endpoint/ep/secret/rotate";
            rotation = Instant::now();
            let rotated = apis[1].webhooks("POST", path, &rotate).await.expect_status(200);
            rotated_at = n;
            new = apis[2].secret("shop", "ep").await;
            assert_eq!(rotated.json()["key"], json!(new));
        }
        accepted.push(apis[n % 3].publish("shop", "t", &json!({ "n": n })).await);
    }
    assert_ne!(old, new);
    until("all arrive", SOON, async || receiver.distinct("/old") >= MESSAGES).await;
    for delivery in receiver.deliveries("/old") {
        let n = accepted.iter().position(|message| message.id == delivery.id()).unwrap();
        let within_grace = delivery.at < rotation + GRACE;
        assert!(delivery.is_signed_with(&old) || !within_grace, "within the grace time: {delivery:?}");
        if n >= rotated_at {
            assert!(delivery.is_signed_with(&new), "message {n} was published after the rotation: {delivery:?}");
        }
    }
    tokio::time::sleep(GRACE + Duration::from_millis(200)).await;
    // A delivery that failed goes to the URL, and is signed with the secret, of the moment at which it is tried again.
    receiver.behave("/old", Behaviour::Answer(500));
    let last = apis[0].publish("shop", "t", &json!({ "n": "last" })).await;
    apis[0].wait_attempts("shop", &last.id, 1, SOON).await;
    let moved = json!({ "url": receiver.url("/new") });
    apis[1].webhooks("PATCH", "/app/shop/endpoint/ep", &moved).await.expect_status(200);
    let delivery = receiver.wait("/new", 1, SOON).await.remove(0);
    assert_eq!((delivery.id(), delivery.sequence()), (last.id.as_str(), MESSAGES as u64 + 1));
    assert!(delivery.is_signed_with(&new) && !delivery.is_signed_with(&old), "the grace time is over: {delivery:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttle_is_kept_in_every_interval_and_headers_go_along_but_cannot_replace_ours() {
    const RATE: u64 = 10;
    const MESSAGES: u64 = 35;
    let cluster = cluster().start().await;
    let (receiver, apis) = (Receiver::start().await, cluster.apis());
    apis[0].create_app("shop").await;
    let more = json!({ "rateLimit": RATE, "headers": { "X-Tenant": "acme", "Authorization": "Basic eDp5" } });
    let throttled = apis[0].create_endpoint("shop", &receiver, "/throttled", more).await;
    apis[0].create_endpoint("shop", &receiver, "/free", json!({})).await;
    let (mut accepted, began) = (Vec::new(), Instant::now());
    for n in 0..MESSAGES as usize {
        accepted.push(apis[n % 3].publish("shop", "t", &json!({ "n": n })).await);
    }
    receiver.wait("/free", accepted.len(), SOON).await;
    let free = began.elapsed();
    until("all arrive", SOON, async || receiver.distinct("/throttled") >= accepted.len()).await;
    let deliveries = receiver.deliveries("/throttled");
    println!("{MESSAGES} messages: {free:?} without a throttle, {:?} at {RATE}/s", began.elapsed());
    for (n, from) in deliveries.iter().enumerate() {
        for (count, to) in deliveries[n..].iter().enumerate() {
            // What one second admits at once, and the rate over the interval; reading them takes a moment, too.
            let admitted = RATE as f64 * (1.0 + (to.at - from.at).as_secs_f64() + 0.1);
            assert!((count + 1) as f64 <= admitted + 1.0, "{} within {:?}", count + 1, to.at - from.at);
        }
    }
    judge("/throttled", &deliveries, &accepted, &throttled.secret);
    for delivery in &deliveries {
        assert_eq!((delivery.header("x-tenant"), delivery.header("authorization")), ("acme", "Basic eDp5"));
        assert_eq!(delivery.header("content-type"), "application/json");
        assert!(delivery.header("user-agent").starts_with("Onceward/"), "{delivery:?}");
    }
}
