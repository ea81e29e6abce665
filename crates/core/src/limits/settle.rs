//! Settle: ends a hold, spent or not. An abort of an older attempt, or of an unknown hold, changes nothing and leaves
//! a tombstone, so that a hold that arrives after its abort takes nothing.

use serde::{Deserialize, Serialize};

use super::{HoldId, ItemResult};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleCommand {
    pub id: HoldId,
    pub attempt: u128,
    /// true: the held cost was spent (and a request_id is remembered as admitted); false: it goes back.
    pub spent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleReply {
    /// Whether this command ended the hold; false when it was unknown, lapsed, settled before or owned by a newer attempt.
    pub settled: bool,
    /// The buckets after an abort, in the order of the hold's items; empty otherwise.
    pub results: Vec<ItemResult>,
}
