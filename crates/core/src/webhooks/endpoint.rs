//! Endpoint: where messages go, which of them, and with what headers and secrets.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    id::EndpointId,
    names::{AppRef, EndpointRef, Name},
    secret::Secret,
};

/// What a caller says of an endpoint. Its URL was vetted by whoever received the call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSpec {
    pub url: String,
    pub description: String,
    /// Messages a second.
    pub rate_limit: Option<u32>,
    pub disabled: bool,
    /// The types it wants; `None`: all.
    pub event_types: Option<BTreeSet<Name>>,
    /// The channels it listens to; `None`: all messages, whatever their channels.
    pub channels: Option<BTreeSet<String>>,
    pub metadata: BTreeMap<String, String>,
}

impl EndpointSpec {
    /// Whether a message of this type on these channels is for it.
    pub(crate) fn matches(&self, event_type: &Name, channels: &[String]) -> bool {
        self.event_types.as_ref().is_none_or(|wanted| wanted.contains(event_type))
            && self.channels.as_ref().is_none_or(|wanted| channels.iter().any(|channel| wanted.contains(channel)))
    }
}

/// What is to be changed; `None` stays, `Some(None)` removes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPatch {
    /// Unlike an application's, an endpoint's uid may change.
    pub uid: Option<Option<Name>>,
    pub url: Option<String>,
    pub description: Option<String>,
    pub rate_limit: Option<Option<u32>>,
    pub disabled: Option<bool>,
    pub event_types: Option<Option<BTreeSet<Name>>>,
    pub channels: Option<Option<BTreeSet<String>>>,
    pub metadata: Option<BTreeMap<String, String>>,
}

/// An endpoint as callers see it; never with its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointView {
    pub id: EndpointId,
    pub uid: Option<Name>,
    pub spec: EndpointSpec,
    /// Display times.
    pub created_wall_ms: u64,
    pub updated_wall_ms: u64,
}

/// Names as they were given; compared without regard to case.
pub type Headers = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateEndpoint {
    pub app: AppRef,
    pub uid: Option<Name>,
    pub spec: EndpointSpec,
    pub headers: Headers,
    /// The caller's, or one that the receiving node made.
    pub secret: Secret,
}

/// Replaces an endpoint's spec, or makes the one whose uid the path names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutEndpoint {
    pub app: AppRef,
    pub endpoint: EndpointRef,
    pub uid: Option<Name>,
    pub spec: EndpointSpec,
    /// For one that is made.
    pub secret: Secret,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchEndpoint {
    pub app: AppRef,
    pub endpoint: EndpointRef,
    pub patch: EndpointPatch,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteEndpoint {
    pub app: AppRef,
    pub endpoint: EndpointRef,
}

/// Replaces all headers, or with `patch` sets those that have a value and removes those that have none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetHeaders {
    pub app: AppRef,
    pub endpoint: EndpointRef,
    pub patch: bool,
    pub headers: BTreeMap<String, Option<String>>,
}

/// Signs with another secret from this entry on, and with the former ones, too, until their grace is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotateSecret {
    pub app: AppRef,
    pub endpoint: EndpointRef,
    pub secret: Secret,
    pub grace_us: u64,
}
