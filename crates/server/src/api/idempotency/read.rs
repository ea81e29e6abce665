//! `GET /v1/idempotency/{account}/{key}`: how a key stands. Never its token.

use axum::{Json, extract::State};
use onceward_core::idempotency::{Account, Key, RecordView};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Instant, account_and_key, not_found, response::ResponseOut, state_name};
use crate::api::{
    App,
    call::{Caller, Deadline, PathSegments},
    problem::{Problem, ProblemMembers},
};

#[derive(Serialize, ToSchema)]
#[schema(as = IdempotencyKey)]
pub struct RecordBody {
    account: String,
    /// In quotes where the key itself begins with one: as it stands here, it names the key again.
    key: String,
    /// `in_progress`, `completed` or `indeterminate`.
    state: &'static str,
    #[schema(value_type = String, format = "date-time")]
    created_at: Instant,
    /// Not of a completed key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    lease_expires_at: Option<Instant>,
    /// Of a completed key, like the two below.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    completed_at: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    expires_at: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<ResponseOut>,
}

fn body(account: &Account, key: &Key, record: RecordView) -> RecordBody {
    RecordBody {
        account: account.as_str().to_owned(),
        key: key.to_string(),
        state: state_name(record.state),
        created_at: Instant::of_wall_ms(record.created_wall_ms),
        lease_expires_at: record.lease_expires_wall_ms.map(Instant::of_wall_ms),
        completed_at: record.completed_wall_ms.map(Instant::of_wall_ms),
        expires_at: record.expires_wall_ms.map(Instant::of_wall_ms),
        response: record.response.map(ResponseOut::from),
    }
}

/// Linearizable.
#[utoipa::path(
    get, path = "/v1/idempotency/{account}/{key}", tag = "idempotency",
    params(
        ("account" = String, Path, description = "percent-encoded"),
        ("key" = String, Path, description = "percent-encoded, bare or quoted")
    ),
    responses(
        (status = 200, description = "the key", body = RecordBody),
        (status = 404, description = "no such key", body = ProblemMembers),
        (status = 413, description = "too_large: the key", body = ProblemMembers),
        (status = 503, description = "no quorum to read from", body = ProblemMembers),
    )
)]
pub async fn read_key(
    State(app): State<App>,
    caller: Caller,
    PathSegments((account, key)): PathSegments<(String, String)>,
    Deadline(deadline): Deadline,
) -> Result<Json<RecordBody>, Problem> {
    let (account, key) = account_and_key(&caller, account, key)?;
    match app.service.record(account.clone(), key.clone(), deadline).await? {
        Some(record) => Ok(Json(body(&account, &key, record))),
        None => Err(not_found(&account, &key)),
    }
}
