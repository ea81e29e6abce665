//! What a node is told when it starts.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use onceward_consensus::{KEEP_BYTES, KEEP_ENTRIES, SNAPSHOT_EVERY_BYTES, SNAPSHOT_EVERY_ENTRIES, Timing};
use onceward_core::{
    cluster::NodeId,
    seams::{Clock, Entropy},
};
use onceward_storage::{LogWriter, Store};
use onceward_transport::Network;

/// A node of the cluster, itself included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    /// `host:port` of its peer port, as the other nodes reach it.
    pub peer_address: String,
    /// `host:port` of its HTTP API, as clients reach it.
    pub http_address: String,
}

#[derive(Clone)]
pub struct NodeConfig {
    pub node: NodeId,
    /// Where the files are that aren't in the store.
    pub data_dir: PathBuf,
    /// All nodes of the cluster, this one included.
    pub peers: BTreeMap<NodeId, PeerConfig>,
    pub store: Arc<dyn Store>,
    /// Of that store. The node stops it.
    pub log_writer: LogWriter,
    pub network: Arc<dyn Network>,
    pub tuning: Tuning,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    /// Told once when the node can't go on: what happened and where. The process is to end.
    pub on_fatal: Arc<dyn Fn(String) + Send + Sync>,
}

/// Times and bounds that an operator may set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tuning {
    pub timing: Timing,
    /// A leader that no majority acknowledged within this time, or one that wasn't heard of within it, doesn't count.
    pub leader_lease: Duration,
    pub snapshot_every_entries: u64,
    pub snapshot_every_bytes: u64,
    /// Log entries kept behind a snapshot for replicas that lag a little.
    pub keep_entries: u64,
    /// Log bytes kept behind a snapshot; where this is the tighter bound, it wins.
    pub keep_bytes: u64,
    /// Calls that wait for the outcome of an idempotency key at once. Each keeps one of the places that there are for
    /// requests, and those who don't wait need some too. Beyond it nobody is made to wait.
    pub waiters_max: usize,
    /// With less than this free on the disk, the node takes nothing that grows. 0: whatever is free.
    pub min_free_bytes: u64,
}

/// Half of the requests that the HTTP port has under way at once when it is told nothing else.
const WAITERS_MAX: usize = 2_048;

/// Enough for the write-ahead logs (128 MiB), the memtables on their way to the disk, a compaction or a snapshot that runs, and
/// hours of what is still taken.
const MIN_FREE_BYTES: u64 = 1 << 30;

/// The longest election timeout and two heartbeats: shorter than any follower waits before it campaigns, so that a leader
/// isn't given up before the others may look for one. It only decides how soon requests are turned away; what a deposed
/// leader still takes in is never committed, and its reads are confirmed by a majority.
const LEADER_LEASE: Duration = Duration::from_millis(1_000);

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            timing: Timing::default(),
            leader_lease: LEADER_LEASE,
            snapshot_every_entries: SNAPSHOT_EVERY_ENTRIES,
            snapshot_every_bytes: SNAPSHOT_EVERY_BYTES,
            keep_entries: KEEP_ENTRIES,
            keep_bytes: KEEP_BYTES,
            waiters_max: WAITERS_MAX,
            min_free_bytes: MIN_FREE_BYTES,
        }
    }
}
