//! Who is in the cluster and which shard holds what: node and member ids, the founding manifest, placement.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::webhooks::{AppId, AppRef};

/// Data shards when the cluster's founder names no other number.
pub const DATA_SHARDS_DEFAULT: u16 = 8;
/// More shards than this only add heartbeats on the cluster sizes that are supported.
pub const DATA_SHARDS_MAX: u16 = 64;
/// How many nodes a cluster may have: an even number tolerates no more losses than one less, and larger ones are
/// untested.
pub const CLUSTER_SIZES: [usize; 3] = [1, 3, 5];
/// Voters of a shard from three nodes on.
pub const REPLICATION_FACTOR: usize = 3;

/// A node's number in the configuration, 1 or greater. It stays when the node is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u16);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One life of a node's data directory. A node that lost its disk comes back under the next generation, as another
/// Raft member, so that it can never vote under its old name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u32);

/// A Raft member: a node in one of its generations, packed into the id that the Raft library wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId {
    pub node: NodeId,
    pub generation: Generation,
}

impl MemberId {
    pub const fn new(node: NodeId, generation: Generation) -> Self {
        MemberId { node, generation }
    }

    pub const fn to_u64(self) -> u64 {
        ((self.generation.0 as u64) << 16) | self.node.0 as u64
    }

    pub const fn from_u64(id: u64) -> Self {
        MemberId { node: NodeId(id as u16), generation: Generation((id >> 16) as u32) }
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node.0, self.generation.0)
    }
}

/// A Raft group and its state: 0 is the system shard, 1 … n hold the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u16);

impl ShardId {
    pub const SYSTEM: ShardId = ShardId(0);

    pub const fn is_system(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A node as the manifest and the registry know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    pub id: NodeId,
    pub generation: Generation,
    /// Drawn when the data directory was made; a directory with another one is not this node.
    pub incarnation: u128,
    /// `host:port` of its HTTP API, as clients reach it.
    pub http_address: String,
    /// `host:port` of its peer port.
    pub peer_address: String,
}

/// What the founder decides once, and every founding member stores before the first entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub cluster_id: u128,
    pub data_shards: u16,
    /// By ascending id.
    pub nodes: Vec<NodeEntry>,
}

impl Manifest {
    /// All shards, the system shard first.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..=self.data_shards).map(ShardId)
    }

    /// The nodes that vote in a shard, the one that initialises it first. Shard g starts at node g mod n, so that
    /// leaders spread evenly.
    pub fn voters(&self, shard: ShardId) -> Vec<NodeId> {
        let count = self.nodes.len();
        let replicas = if count >= REPLICATION_FACTOR { REPLICATION_FACTOR } else { 1 };
        (0..replicas).map(|offset| self.nodes[(shard.0 as usize + offset) % count].id).collect()
    }

    /// The nodes that hold a shard's state: the voters, and for the system shard everybody else as a learner.
    pub fn holders(&self, shard: ShardId) -> Vec<NodeId> {
        let mut holders = self.voters(shard);
        if shard.is_system() {
            holders
                .extend(self.nodes.iter().map(|node| node.id).filter(|id| !holders.contains(id)).collect::<Vec<_>>());
        }
        holders
    }

    /// The data shard of a bucket.
    pub fn bucket_shard(&self, policy: &str, key: &str) -> ShardId {
        self.place(&[policy.as_bytes(), key.as_bytes()])
    }

    /// The data shard of an account. One whose name is an application's id lives where the id says.
    pub fn account_shard(&self, account: &str) -> ShardId {
        match AppId::parse(account).map(|id| id.shard()) {
            Some(shard) if self.holds_data(shard) => shard,
            _ => self.place(&[account.as_bytes()]),
        }
    }

    /// Where an application is made that has no uid: by whatever the call is known again by, or by chance.
    pub fn unnamed_app_shard(&self, seed: &[u8]) -> ShardId {
        self.place(&[seed])
    }

    /// The shard of an application as a path names it. An id that no shard of this cluster made names none.
    pub fn app_shard(&self, app: &AppRef) -> Option<ShardId> {
        match app {
            AppRef::Operational => Some(ShardId::SYSTEM),
            AppRef::Uid(uid) => Some(self.account_shard(uid.as_str())),
            AppRef::Id(id) => Some(id.shard()).filter(|shard| self.holds_data(*shard)),
        }
    }

    fn holds_data(&self, shard: ShardId) -> bool {
        !shard.is_system() && shard.0 <= self.data_shards
    }

    fn place(&self, parts: &[&[u8]]) -> ShardId {
        ShardId(1 + (stable_hash(parts) % u64::from(self.data_shards)) as u16)
    }
}

/// XXH3-64, seed 0, over the parts, each behind its length (u32 little-endian): `a_b`+`c` differs from `a`+`b_c`.
pub fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut buffer = Vec::with_capacity(parts.iter().map(|part| part.len() + 4).sum());
    for part in parts {
        buffer.extend_from_slice(&(part.len() as u32).to_le_bytes());
        buffer.extend_from_slice(part);
    }
    xxh3_64(&buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_hash_is_pinned_and_tells_parts_apart() {
        assert_ne!(stable_hash(&[b"a_b", b"c"]), stable_hash(&[b"a", b"b_c"]));
        assert_ne!(stable_hash(&[b"ab", b""]), stable_hash(&[b"", b"ab"]));
        // Changing this number moves every bucket of every existing cluster to another shard.
        assert_eq!(stable_hash(&[b"api", b"key_123"]), 2_045_778_534_175_816_908);
    }

    #[test]
    fn placements_are_pinned() {
        let node = |id| NodeEntry {
            id: NodeId(id),
            generation: Generation(0),
            incarnation: 0,
            http_address: String::new(),
            peer_address: String::new(),
        };
        let manifest = Manifest { cluster_id: 1, data_shards: 8, nodes: (1..=5).map(node).collect() };
        let keys = ["key_123", "", "ü", "a_b"];
        assert_eq!(keys.map(|key| manifest.bucket_shard("api", key).0), [5, 5, 6, 8]);
        assert_eq!(keys.map(|account| manifest.account_shard(account).0), [8, 6, 5, 1]);
        let voters = |shard| manifest.voters(ShardId(shard)).iter().map(|node| node.0).collect::<Vec<_>>();
        assert_eq!([voters(0), voters(1), voters(4)], [[1, 2, 3], [2, 3, 4], [5, 1, 2]]);
        assert_eq!(manifest.holders(ShardId::SYSTEM).len(), 5);
    }

    #[test]
    fn member_ids_survive_packing() {
        let member = MemberId::new(NodeId(3), Generation(70_000));
        assert_eq!(MemberId::from_u64(member.to_u64()), member);
    }
}
