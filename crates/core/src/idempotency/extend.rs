//! Extend: the work takes longer than its lease.

use serde::{Deserialize, Serialize};

use super::{
    Account, Key, Ledger,
    record::{Attempt, Lease, Record, State},
};
use crate::rows::RowsError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendCommand {
    pub account: Account,
    pub key: Key,
    pub token: u64,
    /// From now on.
    pub lease_us: u64,
    /// Display time of the node that received the call, which fills it in.
    pub wall_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtendReply {
    Extended(Lease),
    /// The token is not the newest, or there is no such record.
    Fenced,
    AlreadyCompleted,
}

impl ExtendCommand {
    pub(crate) fn apply(&self, ledger: &mut Ledger<'_>) -> Result<ExtendReply, RowsError> {
        let found = ledger.find(&self.account, &self.key)?;
        let Some((record, _)) = found.present().filter(|(record, _)| record.is_of(self.token)) else {
            return Ok(ExtendReply::Fenced);
        };
        let Some(attempt) = record.attempt() else { return Ok(ExtendReply::AlreadyCompleted) };
        let attempt = Attempt {
            lease_ends_at: ledger.now.plus_us(self.lease_us),
            lease_ends_wall_ms: self.wall_ms.saturating_add(self.lease_us / 1_000),
            ..attempt.clone()
        };
        let lease = attempt.lease(ledger.now);
        // An indeterminate one is under way again: its late owner lives.
        let record = Record { state: State::InProgress(attempt), ..record.clone() };
        ledger.put(found, &record);
        Ok(ExtendReply::Extended(lease))
    }
}
