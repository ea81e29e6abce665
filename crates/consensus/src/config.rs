//! What a group is told when it is opened: identity, places, times and bounds; and how openraft is set up from it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use onceward_core::cluster::{MemberId, ShardId};
use openraft::{Config, SnapshotPolicy};

use crate::error::ConsensusError;

/// Entries between two snapshots when bytes don't ask for one earlier. Of a large state there are more, see `maintenance`.
pub const SNAPSHOT_EVERY_ENTRIES: u64 = 50_000;
/// Log bytes between two snapshots: what a restart may have to read again, and what a lagging member may be sent.
pub const SNAPSHOT_EVERY_BYTES: u64 = 64 << 20;
/// Entries kept behind a snapshot for members that lag a little. Fewer would expose openraft issue 2116, in which an
/// apply that is still queued meets a purge and panics.
pub const KEEP_ENTRIES: u64 = 10_000;
/// Log bytes kept behind a snapshot, however few entries that is.
pub const KEEP_BYTES: u64 = 64 << 20;
/// Rows in the overlay at which they are written behind.
const FLUSH_ROWS: usize = 4096;
/// Bytes in the overlay at which they are written behind.
const FLUSH_BYTES: usize = 2 << 20;
/// Dirty rows are written behind this long after the first of them at the latest.
const FLUSH_AFTER: Duration = Duration::from_millis(50);

/// Entries of one append request at the most; bytes bound it as well, see `log::READ_BYTES_MAX`.
const APPEND_ENTRIES_MAX: u64 = 512;
/// Entries that openraft may merge into one write.
const WRITE_ENTRIES_MAX: u64 = 512;
/// Purges below this many entries aren't worth a write.
const PURGE_BATCH: u64 = 1024;
/// openraft's queues for one group. Admission is bounded far below, in the shard.
const QUEUE: u64 = 4096;

/// The times of a group's protocol. All members should agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// A leader's heartbeat when nothing else goes to a member.
    pub heartbeat: Duration,
    /// A member that heard no leader for `election_max` plus something between both campaigns.
    pub election_min: Duration,
    pub election_max: Duration,
    /// An append that takes longer is given up and sent again.
    pub append: Duration,
    /// One chunk of a snapshot, and by openraft's own account the whole of it: at least 10 s.
    pub snapshot_chunk: Duration,
    /// Installing a received snapshot, which writes all of a shard's rows.
    pub snapshot_install: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            heartbeat: Duration::from_millis(150),
            election_min: Duration::from_millis(400),
            election_max: Duration::from_millis(700),
            append: Duration::from_secs(2),
            snapshot_chunk: Duration::from_secs(10),
            snapshot_install: Duration::from_secs(120),
        }
    }
}

/// One group on one node.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    pub shard: ShardId,
    pub me: MemberId,
    /// Snapshots of all groups of the node, and what is being received; file names carry the shard.
    pub snapshot_dir: PathBuf,
    pub timing: Timing,
    /// Entries between two snapshots.
    pub snapshot_every_entries: u64,
    /// Log bytes between two snapshots.
    pub snapshot_every_bytes: u64,
    /// Entries kept behind a snapshot.
    pub keep_entries: u64,
    /// Log bytes kept behind a snapshot; where this is the tighter bound, it wins.
    pub keep_bytes: u64,
    /// Bounds of the overlay of rows not yet written.
    pub flush_rows: usize,
    pub flush_bytes: usize,
    pub flush_after: Duration,
}

impl GroupConfig {
    /// The defaults, which suit production.
    pub fn new(shard: ShardId, me: MemberId, snapshot_dir: PathBuf) -> GroupConfig {
        GroupConfig {
            shard,
            me,
            snapshot_dir,
            timing: Timing::default(),
            snapshot_every_entries: SNAPSHOT_EVERY_ENTRIES,
            snapshot_every_bytes: SNAPSHOT_EVERY_BYTES,
            keep_entries: KEEP_ENTRIES,
            keep_bytes: KEEP_BYTES,
            flush_rows: FLUSH_ROWS,
            flush_bytes: FLUSH_BYTES,
            flush_after: FLUSH_AFTER,
        }
    }

    /// openraft's configuration. Its defaults suit examples; each line that differs says why.
    pub(crate) fn raft(&self) -> Result<Arc<Config>, ConsensusError> {
        let timing = &self.timing;
        let config = Config {
            cluster_name: format!("shard {}", self.shard),
            heartbeat_interval: millis(timing.heartbeat),
            // A member that acknowledged an append this recently needs no heartbeat; plus the interval and a tick it
            // has to stay below the election timeout.
            heartbeat_min_interval: Some(millis(timing.heartbeat) * 2 / 3),
            election_timeout_min: millis(timing.election_min),
            election_timeout_max: millis(timing.election_max),
            install_snapshot_timeout: millis(timing.snapshot_chunk),
            max_payload_entries: APPEND_ENTRIES_MAX,
            max_append_entries: Some(WRITE_ENTRIES_MAX),
            // Asked for by `maintenance`, which knows how large entries and snapshots are.
            snapshot_policy: SnapshotPolicy::Never,
            // Only tells when a learner has caught up; `replace_member` has its own, stricter rule.
            replication_lag_threshold: self.snapshot_every_entries,
            max_in_snapshot_log_to_keep: self.keep_entries,
            purge_batch_size: PURGE_BATCH,
            api_channel_size: Some(QUEUE),
            notification_channel_size: Some(QUEUE),
            // A member that was cut off, or restarted with an old log, must not depose a leader that works.
            enable_pre_vote: Some(true),
            // A restarted leader's state may be older than what it answered; an election makes it catch up first.
            enable_leader_restore: Some(false),
            ..Config::default()
        };
        config.validate().map(Arc::new).map_err(|error| ConsensusError::Config(error.to_string()))
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}
