//! Rate limits: a burst, a combined limit, a health check.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    cluster::{Answer, Cluster},
    heading, payments,
};

pub const API: &str = "demo-api";
pub const BY_KEY: &str = "demo-by-api-key";
pub const BY_ADDRESS: &str = "demo-by-address";
pub const BY_ENDPOINT: &str = "demo-by-endpoint";

const BURST: usize = 25;
const CAPACITY: u64 = 20;
const REFILL_PER_S: f64 = 2.0;
const BY_KEY_BURST: u64 = 100;
const BY_ADDRESS_BURST: u64 = 10;
const BY_ENDPOINT_BURST: u64 = 3;

pub async fn everything(cluster: &Arc<Cluster>, caller: &str) -> Result<()> {
    burst(cluster, caller).await?;
    combined(cluster, caller).await?;
    exempt(cluster).await
}

pub fn address_of(caller: &str) -> String {
    format!("203.0.113.7#{caller}")
}

pub fn endpoint_of(caller: &str) -> String {
    format!("POST /reports#{caller}")
}

/// Without a majority they deny, so that nothing here is a guess.
pub async fn write_policies(cluster: &Cluster) -> Result<()> {
    heading("The policies");
    let limit =
        |rate: &str, burst: u64| json!({ "rate": rate, "burst": burst, "on_unavailable": "deny", "timeout_ms": 2000 });
    let mut api = limit("2/s", CAPACITY);
    api["exempt"] = json!(["health-*"]);
    for (name, policy) in [
        (API, api),
        (BY_KEY, limit("100/h", BY_KEY_BURST)),
        (BY_ADDRESS, limit("10/h", BY_ADDRESS_BURST)),
        (BY_ENDPOINT, limit("3/h", BY_ENDPOINT_BURST)),
        (payments::POLICY, limit("100/s", 100)),
    ] {
        let answer = cluster.put_policy(name, policy.clone()).await?;
        println!("  PUT /v1/policies/{name:<17} {policy}  → {}", answer.status);
        ensure!(matches!(answer.status, 200 | 201), "{}", answer.body);
    }
    Ok(())
}

async fn burst(cluster: &Arc<Cluster>, caller: &str) -> Result<()> {
    heading(&format!(
        "A burst of {BURST} at once from {caller}, through all nodes: {CAPACITY} may pass, then {REFILL_PER_S} a second"
    ));
    let began = Instant::now();
    let mut requests = JoinSet::new();
    for turn in 0..BURST {
        let (cluster, caller) = (cluster.clone(), caller.to_owned());
        requests.spawn(async move { cluster.check(turn, &[(API, &caller)]).await });
    }
    let mut by_status: BTreeMap<u16, Vec<Answer>> = BTreeMap::new();
    for answer in requests.join_all().await {
        let answer = answer?;
        by_status.entry(answer.status).or_default().push(answer);
    }
    let elapsed = began.elapsed();
    let counts: Vec<String> =
        by_status.iter().map(|(status, answers)| format!("{} × {status}", answers.len())).collect();
    println!("  {} in {} ms", counts.join(", "), elapsed.as_millis());
    // What refilled while the burst went on may pass too; on any but a very slow machine that is nothing.
    let refilled = (elapsed.as_secs_f64() * REFILL_PER_S) as usize;
    let admitted = by_status.get(&200).map_or(0, Vec::len);
    let expected = CAPACITY as usize..=CAPACITY as usize + refilled;
    ensure!(expected.contains(&admitted), "{admitted} of {BURST} were admitted, not {expected:?}");
    let denied = by_status.get(&429).map_or(&[][..], Vec::as_slice);
    ensure!(denied.len() == BURST - admitted, "the others should have met 429");
    let Some(last) = denied.iter().max_by_key(|answer| answer.result("retry_after_ms")) else { return Ok(()) };
    let retry_after_s = show_headers(last)?;

    tokio::time::sleep(Duration::from_secs(retry_after_s)).await;
    let again = cluster.check(0, &[(API, caller)]).await?;
    println!("  waited the {retry_after_s} s of Retry-After and asked again → {}", again.status);
    ensure!(again.status == 200, "waiting out Retry-After must succeed: {}", again.body);
    Ok(())
}

/// Prints the headers of a 429; returns its Retry-After in seconds.
fn show_headers(denied: &Answer) -> Result<u64> {
    println!("  a 429 says:");
    for name in
        ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "RateLimit-Policy", "RateLimit", "Retry-After"]
    {
        let value = denied.headers.get(name).and_then(|value| value.to_str().ok());
        ensure!(value.is_some(), "the header {name} is missing");
        println!("    {name}: {}", value.unwrap_or_default());
    }
    let retry_after = denied.headers["retry-after"].to_str()?.parse()?;
    ensure!(retry_after >= 1, "Retry-After: {retry_after}");
    ensure!(denied.headers["ratelimit-limit"] == CAPACITY.to_string().as_str(), "RateLimit-Limit is the capacity");
    Ok(retry_after)
}

async fn combined(cluster: &Cluster, caller: &str) -> Result<()> {
    heading("One request against three limits: by API key, by client address, by endpoint. All or nothing");
    let (address, endpoint) = (address_of(caller), endpoint_of(caller));
    let checks = [(BY_KEY, caller), (BY_ADDRESS, address.as_str()), (BY_ENDPOINT, endpoint.as_str())];
    for turn in 0..BY_ENDPOINT_BURST {
        let answer = cluster.check(turn as usize, &checks).await?;
        println!("  request {} → {}  {}", turn + 1, answer.status, left(&answer));
        ensure!(answer.status == 200, "{}", answer.body);
    }
    let denied = cluster.check(1, &checks).await?;
    println!("  request {} → {}  {}", BY_ENDPOINT_BURST + 1, denied.status, left(&denied));
    ensure!(denied.status == 429, "the endpoint's limit is spent: {}", denied.body);
    let expected = [(checks[0], BY_KEY_BURST - BY_ENDPOINT_BURST), (checks[1], BY_ADDRESS_BURST - BY_ENDPOINT_BURST)];
    for ((policy, key), remaining) in expected {
        let found = cluster.peek(2, policy, key).await?.result("remaining");
        println!("  peek at {policy}: {found} left");
        ensure!(found == remaining, "{policy} has {found} left, not {remaining}");
    }
    println!("  the denied request took nothing");
    Ok(())
}

/// What each limit of an answer has left.
fn left(answer: &Answer) -> String {
    let results = answer.body["results"].as_array().map_or(&[][..], Vec::as_slice);
    let parts: Vec<String> = results
        .iter()
        .map(|result| {
            format!("{} {}/{}", result["policy"].as_str().unwrap_or("?"), result["remaining"], result["limit"])
        })
        .collect();
    format!("left: {}", parts.join(", "))
}

async fn exempt(cluster: &Cluster) -> Result<()> {
    const CHECKS: usize = 50;
    heading(&format!("{CHECKS} health checks by an exempt key"));
    for turn in 0..CHECKS {
        let answer = cluster.check(turn, &[(API, "health-lb")]).await?;
        ensure!(answer.status == 200, "an exempt key is always admitted: {}", answer.body);
        ensure!(answer.result("remaining") == CAPACITY, "an exempt key is never counted: {}", answer.body);
    }
    println!("  {CHECKS} × 200, none counted");
    Ok(())
}
