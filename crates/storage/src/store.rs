//! The engine seam: what the crates above need of an ordered, crash-safe store.
//!
//! [`crate::RocksStore`] is the engine; [`crate::MemoryStore`] is a simulated disk that forgets what was not synced.

use bytes::Bytes;
use onceward_core::rows::{Row, Table};

use crate::{StorageError, WriteSet};

/// The key spaces of a node's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Family {
    /// Log entries by shard and index.
    RaftLog = 0,
    /// Small singular rows: votes, positions, each shard's state head, the node's identity and manifest.
    RaftMeta = 1,
    /// Rows of the shards' states, by shard, generation and row key.
    State = 2,
    /// Due times of the shards' states, likewise.
    Expiry = 3,
}

impl Family {
    pub const ALL: [Family; 4] = [Family::RaftLog, Family::RaftMeta, Family::State, Family::Expiry];

    /// Its name on disk.
    pub const fn name(self) -> &'static str {
        match self {
            Family::RaftLog => "raft_log",
            Family::RaftMeta => "raft_meta",
            Family::State => "state",
            Family::Expiry => "expiry",
        }
    }

    /// Where the rows of a table of a shard's state are kept.
    pub const fn of(table: Table) -> Family {
        match table {
            Table::State => Family::State,
            Table::Expiry => Family::Expiry,
        }
    }

    pub const fn index(self) -> usize {
        self as usize
    }
}

/// An ordered store with atomic write sets and an explicit sync.
///
/// Writes become durable in the order in which they were made: after a crash there is a prefix of them, at least up
/// to the last [`Store::sync`] that returned, and never a part of a set. All calls block.
pub trait Store: Send + Sync + 'static {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>, StorageError>;

    /// Rows of `from..to` in key order: at most `limit`, and no further one once `bytes_max` bytes of keys and values
    /// are gathered. A non-empty range yields at least one row.
    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Row>, StorageError>;

    /// Likewise in descending key order, from the greatest key of `from..to`.
    fn scan_back(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Row>, StorageError>;

    /// The row with the greatest key of `from..to`.
    fn last(&self, family: Family, from: &[u8], to: &[u8]) -> Result<Option<Row>, StorageError> {
        Ok(self.scan_back(family, from, to, 1, usize::MAX)?.pop())
    }

    /// Applies a set atomically. It is seen by reads at once and is not yet durable.
    fn write(&self, set: &WriteSet) -> Result<(), StorageError>;

    /// Makes everything written before this call durable. An error is final: what is on disk then is unknown, so
    /// nobody may try again.
    fn sync(&self) -> Result<(), StorageError>;

    /// The store as it is now, whatever is written later. Keep it for minutes at most: old data can't be removed
    /// while it lives.
    fn view(&self) -> Result<Box<dyn StoreView + '_>, StorageError>;

    /// What the disk has left for this process.
    fn free_bytes(&self) -> Result<u64, StorageError> {
        Ok(u64::MAX)
    }

    fn stats(&self) -> StoreStats;
}

/// Takes a key and its value.
pub type Visitor<'v> = dyn FnMut(&[u8], &[u8]) -> Result<(), StorageError> + 'v;

/// A store as it was at one instant.
pub trait StoreView: Send {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>, StorageError>;

    /// Visits the rows of `from..to` in key order, until the first error of `visit`, which is returned.
    fn visit(&self, family: Family, from: &[u8], to: &[u8], visit: &mut Visitor<'_>) -> Result<(), StorageError>;
}

/// Numbers for metrics. Counters start with the process; sizes are the engine's estimates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    pub writes: u64,
    pub syncs: u64,
    /// Keys and values given to [`Store::write`].
    pub bytes_written: u64,
    pub memtable_bytes: u64,
    pub block_cache_bytes: u64,
    /// By [`Family`], in the order of [`Family::ALL`].
    pub families: [FamilyStats; 4],
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FamilyStats {
    /// Live data in table files, without what memtables and the write-ahead log still hold.
    pub live_bytes: u64,
    pub rows_estimate: u64,
}

impl StoreStats {
    pub fn family(&self, family: Family) -> FamilyStats {
        self.families[family.index()]
    }
}
