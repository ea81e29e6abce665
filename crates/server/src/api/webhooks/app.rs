//! Applications: accounts that have endpoints and messages.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use onceward_core::webhooks::{
    Action, AppId, AppPatch, AppRef, AppSpec, AppView, CreateApp, Name, PatchApp, PutApp, WebhookAnswer, WebhookQuery,
    WebhookReply, bounds::TITLE_BYTES_MAX,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    call::{Call, Owner, ask, change, unexpected},
    error::{HttpErrorBody, ValidationErrorBody},
    fields::{self, Describes, MetadataIn, removable},
    page::{ListBody, Parameters},
    unprocessable,
};
use crate::api::{
    App,
    call::{Caller, Deadline},
    instant::Instant,
    json::{Field, Judge, object, read_tolerantly},
    problem::{Place, Problem},
};

#[derive(ToSchema)]
#[schema(as = ApplicationIn)]
pub struct AppBody {
    #[schema(value_type = String, min_length = 1, max_length = 256)]
    name: Field<String>,
    /// The name of its account, fixed when it is made. Without one the account is named by the application's id.
    #[schema(value_type = String, required = false, max_length = 255, pattern = "^[a-zA-Z0-9\\-_.]+$")]
    uid: Field<String>,
    /// Messages a second to all of its endpoints together.
    #[schema(value_type = u16, required = false, minimum = 1, rename = "throttleRate")]
    throttle_rate: Field<u64>,
    /// The older name of `throttleRate`.
    #[schema(value_type = u16, required = false, minimum = 1, rename = "rateLimit")]
    rate_limit: Field<u64>,
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    metadata: Field<MetadataIn>,
}

object!(AppBody { name, uid, throttle_rate: "throttleRate", rate_limit: "rateLimit", metadata });

/// What a body says of an application; `at` is the path of its fields, empty or ending in a dot.
fn read(judge: &mut Judge, body: AppBody, describes: Describes, at: &str) -> AppPatch {
    let path = |name: &str| format!("{at}{name}");
    AppPatch {
        name: describes.needed(body.name, |field| fields::text(judge, field, &path("name"), 1..=TITLE_BYTES_MAX)),
        uid: removable(body.uid, |field| fields::uid(judge, field, &path("uid"))),
        rate_limit: fields::throttle(judge, body.throttle_rate, body.rate_limit, at),
        metadata: describes.kept(body.metadata, |field| fields::metadata(judge, field, &path("metadata"))),
    }
}

/// A whole application. `None`: something of it was refused.
pub(super) fn whole(judge: &mut Judge, body: AppBody, at: &str) -> Option<(Option<Name>, AppSpec)> {
    let AppPatch { name, uid, rate_limit, metadata } = read(judge, body, Describes::Whole, at);
    let spec = AppSpec { name: name?, rate_limit: rate_limit.flatten(), metadata: metadata.unwrap_or_default() };
    Some((uid.flatten(), spec))
}

/// Reads and checks the body of `POST` and `PUT`.
pub fn parse(body: &[u8]) -> Result<(Option<Name>, AppSpec), Problem> {
    let mut judge = Judge::default();
    let body: AppBody = read_tolerantly(body, &mut judge)?;
    let app = whole(&mut judge, body, "");
    judge.verdict(app)
}

/// Reads and checks the body of `PATCH`.
pub fn parse_patch(body: &[u8]) -> Result<AppPatch, Problem> {
    let mut judge = Judge::default();
    let body: AppBody = read_tolerantly(body, &mut judge)?;
    let patch = read(&mut judge, body, Describes::Change, "");
    judge.verdict(Some(patch))
}

/// An application.
#[derive(Serialize, ToSchema)]
#[schema(as = ApplicationOut)]
#[serde(rename_all = "camelCase")]
pub struct AppOut {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    name: String,
    throttle_rate: Option<u32>,
    /// The older name of `throttleRate`.
    rate_limit: Option<u32>,
    metadata: BTreeMap<String, String>,
    #[schema(value_type = String, format = "date-time")]
    created_at: Instant,
    #[schema(value_type = String, format = "date-time")]
    updated_at: Instant,
}

fn out(app: AppView) -> AppOut {
    AppOut {
        id: app.id.to_string(),
        uid: app.uid.map(|uid| uid.as_str().to_owned()),
        name: app.spec.name,
        throttle_rate: app.spec.rate_limit,
        rate_limit: app.spec.rate_limit,
        metadata: app.spec.metadata,
        created_at: Instant::of_wall_ms(app.created_wall_ms),
        updated_at: Instant::of_wall_ms(app.updated_wall_ms),
    }
}

fn stored(reply: WebhookReply) -> Result<Response, Problem> {
    match reply {
        WebhookReply::App { app, created } => {
            let status = if created { StatusCode::CREATED } else { StatusCode::OK };
            Ok((status, Json(out(app))).into_response())
        }
        _ => Err(unexpected()),
    }
}

/// By age, of all shards.
#[utoipa::path(
    get, path = "/api/v1/app", tag = "webhooks", operation_id = "v1.application.list",
    params(
        ("limit" = Option<u32>, Query, description = "1 to 250, default 50"),
        ("iterator" = Option<String>, Query, description = "iterator or prevIterator of another page"),
        ("order" = Option<String>, Query, description = "ascending (default) or descending")
    ),
    responses(
        (status = 200, description = "a page", body = ListBody<AppOut>),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "a shard has no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn list_apps(
    State(app): State<App>,
    caller: Caller,
    Deadline(deadline): Deadline,
    mut parameters: Parameters,
) -> Result<Json<ListBody<AppOut>>, Problem> {
    caller.check_unbound()?;
    let descending = parameters.descending(false);
    let page = parameters.page(descending, |text| AppId::parse(text).map(|id| id.0));
    let page = parameters.verdict(page)?;
    let found = app.service.apps(page, deadline).await?;
    Ok(Json(ListBody::new(found, &page, |id| AppId(id).to_string(), |app| app.id.0, out)))
}

/// 201: made. 200: with `get_if_exists`, one that has the uid already, as it is.
#[utoipa::path(
    post, path = "/api/v1/app", tag = "webhooks", operation_id = "v1.application.create", request_body = AppBody,
    params(
        ("get_if_exists" = Option<bool>, Query, description = "answer one that has the uid already"),
        ("idempotency-key" = Option<String>, Header, description = "1 to 255 bytes; repeated, the call answers alike")
    ),
    responses(
        (status = 200, description = "it was there", body = AppOut),
        (status = 201, description = "made", body = AppOut),
        (status = 409, description = "conflict: the uid is taken", body = HttpErrorBody),
        (status = 422, description = "invalid_request, fingerprint_mismatch", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeat it with its idempotency-key", body = HttpErrorBody),
    )
)]
pub async fn create_app(
    State(app): State<App>,
    caller: Caller,
    Deadline(deadline): Deadline,
    mut parameters: Parameters,
    call: Call,
) -> Result<Response, Problem> {
    let parsed = parse(&call.body);
    // A token that is for one account makes that one and no other, whatever else is wrong.
    let named = parsed.as_ref().ok().and_then(|(uid, _)| uid.as_ref().map(Name::as_str)).unwrap_or_default();
    caller.check_account(named)?;
    let (uid, spec) = parsed?;
    let get_if_exists = parameters.flag("get_if_exists", false);
    let get_if_exists = parameters.verdict(get_if_exists)?;
    let request = call.request(uid.as_ref().map_or("", Name::as_str));
    let action = Action::CreateApp(CreateApp { uid, spec, get_if_exists });
    stored(change(&app, action, request, deadline).await?)
}

#[utoipa::path(
    get, path = "/api/v1/app/{app_id}", tag = "webhooks", operation_id = "v1.application.get",
    params(("app_id" = String, Path, description = "id or uid")),
    responses(
        (status = 200, description = "the application", body = AppOut),
        (status = 404, description = "no such application", body = HttpErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn get_app(
    State(app): State<App>,
    Owner(named): Owner,
    Deadline(deadline): Deadline,
) -> Result<Json<AppOut>, Problem> {
    match ask(&app, WebhookQuery::App { app: named }, deadline).await? {
        WebhookAnswer::App(found) => Ok(Json(out(found))),
        _ => Err(unexpected()),
    }
}

/// Replaces it, or makes the one of the uid that the path names.
#[utoipa::path(
    put, path = "/api/v1/app/{app_id}", tag = "webhooks", operation_id = "v1.application.update", request_body = AppBody,
    params(("app_id" = String, Path, description = "id or uid")),
    responses(
        (status = 200, description = "replaced", body = AppOut),
        (status = 201, description = "made", body = AppOut),
        (status = 404, description = "no application of this id", body = HttpErrorBody),
        (status = 422, description = "invalid_request: also another uid than its own", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn put_app(
    State(app): State<App>,
    Owner(named): Owner,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<Response, Problem> {
    let (uid, spec) = parse(&call.body)?;
    if let AppRef::Uid(named) = &named
        && let Err(error) = Name::parse_uid(named.as_str())
    {
        return Err(unprocessable(Place::Path, Owner::SEGMENT, error.to_string()));
    }
    stored(change(&app, Action::PutApp(PutApp { app: named, uid, spec }), None, deadline).await?)
}

/// Changes what the body names.
#[utoipa::path(
    patch, path = "/api/v1/app/{app_id}", tag = "webhooks", operation_id = "v1.application.patch",
    request_body = AppBody,
    params(("app_id" = String, Path, description = "id or uid")),
    responses(
        (status = 200, description = "changed", body = AppOut),
        (status = 404, description = "no such application", body = HttpErrorBody),
        (status = 422, description = "invalid_request: also another uid than its own", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn patch_app(
    State(app): State<App>,
    Owner(named): Owner,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<Response, Problem> {
    let patch = parse_patch(&call.body)?;
    stored(change(&app, Action::PatchApp(PatchApp { app: named, patch }), None, deadline).await?)
}

/// Deletes it with its endpoints and messages. Its idempotency keys stay.
#[utoipa::path(
    delete, path = "/api/v1/app/{app_id}", tag = "webhooks", operation_id = "v1.application.delete",
    params(("app_id" = String, Path, description = "id or uid")),
    responses(
        (status = 204, description = "deleted"),
        (status = 404, description = "no such application", body = HttpErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn delete_app(
    State(app): State<App>,
    Owner(named): Owner,
    Deadline(deadline): Deadline,
) -> Result<StatusCode, Problem> {
    change(&app, Action::DeleteApp { app: named }, None, deadline).await?;
    Ok(StatusCode::NO_CONTENT)
}
