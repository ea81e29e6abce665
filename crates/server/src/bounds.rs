//! The limits of the HTTP API that nobody needs to set, each with its reason. Those that depend on the deployment are
//! settings.

use std::time::Duration;

use onceward_core::{
    idempotency::bounds::{BODY_BYTES_MAX, HEADER_BYTES_MAX},
    webhooks::bounds::{COMPLETION_MESSAGES_MAX, COMPLETION_PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX},
};

/// The request target's bytes: a policy and a key of 512 bytes, each byte percent-encoded, fit with room to spare.
pub const TARGET_BYTES_MAX: usize = 8 * 1024;

/// Longer ids are cut off by log systems; ids of all common tracing schemes fit.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// What a caller who names no deadline waits at the most, and what `Onceward-Timeout-Ms` may lower.
pub const DEADLINE_MS_MAX: u64 = 2_000;

/// A body that takes longer is a stalled client; the largest body that is taken by default arrives in this time at 210 kB/s.
pub const BODY_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// What is read and dropped of a body over its limit, so that the client, still sending, gets to see the 413.
pub const BODY_DISCARD_BYTES_MAX: usize = 8 << 20;
pub const BODY_DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// A TLS handshake takes two round trips and some milliseconds; who needs longer holds a connection for nothing.
pub const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// hyper's own bounds of a request head, beyond the ones that are settings: only past these is a request refused
/// without a problem body.
pub const HEAD_BYTES_HARD_MAX: usize = 128 * 1024;
pub const HEADERS_HARD_MAX: usize = 512;

/// The body of a call on limits: 16 checks whose keys are 512 bytes, each written as a six-byte escape, take 52 KiB.
pub const LIMITS_BODY_BYTES_MAX: usize = 64 * 1024;

/// The body of a call that writes a policy; with `http.max_body_bytes`, the lesser of the two.
pub const POLICY_BODY_BYTES_MAX: usize = 1 << 20;

/// The body of a `complete`: the largest response that is kept, written as badly as JSON can. Each byte of its text is a
/// six-byte escape; each value of a header is one byte in a list, which takes three more for its quotes and comma. What
/// is left is for the names of fields, the account and the key. Payloads stand in it as they are.
pub const COMPLETE_BODY_BYTES_MAX: usize = 6 * BODY_BYTES_MAX
    + 9 * HEADER_BYTES_MAX
    + 16 * 1024
    + COMPLETION_PAYLOAD_BYTES_MAX
    + COMPLETION_MESSAGES_MAX * MESSAGE_BYTES_BESIDE_MAX;

/// A message but for its payload: type, event id, 5 channels and 8 tags are 2 176 characters, each written as a six-byte
/// escape. What is left is for the names of fields.
const MESSAGE_BYTES_BESIDE_MAX: usize = 14 * 1024;

/// The body of a call that publishes: the largest payload, and an application to be made with it.
pub const MESSAGE_BODY_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 64 * 1024;

/// The body of any other call of webhooks: an endpoint's 100 event types of 256 characters, each written as a six-byte
/// escape, take 153 KiB.
pub const WEBHOOKS_BODY_BYTES_MAX: usize = 256 * 1024;

/// How deep a payload may be: deeper than this, common parsers of JSON give up, and so would its receivers.
pub const PAYLOAD_DEPTH_MAX: usize = 128;

/// A body or an answer up to here isn't counted against `http.max_buffered_bytes`: what arrives together with its head is in memory
/// anyway, bounded by the number of connections.
pub const BODY_BYTES_UNCOUNTED: usize = 64 * 1024;

/// Invalid fields that one answer lists; more say nothing new.
pub const FIELD_ERRORS_MAX: usize = 16;

/// Wrong tokens that one address may present at once before those that are not known of it are refused unheard, and the
/// time in which it earns another try: a service restarted with an old secret stays below it for a while, guessing gets
/// nowhere.
pub const AUTH_FAILURES_BURST: u32 = 64;
pub const AUTH_FAILURE_EARNED_EVERY: Duration = Duration::from_secs(1);
/// Addresses whose failures are remembered, and right tokens by address (about 100 bytes each).
pub const AUTH_ADDRESSES_MAX: usize = 10_000;

/// After the last connection should have been answered: two default deadlines. Whoever waits for the outcome of a key is
/// answered as soon as the node is told to stop.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// Clients turned away come back after this: overload has eased, or a shard has elected a leader.
pub const UNAVAILABLE_RETRY_AFTER_MS: u64 = 1_000;

/// What `onceward replace` waits for an answer: the deadline that the node itself keeps, and as much again.
pub const REPLACE_TIMEOUT: Duration = Duration::from_secs(4);
