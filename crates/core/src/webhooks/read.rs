//! Answers of queries. Lists are read in the order of ids, which is that of age.

use bytes::Bytes;

use super::{
    bounds::{PAGE_BYTES_MAX, PAGE_ROWS_READ_MAX},
    desk::{FoundApp, find_endpoint, find_owner},
    dispatch::EndpointKey,
    event_type,
    id::{AppId, DeliveryAttemptId, EndpointId, Id, MessageId},
    message::MessageView,
    names::{AppRef, EndpointRef, MessageRef},
    operational,
    outcome::{AttemptStatus, AttemptView},
    query::{AttemptFilter, DeliveryView, MessageFilter, Missing, Page, PageIn, WebhookAnswer, WebhookQuery},
    rows::{AttemptRow, DeliveryRow, EndpointRow, EventIdRow, MessageRow},
};
use crate::{
    codec::keys::{self, Kind},
    rows::{ReadRows, RowsError, Table, corrupt, decode, read},
};

/// What was found, or what was not.
type Found<T> = Result<Result<T, Missing>, RowsError>;

/// Answers a query; `None`: it belongs on the other kind of shard.
pub(crate) fn answer(
    rows: &dyn ReadRows,
    is_system: bool,
    query: &WebhookQuery,
) -> Result<Option<WebhookAnswer>, RowsError> {
    if query.is_of_system().is_some_and(|of_system| of_system != is_system) {
        return Ok(None);
    }
    Ok(Some(find(rows, query)?.unwrap_or_else(WebhookAnswer::NotFound)))
}

impl WebhookQuery {
    /// The application that it is about.
    pub fn app(&self) -> Option<&AppRef> {
        Some(match self {
            WebhookQuery::App { app }
            | WebhookQuery::Endpoint { app, .. }
            | WebhookQuery::Endpoints { app, .. }
            | WebhookQuery::Secret { app, .. }
            | WebhookQuery::Headers { app, .. }
            | WebhookQuery::Message { app, .. }
            | WebhookQuery::Messages { app, .. }
            | WebhookQuery::AttemptsOfMessage { app, .. }
            | WebhookQuery::AttemptsOfEndpoint { app, .. }
            | WebhookQuery::Attempt { app, .. }
            | WebhookQuery::Deliveries { app, .. } => app,
            WebhookQuery::Apps { .. }
            | WebhookQuery::EventType { .. }
            | WebhookQuery::EventTypes { .. }
            | WebhookQuery::Operational
            | WebhookQuery::OperationalRevision => return None,
        })
    }

    /// Whether it belongs on the system shard; `None`: on either.
    pub fn is_of_system(&self) -> Option<bool> {
        match self {
            WebhookQuery::OperationalRevision => None,
            WebhookQuery::EventType { .. } | WebhookQuery::EventTypes { .. } | WebhookQuery::Operational => Some(true),
            WebhookQuery::Apps { .. } => Some(false),
            _ => Some(self.app() == Some(&AppRef::Operational)),
        }
    }
}

fn find(rows: &dyn ReadRows, query: &WebhookQuery) -> Found<WebhookAnswer> {
    let app = match query.app() {
        None => return find_of_no_app(rows, query),
        Some(app) => match find_owner(rows, app)? {
            Some(app) => app,
            None => return Ok(Err(Missing::App)),
        },
    };
    Ok(match query {
        WebhookQuery::App { .. } => Ok(WebhookAnswer::App(app.view())),
        WebhookQuery::Endpoint { endpoint, .. } => find_endpoint(rows, app.id, endpoint)?
            .map(|found| WebhookAnswer::Endpoint(found.row.view(found.key.endpoint)))
            .ok_or(Missing::Endpoint),
        WebhookQuery::Secret { endpoint, .. } => find_endpoint(rows, app.id, endpoint)?
            .map(|found| WebhookAnswer::Secret(found.row.secret))
            .ok_or(Missing::Endpoint),
        WebhookQuery::Headers { endpoint, .. } => find_endpoint(rows, app.id, endpoint)?
            .map(|found| WebhookAnswer::Headers(found.row.headers))
            .ok_or(Missing::Endpoint),
        WebhookQuery::Endpoints { page, .. } => Ok(WebhookAnswer::Endpoints(endpoints(rows, app.id, page)?)),
        WebhookQuery::Message { message, with_payload, .. } => {
            message_view(rows, app.id, message, *with_payload)?.map(WebhookAnswer::Message)
        }
        WebhookQuery::Messages { filter, with_payload, page, .. } => {
            Ok(WebhookAnswer::Messages(messages(rows, app.id, filter, *with_payload, page)?))
        }
        WebhookQuery::AttemptsOfMessage { message, filter, page, .. } => {
            attempts_of_message(rows, app.id, message, filter, page)?.map(WebhookAnswer::Attempts)
        }
        WebhookQuery::AttemptsOfEndpoint { endpoint, filter, page, .. } => {
            attempts_of_endpoint(rows, app.id, endpoint, filter, page)?.map(WebhookAnswer::Attempts)
        }
        WebhookQuery::Attempt { message, attempt, .. } => {
            one_attempt(rows, app.id, message, *attempt)?.map(WebhookAnswer::Attempt)
        }
        WebhookQuery::Deliveries { message, page, .. } => {
            deliveries(rows, app.id, message, page)?.map(WebhookAnswer::Deliveries)
        }
        _ => unreachable!("the others are about no application"),
    })
}

fn find_of_no_app(rows: &dyn ReadRows, query: &WebhookQuery) -> Found<WebhookAnswer> {
    Ok(Ok(match query {
        WebhookQuery::EventType { name } => match event_type::get(rows, name)? {
            Some(found) => WebhookAnswer::EventType(found),
            None => return Ok(Err(Missing::EventType)),
        },
        WebhookQuery::EventTypes { cursor, backwards, descending, include_archived, limit } => {
            let (items, done) =
                event_type::list(rows, cursor.as_ref(), *backwards, *descending, *include_archived, *limit)?;
            WebhookAnswer::EventTypes { items, done }
        }
        WebhookQuery::Operational => WebhookAnswer::Operational(operational::all(rows)?),
        WebhookQuery::OperationalRevision => WebhookAnswer::OperationalRevision(operational::revision(rows)?),
        WebhookQuery::Apps { page } => WebhookAnswer::Apps(apps(rows, page)?),
        _ => unreachable!("the others are about an application"),
    }))
}

/// Reads a page: `key` makes the row's key of a cursor, `item` what is listed of a row, with the bytes that it takes
/// beside the row, or nothing.
fn page<T>(
    rows: &dyn ReadRows,
    prefix: &[u8],
    page: &PageIn,
    mut item: impl FnMut(Id, &[u8], &Bytes) -> Result<Option<(T, usize)>, RowsError>,
) -> Result<Page<T>, RowsError> {
    const CHUNK_ROWS: usize = 128;
    let mut from = page.cursor.map(|id| [prefix, id.bytes()].concat());
    let (mut items, mut bytes, mut rows_read) = (Vec::new(), 0, 0);
    let (mut last, mut done) = (None, false);
    'chunks: while !done {
        let chunk = if page.backwards == page.descending {
            rows.scan(Table::State, prefix, from.as_deref(), CHUNK_ROWS)?
        } else {
            rows.scan_back(Table::State, prefix, from.as_deref(), CHUNK_ROWS)?
        };
        done = chunk.len() < CHUNK_ROWS;
        for (key, value) in chunk {
            let is_full = items.len() >= page.limit as usize || bytes > PAGE_BYTES_MAX;
            if is_full || rows_read >= PAGE_ROWS_READ_MAX {
                done = false;
                break 'chunks;
            }
            let id = key.get(prefix.len()..).and_then(Id::from_slice);
            let id = id.ok_or_else(|| corrupt(Table::State, &key, "does not end with an id"))?;
            if let Some((item, more_bytes)) = item(id, &key, &value)? {
                items.push(item);
                bytes += value.len() + more_bytes;
            }
            rows_read += 1;
            last = Some(id);
            from = Some(key.to_vec());
        }
    }
    if page.backwards {
        items.reverse();
    }
    Ok(Page { items, done, cursor: last })
}

fn apps(rows: &dyn ReadRows, wanted: &PageIn) -> Result<Page<super::AppView>, RowsError> {
    page(rows, &Kind::App.prefix(), wanted, |id, key, value| {
        Ok(Some((FoundApp { id: AppId(id), row: decode(key, value)? }.view(), 0)))
    })
}

fn endpoints(rows: &dyn ReadRows, app: AppId, wanted: &PageIn) -> Result<Page<super::EndpointView>, RowsError> {
    page(rows, &keys::rows_of_app(Kind::Endpoint, app), wanted, |id, key, value| {
        Ok(Some((decode::<EndpointRow>(key, value)?.view(EndpointId(id)), 0)))
    })
}

/// An event id may read as an id that Onceward made, as of an event that came in from another cluster: a message of that
/// id goes first.
fn find_message(rows: &dyn ReadRows, app: AppId, message: &MessageRef) -> Found<(MessageId, MessageRow)> {
    let of_id = |id| Ok::<_, RowsError>(read(rows, &keys::message(app, id))?.map(|row| (id, row)));
    let of_event_id = |event_id: &str| match read::<EventIdRow>(rows, &keys::event_id(app, event_id))? {
        Some(known) => of_id(known.message),
        None => Ok(None),
    };
    let found = match message {
        MessageRef::EventId(event_id) => of_event_id(event_id.as_str())?,
        MessageRef::Id(id) => match of_id(*id)? {
            None => of_event_id(&id.to_string())?,
            found => found,
        },
    };
    Ok(found.ok_or(Missing::Message))
}

fn payload(rows: &dyn ReadRows, app: AppId, id: MessageId) -> Result<Option<Bytes>, RowsError> {
    rows.get(Table::State, &keys::payload(app, id))
}

fn message_view(rows: &dyn ReadRows, app: AppId, message: &MessageRef, with_payload: bool) -> Found<MessageView> {
    let (id, row) = match find_message(rows, app, message)? {
        Ok(found) => found,
        Err(missing) => return Ok(Err(missing)),
    };
    let payload = if with_payload { payload(rows, app, id)? } else { None };
    Ok(Ok(MessageView { payload, ..row.view(id) }))
}

fn messages(
    rows: &dyn ReadRows,
    app: AppId,
    filter: &MessageFilter,
    with_payload: bool,
    wanted: &PageIn,
) -> Result<Page<MessageView>, RowsError> {
    page(rows, &keys::rows_of_app(Kind::Message, app), wanted, |id, key, value| {
        let row: MessageRow = decode(key, value)?;
        if !filter.takes(&row) {
            return Ok(None);
        }
        let id = MessageId(id);
        let payload = if with_payload { payload(rows, app, id)? } else { None };
        let bytes = payload.as_ref().map_or(0, Bytes::len);
        Ok(Some((MessageView { payload, ..row.view(id) }, bytes)))
    })
}

impl MessageFilter {
    fn takes(&self, message: &MessageRow) -> bool {
        self.event_types.as_ref().is_none_or(|types| types.contains(&message.event_type))
            && self.channel.as_ref().is_none_or(|channel| message.channels.contains(channel))
            && self.tag.as_ref().is_none_or(|tag| message.tags.contains(tag))
            && self.takes_time(message.created_wall_ms)
    }

    fn takes_time(&self, wall_ms: u64) -> bool {
        self.before_wall_ms.is_none_or(|before| wall_ms < before)
            && self.after_wall_ms.is_none_or(|after| wall_ms > after)
    }

    fn asks_for_message(&self) -> bool {
        self.event_types.is_some() || self.channel.is_some() || self.tag.is_some()
    }
}

fn attempts_of_message(
    rows: &dyn ReadRows,
    app: AppId,
    message: &MessageRef,
    filter: &AttemptFilter,
    wanted: &PageIn,
) -> Found<Page<AttemptView>> {
    let message = match find_message(rows, app, message)? {
        Ok((message, _)) => message,
        Err(missing) => return Ok(Err(missing)),
    };
    let endpoint = match &filter.endpoint {
        None => None,
        Some(name) => match find_endpoint(rows, app, name)? {
            Some(found) => Some(found.key.endpoint),
            None => return Ok(Err(Missing::Endpoint)),
        },
    };
    let listed = page(rows, &keys::attempts_of(app, message), wanted, |id, key, value| {
        let row: AttemptRow = decode(key, value)?;
        let is_wanted =
            endpoint.is_none_or(|endpoint| row.endpoint == endpoint) && filter.takes(rows, app, message, &row)?;
        Ok(is_wanted.then(|| (row.view(message, id), 0)))
    })?;
    Ok(Ok(listed))
}

fn attempts_of_endpoint(
    rows: &dyn ReadRows,
    app: AppId,
    endpoint: &EndpointRef,
    filter: &AttemptFilter,
    wanted: &PageIn,
) -> Found<Page<AttemptView>> {
    let Some(found) = find_endpoint(rows, app, endpoint)? else { return Ok(Err(Missing::Endpoint)) };
    let EndpointKey { app, .. } = found.key;
    let listed = page(rows, &keys::attempts_of_endpoint(found.key), wanted, |id, key, value| {
        let message: MessageId = decode(key, value)?;
        let row = keys::attempt(app, message, DeliveryAttemptId(id));
        let Some(attempt) = rows.get(Table::State, &row)? else { return Ok(None) };
        let bytes = attempt.len();
        let attempt: AttemptRow = decode(&row, &attempt)?;
        let is_wanted = filter.takes(rows, app, message, &attempt)?;
        Ok(is_wanted.then(|| (attempt.view(message, id), bytes)))
    })?;
    Ok(Ok(listed))
}

impl AttemptFilter {
    fn takes(
        &self,
        rows: &dyn ReadRows,
        app: AppId,
        message: MessageId,
        attempt: &AttemptRow,
    ) -> Result<bool, RowsError> {
        let class = attempt.answer.status_code / 100;
        let takes_status = |status: AttemptStatus| match status {
            AttemptStatus::Failed => attempt.status != AttemptStatus::Succeeded,
            status => attempt.status == status,
        };
        let takes_attempt = self.status.is_none_or(takes_status)
            && self.status_code_class.is_none_or(|wanted| u16::from(wanted) == class)
            && self.message.takes_time(attempt.answer.started_wall_ms);
        if !takes_attempt || !self.message.asks_for_message() {
            return Ok(takes_attempt);
        }
        let of = MessageFilter { before_wall_ms: None, after_wall_ms: None, ..self.message.clone() };
        Ok(read::<MessageRow>(rows, &keys::message(app, message))?.is_some_and(|message| of.takes(&message)))
    }
}

impl AttemptRow {
    fn view(self, message: MessageId, id: Id) -> AttemptView {
        let AttemptRow { endpoint, status, answer } = self;
        AttemptView { id: DeliveryAttemptId(id), endpoint, message, status, answer }
    }
}

fn one_attempt(
    rows: &dyn ReadRows,
    app: AppId,
    message: &MessageRef,
    attempt: DeliveryAttemptId,
) -> Found<AttemptView> {
    let message = match find_message(rows, app, message)? {
        Ok((message, _)) => message,
        Err(missing) => return Ok(Err(missing)),
    };
    let row: Option<AttemptRow> = read(rows, &keys::attempt(app, message, attempt))?;
    Ok(row.map(|row| row.view(message, attempt.0)).ok_or(Missing::Attempt))
}

fn deliveries(rows: &dyn ReadRows, app: AppId, message: &MessageRef, wanted: &PageIn) -> Found<Page<DeliveryView>> {
    let message = match find_message(rows, app, message)? {
        Ok((message, _)) => message,
        Err(missing) => return Ok(Err(missing)),
    };
    let listed = page(rows, &keys::deliveries_of(app, message), wanted, |id, key, value| {
        let delivery: DeliveryRow = decode(key, value)?;
        let endpoint_id = EndpointId(id);
        let endpoint: Option<EndpointRow> = read(rows, &keys::endpoint(EndpointKey { app, endpoint: endpoint_id }))?;
        let delivery = if endpoint.is_some() { delivery } else { delivery.given_up() };
        let takes_any = endpoint.as_ref().is_some_and(|row| !row.spec.disabled);
        let view = DeliveryView {
            endpoint: endpoint.map(|row| row.view(endpoint_id)),
            endpoint_id,
            status: delivery.status,
            next_attempt_wall_ms: delivery.due.filter(|_| takes_any).map(|due| due.wall_ms),
        };
        Ok(Some((view, 0)))
    })?;
    Ok(Ok(listed))
}
