//! Every bound of this crate, with the reason for its number.

/// Bytes of write sets that one round of the log writer takes: eight of the largest log entries. A longer round would
/// only delay the callbacks of those that came first.
pub const ROUND_BYTES_MAX: usize = 8 << 20;

/// Bytes of rows after which a snapshot chunk is closed. One chunk is one frame between nodes and one write at the
/// receiver.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Key and value of one row together. With [`CHUNK_BYTES`] it keeps a chunk, which may overshoot by one row, below
/// the 8 MiB of a peer frame; a greater length in a snapshot file is damage.
pub const ROW_BYTES_MAX: usize = 4 << 20;

/// Applied position (log id and membership) of a shard; a greater length in a snapshot file is damage.
pub const APPLIED_BYTES_MAX: usize = 1 << 20;

/// Bytes of an installing snapshot between syncs. The log writer's sync waits for whatever lies unsynced in the one
/// write-ahead log, so this bounds how long an install can hold up acknowledgements.
pub const INSTALL_SYNC_BYTES: usize = 8 << 20;

/// Rows that one merged scan fetches from the engine at a time, whatever limit it was given.
pub const SCAN_PAGE_ROWS: usize = 1024;

/// Bytes of one page of a merged scan.
pub const SCAN_PAGE_BYTES: usize = 1 << 20;

/// Rows that each shard keeps after they were read or flushed, with what the memory for a row costs beside its bytes.
/// With nine shards 18 MiB, for some 70 000 warm buckets of a node; they cost a tenth of what the engine takes for one.
pub const RECENT_BYTES_MAX: usize = 2 << 20;

/// A larger row would drive out too many that are asked for far more often: stored responses take up to 264 KiB.
pub const RECENT_VALUE_BYTES_MAX: usize = 4 << 10;

/// Two allocations and a slot of the table, which is at most half empty.
pub const RECENT_ROW_BYTES: usize = 150;

/// Block cache of the engine when nothing else is configured, index and filter blocks included.
pub const BLOCK_CACHE_BYTES_DEFAULT: usize = 32 << 20;

/// All memtables of a node when nothing else is configured: with the block cache well below 150 MB resident.
pub const MEMTABLE_BYTES_DEFAULT: usize = 32 << 20;

/// Write-ahead logs on disk, after which the oldest memtables are flushed: bounds the replay at start to a second or so.
pub const WAL_BYTES_MAX: u64 = 128 << 20;

/// Table files held open; each costs some kilobytes of memory beside its cached blocks.
pub const OPEN_FILES_MAX: i32 = 256;
