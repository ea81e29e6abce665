//! Measures what the death of a leader costs: how long until every shard serves again through every survivor, and how
//! many elections it took. The judging is the caller's.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    client::{Api, Outcome},
    cluster::Cluster,
};

/// So short that one request stuck on the dead leader does not hide that the shard serves again.
const TRY_MS: &str = "300";

#[derive(Debug, Clone)]
pub struct Failover {
    /// From SIGKILL until every data shard admitted a check and the system shard answered, through every survivor.
    pub outage: Duration,
    /// Shards that the dead node led.
    pub shards_led: usize,
    /// Terms that passed on those shards: one each at best.
    pub elections: u64,
    /// Terms that passed on shards whose leader lives.
    pub false_elections: u64,
}

/// Kills the node and measures; it stays dead. `policy` must exist, have plenty and deny when unavailable.
pub async fn measure(cluster: &mut Cluster, policy: &str, victim: u16) -> Failover {
    let survivors: Vec<Api> = cluster.ids().filter(|id| *id != victim).map(|id| cluster.api(id)).collect();
    let before = terms(&survivors).await;
    let keys = cluster.key_on_every_shard(policy);
    cluster.node(victim).kill();
    let killed = Instant::now();
    let mut probes = JoinSet::new();
    for api in &survivors {
        for key in &keys {
            probes.spawn(probe(api.clone(), policy.to_owned(), Some(key.clone())));
        }
        probes.spawn(probe(api.clone(), policy.to_owned(), None));
    }
    probes.join_all().await;
    let outage = killed.elapsed();

    let after = terms(&survivors).await;
    let mut result = Failover { outage, shards_led: 0, elections: 0, false_elections: 0 };
    for (shard, (term, leader)) in &before {
        let passed = after[shard].0.saturating_sub(*term);
        if *leader == Some(victim) {
            result.shards_led += 1;
            result.elections += passed;
        } else {
            result.false_elections += passed;
        }
    }
    result
}

/// Asks again and again until it is answered: a check of the key, or the policy itself.
async fn probe(api: Api, policy: String, key: Option<String>) {
    let headers = [("content-type", "application/json"), ("onceward-timeout-ms", TRY_MS)];
    loop {
        let answer = match &key {
            Some(key) => {
                let check = json!({ "checks": [{ "policy": policy, "key": key }] });
                api.send("POST", "/v1/limits/check", &headers, check.to_string().into_bytes()).await
            }
            None => api.send("GET", &format!("/v1/policies/{policy}"), &headers, Vec::new()).await,
        };
        if Outcome::of(&answer) == Outcome::Done {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The newest term of every shard that any of these nodes knows, and its leader.
async fn terms(apis: &[Api]) -> BTreeMap<u16, (u64, Option<u16>)> {
    let mut terms = BTreeMap::new();
    for api in apis {
        for shard in api.cluster().await.shards {
            let Some(term) = shard.term else { continue };
            let newest = terms.entry(shard.id).or_insert((term, shard.leader));
            if term > newest.0 || newest.1.is_none() {
                *newest = (term, shard.leader);
            }
        }
    }
    terms
}

/// The median and the greatest; panics on none.
pub fn median_and_max(mut outages: Vec<Duration>) -> (Duration, Duration) {
    outages.sort();
    (outages[outages.len() / 2], outages[outages.len() - 1])
}
