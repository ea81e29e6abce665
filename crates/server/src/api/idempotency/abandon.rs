//! `POST /v1/idempotency/abandon`: the work had no effect, and the key is free again.

use axum::{Json, extract::State};
use onceward_core::idempotency::{AbandonCommand, AbandonReply};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Claim, already_completed, claim, fenced};
use crate::api::{
    App,
    call::{Caller, Deadline, JsonBody},
    json::{Field, Judge, object, read_object},
    problem::{Problem, ProblemMembers},
};

#[derive(ToSchema)]
#[schema(as = AbandonRequest)]
pub struct AbandonBody {
    #[schema(value_type = String)]
    account: Field<String>,
    #[schema(value_type = String)]
    key: Field<String>,
    /// What `begin` gave.
    #[schema(value_type = u64, minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    token: Field<u64>,
}

object!(AbandonBody { account, key, token });

/// Reads and checks the body.
pub fn parse(body: &[u8], caller: &Caller) -> Result<AbandonCommand, Problem> {
    let mut judge = Judge::default();
    let body: AbandonBody = read_object(body, &mut judge)?;
    let claim = claim(&mut judge, caller, body.account, body.key, body.token)?;
    judge.verdict(claim.map(|Claim { account, key, token }| AbandonCommand { account, key, token }))
}

#[derive(Serialize, ToSchema)]
#[schema(as = Abandoned)]
pub struct AbandonedBody {
    /// `abandoned`
    state: &'static str,
}

/// The next `begin` starts afresh.
#[utoipa::path(
    post, path = "/v1/idempotency/abandon", tag = "idempotency", request_body = AbandonBody,
    responses(
        (status = 200, description = "the key is free", body = AbandonedBody),
        (status = 400, description = "invalid_request", body = ProblemMembers),
        (
            status = 409,
            description = "fenced: the token is not the newest, or there is no such key; already_completed",
            body = ProblemMembers
        ),
        (status = 503, description = "not applied", body = ProblemMembers),
        (
            status = 504, description = "it may or may not apply; repeated, it answers fenced if it did",
            body = ProblemMembers
        ),
    )
)]
pub async fn abandon(
    State(app): State<App>,
    caller: Caller,
    Deadline(deadline): Deadline,
    JsonBody(body): JsonBody,
) -> Result<Json<AbandonedBody>, Problem> {
    match app.service.abandon(parse(&body, &caller)?, deadline).await? {
        AbandonReply::Abandoned => Ok(Json(AbandonedBody { state: "abandoned" })),
        AbandonReply::Fenced => Err(fenced()),
        AbandonReply::AlreadyCompleted => Err(already_completed("this key was completed and cannot be abandoned")),
    }
}
