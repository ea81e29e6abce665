//! One shard's state on one node: rows under a generation, and an overlay of changed rows that is written behind.
//!
//! In go the changes of `apply` and the applied position, opaque here; out come rows, and on flush one atomic write
//! set that holds both. The log is the truth: what the overlay loses in a crash, consensus applies again from the log.
//! A whole new state, from a snapshot, is loaded beside the old one as another generation and becomes the state by
//! changing one row, see [`Install`].

mod flush;
mod frozen;
mod head;
mod install;
mod overlay;
mod recent;
mod scan;

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use onceward_core::cluster::ShardId;
use onceward_core::rows::{ReadRows, Row, Rows, RowsError, Table};

pub use self::flush::Flush;
pub use self::frozen::FrozenState;
use self::head::Head;
pub use self::install::{Install, LoadedState};
use self::overlay::Overlay;
use self::recent::Recent;
use self::scan::{Order, Span, successor};
use crate::keys;
use crate::{Family, StorageError, Store, WriteSet};

pub(crate) const TABLES: [Table; 2] = [Table::State, Table::Expiry];

/// A shard's state. One thread at a time: consensus holds it in a mutex.
pub struct ShardState {
    store: Arc<dyn Store>,
    shard: ShardId,
    head: Head,
    /// Whether `head` differs from its row on disk.
    head_changed: bool,
    /// The generation that the next install takes; none is ever taken twice while the process lives.
    generation_next: u32,
    overlay: Overlay,
    /// What changed before that and is on its way to the disk.
    flushing: Option<Arc<Overlay>>,
    recent: RefCell<Recent>,
    /// No row of the Expiry table has a lesser key; `None`: it has no row. Rows leave that table at its front, and what
    /// the engine keeps of each until a compaction would be walked over again by every look at the first row.
    expiry_floor: RefCell<Option<Bytes>>,
}

impl ShardState {
    /// Opens a shard's state, empty if there is none, and removes what an interrupted install left.
    pub fn open(store: Arc<dyn Store>, shard: ShardId) -> Result<Self, StorageError> {
        let head = match store.get(Family::RaftMeta, &keys::state_head(shard))? {
            Some(row) => Head::decode(shard, row)?,
            None => Head::default(),
        };
        remove_other_generations(&*store, shard, head.generation)?;
        Ok(ShardState {
            store,
            shard,
            generation_next: head.generation + 1,
            head,
            head_changed: false,
            overlay: Overlay::default(),
            flushing: None,
            recent: RefCell::default(),
            expiry_floor: RefCell::new(Some(Bytes::new())),
        })
    }

    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// The store that the rows lie in, for [`ShardState::freeze`].
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// The applied position as [`ShardState::set_applied`] was given it: what all rows seen here add up to.
    pub fn applied(&self) -> Option<&[u8]> {
        self.head.applied.as_deref()
    }

    /// States the applied position that belongs to the rows as they are now. It reaches the disk with them.
    ///
    /// # Panics
    /// If it is empty, which on disk means that nothing is applied.
    pub fn set_applied(&mut self, applied: Bytes) {
        assert!(!applied.is_empty(), "an applied position is not empty");
        self.head.applied = Some(applied);
        self.head_changed = true;
    }

    /// Rows changed since the last flush began.
    pub fn dirty_rows(&self) -> usize {
        self.overlay.rows_changed()
    }

    /// Keys and values of the rows changed since the last flush began.
    pub fn dirty_bytes(&self) -> usize {
        self.overlay.bytes()
    }

    /// Changes rows, and undoes it.
    #[cfg(feature = "faults")]
    pub fn try_out<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        let overlay = self.overlay.clone();
        let outcome = change(self);
        self.overlay = overlay;
        outcome
    }

    fn key(&self, row_key: &[u8]) -> Vec<u8> {
        let prefix = keys::state_prefix(self.shard, self.head.generation);
        let mut key = Vec::with_capacity(prefix.len() + row_key.len());
        key.extend_from_slice(&prefix);
        key.extend_from_slice(row_key);
        key
    }
}

impl ReadRows for ShardState {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        if let Some(changed) = self.overlay.get(table, key) {
            return Ok(changed.cloned());
        }
        if let Some(changed) = self.flushing.as_ref().and_then(|flushing| flushing.get(table, key)) {
            return Ok(changed.cloned());
        }
        if table == Table::State
            && let Some(value) = self.recent.borrow_mut().get(key)
        {
            return Ok(Some(value));
        }
        let stored = self.store.get(Family::of(table), &self.key(key)).map_err(|error| rows_error(table, &error))?;
        if table == Table::State
            && let Some(value) = &stored
        {
            self.recent.borrow_mut().put(key, value.clone());
        }
        Ok(stored)
    }

    fn scan(&self, table: Table, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Row>, RowsError> {
        let to = keys::prefix_end(prefix);
        let to = to.as_deref();
        let scanned = match after {
            Some(after) if after >= prefix => {
                let from = successor(after);
                self.merge(table, Span { from: &from, to }, Order::Ascending, limit)
            }
            _ if table == Table::Expiry && prefix.is_empty() => self.scan_expiry_front(limit),
            _ => self.merge(table, Span { from: prefix, to }, Order::Ascending, limit),
        };
        scanned.map_err(|error| rows_error(table, &error))
    }

    fn scan_back(
        &self,
        table: Table,
        prefix: &[u8],
        before: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Row>, RowsError> {
        let end = keys::prefix_end(prefix);
        // Without an end of either, up to the end of the table.
        let to = [end.as_deref(), before].into_iter().flatten().min();
        self.merge(table, Span { from: prefix, to }, Order::Descending, limit)
            .map_err(|error| rows_error(table, &error))
    }
}

impl Rows for ShardState {
    fn put(&mut self, table: Table, key: Bytes, value: Bytes) {
        if table == Table::Expiry {
            let floor = self.expiry_floor.get_mut();
            if floor.as_ref().is_none_or(|floor| key < *floor) {
                *floor = Some(key.clone());
            }
        }
        self.overlay.set(table, key, Some(value));
    }

    fn delete(&mut self, table: Table, key: Bytes) {
        self.overlay.set(table, key, None);
    }
}

/// Deletes the rows of every generation but one, in one write set, if there are any.
fn remove_other_generations(store: &dyn Store, shard: ShardId, keep: u32) -> Result<(), StorageError> {
    let mut leftovers = WriteSet::new();
    for family in TABLES.map(Family::of) {
        for range in [keys::state_before(shard, keep), keys::state_after(shard, keep)] {
            // Range deletions cost later reads a little, so they are only written where there is something.
            if !store.scan(family, &range.from, &range.to, 1, usize::MAX)?.is_empty() {
                leftovers.delete_range(family, range.from, range.to);
            }
        }
    }
    if leftovers.is_empty() {
        return Ok(());
    }
    tracing::info!(%shard, "removing rows that an interrupted snapshot install left");
    store.write(&leftovers)
}

fn rows_error(table: Table, error: &StorageError) -> RowsError {
    RowsError::Storage { table, detail: error.to_string() }
}
