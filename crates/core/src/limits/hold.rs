//! Hold: the first half of a check over several shards. Debits every named bucket of this shard and keeps the debit
//! as a grant until it is settled; a hold that lapses counts as spent.

use serde::{Deserialize, Serialize};

use super::{CheckItem, Decision, Refusal};

/// Names a hold across its retries: the request_id's hash where there is one, else the coordinator's nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HoldId(pub u128);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldCommand {
    pub id: HoldId,
    /// The coordinator's attempt: the newest attempt on an id owns the hold, an abort by an older one changes nothing.
    pub attempt: u128,
    pub items: Vec<CheckItem>,
    pub request_id: Option<String>,
    /// The grant lapses this long after the entry's stamp.
    pub lease_us: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldReply {
    /// `allowed`: held. Otherwise nothing was taken.
    Decided(Decision),
    Refused(Refusal),
    /// This attempt was aborted before its hold arrived; nothing was taken.
    Aborted,
}
