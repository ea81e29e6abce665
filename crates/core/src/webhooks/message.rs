//! Message: a payload that is fanned out, when it is published, to the endpoints that match it at that moment.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    command::{Done, Refusal, Stamp, WebhookReply},
    desk::Desk,
    dispatch::{DueItem, EndpointKey},
    id::{AppId, MessageId},
    names::{AppRef, Name},
    outcome::DeliveryStatus,
    rows::{DeliveryRow, Digest, Due, EventIdRow, MessageRow},
};
use crate::{
    codec::keys,
    rows::{RowsError, Table, corrupt, read},
    time::ShardTime,
};

/// A message as it is published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMessage {
    pub event_type: Name,
    /// By which a repeated publish is known again.
    pub event_id: Option<Name>,
    pub channels: Vec<String>,
    pub tags: Vec<String>,
    /// JSON text, byte for byte as it came in.
    pub payload: Bytes,
    /// Less than the retention: the payload goes before the rest.
    pub payload_retention_us: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publish {
    pub app: AppRef,
    pub message: NewMessage,
    /// How long the message, its payload and its attempts are kept.
    pub retention_us: u64,
}

/// A message as callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageView {
    pub id: MessageId,
    pub event_id: Option<Name>,
    pub event_type: Name,
    pub channels: Vec<String>,
    pub tags: Vec<String>,
    /// Display time.
    pub created_wall_ms: u64,
    /// `None` where it was not asked for, or is kept no longer.
    pub payload: Option<Bytes>,
}

impl Publish {
    pub(super) fn apply(&self, desk: &mut Desk<'_>, stamp: Stamp) -> Done {
        let Some(app) = desk.find_app(&self.app)? else { return Ok(Err(Refusal::NoApp)) };
        Ok(match self.message.publish(desk, app.id, stamp, self.retention_us)? {
            Ok((message, repeated)) => Ok(WebhookReply::Published { message, repeated }),
            Err(refusal) => Err(refusal),
        })
    }
}

impl NewMessage {
    /// Publishes it, unless its event id was published before: then it answers that message, `true`, or refuses.
    pub(crate) fn publish(
        &self,
        desk: &mut Desk<'_>,
        app: AppId,
        stamp: Stamp,
        retention_us: u64,
    ) -> Done<(MessageView, bool)> {
        Ok(match self.earlier(desk, app)? {
            Earlier::None => Ok((self.append(desk, app, stamp, retention_us)?, false)),
            Earlier::Same(message) => {
                let row = keys::message(app, message);
                let known: Option<MessageRow> = read(desk.rows, &row)?;
                let known = known.ok_or_else(|| corrupt(Table::State, &row, "an event id names no message"))?;
                Ok((known.view(message), true))
            }
            Earlier::Other => Err(Refusal::EventIdTaken),
        })
    }

    /// What was published under its event id.
    pub(crate) fn earlier(&self, desk: &Desk<'_>, app: AppId) -> Result<Earlier, RowsError> {
        let Some(event_id) = &self.event_id else { return Ok(Earlier::None) };
        Ok(match read::<EventIdRow>(desk.rows, &keys::event_id(app, event_id.as_str()))? {
            None => Earlier::None,
            Some(known) if known.digest == self.digest() => Earlier::Same(known.message),
            Some(_) => Earlier::Other,
        })
    }

    /// Stores it and fans it out.
    pub(super) fn append(
        &self,
        desk: &mut Desk<'_>,
        app: AppId,
        stamp: Stamp,
        retention_us: u64,
    ) -> Result<MessageView, RowsError> {
        let id = MessageId(desk.next_id(stamp.nonce)?);
        let expires_at = desk.now.plus_us(retention_us);
        let row = MessageRow {
            event_id: self.event_id.clone(),
            event_type: self.event_type.clone(),
            channels: self.channels.clone(),
            tags: self.tags.clone(),
            created_wall_ms: stamp.wall_ms,
            expires_at,
            payload_expires_at: self.payload_retention_us.map(|us| desk.now.plus_us(us)).filter(|at| *at < expires_at),
        };
        if let Some(event_id) = &self.event_id {
            let known = EventIdRow { message: id, digest: self.digest() };
            desk.put(keys::event_id(app, event_id.as_str()), &known);
        }
        desk.rows.put(Table::State, keys::payload(app, id), self.payload.clone());
        let key = keys::message(app, id);
        desk.file(&key, row.next_expiry());
        desk.put(key, &row);
        self.fan_out(desk, app, id, stamp.wall_ms)?;
        Ok(row.view(id))
    }

    fn fan_out(&self, desk: &mut Desk<'_>, app: AppId, id: MessageId, wall_ms: u64) -> Result<(), RowsError> {
        let subscribers = desk.subscribers.of(desk.rows, app)?;
        for subscriber in subscribers.iter() {
            let spec = &subscriber.row.spec;
            if !spec.matches(&self.event_type, &self.channels) {
                continue;
            }
            let endpoint = EndpointKey { app, endpoint: subscriber.id };
            let mut state = desk.endpoint_state(endpoint)?;
            state.sequence = state.sequence.saturating_add(1);
            desk.put(keys::endpoint_state(endpoint), &state);
            let due = Some(Due { at: desk.now, wall_ms }).filter(|_| !spec.disabled);
            if let Some(due) = due {
                desk.rows.put(
                    Table::State,
                    keys::delivery_due(endpoint, DueItem { at: due.at, message: id }),
                    Bytes::new(),
                );
                desk.touch(endpoint);
            }
            let status = if due.is_some() { DeliveryStatus::Pending } else { DeliveryStatus::Withheld };
            let delivery = DeliveryRow { sequence: state.sequence, tries: 0, status, due };
            desk.put(keys::delivery(endpoint, id), &delivery);
        }
        Ok(())
    }

    /// SHA-256 of what it says: equal for equal messages.
    pub(crate) fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        part(self.event_type.as_str().as_bytes());
        part(self.event_id.as_ref().map_or("", Name::as_str).as_bytes());
        for list in [&self.channels, &self.tags] {
            part(&(list.len() as u64).to_be_bytes());
            list.iter().for_each(|item| part(item.as_bytes()));
        }
        part(&self.payload);
        hash.finalize().into()
    }

    /// Encoded bytes at the most, but for tags and lengths.
    pub(crate) fn bytes(&self) -> usize {
        let names = self.event_type.as_str().len() + self.event_id.as_ref().map_or(0, |id| id.as_str().len());
        let lists = self.channels.iter().chain(&self.tags).map(|item| item.len() + 8).sum::<usize>();
        names + lists + self.payload.len()
    }
}

/// What was published under an event id before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Earlier {
    None,
    /// A message with the same content.
    Same(MessageId),
    /// One with other content.
    Other,
}

impl MessageRow {
    /// Without its payload.
    pub(super) fn view(&self, id: MessageId) -> MessageView {
        MessageView {
            id,
            event_id: self.event_id.clone(),
            event_type: self.event_type.clone(),
            channels: self.channels.clone(),
            tags: self.tags.clone(),
            created_wall_ms: self.created_wall_ms,
            payload: None,
        }
    }

    /// When something of it goes.
    pub(super) fn next_expiry(&self) -> ShardTime {
        self.payload_expires_at.unwrap_or(self.expires_at)
    }
}
