//! The state machine of a shard: dispatches a command to its mechanism, keeps the shard clock and its counters.

use crate::{
    cluster::ShardId,
    command::{EntryBatch, Reply},
    rows::{ReadRows, Rows, RowsError},
    time::ShardTime,
};

/// One shard's `apply`. Everything in it is derived from the rows: it is dropped and made anew after a snapshot.
#[derive(Debug)]
pub struct Machine {
    shard: ShardId,
}

impl Machine {
    pub fn new(shard: ShardId) -> Machine {
        Machine { shard }
    }

    /// Applies the commands of one entry in order, at its stamp; one reply each.
    pub fn apply(&mut self, _rows: &mut dyn Rows, _batch: &EntryBatch) -> Result<Vec<Reply>, RowsError> {
        let _ = self.shard;
        unimplemented!()
    }

    /// The stamp that the state has reached.
    pub fn clock(&self, rows: &dyn ReadRows) -> Result<ShardTime, RowsError> {
        clock(rows)
    }

    /// When the first row is due.
    pub fn next_due(&self, rows: &dyn ReadRows) -> Result<Option<ShardTime>, RowsError> {
        next_due(rows)
    }
}

pub(crate) fn clock(_rows: &dyn ReadRows) -> Result<ShardTime, RowsError> {
    unimplemented!()
}

pub(crate) fn next_due(_rows: &dyn ReadRows) -> Result<Option<ShardTime>, RowsError> {
    unimplemented!()
}
