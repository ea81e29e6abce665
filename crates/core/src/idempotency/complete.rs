//! Complete: stores the outcome of a key's work, once.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    Account, Key, Ledger,
    record::{Completion, Record, Standing, State},
    response::{Digest, Response},
};
use crate::{
    cluster::ShardId,
    rows::RowsError,
    webhooks::{Desk, Earlier, MessageId, Name, NewMessage, Nonce, Refusal, Stamp, Subscribers},
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
    Completed {
        completed_wall_ms: u64,
        expires_wall_ms: u64,
        #[serde(default)]
        messages: Vec<PublishedMessage>,
    },
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
    pub(crate) fn apply(
        &self,
        ledger: &mut Ledger<'_>,
        shard: ShardId,
        subscribers: &mut Subscribers,
    ) -> Result<CompleteReply, RowsError> {
        let found = ledger.find(&self.account, &self.key)?;
        let Some((record, standing)) = found.present().filter(|(record, _)| record.is_of(self.token)) else {
            return Ok(CompleteReply::Fenced);
        };
        let digest = self.digest();
        if let (Standing::Completed, Some(completion)) = (standing, record.completion()) {
            return Ok(if completion.digest == digest {
                CompleteReply::Completed {
                    completed_wall_ms: completion.completed_wall_ms,
                    expires_wall_ms: record.expires_wall_ms(completion),
                    messages: completion.messages.clone(),
                }
            } else {
                CompleteReply::AlreadyCompleted
            });
        }
        let messages = match self.publish(&mut ledger.desk(shard, subscribers))? {
            Ok(messages) => messages,
            Err(refused) => return Ok(refused),
        };
        let completion = Completion {
            completed_at: ledger.now,
            completed_wall_ms: self.wall_ms,
            digest,
            response_bytes: u32::try_from(self.response.bytes()).unwrap_or(u32::MAX),
            messages: messages.clone(),
        };
        let reply = CompleteReply::Completed {
            completed_wall_ms: self.wall_ms,
            expires_wall_ms: record.expires_wall_ms(&completion),
            messages,
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

    /// Publishes all messages, or changes nothing.
    fn publish(&self, desk: &mut Desk<'_>) -> Result<Result<Vec<PublishedMessage>, CompleteReply>, RowsError> {
        let messages = &self.publishing.messages;
        let refused = |index: usize, refusal| Ok(Err(CompleteReply::MessageRefused { index: index as u32, refusal }));
        if messages.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let Some(app) = desk.find_account(self.account.as_str())? else { return refused(0, Refusal::NoApp) };
        for (index, message) in messages.iter().enumerate() {
            let differs = |other: &NewMessage| other.event_id == message.event_id && other.digest() != message.digest();
            let is_taken = message.event_id.is_some() && messages[..index].iter().any(differs);
            if is_taken || message.earlier(desk, app)? == Earlier::Other {
                return refused(index, Refusal::EventIdTaken);
            }
        }
        let stamp = Stamp { nonce: self.publishing.nonce, wall_ms: self.wall_ms };
        let mut published = Vec::with_capacity(messages.len());
        for (index, message) in messages.iter().enumerate() {
            match message.publish(desk, app, stamp, self.publishing.retention_us)? {
                Ok((view, _)) => published.push(PublishedMessage { id: view.id, event_id: view.event_id }),
                Err(refusal) => return refused(index, refusal),
            }
        }
        Ok(Ok(published))
    }

    /// By which the same completion is known again.
    fn digest(&self) -> Digest {
        let response = self.response.digest();
        if self.publishing.messages.is_empty() {
            return response;
        }
        let mut hash = Sha256::new();
        hash.update(response);
        self.publishing.messages.iter().for_each(|message| hash.update(message.digest()));
        hash.finalize().into()
    }
}
