//! One bucket at a time: what is admitted, what is answered, what is given back.

use std::{collections::BTreeMap, time::Duration};

use onceward_tests::{client::Answer, cluster::Cluster};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{fixed, item};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_concurrent_checks_of_a_bucket_of_100_through_all_nodes_admit_exactly_100() {
    let cluster = Cluster::builder().start().await;
    let window =
        json!({ "algorithm": "sliding_window", "rate": "100/h", "on_unavailable": "deny", "timeout_ms": 2000 });
    for (policy, definition) in [("bucket", fixed(100)), ("window", window)] {
        cluster.api(1).put_policy(policy, definition).await.expect_status(201);
        let mut tasks = JoinSet::new();
        for n in 0..1000 {
            let api = cluster.api(n % 3 + 1);
            tasks.spawn(async move { api.check(policy, "one").await.status });
        }
        let mut statuses = BTreeMap::new();
        while let Some(status) = tasks.join_next().await {
            *statuses.entry(status.unwrap()).or_insert(0) += 1;
        }
        assert_eq!(statuses, BTreeMap::from([(200, 100), (429, 900)]), "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_and_its_headers_tell_the_bucket() {
    let cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("api", json!({ "rate": "2/s", "burst": 20 })).await.expect_status(201);

    let first = cluster.api(2).check("api", "a").await.expect_status(200);
    let result = first.result();
    assert_eq!((result.limit, result.remaining), (20, 19));
    assert_eq!((result.retry_after_ms, result.reset_after_ms), (Some(0), 500));
    assert_eq!(first.header("ratelimit-limit"), Some("20"));
    assert_eq!(first.header("ratelimit-remaining"), Some("19"));
    assert_eq!(first.header("ratelimit-policy"), Some(r#""api";q=20;w=10"#));
    assert_eq!(first.header("ratelimit"), Some(r#""api";r=19;t=1"#));
    assert_eq!(first.header("retry-after"), None);
    assert!(first.header("x-request-id").is_some());

    let denied = deny(&cluster, "api", "a", 20).await;
    let result = denied.result();
    assert!(!result.allowed);
    let wait_ms = result.retry_after_ms.expect("it will be admitted some day");
    let retry_after_s: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(retry_after_s, wait_ms.div_ceil(1000).max(1));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["code"], "rate_limited");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_out_retry_after_always_admits() {
    let cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("bucket", json!({ "rate": "7/s", "burst": 3 })).await.expect_status(201);
    let window = json!({ "algorithm": "sliding_window", "rate": "3/400ms" });
    cluster.api(1).put_policy("window", window).await.expect_status(201);
    for policy in ["bucket", "window"] {
        for round in 0..5 {
            let denied = deny(&cluster, policy, "k", 2).await;
            let wait_ms = denied.result().retry_after_ms.expect("cost 2 is admitted some day");
            assert!(wait_ms > 0, "{denied:?}");
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            let again = cluster.api(round % 3 + 1).check_items(&[item(policy, "k", 2)], "enforce").await;
            assert_eq!(again.status, 200, "{policy} after {wait_ms} ms, round {round}: {again:?}");
        }
    }
}

/// Checks with this cost until one is denied.
async fn deny(cluster: &Cluster, policy: &str, key: &str, cost: u64) -> Answer {
    for _ in 0..100 {
        let answer = cluster.api(3).check_items(&[item(policy, key, cost)], "enforce").await;
        if answer.status == 429 {
            return answer;
        }
        answer.expect_status(200);
    }
    panic!("{policy} never denies");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_keys_that_look_alike_joined_are_other_buckets() {
    let cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    for policy in ["a", "a_b", "a.b", "a-b"] {
        api.put_policy(policy, fixed(1)).await.expect_status(201);
    }
    let long = "ü".repeat(256);
    let buckets = [
        ("a", "b_c"),
        ("a_b", "c"),
        ("a", "_b_c"),
        ("a.b", "c"),
        ("a-b", "c"),
        ("a", "c"),
        ("a", "c "),
        ("a", "C"),
        ("a", "/c"),
        ("a", "c*"),
        ("a", "e\u{301}"),
        ("a", "\u{e9}"),
        ("a", "🦀\n\t\"\\"),
        ("a", long.as_str()),
        ("a", &long[..510]),
    ];
    for (policy, key) in buckets {
        assert_eq!(cluster.api(2).check(policy, key).await.status, 200, "{policy}, {key:?} is new");
    }
    for (policy, key) in buckets {
        assert_eq!(cluster.api(3).check(policy, key).await.status, 429, "{policy}, {key:?} is spent");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_request_of_five_with_two_left_takes_nothing() {
    let cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("p", fixed(10)).await.expect_status(201);
    cluster.api(1).check_items(&[item("p", "k", 8)], "enforce").await.expect_status(200);
    cluster.api(2).check_items(&[item("p", "k", 5)], "enforce").await.expect_status(429);
    assert_eq!(cluster.api(3).remaining("p", "k").await, 2);
    cluster.api(2).check_items(&[item("p", "k", 2)], "enforce").await.expect_status(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peek_takes_nothing_and_shadow_counts_but_never_denies() {
    let cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    api.put_policy("p", fixed(2)).await.expect_status(201);
    for _ in 0..3 {
        api.check_items(&[item("p", "k", 2)], "peek").await.expect_status(200);
    }
    let admitted = api.check_items(&[item("p", "k", 2)], "shadow").await.expect_status(200);
    assert_eq!(admitted.json()["allowed"], true);
    let over = api.check_items(&[item("p", "k", 1)], "shadow").await.expect_status(200);
    assert_eq!(over.json()["allowed"], false);
    api.check_items(&[item("p", "k", 1)], "peek").await.expect_status(429);
    assert_eq!(api.remaining("p", "k").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_id_counts_once_on_any_node_and_is_refunded_once() {
    let cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("p", fixed(10)).await.expect_status(201);
    let check = json!({ "checks": [{ "policy": "p", "key": "k", "cost": 4 }], "request_id": "r-1" });
    for n in [1, 2, 3, 1, 2, 3] {
        let answer = cluster.api(n).try_check(&check).await.unwrap().expect_status(200);
        assert_eq!(answer.result().remaining, 6, "answered alike");
    }
    let other = json!({ "checks": [{ "policy": "p", "key": "k", "cost": 5 }], "request_id": "r-1" });
    assert_eq!(
        cluster.api(1).try_check(&other).await.unwrap().expect_status(422).json()["code"],
        "fingerprint_mismatch"
    );

    let refund = json!({ "policy": "p", "key": "k", "cost": 4, "request_id": "r-1" });
    for n in 1..=3 {
        cluster.api(n).try_json("POST", "/v1/limits/refund", &refund).await.unwrap().expect_status(200);
        assert_eq!(cluster.api(n).remaining("p", "k").await, 10, "given back once, never above the capacity");
    }
    let unknown = json!({ "policy": "p", "key": "k", "cost": 4, "request_id": "never" });
    cluster.api(2).try_json("POST", "/v1/limits/refund", &unknown).await.unwrap().expect_status(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_fills_one_bucket_and_no_other() {
    let cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    api.put_policy("p", fixed(3)).await.expect_status(201);
    for key in ["a/b ü", "other"] {
        api.check_items(&[item("p", key, 3)], "enforce").await.expect_status(200);
    }
    api.send("DELETE", "/v1/limits/p/a%2Fb%20%C3%BC", &[], Vec::new()).await.unwrap().expect_status(204);
    assert_eq!(cluster.api(2).remaining("p", "a/b ü").await, 3);
    assert_eq!(cluster.api(2).remaining("p", "other").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exempt_keys_are_never_counted_and_overrides_hold_for_their_subject_alone() {
    let cluster = Cluster::builder().start().await;
    let policy = json!({
        "rate": "1/h", "burst": 1,
        "exempt": ["health", "internal-*"],
        "overrides": { "big": { "rate": "1/h", "burst": 3 }, "banned": "deny" },
    });
    cluster.api(1).put_policy("p", policy).await.expect_status(201);
    for n in 0..10 {
        let api = cluster.api(n % 3 + 1);
        api.check("p", "health").await.expect_status(200);
        api.check("p", &format!("internal-{}", n % 2)).await.expect_status(200);
        let status = api.check("p", "big").await.status;
        assert_eq!(status, if n < 3 { 200 } else { 429 }, "check {n} of big");
    }
    let banned = cluster.api(2).check("p", "banned").await.expect_status(429);
    assert_eq!(banned.result().retry_after_ms, None);
    cluster.api(1).check("p", "somebody").await.expect_status(200);
    cluster.api(2).check("p", "somebody").await.expect_status(429);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spraying_thousands_of_keys_forgets_no_limit() {
    const SPRAYED: usize = 20_000;
    let cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("p", fixed(1)).await.expect_status(201);
    cluster.api(1).check("p", "mine").await.expect_status(200);
    // The keys of one request live on one shard, so that it is one command.
    let mut keys: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for n in 0..SPRAYED {
        let key = format!("spray-{n}");
        keys.entry(cluster.shard_of("p", &key)).or_default().push(key);
    }
    let mut tasks = JoinSet::new();
    for (shard, keys) in keys {
        let api = cluster.api(shard % 3 + 1);
        tasks.spawn(async move {
            for keys in keys.chunks(16) {
                let items: Vec<_> = keys.iter().map(|key| item("p", key, 1)).collect();
                api.check_items(&items, "enforce").await.expect_status(200);
            }
        });
    }
    while let Some(sprayed) = tasks.join_next().await {
        sprayed.unwrap();
    }
    cluster.api(2).check("p", "mine").await.expect_status(429);
    cluster.api(3).check("p", "spray-0").await.expect_status(429);
}
