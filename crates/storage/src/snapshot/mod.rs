//! Snapshots: one shard's rows and applied position in one file, checked wherever it is read.
//!
//! All numbers are big-endian, every `crc` is a CRC32C (u32) over all bytes of its part before it.
//!
//! ```text
//! header  magic "ONCESNAP" · version u16 · shard u16 · applied length u32 · applied · crc
//! chunk   tag 1 u8 · body length u32 · body · crc                                   (any number of them)
//!   body    rows: table u8 (0 State, 1 Expiry) · key length u32 · value length u32 · key · value
//! footer  tag 2 u8 · rows u64 · hash u128 · crc                                     (the end of the file)
//! ```
//!
//! Rows ascend by table and key. A chunk is closed at the first row that fills [`crate::limits::CHUNK_BYTES`]. The
//! footer's hash is the [`StateHash`], so a snapshot also proves that its rows are those that were frozen. An applied
//! length of 0 says that nothing is applied.

mod dir;
mod file;
mod format;
mod hash;

pub use self::dir::{SnapshotDir, SnapshotReceiver};
pub use self::file::{SnapshotFile, SnapshotPieces};
pub(crate) use self::hash::RowHasher;
pub use self::hash::StateHash;
