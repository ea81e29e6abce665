//! Nodes die, freeze and restart under load: nothing acknowledged is lost, no limit is exceeded, all come back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use onceward_tests::{
    client::{Api, Outcome},
    cluster::Cluster,
    failover,
    load::{Load, Tally},
};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::{fixed, plenty};

const WORKERS: usize = 48;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_all_nodes_ten_times_under_load_loses_no_policy_and_refills_no_limit() {
    const LIMIT: u64 = 50;
    let mut cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("tight", fixed(LIMIT)).await.expect_status(201);
    cluster.api(1).put_policy("wide", plenty()).await.expect_status(201);
    let keys: Vec<String> = (0..16).map(|n| format!("k{n}")).collect();
    let (mut tight, mut wide, mut acknowledged) = (Tally::default(), Tally::default(), BTreeSet::new());
    for round in 0..10 {
        let writer = PolicyWriter::start(cluster.apis(), round);
        let load_tight = Load::start(&cluster.apis(), "tight", &keys, WORKERS / 2);
        let load_wide = Load::start(&cluster.apis(), "wide", &keys, WORKERS / 2);
        tokio::time::sleep(Duration::from_millis(400 + 67 * round)).await;
        cluster.kill_all();
        tight.add(load_tight.stop().await);
        wide.add(load_wide.stop().await);
        let written = writer.stop().await;
        assert!(!written.is_empty(), "policies were being written in round {round}");
        acknowledged.extend(written);

        cluster.start_all();
        cluster.wait_all_ready().await;
        for api in cluster.apis() {
            let list = api.get("/v1/policies").await.expect_status(200).json();
            let present: BTreeSet<String> = list["policies"]
                .as_array()
                .unwrap()
                .iter()
                .map(|policy| policy["name"].as_str().unwrap().to_owned())
                .collect();
            let lost: Vec<&String> = acknowledged.difference(&present).collect();
            assert!(lost.is_empty(), "acknowledged and lost in round {round}: {lost:?}");
        }
    }
    tight.assert_only_expected_statuses();
    wide.assert_only_expected_statuses();
    assert!(tight.count(&Outcome::Denied) > 0, "the limit was reached: {:?}", tight.outcomes);
    cluster.wait_serving("wide").await;
    assert_accounts(&cluster, "tight", LIMIT, &tight).await;
    assert_accounts(&cluster, "wide", 1_000_000_000, &wide).await;
    cluster.assert_equal_state().await;
}

/// Per bucket: never more admitted than there was, and what is gone is what was admitted, but for unknown outcomes.
async fn assert_accounts(cluster: &Cluster, policy: &str, burst: u64, tally: &Tally) {
    for (key, admitted) in &tally.admitted {
        let unknown = tally.unknown.get(key).copied().unwrap_or(0);
        let spent = burst - cluster.api(1).remaining(policy, key).await;
        assert!(*admitted <= burst, "{policy}/{key}: {admitted} admitted of {burst}");
        assert!(
            (*admitted..=admitted + unknown).contains(&spent),
            "{policy}/{key}: {spent} spent, {admitted} admitted, {unknown} unknown"
        );
    }
}

/// Writes new policies, one after the other, and remembers those that were acknowledged.
struct PolicyWriter {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<String>>,
}

impl PolicyWriter {
    fn start(apis: Vec<Api>, round: u64) -> PolicyWriter {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            for n in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let name = format!("written-{round}-{n}");
                let path = format!("/v1/policies/{name}");
                let answer = apis[n % apis.len()].try_json("PUT", &path, &json!({ "rate": "1/s" })).await;
                match Outcome::of(&answer) {
                    Outcome::Done => acknowledged.push(name),
                    Outcome::NotApplied | Outcome::Unknown => tokio::time::sleep(Duration::from_millis(10)).await,
                    other => panic!("{other:?}: {answer:?}"),
                }
            }
            acknowledged
        });
        PolicyWriter { stop, task }
    }

    async fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_ten_times_under_load_leaves_every_shard_serving_without_a_restart() {
    let mut cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("wide", plenty()).await.expect_status(201);
    let keys: Vec<String> = (0..16).map(|n| format!("k{n}")).collect();
    let mut total = Tally::default();
    let mut outages = Vec::new();
    let mut false_elections = 0;
    for round in 0..10 {
        let load = Load::start(&cluster.apis(), "wide", &keys, WORKERS);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let victim = cluster.leader_of_shard(1 + round % 8).await;
        let survivors: BTreeMap<u16, u32> =
            cluster.ids().filter(|id| *id != victim).map(|id| (id, cluster.node(id).pid())).collect();
        let failover = failover::measure(&mut cluster, "wide", victim).await;
        assert!(failover.elections > 0, "a leader died: {failover:?}");
        for (id, pid) in survivors {
            assert!(cluster.node(id).is_running() && cluster.node(id).pid() == pid, "node {id} went on");
        }
        outages.push(failover.outage);
        false_elections += failover.false_elections;
        total.add(load.stop().await);
        cluster.node(victim).start();
        cluster.wait_ready(victim).await;
    }
    let (median, max) = failover::median_and_max(outages);
    println!("every shard served again after {median:?} (median), {max:?} (max); {false_elections} false elections");
    total.assert_only_expected_statuses();
    cluster.wait_serving("wide").await;
    // The probes of the measurement spend on other keys.
    assert_accounts(&cluster, "wide", 1_000_000_000, &total).await;
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_load_shows_only_503_and_504_and_refills_no_limit() {
    const LIMIT: u64 = 50;
    let mut cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("tight", fixed(LIMIT)).await.expect_status(201);
    cluster.api(1).put_policy("wide", plenty()).await.expect_status(201);
    let keys: Vec<String> = (0..16).map(|n| format!("k{n}")).collect();
    let load_tight = Load::start(&cluster.apis(), "tight", &keys, WORKERS / 2);
    let load_wide = Load::start(&cluster.apis(), "wide", &keys, WORKERS / 2);
    for id in cluster.ids() {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.node(id).stop().await;
        cluster.node(id).start();
        cluster.wait_ready(id).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (tight, wide) = (load_tight.stop().await, load_wide.stop().await);
    for tally in [&tight, &wide] {
        tally.assert_only_expected_statuses();
        assert_eq!(tally.degraded, 0);
    }
    println!("tight: {:?}, wide: {:?}", tight.outcomes, wide.outcomes);
    for (key, admitted) in &tight.admitted {
        let unknown = tight.unknown.get(key).copied().unwrap_or(0);
        assert!((LIMIT - unknown..=LIMIT).contains(admitted), "{key}: {admitted} of {LIMIT}, {unknown} unknown");
    }
    cluster.wait_serving("wide").await;
    assert_accounts(&cluster, "wide", 1_000_000_000, &wide).await;
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_frozen_past_its_lease_and_thawed_admits_nothing_of_its_own() {
    const LIMIT: u64 = 100;
    let mut cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("p", fixed(LIMIT)).await.expect_status(201);
    let frozen = cluster.leader_of("p", "k").await;
    let others: Vec<Api> = cluster.ids().filter(|id| *id != frozen).map(|id| cluster.api(id)).collect();
    let old_leader = cluster.api(frozen);
    cluster.node(frozen).pause();
    // Requests that wait in the frozen node's socket are answered when it thaws.
    let waiting: Vec<JoinHandle<u16>> = (0..LIMIT)
        .map(|_| {
            let api = old_leader.clone();
            tokio::spawn(async move { api.check("p", "k").await.status })
        })
        .collect();
    let mut admitted = 0;
    let deadline = Instant::now() + Duration::from_secs(30);
    while admitted < LIMIT / 2 {
        match Outcome::of(&others[0].try_check(&json!({ "checks": [{ "policy": "p", "key": "k" }] })).await) {
            Outcome::Done => admitted += 1,
            Outcome::NotApplied | Outcome::Unknown => assert!(Instant::now() < deadline, "no new leader"),
            other => panic!("{other:?}"),
        }
    }
    cluster.node(frozen).resume();
    let mut unknown = 0;
    for request in waiting {
        match request.await.unwrap() {
            200 => admitted += 1,
            504 => unknown += 1,
            429 | 503 => {}
            other => panic!("status {other}"),
        }
    }
    assert!(admitted <= LIMIT, "{admitted} of {LIMIT}");
    cluster.wait_ready(frozen).await;
    let spent = LIMIT - others[1].remaining("p", "k").await;
    assert!(spent >= admitted, "{spent} spent, {admitted} admitted, {unknown} unknown");
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_hands_leadership_over_and_answers_what_is_in_flight() {
    let mut cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("wide", plenty()).await.expect_status(201);
    let keys: Vec<String> = (0..16).map(|n| format!("k{n}")).collect();
    for id in cluster.ids() {
        let through_others: Vec<Api> = cluster.ids().filter(|other| *other != id).map(|id| cluster.api(id)).collect();
        let load = Load::start(&through_others, "wide", &keys, WORKERS / 2);
        let through_it = Load::start(&[cluster.api(id)], "wide", &keys, WORKERS / 2);
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.node(id).stop().await;
        let status = through_others[0].cluster().await;
        let orphans: Vec<u16> =
            status.shards.iter().filter(|shard| shard.leader == Some(id)).map(|shard| shard.id).collect();
        assert!(orphans.is_empty(), "shards {orphans:?} still name the stopped node {id} as leader");
        let (others, own) = (load.stop().await, through_it.stop().await);
        others.assert_only_expected_statuses();
        own.assert_only_expected_statuses();
        println!("stop of node {id}: through it {:?}, through the others {:?}", own.outcomes, others.outcomes);
        cluster.node(id).start();
        cluster.wait_ready(id).await;
    }
}
