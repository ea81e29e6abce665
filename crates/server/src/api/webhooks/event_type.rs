//! Event types: a catalogue for people. Messages may be of types that it doesn't have.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use onceward_core::webhooks::{
    Action, EventTypeChange, EventTypePatch, EventTypeSpec, EventTypeView, Name, Refusal, WebhookAnswer, WebhookQuery,
    WebhookReply,
    bounds::{DESCRIPTION_BYTES_MAX, SCHEMAS_BYTES_MAX},
};
use onceward_shard::WebhookCall;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{
    call::{At, Call, EVENT_TYPE_SCOPE, ask, change, unexpected},
    error::{HttpErrorBody, ValidationErrorBody},
    fields::{self, Describes, Removable, SetIn, removable},
    page::{ListBody, Parameters},
    refused,
};
use crate::{
    api::{
        App,
        call::Deadline,
        instant::Instant,
        json::{Field, Judge, RawObject, object, read_tolerantly},
        problem::{Code, Problem},
    },
    bounds::PAYLOAD_DEPTH_MAX,
};

#[derive(ToSchema)]
#[schema(as = EventTypeIn)]
pub struct EventTypeBody {
    /// Needed by POST, and read over where the path has it.
    #[schema(value_type = String, required = false, max_length = 256, pattern = "^[a-zA-Z0-9\\-_.]+$")]
    name: Field<String>,
    #[schema(value_type = String, max_length = 1024)]
    description: Field<String>,
    #[schema(value_type = bool, required = false)]
    archived: Field<bool>,
    #[schema(value_type = bool, required = false)]
    deprecated: Field<bool>,
    /// JSON schemas by version, kept as they come in; at most 64 KiB.
    #[schema(value_type = Object, required = false)]
    schemas: Field<RawObject>,
    #[schema(value_type = String, required = false, max_length = 256, rename = "groupName")]
    group_name: Field<String>,
    #[schema(value_type = String, required = false, max_length = 256, rename = "featureFlag")]
    feature_flag: Field<String>,
    /// The newer form of `featureFlag`; at most one is kept.
    #[schema(value_type = Vec<String>, required = false, max_items = 1, rename = "featureFlags")]
    feature_flags: Field<SetIn>,
}

object!(EventTypeBody {
    name,
    description,
    archived,
    deprecated,
    schemas,
    group_name: "groupName",
    feature_flag: "featureFlag",
    feature_flags: "featureFlags",
});

/// What a body says of an event type, but for its name.
fn read(judge: &mut Judge, body: EventTypeBody, describes: Describes) -> EventTypePatch {
    let flag = |judge: &mut Judge, field, path: &str| judge.required(field, || path.to_owned(), "true or false");
    EventTypePatch {
        description: describes
            .needed(body.description, |field| fields::text(judge, field, "description", 0..=DESCRIPTION_BYTES_MAX)),
        archived: describes.kept(body.archived, |field| flag(judge, field, "archived")),
        deprecated: describes.kept(body.deprecated, |field| flag(judge, field, "deprecated")),
        feature_flag: feature_flag(judge, body.feature_flag, body.feature_flags),
        group_name: removable(body.group_name, |field| fields::name(judge, field, "groupName")),
        schemas: removable(body.schemas, |field| schemas(judge, field)),
    }
}

fn feature_flag(judge: &mut Judge, one: Field<String>, list: Field<SetIn>) -> Removable<Name> {
    let newer = removable(list, |field| fields::names(judge, field, "featureFlags", 1)?.pop_first());
    newer.or_else(|| removable(one, |field| fields::name(judge, field, "featureFlag")))
}

fn schemas(judge: &mut Judge, field: Field<RawObject>) -> Option<String> {
    const _: () = assert!(SCHEMAS_BYTES_MAX == 65_536 && PAYLOAD_DEPTH_MAX == 128);
    let schemas = judge.required(field, || "schemas".to_owned(), "a JSON object, or null")?;
    let bytes = schemas.text().len();
    if bytes > SCHEMAS_BYTES_MAX {
        judge.refuse_size("schemas", format!("has {bytes} bytes; 65536 are the most"));
    } else if schemas.depth() > PAYLOAD_DEPTH_MAX {
        judge.refuse("schemas", "must be at most 128 levels deep");
    } else {
        return Some(schemas.text().to_owned());
    }
    None
}

fn whole(judge: &mut Judge, body: EventTypeBody) -> Option<EventTypeSpec> {
    let read = read(judge, body, Describes::Whole);
    Some(EventTypeSpec {
        description: read.description?,
        archived: read.archived.unwrap_or_default(),
        deprecated: read.deprecated.unwrap_or_default(),
        feature_flag: read.feature_flag.flatten(),
        group_name: read.group_name.flatten(),
        schemas: read.schemas.flatten(),
    })
}

/// Reads and checks the body of `POST`.
pub fn parse(body: &[u8]) -> Result<(Name, EventTypeSpec), Problem> {
    let mut judge = Judge::default();
    let mut body: EventTypeBody = read_tolerantly(body, &mut judge)?;
    let name = fields::name(&mut judge, std::mem::take(&mut body.name), "name");
    let spec = whole(&mut judge, body);
    judge.verdict(name.zip(spec))
}

/// Reads and checks the body of `PUT`.
pub fn parse_put(body: &[u8]) -> Result<EventTypeSpec, Problem> {
    let mut judge = Judge::default();
    let body: EventTypeBody = read_tolerantly(body, &mut judge)?;
    let spec = whole(&mut judge, body);
    judge.verdict(spec)
}

/// Reads and checks the body of `PATCH`.
pub fn parse_patch(body: &[u8]) -> Result<EventTypePatch, Problem> {
    let mut judge = Judge::default();
    let body: EventTypeBody = read_tolerantly(body, &mut judge)?;
    let patch = read(&mut judge, body, Describes::Change);
    judge.verdict(Some(patch))
}

/// An event type.
#[derive(Serialize, ToSchema)]
#[schema(as = EventTypeOut)]
#[serde(rename_all = "camelCase")]
pub struct EventTypeOut {
    name: String,
    description: String,
    archived: bool,
    deprecated: bool,
    #[schema(value_type = Option<Object>)]
    schemas: Option<Box<RawValue>>,
    group_name: Option<String>,
    feature_flag: Option<String>,
    feature_flags: Option<Vec<String>>,
    #[schema(value_type = String, format = "date-time")]
    created_at: Instant,
    #[schema(value_type = String, format = "date-time")]
    updated_at: Instant,
}

fn out(found: EventTypeView, with_content: bool) -> EventTypeOut {
    let EventTypeView { name, spec, created_wall_ms, updated_wall_ms } = found;
    let text = |name: Name| name.as_str().to_owned();
    let feature_flag = spec.feature_flag.map(text);
    let schemas = spec.schemas.filter(|_| with_content);
    EventTypeOut {
        name: text(name),
        description: spec.description,
        archived: spec.archived,
        deprecated: spec.deprecated,
        schemas: schemas.map(|text| RawValue::from_string(text).expect("it was JSON when it came in")),
        group_name: spec.group_name.map(text),
        feature_flags: feature_flag.clone().map(|flag| vec![flag]),
        feature_flag,
        created_at: Instant::of_wall_ms(created_wall_ms),
        updated_at: Instant::of_wall_ms(updated_wall_ms),
    }
}

fn stored(reply: WebhookReply) -> Result<Response, Problem> {
    match reply {
        WebhookReply::EventType { event_type, created } => {
            let status = if created { StatusCode::CREATED } else { StatusCode::OK };
            Ok((status, Json(out(event_type, true))).into_response())
        }
        _ => Err(unexpected()),
    }
}

/// By name.
#[utoipa::path(
    get, path = "/api/v1/event-type", tag = "webhooks", operation_id = "v1.event-type.list",
    params(
        ("limit" = Option<u32>, Query, description = "1 to 250, default 50"),
        ("iterator" = Option<String>, Query, description = "iterator or prevIterator of another page"),
        ("order" = Option<String>, Query, description = "ascending (default) or descending"),
        ("include_archived" = Option<bool>, Query, description = "archived ones, too; default false"),
        ("with_content" = Option<bool>, Query, description = "answer schemas, too; default false")
    ),
    responses(
        (status = 200, description = "a page", body = ListBody<EventTypeOut>),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn list_event_types(
    State(app): State<App>,
    Deadline(deadline): Deadline,
    mut parameters: Parameters,
) -> Result<Json<ListBody<EventTypeOut>>, Problem> {
    let (cursor, backwards) = parameters.iterator(|text| Name::parse(text.strip_prefix(BEHIND).unwrap_or(text)).ok());
    let descending = parameters.descending(false);
    let include_archived = parameters.flag("include_archived", false);
    let with_content = parameters.flag("with_content", false);
    let limit = parameters.limit();
    let query = WebhookQuery::EventTypes { cursor, backwards, descending, include_archived, limit };
    match ask(&app, parameters.verdict(query)?, deadline).await? {
        WebhookAnswer::EventTypes { items, done } => {
            let name = |found: &EventTypeView| found.name.as_str().to_owned();
            Ok(Json(ListBody {
                iterator: items.last().map(|found| behind(found.name.as_str())),
                prev_iterator: items.first().map(|found| format!("-{}", name(found))),
                data: items.into_iter().map(|found| out(found, with_content)).collect(),
                done,
            }))
        }
        _ => Err(unexpected()),
    }
}

/// Before a name that begins with what goes back; no name has it.
const BEHIND: char = '=';

fn behind(name: &str) -> String {
    if name.starts_with('-') { format!("{BEHIND}{name}") } else { name.to_owned() }
}

/// Makes it, or takes it out of the archive.
#[utoipa::path(
    post, path = "/api/v1/event-type", tag = "webhooks", operation_id = "v1.event-type.create",
    request_body = EventTypeBody,
    params(("idempotency-key" = Option<String>, Header, description = "1 to 255 bytes; repeated, the call answers alike")),
    responses(
        (status = 201, description = "made", body = EventTypeOut),
        (status = 400, description = "limit_reached: there are as many as there may be", body = HttpErrorBody),
        (status = 409, description = "event_type_exists", body = HttpErrorBody),
        (status = 413, description = "too_large: the schemas or the body", body = HttpErrorBody),
        (status = 422, description = "invalid_request, fingerprint_mismatch", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeat it with its idempotency-key", body = HttpErrorBody),
    )
)]
pub async fn create_event_type(
    State(app): State<App>,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<Response, Problem> {
    let (name, spec) = parse(&call.body)?;
    let request = call.request(EVENT_TYPE_SCOPE);
    let action = Action::EventType(EventTypeChange::Create { name, spec });
    match app.service.webhook(WebhookCall { action, request }, deadline).await? {
        WebhookReply::EventType { event_type, .. } => {
            Ok((StatusCode::CREATED, Json(out(event_type, true))).into_response())
        }
        WebhookReply::Refused(Refusal::Taken) => {
            Err(Problem::new(Code::EventTypeExists, "an event type of this name is there already"))
        }
        WebhookReply::Refused(refusal) => Err(refused(refusal)),
        _ => Err(unexpected()),
    }
}

#[utoipa::path(
    get, path = "/api/v1/event-type/{event_type_name}", tag = "webhooks", operation_id = "v1.event-type.get",
    params(("event_type_name" = String, Path)),
    responses(
        (status = 200, description = "the event type", body = EventTypeOut),
        (status = 404, description = "no such event type", body = HttpErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn get_event_type(
    State(app): State<App>,
    At(name): At<Name>,
    Deadline(deadline): Deadline,
) -> Result<Json<EventTypeOut>, Problem> {
    match ask(&app, WebhookQuery::EventType { name }, deadline).await? {
        WebhookAnswer::EventType(found) => Ok(Json(out(found, true))),
        _ => Err(unexpected()),
    }
}

/// Replaces it, or makes it.
#[utoipa::path(
    put, path = "/api/v1/event-type/{event_type_name}", tag = "webhooks", operation_id = "v1.event-type.update",
    request_body = EventTypeBody, params(("event_type_name" = String, Path)),
    responses(
        (status = 200, description = "replaced", body = EventTypeOut),
        (status = 201, description = "made", body = EventTypeOut),
        (status = 400, description = "limit_reached: there are as many as there may be", body = HttpErrorBody),
        (status = 413, description = "too_large: the schemas or the body", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn put_event_type(
    State(app): State<App>,
    At(name): At<Name>,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<Response, Problem> {
    let spec = parse_put(&call.body)?;
    stored(change(&app, Action::EventType(EventTypeChange::Put { name, spec }), None, deadline).await?)
}

/// Changes what the body names.
#[utoipa::path(
    patch, path = "/api/v1/event-type/{event_type_name}", tag = "webhooks", operation_id = "v1.event-type.patch",
    request_body = EventTypeBody, params(("event_type_name" = String, Path)),
    responses(
        (status = 200, description = "changed", body = EventTypeOut),
        (status = 404, description = "no such event type", body = HttpErrorBody),
        (status = 413, description = "too_large: the schemas or the body", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn patch_event_type(
    State(app): State<App>,
    At(name): At<Name>,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<Response, Problem> {
    let patch = parse_patch(&call.body)?;
    stored(change(&app, Action::EventType(EventTypeChange::Patch { name, patch }), None, deadline).await?)
}

/// Archives it; with `expunge` removes it.
#[utoipa::path(
    delete, path = "/api/v1/event-type/{event_type_name}", tag = "webhooks", operation_id = "v1.event-type.delete",
    params(
        ("event_type_name" = String, Path),
        ("expunge" = Option<bool>, Query, description = "remove it instead; default false")
    ),
    responses(
        (status = 204, description = "archived or removed"),
        (status = 404, description = "no such event type", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn delete_event_type(
    State(app): State<App>,
    At(name): At<Name>,
    Deadline(deadline): Deadline,
    mut parameters: Parameters,
) -> Result<StatusCode, Problem> {
    let expunge = parameters.flag("expunge", false);
    let expunge = parameters.verdict(expunge)?;
    change(&app, Action::EventType(EventTypeChange::Delete { name, expunge }), None, deadline).await?;
    Ok(StatusCode::NO_CONTENT)
}
