//! Rows of webhooks as a shard keeps them.

use serde::{Deserialize, Serialize};

use super::{
    app::AppSpec,
    command::WebhookReply,
    endpoint::{EndpointSpec, Headers},
    event_type::EventTypeSpec,
    id::{EndpointId, MessageId},
    names::Name,
    outcome::{AttemptStatus, DeliveryStatus, ReceiverAnswer},
    secret::Secret,
};
use crate::time::ShardTime;

/// SHA-256 of what a message says.
pub(super) type Digest = [u8; 32];

/// The newest id that the shard made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastId {
    pub at: ShardTime,
    pub counter: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AppRow {
    pub uid: Option<Name>,
    pub spec: AppSpec,
    pub created_wall_ms: u64,
    pub updated_wall_ms: u64,
    pub endpoints: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndpointRow {
    pub uid: Option<Name>,
    pub spec: EndpointSpec,
    pub headers: Headers,
    pub secret: Secret,
    /// The newest first.
    pub former: Vec<FormerSecret>,
    pub created_wall_ms: u64,
    pub updated_wall_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FormerSecret {
    pub secret: Secret,
    pub ends_at: ShardTime,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndpointState {
    /// The number of the newest message.
    pub sequence: u64,
    /// Since when no attempt succeeded.
    pub failing: Option<Failing>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failing {
    pub since: ShardTime,
    /// Display time.
    pub since_wall_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MessageRow {
    pub event_id: Option<Name>,
    pub event_type: Name,
    pub channels: Vec<String>,
    pub tags: Vec<String>,
    pub created_wall_ms: u64,
    pub expires_at: ShardTime,
    /// Before that, where its publisher asked for it.
    pub payload_expires_at: Option<ShardTime>,
}

/// What has an event id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EventIdRow {
    pub message: MessageId,
    #[serde(with = "serde_bytes")]
    pub digest: Digest,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeliveryRow {
    pub sequence: u64,
    pub tries: u16,
    pub status: DeliveryStatus,
    /// Of one that is pending.
    pub due: Option<Due>,
}

impl DeliveryRow {
    /// As it stands when its endpoint or its payload is gone.
    pub(super) fn given_up(self) -> DeliveryRow {
        match self.due {
            Some(_) => DeliveryRow { due: None, status: DeliveryStatus::Failed, ..self },
            None => self,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Due {
    pub at: ShardTime,
    /// Display time.
    pub wall_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttemptRow {
    pub endpoint: EndpointId,
    pub status: AttemptStatus,
    pub answer: ReceiverAnswer,
}

/// What a call with an `idempotency-key` was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RequestRow {
    #[serde(with = "serde_bytes")]
    pub fingerprint: [u8; 32],
    pub expires_at: ShardTime,
    pub reply: WebhookReply,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EventTypeRow {
    pub spec: EventTypeSpec,
    pub created_wall_ms: u64,
    pub updated_wall_ms: u64,
}
