//! Deliveries to real receivers on this machine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kit;
mod sending;
