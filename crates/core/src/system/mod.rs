//! The system shard: policies as they are written, the node registry. Every node follows it.

mod nodes;
mod policies;

pub use nodes::{NodeRecord, NodeReply, ReplaceState};
pub use policies::PolicyReply;
use serde::{Deserialize, Serialize};

use crate::{
    cluster::{Generation, Manifest, NodeEntry, NodeId},
    limits::{PolicyName, PolicySpec},
};

/// A change of the system shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SystemCommand {
    PutPolicy { name: PolicyName, spec: PolicySpec },
    DeletePolicy { name: PolicyName },
    /// Drops the tombstones of policies deleted at or before `through`: every data shard has seen them.
    ForgetDeletedPolicies { through: u64 },
    /// Writes the founding manifest into the registry; repeating it changes nothing.
    RecordManifest { manifest: Manifest },
    /// An operator says that this node's disk is lost: its next, empty directory may come in.
    BeginReplace { node: NodeId },
    /// The empty directory with this incarnation becomes the node's next generation.
    AdmitReplacement { entry: NodeEntry },
    /// The replacement votes in every shard that its predecessor voted in.
    FinishReplace { node: NodeId, generation: Generation },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SystemReply {
    Policy(PolicyReply),
    Node(NodeReply),
    Done,
}

use crate::{limits::{Policy, PolicyChange}, rows::{ReadRows, RowsError}};
pub(crate) fn policy(_rows: &dyn ReadRows, _name: &str) -> Result<Option<Policy>, RowsError> { unimplemented!() }
pub(crate) fn policies(_rows: &dyn ReadRows, _after: Option<&str>, _limit: u32) -> Result<(Vec<Policy>, bool), RowsError> { unimplemented!() }
pub(crate) fn policy_changes(_rows: &dyn ReadRows, _since: u64, _bytes_max: u32) -> Result<(u64, Vec<PolicyChange>, u64), RowsError> { unimplemented!() }
pub(crate) fn nodes(_rows: &dyn ReadRows) -> Result<Vec<NodeRecord>, RowsError> { unimplemented!() }
