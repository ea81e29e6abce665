//! The OpenAPI 3.1 document, made from the handlers' own annotations.

use std::sync::LazyLock;

use bytes::Bytes;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{Http, HttpAuthScheme, SecurityScheme},
};

use super::{cluster, health, limits, policies};

#[derive(OpenApi)]
#[openapi(
    info(title = "Onceward", description = "Rate limits that hold, on a cluster of equal nodes."),
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
    ),
    modifiers(&BearerToken),
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

/// The document as JSON, made once.
pub fn document() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> =
        LazyLock::new(|| Document::openapi().to_json().expect("an OpenAPI document is JSON").into());
    DOCUMENT.clone()
}
