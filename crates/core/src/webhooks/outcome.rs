//! Outcomes: what came of attempts to deliver, as the dispatcher of a shard's leader reports them, many at a time.

use serde::{Deserialize, Serialize};

use super::id::{AppId, DeliveryAttemptId, EndpointId, MessageId, Nonce};

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
