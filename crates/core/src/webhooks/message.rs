//! Message: a payload that is fanned out, when it is published, to the endpoints that match it at that moment.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    id::MessageId,
    names::{AppRef, Name},
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
