//! Webhooks: every accepted message arrives at least once, signed, in sequence, whatever dies in between, and whatever
//! other receivers do.

mod bad_input;
mod completions;
mod deliveries;
mod messages;
mod neighbours;
mod outages;
mod sdk;

use std::time::{Duration, Instant};

use onceward_tests::cluster::{Builder, Cluster};

/// How long anything may take that takes no time, on a machine that is busy with something else.
const SOON: Duration = Duration::from_secs(20);

/// A cluster that may deliver to receivers on loopback.
fn cluster() -> Builder {
    let loopback = toml::Value::Array(vec!["127.0.0.0/8".into()]);
    Cluster::builder().set("webhooks.allow_private", loopback)
}

/// The waits between the tries of a delivery.
fn schedule(waits_ms: &[i64]) -> toml::Value {
    toml::Value::Array(waits_ms.iter().map(|wait_ms| (*wait_ms).into()).collect())
}

/// Whether the tests that gain by it are to take minutes.
fn long() -> bool {
    std::env::var_os("ONCEWARD_LONG").is_some_and(|value| value != "0")
}

/// Waits until something holds.
async fn until(what: &str, at_most: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + at_most;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {at_most:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
