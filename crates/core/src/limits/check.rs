//! Check: takes the cost from every named bucket of this shard, or from none.

use serde::{Deserialize, Serialize};

use super::{decide::decide, turn::Turn};
use crate::rows::RowsError;

/// 1–16 checks whose buckets all live on this shard; costs on the same bucket add up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckCommand {
    pub mode: Mode,
    pub items: Vec<CheckItem>,
    /// An admitted id is remembered per bucket for 60 s and answered alike.
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    Enforce,
    /// Says what `Enforce` would say and changes nothing.
    Peek,
    /// Counts as `Enforce` does; that the caller lets a denied request pass is the edge's business.
    Shadow,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckItem {
    pub policy: String,
    pub key: String,
    /// Tokens; 0 only with [`Mode::Peek`].
    pub cost: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckReply {
    Decided(Decision),
    Refused(Refusal),
}

/// `allowed` is the conjunction over the results, which stand in the order of the items.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub allowed: bool,
    pub results: Vec<ItemResult>,
}

/// What one item came to. Instants are relative to the entry's stamp, in µs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemResult {
    pub allowed: bool,
    /// The key is exempt: always allowed, never counted.
    pub exempt: bool,
    /// The capacity in whole tokens; 0 for a `deny` override.
    pub limit: u64,
    /// Whole tokens left after this decision, never above `limit`.
    pub remaining: u64,
    /// After this wait the item's cost is admitted if nobody else asks; 0 when allowed, `None` when never.
    pub retry_after_us: Option<u64>,
    /// After this wait the bucket is full again; 0 when it is.
    pub reset_after_us: u64,
    /// Time in which an empty bucket fills (token bucket: burst/rate, rounded up), or the sliding window.
    pub window_us: u64,
}

impl CheckItem {
    pub(super) fn is_on_bucket_of(&self, other: &CheckItem) -> bool {
        self.policy == other.policy && self.key == other.key
    }
}

impl ItemResult {
    /// Of a bucket whose policy is gone.
    pub(super) const NOTHING: ItemResult = ItemResult {
        allowed: false,
        exempt: false,
        limit: 0,
        remaining: 0,
        retry_after_us: None,
        reset_after_us: 0,
        window_us: 0,
    };
}

/// Why a command on limits was not even decided; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    PolicyNotFound {
        policy: String,
    },
    /// `cost` (added up over the items on this bucket) can never be admitted: the capacity is `burst`.
    CostExceedsBurst {
        policy: String,
        key: String,
        cost: u64,
        burst: u64,
    },
    /// The request_id was admitted on this bucket with another cost.
    RequestIdReused {
        policy: String,
        key: String,
        admitted_cost: u64,
    },
}

impl CheckCommand {
    pub(crate) fn apply(&self, turn: &mut Turn<'_>) -> Result<CheckReply, RowsError> {
        let mut plan = match decide(turn, &self.items, self.request_id.as_deref()) {
            Ok(plan) => plan,
            Err(stop) => return Ok(CheckReply::Refused(stop.refusal()?)),
        };
        if !plan.allowed() {
            return Ok(CheckReply::Decided(plan.decision()));
        }
        plan.for_each_counted(|bucket, terms, cost| bucket.take(terms, cost));
        let decision = plan.decision();
        if self.mode != Mode::Peek {
            plan.store(turn, true);
        }
        Ok(CheckReply::Decided(decision))
    }
}
