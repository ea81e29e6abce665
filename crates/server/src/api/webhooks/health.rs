//! `GET /api/v1/health`, which SDKs ask.

use axum::http::StatusCode;

/// The process runs; says nothing about the cluster.
#[utoipa::path(
    get, path = "/api/v1/health", tag = "webhooks", operation_id = "v1.health.get", security(()),
    responses((status = 204, description = "alive"))
)]
pub async fn health() -> StatusCode {
    StatusCode::NO_CONTENT
}
