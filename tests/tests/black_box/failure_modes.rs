//! What is answered when the cluster cannot decide: without a majority, past a deadline, under too much load.

use std::time::{Duration, Instant};

use onceward_tests::{client::Outcome, cluster::Cluster};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{fixed, item};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_each_policy_fails_the_way_it_says_and_tells() {
    let mut cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    for (mode, burst) in [("local", 30), ("allow", 30), ("deny", 30)] {
        let policy = json!({ "rate": "30/s", "burst": burst, "on_unavailable": mode, "exempt": ["health"] });
        api.put_policy(mode, policy).await.expect_status(201);
        assert_eq!(api.check(mode, "k").await.expect_status(200).result().degraded, None);
    }
    cluster.node(2).kill();
    cluster.node(3).kill();
    wait_without_majority(&cluster).await;

    let allowed = api.check("allow", "k").await.expect_status(200).result();
    assert_eq!((allowed.allowed, allowed.degraded.as_deref()), (true, Some("allowed")));

    let denied = api.check("deny", "k").await.expect_status(503);
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    assert_eq!(denied.json()["code"], "unavailable");

    // A third of the burst and of the rate, starting empty: in two seconds at most 10 + 20, and some.
    let (mut admitted, began) = (0, Instant::now());
    while began.elapsed() < Duration::from_secs(2) {
        let answer = api.check("local", "k").await;
        assert!(matches!(answer.status, 200 | 429), "{answer:?}");
        assert_eq!(answer.result().degraded.as_deref(), Some("local"));
        admitted += u64::from(answer.status == 200);
    }
    let most = 10 + began.elapsed().as_millis() as u64 / 100 + 1;
    assert!((1..=most).contains(&admitted), "{admitted} admitted by the local bucket, not 1 to {most}");

    // In a multi-check any `deny` decides, an exempt key needs nobody.
    api.check_items(&[item("allow", "k", 1), item("deny", "k", 1)], "enforce").await.expect_status(503);
    let exempt = api.check("deny", "health").await.expect_status(200).result();
    assert_eq!(exempt.degraded, None);

    cluster.node(2).start();
    cluster.node(3).start();
    cluster.wait_all_ready().await;
    cluster.wait_serving("deny").await;
    for mode in ["local", "allow", "deny"] {
        assert_eq!(cluster.api(1).check(mode, "k").await.result().degraded, None, "{mode}");
    }
}

/// Until node 1 knows that it has no majority: it is not ready then, and waits for nobody.
async fn wait_without_majority(cluster: &Cluster) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while cluster.api(1).is_ready().await || cluster.api(1).check("allow", "k").await.result().degraded.is_none() {
        assert!(Instant::now() < deadline, "node 1 still decides, or says that it is ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_is_kept_and_what_is_refused_with_503_is_never_applied() {
    let mut cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("p", fixed(1000)).await.expect_status(201);
    cluster.node(2).kill();
    cluster.node(3).kill();
    let api = cluster.api(1);
    let headers = [("content-type", "application/json"), ("onceward-timeout-ms", "200")];
    let mut unknown = Vec::new();
    let mut refused = Vec::new();
    for n in 0..20 {
        let began = Instant::now();
        let name = format!("late-{n}");
        let answer = api.send("PUT", &format!("/v1/policies/{name}"), &headers, br#"{"rate": "1/s"}"#.to_vec()).await;
        // The default of 2 s would show.
        assert!(began.elapsed() < Duration::from_millis(1500), "took {:?}", began.elapsed());
        match Outcome::of(&answer) {
            Outcome::NotApplied => refused.push(name),
            Outcome::Unknown => unknown.push(name),
            other => panic!("{other:?}: {answer:?}"),
        }
    }
    assert!(!refused.is_empty(), "a node that knows that it has no majority says 503; unknown: {unknown:?}");
    cluster.node(2).start();
    cluster.node(3).start();
    cluster.wait_all_ready().await;
    cluster.wait_serving("p").await;
    for name in refused {
        cluster.api(2).get(&format!("/v1/policies/{name}")).await.expect_status(404);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overload_is_refused_with_retry_after_and_counts_nothing() {
    const REQUESTS: u64 = 3000;
    let cluster = Cluster::builder().set("http.max_in_flight", 64).start().await;
    cluster.api(1).put_policy("p", fixed(REQUESTS)).await.expect_status(201);
    let mut tasks = JoinSet::new();
    for _ in 0..REQUESTS {
        let api = cluster.api(1);
        tasks.spawn(async move { api.try_check(&json!({ "checks": [{ "policy": "p", "key": "k" }] })).await });
    }
    let (mut admitted, mut refused, mut unknown) = (0, 0, 0);
    for answer in tasks.join_all().await {
        match Outcome::of(&answer) {
            Outcome::Done => admitted += 1,
            Outcome::NotApplied => {
                if let Ok(answer) = answer {
                    assert!(answer.header("retry-after").is_some(), "{answer:?}");
                }
                refused += 1;
            }
            Outcome::Unknown => unknown += 1,
            other => panic!("{other:?}: {answer:?}"),
        }
    }
    assert!(refused > 0 && admitted > 0, "{admitted} admitted, {refused} refused, {unknown} unknown");
    let spent = REQUESTS - cluster.api(2).remaining("p", "k").await;
    assert!((admitted..=admitted + unknown).contains(&spent), "{spent} spent, {admitted} admitted, {unknown} unknown");
    // Once the rush is over everybody is served.
    cluster.api(1).check("p", "other").await.expect_status(200);
}
