//! Every bound of webhooks, with the reason for the number. Where Svix's published API has one, it is the same.

/// A uid, an event id or the name of an event type. An application's uid is an account's name, which has 255 at most.
pub const NAME_BYTES_MAX: usize = 256;
pub const APP_UID_BYTES_MAX: usize = 255;
/// What people call an application.
pub const TITLE_BYTES_MAX: usize = 256;
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;
/// Longer ones are refused by common servers and proxies, too.
pub const URL_BYTES_MAX: usize = 2_048;
/// Entries of a metadata object, and their keys and values together.
pub const METADATA_MAX: usize = 64;
pub const METADATA_BYTES_MAX: usize = 4 << 10;
/// Headers that an endpoint adds to its deliveries, and their names and values together.
pub const HEADERS_MAX: usize = 32;
pub const HEADER_BYTES_MAX: usize = 4 << 10;

/// Endpoints of an application: a message is fanned out to all of them in one entry.
pub const ENDPOINTS_MAX: u32 = 100;
/// Operational endpoints: each is copied into every shard.
pub const OPERATIONAL_ENDPOINTS_MAX: u32 = 10;
/// Event types that an endpoint may name, and channels.
pub const FILTER_MAX: usize = 100;
pub const ENDPOINT_CHANNELS_MAX: usize = 10;
pub const MESSAGE_CHANNELS_MAX: usize = 5;
/// A channel or a tag.
pub const LABEL_BYTES_MAX: usize = 128;
pub const TAGS_MAX: usize = 8;

/// A payload as it came in.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// Messages that a completion may take with it, and their payloads together.
pub const COMPLETION_MESSAGES_MAX: usize = 16;
pub const COMPLETION_PAYLOAD_BYTES_MAX: usize = 512 << 10;

/// Of a key, before base64. Standard Webhooks asks for 24 to 64, Svix takes up to 75.
pub const SECRET_BYTES_MIN: usize = 24;
pub const SECRET_BYTES_MAX: usize = 75;
/// What is made when none is given.
pub const SECRET_BYTES_DEFAULT: usize = 24;
/// Former secrets that are still signed with: every delivery carries a signature for each.
pub const FORMER_SECRETS_MAX: usize = 4;
pub const GRACE_SECONDS_DEFAULT: u64 = 86_400;
pub const GRACE_SECONDS_MAX: u64 = 7 * 86_400;

/// What is kept of a receiver's answer.
pub const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Outcomes of one command.
pub const OUTCOMES_MAX: usize = 256;

pub const EVENT_TYPES_MAX: u64 = 1_000;
/// The schemas of an event type, as JSON.
pub const SCHEMAS_BYTES_MAX: usize = 64 << 10;

/// How long a repeated `idempotency-key` is known: as long as a completed record by default.
pub const REQUEST_TTL_US: u64 = 86_400_000_000;
/// A message, its payload and its attempts.
pub const RETENTION_DAYS_DEFAULT: u64 = 90;

pub const PAGE_MAX: u32 = 250;
pub const PAGE_DEFAULT: u32 = 50;
/// Rows that a page may read: with a filter that matches few, pages come short instead of slow.
pub const PAGE_ROWS_READ_MAX: usize = 2_000;
/// Payload and answer bytes in one page, so that it fits into a frame between nodes: pages come short then.
pub const PAGE_BYTES_MAX: usize = 1 << 20;
