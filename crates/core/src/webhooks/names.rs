//! Names that callers give: uids, event ids, event types, channels; and how a path names a thing, by id or by uid.

use serde::{Deserialize, Serialize};

use super::{
    bounds::{APP_UID_BYTES_MAX, LABEL_BYTES_MAX, NAME_BYTES_MAX},
    id::{AppId, EndpointId, MessageId, is_id},
};

/// A uid, an event id or the name of an event type: letters, digits, `-`, `_` and `.`, as Svix has them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

/// Completes "the uid …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("must be 1 to {max} characters long, not {len}")]
    Length { len: usize, max: usize },
    #[error("may have letters, digits, '-', '_' and '.' only")]
    Charset,
    #[error("reads as an id that Onceward generates; choose another")]
    IsId,
}

impl Name {
    /// A name that may also read as an id: an event's type, or an event id.
    pub fn parse(text: &str) -> Result<Name, NameError> {
        Name::parse_within(text, NAME_BYTES_MAX)
    }

    /// The uid of an application or an endpoint.
    pub fn parse_uid(text: &str) -> Result<Name, NameError> {
        let uid = Name::parse_within(text, APP_UID_BYTES_MAX)?;
        if is_id(text) { Err(NameError::IsId) } else { Ok(uid) }
    }

    fn parse_within(text: &str, max: usize) -> Result<Name, NameError> {
        if text.is_empty() || text.len() > max {
            return Err(NameError::Length { len: text.len(), max });
        }
        if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            return Err(NameError::Charset);
        }
        Ok(Name(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Name, NameError> {
        Name::parse(&text)
    }
}

/// A channel: letters, digits, and `-_.:+`.
pub fn check_channel(text: &str) -> Result<(), LabelError> {
    check_label(text, "-_.:+")
}

/// A tag: letters, digits, and `-_./\\#`.
pub fn check_tag(text: &str) -> Result<(), LabelError> {
    check_label(text, "-_./\\#")
}

/// Completes "the channel …" or "the tag …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error("must be 1 to {LABEL_BYTES_MAX} characters long, not {0}")]
    Length(usize),
    #[error("may have letters, digits and any of {0} only")]
    Charset(&'static str),
}

fn check_label(text: &str, marks: &'static str) -> Result<(), LabelError> {
    if text.is_empty() || text.len() > LABEL_BYTES_MAX {
        return Err(LabelError::Length(text.len()));
    }
    match text.bytes().all(|byte| byte.is_ascii_alphanumeric() || marks.as_bytes().contains(&byte)) {
        true => Ok(()),
        false => Err(LabelError::Charset(marks)),
    }
}

/// An application as a path names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AppRef {
    Id(AppId),
    Uid(Name),
    /// The cluster itself, to which operational endpoints belong.
    Operational,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EndpointRef {
    Id(EndpointId),
    Uid(Name),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MessageRef {
    Id(MessageId),
    EventId(Name),
}

impl AppRef {
    pub fn parse(text: &str) -> Result<AppRef, NameError> {
        AppId::parse(text).map_or_else(|| Name::parse(text).map(AppRef::Uid), |id| Ok(AppRef::Id(id)))
    }
}

impl EndpointRef {
    pub fn parse(text: &str) -> Result<EndpointRef, NameError> {
        EndpointId::parse(text).map_or_else(|| Name::parse(text).map(EndpointRef::Uid), |id| Ok(EndpointRef::Id(id)))
    }
}

impl MessageRef {
    pub fn parse(text: &str) -> Result<MessageRef, NameError> {
        MessageId::parse(text).map_or_else(|| Name::parse(text).map(MessageRef::EventId), |id| Ok(MessageRef::Id(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::ShardId, time::ShardTime, webhooks::id::Id};

    #[test]
    fn names_keep_to_the_pattern() {
        for good in ["a", "user.created", "A-_.9"] {
            assert!(Name::parse(good).is_ok());
        }
        assert_eq!(Name::parse(""), Err(NameError::Length { len: 0, max: 256 }));
        assert!(Name::parse(&"a".repeat(256)).is_ok() && Name::parse_uid(&"a".repeat(256)).is_err());
        for bad in ["a b", "ü", "a/b", "a\0", "a,b", "a%"] {
            assert_eq!(Name::parse(bad), Err(NameError::Charset), "{bad}");
        }
    }

    #[test]
    fn an_id_is_no_uid_and_a_path_tells_them_apart() {
        let id = AppId(Id::new(ShardTime(1), 0, ShardId(1), [9; 6]));
        assert_eq!(Name::parse_uid(&id.to_string()), Err(NameError::IsId));
        assert_eq!(AppRef::parse(&id.to_string()), Ok(AppRef::Id(id)));
        assert_eq!(AppRef::parse("acme"), Ok(AppRef::Uid(Name("acme".into()))));
        // An id of another kind is at most a uid that nobody can have.
        assert!(matches!(EndpointRef::parse(&id.to_string()), Ok(EndpointRef::Uid(_))));
    }
}
