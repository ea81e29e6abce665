//! The OpenAPI 3.1 document, made from the handlers' own annotations and from what all operations have in common.

use std::{borrow::Cow, sync::LazyLock};

use bytes::Bytes;
use utoipa::{
    Modify, OpenApi, PartialSchema, ToSchema,
    openapi::{
        Content, Header, Ref, RefOr, Response, Schema,
        path::{Operation, PathItem},
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};

use super::{
    cluster, health, idempotency, limits, policies,
    problem::ProblemMembers,
    webhooks::{self, HttpErrorBody, is_webhooks},
};

#[derive(OpenApi)]
#[openapi(
    info(title = "Onceward", description = "Rate limits that hold, idempotency keys and webhooks, on a cluster of equal nodes."),
    paths(
        health::livez,
        health::readyz,
        health::metrics,
        health::openapi,
        cluster::cluster,
        cluster::replace_node,
        policies::list_policies,
        policies::get_policy,
        policies::put_policy,
        policies::delete_policy,
        limits::check::check,
        limits::refund::refund,
        limits::reset::reset,
        idempotency::begin::begin,
        idempotency::complete::complete,
        idempotency::abandon::abandon,
        idempotency::extend::extend,
        idempotency::list::list_keys,
        idempotency::read::read_key,
        idempotency::delete::delete_key,
        webhooks::health::health,
        webhooks::app::list_apps,
        webhooks::app::create_app,
        webhooks::app::get_app,
        webhooks::app::put_app,
        webhooks::app::patch_app,
        webhooks::app::delete_app,
        webhooks::endpoint::list_endpoints,
        webhooks::endpoint::create_endpoint,
        webhooks::endpoint::get_endpoint,
        webhooks::endpoint::put_endpoint,
        webhooks::endpoint::patch_endpoint,
        webhooks::endpoint::delete_endpoint,
        webhooks::secret::get_secret,
        webhooks::secret::rotate_secret,
        webhooks::headers::get_headers,
        webhooks::headers::put_headers,
        webhooks::headers::patch_headers,
        webhooks::message::list_messages,
        webhooks::message::create_message,
        webhooks::message::get_message,
        webhooks::delivery::list_deliveries,
        webhooks::attempt::get_attempt,
        webhooks::attempt::list_attempts_of_message,
        webhooks::attempt::list_attempts_of_endpoint,
        webhooks::event_type::list_event_types,
        webhooks::event_type::create_event_type,
        webhooks::event_type::get_event_type,
        webhooks::event_type::put_event_type,
        webhooks::event_type::patch_event_type,
        webhooks::event_type::delete_event_type,
    ),
    modifiers(&BearerToken, &Patches, &OperationalEndpoints, &InCommon, &RateLimitHeaders),
    security(("token" = []))
)]
struct Document;

/// Declares the bearer token as the way to authenticate.
struct BearerToken;

impl Modify for BearerToken {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    }
}

/// A patch is described like the whole, with nothing required.
struct Patches;

impl Modify for Patches {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let patches = document.paths.paths.values_mut().filter_map(|item| item.patch.as_mut());
        for body in patches.filter_map(|operation| operation.request_body.as_mut()) {
            let RefOr::T(body) = body else { continue };
            for content in body.content.values_mut() {
                let RefOr::T(Content { schema: Some(RefOr::Ref(schema)), .. }) = content else { continue };
                let Some(name) = schema.ref_location.strip_prefix(SCHEMAS) else { continue };
                let Some(RefOr::T(Schema::Object(whole))) = components.schemas.get(name) else { continue };
                let patch = format!("{}Patch", name.strip_suffix("In").unwrap_or(name));
                let mut part = whole.clone();
                part.required.clear();
                *schema = Ref::from_schema_name(&patch);
                components.schemas.insert(patch, Schema::Object(part).into());
            }
        }
    }
}

const SCHEMAS: &str = "#/components/schemas/";

/// The operations on endpoints once more: those of the cluster, whose paths name no application.
struct OperationalEndpoints;

impl Modify for OperationalEndpoints {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        const OF_APP: &str = "/api/v1/app/{app_id}/endpoint";
        let paths = &mut document.paths.paths;
        let of_apps =
            paths.iter().filter_map(|(path, item)| Some((path.strip_prefix(OF_APP)?.to_owned(), item.clone())));
        for (rest, mut item) in of_apps.collect::<Vec<_>>() {
            operations(&mut item).into_iter().flatten().for_each(of_cluster);
            paths.insert(format!("/api/v1/operational-webhook/endpoint{rest}"), item);
        }
    }
}

fn of_cluster(operation: &mut Operation) {
    if let Some(id) = &mut operation.operation_id {
        *id = id.replacen("v1.endpoint.", "v1.operational-webhook.endpoint.", 1);
    }
    if let Some(parameters) = &mut operation.parameters {
        parameters.retain(|parameter| !matches!(parameter, RefOr::T(parameter) if parameter.name == "app_id"));
    }
}

fn operations(item: &mut PathItem) -> [Option<&mut Operation>; 5] {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete].map(Option::as_mut)
}

/// What every operation may answer besides what it says itself.
struct InCommon;

impl Modify for InCommon {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for (path, item) in &mut document.paths.paths {
            let errors = if is_webhooks(path) { Errors::OF_WEBHOOKS } else { Errors::PROBLEMS };
            operations(item).into_iter().flatten().for_each(|operation| complete(operation, errors));
        }
    }
}

/// Problems that come from before the handler. An operation that states a security of its own needs no token.
const WITH_TOKEN: [(&str, &str); 5] = [
    ("400", "invalid_request"),
    ("401", "unauthorized: the token is missing or wrong"),
    ("403", "forbidden: the token lacks the right"),
    ("429", "rate_limited: too many wrong tokens from this address"),
    ("503", "unavailable: too many requests are in flight"),
];
const WITH_BODY: [(&str, &str); 3] = [
    ("408", "invalid_request: the body did not arrive in time"),
    ("413", "too_large: nothing was done"),
    ("415", "invalid_request: the body is not application/json"),
];

/// How errors are written.
#[derive(Clone, Copy)]
struct Errors {
    media: &'static str,
    schema: fn() -> Cow<'static, str>,
}

impl Errors {
    const PROBLEMS: Errors = Errors { media: "application/problem+json", schema: ProblemMembers::name };
    const OF_WEBHOOKS: Errors = Errors { media: "application/json", schema: HttpErrorBody::name };
}

fn complete(operation: &mut Operation, errors: Errors) {
    let with_token = if operation.security.is_none() { &WITH_TOKEN[..] } else { &[] };
    let with_body = if operation.request_body.is_some() { &WITH_BODY[..] } else { &[] };
    let responses = &mut operation.responses.responses;
    for (status, description) in with_token.iter().chain(with_body) {
        responses.entry((*status).to_owned()).or_insert_with(|| error(description, errors).into());
    }
    for (status, response) in responses {
        let RefOr::T(response) = response else { continue };
        if status.starts_with(['4', '5'])
            && let Some(content) = response.content.shift_remove("application/json")
        {
            response.content.insert(errors.media.to_owned(), content);
        }
        describe(response, "X-Request-Id", String::schema(), "the caller's, or a new one");
        if matches!(status.as_str(), "429" | "503") {
            describe(
                response,
                "Retry-After",
                u64::schema(),
                "seconds, rounded up, at least 1; absent when no wait helps",
            );
        }
    }
}

fn error(description: &str, errors: Errors) -> Response {
    let mut response = Response::new(description);
    let schema = Ref::from_schema_name((errors.schema)());
    response.content.insert("application/json".to_owned(), Content::new(Some(schema)).into());
    response
}

fn describe(response: &mut Response, name: &str, schema: RefOr<utoipa::openapi::Schema>, description: &str) {
    let mut header = Header::new(schema);
    header.description = Some(description.to_owned());
    response.headers.insert(name.to_owned(), header.into());
}

/// The headers of every answer that has results of a check.
struct RateLimitHeaders;

impl Modify for RateLimitHeaders {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let check = document.paths.paths.get_mut("/v1/limits/check").and_then(|item| item.post.as_mut());
        let responses = &mut check.expect("the document describes checks").responses.responses;
        for status in ["200", "429", "503"] {
            let Some(RefOr::T(response)) = responses.get_mut(status) else { continue };
            for (name, description) in limits::headers::NUMBERS {
                describe(response, name, u64::schema(), description);
            }
            for (name, description) in limits::headers::STRUCTURED {
                describe(response, name, String::schema(), description);
            }
        }
    }
}

/// The document as JSON, made once.
pub fn document() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> =
        LazyLock::new(|| Document::openapi().to_json().expect("an OpenAPI document is JSON").into());
    DOCUMENT.clone()
}
