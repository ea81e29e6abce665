//! The test kit: real `onceward` processes, an HTTP client that tells "not sent" from "unknown", load that keeps count of
//! what was admitted, links between nodes that can be made to fail, and what a test wants to know about a running cluster.
//!
//! It knows the product from outside: config files, command line, HTTP, signals; and, from `core`, where a bucket
//! lives. The black-box tests beside it and `onceward-bench` are built on it. Whatever goes wrong in it panics.

pub mod client;
pub mod cluster;
pub mod config;
pub mod draw;
pub mod failover;
pub mod failpoints;
mod layout;
pub mod links;
pub mod load;
pub mod node;
pub mod ports;
pub mod process_stats;

pub mod receiver;
pub mod webhooks;
