//! The OpenAPI 3.1 document, made from the handlers' own annotations and from what all operations have in common.

use std::sync::LazyLock;

use bytes::Bytes;
use utoipa::{
    Modify, OpenApi, PartialSchema, ToSchema,
    openapi::{
        Content, Header, Ref, RefOr, Response,
        path::Operation,
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};

use super::{cluster, health, idempotency, limits, policies, problem::ProblemMembers};

#[derive(OpenApi)]
#[openapi(
    info(title = "Onceward", description = "Rate limits that hold, and idempotency keys, on a cluster of equal nodes."),
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
    ),
    modifiers(&BearerToken, &InCommon, &RateLimitHeaders),
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

/// What every operation may answer besides what it says itself.
struct InCommon;

impl Modify for InCommon {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for item in document.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
            operations.into_iter().flatten().for_each(complete);
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

fn complete(operation: &mut Operation) {
    let with_token = if operation.security.is_none() { &WITH_TOKEN[..] } else { &[] };
    let with_body = if operation.request_body.is_some() { &WITH_BODY[..] } else { &[] };
    let responses = &mut operation.responses.responses;
    for (status, description) in with_token.iter().chain(with_body) {
        responses.entry((*status).to_owned()).or_insert_with(|| problem(description).into());
    }
    for (status, response) in responses {
        let RefOr::T(response) = response else { continue };
        if status.starts_with(['4', '5'])
            && let Some(content) = response.content.shift_remove("application/json")
        {
            response.content.insert("application/problem+json".to_owned(), content);
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

fn problem(description: &str) -> Response {
    let mut response = Response::new(description);
    let schema = Ref::from_schema_name(ProblemMembers::name());
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
