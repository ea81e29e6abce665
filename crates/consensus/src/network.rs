//! How openraft reaches the other members: its requests as frames over the node's links.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt;
use onceward_core::cluster::{MemberId, ShardId};
use onceward_storage::{SnapshotFile, SnapshotPieces, StorageError};
use onceward_transport::{CallError, Lane, Links, Request};
use openraft::{
    OptionalSend, RPCTypes, RaftNetworkFactory, RaftNetworkV2,
    errors::{ErrorSource, NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable},
    network::{Backoff, RPCOption},
    raft::SnapshotResponse,
};

use crate::{
    aside::aside,
    config::Timing,
    encoding::Malformed,
    frames::{self, Method, SnapshotPiece, Transfer},
    state::RaftSnapshot,
    types::{
        AppendRequest, AppendResponse, TransferRequest, TransferResponse, Types, Vote, VoteRequest, VoteResponse,
        member,
    },
};

/// First pause after a member couldn't be reached; it doubles. Links need as long to connect again.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest pause: how late a member that came back may get its first entries.
const BACKOFF_MAX: Duration = Duration::from_millis(400);

/// Tells one attempt to send a snapshot from the next.
static TRANSFERS: AtomicU64 = AtomicU64::new(1);

/// Makes the network of one group.
#[derive(Clone)]
pub(crate) struct Network {
    shard: ShardId,
    me: MemberId,
    links: Arc<dyn Links>,
    timing: Timing,
}

impl Network {
    pub(crate) fn new(shard: ShardId, me: MemberId, links: Arc<dyn Links>, timing: Timing) -> Network {
        Network { shard, me, links, timing }
    }

    fn member(&self, target: u64, appends: Appends) -> Member {
        Member { network: self.clone(), target: member(target), appends }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Member;

    async fn new_client(&mut self, target: u64, _: &openraft::EmptyNode) -> Member {
        self.member(target, Appends::Entries)
    }

    async fn new_heartbeat_client(&mut self, target: u64, _: &openraft::EmptyNode) -> Member {
        self.member(target, Appends::Heartbeats)
    }
}

/// What a client's append requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Appends {
    /// May be large, and may take as long as a disk does.
    Entries,
    /// Small, never behind entries, and worthless when late.
    Heartbeats,
}

/// One member of the group, seen from this one.
pub(crate) struct Member {
    network: Network,
    target: MemberId,
    appends: Appends,
}

impl Member {
    async fn call(&self, lane: Lane, method: Method, body: Bytes, timeout: Duration) -> Result<Bytes, CallError> {
        let request = Request { lane, method: method as u8, shard: self.network.shard, body, timeout };
        self.network.links.call(self.target.node, request).await
    }

    /// What openraft is to make of a failed call. `Unreachable` makes it pause before the next one, the others don't:
    /// a lost connection or a late answer has cost time already, and the next call may well succeed.
    fn failed(&self, action: RPCTypes, timeout: Duration, error: CallError) -> RPCError<Types> {
        match error {
            CallError::NotSent(_) | CallError::Refused { .. } => RPCError::Unreachable(Unreachable::new(&error)),
            CallError::Lost(_) => RPCError::Network(NetworkError::new(&error)),
            CallError::TimedOut => RPCError::Timeout(Timeout {
                action,
                id: self.network.me.to_u64(),
                target: self.target.to_u64(),
                timeout,
            }),
        }
    }

    async fn vote_by(
        &self,
        method: Method,
        rpc: VoteRequest,
        timeout: Duration,
    ) -> Result<VoteResponse, RPCError<Types>> {
        let body = frames::vote_request(self.target, &rpc);
        let answer = self.call(Lane::Control, method, body, timeout).await;
        let answer = answer.map_err(|error| self.failed(RPCTypes::Vote, timeout, error))?;
        frames::read_vote_response(answer).map_err(unreadable)
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        file: SnapshotFile,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let transfer = Transfer { vote, number: TRANSFERS.fetch_add(1, Ordering::Relaxed), bytes: file.bytes() };
        let timeout = self.network.timing.snapshot_chunk;
        let failed = |timeout, error| self.failed(RPCTypes::InstallSnapshot, timeout, error);
        let mut offset = 0;
        let mut pieces = file.pieces();
        while let (rest, Some(bytes)) = next_piece(pieces).await? {
            pieces = rest;
            let length = bytes.len() as u64;
            let body = frames::snapshot_piece(self.target, &SnapshotPiece { transfer, offset, bytes });
            let answer = self.call(Lane::Snapshot, Method::SnapshotPiece, body, timeout).await;
            answer.map_err(|error| failed(timeout, error))?;
            offset += length;
        }
        let timeout = self.network.timing.snapshot_install;
        let body = frames::snapshot_install(self.target, &transfer);
        let answer = self.call(Lane::Snapshot, Method::SnapshotInstall, body, timeout).await;
        let answer = answer.map_err(|error| failed(timeout, error))?;
        let vote = frames::read_snapshot_response(answer).map_err(unreadable)?;
        Ok(SnapshotResponse::new(vote))
    }
}

/// An answer that makes no sense: not a reason to send the request again at once.
fn unreadable(error: Malformed) -> RPCError<Types> {
    RPCError::Unreachable(Unreachable::new(&error))
}

/// Reads the next piece aside, for it comes from disk.
async fn next_piece(mut pieces: SnapshotPieces) -> Result<(SnapshotPieces, Option<Bytes>), StreamingError<Types>> {
    let read = aside(move || {
        let piece = pieces.next().transpose()?;
        Ok::<_, StorageError>((pieces, piece))
    });
    let failed = |detail: String| {
        StreamingError::StorageError(openraft::StorageError::read_snapshot(None, ErrorSource::from_string(detail)))
    };
    match read.await {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

impl RaftNetworkV2<Types> for Member {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendRequest,
        option: RPCOption,
    ) -> Result<AppendResponse, RPCError<Types>> {
        let (lane, timeout) = match self.appends {
            // The option's limit is the heartbeat interval, too short for a member that is catching up.
            Appends::Entries => (Lane::Data, self.network.timing.append),
            Appends::Heartbeats => (Lane::Control, option.hard_ttl()),
        };
        let body = frames::append_request(self.target, &rpc);
        let answer = self.call(lane, Method::Append, body, timeout).await;
        let answer = answer.map_err(|error| self.failed(RPCTypes::AppendEntries, timeout, error))?;
        match frames::read_append_response(answer).map_err(unreadable)? {
            // openraft takes it for granted that nothing conflicts with the beginning of the log.
            AppendResponse::Conflict if rpc.prev_log_id.is_none() => Err(unreadable(Malformed("append response"))),
            response => Ok(response),
        }
    }

    async fn vote(&mut self, rpc: VoteRequest, option: RPCOption) -> Result<VoteResponse, RPCError<Types>> {
        self.vote_by(Method::Vote, rpc, option.hard_ttl()).await
    }

    async fn pre_vote(&mut self, rpc: VoteRequest, option: RPCOption) -> Result<VoteResponse, RPCError<Types>> {
        self.vote_by(Method::PreVote, rpc, option.hard_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: RaftSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let send = self.send_snapshot(vote, snapshot.snapshot);
        futures::select_biased! {
            closed = Box::pin(cancel.fuse()) => Err(StreamingError::Closed(closed)),
            sent = Box::pin(send.fuse()) => sent,
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferRequest,
        option: RPCOption,
    ) -> Result<TransferResponse, RPCError<Types>> {
        let timeout = option.hard_ttl();
        let body = frames::transfer_request(self.target, &rpc);
        let answer = self.call(Lane::Control, Method::Transfer, body, timeout).await;
        let answer = answer.map_err(|error| self.failed(RPCTypes::TransferLeader, timeout, error))?;
        frames::read_transfer_response(answer).map_err(unreadable)
    }

    fn backoff(&self) -> Option<Backoff> {
        let pauses = std::iter::successors(Some(BACKOFF_MIN), |pause| Some((*pause * 2).min(BACKOFF_MAX)));
        Some(Backoff::new(pauses))
    }
}
