//! Writing behind, in two steps around a write that needs no lock: the engine may stall a write for long, and whoever
//! applies or reads must not wait for it.

use std::sync::Arc;

use bytes::Bytes;
use onceward_core::cluster::ShardId;
use onceward_core::rows::Table;

use super::overlay::Overlay;
use super::scan::Span;
use super::{ShardState, TABLES};
use crate::keys::{self, StatePrefix};
use crate::{Family, StorageError, Store, WriteSet};

/// Changed rows and the applied position that belongs to them, on their way to the disk. The state reads them here until
/// it is told that they have arrived.
pub struct Flush {
    store: Arc<dyn Store>,
    shard: ShardId,
    generation: u32,
    rows: Arc<Overlay>,
    head: Bytes,
}

impl Flush {
    /// Writes all of it as one set, not synced. It must only be called while the shard's log on disk covers the applied
    /// position; the order of writes keeps it so through a crash.
    pub fn write(&self) -> Result<(), StorageError> {
        let mut set = WriteSet::new();
        let mut key = keys::state_prefix(self.shard, self.generation).to_vec();
        for table in TABLES {
            for (row_key, value) in self.rows.within(table, Span::ALL) {
                key.truncate(size_of::<StatePrefix>());
                key.extend_from_slice(row_key);
                match value {
                    Some(value) => set.put(Family::of(table), &key, value),
                    None => set.delete(Family::of(table), &key),
                }
            }
        }
        set.put(Family::RaftMeta, keys::state_head(self.shard), &self.head);
        self.store.write(&set)
    }
}

impl ShardState {
    /// Takes what changed since the last flush; `None` when nothing did.
    ///
    /// # Panics
    /// If a flush is under way: one that ended before the next begins is what keeps rows and positions in order.
    pub fn begin_flush(&mut self) -> Option<Flush> {
        assert!(self.flushing.is_none(), "one flush at a time");
        if self.overlay.rows_changed() == 0 && !self.head_changed {
            return None;
        }
        let rows = Arc::new(std::mem::take(&mut self.overlay));
        self.flushing = Some(Arc::clone(&rows));
        self.head_changed = false;
        Some(Flush {
            store: Arc::clone(&self.store),
            shard: self.shard,
            generation: self.head.generation,
            rows,
            head: self.head.encode(),
        })
    }

    /// What was begun is written.
    ///
    /// # Panics
    /// If it is not what was begun.
    pub fn end_flush(&mut self, flush: Flush) {
        let begun = self.flushing.as_ref().is_some_and(|rows| Arc::ptr_eq(rows, &flush.rows));
        assert!(begun, "the flush that ends is the one that was begun");
        let recent = self.recent.get_mut();
        for (row_key, value) in flush.rows.within(Table::State, Span::ALL) {
            match value {
                Some(value) => recent.put(row_key, Bytes::copy_from_slice(value)),
                None => recent.remove(row_key),
            }
        }
        self.flushing = None;
    }

    /// Both steps, for who has the state to himself.
    pub fn flush(&mut self) -> Result<(), StorageError> {
        let Some(flush) = self.begin_flush() else { return Ok(()) };
        flush.write()?;
        self.end_flush(flush);
        Ok(())
    }
}
