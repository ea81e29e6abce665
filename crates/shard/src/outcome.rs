//! Outcome classes: what may be said of a command, and the one place where a command passes from "certainly not
//! applied" to "may be applied".

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use onceward_core::{
    cluster::NodeId,
    faults::{self, Fault},
};

/// What became of a command or query.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    /// Committed, synced on a majority and applied.
    Applied(T),
    /// Definitely not applied, now or later.
    NotApplied(NotApplied),
    /// Handed to the log of some leader; it may or may not apply.
    Unknown,
}

/// Why a command was definitely not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotApplied {
    /// The node asked doesn't lead the shard; it believes that `hint` does.
    NotLeader { hint: Option<NodeId> },
    /// No leader with a quorum is known.
    NoQuorum,
    /// A bounded queue is full.
    Overloaded,
    /// The deadline passed while the command was still queued.
    DeadlinePassed,
    /// It grows, and the disk of the shard's leader is nearly full.
    DiskLow,
}

/// A call that did not get an answer, as the HTTP contract tells it apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceError {
    /// 503: definitely not applied.
    Unavailable { reason: String, retry_after_ms: u64 },
    /// 504: it may or may not have been applied.
    Unknown,
}

/// A shard without a leader usually has one again after an election.
const RETRY_AFTER_ELECTION_MS: u64 = 1_000;
/// A full queue drains within a few rounds; a second spreads the clients that come back.
const RETRY_AFTER_OVERLOAD_MS: u64 = 1_000;
/// Somebody has to make room.
const RETRY_AFTER_DISK_LOW_MS: u64 = 10_000;

impl From<NotApplied> for ServiceError {
    fn from(why: NotApplied) -> Self {
        let (reason, retry_after_ms) = match why {
            NotApplied::NotLeader { .. } | NotApplied::NoQuorum => {
                ("the shard has no leader with a quorum", RETRY_AFTER_ELECTION_MS)
            }
            NotApplied::Overloaded => ("the node is overloaded", RETRY_AFTER_OVERLOAD_MS),
            NotApplied::DeadlinePassed => {
                ("the deadline passed before the command was taken up", RETRY_AFTER_OVERLOAD_MS)
            }
            NotApplied::DiskLow => {
                ("the disk of the shard's leader is nearly full; deletions are still taken", RETRY_AFTER_DISK_LOW_MS)
            }
        };
        ServiceError::Unavailable { reason: reason.to_owned(), retry_after_ms }
    }
}

impl<T> Outcome<T> {
    /// The outcome as the API answers it.
    pub(crate) fn into_result(self) -> Result<T, ServiceError> {
        match self {
            Outcome::Applied(value) => Ok(value),
            Outcome::NotApplied(why) => Err(why.into()),
            Outcome::Unknown => Err(ServiceError::Unknown),
        }
    }
}

const QUEUED: u8 = 0;
const HANDED_OVER: u8 = 1;
const ABANDONED: u8 = 2;

/// Decides the race between a deadline and the hand-over: whoever moves it away from `queued` wins, once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ticket(Arc<AtomicU8>);

impl Ticket {
    /// The command is about to be handed to a log, or to a peer that may do so. False: the caller gave up before, the
    /// command must be dropped.
    pub(crate) fn hand_over(&self) -> bool {
        self.leave_queue(HANDED_OVER)
    }

    /// The caller gives up. True: the command will not be handed over, which makes it a definite no.
    pub(crate) fn abandon(&self) -> bool {
        self.leave_queue(ABANDONED) || faults::active(Fault::RefuseAfterHandOver)
    }

    fn leave_queue(&self, to: u8) -> bool {
        self.0.compare_exchange(QUEUED, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_loses_against_the_hand_over_is_unknown() {
        let ticket = Ticket::default();
        assert!(ticket.hand_over());
        assert!(!ticket.abandon());
    }

    #[test]
    fn an_abandoned_command_is_never_handed_over() {
        let ticket = Ticket::default();
        assert!(ticket.abandon());
        assert!(!ticket.hand_over());
    }
}
