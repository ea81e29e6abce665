//! Storage of one node: the engine, the log writer thread, the shards' state tables and their snapshots.
//!
//! In go ordered write sets, rows and received snapshot files; out come rows, durable acknowledgements and snapshot
//! files. Log entries, votes and applied positions are opaque bytes here: this crate knows no Raft and no command.
//! It is the only crate that imports RocksDB, and it does so in one module, [`rocks`].

mod error;
#[cfg(feature = "faults")]
mod failing;
pub mod keys;
pub mod limits;
mod memory;
mod rocks;
mod snapshot;
mod state;
mod store;
mod write_set;
mod writer;

pub use error::StorageError;
#[cfg(feature = "faults")]
pub use failing::{DiskFaults, FailingStore};
pub use memory::MemoryStore;
pub use rocks::{RocksStore, StoreOptions};
pub use snapshot::{SnapshotDir, SnapshotFile, SnapshotPieces, SnapshotReceiver, StateHash};
pub use state::{Flush, FrozenState, Install, LoadedState, ShardState};
pub use store::{Family, FamilyStats, Store, StoreStats, StoreView, Visitor};
pub use write_set::{Op, WriteSet};
pub use writer::{LogWrite, LogWriter, Rounds, WriterStats};
