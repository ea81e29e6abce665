//! What Onceward promises, shown from outside on real processes: every test starts a cluster of its own, one after the
//! other, and is named after what it shows.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod clocks;
mod disks;
mod failure_modes;
mod idempotency;
mod limits;
mod membership;
mod multi_checks;
mod outages;
mod payments;
mod policies;
mod released;
mod snapshots;
mod webhooks;

use onceward_tests::client::Item;
use serde_json::{Value, json};

/// A limit that does not refill while a test runs, and that says so when it cannot be asked.
fn fixed(burst: u64) -> Value {
    json!({ "rate": "1/h", "burst": burst, "on_unavailable": "deny", "timeout_ms": 2000 })
}

/// As [`fixed`], for what must not run out.
fn plenty() -> Value {
    fixed(1_000_000_000)
}

fn item<'a>(policy: &'a str, key: &'a str, cost: u64) -> Item<'a> {
    Item { policy, key, cost }
}
