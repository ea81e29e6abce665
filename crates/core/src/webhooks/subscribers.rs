//! Subscribers: the endpoints of an application, decoded once for all of its messages.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    id::{AppId, EndpointId},
    rows::EndpointRow,
};
use crate::{
    codec::keys::{self, Kind},
    rows::{ReadRows, RowsError, Table, corrupt, decode},
};

/// Applications kept; an endpoint may name a hundred types, so this is tens of megabytes in the worst case.
const APPS_KEPT_MAX: usize = 256;
/// Rows read at a time.
const CHUNK_ROWS: usize = 128;

/// Decoded copies of rows: whoever changes an endpoint's row calls [`Subscribers::forget`].
#[derive(Debug, Default)]
pub(crate) struct Subscribers(BTreeMap<AppId, Arc<Vec<Subscriber>>>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subscriber {
    pub id: EndpointId,
    pub row: EndpointRow,
}

impl Subscribers {
    /// By ascending id.
    pub(super) fn of(&mut self, rows: &dyn ReadRows, app: AppId) -> Result<Arc<Vec<Subscriber>>, RowsError> {
        if let Some(known) = self.0.get(&app) {
            return Ok(known.clone());
        }
        let loaded = Arc::new(load(rows, app)?);
        if self.0.len() >= APPS_KEPT_MAX {
            self.0.clear();
        }
        self.0.insert(app, loaded.clone());
        Ok(loaded)
    }

    pub(super) fn forget(&mut self, app: AppId) {
        self.0.remove(&app);
    }
}

fn load(rows: &dyn ReadRows, app: AppId) -> Result<Vec<Subscriber>, RowsError> {
    let prefix = keys::rows_of_app(Kind::Endpoint, app);
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let chunk = rows.scan(Table::State, &prefix, after.as_deref(), CHUNK_ROWS)?;
        let is_end = chunk.len() < CHUNK_ROWS;
        for (key, value) in chunk {
            let id = keys::ids(&key).nth(1).ok_or_else(|| corrupt(Table::State, &key, "not an endpoint's key"))?;
            let row: EndpointRow = decode(&key, &value)?;
            found.push(Subscriber { id: EndpointId(id), row });
            after = Some(key);
        }
        if is_end {
            return Ok(found);
        }
    }
}
