//! Policies as written, read and changed on a cluster.

use onceward_tests::cluster::Cluster;
use serde_json::json;
use tokio::task::JoinSet;

use crate::{fixed, item};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_in_force_on_every_node_once_its_write_is_answered() {
    let cluster = Cluster::builder().start().await;
    for round in 0..20u64 {
        let burst = 10 + round;
        let written = cluster.api((round % 3 + 1) as u16).put_policy("p", fixed(burst)).await;
        assert_eq!(written.status, if round == 0 { 201 } else { 200 }, "{written:?}");
        let mut checks = JoinSet::new();
        for n in 0..24 {
            let api = cluster.api(n % 3 + 1);
            checks.spawn(async move { api.check("p", &format!("{round}-{n}")).await });
        }
        for answer in checks.join_all().await {
            assert_eq!(answer.expect_status(200).result().limit, burst);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_policy_is_unknown_on_every_node_and_starts_full_when_made_again() {
    let cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("p", fixed(1)).await.expect_status(201);
    cluster.api(1).check("p", "k").await.expect_status(200);
    cluster.api(2).send("DELETE", "/v1/policies/p", &[], Vec::new()).await.unwrap().expect_status(204);
    for api in cluster.apis() {
        assert_eq!(api.get("/v1/policies/p").await.expect_status(404).json()["code"], "not_found");
        api.check("p", "k").await.expect_status(404);
    }
    cluster.api(3).send("DELETE", "/v1/policies/p", &[], Vec::new()).await.unwrap().expect_status(404);
    cluster.api(3).put_policy("p", fixed(1)).await.expect_status(201);
    cluster.api(1).check("p", "k").await.expect_status(200);
    cluster.api(2).check("p", "k").await.expect_status(429);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_policy_keeps_what_is_left_cuts_it_and_never_tops_it_up() {
    let cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    api.put_policy("p", fixed(10)).await.expect_status(201);
    for (key, cost) in [("nearly full", 2), ("nearly empty", 9), ("empty", 10)] {
        api.check_items(&[item("p", key, cost)], "enforce").await.expect_status(200);
    }
    let left = async |burst: u64| {
        api.put_policy("p", fixed(burst)).await.expect_status(200);
        let mut left = Vec::new();
        for key in ["full", "nearly full", "nearly empty", "empty"] {
            left.push(cluster.api(2).remaining("p", key).await);
        }
        left
    };
    assert_eq!(left(100).await, [100, 8, 1, 0], "raised");
    assert_eq!(left(5).await, [5, 5, 1, 0], "lowered below what was left");
    const MOST: u64 = 1_000_000_000_000;
    assert_eq!(left(MOST).await, [MOST, MOST, 1, 0], "raised to the most: what was full at five stays full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rates_from_one_a_year_to_a_billion_a_second_are_kept() {
    let cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    for (rate, default_burst) in [
        ("1/365d", 1),
        ("1000000000/s", 1_000_000_000),
        ("1000000000/1s", 1_000_000_000),
        ("1000000/ms", 1_000_000),
        ("5000/15min", 5000),
        ("100/min", 100),
        ("3/h", 3),
        ("7/d", 7),
    ] {
        let stored = api.put_policy("p", json!({ "rate": rate })).await;
        assert!(matches!(stored.status, 200 | 201), "{stored:?}");
        assert_eq!(stored.json()["burst"], default_burst, "{rate}");
        assert_eq!(api.check("p", rate).await.expect_status(200).result().limit, default_burst);
    }
    // A wait of a year is told as one, and at a billion a second the next token is there at once.
    api.put_policy("p", json!({ "rate": "1/365d" })).await.expect_status(200);
    let denied = api.check("p", "1/365d").await.expect_status(429).result();
    assert!(denied.retry_after_ms.unwrap() > 364 * 86_400_000, "{denied:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_alone_serves_and_keeps_its_state_over_kill_and_stop() {
    let mut cluster = Cluster::builder().nodes(1).start().await;
    cluster.api(1).put_policy("p", fixed(3)).await.expect_status(201);
    for left in [2, 1] {
        assert_eq!(cluster.api(1).check("p", "k").await.expect_status(200).result().remaining, left);
        if left == 2 {
            cluster.node(1).kill();
        } else {
            cluster.node(1).stop().await;
        }
        cluster.node(1).start();
        cluster.wait_ready(1).await;
    }
    cluster.api(1).check("p", "k").await.expect_status(200);
    cluster.api(1).check("p", "k").await.expect_status(429);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_nodes_agree_and_serve_with_any_one_of_them_dead() {
    let mut cluster = Cluster::builder().nodes(5).start().await;
    cluster.api(1).put_policy("p", fixed(10)).await.expect_status(201);
    let keys = cluster.key_on_every_shard("p");
    for victim in 1..=5 {
        cluster.node(victim).kill();
        cluster.wait_serving("p").await;
        for key in &keys {
            cluster.api(victim % 5 + 1).check("p", key).await.expect_status(200);
        }
        cluster.node(victim).start();
        cluster.wait_ready(victim).await;
    }
    for key in &keys {
        assert_eq!(cluster.api(1).remaining("p", key).await, 5, "{key}");
    }
    cluster.assert_equal_state().await;
}
