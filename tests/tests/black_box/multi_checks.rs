//! Checks of several buckets at once, on one shard and over several: all or nothing, whoever dies.

use std::time::Duration;

use onceward_tests::{
    client::{Api, Outcome},
    cluster::Cluster,
};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{fixed, item};

/// A hold whose coordinator died lapses by itself; until then its amount is outstanding, afterwards it is spent.
const HOLDS_LAPSE: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_multi_check_takes_nothing_from_any_bucket() {
    let cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    for policy in ["key", "address", "endpoint"] {
        api.put_policy(policy, fixed(10)).await.expect_status(201);
    }
    // Three shards, and in another round one.
    for shards in [[1, 2, 3], [4, 4, 4]] {
        let keys = [("key", shards[0]), ("address", shards[1]), ("endpoint", shards[2])]
            .map(|(policy, shard)| (policy, cluster.key_on(shard, policy, 1)));
        let items = |costs: [u64; 3]| {
            let keys = &keys;
            [0, 1, 2].map(|n| item(keys[n].0, &keys[n].1, costs[n]))
        };
        api.check_items(&items([1, 2, 8]), "enforce").await.expect_status(200);
        let denied = cluster.api(2).check_items(&items([1, 1, 3]), "enforce").await.expect_status(429);
        let allowed: Vec<bool> = denied.results().iter().map(|result| result.allowed).collect();
        assert_eq!(allowed, [true, true, false], "{denied:?}");
        for (n, left) in [9, 8, 2].into_iter().enumerate() {
            assert_eq!(cluster.api(3).remaining(keys[n].0, &keys[n].1).await, left, "{}", keys[n].0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costs_on_the_same_bucket_add_up() {
    let cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    api.put_policy("p", fixed(5)).await.expect_status(201);
    let too_much = api.check_items(&[item("p", "k", 3), item("p", "k", 3)], "enforce").await.expect_status(400);
    assert_eq!(too_much.json()["code"], "cost_exceeds_burst");
    assert_eq!(api.remaining("p", "k").await, 5);
    api.check_items(&[item("p", "k", 2), item("p", "k", 2)], "enforce").await.expect_status(200);
    api.check_items(&[item("p", "k", 1), item("p", "k", 1)], "enforce").await.expect_status(429);
    assert_eq!(api.remaining("p", "k").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_multi_checks_over_two_shards_admit_exactly_what_the_smaller_bucket_holds() {
    let cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("large", fixed(200)).await.expect_status(201);
    cluster.api(1).put_policy("small", fixed(50)).await.expect_status(201);
    for (large_shard, small_shard) in [(1, 2), (6, 5)] {
        let large = cluster.key_on(large_shard, "large", 0);
        let small = cluster.key_on(small_shard, "small", 0);
        let mut tasks = JoinSet::new();
        for n in 0..200 {
            let (api, large, small) = (cluster.api(n % 3 + 1), large.clone(), small.clone());
            tasks.spawn(async move {
                api.check_items(&[item("large", &large, 1), item("small", &small, 1)], "enforce").await.status
            });
        }
        let statuses: Vec<u16> = tasks.join_all().await;
        let admitted = statuses.iter().filter(|status| **status == 200).count();
        let denied = statuses.iter().filter(|status| **status == 429).count();
        assert_eq!((admitted, denied), (50, 150), "{statuses:?}");
        assert_eq!(cluster.api(1).remaining("small", &small).await, 0);
        assert_eq!(cluster.api(1).remaining("large", &large).await, 150, "what the denied ones held is given back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_killed_in_multi_checks_costs_admits_and_never_adds_one() {
    const BURST: u64 = 100_000;
    const LIMIT: u64 = 500;
    let mut cluster = Cluster::builder().start().await;
    for (policy, burst) in [("wide", BURST), ("narrow", LIMIT)] {
        cluster.api(1).put_policy(policy, fixed(burst)).await.expect_status(201);
    }
    let (mut admitted, mut unknown) = (0, 0);
    let (wide, narrow) = (cluster.key_on(1, "wide", 0), cluster.key_on(2, "narrow", 0));
    for round in 0..3 {
        let victim = round % 3 + 1;
        let workers: JoinSet<(u64, u64)> =
            (0..16).map(|_| check_both_until_gone(cluster.api(victim), wide.clone(), narrow.clone())).collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        cluster.node(victim).kill();
        for (ok, lost) in workers.join_all().await {
            admitted += ok;
            unknown += lost;
        }
        cluster.node(victim).start();
        cluster.wait_ready(victim).await;
    }
    assert!(admitted > 0 && unknown > 0, "the coordinator died at work: {admitted} admitted, {unknown} unknown");
    let deadline = tokio::time::Instant::now() + HOLDS_LAPSE;
    loop {
        cluster.wait_serving("wide").await;
        let spent_wide = BURST - cluster.api(1).remaining("wide", &wide).await;
        let spent_narrow = LIMIT - cluster.api(1).remaining("narrow", &narrow).await;
        let bounds = admitted..=admitted + unknown;
        assert!(admitted <= LIMIT, "{admitted} admitted of {LIMIT}");
        assert!(spent_wide >= admitted && spent_narrow >= admitted, "{spent_wide}, {spent_narrow} of {admitted}");
        if bounds.contains(&spent_wide) && bounds.contains(&spent_narrow) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{spent_wide} and {spent_narrow} spent, not in {bounds:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// How many were admitted, and how many have an unknown outcome, until the node is gone.
async fn check_both_until_gone(api: Api, wide: String, narrow: String) -> (u64, u64) {
    let check = json!({ "checks": [
        { "policy": "wide", "key": wide }, { "policy": "narrow", "key": narrow },
    ] });
    let (mut admitted, mut unknown) = (0, 0);
    loop {
        let answer = api.try_check(&check).await;
        match Outcome::of(&answer) {
            Outcome::Done => admitted += 1,
            Outcome::Unknown => unknown += 1,
            Outcome::Denied => {}
            Outcome::NotApplied if answer.is_ok() => {}
            Outcome::NotApplied => return (admitted, unknown),
            Outcome::Other(_) => panic!("{answer:?}"),
        }
    }
}
