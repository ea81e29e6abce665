//! Every bound and every default time of dispatch, with its reason.

use std::time::Duration;

/// What a connection may buffer of an answer's head: room for any usual one, times the attempts in flight.
pub const HEAD_BYTES_MAX: usize = 32 << 10;

/// Lookups of names under way on this node. Each takes a thread for as long as the system's resolver likes.
pub const LOOKUPS_MAX: usize = 32;
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
