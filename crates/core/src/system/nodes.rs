//! The node registry: which data directory is which node.

use serde::{Deserialize, Serialize};

use crate::cluster::NodeEntry;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub entry: NodeEntry,
    pub replace: ReplaceState,
}

/// Where a node stands between losing its disk and voting again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplaceState {
    /// In service.
    No,
    /// Waits for an empty directory to say hello.
    Awaited,
    /// The new directory is in; its shards are being filled.
    Filling,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeReply {
    /// The record as it stands now.
    Recorded(NodeRecord),
    NotFound,
    /// No replacement of this node was asked for, or it came with another incarnation than the one let in.
    NotAwaited(NodeRecord),
}
