//! `DELETE /v1/limits/{policy}/{key}`: fills one bucket.

use axum::{extract::State, http::StatusCode};
use onceward_core::limits::{ResetCommand, ResetReply};

use crate::api::{
    App,
    call::{Deadline, PathSegments},
    json::{Field, Judge},
    problem::{Problem, ProblemMembers, policy_not_found},
};

/// Checks what the path says.
pub fn command(policy: String, key: String) -> Result<ResetCommand, Problem> {
    let mut judge = Judge::default();
    let policy = super::policy(&mut judge, Field::Given(policy), || "policy".to_owned());
    let key = super::key(&mut judge, Field::Given(key), || "key".to_owned());
    judge.verdict(policy.zip(key).map(|(policy, key)| ResetCommand { policy, key }))
}

/// The bucket is full again, but for what is held at this moment.
#[utoipa::path(
    delete, path = "/v1/limits/{policy}/{key}", tag = "limits",
    params(("policy" = String, Path), ("key" = String, Path, description = "percent-encoded")),
    responses(
        (status = 204, description = "full"),
        (status = 400, description = "invalid_request", body = ProblemMembers),
        (status = 404, description = "no such policy", body = ProblemMembers),
        (status = 503, description = "not applied", body = ProblemMembers),
        (status = 504, description = "it may or may not apply", body = ProblemMembers),
    )
)]
pub async fn reset(
    State(app): State<App>,
    Deadline(deadline): Deadline,
    PathSegments((policy, key)): PathSegments<(String, String)>,
) -> Result<StatusCode, Problem> {
    match app.service.reset(command(policy, key)?, deadline).await? {
        ResetReply::Done => Ok(StatusCode::NO_CONTENT),
        ResetReply::PolicyNotFound { policy } => Err(policy_not_found(&policy)),
    }
}
