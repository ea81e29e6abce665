//! Application: whom endpoints and messages belong to. It is an account: its uid, or its id where it has none, is the
//! account's name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    id::AppId,
    names::{AppRef, Name},
};

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
    pub rate_limit: Option<Option<u32>>,
    pub metadata: Option<BTreeMap<String, String>>,
    /// Only the one that it has is accepted.
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
