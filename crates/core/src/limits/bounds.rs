//! Every bound of the rate limits, with the reason for the number.

/// A policy name: what fits a path segment, a metric label and one length byte in a row key.
pub const POLICY_NAME_BYTES_MAX: usize = 63;
/// A bucket's key, an exempt key or an override's key: longer ones belong hashed by the caller.
pub const KEY_BYTES_MAX: usize = 512;
/// A request_id.
pub const REQUEST_ID_BYTES_MAX: usize = 64;
/// Checks of one request: they are decided in one piece.
pub const CHECKS_MAX: usize = 16;

/// The longest window. With it and [`BURST_MAX`] a level in token·µs has 85 bits, and 128 can't overflow.
pub const WINDOW_US_MAX: u64 = 365 * 86_400_000_000;
/// The fastest rate, 10^9 tokens a second, in tokens per ms window: amount ≤ this · window in µs.
pub const TOKENS_PER_US_MAX: u64 = 1_000;
/// Capacity, and limit of a sliding window.
pub const BURST_MAX: u64 = 1_000_000_000_000;

/// How long a check waits for a shard before `on_unavailable` answers.
pub const TIMEOUT_MS_MIN: u32 = 10;
pub const TIMEOUT_MS_MAX: u32 = 2_000;
pub const TIMEOUT_MS_DEFAULT: u32 = 250;

/// A policy is copied to every shard and kept decoded in memory: long lists belong into policies of their own.
pub const EXEMPT_MAX: usize = 1_000;
pub const OVERRIDES_MAX: usize = 1_000;
/// Encoded specification; four of them, a chain, are still one row of a sensible size.
pub const SPEC_BYTES_MAX: usize = 256 * 1024;

/// Of a wrong text, what an error quotes: enough to find it by.
pub const QUOTED_CHARS_MAX: usize = 64;

/// Changes of a policy that a data shard tells apart; older ones count as one, at the worse of their terms.
pub const CHAIN_LINKS_MAX: usize = 4;
/// Grants of one bucket that are outstanding at once: checks over several shards that are under way on it. At the bound
/// the one that ends first is closed as spent, which costs admits; each takes some 50 bytes of the bucket's row.
pub const GRANTS_MAX: usize = 256;

/// How long an admitted request_id is answered alike and may be refunded.
pub const ADMITTED_ID_US: u64 = 60_000_000;
/// How long an ended hold, or an abort that came before its hold, is remembered: far longer than a command is on its way.
pub const TOMBSTONE_US: u64 = 60_000_000;
/// Aborted attempts that a hold remembers; each is a request that ran into its deadline within [`TOMBSTONE_US`].
pub const ABORTED_ATTEMPTS_MAX: usize = 8;
/// How long a full bucket's row stays: a bucket in use isn't made and removed at every turn.
pub const FULL_BUCKET_SLACK_US: u64 = 60_000_000;
/// How often a bucket that cannot fill (its key is denied) is looked at again.
pub const FROZEN_BUCKET_RECHECK_US: u64 = 3_600_000_000;
