//! Raft groups: a replicated log of entry batches per shard, and the state that comes of applying it.
//!
//! In come batches to propose, Raft frames from peers and questions about leadership; out come replies of applied
//! batches, frames to peers through [`Links`](onceward_transport::Links), and writes to the node's one log writer.
//! This is the only crate that imports openraft, and nothing of openraft shows in its API. It knows neither what the
//! commands mean (that is `core`'s `Machine`) nor who asked for them.

mod applied;
mod aside;
mod clock;
mod config;
mod encoding;
mod error;
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod group;
mod incoming;
mod leadership;
mod log;
mod maintenance;
mod membership;
mod network;
mod state;
#[cfg(test)]
mod tests;
mod types;

pub use aside::aside;
pub use config::{GroupConfig, KEEP_BYTES, KEEP_ENTRIES, SNAPSHOT_EVERY_BYTES, SNAPSHOT_EVERY_ENTRIES, Timing};
pub use error::{ConsensusError, ProposeError, ReadError};
pub use frames::METHODS;
pub use group::{Group, GroupStatus, StateHash};
pub use leadership::Leadership;
pub use state::{Moved, OnMoved};
