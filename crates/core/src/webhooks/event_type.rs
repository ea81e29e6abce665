//! Event types: a catalogue on the system shard, for people. Publishing doesn't ask it: a type needs no entry.

use serde::{Deserialize, Serialize};

use super::names::Name;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventTypeSpec {
    pub description: String,
    pub archived: bool,
    pub deprecated: bool,
    pub feature_flag: Option<Name>,
    pub group_name: Option<Name>,
    /// JSON, as it came in.
    pub schemas: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventTypePatch {
    pub description: Option<String>,
    pub archived: Option<bool>,
    pub deprecated: Option<bool>,
    pub feature_flag: Option<Option<Name>>,
    pub group_name: Option<Option<Name>>,
    pub schemas: Option<Option<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventTypeView {
    pub name: Name,
    pub spec: EventTypeSpec,
    /// Display times.
    pub created_wall_ms: u64,
    pub updated_wall_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventTypeChange {
    /// An archived one of the name is taken out of the archive.
    Create {
        name: Name,
        spec: EventTypeSpec,
    },
    Put {
        name: Name,
        spec: EventTypeSpec,
    },
    Patch {
        name: Name,
        patch: EventTypePatch,
    },
    /// Archives it, or with `expunge` removes it.
    Delete {
        name: Name,
        expunge: bool,
    },
}
