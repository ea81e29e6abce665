//! Deliveries to real receivers on this machine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod dispatching;
mod isolation;
mod kit;
mod sending;
