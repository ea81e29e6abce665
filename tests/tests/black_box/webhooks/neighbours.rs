//! Bad receivers beside a good one: they delay nobody else, and cost no memory to speak of.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use onceward_tests::{
    client::Api,
    cluster::Cluster,
    ports::free_port,
    process_stats::resident_bytes,
    receiver::{Behaviour, Delivery, Receiver},
    webhooks::{Accepted, judge, publish_until_known},
};
use serde_json::json;
use tokio::task::JoinSet;

use super::{SOON, cluster, long, until};

const BAD: usize = 20;
const GOOD_PER_S: u32 = 100;
const BAD_PER_S: u32 = 2;
const P99_MAX: Duration = Duration::from_millis(100);
/// What any node may grow by meanwhile: its caches and tables warm up, too.
const GROWTH_MAX: u64 = 160 << 20;

/// Publishes at a steady rate whatever the answers take; returns what was accepted and when each publish began.
async fn publish_steadily(
    apis: &[Api],
    event_type: &'static str,
    rate: u32,
    length: Duration,
) -> Vec<(Accepted, Instant)> {
    let accepted = Arc::<Mutex<Vec<(Accepted, Instant)>>>::default();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
    let (mut publishes, end) = (JoinSet::new(), Instant::now() + length);
    // Messages of two runs are different ones.
    let run = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    while Instant::now() < end {
        ticks.tick().await;
        let (apis, accepted, turn) = (apis.to_vec(), accepted.clone(), publishes.len());
        publishes.spawn(async move {
            let began = Instant::now();
            let id = format!("{event_type}-{run}-{turn}");
            let payload = json!({ "turn": turn });
            let (message, _) = publish_until_known(&apis, turn, "shop", event_type, &id, &payload).await;
            accepted.lock().unwrap().push((message, began));
        });
    }
    publishes.join_all().await;
    std::mem::take(&mut *accepted.lock().unwrap())
}

/// The median and the 99th percentile from the beginning of a publish until its first delivery was read.
fn latencies(deliveries: &[Delivery], accepted: &[(Accepted, Instant)]) -> (Duration, Duration) {
    let mut first = BTreeMap::new();
    for delivery in deliveries {
        first.entry(delivery.id()).or_insert(delivery.at);
    }
    let mut latencies: Vec<Duration> =
        accepted.iter().map(|(message, began)| first[message.id.as_str()].saturating_duration_since(*began)).collect();
    latencies.sort();
    (latencies[latencies.len() / 2], latencies[latencies.len() * 99 / 100])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_endpoint_is_unmoved_by_twenty_that_hang_drip_refuse_reset_and_fail() {
    let length = Duration::from_secs(if long() { 60 } else { 10 });
    let mut cluster = cluster().start().await;
    let (receiver, apis) = (Receiver::start().await, cluster.apis());
    apis[0].create_app("shop").await;
    let good = apis[0].create_endpoint("shop", &receiver, "/good", json!({ "filterTypes": ["good"] })).await;
    make_bad_endpoints(&apis[0], &receiver).await;
    let warm_up = publish_steadily(&apis, "good", GOOD_PER_S, Duration::from_secs(1)).await;
    let resident = |cluster: &Cluster| cluster.pids().into_iter().map(resident_bytes).collect::<Vec<u64>>();
    let before = resident(&cluster);

    let (measured, bad) = tokio::join!(
        publish_steadily(&apis, "good", GOOD_PER_S, length),
        publish_steadily(&apis, "bad", BAD_PER_S, length)
    );
    let total = warm_up.len() + measured.len();
    until("all arrive", SOON, async || receiver.distinct("/good") >= total).await;
    let (deliveries, after) = (receiver.deliveries("/good"), resident(&cluster));
    let (median, p99) = latencies(&deliveries, &measured);
    println!(
        "{} messages beside {} to each of {BAD} bad endpoints: publish to delivery p50 {median:?}, p99 {p99:?}; \
         resident MiB {:?}, then {:?}",
        measured.len(),
        bad.len(),
        before.iter().map(|bytes| bytes >> 20).collect::<Vec<u64>>(),
        after.iter().map(|bytes| bytes >> 20).collect::<Vec<u64>>()
    );
    // In a short run the machine may be busy with something else.
    assert!(!long() || p99 < P99_MAX, "p99 is {p99:?}");
    for (before, after) in before.iter().zip(&after) {
        assert!(after.saturating_sub(*before) < GROWTH_MAX, "a node grew from {before} to {after} bytes");
    }
    let accepted: Vec<Accepted> = warm_up.into_iter().chain(measured).map(|(message, _)| message).collect();
    judge("/good", &deliveries, &accepted, &good.secret);
    let tried = (0..BAD).filter(|n| n % KINDS == REFUSES || receiver.count(&bad_path(*n)) > 0).count();
    assert_eq!(tried, BAD, "the bad ones were tried");
    cluster.assert_equal_state().await;
}

/// Ways to be bad; one of them is to have nobody listening.
const KINDS: usize = 6;
const REFUSES: usize = 5;

fn bad_path(n: usize) -> String {
    format!("/bad/{n}")
}

async fn make_bad_endpoints(api: &Api, receiver: &Receiver) {
    let behaviours =
        [Behaviour::Hang, Behaviour::DripHead, Behaviour::DripBody, Behaviour::Reset, Behaviour::Answer(500)];
    let refusing = format!("http://127.0.0.1:{}/", free_port());
    for n in 0..BAD {
        let path = bad_path(n);
        let url = match behaviours.get(n % KINDS) {
            Some(behaviour) => {
                receiver.behave(&path, behaviour.clone());
                receiver.url(&path)
            }
            None => refusing.clone(),
        };
        api.create_endpoint_at("shop", &url, &path, json!({ "filterTypes": ["bad"] })).await;
    }
}
