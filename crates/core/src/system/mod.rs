//! The system shard: policies as they are written, the node registry. Every node follows it.

mod nodes;
mod policies;

pub(crate) use nodes::nodes;
pub use nodes::{NodeRecord, NodeReply, ReplaceState};
pub use policies::{POLICIES_BYTES_MAX, POLICIES_MAX, PolicyReply};
pub(crate) use policies::{policies, policy, policy_changes};
use serde::{Deserialize, Serialize};

use crate::{
    cluster::{Generation, Manifest, NodeEntry, NodeId},
    limits::{PolicyName, PolicySpec},
    rows::{Rows, RowsError},
};

/// A change of the system shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SystemCommand {
    PutPolicy {
        name: PolicyName,
        spec: PolicySpec,
    },
    DeletePolicy {
        name: PolicyName,
    },
    /// Drops the tombstones of policies deleted at or before `through`: every data shard has seen them.
    ForgetDeletedPolicies {
        through: u64,
    },
    /// Writes the founding manifest into the registry; repeating it changes nothing.
    RecordManifest {
        manifest: Manifest,
    },
    /// An operator says that this node's disk is lost: its next, empty directory may come in.
    BeginReplace {
        node: NodeId,
    },
    /// The empty directory with this incarnation becomes the node's next generation.
    AdmitReplacement {
        entry: NodeEntry,
    },
    /// The replacement votes in every shard that its predecessor voted in.
    FinishReplace {
        node: NodeId,
        generation: Generation,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SystemReply {
    Policy(PolicyReply),
    Node(NodeReply),
    Done,
}

impl SystemCommand {
    pub(crate) fn apply(&self, rows: &mut dyn Rows) -> Result<SystemReply, RowsError> {
        Ok(match self {
            SystemCommand::PutPolicy { name, spec } => SystemReply::Policy(policies::put(rows, name, spec)?),
            SystemCommand::DeletePolicy { name } => SystemReply::Policy(policies::delete(rows, name)?),
            SystemCommand::ForgetDeletedPolicies { through } => {
                policies::forget_deleted(rows, *through)?;
                SystemReply::Done
            }
            SystemCommand::RecordManifest { manifest } => {
                nodes::record_manifest(rows, manifest)?;
                SystemReply::Done
            }
            SystemCommand::BeginReplace { node } => SystemReply::Node(nodes::begin_replace(rows, *node)?),
            SystemCommand::AdmitReplacement { entry } => SystemReply::Node(nodes::admit_replacement(rows, entry)?),
            SystemCommand::FinishReplace { node, generation } => {
                SystemReply::Node(nodes::finish_replace(rows, *node, *generation)?)
            }
        })
    }
}
