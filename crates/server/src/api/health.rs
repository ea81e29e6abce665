//! `/livez`, `/readyz`, `/metrics`, `/openapi.json`: what orchestrators, load balancers and tools read.

use axum::{
    Json,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    App,
    problem::{Problem, ProblemMembers},
};

#[derive(Serialize, ToSchema)]
#[schema(as = Alive)]
pub struct AliveBody {
    alive: bool,
}

/// The process runs; says nothing about the cluster.
#[utoipa::path(
    get, path = "/livez", tag = "node", security(()),
    responses((status = 200, description = "alive", body = AliveBody))
)]
pub async fn livez() -> Json<AliveBody> {
    Json(AliveBody { alive: true })
}

#[derive(Serialize, ToSchema)]
#[schema(as = Ready)]
pub struct ReadyBody {
    ready: bool,
    detail: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = NotReady)]
pub struct NotReadyBody<'a> {
    #[serde(flatten)]
    problem: ProblemMembers<'a>,
    ready: bool,
    /// Shards that have no leader within its lease, or haven't applied what was committed when the node started.
    waiting_shards: Vec<u16>,
}

/// Every shard here follows a leader and has caught up, and the disk has room.
#[utoipa::path(
    get, path = "/readyz", tag = "node", security(()),
    responses(
        (status = 200, description = "ready", body = ReadyBody),
        (status = 503, description = "not ready, or stopping", body = NotReadyBody),
    )
)]
pub async fn readyz(State(app): State<App>) -> Response {
    let readiness = app.service.readiness();
    let stopping = app.stopping.is_cancelled();
    if readiness.ready && !stopping {
        return Json(ReadyBody { ready: true, detail: readiness.detail }).into_response();
    }
    let detail = if stopping { "the node is stopping".to_owned() } else { readiness.detail };
    let problem = Problem::unavailable(detail);
    let waiting_shards = readiness.waiting_shards.iter().map(|shard| shard.0).collect();
    problem.respond_with(&NotReadyBody { problem: problem.members(), ready: false, waiting_shards })
}

/// For Prometheus, in the OpenMetrics text format.
#[utoipa::path(
    get, path = "/metrics", tag = "node",
    responses((status = 200, description = "all metrics", body = String, content_type = "application/openmetrics-text"))
)]
pub async fn metrics(State(app): State<App>) -> Response {
    const OPEN_METRICS: HeaderValue =
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = app.metrics.render(&app.service.stats());
    ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response()
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "node",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json"))
)]
pub async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], super::openapi::document()).into_response()
}
