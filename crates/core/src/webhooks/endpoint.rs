//! Endpoint: where messages go, which of them, and with what headers and secrets.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    bounds::{ENDPOINTS_MAX, FORMER_SECRETS_MAX, HEADER_BYTES_MAX, HEADERS_MAX, OPERATIONAL_ENDPOINTS_MAX},
    command::{Done, Refusal, Stamp, WebhookReply},
    desk::{Desk, FoundApp, FoundEndpoint, endpoint_of_uid},
    dispatch::EndpointKey,
    id::{AppId, EndpointId},
    names::{AppRef, EndpointRef, Name},
    operational, removable,
    rows::{EndpointRow, EndpointState, FormerSecret},
    secret::Secret,
};
use crate::{codec::keys, rows::RowsError};

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
    #[serde(with = "removable")]
    pub uid: Option<Option<Name>>,
    pub url: Option<String>,
    pub description: Option<String>,
    #[serde(with = "removable")]
    pub rate_limit: Option<Option<u32>>,
    pub disabled: Option<bool>,
    #[serde(with = "removable")]
    pub event_types: Option<Option<BTreeSet<Name>>>,
    #[serde(with = "removable")]
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

impl CreateEndpoint {
    pub(super) fn apply(&self, desk: &mut Desk<'_>, stamp: Stamp) -> Done {
        let Some(app) = desk.find_owner(&self.app)? else { return Ok(Err(Refusal::NoApp)) };
        let row = new_row(stamp, self.uid.clone(), self.spec.clone(), self.headers.clone(), self.secret.clone());
        create(desk, stamp, app, row)
    }
}

impl PutEndpoint {
    pub(super) fn apply(&self, desk: &mut Desk<'_>, stamp: Stamp) -> Done {
        let Some(app) = desk.find_owner(&self.app)? else { return Ok(Err(Refusal::NoApp)) };
        let Some(found) = desk.find_endpoint(app.id, &self.endpoint)? else {
            let EndpointRef::Uid(path) = &self.endpoint else { return Ok(Err(Refusal::NoEndpoint)) };
            if Name::parse_uid(path.as_str()).is_err() {
                return Ok(Err(Refusal::NoEndpoint));
            }
            let uid = self.uid.as_ref().unwrap_or(path).clone();
            let row = new_row(stamp, Some(uid), self.spec.clone(), Headers::new(), self.secret.clone());
            return create(desk, stamp, app, row);
        };
        // Named by its uid it keeps it, so that the same call again meets the same endpoint.
        let named_by = match &self.endpoint {
            EndpointRef::Uid(uid) => Some(uid.clone()),
            EndpointRef::Id(_) => None,
        };
        let uid = self.uid.clone().or(named_by);
        update(desk, stamp, found, uid, self.spec.clone())
    }
}

impl PatchEndpoint {
    pub(super) fn apply(&self, desk: &mut Desk<'_>, stamp: Stamp) -> Done {
        let found = match find(desk, &self.app, &self.endpoint)? {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let EndpointPatch { uid, url, description, rate_limit, disabled, event_types, channels, metadata } =
            self.patch.clone();
        let uid = uid.unwrap_or_else(|| found.row.uid.clone());
        let before = found.row.spec.clone();
        let spec = EndpointSpec {
            url: url.unwrap_or(before.url),
            description: description.unwrap_or(before.description),
            rate_limit: rate_limit.unwrap_or(before.rate_limit),
            disabled: disabled.unwrap_or(before.disabled),
            event_types: event_types.unwrap_or(before.event_types),
            channels: channels.unwrap_or(before.channels),
            metadata: metadata.unwrap_or(before.metadata),
        };
        update(desk, stamp, found, uid, spec)
    }
}

impl DeleteEndpoint {
    /// What it has pending is removed piece by piece; what was tried is listed until its messages go.
    pub(super) fn apply(&self, desk: &mut Desk<'_>) -> Done {
        let Some(mut app) = desk.find_owner(&self.app)? else { return Ok(Err(Refusal::NoApp)) };
        let Some(found) = desk.find_endpoint(app.id, &self.endpoint)? else { return Ok(Err(Refusal::NoEndpoint)) };
        if let Some(uid) = &found.row.uid {
            desk.delete(keys::endpoint_uid(app.id, uid.as_str()));
        }
        desk.delete(keys::endpoint(found.key));
        desk.delete(keys::endpoint_state(found.key));
        desk.subscribers.forget(app.id);
        desk.touch(found.key);
        desk.clear(keys::clearing_endpoint(found.key));
        app.row.endpoints = app.row.endpoints.saturating_sub(1);
        desk.put(keys::app(app.id), &app.row);
        operational::note_change(desk, app.id)?;
        Ok(Ok(WebhookReply::Done))
    }
}

impl SetHeaders {
    pub(super) fn apply(&self, desk: &mut Desk<'_>, stamp: Stamp) -> Done {
        let mut found = match find(desk, &self.app, &self.endpoint)? {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut headers = if self.patch { found.row.headers } else { Headers::new() };
        for (name, value) in &self.headers {
            headers.retain(|known, _| !known.eq_ignore_ascii_case(name));
            if let Some(value) = value {
                headers.insert(name.clone(), value.clone());
            }
        }
        let bytes = headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        if headers.len() > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
            return Ok(Err(Refusal::HeadersTooLarge));
        }
        found.row.headers = headers;
        found.row.updated_wall_ms = stamp.wall_ms;
        store(desk, &found)?;
        Ok(Ok(WebhookReply::Done))
    }
}

impl RotateSecret {
    pub(super) fn apply(&self, desk: &mut Desk<'_>, stamp: Stamp) -> Done {
        let mut found = match find(desk, &self.app, &self.endpoint)? {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if found.row.secret == self.secret {
            return Ok(Ok(WebhookReply::Done));
        }
        let now = desk.now;
        let replaced = FormerSecret { secret: found.row.secret, ends_at: now.plus_us(self.grace_us) };
        let former = std::iter::once(replaced).chain(found.row.former);
        let former: Vec<_> = former.filter(|former| now < former.ends_at && former.secret != self.secret).collect();
        if former.len() > FORMER_SECRETS_MAX {
            return Ok(Err(Refusal::TooManySecrets));
        }
        found.row.former = former;
        found.row.secret = self.secret.clone();
        found.row.updated_wall_ms = stamp.wall_ms;
        store(desk, &found)?;
        Ok(Ok(WebhookReply::Done))
    }
}

fn find(desk: &Desk<'_>, app: &AppRef, endpoint: &EndpointRef) -> Done<FoundEndpoint> {
    let Some(app) = desk.find_owner(app)? else { return Ok(Err(Refusal::NoApp)) };
    Ok(desk.find_endpoint(app.id, endpoint)?.ok_or(Refusal::NoEndpoint))
}

fn new_row(stamp: Stamp, uid: Option<Name>, spec: EndpointSpec, headers: Headers, secret: Secret) -> EndpointRow {
    let (created_wall_ms, updated_wall_ms) = (stamp.wall_ms, stamp.wall_ms);
    EndpointRow { uid, spec, headers, secret, former: Vec::new(), created_wall_ms, updated_wall_ms }
}

fn create(desk: &mut Desk<'_>, stamp: Stamp, mut app: FoundApp, row: EndpointRow) -> Done {
    let max = if app.id == AppId::OPERATIONAL { OPERATIONAL_ENDPOINTS_MAX } else { ENDPOINTS_MAX };
    if app.row.endpoints >= max {
        return Ok(Err(Refusal::TooMany { max: u64::from(max) }));
    }
    if let Some(uid) = &row.uid
        && endpoint_of_uid(desk.rows, app.id, uid)?.is_some()
    {
        return Ok(Err(Refusal::Taken));
    }
    let key = EndpointKey { app: app.id, endpoint: EndpointId(desk.next_id(stamp.nonce)?) };
    if let Some(uid) = &row.uid {
        desk.put(keys::endpoint_uid(app.id, uid.as_str()), &key.endpoint);
    }
    app.row.endpoints += 1;
    desk.put(keys::app(app.id), &app.row);
    let endpoint = row.view(key.endpoint);
    store(desk, &FoundEndpoint { key, row })?;
    Ok(Ok(WebhookReply::Endpoint { endpoint, created: true }))
}

fn update(desk: &mut Desk<'_>, stamp: Stamp, mut found: FoundEndpoint, uid: Option<Name>, spec: EndpointSpec) -> Done {
    if uid != found.row.uid {
        if let Some(uid) = &uid {
            if endpoint_of_uid(desk.rows, found.key.app, uid)?.is_some() {
                return Ok(Err(Refusal::Taken));
            }
            desk.put(keys::endpoint_uid(found.key.app, uid.as_str()), &found.key.endpoint);
        }
        if let Some(former) = &found.row.uid {
            desk.delete(keys::endpoint_uid(found.key.app, former.as_str()));
        }
    }
    if found.row.spec.disabled && !spec.disabled {
        // Whoever enables it starts its patience anew.
        let state = desk.endpoint_state(found.key)?;
        desk.put(keys::endpoint_state(found.key), &EndpointState { failing: None, ..state });
    }
    found.row.uid = uid;
    found.row.spec = spec;
    found.row.updated_wall_ms = stamp.wall_ms;
    store(desk, &found)?;
    Ok(Ok(WebhookReply::Endpoint { endpoint: found.row.view(found.key.endpoint), created: false }))
}

fn store(desk: &mut Desk<'_>, found: &FoundEndpoint) -> Result<(), RowsError> {
    desk.put_endpoint(found.key, &found.row);
    operational::note_change(desk, found.key.app)
}

impl EndpointRow {
    pub(super) fn view(&self, id: EndpointId) -> EndpointView {
        EndpointView {
            id,
            uid: self.uid.clone(),
            spec: self.spec.clone(),
            created_wall_ms: self.created_wall_ms,
            updated_wall_ms: self.updated_wall_ms,
        }
    }
}
