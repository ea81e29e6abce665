//! Abandon: the work had no effect, and the key is free again.

use serde::{Deserialize, Serialize};

use super::{Account, Key, Ledger, record::Standing};
use crate::rows::RowsError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbandonCommand {
    pub account: Account,
    pub key: Key,
    pub token: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbandonReply {
    Abandoned,
    /// The token is not the newest, or there is no such record.
    Fenced,
    AlreadyCompleted,
}

impl AbandonCommand {
    pub(crate) fn apply(&self, ledger: &mut Ledger<'_>) -> Result<AbandonReply, RowsError> {
        let found = ledger.find(&self.account, &self.key)?;
        match found.present() {
            Some((record, _)) if !record.is_of(self.token) => Ok(AbandonReply::Fenced),
            None => Ok(AbandonReply::Fenced),
            Some((_, Standing::Completed)) => Ok(AbandonReply::AlreadyCompleted),
            Some(_) => {
                ledger.remove(found);
                Ok(AbandonReply::Abandoned)
            }
        }
    }
}
