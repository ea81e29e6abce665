//! Webhook delivery: signed POSTs to receivers, by the leader of each shard, at least once.
//!
//! A shard is seen through a [`Feed`]: in come its applied rows and who has something due, out go outcomes as commands.
//! Nothing here knows of Raft, RocksDB or Onceward's own HTTP API.
//!
//! - [`dispatch`]: a node's dispatchers, started again when they die
//! - [`dispatcher`]: one actor a shard, with its [`lanes`]: one [`lane`] for each endpoint with something to do
//! - [`attempt`]: one attempt, from rows to outcome; [`verdict`], what becomes of the delivery; [`unrecorded`] and [`recording`], reports
//! - [`permits`], [`throttle`]: how much at once, and how fast
//! - [`sender`]: the POST, over [`connection`]s from the [`pool`], to addresses that the [`guard`] lets through
//! - [`signature`]: Standard Webhooks

mod attempt;
pub mod bounds;
mod config;
mod connection;
mod dispatch;
mod dispatcher;
mod failure;
mod feed;
mod guard;
mod lane;
mod lanes;
mod permits;
mod pool;
mod recording;
mod resolve;
mod sender;
mod signature;
mod stats;
mod throttle;
mod unrecorded;
mod verdict;

pub use config::DispatchConfig;
pub use dispatch::{Dispatch, StartError};
pub use failure::Failure;
pub use feed::{Feed, Recorded, Touched};
pub use guard::{Cidr, Guard, Refused, UrlError};
pub use resolve::{Resolve, SystemResolver};
pub use sender::{Answered, Exchange, Post, Sender};
pub use signature::sign;
pub use stats::{DispatchStats, LAG_BOUNDS_MS};
