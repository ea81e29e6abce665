//! Endpoints: where messages go. Those of an application, and the operational ones of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use onceward_core::webhooks::{
    Action, AppRef, CreateEndpoint, DeleteEndpoint, EndpointId, EndpointPatch, EndpointRef, EndpointSpec, EndpointView,
    Headers, Name, PatchEndpoint, PutEndpoint, Secret, WebhookAnswer, WebhookQuery, WebhookReply,
    bounds::{DESCRIPTION_BYTES_MAX, ENDPOINT_CHANNELS_MAX, FILTER_MAX, URL_BYTES_MAX},
    check_channel,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    call::{At, Call, Owner, Segment, ask, change, unexpected},
    error::{HttpErrorBody, ValidationErrorBody},
    fields::{self, Describes, HeadersIn, MetadataIn, Removable, SetIn, removable},
    page::{ListBody, Parameters},
    secret, unprocessable,
};
use crate::api::{
    App,
    call::Deadline,
    instant::Instant,
    json::{Field, Judge, object, read_tolerantly},
    problem::{Place, Problem},
};

#[derive(ToSchema)]
#[schema(as = EndpointIn)]
pub struct EndpointBody {
    /// http or https, at most 2048 bytes, to an address that webhooks may reach.
    #[schema(value_type = String, format = "uri")]
    url: Field<String>,
    #[schema(value_type = String, required = false, max_length = 1024)]
    description: Field<String>,
    #[schema(value_type = String, required = false, max_length = 255, pattern = "^[a-zA-Z0-9\\-_.]+$")]
    uid: Field<String>,
    /// Messages a second.
    #[schema(value_type = u16, required = false, minimum = 1, rename = "throttleRate")]
    throttle_rate: Field<u64>,
    /// The older name of `throttleRate`.
    #[schema(value_type = u16, required = false, minimum = 1, rename = "rateLimit")]
    rate_limit: Field<u64>,
    #[schema(value_type = bool, required = false)]
    disabled: Field<bool>,
    /// The types of messages that it wants; null or left out: all.
    #[schema(value_type = Vec<String>, required = false, min_items = 1, max_items = 100, rename = "eventTypes")]
    event_types: Field<SetIn>,
    /// The older name of `eventTypes`.
    #[schema(value_type = Vec<String>, required = false, min_items = 1, max_items = 100, rename = "filterTypes")]
    filter_types: Field<SetIn>,
    /// The channels that it listens to; null or left out: all messages. Not of an operational endpoint.
    #[schema(value_type = Vec<String>, required = false, min_items = 1, max_items = 10)]
    channels: Field<SetIn>,
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    metadata: Field<MetadataIn>,
    /// Of one that is made: `whsec_` and 24 to 75 bytes in base64. Left out, one is drawn.
    #[schema(value_type = String, required = false)]
    secret: Field<String>,
    /// Of one that is made: headers to add to its deliveries.
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    headers: Field<HeadersIn>,
    /// Taken, and without effect.
    #[schema(value_type = u16, required = false, minimum = 1)]
    version: Field<u64>,
}

object!(EndpointBody {
    url,
    description,
    uid,
    throttle_rate: "throttleRate",
    rate_limit: "rateLimit",
    disabled,
    event_types: "eventTypes",
    filter_types: "filterTypes",
    channels,
    metadata,
    secret,
    headers,
    version,
});

/// An endpoint as a whole, as a body describes it. Its URL is not vetted yet.
pub struct Described {
    pub uid: Option<Name>,
    pub spec: EndpointSpec,
    pub headers: Headers,
    pub secret: Option<Secret>,
}

/// What a body says of an endpoint, but for what only one that is made takes.
fn read(judge: &mut Judge, body: &mut EndpointBody, describes: Describes) -> EndpointPatch {
    let take = std::mem::take::<Field<String>>;
    let version = std::mem::take(&mut body.version);
    describes.kept(version, |field| {
        judge.number(field, || "version".to_owned(), 1..=u64::from(u16::MAX), "a whole number from 1 to 65535")
    });
    let description = |judge: &mut Judge, field| fields::text(judge, field, "description", 0..=DESCRIPTION_BYTES_MAX);
    let flag = |judge: &mut Judge, field| judge.required(field, || "disabled".to_owned(), "true or false");
    let channels =
        |judge: &mut Judge, field| fields::labels(judge, field, "channels", ENDPOINT_CHANNELS_MAX, check_channel);
    let metadata = |judge: &mut Judge, field| fields::metadata(judge, field, "metadata");
    EndpointPatch {
        uid: removable(take(&mut body.uid), |field| fields::uid(judge, field, "uid")),
        url: describes.needed(take(&mut body.url), |field| {
            judge.text(field, || "url".to_owned(), URL_BYTES_MAX, "a URL of 1 to 2048 bytes")
        }),
        description: describes.kept(take(&mut body.description), |field| description(judge, field)),
        rate_limit: fields::throttle(
            judge,
            std::mem::take(&mut body.throttle_rate),
            std::mem::take(&mut body.rate_limit),
            "",
        ),
        disabled: describes.kept(std::mem::take(&mut body.disabled), |field| flag(judge, field)),
        event_types: event_types(judge, std::mem::take(&mut body.event_types), std::mem::take(&mut body.filter_types)),
        channels: removable(std::mem::take(&mut body.channels), |field| channels(judge, field)),
        metadata: describes.kept(std::mem::take(&mut body.metadata), |field| metadata(judge, field)),
    }
}

/// `eventTypes`, or `filterTypes`, its older name; with both they must agree.
fn event_types(judge: &mut Judge, event_types: Field<SetIn>, filter_types: Field<SetIn>) -> Removable<BTreeSet<Name>> {
    let mut read = |field, path| removable(field, |field| fields::names(judge, field, path, FILTER_MAX));
    match (read(event_types, "eventTypes"), read(filter_types, "filterTypes")) {
        (Some(newer), Some(older)) if newer != older => {
            judge.refuse("filterTypes", "is the older name of eventTypes, and differs from it; give one of them");
            None
        }
        (newer, older) => newer.or(older),
    }
}

/// Reads and checks the body of `POST` and `PUT`.
pub fn parse(body: &[u8]) -> Result<Described, Problem> {
    const _: () = assert!(URL_BYTES_MAX == 2_048 && FILTER_MAX == 100 && ENDPOINT_CHANNELS_MAX == 10);
    let mut judge = Judge::default();
    let mut body: EndpointBody = read_tolerantly(body, &mut judge)?;
    let read = read(&mut judge, &mut body, Describes::Whole);
    let headers = Describes::Whole.kept(body.headers, |field| fields::headers(&mut judge, field, "headers"));
    let secret = Describes::Whole.kept(body.secret, |field| secret::read(&mut judge, field, "secret"));
    let described = read.url.map(|url| Described {
        uid: read.uid.flatten(),
        spec: EndpointSpec {
            url,
            description: read.description.unwrap_or_default(),
            rate_limit: read.rate_limit.flatten(),
            disabled: read.disabled.unwrap_or_default(),
            event_types: read.event_types.flatten(),
            channels: read.channels.flatten(),
            metadata: read.metadata.unwrap_or_default(),
        },
        headers: headers.unwrap_or_default(),
        secret,
    });
    judge.verdict(described)
}

/// Reads and checks the body of `PATCH`.
pub fn parse_patch(body: &[u8]) -> Result<EndpointPatch, Problem> {
    let mut judge = Judge::default();
    let mut body: EndpointBody = read_tolerantly(body, &mut judge)?;
    let patch = read(&mut judge, &mut body, Describes::Change);
    judge.verdict(Some(patch))
}

/// Whether webhooks may go there.
async fn vet(app: &App, url: &str) -> Result<(), Problem> {
    app.url_guard.vet(url).await.map_err(|reason| unprocessable(Place::Body, "url", reason))
}

/// An endpoint; its secret is read by itself.
#[derive(Serialize, ToSchema)]
#[schema(as = EndpointOut)]
#[serde(rename_all = "camelCase")]
pub struct EndpointOut {
    id: String,
    metadata: BTreeMap<String, String>,
    #[serde(flatten)]
    common: EndpointCommonOut,
}

/// What is told of an endpoint also beside its deliveries.
#[derive(Serialize, ToSchema)]
#[schema(as = EndpointOutCommon)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCommonOut {
    url: String,
    description: String,
    uid: Option<String>,
    throttle_rate: Option<u32>,
    /// The older name of `throttleRate`.
    rate_limit: Option<u32>,
    /// Always 1.
    version: u16,
    disabled: bool,
    event_types: Option<Vec<String>>,
    /// The older name of `eventTypes`.
    filter_types: Option<Vec<String>>,
    channels: Option<Vec<String>>,
    #[schema(value_type = String, format = "date-time")]
    created_at: Instant,
    #[schema(value_type = String, format = "date-time")]
    updated_at: Instant,
}

pub(super) fn common(endpoint: EndpointView) -> EndpointCommonOut {
    let types = |types: &BTreeSet<Name>| types.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>();
    let event_types = endpoint.spec.event_types.as_ref().map(types);
    EndpointCommonOut {
        url: endpoint.spec.url,
        description: endpoint.spec.description,
        uid: endpoint.uid.map(|uid| uid.as_str().to_owned()),
        throttle_rate: endpoint.spec.rate_limit,
        rate_limit: endpoint.spec.rate_limit,
        version: 1,
        disabled: endpoint.spec.disabled,
        filter_types: event_types.clone(),
        event_types,
        channels: endpoint.spec.channels.map(|channels| channels.into_iter().collect()),
        created_at: Instant::of_wall_ms(endpoint.created_wall_ms),
        updated_at: Instant::of_wall_ms(endpoint.updated_wall_ms),
    }
}

fn out(mut endpoint: EndpointView) -> EndpointOut {
    EndpointOut {
        id: endpoint.id.to_string(),
        metadata: std::mem::take(&mut endpoint.spec.metadata),
        common: common(endpoint),
    }
}

fn stored(reply: WebhookReply) -> Result<Response, Problem> {
    match reply {
        WebhookReply::Endpoint { endpoint, created } => {
            let status = if created { StatusCode::CREATED } else { StatusCode::OK };
            Ok((status, Json(out(endpoint))).into_response())
        }
        _ => Err(unexpected()),
    }
}

#[utoipa::path(
    get, path = "/api/v1/app/{app_id}/endpoint", tag = "webhooks", operation_id = "v1.endpoint.list",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("limit" = Option<u32>, Query, description = "1 to 250, default 50"),
        ("iterator" = Option<String>, Query, description = "iterator or prevIterator of another page"),
        ("order" = Option<String>, Query, description = "ascending or descending (default)")
    ),
    responses(
        (status = 200, description = "a page", body = ListBody<EndpointOut>),
        (status = 404, description = "no such application", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn list_endpoints(
    State(app): State<App>,
    Owner(owner): Owner,
    Deadline(deadline): Deadline,
    mut parameters: Parameters,
) -> Result<Json<ListBody<EndpointOut>>, Problem> {
    let descending = parameters.descending(true);
    let page = parameters.page(descending, |text| EndpointId::parse(text).map(|id| id.0));
    let page = parameters.verdict(page)?;
    match ask(&app, WebhookQuery::Endpoints { app: owner, page }, deadline).await? {
        WebhookAnswer::Endpoints(found) => {
            Ok(Json(ListBody::new(found, &page, |id| EndpointId(id).to_string(), |endpoint| endpoint.id.0, out)))
        }
        _ => Err(unexpected()),
    }
}

#[utoipa::path(
    post, path = "/api/v1/app/{app_id}/endpoint", tag = "webhooks", operation_id = "v1.endpoint.create",
    request_body = EndpointBody,
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("idempotency-key" = Option<String>, Header, description = "1 to 255 bytes; repeated, the call answers alike")
    ),
    responses(
        (status = 201, description = "made", body = EndpointOut),
        (status = 400, description = "limit_reached: there are as many as there may be", body = HttpErrorBody),
        (status = 404, description = "no such application", body = HttpErrorBody),
        (status = 409, description = "conflict: the uid is taken", body = HttpErrorBody),
        (
            status = 422, description = "invalid_request: also a URL that webhooks may not reach; fingerprint_mismatch",
            body = ValidationErrorBody
        ),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeat it with its idempotency-key", body = HttpErrorBody),
    )
)]
pub async fn create_endpoint(
    State(app): State<App>,
    owner: Owner,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<Response, Problem> {
    let Described { uid, mut spec, headers, secret } = parse(&call.body)?;
    vet(&app, &spec.url).await?;
    let request = call.request(owner.scope());
    fit(&owner, &mut spec.channels);
    let secret = secret.unwrap_or_else(secret::draw);
    let create = CreateEndpoint { app: owner.0, uid, spec, headers, secret };
    stored(change(&app, Action::CreateEndpoint(create), request, deadline).await?)
}

/// Operational messages are on no channel: an endpoint that listened to one would never get any.
fn fit<T>(owner: &Owner, channels: &mut Option<T>) {
    if owner.0 == AppRef::Operational {
        *channels = None;
    }
}

#[utoipa::path(
    get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", tag = "webhooks", operation_id = "v1.endpoint.get",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("endpoint_id" = String, Path, description = "id or uid")
    ),
    responses(
        (status = 200, description = "the endpoint", body = EndpointOut),
        (status = 404, description = "no such application or endpoint", body = HttpErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn get_endpoint(
    State(app): State<App>,
    Owner(owner): Owner,
    At(endpoint): At<EndpointRef>,
    Deadline(deadline): Deadline,
) -> Result<Json<EndpointOut>, Problem> {
    match ask(&app, WebhookQuery::Endpoint { app: owner, endpoint }, deadline).await? {
        WebhookAnswer::Endpoint(found) => Ok(Json(out(found))),
        _ => Err(unexpected()),
    }
}

/// Replaces it, its secret and headers excepted, or makes the one of the uid that the path names.
#[utoipa::path(
    put, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", tag = "webhooks", operation_id = "v1.endpoint.update",
    request_body = EndpointBody,
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("endpoint_id" = String, Path, description = "id or uid")
    ),
    responses(
        (status = 200, description = "replaced", body = EndpointOut),
        (status = 201, description = "made", body = EndpointOut),
        (status = 400, description = "limit_reached: there are as many as there may be", body = HttpErrorBody),
        (status = 404, description = "no such application, or no endpoint of this id", body = HttpErrorBody),
        (status = 409, description = "conflict: the uid is taken", body = HttpErrorBody),
        (
            status = 422, description = "invalid_request: also a URL that webhooks may not reach",
            body = ValidationErrorBody
        ),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn put_endpoint(
    State(app): State<App>,
    owner: Owner,
    At(endpoint): At<EndpointRef>,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<Response, Problem> {
    let Described { uid, mut spec, .. } = parse(&call.body)?;
    if let EndpointRef::Uid(named) = &endpoint
        && let Err(error) = Name::parse_uid(named.as_str())
    {
        return Err(unprocessable(Place::Path, EndpointRef::NAME, error.to_string()));
    }
    vet(&app, &spec.url).await?;
    fit(&owner, &mut spec.channels);
    let put = PutEndpoint { app: owner.0, endpoint, uid, spec, secret: secret::draw() };
    stored(change(&app, Action::PutEndpoint(put), None, deadline).await?)
}

/// Changes what the body names.
#[utoipa::path(
    patch, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", tag = "webhooks", operation_id = "v1.endpoint.patch",
    request_body = EndpointBody,
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("endpoint_id" = String, Path, description = "id or uid")
    ),
    responses(
        (status = 200, description = "changed", body = EndpointOut),
        (status = 404, description = "no such application or endpoint", body = HttpErrorBody),
        (status = 409, description = "conflict: the uid is taken", body = HttpErrorBody),
        (
            status = 422, description = "invalid_request: also a URL that webhooks may not reach",
            body = ValidationErrorBody
        ),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn patch_endpoint(
    State(app): State<App>,
    owner: Owner,
    At(endpoint): At<EndpointRef>,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<Response, Problem> {
    let mut patch = parse_patch(&call.body)?;
    if let Some(url) = &patch.url {
        vet(&app, url).await?;
    }
    fit(&owner, &mut patch.channels);
    let patch = PatchEndpoint { app: owner.0, endpoint, patch };
    stored(change(&app, Action::PatchEndpoint(patch), None, deadline).await?)
}

/// Deletes it with what it had still to get.
#[utoipa::path(
    delete, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", tag = "webhooks", operation_id = "v1.endpoint.delete",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("endpoint_id" = String, Path, description = "id or uid")
    ),
    responses(
        (status = 204, description = "deleted"),
        (status = 404, description = "no such application or endpoint", body = HttpErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = HttpErrorBody),
    )
)]
pub async fn delete_endpoint(
    State(app): State<App>,
    Owner(owner): Owner,
    At(endpoint): At<EndpointRef>,
    Deadline(deadline): Deadline,
) -> Result<StatusCode, Problem> {
    change(&app, Action::DeleteEndpoint(DeleteEndpoint { app: owner, endpoint }), None, deadline).await?;
    Ok(StatusCode::NO_CONTENT)
}
