//! Questions to every shard through chosen nodes, past all links that may be cut: whether it serves, how soon it does so
//! again, and whether replicas agree. Probes spend from a policy of their own, that no workload uses.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use onceward_checkers::history::{Record, StateHash};
use onceward_tests::client::{Answer, Api, ClusterStatus, NoAnswer, Outcome};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{ANSWER_MAX, Arena, READY_MAX};

pub const PROBE_POLICY: &str = "nemesis-probes";
/// Refills so slowly that the time until it is full again tells the shard's clock.
pub const SLOW_POLICY: &str = "nemesis-clock";
/// So short that one request stuck on a leader that is gone does not hide that the shard serves again.
const TRY_MS: &str = "300";
const PROBE_PAUSE: Duration = Duration::from_millis(20);
/// Longest wait for a healed cluster to serve: far longer than is promised, so that what it took is measured.
const HEALED_MAX: Duration = Duration::from_secs(60);
/// Hashing a state reads all of it.
const HASH_MAX: Duration = Duration::from_secs(10);
const HASH_ROUNDS: u32 = 3;
const HASH_PAUSE: Duration = Duration::from_millis(300);

/// What probes were answered.
#[derive(Debug, Default)]
pub struct Tally {
    served: AtomicU64,
    /// 503, or answered by nobody within the time of a try.
    refused: AtomicU64,
    /// Served, and not sooner than the time that was asked for.
    slow: AtomicU64,
}

impl Tally {
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub fn slow(&self) -> u64 {
        self.slow.load(Ordering::Relaxed)
    }
}

impl Arena {
    pub(super) async fn create_policies(&self) -> anyhow::Result<()> {
        for (policy, rate) in [(PROBE_POLICY, "1000000/s"), (SLOW_POLICY, "1/s")] {
            let terms = json!({ "rate": rate, "burst": 1_000_000_000, "on_unavailable": "deny", "timeout_ms": 2000 });
            self.create_policy(policy, &terms).await?;
        }
        Ok(())
    }

    async fn create_policy(&self, policy: &str, terms: &serde_json::Value) -> anyhow::Result<()> {
        let path = format!("/v1/policies/{policy}");
        let deadline = Instant::now() + READY_MAX;
        loop {
            let answer = self.observer_of(1).try_json("PUT", &path, terms).await;
            match Outcome::of(&answer) {
                Outcome::Done => return Ok(()),
                _ if Instant::now() < deadline => sleep(PROBE_PAUSE).await,
                _ => return Err(anyhow::anyhow!("{answer:?}")).context("a policy of the probes is not taken"),
            }
        }
    }

    /// A check of a data shard, or a read of the system shard.
    async fn probe(&self, api: &Api, shard: u16) -> Result<Answer, NoAnswer> {
        let headers = [("content-type", "application/json"), ("onceward-timeout-ms", TRY_MS)];
        let asked = async {
            if shard == 0 {
                return api.send("GET", &format!("/v1/policies/{PROBE_POLICY}"), &headers, Vec::new()).await;
            }
            let key = &self.inner.probe_keys[usize::from(shard) - 1];
            let check = json!({ "checks": [{ "policy": PROBE_POLICY, "key": key }] });
            api.send("POST", "/v1/limits/check", &headers, check.to_string().into_bytes()).await
        };
        let silent = || Err(NoAnswer::Lost("silence".to_owned()));
        timeout(ANSWER_MAX, asked).await.unwrap_or_else(|_| silent())
    }

    pub(crate) async fn serves(&self, node: u16, shard: u16) -> bool {
        Outcome::of(&self.probe(self.observer_of(node), shard).await) == Outcome::Done
    }

    /// Waits until each of these shards served through each of these nodes.
    pub(crate) async fn wait_serving(&self, nodes: &[u16], shards: &[u16]) {
        let mut probes = JoinSet::new();
        for &node in nodes {
            for &shard in shards {
                let arena = self.clone();
                probes.spawn(async move {
                    while !arena.serves(node, shard).await {
                        sleep(PROBE_PAUSE).await;
                    }
                });
            }
        }
        probes.join_all().await;
    }

    /// Waits until every shard serves through every node; how long that took.
    pub(crate) async fn wait_healed(&self) -> Duration {
        let began = Instant::now();
        let served = timeout(HEALED_MAX, self.wait_serving(&self.nodes(), &self.shards())).await;
        served.map_or(HEALED_MAX, |()| began.elapsed())
    }

    /// Asks a shard through a node as fast as it answers, until the future is dropped.
    pub(crate) async fn press(&self, node: u16, shard: u16) {
        loop {
            if !self.serves(node, shard).await {
                sleep(PROBE_PAUSE).await;
            }
        }
    }

    /// Asks shards through these clients in turn, and counts, until the future is dropped.
    pub(crate) async fn keep_asking(&self, apis: Vec<Api>, shards: Vec<u16>, slow_after: Duration, tally: Arc<Tally>) {
        loop {
            for &shard in &shards {
                for api in &apis {
                    let asked = Instant::now();
                    let answer = self.probe(api, shard).await;
                    match Outcome::of(&answer) {
                        Outcome::Done => {
                            tally.served.fetch_add(1, Ordering::Relaxed);
                            tally.slow.fetch_add(u64::from(asked.elapsed() >= slow_after), Ordering::Relaxed);
                        }
                        Outcome::NotApplied | Outcome::Unknown => {
                            tally.refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Outcome::Denied | Outcome::Other(_) => {}
                    }
                    sleep(PROBE_PAUSE).await;
                }
            }
        }
    }

    /// Until a bucket is full again, in ms of its shard's clock, after a cost or, without one, as it is.
    pub(crate) async fn reset_after_ms(&self, policy: &str, key: &str, cost: u64) -> Option<u64> {
        let mode = if cost == 0 { "peek" } else { "enforce" };
        let check = json!({ "checks": [{ "policy": policy, "key": key, "cost": cost }], "mode": mode });
        for node in self.nodes() {
            let answer = timeout(ANSWER_MAX, self.observer_of(node).try_check(&check)).await;
            if let Ok(Ok(answer)) = answer
                && answer.status == 200
            {
                return Some(answer.result().reset_after_ms);
            }
        }
        None
    }

    /// Whether a node says that it is not ready because its disk has no room.
    pub(crate) async fn says_disk_full(&self, node: u16) -> bool {
        match timeout(ANSWER_MAX, self.observer_of(node).try_get("/readyz")).await {
            Ok(Ok(answer)) => answer.status == 503 && answer.body.to_lowercase().contains("disk"),
            _ => false,
        }
    }

    /// Asks all nodes for the hashes of their replicas at about the same time, several times, and records them.
    pub(crate) async fn record_hashes(&self) {
        for _ in 0..HASH_ROUNDS {
            let mut asked = JoinSet::new();
            for api in self.direct() {
                asked.spawn(async move {
                    let answer = timeout(HASH_MAX, api.try_get("/v1/cluster?state_hash=true")).await.ok()?.ok()?;
                    serde_json::from_str::<ClusterStatus>(&answer.body).ok()
                });
            }
            let statuses = asked.join_all().await;
            let at_us = self.inner.recorder.now_us();
            let mut hashes: BTreeMap<(u16, u16), StateHash> = BTreeMap::new();
            for status in statuses.into_iter().flatten() {
                for shard in status.shards {
                    let Some(state) = shard.state_hash else { continue };
                    let (node, shard) = (status.node_id, shard.id);
                    let hash = StateHash { at_us, node, shard, applied_index: state.applied_index, hash: state.hash };
                    hashes.insert((shard, node), hash);
                }
            }
            hashes.into_values().for_each(|hash| self.inner.recorder.record(Record::StateHash(hash)));
            sleep(HASH_PAUSE).await;
        }
    }
}
