//! Logs that are purged and nodes that come too late for them; kills in the middle of it.

use std::time::{Duration, Instant};

use onceward_tests::{
    client::Outcome,
    cluster::{Builder, Cluster},
    load::{Load, Tally},
};

use crate::{fixed, plenty};

/// More than the log keeps behind a snapshot on the one shard that gets the load: none of it is left for a node that
/// missed so many.
const ENTRIES_MISSED: f64 = 15_000.0;

/// A cluster that takes a snapshot every few entries of its only data shard.
fn forgetful() -> Builder {
    Cluster::builder().data_shards(1).set("raft.snapshot_entries", 100)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_missed_purged_entries_catches_up_by_snapshot() {
    let mut cluster = forgetful().start().await;
    cluster.api(1).put_policy("tight", fixed(5)).await.expect_status(201);
    cluster.api(1).put_policy("wide", plenty()).await.expect_status(201);
    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    cluster.node(3).kill();
    let before = entries_proposed(&cluster).await;
    let load = Load::start(&[cluster.api(1), cluster.api(2)], "tight", &keys, 6);
    let deadline = Instant::now() + Duration::from_secs(60);
    while entries_proposed(&cluster).await < before + ENTRIES_MISSED {
        assert!(Instant::now() < deadline, "{} entries in a minute", entries_proposed(&cluster).await - before);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    load.stop().await.assert_only_expected_statuses();

    cluster.node(3).start();
    cluster.wait_ready(3).await;
    cluster.assert_equal_state().await;
    cluster.node(1).kill();
    cluster.wait_serving("wide").await;
    for key in &keys {
        assert_eq!(cluster.api(3).remaining("tight", key).await, 0, "{key}");
    }
    // What was installed outlives a kill.
    cluster.node(1).start();
    cluster.node(3).kill();
    cluster.node(3).start();
    cluster.wait_all_ready().await;
    cluster.assert_equal_state().await;
}

/// On the two nodes that live.
async fn entries_proposed(cluster: &Cluster) -> f64 {
    let mut proposed = 0.0;
    for id in [1, 2] {
        proposed += cluster.api(id).metric("onceward_entries_proposed_total").await;
    }
    proposed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_while_snapshots_are_taken_and_installed_leaves_every_node_startable_and_equal() {
    let mut cluster = forgetful().start().await;
    cluster.api(1).put_policy("wide", plenty()).await.expect_status(201);
    let keys: Vec<String> = (0..500).map(|n| format!("k{n}")).collect();
    let mut total = Tally::default();
    for round in 0..6u64 {
        // Node 3 is always behind by some snapshots and dies while it catches up.
        cluster.node(3).kill();
        let load = Load::start(&[cluster.api(1), cluster.api(2)], "wide", &keys, 16);
        tokio::time::sleep(Duration::from_millis(900)).await;
        cluster.node(3).start();
        tokio::time::sleep(Duration::from_millis(250 + 90 * round)).await;
        cluster.node(3).kill();
        cluster.kill_all();
        total.add(load.stop().await);
        cluster.start_all();
        cluster.wait_all_ready().await;
    }
    total.assert_only_expected_statuses();
    assert!(total.count(&Outcome::Done) > 1000, "{:?}", total.outcomes);
    for id in cluster.ids() {
        let snapshots = std::fs::read_dir(cluster.node(id).data_dir.join("snapshots")).unwrap();
        assert!(snapshots.count() > 0, "node {id} took no snapshot");
    }
    cluster.wait_serving("wide").await;
    cluster.assert_equal_state().await;
}
