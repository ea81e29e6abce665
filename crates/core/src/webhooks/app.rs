//! Application: whom endpoints and messages belong to. It is an account: its uid, or its id where it has none, is the
//! account's name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    command::{Done, Refusal, Stamp, WebhookReply},
    desk::{Desk, FoundApp},
    dispatch::EndpointKey,
    id::AppId,
    names::{AppRef, Name},
    removable,
    rows::AppRow,
};
use crate::{codec::keys, rows::RowsError};

/// What a caller says of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppSpec {
    pub name: String,
    /// Messages a second to all of its endpoints together.
    pub rate_limit: Option<u32>,
    pub metadata: BTreeMap<String, String>,
}

/// What is to be changed; `None` stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppPatch {
    pub name: Option<String>,
    /// `Some(None)` removes it.
    #[serde(with = "removable")]
    pub rate_limit: Option<Option<u32>>,
    pub metadata: Option<BTreeMap<String, String>>,
    /// Only the one that it has is accepted.
    #[serde(with = "removable")]
    pub uid: Option<Option<Name>>,
}

/// An application as callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppView {
    pub id: AppId,
    pub uid: Option<Name>,
    pub spec: AppSpec,
    /// Display times.
    pub created_wall_ms: u64,
    pub updated_wall_ms: u64,
}

impl AppView {
    /// The account that it is.
    pub fn account(&self) -> String {
        self.uid.as_ref().map_or_else(|| self.id.to_string(), |uid| uid.as_str().to_owned())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateApp {
    pub uid: Option<Name>,
    pub spec: AppSpec,
    /// One that has the uid already is answered as it is.
    pub get_if_exists: bool,
}

/// Replaces an application's spec, or makes the one whose uid the path names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutApp {
    pub app: AppRef,
    /// As the body has it.
    pub uid: Option<Name>,
    pub spec: AppSpec,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchApp {
    pub app: AppRef,
    pub patch: AppPatch,
}

impl CreateApp {
    pub(super) fn apply(&self, desk: &mut Desk<'_>, stamp: Stamp) -> Done {
        if let Some(uid) = &self.uid
            && let Some(found) = desk.find_app(&AppRef::Uid(uid.clone()))?
        {
            return Ok(if self.get_if_exists {
                Ok(WebhookReply::App { app: found.view(), created: false })
            } else {
                Err(Refusal::Taken)
            });
        }
        create(desk, stamp, self.uid.clone(), self.spec.clone()).map(Ok)
    }
}

impl PutApp {
    pub(super) fn apply(&self, desk: &mut Desk<'_>, stamp: Stamp) -> Done {
        let Some(found) = desk.find_app(&self.app)? else {
            return match &self.app {
                AppRef::Uid(uid) if self.uid.as_ref().is_some_and(|given| given != uid) => Ok(Err(Refusal::UidFixed)),
                AppRef::Uid(uid) if Name::parse_uid(uid.as_str()).is_ok() => {
                    create(desk, stamp, Some(uid.clone()), self.spec.clone()).map(Ok)
                }
                _ => Ok(Err(Refusal::NoApp)),
            };
        };
        if self.uid.is_some() && self.uid != found.row.uid {
            return Ok(Err(Refusal::UidFixed));
        }
        let row = AppRow { spec: self.spec.clone(), updated_wall_ms: stamp.wall_ms, ..found.row };
        update(desk, FoundApp { id: found.id, row }).map(Ok)
    }
}

impl PatchApp {
    pub(super) fn apply(&self, desk: &mut Desk<'_>, stamp: Stamp) -> Done {
        let Some(FoundApp { id, mut row }) = desk.find_app(&self.app)? else { return Ok(Err(Refusal::NoApp)) };
        let AppPatch { name, rate_limit, metadata, uid } = self.patch.clone();
        if uid.is_some_and(|uid| uid != row.uid) {
            return Ok(Err(Refusal::UidFixed));
        }
        row.spec.name = name.unwrap_or(row.spec.name);
        row.spec.rate_limit = rate_limit.unwrap_or(row.spec.rate_limit);
        row.spec.metadata = metadata.unwrap_or(row.spec.metadata);
        row.updated_wall_ms = stamp.wall_ms;
        update(desk, FoundApp { id, row }).map(Ok)
    }
}

/// Deletes an application, and its endpoints at once, so that no outcome adds to what is removed piece by piece. Its
/// idempotency keys stay.
pub(super) fn delete(desk: &mut Desk<'_>, app: &AppRef) -> Done {
    let Some(found) = desk.find_app(app)? else { return Ok(Err(Refusal::NoApp)) };
    if let Some(uid) = &found.row.uid {
        desk.delete(keys::app_uid(uid.as_str()));
    }
    desk.delete(keys::app(found.id));
    for subscriber in desk.subscribers.of(desk.rows, found.id)?.iter() {
        let endpoint = EndpointKey { app: found.id, endpoint: subscriber.id };
        desk.delete(keys::endpoint(endpoint));
        desk.touch(endpoint);
    }
    desk.subscribers.forget(found.id);
    desk.clear(keys::clearing_app(found.id));
    Ok(Ok(WebhookReply::Done))
}

fn create(desk: &mut Desk<'_>, stamp: Stamp, uid: Option<Name>, spec: AppSpec) -> Result<WebhookReply, RowsError> {
    let id = AppId(desk.next_id(stamp.nonce)?);
    if let Some(uid) = &uid {
        desk.put(keys::app_uid(uid.as_str()), &id);
    }
    let row = AppRow { uid, spec, created_wall_ms: stamp.wall_ms, updated_wall_ms: stamp.wall_ms, endpoints: 0 };
    desk.put(keys::app(id), &row);
    Ok(WebhookReply::App { app: FoundApp { id, row }.view(), created: true })
}

fn update(desk: &mut Desk<'_>, app: FoundApp) -> Result<WebhookReply, RowsError> {
    desk.put(keys::app(app.id), &app.row);
    // Its rate limit is theirs, too.
    let subscribers = desk.subscribers.of(desk.rows, app.id)?;
    subscribers.iter().for_each(|known| desk.touch(EndpointKey { app: app.id, endpoint: known.id }));
    Ok(WebhookReply::App { app: app.view(), created: false })
}
