//! Refund: gives back, at most once and never above the capacity, what was admitted under a request_id.

use serde::{Deserialize, Serialize};

use super::{
    Allowance,
    turn::{AdmittedId, Found, Refunded, Turn},
};
use crate::rows::RowsError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundCommand {
    pub policy: String,
    pub key: String,
    pub cost: u64,
    pub request_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefundReply {
    /// `credited`: tokens that reached the bucket, a part of one counted as one (less than asked at the capacity, 0
    /// after a reset). Repeating the refund answers the same and credits nothing more.
    Refunded {
        credited: u64,
        limit: u64,
        remaining: u64,
    },
    PolicyNotFound {
        policy: String,
    },
    /// Nothing is remembered under this request_id on this bucket (never admitted, or more than 60 s ago).
    Forgotten,
    /// More than was admitted, or another amount than in an earlier refund of this request_id.
    CostMismatch {
        admitted_cost: u64,
    },
}

impl RefundCommand {
    pub(crate) fn apply(&self, turn: &mut Turn<'_>) -> Result<RefundReply, RowsError> {
        let Some(chain) = turn.chain(&self.policy)? else {
            return Ok(RefundReply::PolicyNotFound { policy: self.policy.clone() });
        };
        let found = turn.admitted_id(&self.policy, &self.key, &self.request_id)?;
        let Some(admitted) = found.value.filter(|admitted| admitted.is_remembered(&chain, turn.now)) else {
            return Ok(RefundReply::Forgotten);
        };
        match admitted.refund {
            Some(refund) if refund.cost == self.cost => return Ok(refund.reply()),
            Some(_) => return Ok(RefundReply::CostMismatch { admitted_cost: admitted.cost }),
            None if self.cost > admitted.cost => {
                return Ok(RefundReply::CostMismatch { admitted_cost: admitted.cost });
            }
            None => {}
        }
        let mut bucket = turn.bucket(&chain, &self.policy, &self.key)?;
        let counted = chain.newest().counted(&self.key);
        let terms = if let Allowance::Limit(terms) = counted { Some(terms) } else { None };
        let credited =
            terms.map_or(0, |terms| bucket.value.refund(&terms, admitted.epoch, admitted.admitted_at, self.cost));
        let refund = Refunded {
            cost: self.cost,
            credited,
            limit: terms.map_or(0, |terms| terms.burst()),
            remaining: terms.map_or(0, |terms| bucket.value.left(&terms)),
        };
        if credited > 0 {
            turn.put_bucket(bucket, counted);
        }
        let due = admitted.due();
        let value = AdmittedId { refund: Some(refund), ..admitted };
        turn.put_expiring(Found { row: found.row, exists: found.exists, value }, due);
        Ok(refund.reply())
    }
}

impl Refunded {
    fn reply(self) -> RefundReply {
        RefundReply::Refunded { credited: self.credited, limit: self.limit, remaining: self.remaining }
    }
}
