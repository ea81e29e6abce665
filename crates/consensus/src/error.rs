//! What can go wrong, by what the caller can do about it.

use onceward_core::cluster::MemberId;
use onceward_storage::StorageError;

/// Opening, changing or asking a group failed.
#[derive(Debug, thiserror::Error)]
pub enum ConsensusError {
    /// The configuration contradicts itself.
    #[error("consensus configuration: {0}")]
    Config(String),
    /// Reading or writing failed; the process is to end.
    #[error("storage: {0}")]
    Storage(#[from] StorageError),
    /// Something read back makes no sense; the node must not start from it.
    #[error("{what} is corrupt: {detail}")]
    Corrupt { what: String, detail: String },
    /// Ask the leader instead; nothing was done.
    #[error("this member doesn't lead the shard")]
    NotLeader { hint: Option<MemberId> },
    /// Not now: the reason says what stands in the way. Trying again later is safe.
    #[error("{0}")]
    Unavailable(String),
    /// It took too long; it may still happen, and asking again is safe.
    #[error("timed out: {0}")]
    TimedOut(String),
    /// The group stopped, or met a fatal error that ends the process.
    #[error("the group has stopped: {0}")]
    Stopped(String),
}

/// A batch was not answered with its replies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Refused before it reached the log: definitely not applied.
    #[error("this member doesn't lead the shard")]
    NotLeader { hint: Option<MemberId> },
    /// The shard clock doesn't live, so nothing can be stamped: definitely not applied.
    #[error("the shard clock is not known yet")]
    NoClock,
    /// Larger than an entry may be: definitely not applied.
    #[error("a batch of {bytes} bytes is larger than an entry may be")]
    TooLarge { bytes: usize },
    /// It may have been applied, or may still be.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

/// A linearizable read can't be served here and now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("this member doesn't lead the shard")]
    NotLeader { hint: Option<MemberId> },
    /// No majority confirmed this leader, or the group has stopped.
    #[error("unavailable: {0}")]
    Unavailable(String),
}
