//! CopyPolicies: brings this data shard the policies that changed on the system shard.

use serde::{Deserialize, Serialize};

use super::Policy;

/// Every change of revision in (`from`, `to`]. Applied only when the shard stands at `from` or later and before `to`:
/// a stale sender changes nothing, a gap is never skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyPolicies {
    pub from: u64,
    pub to: u64,
    /// By ascending revision.
    pub changes: Vec<PolicyChange>,
}

/// A policy as it stands, or (`None`) its deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChange {
    pub name: String,
    pub revision: u64,
    pub policy: Option<Policy>,
}
