//! Event types: a catalogue on the system shard, for people. Publishing doesn't ask it: a type needs no entry.

use serde::{Deserialize, Serialize};

use super::{
    bounds::{EVENT_TYPES_MAX, PAGE_BYTES_MAX},
    command::{Done, Refusal, Stamp, WebhookReply},
    desk::Desk,
    names::Name,
    removable,
    rows::EventTypeRow,
};
use crate::{
    codec::keys::{self, Kind},
    rows::{ReadRows, RowsError, Table, corrupt, decode, read},
};

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
    #[serde(with = "removable")]
    pub feature_flag: Option<Option<Name>>,
    #[serde(with = "removable")]
    pub group_name: Option<Option<Name>>,
    #[serde(with = "removable")]
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

impl EventTypeChange {
    pub(super) fn apply(&self, desk: &mut Desk<'_>, stamp: Stamp) -> Done {
        match self {
            EventTypeChange::Create { name, spec } => match find(desk.rows, name)? {
                Some(row) if !row.spec.archived => Ok(Err(Refusal::Taken)),
                before => store(desk, stamp, name, before, spec.clone(), true),
            },
            EventTypeChange::Put { name, spec } => {
                let before = find(desk.rows, name)?;
                let created = before.is_none();
                store(desk, stamp, name, before, spec.clone(), created)
            }
            EventTypeChange::Patch { name, patch } => {
                let Some(before) = find(desk.rows, name)? else { return Ok(Err(Refusal::NoEventType)) };
                let spec = patch.clone().apply(before.spec.clone());
                store(desk, stamp, name, Some(before), spec, false)
            }
            EventTypeChange::Delete { name, expunge } => {
                let Some(before) = find(desk.rows, name)? else { return Ok(Err(Refusal::NoEventType)) };
                if *expunge {
                    desk.delete(keys::event_type(name.as_str()));
                    let number = number(desk.rows)?.saturating_sub(1);
                    desk.put(keys::EVENT_TYPES.clone(), &number);
                } else {
                    let spec = EventTypeSpec { archived: true, ..before.spec.clone() };
                    store(desk, stamp, name, Some(before), spec, false)?.ok();
                }
                Ok(Ok(WebhookReply::Done))
            }
        }
    }
}

impl EventTypePatch {
    fn apply(self, before: EventTypeSpec) -> EventTypeSpec {
        EventTypeSpec {
            description: self.description.unwrap_or(before.description),
            archived: self.archived.unwrap_or(before.archived),
            deprecated: self.deprecated.unwrap_or(before.deprecated),
            feature_flag: self.feature_flag.unwrap_or(before.feature_flag),
            group_name: self.group_name.unwrap_or(before.group_name),
            schemas: self.schemas.unwrap_or(before.schemas),
        }
    }
}

fn find(rows: &(impl ReadRows + ?Sized), name: &Name) -> Result<Option<EventTypeRow>, RowsError> {
    read(rows, &keys::event_type(name.as_str()))
}

fn number(rows: &(impl ReadRows + ?Sized)) -> Result<u64, RowsError> {
    Ok(read(rows, &keys::EVENT_TYPES)?.unwrap_or(0))
}

fn store(
    desk: &mut Desk<'_>,
    stamp: Stamp,
    name: &Name,
    before: Option<EventTypeRow>,
    spec: EventTypeSpec,
    created: bool,
) -> Done {
    if before.is_none() {
        let number = number(desk.rows)?.saturating_add(1);
        if number > EVENT_TYPES_MAX {
            return Ok(Err(Refusal::TooMany { max: EVENT_TYPES_MAX }));
        }
        desk.put(keys::EVENT_TYPES.clone(), &number);
    }
    let created_wall_ms = before.map_or(stamp.wall_ms, |before| before.created_wall_ms);
    let row = EventTypeRow { spec, created_wall_ms, updated_wall_ms: stamp.wall_ms };
    desk.put(keys::event_type(name.as_str()), &row);
    Ok(Ok(WebhookReply::EventType { event_type: row.view(name.clone()), created }))
}

impl EventTypeRow {
    fn view(self, name: Name) -> EventTypeView {
        let EventTypeRow { spec, created_wall_ms, updated_wall_ms } = self;
        EventTypeView { name, spec, created_wall_ms, updated_wall_ms }
    }
}

pub(super) fn get(rows: &dyn ReadRows, name: &Name) -> Result<Option<EventTypeView>, RowsError> {
    Ok(find(rows, name)?.map(|row| row.view(name.clone())))
}

/// Rows read at a time.
const CHUNK_ROWS: usize = 64;

/// Event types by name, behind the cursor or with `backwards` before it, and whether that is all in this direction.
pub(super) fn list(
    rows: &dyn ReadRows,
    cursor: Option<&Name>,
    backwards: bool,
    descending: bool,
    include_archived: bool,
    limit: u32,
) -> Result<(Vec<EventTypeView>, bool), RowsError> {
    let prefix = Kind::EventType.prefix();
    let mut from = cursor.map(|name| keys::event_type(name.as_str()));
    let mut items: Vec<EventTypeView> = Vec::new();
    let mut bytes = 0;
    let mut done = false;
    'pages: while !done {
        let chunk = if backwards == descending {
            rows.scan(Table::State, &prefix, from.as_deref(), CHUNK_ROWS)?
        } else {
            rows.scan_back(Table::State, &prefix, from.as_deref(), CHUNK_ROWS)?
        };
        done = chunk.len() < CHUNK_ROWS;
        for (key, value) in chunk {
            let row: EventTypeRow = decode(&key, &value)?;
            if include_archived || !row.spec.archived {
                bytes += value.len();
                if items.len() >= limit as usize || (bytes > PAGE_BYTES_MAX && !items.is_empty()) {
                    done = false;
                    break 'pages;
                }
                let name =
                    key.get(1..).and_then(|name| str::from_utf8(name).ok()).and_then(|name| Name::parse(name).ok());
                items.push(row.view(name.ok_or_else(|| corrupt(Table::State, &key, "not an event type's key"))?));
            }
            from = Some(key);
        }
    }
    if backwards {
        items.reverse();
    }
    Ok((items, done))
}
