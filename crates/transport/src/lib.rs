//! Links between the nodes of a cluster: authenticated connections that carry requests and their answers.
//!
//! In goes a [`Request`] for another node, out comes its answer or a [`CallError`] that says whether the request may have
//! been carried out; requests that arrive go to the [`Handler`]. A connection begins with a handshake (`handshake.rs`) in
//! which both sides prove who they are, then carries frames ([`frame`]). Each node dials each other node for its own
//! calls (`dial.rs`) and serves the calls of those who dial it (`listen.rs`); `outbox.rs` is where a call waits for the socket,
//! and where it is decided whether it ever left.
//!
//! This crate must not know what a request means: neither Raft nor limits, only method numbers and bytes.

pub mod frame;
pub mod limits;

mod dial;
mod error;
mod handshake;
mod links;
mod listen;
mod notices;
mod outbox;
mod security;
mod stream;
mod tcp;

pub use error::TransportError;
#[cfg(any(test, fuzzing))]
pub use handshake::fuzzing;
pub use links::{
    CallError, Doorkeeper, Handler, Hello, Inbound, Lane, Links, Network, NodeLinks, PROTOCOL_VERSION, Peer, Refusal,
    RefusalCode, Request,
};
pub use security::{Security, Tls};
pub use tcp::{TcpConfig, TcpLinks, Timing};

#[cfg(test)]
mod golden;
