//! CopyPolicies: brings this data shard the policies that changed on the system shard.

use serde::{Deserialize, Serialize};

use super::{Policy, chain::PolicyChain, turn::Turn};
use crate::{
    codec::{self, keys},
    rows::{ReadRows, RowsError, Table, read},
};

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

impl CopyPolicies {
    /// Returns the revision that the shard stands at then.
    pub(crate) fn apply(&self, turn: &mut Turn<'_>) -> Result<u64, RowsError> {
        let synced = synced_revision(turn.rows)?;
        if self.from > synced || self.to <= synced {
            return Ok(synced);
        }
        for change in self.changes.iter().filter(|change| change.revision > synced) {
            match &change.policy {
                None => turn.delete_chain(&change.name),
                Some(policy) => {
                    let earlier = turn.chain(policy.name.as_str())?;
                    let chain = match earlier.filter(|chain| chain.created_revision == policy.created_revision) {
                        Some(chain) => {
                            let mut chain = PolicyChain::clone(&chain);
                            chain.push(policy, turn.now);
                            chain
                        }
                        None => PolicyChain::new(policy, turn.now),
                    };
                    turn.put_chain(policy.name.as_str(), chain);
                }
            }
        }
        turn.rows.put(Table::State, keys::SYNCED_REVISION.clone(), codec::encode(&self.to));
        Ok(self.to)
    }
}

/// The revision up to which this data shard has every policy.
pub(crate) fn synced_revision(rows: &(impl ReadRows + ?Sized)) -> Result<u64, RowsError> {
    Ok(read(rows, &keys::SYNCED_REVISION)?.unwrap_or(0))
}
