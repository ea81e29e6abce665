//! Replacing a shard's whole state by a snapshot: load beside, then flip.
//!
//! The snapshot's rows are written under a new generation, which nothing reads yet. One small write set then makes it
//! the state: the head row, which names generation and applied position, and range deletions of what came before.
//! A crash before that set leaves the old state and rows that nobody reads, removed at the next open; a crash after it
//! leaves the new state. Writes become durable in order, so the set can't outlive the rows that it refers to.

use std::sync::Arc;

use bytes::Bytes;
use onceward_core::cluster::ShardId;

use super::head::Head;
use super::overlay::Overlay;
use super::{ShardState, TABLES};
use crate::keys::{self, StatePrefix};
use crate::limits::INSTALL_SYNC_BYTES;
use crate::snapshot::SnapshotFile;
use crate::{Family, StorageError, Store, WriteSet};

/// An install that may load its rows; the state goes on meanwhile. Dropped half-way it leaves rows that nobody reads.
pub struct Install {
    store: Arc<dyn Store>,
    shard: ShardId,
    generation: u32,
}

/// A generation whose rows are all written, and durable.
pub struct LoadedState {
    shard: ShardId,
    head: Head,
}

impl ShardState {
    /// Begins an install under a generation that was never used.
    pub fn begin_install(&mut self) -> Install {
        let generation = self.generation_next;
        self.generation_next += 1;
        Install { store: Arc::clone(&self.store), shard: self.shard, generation }
    }

    /// Makes a loaded generation the state. The old rows and everything not flushed are gone. The new state is durable
    /// only when the store is synced after this: then whoever is told that a snapshot is installed may forget the log
    /// before it.
    ///
    /// # Panics
    /// If the generation is of another shard, or isn't newer than the present one, or if a flush of the present one is
    /// under way.
    pub fn flip(&mut self, loaded: LoadedState) -> Result<(), StorageError> {
        assert_eq!(loaded.shard, self.shard, "a state is replaced by one of the same shard");
        assert!(loaded.head.generation > self.head.generation, "generations only rise");
        assert!(self.flushing.is_none(), "a flush would bring the old head back");
        let mut set = WriteSet::new();
        set.put(Family::RaftMeta, keys::state_head(self.shard), loaded.head.encode());
        let old = keys::state_before(self.shard, loaded.head.generation);
        for table in TABLES {
            set.delete_range(Family::of(table), old.from, old.to);
        }
        self.store.write(&set)?;
        self.head = loaded.head;
        self.head_changed = false;
        self.overlay = Overlay::default();
        self.recent.get_mut().clear();
        self.expiry_floor.replace(Some(Bytes::new()));
        Ok(())
    }
}

impl Install {
    /// Writes all rows of a snapshot, chunk by chunk, without the state's lock. Syncs now and then, so that the log
    /// writer's own sync never has more than [`INSTALL_SYNC_BYTES`] of it to wait for.
    pub fn load(self, snapshot: &SnapshotFile) -> Result<LoadedState, StorageError> {
        snapshot.expect_shard(self.shard)?;
        let mut key = keys::state_prefix(self.shard, self.generation).to_vec();
        let mut unsynced_bytes = 0;
        let mut set = WriteSet::new();
        for chunk in snapshot.chunks()? {
            set.clear();
            for row in chunk?.rows() {
                let (table, row_key, value) = row?;
                key.truncate(size_of::<StatePrefix>());
                key.extend_from_slice(row_key);
                set.put(Family::of(table), &key, value);
            }
            self.store.write(&set)?;
            unsynced_bytes += set.bytes();
            if unsynced_bytes >= INSTALL_SYNC_BYTES {
                self.store.sync()?;
                unsynced_bytes = 0;
            }
        }
        self.store.sync()?;
        let head = Head { generation: self.generation, applied: snapshot.applied().cloned() };
        Ok(LoadedState { shard: self.shard, head })
    }
}
