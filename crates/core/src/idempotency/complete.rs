//! Complete: stores the outcome of a key's work, once.

use serde::{Deserialize, Serialize};

use super::{
    Account, Key, Ledger,
    record::{Completion, Record, Standing, State},
    response::Response,
};
use crate::{
    rows::RowsError,
    webhooks::{MessageId, Name, NewMessage, Nonce, Refusal},
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompleteCommand {
    pub account: Account,
    pub key: Key,
    pub token: u64,
    pub response: Response,
    /// Display time of the node that received the call, which fills it in.
    pub wall_ms: u64,
    /// Published with it, in this entry, or not at all.
    #[serde(default)]
    pub publishing: Publishing,
}

/// Messages that go with a completion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publishing {
    /// To the application that is the account.
    pub messages: Vec<NewMessage>,
    pub retention_us: u64,
    /// For their ids.
    pub nonce: Nonce,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompleteReply {
    /// It is completed, now or by the same call before. Display times; the messages in the order of the call.
    Completed { completed_wall_ms: u64, expires_wall_ms: u64, messages: Vec<PublishedMessage> },
    /// The token is not the newest, or there is no such record.
    Fenced,
    /// With other content.
    AlreadyCompleted,
    /// The message at this place of the call cannot be published; nothing was changed.
    MessageRefused { index: u32, refusal: Refusal },
}

/// A message that a completion published, or found published with the same content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedMessage {
    pub id: MessageId,
    pub event_id: Option<Name>,
}

impl CompleteCommand {
    pub(crate) fn apply(&self, ledger: &mut Ledger<'_>) -> Result<CompleteReply, RowsError> {
        let found = ledger.find(&self.account, &self.key)?;
        let Some((record, standing)) = found.present().filter(|(record, _)| record.token == self.token) else {
            return Ok(CompleteReply::Fenced);
        };
        let digest = self.response.digest();
        if let (Standing::Completed, Some(completion)) = (standing, record.completion()) {
            return Ok(if completion.digest == digest {
                CompleteReply::Completed {
                    completed_wall_ms: completion.completed_wall_ms,
                    expires_wall_ms: record.expires_wall_ms(completion),
                    messages: Vec::new(),
                }
            } else {
                CompleteReply::AlreadyCompleted
            });
        }
        let completion = Completion {
            completed_at: ledger.now,
            completed_wall_ms: self.wall_ms,
            digest,
            response_bytes: u32::try_from(self.response.bytes()).unwrap_or(u32::MAX),
        };
        let reply = CompleteReply::Completed {
            completed_wall_ms: self.wall_ms,
            expires_wall_ms: record.expires_wall_ms(&completion),
            messages: Vec::new(),
        };
        let record = Record {
            token: record.token,
            fingerprint: record.fingerprint.clone(),
            created_wall_ms: record.created_wall_ms,
            ttl_us: record.ttl_us,
            state: State::Completed(completion),
        };
        ledger.put_completed(found, &record, &self.response);
        Ok(reply)
    }
}
