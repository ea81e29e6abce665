//! What a message of a run looks like: all of it follows from its event id, so that a receiver's log, a read and a call can
//! be told apart or alike by their digests.

use onceward_checkers::history::Message;
use sha2::{Digest as _, Sha256};

/// The type of every message.
pub const EVENT_TYPE: &str = "partition.tested";

pub fn message(app: &str, event_id: &str) -> Message {
    Message { app: app.to_owned(), event_id: event_id.to_owned(), digest: digest(payload(event_id).as_bytes()) }
}

/// Members in alphabetical order and no blanks: written again by a JSON library it is the same text.
pub fn payload(event_id: &str) -> String {
    format!(r#"{{"event":"{event_id}","kind":"{EVENT_TYPE}"}}"#)
}

/// The event id in a payload, as a receiver reads it.
pub fn event_id(payload: &[u8]) -> Option<String> {
    let payload: serde_json::Value = serde_json::from_slice(payload).ok()?;
    Some(payload.get("event")?.as_str()?.to_owned())
}

pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
