//! Messages: published to the endpoints of an application that match them. A payload stays as it came in, byte for byte.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use onceward_core::webhooks::{
    Action, AppRef, CreateApp, MessageId, MessageRef, MessageView, Missing, Name, NewMessage, Publish, Refusal,
    WebhookAnswer, WebhookQuery, WebhookReply,
    bounds::{MESSAGE_CHANNELS_MAX, PAYLOAD_BYTES_MAX, TAGS_MAX},
    check_channel, check_tag,
};
use onceward_shard::WebhookCall;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::Instant as Until;
use utoipa::ToSchema;

use super::{
    app::{self, AppBody},
    call::{At, Call, Owner, ask, unexpected},
    error::{HttpErrorBody, ValidationErrorBody},
    fields::{self, SetIn},
    missing,
    page::{ListBody, Parameters},
    refused,
};
use crate::{
    api::{
        App,
        call::{Caller, Deadline},
        instant::Instant,
        json::{Field, Judge, Object, RawObject, object, read_tolerantly},
        problem::Problem,
    },
    bounds::PAYLOAD_DEPTH_MAX,
};

const DAY_HOURS: u64 = 24;
const HOUR_US: u64 = 3_600_000_000;

#[derive(ToSchema)]
#[schema(as = MessageIn)]
pub struct MessageBody {
    #[schema(value_type = String, max_length = 256, pattern = "^[a-zA-Z0-9\\-_.]+$", rename = "eventType")]
    event_type: Field<String>,
    /// Goes out as it comes in, byte for byte. At most 256 KiB, and 128 levels deep.
    #[schema(value_type = Object)]
    payload: Field<RawObject>,
    /// By which a repeated publish is known again: with the same content it answers the first message, with other
    /// content it is a conflict.
    #[schema(
        value_type = String, required = false, max_length = 256, pattern = "^[a-zA-Z0-9\\-_.]+$", rename = "eventId"
    )]
    event_id: Field<String>,
    /// Of endpoints that listen to channels those get it that listen to one of these.
    #[schema(value_type = Vec<String>, required = false, min_items = 1, max_items = 5)]
    channels: Field<SetIn>,
    /// By which messages can be listed.
    #[schema(value_type = Vec<String>, required = false, max_items = 8)]
    tags: Field<SetIn>,
    /// Days for which the payload is kept, at most as long as the rest of the message. Default: as long.
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 90, rename = "payloadRetentionPeriod")]
    payload_retention_period: Field<u64>,
    /// The same in hours; goes before days.
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 2160, rename = "payloadRetentionHours")]
    payload_retention_hours: Field<u64>,
    /// Made first, if the path's application isn't there yet.
    #[schema(value_type = AppBody, required = false)]
    application: Field<Object<AppBody>>,
    /// Refused by this version, as a message that comes too early is worse than none.
    #[schema(value_type = String, required = false, rename = "deliverAt")]
    deliver_at: Field<String>,
    /// Refused by this version.
    #[schema(value_type = Object, required = false, rename = "transformationsParams")]
    transformations_params: Field<RawObject>,
}

object!(MessageBody {
    event_type: "eventType",
    payload,
    event_id: "eventId",
    channels,
    tags,
    payload_retention_period: "payloadRetentionPeriod",
    payload_retention_hours: "payloadRetentionHours",
    application,
    deliver_at: "deliverAt",
    transformations_params: "transformationsParams",
});

/// A message of a body; `at` is the path of its fields, empty or ending in a dot. Messages are kept for `retention_us`.
pub fn read(judge: &mut Judge, body: MessageBody, at: &str, retention_us: u64) -> Option<NewMessage> {
    const _: () = assert!(MESSAGE_CHANNELS_MAX == 5 && TAGS_MAX == 8);
    let path = |name: &str| format!("{at}{name}");
    for (name, is_given) in [
        ("deliverAt", !matches!(body.deliver_at, Field::Absent | Field::Null)),
        ("transformationsParams", !matches!(body.transformations_params, Field::Absent | Field::Null)),
    ] {
        if is_given {
            judge.refuse(path(name), "cannot be given: this version does not do that");
        }
    }
    let event_type = fields::name(judge, body.event_type, &path("eventType"));
    let payload = payload(judge, body.payload, &path("payload"));
    let event_id = given(body.event_id).map(|field| fields::name(judge, field, &path("eventId")));
    let channels = given(body.channels)
        .and_then(|field| fields::labels(judge, field, &path("channels"), MESSAGE_CHANNELS_MAX, check_channel));
    // Unlike channels, no tags are as good as none given.
    let tags = given(body.tags)
        .filter(|field| !matches!(field, Field::Given(tags) if tags.is_empty()))
        .and_then(|field| fields::labels(judge, field, &path("tags"), TAGS_MAX, check_tag));
    let hours = retention_hours(judge, body.payload_retention_period, body.payload_retention_hours, at);
    Some(NewMessage {
        event_type: event_type?,
        event_id: match event_id {
            None => None,
            Some(event_id) => Some(event_id?),
        },
        channels: channels.into_iter().flatten().collect(),
        tags: tags.into_iter().flatten().collect(),
        payload: payload?,
        payload_retention_us: hours.map(|hours| hours * HOUR_US).filter(|payload_us| *payload_us < retention_us),
    })
}

/// A field that is there, and not `null`.
fn given<T>(field: Field<T>) -> Option<Field<T>> {
    Some(field).filter(|field| !matches!(field, Field::Absent | Field::Null))
}

fn payload(judge: &mut Judge, field: Field<RawObject>, path: &str) -> Option<Bytes> {
    const _: () = assert!(PAYLOAD_BYTES_MAX == 262_144 && PAYLOAD_DEPTH_MAX == 128);
    let payload = judge.required(field, || path.to_owned(), "a JSON object")?;
    let bytes = payload.text().len();
    if bytes > PAYLOAD_BYTES_MAX {
        judge.refuse_size(path, format!("has {bytes} bytes; 262144 are the most"));
    } else if payload.depth() > PAYLOAD_DEPTH_MAX {
        judge.refuse(path, "must be at most 128 levels deep");
    } else {
        return Some(payload.into_bytes());
    }
    None
}

fn retention_hours(judge: &mut Judge, days: Field<u64>, hours: Field<u64>, at: &str) -> Option<u64> {
    let days = given(days).and_then(|field| {
        let path = || format!("{at}payloadRetentionPeriod");
        judge.number(field, path, 1..=90, "a whole number of days from 1 to 90")
    });
    let hours = given(hours).and_then(|field| {
        let path = || format!("{at}payloadRetentionHours");
        judge.number(field, path, 1..=90 * DAY_HOURS, "a whole number of hours from 1 to 2160")
    });
    hours.or(days.map(|days| days * DAY_HOURS))
}

/// A message to publish, and the application to make for it, if there is none.
pub struct Published {
    pub message: NewMessage,
    pub application: Option<CreateApp>,
}

/// Reads and checks the body of `POST`.
pub fn parse(body: &[u8], retention_us: u64) -> Result<Published, Problem> {
    let mut judge = Judge::default();
    let mut body: MessageBody = read_tolerantly(body, &mut judge)?;
    let application = match std::mem::take(&mut body.application) {
        Field::Absent | Field::Null => None,
        field => {
            let field = judge.required(field, || "application".to_owned(), "an object");
            field.and_then(|object| {
                let object = judge.tolerant_object(object, "application.");
                app::whole(&mut judge, object, "application.")
            })
        }
    };
    let application = application.map(|(uid, spec)| CreateApp { uid, spec, get_if_exists: true });
    let message = read(&mut judge, body, "", retention_us);
    judge.verdict(message.map(|message| Published { message, application }))
}

/// A message.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageOut)]
#[serde(rename_all = "camelCase")]
pub struct MessageOut {
    id: String,
    event_id: Option<String>,
    event_type: String,
    /// As it came in; `{}` without content, `{"expired":true}` where it is kept no longer.
    #[schema(value_type = Object)]
    payload: Box<RawValue>,
    channels: Option<Vec<String>>,
    tags: Option<Vec<String>>,
    #[schema(value_type = String, format = "date-time")]
    timestamp: Instant,
}

fn out(message: MessageView, with_content: bool) -> MessageOut {
    let given = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
    let payload = match (with_content, &message.payload) {
        (false, _) => "{}",
        (true, None) => r#"{"expired":true}"#,
        (true, Some(payload)) => std::str::from_utf8(payload).expect("it was JSON text when it was published"),
    };
    MessageOut {
        id: message.id.to_string(),
        event_id: message.event_id.map(|id| id.as_str().to_owned()),
        event_type: message.event_type.as_str().to_owned(),
        payload: RawValue::from_string(payload.to_owned()).expect("it was JSON text when it was published"),
        channels: given(message.channels),
        tags: given(message.tags),
        timestamp: Instant::of_wall_ms(message.created_wall_ms),
    }
}

/// Repeated with the same eventId and the same content, it answers the first message.
#[utoipa::path(
    post, path = "/api/v1/app/{app_id}/msg", tag = "webhooks", operation_id = "v1.message.create",
    request_body = MessageBody,
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("with_content" = Option<bool>, Query, description = "answer the payload, too; default true"),
        ("idempotency-key" = Option<String>, Header, description = "1 to 255 bytes; repeated, the call answers alike")
    ),
    responses(
        (status = 202, description = "it will be delivered, now or as soon as it can be", body = MessageOut),
        (status = 404, description = "no such application", body = HttpErrorBody),
        (status = 409, description = "conflict: the eventId was used with other content", body = HttpErrorBody),
        (status = 413, description = "too_large: the payload or the body", body = HttpErrorBody),
        (status = 422, description = "invalid_request, fingerprint_mismatch", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (
            status = 504, description = "it may or may not apply; repeat it with its eventId or idempotency-key",
            body = HttpErrorBody
        ),
    )
)]
pub async fn create_message(
    State(app): State<App>,
    owner: Owner,
    caller: Caller,
    Deadline(deadline): Deadline,
    mut parameters: Parameters,
    call: Call,
) -> Result<Response, Problem> {
    let retention_us = app.webhooks.retention_us();
    let Published { message, application } = parse(&call.body, retention_us)?;
    let with_content = parameters.flag("with_content", true);
    let with_content = parameters.verdict(with_content)?;
    let request = call.request(owner.scope());
    let payload = with_content.then(|| message.payload.clone());
    let publish = Publish { app: owner.0, message, retention_us };
    let publishing = WebhookCall { action: Action::Publish(publish), request };
    let mut reply = app.service.webhook(publishing.clone(), deadline).await?;
    if reply == WebhookReply::Refused(Refusal::NoApp)
        && let Some(create) = application
    {
        make(&app, &caller, create, &publishing, deadline).await?;
        reply = app.service.webhook(publishing, deadline).await?;
    }
    app.metrics.published(outcome(&reply));
    match reply {
        WebhookReply::Published { message, .. } => {
            let message = MessageView { payload, ..message };
            Ok((StatusCode::ACCEPTED, Json(out(message, with_content))).into_response())
        }
        WebhookReply::Refused(refusal) => Err(refused(refusal)),
        _ => Err(unexpected()),
    }
}

fn outcome(reply: &WebhookReply) -> &'static str {
    match reply {
        WebhookReply::Published { repeated: false, .. } => "published",
        WebhookReply::Published { repeated: true, .. } => "repeated",
        _ => "refused",
    }
}

/// Makes the application that a message brings along. It must be the one that the path names.
async fn make(
    app: &App,
    caller: &Caller,
    create: CreateApp,
    publishing: &WebhookCall,
    deadline: Until,
) -> Result<(), Problem> {
    let named = match publishing.action.app() {
        Some(AppRef::Uid(uid)) => Some(uid),
        _ => None,
    };
    if named.is_none() || create.uid.as_ref() != named {
        return Err(missing(Missing::App));
    }
    caller.check_account(create.uid.as_ref().map_or("", Name::as_str))?;
    let call = WebhookCall { action: Action::CreateApp(create), request: None };
    match app.service.webhook(call, deadline).await? {
        WebhookReply::App { .. } => Ok(()),
        WebhookReply::Refused(refusal) => Err(refused(refusal)),
        _ => Err(unexpected()),
    }
}

/// The newest first.
#[utoipa::path(
    get, path = "/api/v1/app/{app_id}/msg", tag = "webhooks", operation_id = "v1.message.list",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("limit" = Option<u32>, Query, description = "1 to 250, default 50"),
        ("iterator" = Option<String>, Query, description = "iterator or prevIterator of another page"),
        ("event_types" = Option<String>, Query, description = "these alone, separated by commas"),
        ("channel" = Option<String>, Query, description = "on this channel alone"),
        ("tag" = Option<String>, Query, description = "of this tag alone"),
        ("before" = Option<String>, Query, description = "published before this instant (RFC 3339)"),
        ("after" = Option<String>, Query, description = "published after this instant (RFC 3339)"),
        ("with_content" = Option<bool>, Query, description = "answer payloads, too; default true")
    ),
    responses(
        (status = 200, description = "a page", body = ListBody<MessageOut>),
        (status = 404, description = "no such application", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn list_messages(
    State(app): State<App>,
    Owner(owner): Owner,
    Deadline(deadline): Deadline,
    mut parameters: Parameters,
) -> Result<Json<ListBody<MessageOut>>, Problem> {
    let page = parameters.page(true, |text| MessageId::parse(text).map(|id| id.0));
    let filter = parameters.messages();
    let with_payload = parameters.flag("with_content", true);
    let (filter, with_payload) = parameters.verdict((filter, with_payload))?;
    match ask(&app, WebhookQuery::Messages { app: owner, filter, with_payload, page }, deadline).await? {
        WebhookAnswer::Messages(found) => Ok(Json(ListBody::new(
            found,
            &page,
            |id| MessageId(id).to_string(),
            |message| message.id.0,
            |message| out(message, with_payload),
        ))),
        _ => Err(unexpected()),
    }
}

#[utoipa::path(
    get, path = "/api/v1/app/{app_id}/msg/{msg_id}", tag = "webhooks", operation_id = "v1.message.get",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("msg_id" = String, Path, description = "id or eventId"),
        ("with_content" = Option<bool>, Query, description = "answer the payload, too; default true")
    ),
    responses(
        (status = 200, description = "the message", body = MessageOut),
        (status = 404, description = "no such application or message", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn get_message(
    State(app): State<App>,
    Owner(owner): Owner,
    At(message): At<MessageRef>,
    Deadline(deadline): Deadline,
    mut parameters: Parameters,
) -> Result<Json<MessageOut>, Problem> {
    let with_payload = parameters.flag("with_content", true);
    let with_payload = parameters.verdict(with_payload)?;
    match ask(&app, WebhookQuery::Message { app: owner, message, with_payload }, deadline).await? {
        WebhookAnswer::Message(found) => Ok(Json(out(found, with_payload))),
        _ => Err(unexpected()),
    }
}
