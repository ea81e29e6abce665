//! Desk: one command's access to the webhooks of a shard, at the clock of its entry.

use bytes::Bytes;
use serde::Serialize;

use super::{
    app::{AppSpec, AppView},
    dispatch::EndpointKey,
    id::{AppId, EndpointId, Id, Nonce},
    names::{AppRef, EndpointRef, Name},
    rows::{AppRow, EndpointRow, EndpointState, LastId},
    subscribers::Subscribers,
};
use crate::{
    cluster::ShardId,
    codec::{self, keys},
    rows::{ReadRows, Rows, RowsError, Table, read},
    time::ShardTime,
};

pub(crate) struct Desk<'a> {
    pub(super) rows: &'a mut dyn Rows,
    pub(super) now: ShardTime,
    shard: ShardId,
    /// The state rows of endpoints for which something changed that a dispatcher must know.
    touched: &'a mut Vec<Bytes>,
    pub(super) subscribers: &'a mut Subscribers,
    /// Rows written or deleted, about.
    changes: usize,
}

/// An application as it was found.
pub(super) struct FoundApp {
    pub id: AppId,
    pub row: AppRow,
}

/// An endpoint as it was found.
pub(super) struct FoundEndpoint {
    pub key: EndpointKey,
    pub row: EndpointRow,
}

impl FoundApp {
    pub(super) fn view(&self) -> AppView {
        AppView {
            id: self.id,
            uid: self.row.uid.clone(),
            spec: self.row.spec.clone(),
            created_wall_ms: self.row.created_wall_ms,
            updated_wall_ms: self.row.updated_wall_ms,
        }
    }
}

impl<'a> Desk<'a> {
    pub(crate) fn new(
        rows: &'a mut dyn Rows,
        now: ShardTime,
        shard: ShardId,
        touched: &'a mut Vec<Bytes>,
        subscribers: &'a mut Subscribers,
    ) -> Desk<'a> {
        Desk { rows, now, shard, touched, subscribers, changes: 0 }
    }

    /// An id greater than all that this shard made before.
    pub(super) fn next_id(&mut self, nonce: Nonce) -> Result<Id, RowsError> {
        let last: LastId = read(self.rows, &keys::IDS)?.unwrap_or_default();
        let counter = if last.at == self.now { last.counter.saturating_add(1) } else { 0 };
        self.put(keys::IDS.clone(), &LastId { at: self.now, counter });
        Ok(Id::new(self.now, counter, self.shard, nonce))
    }

    pub(super) fn put(&mut self, key: Bytes, row: &(impl Serialize + ?Sized)) {
        self.changes += 1;
        self.rows.put(Table::State, key, codec::encode(row));
    }

    pub(crate) fn changes(&self) -> usize {
        self.changes
    }

    pub(super) fn delete(&mut self, key: Bytes) {
        self.changes += 1;
        self.rows.delete(Table::State, key);
    }

    /// Files a row as due, strictly behind the clock: an `Expire` would find it again and again.
    pub(super) fn file(&mut self, row: &[u8], due: ShardTime) {
        self.rows.put(Table::Expiry, keys::due(due.max(self.now.plus_us(1)), row), Bytes::new());
    }

    /// What is due of this endpoint, or where it goes, is not what it was.
    pub(super) fn touch(&mut self, endpoint: EndpointKey) {
        self.touched.push(keys::endpoint_state(endpoint));
    }

    /// The application that an account is.
    pub(crate) fn find_account(&self, account: &str) -> Result<Option<AppId>, RowsError> {
        find_account(self.rows, account)
    }

    pub(super) fn find_app(&self, app: &AppRef) -> Result<Option<FoundApp>, RowsError> {
        find_app(self.rows, app)
    }

    pub(super) fn find_owner(&self, app: &AppRef) -> Result<Option<FoundApp>, RowsError> {
        find_owner(self.rows, app)
    }

    pub(super) fn find_endpoint(&self, app: AppId, name: &EndpointRef) -> Result<Option<FoundEndpoint>, RowsError> {
        find_endpoint(self.rows, app, name)
    }

    /// Writes an endpoint's row; its state tells the dispatcher.
    pub(super) fn put_endpoint(&mut self, endpoint: EndpointKey, row: &EndpointRow) {
        self.put(keys::endpoint(endpoint), row);
        self.subscribers.forget(endpoint.app);
        self.touch(endpoint);
    }

    pub(super) fn endpoint_state(&self, endpoint: EndpointKey) -> Result<EndpointState, RowsError> {
        Ok(read(self.rows, &keys::endpoint_state(endpoint))?.unwrap_or_default())
    }

    /// Sees to it that all rows of this kind of key are removed, piece by piece.
    pub(super) fn clear(&mut self, row: Bytes) {
        self.file(&row, self.now);
        self.put(row, &());
    }
}

/// What endpoints belong to: an application, or the cluster itself.
pub(super) fn find_owner(rows: &(impl ReadRows + ?Sized), app: &AppRef) -> Result<Option<FoundApp>, RowsError> {
    match app {
        AppRef::Operational => {
            let row = read(rows, &keys::app(AppId::OPERATIONAL))?.unwrap_or_else(cluster_itself);
            Ok(Some(FoundApp { id: AppId::OPERATIONAL, row }))
        }
        _ => find_app(rows, app),
    }
}

pub(super) fn find_app(rows: &(impl ReadRows + ?Sized), app: &AppRef) -> Result<Option<FoundApp>, RowsError> {
    let id = match app {
        AppRef::Id(id) => Some(*id).filter(|id| *id != AppId::OPERATIONAL),
        AppRef::Uid(uid) => read(rows, &keys::app_uid(uid.as_str()))?,
        AppRef::Operational => None,
    };
    let Some(id) = id else { return Ok(None) };
    Ok(read(rows, &keys::app(id))?.map(|row| FoundApp { id, row }))
}

/// To which operational endpoints belong; its row only counts them.
fn cluster_itself() -> AppRow {
    let spec = AppSpec { name: String::new(), rate_limit: None, metadata: Default::default() };
    AppRow { uid: None, spec, created_wall_ms: 0, updated_wall_ms: 0, endpoints: 0 }
}

/// The application that an account is: the one with this uid, or the one without a uid that has this id.
fn find_account(rows: &(impl ReadRows + ?Sized), account: &str) -> Result<Option<AppId>, RowsError> {
    let Ok(app) = AppRef::parse(account) else { return Ok(None) };
    let found = find_app(rows, &app)?;
    let is_its_name = |found: &FoundApp| matches!(app, AppRef::Uid(_)) || found.row.uid.is_none();
    Ok(found.filter(is_its_name).map(|found| found.id))
}

pub(super) fn find_endpoint(
    rows: &(impl ReadRows + ?Sized),
    app: AppId,
    name: &EndpointRef,
) -> Result<Option<FoundEndpoint>, RowsError> {
    let endpoint = match name {
        EndpointRef::Id(id) => *id,
        EndpointRef::Uid(uid) => match endpoint_of_uid(rows, app, uid)? {
            Some(id) => id,
            None => return Ok(None),
        },
    };
    let key = EndpointKey { app, endpoint };
    Ok(read(rows, &keys::endpoint(key))?.map(|row| FoundEndpoint { key, row }))
}

pub(super) fn endpoint_of_uid(
    rows: &(impl ReadRows + ?Sized),
    app: AppId,
    uid: &Name,
) -> Result<Option<EndpointId>, RowsError> {
    read(rows, &keys::endpoint_uid(app, uid.as_str()))
}
