//! The domain of Onceward as pure code: what a command does to a shard's rows, and what it answers.
//!
//! In goes a command, the stamp of its log entry and the shard's rows; out come changed rows and a reply.
//! Nothing here knows of HTTP, Raft, RocksDB, tokio, a clock or randomness: whatever varies is an argument.

pub mod cluster;
pub mod codec;
pub mod command;
mod expire;
pub mod faults;
pub mod idempotency;
pub mod limits;
pub mod machine;
pub mod query;
pub mod rows;
pub mod seams;
pub mod system;
pub mod time;
pub mod webhooks;
