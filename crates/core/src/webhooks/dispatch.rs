//! What the dispatcher of a shard's leader reads of its rows: who has something due, what it is, and where it goes.

use bytes::Bytes;

use super::{
    endpoint::Headers,
    id::{AppId, EndpointId, MessageId},
    rows::{AppRow, DeliveryRow, EndpointRow},
    secret::Secret,
};
use crate::{
    codec::keys::{self, Kind},
    rows::{ReadRows, RowsError, Table, corrupt, read},
    time::ShardTime,
};

/// An endpoint within its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    pub app: AppId,
    pub endpoint: EndpointId,
}

/// A delivery that is due at some time; in this order within its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DueItem {
    pub at: ShardTime,
    pub message: MessageId,
}

/// Where deliveries go as of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub url: String,
    pub headers: Headers,
    /// The newest first; never none.
    pub secrets: Vec<Secret>,
    pub rate_limit: Option<u32>,
    pub app_rate_limit: Option<u32>,
    pub disabled: bool,
}

/// A delivery that still has to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDelivery {
    /// `None` for operational messages: each shard sends its own.
    pub sequence: Option<u64>,
    pub tries: u16,
    pub payload: Bytes,
}

/// Endpoints behind `after` that have something pending, at most `limit`, each with the time at which its first delivery
/// is due; reads one row for each. Also those that are disabled, or deleted and not cleared away yet.
pub fn pending_endpoints(
    rows: &dyn ReadRows,
    after: Option<EndpointKey>,
    limit: usize,
) -> Result<Vec<(EndpointKey, ShardTime)>, RowsError> {
    let prefix = Kind::Due.prefix();
    let mut found = Vec::new();
    let mut after = after.map(keys::due_end);
    while found.len() < limit {
        let Some((row, _)) = rows.scan(Table::State, &prefix, after.as_deref(), 1)?.into_iter().next() else { break };
        let (endpoint, item) = parse(&row)?;
        found.push((endpoint, item.at));
        after = Some(keys::due_end(endpoint));
    }
    Ok(found)
}

/// What is due of an endpoint behind `after`, until `until`, at most `limit` of it; and when the next is due behind that,
/// where that is known to be later than `until`.
pub fn due(
    rows: &dyn ReadRows,
    endpoint: EndpointKey,
    until: ShardTime,
    after: Option<DueItem>,
    limit: usize,
) -> Result<(Vec<DueItem>, Option<ShardTime>), RowsError> {
    let after = after.map(|item| keys::delivery_due(endpoint, item));
    let mut items = Vec::new();
    for (row, _) in rows.scan(Table::State, &keys::due_of(endpoint), after.as_deref(), limit.saturating_add(1))? {
        let (_, item) = parse(&row)?;
        if item.at > until {
            return Ok((items, Some(item.at)));
        }
        if items.len() == limit {
            break;
        }
        items.push(item);
    }
    Ok((items, None))
}

fn parse(row: &[u8]) -> Result<(EndpointKey, DueItem), RowsError> {
    keys::parse_delivery_due(row).ok_or_else(|| corrupt(Table::State, row, "not a due delivery's key"))
}

/// Where an endpoint's deliveries go; `None`: it is deleted.
pub fn target(rows: &dyn ReadRows, endpoint: EndpointKey, now: ShardTime) -> Result<Option<Target>, RowsError> {
    let Some(row) = read::<EndpointRow>(rows, &keys::endpoint(endpoint))? else { return Ok(None) };
    let app: Option<AppRow> = match endpoint.app {
        AppId::OPERATIONAL => None,
        app => match read(rows, &keys::app(app))? {
            None => return Ok(None),
            found => found,
        },
    };
    let former = row.former.into_iter().filter(|former| now < former.ends_at).map(|former| former.secret);
    Ok(Some(Target {
        url: row.spec.url,
        headers: row.headers,
        secrets: std::iter::once(row.secret).chain(former).collect(),
        rate_limit: row.spec.rate_limit,
        app_rate_limit: app.and_then(|app| app.spec.rate_limit),
        disabled: row.spec.disabled,
    }))
}

/// A delivery as it stands; `None`: it is not pending any more.
pub fn pending_delivery(
    rows: &dyn ReadRows,
    endpoint: EndpointKey,
    message: MessageId,
) -> Result<Option<PendingDelivery>, RowsError> {
    let Some(delivery) = read::<DeliveryRow>(rows, &keys::delivery(endpoint, message))? else { return Ok(None) };
    if delivery.due.is_none() {
        return Ok(None);
    }
    let row = keys::payload(endpoint.app, message);
    let payload = rows.get(Table::State, &row)?.ok_or_else(|| corrupt(Table::State, &row, "pinned, and gone"))?;
    Ok(Some(PendingDelivery {
        sequence: Some(delivery.sequence).filter(|_| endpoint.app != AppId::OPERATIONAL),
        tries: delivery.tries,
        payload,
    }))
}
