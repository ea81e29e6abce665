//! A shard's state as it was at one applied position, while the shard goes on: what is hashed and snapshot.

use std::sync::Arc;

use bytes::Bytes;
use onceward_core::cluster::ShardId;
use onceward_core::rows::Table;

use super::head::Head;
use super::{ShardState, TABLES};
use crate::keys::{self, StatePrefix};
use crate::snapshot::{RowHasher, StateHash};
use crate::{Family, StorageError, Store, StoreView};

/// A consistent view of one shard's rows and applied position. It borrows the store and not the state, so that the
/// state's lock is free while the view is read.
pub struct FrozenState<'s> {
    shard: ShardId,
    head: Head,
    view: Box<dyn StoreView + 's>,
}

impl ShardState {
    /// Takes a view of what is flushed. `store` is [`ShardState::store`], held by the caller for as long as the view
    /// lives, so that the state's own lock is free while the view is read.
    ///
    /// # Panics
    /// If it is another store.
    pub fn freeze<'s>(&self, store: &'s Arc<dyn Store>) -> Result<FrozenState<'s>, StorageError> {
        assert!(Arc::ptr_eq(store, &self.store), "a state is frozen in the store that it lies in");
        let view = store.view()?;
        // Read from the view, so that rows and position can't be of different instants.
        let head = match view.get(Family::RaftMeta, &keys::state_head(self.shard))? {
            Some(row) => Head::decode(self.shard, row)?,
            None => Head::default(),
        };
        Ok(FrozenState { shard: self.shard, head, view })
    }
}

impl FrozenState<'_> {
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// The applied position of these rows.
    pub fn applied(&self) -> Option<&Bytes> {
        self.head.applied.as_ref()
    }

    /// The hash of all rows: equal on every node that applied the same entries, whatever its generation.
    pub fn hash(&self) -> Result<StateHash, StorageError> {
        let mut hasher = RowHasher::new();
        self.visit(|table, key, value| {
            hasher.row(table, key, value);
            Ok(())
        })?;
        Ok(hasher.finish())
    }

    /// Visits all rows, the State table first, each in key order.
    pub(crate) fn visit(
        &self,
        mut visit: impl FnMut(Table, &[u8], &[u8]) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let range = keys::state_generation(self.shard, self.head.generation);
        for table in TABLES {
            self.view.visit(Family::of(table), &range.from, &range.to, &mut |key, value| {
                visit(table, &key[size_of::<StatePrefix>()..], value)
            })?;
        }
        Ok(())
    }
}
