//! What can go wrong in storage, by what the caller can do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Every error but [`StorageError::Snapshot`] is fatal to the process: nothing here is retried or skipped.
///
/// It is `Clone` because one failed write is told to everyone whose data was in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// Another process has the directory: stop it, or name another directory.
    #[error(
        "the data directory {} is in use by another process: stop that one, or configure another data directory",
        dir.display()
    )]
    Locked { dir: PathBuf },
    /// What was read isn't what was written. The detail names the file where the engine knows it.
    #[error(
        "corrupt data in {place}: {detail}. The node doesn't go on with damaged data: check the disk, then bring \
         the node back with an empty data directory through `onceward replace`"
    )]
    Corrupt { place: String, detail: String },
    /// The disk, the file system or the engine failed.
    #[error("{place}: {detail}")]
    Failed { place: String, detail: String },
    /// The log writer writes nothing any more, because it was stopped or an earlier write failed.
    #[error("the log writer has stopped: {reason}")]
    Stopped { reason: String },
    /// A snapshot file is truncated, corrupt, of another shard or of an unknown version. Drop it and get another.
    #[error("snapshot {}: {detail}", path.display())]
    Snapshot { path: PathBuf, detail: String },
}

impl StorageError {
    /// An operation of the file system that failed, with the path it was about.
    pub(crate) fn io(path: &Path, action: &str, error: &io::Error) -> Self {
        StorageError::Failed { place: path.display().to_string(), detail: format!("{action}: {error}") }
    }
}
