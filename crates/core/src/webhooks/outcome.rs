//! Outcomes: what came of attempts to deliver, as the dispatcher of a shard's leader reports them, many at a time.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    command::Stamp,
    desk::Desk,
    dispatch::{DueItem, EndpointKey},
    id::{AppId, DeliveryAttemptId, EndpointId, MessageId, Nonce},
    names::Name,
    operational::{self, LastAttempt, Notice},
    rows::{AppRow, AttemptRow, DeliveryRow, Due, EndpointState, Failing, MessageRow},
    subscribers::Subscriber,
};
use crate::{
    codec::keys,
    rows::{RowsError, Table, read},
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordOutcomes {
    pub outcomes: Vec<Outcome>,
    /// An endpoint that fails for so long is disabled.
    pub disable_after_us: u64,
    /// For the messages about it.
    pub retention_us: u64,
    /// Display time.
    pub wall_ms: u64,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub app: AppId,
    pub endpoint: EndpointId,
    pub message: MessageId,
    /// Tries of the delivery before this one, as they were read: a report that comes twice counts once.
    pub tries_before: u16,
    /// For the attempt's id, and for those of messages about it.
    pub nonce: Nonce,
    pub answer: ReceiverAnswer,
    pub verdict: Verdict,
}

/// What a receiver answered, or why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiverAnswer {
    /// 0: none came.
    pub status_code: u16,
    /// The body's beginning, or what went wrong; at most [`super::bounds::ANSWER_BYTES_MAX`].
    pub body: String,
    pub truncated: bool,
    pub duration_ms: u32,
    /// Display time of its beginning.
    pub started_wall_ms: u64,
    pub url: String,
}

/// What is to become of the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Succeeded,
    /// It is due again so long after this entry.
    Retry {
        after_us: u64,
    },
    /// That was the last try of the schedule.
    Exhausted,
    /// The receiver wants no more: the endpoint is disabled.
    Gone,
}

/// The outcome as callers see it. The numbers are Svix's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptStatus {
    Succeeded = 0,
    /// It will be tried again.
    Retrying = 1,
    Failed = 2,
}

/// What stands of a message for one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeliveryStatus {
    Succeeded,
    /// Due, now or later.
    Pending,
    /// Every try of the schedule failed, or the receiver wants no more.
    Failed,
    /// It came while its endpoint was disabled, and was never tried.
    Withheld,
}

/// An attempt as callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptView {
    pub id: DeliveryAttemptId,
    pub endpoint: EndpointId,
    pub message: MessageId,
    pub status: AttemptStatus,
    pub answer: ReceiverAnswer,
}

impl RecordOutcomes {
    /// Returns how many of them changed something.
    pub(crate) fn apply(&self, desk: &mut Desk<'_>) -> Result<u32, RowsError> {
        let mut recorded = 0;
        for outcome in &self.outcomes {
            recorded += u32::from(self.record(desk, outcome)?);
        }
        Ok(recorded)
    }

    fn record(&self, desk: &mut Desk<'_>, outcome: &Outcome) -> Result<bool, RowsError> {
        let endpoint = EndpointKey { app: outcome.app, endpoint: outcome.endpoint };
        let subscribers = desk.subscribers.of(desk.rows, outcome.app)?;
        let Some(subscriber) = subscribers.iter().find(|known| known.id == outcome.endpoint) else { return Ok(false) };
        let row = keys::delivery(endpoint, outcome.message);
        let Some(mut delivery) = read::<DeliveryRow>(desk.rows, &row)? else { return Ok(false) };
        let Some(due) = delivery.due else { return Ok(false) };
        // A leader of before may have tried, too. That it succeeded counts; that it failed was said by another.
        if delivery.tries != outcome.tries_before && outcome.verdict != Verdict::Succeeded {
            return Ok(false);
        }
        let id = self.keep_attempt(desk, endpoint, outcome)?;
        desk.delete(keys::delivery_due(endpoint, DueItem { at: due.at, message: outcome.message }));
        delivery.tries = delivery.tries.saturating_add(1);
        delivery.due = None;
        delivery.status = match outcome.verdict {
            Verdict::Succeeded => DeliveryStatus::Succeeded,
            Verdict::Exhausted | Verdict::Gone => DeliveryStatus::Failed,
            Verdict::Retry { after_us } => {
                let next = Due {
                    at: desk.now.plus_us(after_us.max(1)),
                    wall_ms: self.wall_ms.saturating_add(after_us / 1_000),
                };
                delivery.due = Some(next);
                let item = DueItem { at: next.at, message: outcome.message };
                desk.rows.put(Table::State, keys::delivery_due(endpoint, item), Bytes::new());
                desk.touch(endpoint);
                DeliveryStatus::Pending
            }
        };
        desk.put(row, &delivery);
        let failing = self.keep_failing(desk, endpoint, outcome)?;
        // Operational endpoints are told of others, not of themselves, and are enabled and disabled by people only.
        if outcome.app != AppId::OPERATIONAL {
            self.draw_conclusions(desk, subscriber, outcome, id, failing)?;
        }
        Ok(true)
    }

    fn keep_attempt(
        &self,
        desk: &mut Desk<'_>,
        endpoint: EndpointKey,
        outcome: &Outcome,
    ) -> Result<DeliveryAttemptId, RowsError> {
        let id = DeliveryAttemptId(desk.next_id(outcome.nonce)?);
        let status = match outcome.verdict {
            Verdict::Succeeded => AttemptStatus::Succeeded,
            Verdict::Retry { .. } => AttemptStatus::Retrying,
            Verdict::Exhausted | Verdict::Gone => AttemptStatus::Failed,
        };
        let attempt = AttemptRow { endpoint: outcome.endpoint, status, answer: outcome.answer.clone() };
        desk.put(keys::attempt(outcome.app, outcome.message, id), &attempt);
        desk.put(keys::attempt_of_endpoint(endpoint, id), &outcome.message);
        Ok(id)
    }

    /// Since when the endpoint fails, this outcome included.
    fn keep_failing(
        &self,
        desk: &mut Desk<'_>,
        endpoint: EndpointKey,
        outcome: &Outcome,
    ) -> Result<Option<Failing>, RowsError> {
        let state = desk.endpoint_state(endpoint)?;
        let failing = match (outcome.verdict, &state.failing) {
            (Verdict::Succeeded, _) => None,
            (_, Some(failing)) => Some(failing.clone()),
            (_, None) => Some(Failing { since: desk.now, since_wall_ms: self.wall_ms }),
        };
        if failing != state.failing {
            desk.put(keys::endpoint_state(endpoint), &EndpointState { failing: failing.clone(), ..state });
        }
        Ok(failing)
    }

    /// Disables an endpoint that wants no more or failed for too long, and tells of that and of deliveries given up.
    fn draw_conclusions(
        &self,
        desk: &mut Desk<'_>,
        subscriber: &Subscriber,
        outcome: &Outcome,
        attempt: DeliveryAttemptId,
        failing: Option<Failing>,
    ) -> Result<(), RowsError> {
        let stamp = Stamp { nonce: outcome.nonce, wall_ms: self.wall_ms };
        if outcome.verdict == Verdict::Exhausted {
            let about = About::read(desk, subscriber, outcome)?;
            about.exhausted(desk, outcome, attempt)?.publish(desk, stamp, self.retention_us)?;
        }
        let Some(failing) = failing.filter(|_| !subscriber.row.spec.disabled) else { return Ok(()) };
        let for_too_long = desk.now.since_us(failing.since) >= self.disable_after_us;
        if for_too_long || outcome.verdict == Verdict::Gone {
            let about = About::read(desk, subscriber, outcome)?;
            let mut row = subscriber.row.clone();
            row.spec.disabled = true;
            row.updated_wall_ms = self.wall_ms;
            desk.put_endpoint(EndpointKey { app: outcome.app, endpoint: outcome.endpoint }, &row);
            about.disabled(failing.since_wall_ms).publish(desk, stamp, self.retention_us)?;
        }
        Ok(())
    }
}

/// Whom a notice is about.
struct About {
    app_id: String,
    app_uid: Option<Name>,
    endpoint_id: String,
    endpoint_uid: Option<Name>,
}

impl About {
    fn read(desk: &Desk<'_>, subscriber: &Subscriber, outcome: &Outcome) -> Result<About, RowsError> {
        let app: Option<AppRow> = read(desk.rows, &keys::app(outcome.app))?;
        Ok(About {
            app_id: outcome.app.to_string(),
            app_uid: app.and_then(|app| app.uid),
            endpoint_id: outcome.endpoint.to_string(),
            endpoint_uid: subscriber.row.uid.clone(),
        })
    }

    fn disabled(self, since_wall_ms: u64) -> Notice {
        let About { app_id, app_uid, endpoint_id, endpoint_uid } = self;
        let fail_since = operational::rfc3339(since_wall_ms);
        Notice::EndpointDisabled { app_id, app_uid, endpoint_id, endpoint_uid, fail_since }
    }

    fn exhausted(self, desk: &Desk<'_>, outcome: &Outcome, attempt: DeliveryAttemptId) -> Result<Notice, RowsError> {
        let message: Option<MessageRow> = read(desk.rows, &keys::message(outcome.app, outcome.message))?;
        Ok(Notice::AttemptExhausted {
            app_id: self.app_id,
            app_uid: self.app_uid,
            endpoint_id: self.endpoint_id,
            endpoint_uid: self.endpoint_uid,
            msg_id: outcome.message.to_string(),
            msg_event_id: message.and_then(|message| message.event_id),
            last_attempt: LastAttempt {
                id: attempt.to_string(),
                response_status_code: outcome.answer.status_code,
                timestamp: operational::rfc3339(outcome.answer.started_wall_ms),
            },
        })
    }
}

impl Outcome {
    /// Encoded bytes at the most, but for tags and lengths.
    pub(crate) fn bytes(&self) -> usize {
        self.answer.body.len() + self.answer.url.len()
    }
}
