//! Reset: one bucket begins a new epoch, full but for what outstanding grants may still spend.

use serde::{Deserialize, Serialize};

use super::{Allowance, turn::Turn};
use crate::rows::RowsError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetCommand {
    pub policy: String,
    pub key: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResetReply {
    Done,
    PolicyNotFound { policy: String },
}

impl ResetCommand {
    pub(crate) fn apply(&self, turn: &mut Turn<'_>) -> Result<ResetReply, RowsError> {
        let Some(chain) = turn.chain(&self.policy)? else {
            return Ok(ResetReply::PolicyNotFound { policy: self.policy.clone() });
        };
        let newest = chain.newest();
        let counted = newest.counted(&self.key);
        let mut bucket = turn.bucket(&chain, &self.policy, &self.key)?;
        bucket.value.reset(match &counted {
            Allowance::Limit(terms) => *terms,
            // A denied key has no capacity of its own; lifting the denial finds the policy's.
            _ => newest.spec.terms(),
        });
        turn.put_bucket(bucket, counted);
        Ok(ResetReply::Done)
    }
}
