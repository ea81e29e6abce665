//! `DELETE /v1/idempotency/{account}/{key}`: a person decides that a key is as if it had never been used.

use axum::{extract::State, http::StatusCode};
use onceward_core::idempotency::{DeleteRecordCommand, DeleteRecordReply};
use tracing::info;

use super::{account_and_key, not_found};
use crate::api::{
    App,
    call::{Caller, Deadline, PathSegments},
    problem::{Problem, ProblemMembers},
};

/// Also settles an `indeterminate` key. Whoever holds it is fenced.
#[utoipa::path(
    delete, path = "/v1/idempotency/{account}/{key}", tag = "idempotency",
    params(
        ("account" = String, Path, description = "percent-encoded"),
        ("key" = String, Path, description = "percent-encoded, bare or quoted")
    ),
    responses(
        (status = 204, description = "deleted"),
        (status = 404, description = "no such key", body = ProblemMembers),
        (status = 413, description = "too_large: the key", body = ProblemMembers),
        (status = 503, description = "not applied", body = ProblemMembers),
        (
            status = 504, description = "it may or may not apply; repeated, it answers not_found if it did",
            body = ProblemMembers
        ),
    )
)]
pub async fn delete_key(
    State(app): State<App>,
    caller: Caller,
    PathSegments((account, key)): PathSegments<(String, String)>,
    Deadline(deadline): Deadline,
) -> Result<StatusCode, Problem> {
    let (account, key) = account_and_key(&caller, account, key)?;
    let command = DeleteRecordCommand { account: account.clone(), key: key.clone() };
    match app.service.delete_record(command, deadline).await? {
        DeleteRecordReply::Deleted => {
            info!(account = account.as_str(), key = key.as_str(), "idempotency key deleted");
            Ok(StatusCode::NO_CONTENT)
        }
        DeleteRecordReply::NotFound => Err(not_found(&account, &key)),
    }
}
