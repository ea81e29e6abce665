//! The seam between those who call other nodes and whatever carries the calls: TCP in a cluster, memory in a simulation.
//!
//! Only the vocabulary: who a peer is, what a request and its outcome are, who handles and who admits. No socket.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use onceward_core::cluster::{Generation, NodeId, ShardId};
use serde::{Deserialize, Serialize};

use crate::error::TransportError;

/// Version of everything on the wire: handshake, frames and the bodies that other crates put into them. Nodes of
/// different versions refuse each other.
pub const PROTOCOL_VERSION: u16 = 2;

/// What a node says about itself when a connection begins. Both sides send theirs; the handshake authenticates it.
///
/// Serialised by position: the order of the fields is the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u16,
    /// `None` while the node stands by and belongs to no cluster yet.
    pub cluster_id: Option<u128>,
    pub node: NodeId,
    pub generation: Generation,
    /// Of the node's data directory.
    pub incarnation: u128,
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Authenticated, and admitted by the [`Doorkeeper`].
    pub hello: Hello,
    /// Of its end of the connection.
    pub address: SocketAddr,
}

/// Which connection to a peer carries a request. No lane waits behind another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[repr(u8)]
pub enum Lane {
    /// Log entries, forwarded commands, reads.
    Data = 1,
    /// Heartbeats and votes: small, and never behind data. Bodies up to
    /// [`CONTROL_BODY_BYTES_MAX`](crate::limits::CONTROL_BODY_BYTES_MAX).
    Control = 2,
    /// Snapshot chunks. Dialled by the first call, closed when idle.
    Snapshot = 3,
}

impl Lane {
    pub const ALL: [Lane; 3] = [Lane::Data, Lane::Control, Lane::Snapshot];
}

impl From<Lane> for u8 {
    fn from(lane: Lane) -> u8 {
        lane as u8
    }
}

impl TryFrom<u8> for Lane {
    type Error = &'static str;

    fn try_from(number: u8) -> Result<Lane, Self::Error> {
        Lane::ALL.into_iter().find(|lane| *lane as u8 == number).ok_or("no lane has this number")
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lane::Data => "data",
            Lane::Control => "control",
            Lane::Snapshot => "snapshot",
        })
    }
}

/// A call to another node.
#[derive(Debug, Clone)]
pub struct Request {
    pub lane: Lane,
    /// Chosen by the caller's crate; the transport only carries it.
    pub method: u8,
    pub shard: ShardId,
    /// At most [`BODY_BYTES_MAX`](crate::limits::BODY_BYTES_MAX), less on [`Lane::Control`].
    pub body: Bytes,
    /// From the call to its answer, at most [`CALL_TIMEOUT_MAX`](crate::limits::CALL_TIMEOUT_MAX): more is cut to that.
    pub timeout: Duration,
}

/// A call from another node.
#[derive(Debug, Clone)]
pub struct Inbound {
    pub from: Peer,
    pub lane: Lane,
    pub method: u8,
    pub shard: ShardId,
    pub body: Bytes,
    /// When the caller stops waiting: its timeout, counted from the arrival here.
    pub deadline: tokio::time::Instant,
}

/// Why a call has no answer. The first two are a definite no, the others leave it unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Not one byte of it was given to the socket: the peer never sees it.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The peer's transport or [`Handler`] refused it: it wasn't carried out.
    #[error("refused ({code}): {message}")]
    Refused { code: RefusalCode, message: String },
    /// Sent, and then the connection or the peer's handler was gone: it may have been carried out.
    #[error("lost: {0}")]
    Lost(String),
    /// Sent, and not answered in time: it may have been carried out, or may yet be.
    #[error("timed out")]
    TimedOut,
}

impl CallError {
    /// Whether the request was certainly not carried out and never will be.
    pub fn is_definite(&self) -> bool {
        matches!(self, CallError::NotSent(_) | CallError::Refused { .. })
    }
}

/// A definite no to a request: nothing was done and nothing will be. Outcomes that aren't that belong into an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: RefusalCode,
    /// For a log; cut to [`REFUSAL_TEXT_BYTES_MAX`](crate::limits::REFUSAL_TEXT_BYTES_MAX).
    pub message: String,
}

impl Refusal {
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into() }
    }
}

/// What the caller can do about a [`Refusal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefusalCode {
    /// Too much is being handled already: try again later.
    Overloaded = 1,
    /// Not now on this node: the shard's group isn't started, or is stopping. Try another node, or later.
    Unavailable = 2,
    /// It was meant for another member than the one that got it: look up who is there now.
    WrongMember = 3,
    /// The method or the body can't be understood: a defect, trying again won't help.
    Invalid = 4,
}

impl RefusalCode {
    const ALL: [RefusalCode; 4] =
        [RefusalCode::Overloaded, RefusalCode::Unavailable, RefusalCode::WrongMember, RefusalCode::Invalid];

    pub(crate) fn from_u8(number: u8) -> Option<RefusalCode> {
        RefusalCode::ALL.into_iter().find(|code| *code as u8 == number)
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RefusalCode::Overloaded => "overloaded",
            RefusalCode::Unavailable => "unavailable",
            RefusalCode::WrongMember => "wrong member",
            RefusalCode::Invalid => "invalid",
        })
    }
}

/// What carries calls to other nodes.
pub trait Links: Send + Sync + 'static {
    /// Calls a node. Dropping the future gives the call up: what was already sent may still be carried out.
    fn call(&self, to: NodeId, request: Request) -> BoxFuture<'static, Result<Bytes, CallError>>;

    /// Whether a call on [`Lane::Data`] and one on [`Lane::Control`] would now be sent.
    fn connected(&self, to: NodeId) -> bool;
}

/// The links of one node, for that node: whom it talks to, and whom no longer.
pub trait NodeLinks: Links {
    /// Who answered the connection on which calls to this node are sent now.
    fn peer_hello(&self, node: NodeId) -> Option<Hello>;

    /// Why this node refused to talk to us when we last dialled it; `None` once it does, or never did.
    fn last_refusal(&self, node: NodeId) -> Option<String>;

    /// Closes all connections with a node; what comes after goes through the [`Doorkeeper`] again.
    fn drop_connections_of(&self, node: NodeId);

    /// Stops listening and dialling, hands the answers that are ready to their connections, and closes every one.
    /// Calls under way end as lost or not sent.
    fn stop(&self) -> BoxFuture<'_, ()>;
}

/// Where a node's links come from.
pub trait Network: Send + Sync + 'static {
    /// Begins to listen, and to dial every peer.
    fn open(
        &self,
        doorkeeper: Arc<dyn Doorkeeper>,
        handler: Arc<dyn Handler>,
    ) -> BoxFuture<'_, Result<Arc<dyn NodeLinks>, TransportError>>;
}

/// Answers the calls of other nodes. Calls of one connection are handled concurrently, in no particular order.
pub trait Handler: Send + Sync + 'static {
    /// The future is dropped at [`Inbound::deadline`], when nobody waits for it any longer: what must not stop half-way
    /// belongs into a task of its own.
    fn handle(&self, request: Inbound) -> BoxFuture<'static, Result<Bytes, Refusal>>;
}

/// Knows who this node is and decides who may connect: cluster, incarnation, generation, standing by.
///
/// Asked in every handshake, so a changed mind shows at the next attempt, at most a second later for a peer that was
/// refused; [`NodeLinks::drop_connections_of`] also asks again about those admitted.
/// Whether the two nodes speak the same version and dialled whom they meant is settled before.
pub trait Doorkeeper: Send + Sync + 'static {
    /// What this node says about itself. Its `node` never changes while the process lives.
    fn hello(&self) -> Hello;

    /// Whether to talk to an authenticated peer. The text of a refusal is told to the peer and logged by both sides.
    fn admit(&self, peer: &Hello) -> Result<(), String>;
}
