//! Feed: a shard as its dispatcher sees it. The shard's side implements it; tests do over rows in memory.

use std::collections::HashSet;

use futures::{future::BoxFuture, stream::BoxStream};
use onceward_core::{
    cluster::ShardId,
    rows::{ReadRows, RowsError},
    time::ShardTime,
    webhooks::{EndpointKey, RecordOutcomes},
};
use tokio::time::Instant;

/// One data shard's replica on this node.
pub trait Feed: Send + Sync + 'static {
    fn shard(&self) -> ShardId;

    /// The term in which this node leads, or `None` while it doesn't: as it is, and at every change.
    fn terms(&self) -> BoxStream<'static, Option<u64>>;

    /// Waits until the rows here cover everything acknowledged before the call. False: this node can't tell.
    fn catch_up(&self) -> BoxFuture<'_, bool>;

    /// Whether this node leads, and a majority said so within the lease.
    fn leads(&self) -> bool;

    /// The shard clock; `None` while it doesn't live.
    fn now(&self) -> Option<ShardTime>;

    /// Waits until some endpoints got something due, or were changed, since this was asked last. It has one listener.
    fn touched(&self) -> BoxFuture<'_, Touched>;

    /// Reads the applied rows. It is called often, and short each time.
    fn read(&self, read: &mut dyn FnMut(&dyn ReadRows) -> Result<(), RowsError>) -> Result<(), RowsError>;

    /// Gets a report into the log. A report may be repeated.
    fn record(&self, report: RecordOutcomes, deadline: Instant) -> BoxFuture<'_, Recorded>;
}

/// Endpoints that something came due for, or that were changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    Endpoints(HashSet<EndpointKey>),
    /// It may have been any.
    All,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    Applied,
    /// It definitely isn't applied, now or later.
    NotApplied,
    Unknown,
}

/// What `read` makes of the rows.
pub(crate) fn read<T>(
    feed: &dyn Feed,
    read: impl FnOnce(&dyn ReadRows) -> Result<T, RowsError>,
) -> Result<T, RowsError> {
    let (mut read, mut found) = (Some(read), None);
    feed.read(&mut |rows| {
        found = read.take().map(|read| read(rows)).transpose()?;
        Ok(())
    })?;
    Ok(found.expect("a feed that reads without an error has called what it was given"))
}
