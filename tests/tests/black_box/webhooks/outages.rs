//! Nodes die while messages are on their way: nothing accepted is missing, and what is pending goes on at its due time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use onceward_tests::{
    client::Api,
    cluster::Cluster,
    node::Node,
    receiver::{Behaviour, Delivery, Receiver},
    webhooks::{Accepted, Endpoint, judge, publish_until_known},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{SOON, cluster, long, schedule, until};

const APPS: usize = 5;
const WORKERS: usize = 4;
const TYPES: [&str; 2] = ["odd", "even"];

/// An endpoint and the type that it wants; `None`: all.
struct Subscription {
    endpoint: Endpoint,
    wants: Option<&'static str>,
}

impl Subscription {
    fn accepted(&self, all: &[(String, Accepted)]) -> Vec<Accepted> {
        let matches = |message: &Accepted| self.wants.is_none_or(|wanted| wanted == message.event_type);
        let own = all.iter().filter(|(app, message)| *app == self.endpoint.app && matches(message));
        own.map(|(_, message)| message.clone()).collect()
    }
}

/// Four endpoints for each application: two that want everything, one of them slow, and one for each type.
async fn subscribe(api: &Api, receiver: &Receiver, apps: &[String]) -> Vec<Subscription> {
    let mut subscriptions = Vec::new();
    for app in apps {
        api.create_app(app).await;
        for (n, wants) in [None, None, Some(TYPES[0]), Some(TYPES[1])].into_iter().enumerate() {
            let path = format!("/{app}/{n}");
            let more = wants.map_or_else(|| json!({}), |wanted| json!({ "filterTypes": [wanted] }));
            let endpoint = api.create_endpoint(app, receiver, &path, more).await;
            subscriptions.push(Subscription { endpoint, wants });
            if n == 1 {
                receiver.behave(&path, Behaviour::Slow(Duration::from_millis(50), 200));
            }
        }
    }
    subscriptions
}

/// Publishes until it is stopped, each message until it is known to be accepted.
struct Publishers {
    stop: Arc<AtomicBool>,
    retried: Arc<AtomicUsize>,
    workers: JoinSet<Vec<(String, Accepted)>>,
}

impl Publishers {
    fn start(apis: Vec<Api>, apps: &[String]) -> Publishers {
        let (stop, retried) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let (apis, apps, stop, retried) = (apis.clone(), apps.to_vec(), stop.clone(), retried.clone());
            workers.spawn(async move {
                let mut accepted = Vec::new();
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (app, id) = (&apps[(worker + n) % apps.len()], format!("{worker}-{n}"));
                    let payload = json!({ "worker": worker, "n": n, "text": "Zoë  \u{1F980}" });
                    let (message, tries) =
                        publish_until_known(&apis, worker + n, app, TYPES[n % 2], &id, &payload).await;
                    retried.fetch_add(tries, Ordering::Relaxed);
                    accepted.push((app.clone(), message));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                accepted
            });
        }
        Publishers { stop, retried, workers }
    }

    /// All that was accepted, and how often a publish had to be tried again.
    async fn stop(self) -> (Vec<(String, Accepted)>, usize) {
        self.stop.store(true, Ordering::Relaxed);
        let accepted = self.workers.join_all().await.concat();
        (accepted, self.retried.load(Ordering::Relaxed))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_killed_every_few_seconds_lose_no_accepted_message_and_keep_sequences_whole() {
    let length = Duration::from_secs(if long() { 120 } else { 18 });
    let mut cluster = cluster().set("webhooks.retry_schedule_ms", schedule(&[500; 20])).start().await;
    let receiver = Receiver::start().await;
    let apps: Vec<String> = (0..APPS).map(|n| format!("shop-{n}")).collect();
    let subscriptions = subscribe(&cluster.api(1), &receiver, &apps).await;
    let publishers = Publishers::start(cluster.apis(), &apps);

    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed() < length {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let shard = cluster.shard_of_account(&apps[kills % APPS]);
        let leader = cluster.leader_of_shard(shard).await;
        cluster.node(leader).kill();
        kills += 1;
        tokio::time::sleep(Duration::from_millis(900)).await;
        cluster.node(leader).start();
        cluster.wait_ready(leader).await;
    }
    let (accepted, retried) = publishers.stop().await;
    for subscription in &subscriptions {
        let (path, expected) = (&subscription.endpoint.path, subscription.accepted(&accepted).len());
        until(&format!("{expected} messages at {path}"), 3 * SOON, async || receiver.distinct(path) >= expected).await;
    }
    let (mut messages, mut repeated) = (0, 0);
    for subscription in &subscriptions {
        let Endpoint { path, secret, .. } = &subscription.endpoint;
        let found = judge(path, &receiver.deliveries(path), &subscription.accepted(&accepted), secret);
        messages += found.messages;
        repeated += found.repeated;
    }
    println!(
        "{kills} leaders killed in {:?}: {} messages accepted, {retried} publishes tried again, {messages} deliveries and \
         {repeated} repeated",
        began.elapsed(),
        accepted.len()
    );
    assert!(kills >= 4 && retried > 0 && accepted.len() > 100, "the nemesis was none");
    all_outcomes_are_recorded(&cluster, &subscriptions, &accepted).await;
    cluster.assert_equal_state().await;
}

/// Of some messages: a success for every endpoint that they matched.
async fn all_outcomes_are_recorded(cluster: &Cluster, subscriptions: &[Subscription], accepted: &[(String, Accepted)]) {
    const SAMPLES: usize = 40;
    for (n, (app, message)) in accepted.iter().enumerate().step_by(accepted.len() / SAMPLES + 1) {
        let (api, matched) = (cluster.api((n % 3 + 1) as u16), |other: &&Subscription| {
            other.endpoint.app == *app && other.wants.is_none_or(|wanted| wanted == message.event_type)
        });
        let expected = subscriptions.iter().filter(matched).count();
        until(&format!("{expected} successes of {}", message.id), SOON, async || {
            let attempts = api.attempts(app, &message.id).await;
            attempts.iter().filter(|attempt| attempt["status"] == 0).count() >= expected
        })
        .await;
    }
}

/// When what is due after a wait of the schedule may come: 20 % of jitter, and not before.
const JITTER: f64 = 0.2;
const SCHEDULE_MS: [i64; 3] = [1_500, 3_000, 6_000];

fn fails(times: usize) -> impl Iterator<Item = Behaviour> {
    std::iter::repeat_n(Behaviour::Answer(500), times).chain([Behaviour::Answer(200)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_pending_in_every_state_of_the_schedule_go_on_at_their_due_time_after_all_nodes_died() {
    let mut cluster = cluster().set("webhooks.retry_schedule_ms", schedule(&SCHEDULE_MS)).start().await;
    for (round, graceful) in [false, true].into_iter().enumerate().take(if long() { 2 } else { 1 }) {
        restart_with_pending(&mut cluster, &format!("shop-{round}"), graceful).await;
    }
    cluster.assert_equal_state().await;
}

async fn restart_with_pending(cluster: &mut Cluster, app: &str, graceful: bool) {
    let (api, receiver) = (cluster.api(1), Receiver::start().await);
    api.create_app(app).await;
    let path = |n: usize| format!("/{n}");
    // The endpoint `n` fails `n` times; number 4 never answers the first time; number 5 is disabled.
    for n in 1..=3 {
        receiver.script(&path(n), fails(n));
    }
    receiver.script(&path(4), [Behaviour::Hang, Behaviour::Answer(200)]);
    for n in 1..=5 {
        let more = json!({ "filterTypes": [format!("type-{n}")], "disabled": n == 5 });
        api.create_endpoint(app, &receiver, &path(n), more).await;
    }
    let publish = async |n: usize| api.publish(app, &format!("type-{n}"), &json!({ "n": n })).await.id;
    let third = publish(3).await;
    api.wait_attempts(app, &third, 2, SOON).await;
    // So that the third try of the second comes well after the third of the third, whatever the jitter.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let second = publish(2).await;
    api.wait_attempts(app, &second, 2, SOON).await;
    api.wait_attempts(app, &third, 3, SOON).await;
    let withheld = publish(5).await;
    let in_flight = publish(4).await;
    let first = publish(1).await;
    api.wait_attempts(app, &first, 1, SOON).await;
    receiver.wait(&path(4), 1, SOON).await;
    for n in 1..=4 {
        let tried = if n == 4 { 1 } else { n };
        assert_eq!(receiver.count(&path(n)), tried, "{n} is where it should be in the schedule");
    }

    let down = Instant::now();
    if graceful {
        cluster.stop_all().await
    } else {
        cluster.kill_all()
    }
    cluster.start_all();
    cluster.wait_all_ready().await;
    let outage = down.elapsed();
    for n in 1..=3 {
        let deliveries = receiver.wait(&path(n), n + 1, 2 * SOON).await;
        let statuses: Vec<u16> = deliveries.iter().map(|delivery| delivery.status).collect();
        assert_eq!(statuses, [vec![500; n], vec![200]].concat(), "{n}");
        assert_due(&deliveries[n - 1], &deliveries[n], SCHEDULE_MS[n - 1], outage);
    }
    let again = receiver.wait(&path(4), 2, SOON).await;
    assert_eq!(again[0].id(), again[1].id());
    for (message, attempts) in [(&first, 2), (&second, 3), (&third, 4), (&in_flight, 1)] {
        assert_eq!(api.wait_attempts(app, message, attempts, SOON).await.len(), attempts, "{message}");
    }
    assert_eq!(receiver.count(&path(5)), 0, "its endpoint is disabled");
    assert_eq!(api.attempts(app, &withheld).await, Vec::<Value>::new());
    let total = receiver.received();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(receiver.received(), total, "nothing is left to be sent");
}

/// The next try came no earlier than it was due, and about then: an outage, or a clock that ran slow over it, may only
/// delay it.
fn assert_due(last: &Delivery, next: &Delivery, wait_ms: i64, outage: Duration) {
    let (passed, wait) = (next.at - last.at, Duration::from_millis(wait_ms as u64));
    println!("due after {wait:?}, came after {passed:?}, with {outage:?} of outage");
    assert!(passed >= wait.mul_f64(1.0 - JITTER), "{passed:?} instead of {wait:?}");
    assert!(passed < wait.mul_f64(1.0 + JITTER) + outage + SOON, "{passed:?} instead of {wait:?}, {outage:?} outage");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_stored_when_every_node_dies_is_sent_and_its_publish_repeated_is_answered_alike() {
    const WORKERS: usize = 8;
    const MESSAGES: usize = 400;
    const BEFORE: usize = 100;
    let mut cluster = cluster().set("webhooks.retry_schedule_ms", schedule(&[500; 20])).start().await;
    let (mut receiver, apis) = (Receiver::start().await, cluster.apis());
    apis[0].create_app("shop").await;
    let endpoint = apis[0].create_endpoint("shop", &receiver, "/", json!({})).await;
    // Nothing is delivered before the nodes die.
    receiver.stop().await;
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let mut publishers = JoinSet::new();
    for worker in 0..WORKERS {
        let (apis, acknowledged) = (apis.clone(), acknowledged.clone());
        publishers.spawn(async move {
            let mut known = Vec::new();
            for n in (worker..MESSAGES).step_by(WORKERS) {
                let message = json!({ "eventType": "t", "eventId": format!("e{n}"), "payload": { "n": n } });
                let answer = apis[n % apis.len()].try_publish("shop", &message.to_string()).await;
                if let Some(answer) = answer.ok().filter(|answer| answer.status == 202) {
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                    known.push((n, answer.json()["id"].as_str().unwrap().to_owned()));
                }
            }
            known
        });
    }
    while acknowledged.load(Ordering::Relaxed) < BEFORE {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    cluster.kill_all();
    let before: Vec<(usize, String)> = publishers.join_all().await.concat();
    cluster.start_all();
    cluster.wait_all_ready().await;

    receiver.listen().await;
    let mut accepted = Vec::new();
    for n in 0..MESSAGES {
        let (id, payload) = (format!("e{n}"), json!({ "n": n }));
        accepted.push(publish_until_known(&apis, n, "shop", "t", &id, &payload).await.0);
    }
    for (n, id) in &before {
        assert_eq!(accepted[*n].id, *id, "message {n} was acknowledged before");
        let other = json!({ "eventType": "t", "eventId": format!("e{n}"), "payload": { "n": "another" } });
        apis[*n % 3].webhooks("POST", "/app/shop/msg", &other).await.expect_status(409);
    }
    until("all arrive", SOON, async || receiver.distinct("/") >= MESSAGES).await;
    judge("/", &receiver.deliveries("/"), &accepted, &endpoint.secret);
    println!("{} of {MESSAGES} were acknowledged before the nodes died", before.len());
    assert!(before.len() < MESSAGES, "nothing was under way");
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_disk_and_was_replaced_delivers_what_was_pending_before() {
    const MESSAGES: usize = 60;
    let mut cluster = cluster().set("webhooks.retry_schedule_ms", schedule(&[1_000; 30])).start().await;
    let (mut receiver, api) = (Receiver::start().await, cluster.api(1));
    let apps: Vec<String> = (0..APPS).map(|n| format!("shop-{n}")).collect();
    let subscriptions = subscribe(&api, &receiver, &apps).await;
    receiver.stop().await;
    let mut accepted = Vec::new();
    for n in 0..MESSAGES {
        let app = &apps[n % APPS];
        accepted.push((app.clone(), api.publish(app, TYPES[n % 2], &json!({ "n": n })).await));
    }
    cluster.node(3).kill();
    cluster.node(3).wipe();
    let replaced = Node::run(&["replace", "3", "--url", &api.url]);
    assert!(replaced.status.success(), "{replaced:?}");
    cluster.node(3).start();
    cluster.wait_ready(3).await;
    until("it is a member of every shard", 2 * SOON, async || {
        api.cluster().await.shards.iter().all(|shard| shard.members.contains(&3))
    })
    .await;
    // What node 1 led is now for node 2 and the replaced one.
    cluster.node(1).kill();
    receiver.listen().await;
    for subscription in &subscriptions {
        let Endpoint { path, secret, .. } = &subscription.endpoint;
        let expected = subscription.accepted(&accepted);
        until(&format!("{} messages at {path}", expected.len()), 2 * SOON, async || {
            receiver.distinct(path) >= expected.len()
        })
        .await;
        judge(path, &receiver.deliveries(path), &expected, secret);
    }
    let shards = cluster.api(3).cluster().await.shards;
    let led = shards.iter().filter(|shard| shard.leader == Some(3)).count();
    println!("{MESSAGES} messages delivered, the replaced node leads {led} shards");
    cluster.node(1).start();
    cluster.wait_ready(1).await;
    cluster.assert_equal_state().await;
}
