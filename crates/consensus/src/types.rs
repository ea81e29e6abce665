//! openraft's type parameters, filled in for shards, and what an entry carries.

use std::fmt;

use bytes::Bytes;
use onceward_core::{
    cluster::MemberId,
    codec,
    command::{EntryBatch, Reply},
    time::ShardTime,
};
use openraft::{EntryPayload, OptionalSend, raft::responder::Responder, vote::RaftLeaderId};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// One Raft group's types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

impl openraft::RaftTypeConfig for Types {
    type D = Batch;
    /// One reply per command of the batch; none for entries without one.
    type R = Vec<Reply>;
    /// [`MemberId::to_u64`]: a replaced node is another member.
    type NodeId = u64;
    type Node = openraft::EmptyNode;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = Vote;
    type Payload = Payload;
    type Entry = Entry;
    type Responder<T>
        = ReplyPort<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type AsyncRuntime = openraft_rt_tokio::TokioRuntime;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// At most one leader a term, as in the paper.
pub(crate) type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;
type CommittedLeaderId = <LeaderId as RaftLeaderId>::Committed;
pub(crate) type Vote = openraft::impls::Vote<LeaderId>;
pub(crate) type LogId = openraft::impls::LogId<CommittedLeaderId>;
pub(crate) type Payload = EntryPayload<Batch, u64, openraft::EmptyNode>;
pub(crate) type Entry = openraft::impls::Entry<CommittedLeaderId, Payload>;
pub(crate) type Members = openraft::Membership<u64, openraft::EmptyNode>;
pub(crate) type StoredMembers = openraft::StoredMembership<CommittedLeaderId, u64, openraft::EmptyNode>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<CommittedLeaderId, u64, openraft::EmptyNode>;

pub(crate) type AppendRequest = openraft::raft::AppendEntriesRequest<Types>;
pub(crate) type AppendResponse = openraft::raft::AppendEntriesResponse<Types>;
pub(crate) type VoteRequest = openraft::raft::VoteRequest<Types>;
pub(crate) type VoteResponse = openraft::raft::VoteResponse<Types>;
pub(crate) type TransferRequest = openraft::raft::TransferLeaderRequest<Types>;
pub(crate) type TransferResponse = openraft::raft::TransferLeaderResponse<Types>;

/// A log id from its two numbers.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    // The member is not part of a log id: a term has one leader.
    LogId::new(LeaderId::new(term, 0).to_committed(), index)
}

/// The two numbers of a log id.
pub(crate) fn term_and_index(log_id: &LogId) -> (u64, u64) {
    (log_id.leader_id.term, log_id.index)
}

pub(crate) fn member(id: u64) -> MemberId {
    MemberId::from_u64(id)
}

/// An [`EntryBatch`], encoded once where it is proposed and decoded once by each member that applies it. The stamp
/// stands beside it, so that reading the clock decodes nothing.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) stamp: ShardTime,
    pub(crate) encoded: Bytes,
}

impl Batch {
    pub(crate) fn new(batch: &EntryBatch) -> Batch {
        Batch { stamp: batch.stamp, encoded: codec::encode(batch) }
    }

    pub(crate) fn decode(&self) -> Result<EntryBatch, codec::DecodeError> {
        codec::decode(&self.encoded)
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.encoded.len(), self.stamp.0)
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Where openraft puts the outcome of a proposal. Dropped without one, the outcome stays unknown.
pub(crate) struct ReplyPort<T>(oneshot::Sender<T>);

impl<T> ReplyPort<T> {
    pub(crate) fn new() -> (ReplyPort<T>, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (ReplyPort(sender), receiver)
    }
}

impl<T: OptionalSend + 'static> Responder<Types, T> for ReplyPort<T> {
    fn on_complete(self, result: T) {
        // Nobody waits any longer: its deadline is over.
        let _ = self.0.send(result);
    }
}
