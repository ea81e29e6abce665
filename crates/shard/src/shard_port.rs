//! A data shard's replica on this node as the dispatcher of its deliveries sees it: whether it leads, the applied rows,
//! which endpoints were touched, and the way of outcomes into the log.

use std::{collections::HashSet, sync::Arc};

use onceward_consensus::{Leadership, Moved};
use onceward_core::{
    cluster::ShardId,
    codec::keys::{self, Kind},
    command::{Command, Reply},
    rows::ReadRows,
    time::ShardTime,
    webhooks::{AppId, EndpointId, EndpointKey, RecordOutcomes},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tracing::error;

use crate::{outcome::Outcome, shard_actor::Shard};

/// Touched endpoints that are kept apart until the dispatcher asks; with more of them it looks at all, which then costs
/// less than it takes to name them.
const TOUCHED_MAX: usize = 4_096;

/// A handle to one shard; good until the node stops.
#[derive(Clone)]
pub struct ShardPort(Arc<Shard>);

/// Endpoints for which something came due, or that were changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    Endpoints(HashSet<EndpointKey>),
    /// It may have been any.
    All,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It is applied, and so many outcomes in it changed something.
    Applied { changed: u32 },
    /// It definitely isn't, now or later.
    NotApplied,
    /// It may be. A report may be repeated.
    Unknown,
}

impl ShardPort {
    pub(crate) fn new(shard: Arc<Shard>) -> ShardPort {
        ShardPort(shard)
    }

    pub fn shard(&self) -> ShardId {
        self.0.id
    }

    /// Whether this node leads, with its own first entry of the term applied, and in which term.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.0.group.leadership()
    }

    /// Whether this node leads, and a majority said so within the lease.
    pub fn leads(&self) -> bool {
        self.0.leads().is_ok()
    }

    /// Waits until the rows here cover everything acknowledged before the call. False: this node cannot tell, or doesn't
    /// lead.
    pub async fn catch_up(&self) -> bool {
        self.0.group.read_index().await.is_ok()
    }

    /// The shard clock; `None` while it doesn't live.
    pub fn now(&self) -> Option<ShardTime> {
        self.0.group.shard_clock()
    }

    /// Reads the applied rows, under their lock: be short.
    pub fn read<R>(&self, read: impl FnOnce(&dyn ReadRows) -> R) -> R {
        self.0.group.read(read)
    }

    /// Waits until some endpoints were touched since this was asked last. For one listener.
    pub async fn touched(&self) -> Touched {
        self.0.touches.next().await
    }

    pub async fn record(&self, report: RecordOutcomes, deadline: Instant) -> Recorded {
        match self.0.execute(Command::RecordOutcomes(report), deadline).await {
            Outcome::Applied(Reply::RecordOutcomes { recorded }) => Recorded::Applied { changed: recorded },
            Outcome::Applied(other) => {
                error!(shard = %self.0.id, reply = ?other, "a report was answered by another command's reply");
                Recorded::Unknown
            }
            Outcome::NotApplied(_) => Recorded::NotApplied,
            Outcome::Unknown => Recorded::Unknown,
        }
    }
}

/// The endpoints that were touched and not asked for yet.
#[derive(Debug, Default)]
pub(crate) struct Touches {
    gathered: Mutex<Touched>,
    came: Notify,
}

impl Default for Touched {
    fn default() -> Touched {
        Touched::Endpoints(HashSet::new())
    }
}

impl Touches {
    /// Called behind each entry, so it is short.
    pub(crate) fn note(&self, moved: &Moved) {
        let mut gathered = self.gathered.lock();
        match moved {
            Moved::All => *gathered = Touched::All,
            Moved::Rows(rows) => gathered.add(rows.iter().filter_map(|row| endpoint_of(row))),
        }
        if !gathered.is_empty() {
            self.came.notify_one();
        }
    }

    async fn next(&self) -> Touched {
        loop {
            let gathered = std::mem::take(&mut *self.gathered.lock());
            if !gathered.is_empty() {
                return gathered;
            }
            self.came.notified().await;
        }
    }
}

impl Touched {
    fn is_empty(&self) -> bool {
        matches!(self, Touched::Endpoints(endpoints) if endpoints.is_empty())
    }

    fn add(&mut self, more: impl Iterator<Item = EndpointKey>) {
        let Touched::Endpoints(endpoints) = self else { return };
        endpoints.extend(more);
        if endpoints.len() > TOUCHED_MAX {
            *self = Touched::All;
        }
    }
}

/// The endpoint whose state row this is.
fn endpoint_of(row: &[u8]) -> Option<EndpointKey> {
    if Kind::of(row) != Some(Kind::EndpointState) {
        return None;
    }
    let mut ids = keys::ids(row);
    Some(EndpointKey { app: AppId(ids.next()?), endpoint: EndpointId(ids.next()?) })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt;

    use super::*;

    fn endpoint(number: usize) -> EndpointKey {
        let app = AppId::parse(&format!("app_{:027}", 1)).unwrap();
        EndpointKey { app, endpoint: EndpointId::parse(&format!("ep_{number:027}")).unwrap() }
    }

    fn moved(endpoints: impl Iterator<Item = usize>) -> Moved {
        Moved::Rows(endpoints.map(|number| keys::endpoint_state(endpoint(number))).collect())
    }

    #[test]
    fn touched_endpoints_are_told_once_and_other_rows_are_none() {
        let touches = Touches::default();
        touches.note(&Moved::Rows(vec![keys::record("a", "k"), Bytes::new()]));
        assert_eq!(touches.next().now_or_never(), None);
        touches.note(&moved([1, 2].into_iter()));
        touches.note(&moved([2, 3].into_iter()));
        let expected = Touched::Endpoints([1, 2, 3].map(endpoint).into());
        assert_eq!(touches.next().now_or_never(), Some(expected));
        assert_eq!(touches.next().now_or_never(), None);
    }

    #[test]
    fn more_endpoints_than_are_kept_apart_are_all_of_them_and_so_is_a_new_state() {
        let touches = Touches::default();
        touches.note(&moved(0..TOUCHED_MAX + 1));
        touches.note(&moved(0..1));
        assert_eq!(touches.next().now_or_never(), Some(Touched::All));
        touches.note(&Moved::All);
        assert_eq!(touches.next().now_or_never(), Some(Touched::All));
    }
}
