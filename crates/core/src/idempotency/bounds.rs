//! Every bound of idempotency keys, with the reason for the number. Those that the HTTP contract names stand in it.

/// An account: what one length byte in a row key tells.
pub const ACCOUNT_BYTES_MAX: usize = 255;
/// A key, unquoted.
pub const KEY_BYTES_MAX: usize = 255;
/// The caller's hash of its request: twice a SHA-512 in hexadecimal would not be a hash any more.
pub const FINGERPRINT_BYTES_MAX: usize = 128;
/// An attempt_id, as long as a request_id.
pub const ATTEMPT_ID_BYTES_MAX: usize = 64;

pub const LEASE_MS_MIN: u64 = 100;
pub const LEASE_MS_MAX: u64 = 3_600_000;
pub const LEASE_MS_DEFAULT: u64 = 30_000;

pub const TTL_MS_MIN: u64 = 1_000;
pub const TTL_MS_MAX: u64 = 365 * 86_400_000;
pub const TTL_MS_DEFAULT: u64 = 86_400_000;

/// How long a `begin` may wait for another attempt's outcome.
pub const WAIT_MS_MAX: u64 = 30_000;

/// Tokens are JSON numbers that every client reads exactly (RFC 8259, section 6). A shard restored from a backup
/// will have to go on from a greater one than it ever gave out: the bits from 40 on, which it never reaches by counting,
/// are left for that.
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// A stored response's body, decoded.
pub const BODY_BYTES_MAX: usize = 256 << 10;
/// Names of headers in a stored response.
pub const HEADERS_MAX: usize = 32;
/// Names and values of its headers together. An empty value counts as one byte, so that this bounds the values' number,
/// too: each takes room in the entry and in the row.
pub const HEADER_BYTES_MAX: usize = 8 << 10;
pub const STATUS_MIN: u16 = 100;
pub const STATUS_MAX: u16 = 599;

/// Records of one page of a list.
pub const PAGE_MAX: u32 = 250;
pub const PAGE_DEFAULT: u32 = 50;
/// Rows that a page may read: with a filter that matches few, pages come short instead of slow.
pub const PAGE_ROWS_READ_MAX: usize = 2_000;
