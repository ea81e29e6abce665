//! What a node says of itself and its cluster: status and readiness.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use onceward_core::{
    cluster::{NodeEntry, NodeId, ShardId},
    seams::Clock,
};
use tokio::time::timeout;
use tracing::warn;

use crate::{
    founding,
    node::{Serving, Shared},
    replacing,
    shard_actor::Shard,
};

/// How long a status waits for the other nodes.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterStatus {
    /// `None` until the node is a member.
    pub cluster_id: Option<u128>,
    pub node: NodeId,
    pub nodes: Vec<NodeStatus>,
    pub shards: Vec<ShardStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    pub id: NodeId,
    pub http_address: String,
    pub peer_address: String,
    pub reachable: bool,
    /// Its wall clock minus this node's, to within the round trip.
    pub wall_clock_offset_ms: Option<i64>,
}

/// A shard as this node knows it. Of a shard without a replica here only the leader is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardStatus {
    pub id: ShardId,
    pub leader: Option<NodeId>,
    pub term: Option<u64>,
    pub last_log_index: Option<u64>,
    pub applied_index: Option<u64>,
    pub members: Vec<NodeId>,
    pub state_hash: Option<StateHashStatus>,
}

/// The hash of this node's replica at an applied index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateHashStatus {
    pub applied_index: u64,
    pub hash: String,
}

/// Whether a load balancer should send requests here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    pub ready: bool,
    pub detail: String,
    /// Replicas here that haven't heard from a leader within its lease, or haven't caught up since the start.
    pub waiting_shards: Vec<ShardId>,
}

impl Readiness {
    pub(crate) fn not_ready(detail: impl Into<String>) -> Readiness {
        Readiness { ready: false, detail: detail.into(), waiting_shards: Vec::new() }
    }
}

/// What each replica has to have applied before it is ready: what its log held when the node started.
pub(crate) struct Recovery {
    targets: BTreeMap<ShardId, u64>,
}

impl Recovery {
    pub(crate) fn new<'a>(shards: impl Iterator<Item = &'a Arc<Shard>>) -> Recovery {
        let targets = shards.map(|shard| (shard.id, shard.group.last_log_index().unwrap_or(0))).collect();
        Recovery { targets }
    }

    pub(crate) fn readiness(&self, serving: &Serving) -> Readiness {
        let waiting_shards: Vec<ShardId> =
            serving.router.local_shards().filter(|shard| !self.is_ready(shard)).map(|shard| shard.id).collect();
        let disk = &serving.surroundings.disk;
        if waiting_shards.is_empty() && disk.is_low() {
            return Readiness::not_ready(disk.describe());
        }
        if waiting_shards.is_empty() {
            return Readiness { ready: true, detail: "serving".to_owned(), waiting_shards };
        }
        let list = waiting_shards.iter().map(ShardId::to_string).collect::<Vec<_>>().join(", ");
        Readiness {
            ready: false,
            detail: format!("no leader heard of, or not caught up, in shards {list}"),
            waiting_shards,
        }
    }

    fn is_ready(&self, shard: &Shard) -> bool {
        if shard.live_leader().is_none() {
            return false;
        }
        let status = shard.group.status();
        // What the log held may have been cut off by a leader that never committed it.
        let target = self.targets.get(&shard.id).copied().unwrap_or(0).min(status.last_log_index.unwrap_or(0));
        status.applied_index.unwrap_or(0) >= target
    }
}

pub(crate) async fn cluster(shared: &Shared, serving: Option<Arc<Serving>>, state_hash: bool) -> ClusterStatus {
    let Some(serving) = serving else {
        let node = shared.config.node;
        return ClusterStatus { cluster_id: None, node, nodes: Vec::new(), shards: Vec::new() };
    };
    let surroundings = &serving.surroundings;
    let manifest = replacing::current_manifest(&serving, &replacing::registry(&serving));
    let nodes = join_all(manifest.nodes.iter().map(|entry| node_status(shared, entry))).await;
    let mut hashes = if state_hash { hashes(shared, &serving).await } else { BTreeMap::new() };
    let shards = manifest.shards().map(|id| shard_status(&serving, id, hashes.remove(&id))).collect();
    ClusterStatus { cluster_id: Some(manifest.cluster_id), node: surroundings.me.node, nodes, shards }
}

async fn node_status(shared: &Shared, entry: &NodeEntry) -> NodeStatus {
    let clock = &shared.config.clock;
    let offset =
        if entry.id == shared.config.node { Some(0) } else { wall_clock_offset_ms(shared, clock, entry.id).await };
    NodeStatus {
        id: entry.id,
        http_address: entry.http_address.clone(),
        peer_address: entry.peer_address.clone(),
        reachable: offset.is_some(),
        wall_clock_offset_ms: offset,
    }
}

/// The other clock is read half-way through the round trip, as far as anybody knows.
async fn wall_clock_offset_ms(shared: &Shared, clock: &Arc<dyn Clock>, node: NodeId) -> Option<i64> {
    let sent_ms = clock.wall_ms();
    let probed = timeout(PROBE_TIMEOUT, founding::probe(shared.links(), node)).await.ok()??;
    let came_ms = clock.wall_ms();
    let here_ms = sent_ms.midpoint(came_ms);
    Some(i64::try_from(probed.wall_ms).ok()?.saturating_sub(i64::try_from(here_ms).ok()?))
}

fn shard_status(serving: &Serving, id: ShardId, state_hash: Option<StateHashStatus>) -> ShardStatus {
    let leader = serving.router.believed_leader(id);
    let Some(shard) = serving.router.local(id) else {
        return ShardStatus {
            id,
            leader,
            term: None,
            last_log_index: None,
            applied_index: None,
            members: serving.surroundings.manifest.holders(id),
            state_hash: None,
        };
    };
    let status = shard.group.status();
    let mut members: Vec<NodeId> = status.voters.iter().chain(&status.learners).map(|member| member.node).collect();
    members.sort();
    members.dedup();
    ShardStatus {
        id,
        leader,
        term: Some(status.term),
        last_log_index: status.last_log_index,
        applied_index: status.applied_index,
        members,
        state_hash,
    }
}

/// The hash of every replica here. It reads all of their rows, so it is done for one caller at a time, and to its end
/// also when the caller hangs up.
async fn hashes(shared: &Shared, serving: &Arc<Serving>) -> BTreeMap<ShardId, StateHashStatus> {
    let turn = shared.hashing.clone().lock_owned().await;
    let serving = serving.clone();
    let hashing = tokio::spawn(async move {
        let _turn = turn;
        let hashed = serving.router.local_shards().map(|shard| async move { Some((shard.id, hash(shard).await?)) });
        join_all(hashed).await.into_iter().flatten().collect()
    });
    hashing.await.unwrap_or_default()
}

async fn hash(shard: &Shard) -> Option<StateHashStatus> {
    match shard.group.state_hash().await {
        Ok(hash) => Some(StateHashStatus { applied_index: hash.applied_index, hash: hash.hash }),
        Err(error) => {
            warn!(shard = %shard.id, %error, "no state hash");
            None
        }
    }
}
