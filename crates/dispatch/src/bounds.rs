//! Every bound and every default time of dispatch, with its reason.

use std::time::Duration;

/// What a connection may buffer of an answer's head: room for any usual one, times the attempts in flight.
pub const HEAD_BYTES_MAX: usize = 32 << 10;

/// Lookups of names under way on this node. Each takes a thread for as long as the system's resolver likes, of the 512
/// that the runtime has for such work.
pub const LOOKUPS_MAX: usize = 128;
/// Names that are being looked up or wait for it; more fail at once. As many as there are attempts in flight by default.
pub const LOOKUPS_WAITING_MAX: usize = 1_024;
/// How long a URL's name may take to resolve when an endpoint is made; then it is judged at the first attempt.
pub const CREATE_LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Addresses of a name that are tried one after another.
pub const DIAL_ADDRESSES_MAX: usize = 3;
/// How long an address may take to accept while there is another to try.
pub const DIAL_NEXT_AFTER: Duration = Duration::from_secs(3);

/// Idle connections to one receiver, as many as one endpoint has attempts in flight.
pub const IDLE_PER_ORIGIN_MAX: usize = LANE_HEALTHY_MAX;
/// Idle connections of the node.
pub const IDLE_MAX: usize = 512;
/// Below the 5 s after which common servers close an idle connection: so that few requests meet a connection's end.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// So that a receiver that moved to another address is followed.
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(60);

/// Attempts in flight to an endpoint that answers.
pub const LANE_HEALTHY_MAX: usize = 32;
/// To one that isn't known to answer. It grows by one with every success.
pub const LANE_NEW_MAX: usize = 4;
/// To one that fails: enough to see that it answers again.
pub const LANE_FAILING_MAX: usize = 2;
/// Failures in a row after which an endpoint that did answer counts as failing. One alone is no reason to hold up a busy
/// endpoint.
pub const FAILING_STREAK: u32 = 3;
/// An endpoint may have this part of the attempts that the node has free, so that many slow ones leave room for others.
pub const LANE_SHARE: usize = 4;
/// What an endpoint may have in any case.
pub const LANE_ASSURED: usize = 2;
/// Deliveries that are read ahead of their attempts.
pub const READ_AHEAD: usize = 64;
/// Attempts to an endpoint that are in flight, or whose outcome isn't recorded.
pub const LANE_UNRECORDED_MAX: usize = 288;
/// An endpoint with nothing to do is forgotten after this time: longer than the window of its rate limit, and long enough
/// for most to be known when they get their next message.
pub const LANE_IDLE: Duration = Duration::from_secs(60);
/// How long an endpoint rests when an attempt ended without saying how.
pub const LANE_PAUSE: Duration = Duration::from_secs(1);
/// Endpoints whose pending deliveries are found in one go, before others get their turn.
pub const LOAD_PAGE: usize = 256;

/// Payloads of the attempts in flight: room for as many of usual size as there are attempts, and a bound on what large ones
/// take. The last to start may go beyond it.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;
/// Bytes of the outcomes of one command, so that an entry has room for others beside it.
pub const OUTCOME_BYTES_MAX: usize = 512 << 10;
/// Outcomes of a shard that wait to be recorded, before no further attempt is started.
pub const UNRECORDED_MAX: usize = 2_048;
/// Their bytes.
pub const UNRECORDED_BYTES_MAX: usize = 4 << 20;
/// How long a report may take before it is unknown what became of it.
pub const RECORD_TIMEOUT: Duration = Duration::from_secs(5);
/// First pause before a report is repeated, and the longest; it doubles.
pub const RECORD_AGAIN_MIN: Duration = Duration::from_millis(20);
pub const RECORD_AGAIN_MAX: Duration = Duration::from_secs(1);

/// How long a new leader may take to learn that its rows are up to date, before it asks again.
pub const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a leader that couldn't read its shard, or its clock, tries again.
pub const AGAIN: Duration = Duration::from_millis(100);
/// How long attempts that run may take to end when the node stops.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest a receiver's `Retry-After` is followed.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Retries are spread by so many percent in both directions, so that a receiver that comes back isn't run over.
pub const JITTER_PERCENT: u64 = 20;
