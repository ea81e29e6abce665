//! The example payments service on a real cluster: whatever dies, sleeps or comes twice, a key pays once and has one
//! answer.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use onceward_tests::{
    client::{Answer, Api, NoAnswer},
    cluster::Cluster,
    node,
    receiver::Receiver,
    webhooks::Endpoint,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::{fixed, plenty};

const ACCOUNT: &str = "alice";
const STEPS: [&str; 4] = ["after-begin", "after-insert", "after-commit", "after-complete"];
const LEASE_MS: u64 = 700;
/// The lease of an attempt that others are to meet, however busy the machine is.
const LONG_LEASE_MS: u64 = 2_500;
/// A pause that outlasts it and the second attempt that follows.
const LATE_MS: u64 = LONG_LEASE_MS + 3_500;
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A process of the service; killed when dropped.
struct Payments {
    api: Api,
    child: Child,
}

/// What its processes share, which outlives them.
struct Shop {
    dir: TempDir,
    nodes: Vec<String>,
}

impl Shop {
    fn new(cluster: &Cluster) -> Shop {
        let dir = tempfile::Builder::new().prefix("onceward-test-").tempdir().unwrap();
        Shop { dir, nodes: cluster.apis().into_iter().map(|api| api.url).collect() }
    }

    fn start(&self, arguments: &[&str]) -> Payments {
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(node::binary().with_file_name("onceward-payments"));
        command.args(["--demo", "--listen", "127.0.0.1:0", "--database"]).arg(self.dir.path().join("ledger.sqlite"));
        for url in &self.nodes {
            command.args(["--onceward", url]);
        }
        if !arguments.contains(&"--lease-ms") {
            command.args(["--lease-ms", &LEASE_MS.to_string()]);
        }
        command.args(arguments);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("it says {line:?}"));
        Payments { api: Api::new(url.to_owned()), child }
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the log of the service ---\n{}", std::fs::read_to_string(self.log()).unwrap_or_default());
        }
    }
}

impl Drop for Payments {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Payments {
    fn kill(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    async fn send(&self, key: &str, pause: &str, body: &Value) -> Result<Answer, NoAnswer> {
        post(&self.api, key, &[("x-demo-pause", pause)], body).await
    }

    async fn post(&self, key: &str, body: &Value) -> Answer {
        post(&self.api, key, &[], body).await.expect("an answer")
    }

    /// Repeats until there is an answer that is final, as a client does.
    async fn until_answered(&self, key: &str, body: &Value) -> Answer {
        until_answered(&self.api, key, body).await
    }

    async fn rows(&self) -> Vec<Value> {
        let answer = self.api.send("GET", "/payments", &[("authorization", "Bearer alice")], Vec::new()).await;
        answer.unwrap().expect_status(200).json()["payments"].as_array().unwrap().clone()
    }

    async fn rows_of(&self, key: &str) -> usize {
        self.rows().await.iter().filter(|row| row["idempotency_key"] == key).count()
    }

    /// Waits until the process has aborted by itself.
    async fn wait_crash(mut self) {
        let deadline = Instant::now() + ANSWER_MAX;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it did not crash");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn post(api: &Api, key: &str, more: &[(&str, &str)], body: &Value) -> Result<Answer, NoAnswer> {
    let authorization = format!("Bearer {ACCOUNT}");
    let mut headers =
        vec![("authorization", authorization.as_str()), ("content-type", "application/json"), ("idempotency-key", key)];
    headers.extend_from_slice(more);
    api.send("POST", "/payments", &headers, body.to_string().into_bytes()).await
}

async fn until_answered(api: &Api, key: &str, body: &Value) -> Answer {
    let deadline = Instant::now() + ANSWER_MAX;
    loop {
        let wait_ms = match post(api, key, &[], body).await {
            Ok(answer) if [409, 503, 504].contains(&answer.status) => {
                assert!(answer.header("retry-after").is_some(), "{answer:?}");
                answer.json()["retry_after_ms"].as_u64().unwrap()
            }
            Ok(answer) => return answer,
            Err(_) => 50,
        };
        assert!(Instant::now() < deadline, "no final answer for {key}");
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    }
}

/// Waits until an attempt has the key.
async fn wait_held(onceward: &Api, key: &str) {
    let deadline = Instant::now() + ANSWER_MAX;
    let path = format!("/v1/idempotency/{ACCOUNT}/{key}");
    loop {
        let answer = onceward.get(&path).await;
        if answer.status == 200 {
            assert_eq!(answer.json()["state"], "in_progress", "{answer:?}");
            return;
        }
        assert!(Instant::now() < deadline, "nobody began {key}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn order(amount_cents: u64) -> Value {
    json!({ "amount_cents": amount_cents, "currency": "EUR", "to": "bob" })
}

/// What a client keeps of an answer.
fn content(answer: &Answer) -> (u16, Option<&str>, Option<&str>, &str) {
    (answer.status, answer.header("content-type"), answer.header("location"), &answer.body)
}

async fn cluster_with_policy() -> Cluster {
    let loopback = toml::Value::Array(vec!["127.0.0.0/8".into()]);
    let cluster = Cluster::builder().set("webhooks.allow_private", loopback).start().await;
    cluster.api(1).put_policy("payments", plenty()).await.expect_status(201);
    cluster
}

/// An endpoint of the account's.
async fn subscribe(cluster: &Cluster, receiver: &Receiver) -> Endpoint {
    cluster.api(1).create_app(ACCOUNT).await;
    cluster.api(1).create_endpoint(ACCOUNT, receiver, "/", json!({})).await
}

/// Waits until the account was told of every payment, and of nothing else, under one message id each.
async fn assert_told(receiver: &Receiver, endpoint: &Endpoint, payments: &[Value]) {
    let deadline = Instant::now() + ANSWER_MAX;
    while receiver.distinct("/") < payments.len() {
        assert!(Instant::now() < deadline, "{} of {} payments were told", receiver.distinct("/"), payments.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (mut told, mut sequences) = (BTreeMap::new(), BTreeMap::new());
    for delivery in receiver.deliveries("/") {
        assert!(delivery.is_signed_with(&endpoint.secret), "{delivery:?}");
        let event: Value = serde_json::from_str(delivery.text()).unwrap();
        assert_eq!(event["type"], "payment.created");
        sequences.insert(delivery.sequence(), delivery.id().to_owned());
        let id = told.entry(event["data"]["id"].to_string()).or_insert_with(|| delivery.id().to_owned());
        assert_eq!(id, delivery.id(), "told twice under two ids: {event}");
    }
    let made: Vec<String> = payments.iter().map(|payment| payment["id"].to_string()).collect();
    assert_eq!(told.len(), made.len());
    assert!(made.iter().all(|id| told.contains_key(id)), "{made:?} were made, {told:?} were told");
    assert!(sequences.into_keys().eq(1..=made.len() as u64), "numbered without gaps");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_step_the_service_pays_once_and_answers_alike() {
    let cluster = cluster_with_policy().await;
    let (shop, receiver) = (Shop::new(&cluster), Receiver::start().await);
    let endpoint = subscribe(&cluster, &receiver).await;
    for (name, amount_cents, status, paid) in [("paid", 100, 201, 1), ("declined", 1_000_001, 402, 0)] {
        for step in STEPS {
            let (key, body) = (format!("{name}-{step}"), order(amount_cents));
            let service = shop.start(&["--crash-at", step]);
            let first = post(&service.api, &key, &[], &body).await;
            assert!(matches!(first, Err(NoAnswer::Lost(_))), "{key}: {first:?}");
            service.wait_crash().await;

            let service = shop.start(&[]);
            let committed = matches!(step, "after-commit" | "after-complete");
            assert_eq!(service.rows_of(&key).await, if committed { paid } else { 0 }, "{key} died at its step");
            let answer = service.until_answered(&key, &body).await.expect_status(status);
            assert!(answer.header("idempotent-replayed").is_some() || !committed, "{key}: {answer:?}");
            let again = service.post(&key, &body).await;
            assert_eq!(content(&answer), content(&again), "{key}");
            assert_eq!(again.header("idempotent-replayed"), Some("true"));
            assert_eq!(service.rows_of(&key).await, paid, "{key}");
        }
    }
    assert_told(&receiver, &endpoint, &shop.start(&[]).rows().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_sleeps_past_its_lease_and_wakes_up_late_does_not_pay_again() {
    let cluster = cluster_with_policy().await;
    let shop = Shop::new(&cluster);
    let sleeper = Arc::new(shop.start(&["--lease-ms", &LONG_LEASE_MS.to_string()]));
    let second = shop.start(&[]);
    for step in ["after-begin", "after-insert", "after-commit"] {
        let pause = format!("{step}={LATE_MS}");
        let first = tokio::spawn({
            let (sleeper, pause) = (sleeper.clone(), pause.clone());
            async move { sleeper.send(step, &pause, &order(100)).await.unwrap() }
        });
        wait_held(&cluster.api(1), step).await;
        assert_eq!(second.post(step, &order(100)).await.json()["code"], "in_progress");
        let answer = second.until_answered(step, &order(100)).await.expect_status(201);
        // Who sleeps with the payment written holds the database's lock, so the second waits and finds what it left.
        assert!(!first.is_finished() || step == "after-insert", "{step}");
        assert!(answer.header("idempotent-replayed").is_some() || step == "after-begin", "{step}: {answer:?}");
        let late = first.await.unwrap();
        assert_eq!((late.status, &late.json()["code"]), (409, &json!("in_progress")), "{step}: {late:?}");
        let again = sleeper.until_answered(step, &order(100)).await;
        assert_eq!(content(&answer), content(&again), "{step}");
        assert_eq!(second.rows_of(step).await, 1, "{step}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_at_once_with_one_key_pay_once() {
    let cluster = cluster_with_policy().await;
    let shop = Shop::new(&cluster);
    let services = [shop.start(&["--lease-ms", "30000"]), shop.start(&["--lease-ms", "30000"])];
    let mut tasks = JoinSet::new();
    for n in 0..400 {
        let api = services[n % 2].api.clone();
        tasks.spawn(async move { post(&api, "one", &[], &order(100)).await.unwrap() });
    }
    let answers = tasks.join_all().await;
    let mut statuses = BTreeMap::new();
    answers.iter().for_each(|answer| *statuses.entry(answer.status).or_insert(0) += 1);
    // 503 is for a machine that is busy with something else.
    assert!(statuses.keys().all(|status| [201, 409, 503].contains(status)), "{statuses:?}");
    let made: Vec<&Answer> =
        answers.iter().filter(|a| a.status == 201 && a.header("idempotent-replayed").is_none()).collect();
    assert_eq!(made.len(), 1, "one of them did it: {statuses:?}");
    let replay = services[1].post("one", &order(100)).await;
    for answer in answers.iter().filter(|answer| answer.status == 201).chain([&replay]) {
        assert_eq!(content(answer), content(made[0]));
    }
    assert_eq!(services[0].rows().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_does_not_stop_its_payment() {
    let cluster = cluster_with_policy().await;
    let shop = Shop::new(&cluster);
    let service = shop.start(&["--lease-ms", "30000"]);
    let (onceward, body) = (cluster.api(1), order(100));
    tokio::select! {
        answer = service.send("k", "after-begin=2000", &body) => panic!("it was answered already: {answer:?}"),
        () = wait_held(&onceward, "k") => {}
    }
    let asked = Instant::now();
    let answer = service.until_answered("k", &order(100)).await.expect_status(201);
    assert_eq!(answer.header("idempotent-replayed"), Some("true"));
    assert!(asked.elapsed() < Duration::from_secs(10), "not after the lease, but when the work was done");
    assert_eq!(service.rows_of("k").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_keeps_the_rules_of_the_idempotency_key_header() {
    let cluster = cluster_with_policy().await;
    let shop = Shop::new(&cluster);
    let service = shop.start(&[]);
    let headers = [("authorization", "Bearer alice"), ("content-type", "application/json")];
    let none = service.api.send("POST", "/payments", &headers, order(100).to_string().into_bytes()).await.unwrap();
    assert_eq!((none.status, &none.json()["code"]), (400, &json!("idempotency_key_missing")));
    assert_eq!(none.header("content-type"), Some("application/problem+json"));

    // A body that is wrong does not touch its key.
    service.post("a", &json!({ "amount_cents": -1, "currency": "EUR", "to": "bob" })).await.expect_status(400);
    let first = service.post("a", &order(100)).await.expect_status(201);
    let quoted = service.post("\"a\"", &order(100)).await;
    assert_eq!(content(&first), content(&quoted), "quoted and bare are the same key");
    assert_eq!(first.header("idempotent-replayed"), None);
    assert_eq!(quoted.header("idempotent-replayed"), Some("true"));
    let other = service.post("a", &order(101)).await;
    assert_eq!((other.status, &other.json()["code"]), (422, &json!("fingerprint_mismatch")));
    service.post("b", &order(100)).await.expect_status(201);
    assert_eq!(service.rows().await.len(), 2, "equal payments under two keys are two payments");

    // What may succeed later frees its key.
    let offline = json!({ "amount_cents": 100, "currency": "EUR", "to": "offline-bob" });
    let refused = service.post("c", &offline).await;
    assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("bank_offline")));
    service.post("c", &order(100)).await.expect_status(201);

    cluster.api(1).put_policy("payments", fixed(1)).await.expect_status(200);
    service.until_answered("a", &order(100)).await;
    let limited = service.post("a", &order(100)).await.expect_status(429);
    assert_eq!(limited.header("ratelimit-limit"), Some("1"));
    assert!(limited.header("retry-after").is_some() && limited.header("ratelimit-policy").is_some(), "{limited:?}");
    assert_eq!(service.rows().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_of_onceward_payments_are_refused_and_not_made() {
    let mut cluster = cluster_with_policy().await;
    // The limit lets everybody through then: what refuses is the key.
    let open = json!({ "rate": "1000/s", "on_unavailable": "allow" });
    cluster.api(1).put_policy("open", open).await.expect_status(201);
    let shop = Shop::new(&cluster);
    let (service, open) = (shop.start(&[]), shop.start(&["--policy", "open"]));
    service.until_answered("before", &order(100)).await.expect_status(201);
    cluster.node(1).kill();
    service.until_answered("one-node-less", &order(100)).await.expect_status(201);
    cluster.node(2).kill();
    for service in [&service, &open] {
        for key in ["during", "before"] {
            let answer = service.post(key, &order(100)).await.expect_status(503);
            assert!(answer.header("retry-after").is_some(), "{answer:?}");
        }
        assert_eq!(service.rows_of("during").await, 0);
    }
    cluster.node(1).start();
    cluster.node(2).start();
    service.until_answered("during", &order(100)).await.expect_status(201);
    assert_eq!(service.rows().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_made_while_a_leader_and_the_service_are_killed_are_each_made_once() {
    const WORKERS: usize = 8;
    const PAYMENTS_EACH_MIN: usize = 15;
    let mut cluster = cluster_with_policy().await;
    let (shop, receiver) = (Shop::new(&cluster), Receiver::start().await);
    let endpoint = subscribe(&cluster, &receiver).await;
    let mut services = [shop.start(&[]), shop.start(&[])];
    let addresses = services.iter().map(|service| service.api.clone()).collect::<Vec<Api>>();
    let (sender, addresses) = tokio::sync::watch::channel(addresses);
    let (over, lost, refused) =
        (Arc::new(AtomicBool::new(false)), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let (addresses, over, lost, refused) = (addresses.clone(), over.clone(), lost.clone(), refused.clone());
        workers.spawn(async move {
            let mut made = Vec::new();
            while made.len() < PAYMENTS_EACH_MIN || !over.load(Ordering::Relaxed) {
                let key = format!("{worker}-{}", made.len());
                let deadline = Instant::now() + ANSWER_MAX;
                let answer = loop {
                    let api = addresses.borrow()[worker % 2].clone();
                    let answer = post(&api, &key, &[], &order(100)).await;
                    match &answer {
                        Ok(answer) if ![409, 503, 504].contains(&answer.status) => {
                            break answer.clone().expect_status(201);
                        }
                        Ok(_) => refused.fetch_add(1, Ordering::Relaxed),
                        Err(NoAnswer::Lost(_)) => lost.fetch_add(1, Ordering::Relaxed),
                        Err(NoAnswer::NotSent(_)) => 0,
                    };
                    assert!(Instant::now() < deadline, "no final answer for {key}: {answer:?}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                };
                made.push((key, answer));
            }
            made
        });
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let leader = cluster.leader_of_shard(cluster.shard_of_account(ACCOUNT)).await;
    cluster.node(leader).kill();
    // Until all of them are in the middle of a payment.
    tokio::time::sleep(Duration::from_millis(150)).await;
    services[0].kill();
    services[0] = shop.start(&[]);
    sender.send(services.iter().map(|service| service.api.clone()).collect()).unwrap();
    cluster.node(leader).start();
    cluster.wait_ready(leader).await;
    over.store(true, Ordering::Relaxed);
    let made: Vec<(String, Answer)> = workers.join_all().await.into_iter().flatten().collect();

    let (lost, refused) = (lost.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    println!("{} payments, {lost} lost connections, {refused} answers that were not final", made.len());
    assert!(lost > 0, "nothing was in flight when leader and service died");
    for (key, answer) in &made {
        let again = until_answered(&services[1].api, key, &order(100)).await;
        assert_eq!(content(answer), content(&again), "{key}");
    }
    let mut by_key: BTreeMap<String, usize> = BTreeMap::new();
    let rows = services[0].rows().await;
    for row in &rows {
        *by_key.entry(row["idempotency_key"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(by_key.len(), made.len());
    assert!(by_key.values().all(|rows| *rows == 1), "{by_key:?}");
    assert_told(&receiver, &endpoint, &rows).await;
}
