//! Wall clocks that jump. They are moved by libfaketime, which leaves the monotonic clocks alone, and every test first
//! proves that the node's clock really moved.

use std::{fs, path::PathBuf, time::Duration};

use onceward_tests::cluster::Cluster;
use serde_json::json;

use crate::item;

const HOUR_S: i64 = 3600;

/// The offsets of the nodes' wall clocks, one file each.
struct WallClocks {
    dir: tempfile::TempDir,
}

impl WallClocks {
    fn new() -> WallClocks {
        let clocks = WallClocks { dir: tempfile::tempdir().unwrap() };
        for node in 1..=3 {
            clocks.set(node, 0);
        }
        clocks
    }

    fn file(&self, node: u16) -> PathBuf {
        self.dir.path().join(node.to_string())
    }

    /// Replaced at once: the library reads it at any time.
    fn set(&self, node: u16, offset_s: i64) {
        let next = self.dir.path().join("next");
        fs::write(&next, format!("{offset_s:+}\n")).unwrap();
        fs::rename(next, self.file(node)).unwrap();
    }

    async fn start_cluster(&self) -> Cluster {
        let library = library();
        let mut builder = Cluster::builder();
        for node in 1..=3 {
            builder = builder
                .env(node, "LD_PRELOAD", library.to_str().unwrap())
                .env(node, "FAKETIME_TIMESTAMP_FILE", self.file(node).to_str().unwrap())
                .env(node, "FAKETIME_NO_CACHE", "1")
                .env(node, "FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        builder.start().await
    }

    /// Moves a node's clock and waits until another node sees that it did.
    async fn move_clock(&self, cluster: &Cluster, node: u16, offset_s: i64) {
        self.set(node, offset_s);
        let observer = cluster.api(node % 3 + 1);
        let mut seen = None;
        for _ in 0..300 {
            let status = observer.cluster().await;
            seen = status.nodes.iter().find(|status| status.id == node).and_then(|status| status.wall_clock_offset_ms);
            // Exactly an hour apart but for how far apart the two looked: a minute is generous.
            if seen.is_some_and(|seen_ms| (seen_ms - offset_s * 1000).abs() < 60_000) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the wall clock of node {node} is off by {seen:?} ms, not by {offset_s} s");
    }
}

fn library() -> PathBuf {
    let found = fs::read_dir("/usr/lib")
        .unwrap()
        .flatten()
        .map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"))
        .find(|path| path.exists());
    found.expect("libfaketime (Debian's package of that name); scripts/test installs it")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wall_clock_moved_by_an_hour_either_way_changes_no_level_and_no_expiry() {
    let clocks = WallClocks::new();
    let mut cluster = clocks.start_cluster().await;
    // An hour would refill it; the minutes that the test takes refill a token each at most.
    let policy = json!({ "rate": "60/h", "burst": 60, "on_unavailable": "deny", "timeout_ms": 2000 });
    cluster.api(1).put_policy("hourly", policy).await.expect_status(201);
    let window = json!({ "algorithm": "sliding_window", "rate": "60/h", "on_unavailable": "deny", "timeout_ms": 2000 });
    cluster.api(1).put_policy("window", window).await.expect_status(201);
    let keys = cluster.key_on_every_shard("hourly");
    for key in &keys {
        cluster.api(1).check_items(&[item("hourly", key, 60)], "enforce").await.expect_status(200);
    }
    cluster.api(1).check_items(&[item("window", "k", 60)], "enforce").await.expect_status(200);
    cluster.api(1).put_policy("expiry", json!({ "rate": "1/h", "burst": 10 })).await.expect_status(201);
    let remembered = json!({ "checks": [{ "policy": "expiry", "key": "k", "cost": 3 }], "request_id": "once" });
    cluster.api(1).try_check(&remembered).await.unwrap().expect_status(200);
    let began = std::time::Instant::now();

    for node in cluster.ids() {
        for offset_s in [HOUR_S, -HOUR_S, 0] {
            clocks.move_clock(&cluster, node, offset_s).await;
            let refilled = began.elapsed().as_secs() / 60 + 1;
            for key in &keys {
                for api in cluster.apis() {
                    let left = api.remaining("hourly", key).await;
                    assert!(left <= refilled, "{left} left of {key}, node {node} {offset_s:+} s");
                }
            }
            assert_eq!(cluster.api(2).remaining("window", "k").await, 0, "node {node} {offset_s:+} s");
            if began.elapsed() < Duration::from_secs(50) {
                let again = cluster.api(3).try_check(&remembered).await.unwrap().expect_status(200);
                assert_eq!(again.result().remaining, 7, "still remembered, node {node} {offset_s:+} s");
            }
        }
    }
    // Time goes on all the same.
    cluster.api(1).put_policy("fast", json!({ "rate": "10/s", "burst": 2 })).await.expect_status(201);
    cluster.api(1).check_items(&[item("fast", "k", 2)], "enforce").await.expect_status(200);
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(cluster.api(2).remaining("fast", "k").await, 2);
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_one_wall_clock_an_hour_ahead_refills_nothing() {
    let clocks = WallClocks::new();
    let mut cluster = clocks.start_cluster().await;
    let policy = json!({ "rate": "60/h", "burst": 60, "on_unavailable": "deny", "timeout_ms": 2000 });
    cluster.api(1).put_policy("hourly", policy).await.expect_status(201);
    let keys = cluster.key_on_every_shard("hourly");
    for key in &keys {
        cluster.api(1).check_items(&[item("hourly", key, 60)], "enforce").await.expect_status(200);
    }
    let began = std::time::Instant::now();
    for node in cluster.ids() {
        for offset_s in [HOUR_S, -HOUR_S] {
            cluster.kill_all();
            clocks.set(node, offset_s);
            cluster.start_all();
            cluster.wait_all_ready().await;
            clocks.move_clock(&cluster, node, offset_s).await;
            cluster.wait_serving("hourly").await;
            let refilled = began.elapsed().as_secs() / 60 + 1;
            for key in &keys {
                let left = cluster.api(1).remaining("hourly", key).await;
                assert!(left <= refilled, "{left} left of {key}, node {node} {offset_s:+} s");
            }
            clocks.set(node, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wall_clock_moved_by_an_hour_either_way_ends_no_lease_and_forgets_no_completion() {
    let clocks = WallClocks::new();
    let mut cluster = clocks.start_cluster().await;
    let post = async |cluster: &Cluster, node: u16, call: &str, body: serde_json::Value| {
        cluster.api(node).try_json("POST", &format!("/v1/idempotency/{call}"), &body).await.unwrap()
    };
    // Half an hour: less than the clocks move by, far more than the test takes.
    let begin = |key: &str, on_lease_expiry: &str| {
        json!({
            "account": "a", "key": key, "fingerprint": "f", "on_lease_expiry": on_lease_expiry,
            "lease_ms": 1_800_000, "ttl_ms": 1_800_000,
        })
    };
    for (key, mode) in [("held", "hold"), ("leased", "takeover"), ("done", "takeover")] {
        let begun = post(&cluster, 1, "begin", begin(key, mode)).await.expect_status(201).json();
        if key == "done" {
            let done = json!({ "account": "a", "key": key, "token": begun["token"], "response": { "status": 200 } });
            post(&cluster, 2, "complete", done).await.expect_status(200);
        }
    }
    for node in cluster.ids() {
        for offset_s in [HOUR_S, -HOUR_S, 0] {
            clocks.move_clock(&cluster, node, offset_s).await;
            for asked in 1..=3 {
                for (key, mode) in [("held", "hold"), ("leased", "takeover")] {
                    let answer = post(&cluster, asked, "begin", begin(key, mode)).await.expect_status(409);
                    assert_eq!(answer.json()["code"], "in_progress", "node {node} {offset_s:+} s: {answer:?}");
                }
                post(&cluster, asked, "begin", begin("done", "takeover")).await.expect_status(200);
            }
        }
    }
    // Time goes on all the same.
    let short = json!({ "account": "a", "key": "short", "fingerprint": "f", "lease_ms": 100 });
    let first = post(&cluster, 1, "begin", short.clone()).await.expect_status(201).json();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let second = post(&cluster, 3, "begin", short).await.expect_status(201).json();
    assert!(second["token"].as_u64() > first["token"].as_u64(), "{second}");
    cluster.assert_equal_state().await;
}
