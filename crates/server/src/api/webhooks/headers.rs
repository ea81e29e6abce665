//! Headers that an endpoint adds to its deliveries.

use std::collections::BTreeMap;

use axum::{Json, extract::State, http::StatusCode};
use onceward_core::webhooks::{
    Action, EndpointRef, Headers, SetHeaders, WebhookAnswer, WebhookQuery, bounds::HEADERS_MAX,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    call::{At, Call, Owner, ask, change, unexpected},
    error::{HttpErrorBody, ValidationErrorBody},
    fields::{self, HeadersIn},
};
use crate::api::{
    App,
    call::Deadline,
    json::{Field, Judge, object, read_tolerantly},
    problem::Problem,
};

/// Whose values are not told again.
const SENSITIVE: [&str; 7] = [
    "authorization",
    "cookie",
    "proxy-authenticate",
    "proxy-authorization",
    "www-authenticate",
    "x-api-key",
    "x-auth-token",
];

#[derive(ToSchema)]
#[schema(as = EndpointHeadersIn)]
pub struct HeadersBody {
    /// By name a string; in a patch null, too, which removes it. At most 32, and 4 KiB of names and values in all.
    #[schema(value_type = BTreeMap<String, String>)]
    headers: Field<HeadersIn>,
    /// Of a patch: names to remove.
    #[schema(value_type = Vec<String>, required = false, rename = "deleteHeaders")]
    delete_headers: Field<Vec<Field<String>>>,
}

object!(HeadersBody { headers, delete_headers: "deleteHeaders" });

/// Reads and checks the body of `PUT`.
pub fn parse(body: &[u8]) -> Result<BTreeMap<String, Option<String>>, Problem> {
    let mut judge = Judge::default();
    let body: HeadersBody = read_tolerantly(body, &mut judge)?;
    let headers = fields::headers(&mut judge, body.headers, "headers");
    judge.verdict(headers.map(|headers| headers.into_iter().map(|(name, value)| (name, Some(value))).collect()))
}

/// Reads and checks the body of `PATCH`.
pub fn parse_patch(body: &[u8]) -> Result<BTreeMap<String, Option<String>>, Problem> {
    let mut judge = Judge::default();
    let body: HeadersBody = read_tolerantly(body, &mut judge)?;
    let headers = fields::headers_patch(&mut judge, body.headers, "headers");
    let path = "deleteHeaders";
    let removed = judge.nullable(body.delete_headers, || path.to_owned(), "a list of names").unwrap_or_default();
    if removed.len() > HEADERS_MAX {
        judge.refuse(path, format!("must be at most {HEADERS_MAX} names, not {}", removed.len()));
    }
    let mut patch = headers;
    for (at, name) in removed.into_iter().take(HEADERS_MAX).enumerate() {
        let name = judge.text(name, || format!("{path}[{at}]"), 256, "a string of 1 to 256 bytes");
        if let (Some(patch), Some(name)) = (&mut patch, name) {
            patch.insert(name, None);
        }
    }
    judge.verdict(patch)
}

#[derive(Serialize, ToSchema)]
#[schema(as = EndpointHeadersOut)]
pub struct HeadersOut {
    headers: BTreeMap<String, String>,
    /// The names of those whose values are not told, as they let somebody in.
    sensitive: Vec<String>,
}

fn out(headers: Headers) -> HeadersOut {
    let is_sensitive = |name: &str| SENSITIVE.iter().any(|sensitive| name.eq_ignore_ascii_case(sensitive));
    let (sensitive, headers): (Headers, Headers) = headers.into_iter().partition(|(name, _)| is_sensitive(name));
    HeadersOut { headers, sensitive: sensitive.into_keys().collect() }
}

#[utoipa::path(
    get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers", tag = "webhooks",
    operation_id = "v1.endpoint.get-headers",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("endpoint_id" = String, Path, description = "id or uid")
    ),
    responses(
        (status = 200, description = "the headers", body = HeadersOut),
        (status = 404, description = "no such application or endpoint", body = HttpErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn get_headers(
    State(app): State<App>,
    Owner(owner): Owner,
    At(endpoint): At<EndpointRef>,
    Deadline(deadline): Deadline,
) -> Result<Json<HeadersOut>, Problem> {
    match ask(&app, WebhookQuery::Headers { app: owner, endpoint }, deadline).await? {
        WebhookAnswer::Headers(headers) => Ok(Json(out(headers))),
        _ => Err(unexpected()),
    }
}

/// Replaces all of them.
#[utoipa::path(
    put, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers", tag = "webhooks",
    operation_id = "v1.endpoint.update-headers", request_body = HeadersBody,
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("endpoint_id" = String, Path, description = "id or uid")
    ),
    responses(
        (status = 204, description = "replaced"),
        (status = 404, description = "no such application or endpoint", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn put_headers(
    State(app): State<App>,
    Owner(owner): Owner,
    At(endpoint): At<EndpointRef>,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<StatusCode, Problem> {
    let headers = parse(&call.body)?;
    let set = SetHeaders { app: owner, endpoint, patch: false, headers };
    change(&app, Action::SetHeaders(set), None, deadline).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets and removes those that the body names.
#[utoipa::path(
    patch, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers", tag = "webhooks",
    operation_id = "v1.endpoint.patch-headers", request_body = HeadersBody,
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("endpoint_id" = String, Path, description = "id or uid")
    ),
    responses(
        (status = 204, description = "changed"),
        (status = 404, description = "no such application or endpoint", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn patch_headers(
    State(app): State<App>,
    Owner(owner): Owner,
    At(endpoint): At<EndpointRef>,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<StatusCode, Problem> {
    let headers = parse_patch(&call.body)?;
    let set = SetHeaders { app: owner, endpoint, patch: true, headers };
    change(&app, Action::SetHeaders(set), None, deadline).await?;
    Ok(StatusCode::NO_CONTENT)
}
