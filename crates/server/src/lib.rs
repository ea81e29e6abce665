//! The server: the HTTP API, the settings, the metrics and the command line around a node.
//!
//! In go requests and signals; out come answers and, at the end, an exit code. Limits and keys are decided in `core`
//! and replicated by `shard`; this crate checks, translates and bounds.
//!
//! - [`cli`], [`process`], [`logging`]: the binary `onceward`
//! - [`settings`]: file, environment and flags, checked
//! - [`http`]: connections, and what all requests have in common
//! - [`api`]: the operations, their bodies and errors
//! - [`auth`]: tokens and rights
//! - [`service`], [`node`], [`dispatch`]: the boundary to the node, the node behind it, and the deliveries of its shards

pub mod api;
pub mod auth;
pub mod bounds;
pub mod cli;
pub mod dispatch;
mod dispatch_metrics;
#[cfg(feature = "faults")]
pub mod failpoints;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod node;
mod node_metrics;
pub mod process;
mod replace;
pub mod service;
pub mod settings;
