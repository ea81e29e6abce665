//! Operational endpoints: who is told when an endpoint is disabled or a delivery given up. They are written on the system
//! shard, and copied into every data shard, so that what is told commits with what it tells of.

use serde::{Deserialize, Serialize};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    command::Stamp,
    desk::Desk,
    dispatch::EndpointKey,
    endpoint::{EndpointSpec, Headers},
    id::{AppId, EndpointId},
    message::NewMessage,
    names::Name,
    rows::{EndpointRow, FormerSecret},
    secret::Secret,
    subscribers::Subscribers,
};
use crate::{
    codec::keys,
    machine,
    rows::{ReadRows, RowsError, read},
    time::ShardTime,
};

/// All operational endpoints as of a revision of the system shard. Applied only if the revision is greater than that
/// of the shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOperational {
    pub revision: u64,
    /// By ascending id.
    pub endpoints: Vec<OperationalEndpoint>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationalEndpoint {
    pub id: EndpointId,
    pub uid: Option<Name>,
    pub spec: EndpointSpec,
    pub headers: Headers,
    pub secret: Secret,
    /// Former secrets with the time for which they are still good; shards' clocks differ.
    pub former: Vec<(Secret, u64)>,
    pub created_wall_ms: u64,
    pub updated_wall_ms: u64,
}

impl CopyOperational {
    /// Returns the revision that the shard stands at then.
    pub(crate) fn apply(&self, desk: &mut Desk<'_>) -> Result<u64, RowsError> {
        let copied = revision(desk.rows)?;
        if self.revision <= copied {
            return Ok(copied);
        }
        let app = AppId::OPERATIONAL;
        let before = desk.subscribers.of(desk.rows, app)?;
        for gone in before.iter().filter(|known| self.endpoints.iter().all(|endpoint| endpoint.id != known.id)) {
            let key = EndpointKey { app, endpoint: gone.id };
            desk.delete(keys::endpoint(key));
            desk.delete(keys::endpoint_state(key));
            desk.touch(key);
            desk.clear(keys::clearing_endpoint(key));
        }
        for endpoint in &self.endpoints {
            let row = endpoint.row(desk.now);
            desk.put_endpoint(EndpointKey { app, endpoint: endpoint.id }, &row);
        }
        desk.subscribers.forget(app);
        desk.put(keys::OPERATIONAL_REVISION.clone(), &self.revision);
        Ok(self.revision)
    }
}

impl OperationalEndpoint {
    fn of(id: EndpointId, row: EndpointRow, now: ShardTime) -> OperationalEndpoint {
        let still_good = |former: FormerSecret| (former.secret, former.ends_at.since_us(now));
        OperationalEndpoint {
            id,
            uid: row.uid,
            spec: row.spec,
            headers: row.headers,
            secret: row.secret,
            former: row.former.into_iter().map(still_good).filter(|(_, left_us)| *left_us > 0).collect(),
            created_wall_ms: row.created_wall_ms,
            updated_wall_ms: row.updated_wall_ms,
        }
    }

    fn row(&self, now: ShardTime) -> EndpointRow {
        let former = self.former.iter().cloned();
        EndpointRow {
            uid: self.uid.clone(),
            spec: self.spec.clone(),
            headers: self.headers.clone(),
            secret: self.secret.clone(),
            former: former.map(|(secret, left_us)| FormerSecret { secret, ends_at: now.plus_us(left_us) }).collect(),
            created_wall_ms: self.created_wall_ms,
            updated_wall_ms: self.updated_wall_ms,
        }
    }
}

/// The system shard's revision of its operational endpoints, or that of a data shard's copy.
pub(super) fn revision(rows: &(impl ReadRows + ?Sized)) -> Result<u64, RowsError> {
    Ok(read(rows, &keys::OPERATIONAL_REVISION)?.unwrap_or(0))
}

/// On the system shard: what is to be copied.
pub(super) fn all(rows: &dyn ReadRows) -> Result<CopyOperational, RowsError> {
    let now = machine::clock(rows)?;
    let endpoints = Subscribers::default().of(rows, AppId::OPERATIONAL)?;
    let endpoints = endpoints.iter().map(|known| OperationalEndpoint::of(known.id, known.row.clone(), now));
    Ok(CopyOperational { revision: revision(rows)?, endpoints: endpoints.collect() })
}

/// Counts a change of an operational endpoint, where it is one.
pub(super) fn note_change(desk: &mut Desk<'_>, app: AppId) -> Result<(), RowsError> {
    if app == AppId::OPERATIONAL {
        let next = revision(desk.rows)?.saturating_add(1);
        desk.put(keys::OPERATIONAL_REVISION.clone(), &next);
    }
    Ok(())
}

/// What operational endpoints are told. The forms are Svix's.
#[derive(Debug, Serialize)]
#[serde(tag = "type", content = "data")]
pub(super) enum Notice {
    #[serde(rename = "endpoint.disabled", rename_all = "camelCase")]
    EndpointDisabled {
        app_id: String,
        app_uid: Option<Name>,
        endpoint_id: String,
        endpoint_uid: Option<Name>,
        fail_since: String,
    },
    #[serde(rename = "message.attempt.exhausted", rename_all = "camelCase")]
    AttemptExhausted {
        app_id: String,
        app_uid: Option<Name>,
        endpoint_id: String,
        endpoint_uid: Option<Name>,
        msg_id: String,
        msg_event_id: Option<Name>,
        last_attempt: LastAttempt,
    },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LastAttempt {
    pub id: String,
    pub response_status_code: u16,
    pub timestamp: String,
}

impl Notice {
    fn event_type(&self) -> &'static str {
        match self {
            Notice::EndpointDisabled { .. } => "endpoint.disabled",
            Notice::AttemptExhausted { .. } => "message.attempt.exhausted",
        }
    }

    /// Sends it to the operational endpoints that want it, if there are any.
    pub(super) fn publish(&self, desk: &mut Desk<'_>, stamp: Stamp, retention_us: u64) -> Result<(), RowsError> {
        if desk.subscribers.of(desk.rows, AppId::OPERATIONAL)?.is_empty() {
            return Ok(());
        }
        let message = NewMessage {
            event_type: Name::parse(self.event_type()).expect("the names above keep to the pattern"),
            event_id: None,
            channels: Vec::new(),
            tags: Vec::new(),
            payload: serde_json::to_vec(self).expect("strings and numbers are JSON").into(),
            payload_retention_us: None,
        };
        message.append(desk, AppId::OPERATIONAL, stamp, retention_us).map(drop)
    }
}

/// An instant of display time in RFC 3339.
pub(super) fn rfc3339(wall_ms: u64) -> String {
    let instant = OffsetDateTime::from_unix_timestamp_nanos(i128::from(wall_ms) * 1_000_000).ok();
    instant.and_then(|instant| instant.format(&Rfc3339).ok()).unwrap_or_default()
}
