//! What becomes of rows of webhooks when they come up in the expiry table: messages go after their retention, answers of
//! repeated calls after their time, rows of what was deleted piece by piece.

use super::{
    desk::Desk,
    dispatch::{DueItem, EndpointKey},
    id::{AppId, DeliveryAttemptId, EndpointId, MessageId},
    rows::{AttemptRow, DeliveryRow, MessageRow, RequestRow},
};
use crate::{
    codec::keys::{self, Kind},
    expire::Verdict,
    rows::{RowsError, Table, corrupt, decode},
};

/// Rows removed at a time of what was deleted, or of one message: an entry must not hold up the ones behind it.
const CLEARED_ROWS_MAX: usize = 1_024;
/// How often a message is looked at that outlived its retention because it still has to be delivered.
const PINNED_US: u64 = 3_600_000_000;
/// All kinds of rows that begin with an application's id.
const KINDS_OF_APP: [Kind; 10] = [
    Kind::Endpoint,
    Kind::EndpointUid,
    Kind::EndpointState,
    Kind::Due,
    Kind::Delivery,
    Kind::Message,
    Kind::Payload,
    Kind::EventId,
    Kind::Attempt,
    Kind::AttemptOfEndpoint,
];

impl Desk<'_> {
    /// A row of webhooks comes up.
    pub(crate) fn look_again(&mut self, row: &[u8]) -> Result<Verdict, RowsError> {
        let Some(value) = self.rows.get(Table::State, row)? else { return Ok(Verdict::Leave) };
        match Kind::of(row) {
            Some(Kind::Message) => self.expire_message(row, &decode(row, &value)?),
            Some(Kind::Request) => {
                let request: RequestRow = decode(row, &value)?;
                let is_over = request.expires_at <= self.now;
                Ok(if is_over { Verdict::Remove } else { Verdict::FileAt(request.expires_at) })
            }
            _ => self.clear_on(row),
        }
    }

    /// Removes the next rows of a deleted application or endpoint.
    fn clear_on(&mut self, row: &[u8]) -> Result<Verdict, RowsError> {
        let ids: Vec<_> = keys::ids(row).collect();
        let prefixes = match ids[..] {
            [app] => KINDS_OF_APP.map(|kind| keys::rows_of_app(kind, AppId(app))).to_vec(),
            [app, endpoint] => {
                let endpoint = EndpointKey { app: AppId(app), endpoint: EndpointId(endpoint) };
                vec![keys::due_of(endpoint), keys::attempts_of_endpoint(endpoint)]
            }
            _ => return Err(corrupt(Table::State, row, "neither an application nor an endpoint is to be cleared")),
        };
        let mut left = CLEARED_ROWS_MAX;
        for prefix in prefixes {
            left -= self.remove_rows(&prefix, left)?;
            if left == 0 {
                return Ok(Verdict::FileAt(self.now.plus_us(1)));
            }
        }
        Ok(Verdict::Remove)
    }

    /// Removes rows that begin with `prefix`, at most `limit`; returns how many there were.
    fn remove_rows(&mut self, prefix: &[u8], limit: usize) -> Result<usize, RowsError> {
        let found = self.rows.scan(Table::State, prefix, None, limit)?;
        let number = found.len();
        found.into_iter().for_each(|(key, _)| self.delete(key));
        Ok(number)
    }

    fn expire_message(&mut self, row: &[u8], message: &MessageRow) -> Result<Verdict, RowsError> {
        if self.now < message.next_expiry() {
            return Ok(Verdict::FileAt(message.next_expiry()));
        }
        let ids: Vec<_> = keys::ids(row).collect();
        let [app, id] = ids[..] else { return Err(corrupt(Table::State, row, "not a message's key")) };
        let (app, id) = (AppId(app), MessageId(id));
        if self.is_pinned(app, id)? {
            return Ok(Verdict::FileAt(self.now.plus_us(PINNED_US)));
        }
        self.give_up_deliveries(app, id)?;
        self.delete(keys::payload(app, id));
        if self.now < message.expires_at {
            self.put(keys::message(app, id), &MessageRow { payload_expires_at: None, ..message.clone() });
            return Ok(Verdict::FileAt(message.expires_at));
        }
        let mut left = CLEARED_ROWS_MAX;
        left -= self.remove_attempts(app, id, left)?;
        left -= self.remove_rows(&keys::deliveries_of(app, id), left)?;
        if left == 0 {
            return Ok(Verdict::FileAt(self.now.plus_us(1)));
        }
        if let Some(event_id) = &message.event_id {
            self.delete(keys::event_id(app, event_id.as_str()));
        }
        Ok(Verdict::Remove)
    }

    /// Whether a delivery of a message is still to be made, to an endpoint that takes any.
    fn is_pinned(&mut self, app: AppId, id: MessageId) -> Result<bool, RowsError> {
        let subscribers = self.subscribers.of(self.rows, app)?;
        let deliveries = self.deliveries(app, id)?;
        Ok(deliveries.iter().any(|(endpoint, delivery)| {
            let takes_any = |id| subscribers.iter().any(|known| known.id == id && !known.row.spec.disabled);
            delivery.due.is_some() && takes_any(endpoint.endpoint)
        }))
    }

    /// Ends what is pending of a message: its endpoint is disabled, or gone, and its payload is going.
    fn give_up_deliveries(&mut self, app: AppId, message: MessageId) -> Result<(), RowsError> {
        for (endpoint, delivery) in self.deliveries(app, message)? {
            if let Some(due) = delivery.due {
                self.delete(keys::delivery_due(endpoint, DueItem { at: due.at, message }));
                self.put(keys::delivery(endpoint, message), &delivery.given_up());
            }
        }
        Ok(())
    }

    fn deliveries(&self, app: AppId, message: MessageId) -> Result<Vec<(EndpointKey, DeliveryRow)>, RowsError> {
        let found = self.rows.scan(Table::State, &keys::deliveries_of(app, message), None, CLEARED_ROWS_MAX)?;
        found
            .into_iter()
            .map(|(key, value)| {
                let endpoint = keys::ids(&key).nth(2).map(EndpointId);
                let endpoint = endpoint.ok_or_else(|| corrupt(Table::State, &key, "not a delivery's key"))?;
                Ok((EndpointKey { app, endpoint }, decode(&key, &value)?))
            })
            .collect()
    }

    /// Removes attempts from both of their rows.
    fn remove_attempts(&mut self, app: AppId, message: MessageId, limit: usize) -> Result<usize, RowsError> {
        let found = self.rows.scan(Table::State, &keys::attempts_of(app, message), None, limit)?;
        let number = found.len();
        for (key, value) in found {
            let attempt = keys::ids(&key).nth(2).map(DeliveryAttemptId);
            let attempt = attempt.ok_or_else(|| corrupt(Table::State, &key, "not an attempt's key"))?;
            let row: AttemptRow = decode(&key, &value)?;
            self.delete(keys::attempt_of_endpoint(EndpointKey { app, endpoint: row.endpoint }, attempt));
            self.delete(key);
        }
        Ok(number)
    }
}
