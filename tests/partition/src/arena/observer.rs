//! Watches a cluster from outside for as long as the arena stands: who leads which shard, whose wall clock is off, and
//! which process ended without being asked to.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use onceward_checkers::history::{Leader, Record};
use onceward_tests::client::ClusterStatus;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

use super::{ANSWER_MAX, Arena, Inner};

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What is known of the cluster.
#[derive(Debug, Default)]
pub struct Observed {
    /// The newest term of each shard, and its leader.
    leaders: BTreeMap<u16, (u64, Option<u16>)>,
    /// How often a shard got another leader, or the same one anew.
    pub leaders_changed: u64,
    /// How far each node's wall clock is off, as the latest other node told.
    pub wall_clock_offsets_ms: BTreeMap<u16, i64>,
    pub unexpected_exits: Vec<String>,
}

impl Observed {
    pub fn leader(&self, shard: u16) -> Option<u16> {
        self.leaders.get(&shard).and_then(|(_, leader)| *leader)
    }

    /// Takes in what nodes said at about the same time; the shards that changed.
    fn take(&mut self, statuses: &[ClusterStatus]) -> Vec<(u16, u64, Option<u16>)> {
        let mut newest: BTreeMap<u16, (u64, Option<u16>)> = BTreeMap::new();
        for status in statuses {
            for shard in &status.shards {
                let Some(term) = shard.term else { continue };
                let known = newest.entry(shard.id).or_insert((term, shard.leader));
                if term > known.0 || (term == known.0 && known.1.is_none()) {
                    *known = (term, shard.leader);
                }
            }
            for node in &status.nodes {
                if let Some(offset_ms) = node.wall_clock_offset_ms.filter(|_| node.id != status.node_id) {
                    self.wall_clock_offsets_ms.insert(node.id, offset_ms);
                }
            }
        }
        let mut changed = Vec::new();
        for (shard, (term, leader)) in newest {
            let before = self.leaders.get(&shard).copied().unwrap_or_default();
            // Those who answer now may know less than those who answered before.
            if term < before.0 || (term, leader) == before {
                continue;
            }
            self.leaders_changed += u64::from(leader.is_some() && before.0 > 0 && term > before.0);
            self.leaders.insert(shard, (term, leader));
            changed.push((shard, term, leader));
        }
        changed
    }
}

/// Until it is aborted, or the arena is gone.
pub fn start(arena: &Arena) -> JoinHandle<()> {
    let inner = Arc::downgrade(&arena.inner);
    tokio::spawn(async move {
        while look(&inner).await.is_some() {
            sleep(LOOK_EVERY).await;
        }
    })
}

async fn look(inner: &Weak<Inner>) -> Option<()> {
    let arena = Arena { inner: inner.upgrade()? };
    let mut asked = JoinSet::new();
    for api in arena.direct() {
        asked.spawn(async move {
            let answer = timeout(ANSWER_MAX, api.try_get("/v1/cluster")).await.ok()?.ok()?;
            serde_json::from_str::<ClusterStatus>(&answer.body).ok()
        });
    }
    let statuses: Vec<ClusterStatus> = asked.join_all().await.into_iter().flatten().collect();
    let at_us = arena.inner.recorder.now_us();
    for (shard, term, node) in arena.inner.observed.lock().take(&statuses) {
        arena.inner.recorder.record(Record::Leader(Leader { at_us, shard, term, node }));
    }
    start_again(&arena).await;
    Some(())
}

/// As whoever runs a node would.
async fn start_again(arena: &Arena) {
    let mut cluster = arena.inner.cluster.lock().await;
    for node in arena.nodes() {
        if arena.inner.suffered.lock().down.contains(&node) {
            continue;
        }
        if let Some(status) = cluster.node(node).unexpected_exit() {
            let log = cluster.node(node).log();
            let last = log.lines().last().unwrap_or_default();
            let at_s = arena.inner.recorder.now_us() / 1_000_000;
            let sentence = format!("node {node} ended with {status}, {at_s} s into the run, its last words: {last}");
            arena.inner.observed.lock().unexpected_exits.push(sentence);
            cluster.start(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use onceward_tests::client::ShardStatus;

    use super::*;

    fn says(node_id: u16, term: u64, leader: Option<u16>) -> ClusterStatus {
        let shard = ShardStatus { id: 1, leader, term: Some(term), members: vec![1, 2, 3], state_hash: None };
        ClusterStatus { cluster_id: None, node_id, nodes: Vec::new(), shards: vec![shard] }
    }

    #[test]
    fn the_newest_term_decides_who_leads_and_an_old_leader_that_does_not_know_it_changes_nothing() {
        let mut observed = Observed::default();
        assert_eq!(observed.take(&[says(1, 4, Some(1)), says(2, 4, None)]), [(1, 4, Some(1))]);
        assert_eq!(observed.take(&[says(1, 4, Some(1)), says(2, 5, Some(2))]), [(1, 5, Some(2))]);
        assert_eq!(observed.take(&[says(1, 4, Some(1))]), []);
        assert_eq!(observed.take(&[says(2, 5, None), says(3, 5, None)]), [(1, 5, None)]);
        assert_eq!((observed.leader(1), observed.leaders_changed), (None, 1));
    }
}
