//! Webhook delivery: signed POSTs to receivers, by the leader of each shard, at least once.
//!
//! A shard is seen through a `Feed`: in come its applied rows and who has something due, out go the
//! outcomes as commands. Nothing here knows of Raft, RocksDB or Onceward's own HTTP API.

pub mod bounds;
mod connection;
mod failure;
mod guard;
mod pool;
mod resolve;
mod sender;
mod signature;

pub use failure::Failure;
pub use guard::{Cidr, Guard, Refused, UrlError};
pub use resolve::{Resolve, SystemResolver};
pub use sender::{Answered, Post, Sender};
pub use signature::sign;
