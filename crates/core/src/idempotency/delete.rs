//! Delete: a person decides that a key is as if it had never been used.

use serde::{Deserialize, Serialize};

use super::{Account, Key, Ledger};
use crate::rows::RowsError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRecordCommand {
    pub account: Account,
    pub key: Key,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeleteRecordReply {
    Deleted,
    NotFound,
}

impl DeleteRecordCommand {
    pub(crate) fn apply(&self, ledger: &mut Ledger<'_>) -> Result<DeleteRecordReply, RowsError> {
        let found = ledger.find(&self.account, &self.key)?;
        if found.present().is_none() {
            return Ok(DeleteRecordReply::NotFound);
        }
        ledger.remove(found);
        Ok(DeleteRecordReply::Deleted)
    }
}
