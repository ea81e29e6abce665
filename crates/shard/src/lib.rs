//! A node of the cluster: its shards as actors, and the way of a command to the leader of its shard.
//!
//! In go commands and queries from the HTTP API with a deadline; out come their outcomes, told apart as the contract
//! wants it: applied, definitely not applied, unknown. This crate knows nothing of HTTP or JSON, of openraft or of
//! RocksDB; clocks, randomness, peer links and the store come in through seams.
//!
//! - [`node`]: what the server sees; puts the rest together
//! - [`router`]: finds the leader, forwards in batches, retries what was definitely not applied
//! - [`shard_actor`], [`supervisor`]: one actor a shard; batches commands into log entries, keeps the expiry timer
//! - [`limits`]: checks over several shards, and what answers when a shard can't
//! - [`idempotency`]: keys: what is a read and what an entry, resending; [`waiting`] for another attempt's outcome
//! - [`webhooks`]: where calls and queries of webhooks go, the list of all applications
//! - [`policies`], [`operational`]: what the system shard has and [`copies`] brings to every data shard
//! - [`shard_port`]: a shard as the dispatcher of its deliveries sees it
//! - [`peer_port`]: who may connect, and where calls of other nodes go
//! - [`disk`]: what a node does while its disk is nearly full
//! - [`founding`], [`replacing`], [`identity`]: how a node gets in, once, and back in after losing its disk

mod clock;
mod config;
mod copies;
mod disk;
mod fallback;
#[cfg(feature = "faults")]
mod faulty_clock;
mod forward;
mod founding;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod idempotency;
mod identity;
mod limits;
mod node;
mod operational;
mod outcome;
mod peer_port;
mod pending;
mod policies;
mod replacing;
mod router;
mod shard_actor;
mod shard_port;
mod sources;
mod stats;
mod status;
mod supervisor;
mod waiting;
mod webhooks;
mod wire;

pub use config::{NodeConfig, PeerConfig, Tuning};
#[cfg(feature = "faults")]
pub use faulty_clock::{ClockFaults, FaultyClock};
pub use founding::{FoundError, found};
pub use idempotency::{BeginAnswer, BeginRequest};
pub use limits::{CheckAnswer, CheckError, CheckRequest, Degraded};
pub use node::{Node, StartError};
pub use outcome::ServiceError;
pub use policies::PolicyWrite;
pub use shard_port::{Recorded, ShardPort, Touched};
pub use sources::{OsEntropy, SystemClock};
pub use stats::NodeStats;
pub use status::{ClusterStatus, NodeStatus, Readiness, ShardStatus, StateHashStatus};
pub use webhooks::WebhookCall;
