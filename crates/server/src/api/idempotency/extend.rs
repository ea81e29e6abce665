//! `POST /v1/idempotency/extend`: the work takes longer than its lease.

use axum::{Json, extract::State};
use onceward_core::idempotency::{ExtendCommand, ExtendReply};
use utoipa::ToSchema;

use super::{Claim, LeaseBody, already_completed, claim, fenced, lease_ms};
use crate::api::{
    App,
    call::{Caller, Deadline, JsonBody},
    json::{Field, Judge, object, read_object},
    problem::{Problem, ProblemMembers},
};

#[derive(ToSchema)]
#[schema(as = ExtendRequest)]
pub struct ExtendBody {
    #[schema(value_type = String)]
    account: Field<String>,
    #[schema(value_type = String)]
    key: Field<String>,
    /// What `begin` gave.
    #[schema(value_type = u64, minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    token: Field<u64>,
    /// From now on.
    #[schema(value_type = u64, minimum = 100, maximum = 3_600_000)]
    lease_ms: Field<u64>,
}

object!(ExtendBody { account, key, token, lease_ms });

/// Reads and checks the body.
pub fn parse(body: &[u8], caller: &Caller) -> Result<ExtendCommand, Problem> {
    let mut judge = Judge::default();
    let body: ExtendBody = read_object(body, &mut judge)?;
    let claim = claim(&mut judge, caller, body.account, body.key, body.token)?;
    let lease_ms = lease_ms(&mut judge, body.lease_ms);
    let command = claim.zip(lease_ms).map(|(Claim { account, key, token }, lease_ms)| ExtendCommand {
        account,
        key,
        token,
        lease_us: lease_ms * 1_000,
        wall_ms: 0,
    });
    judge.verdict(command)
}

/// The lease begins anew. The newest token may do so also after its lease, while nobody took over.
#[utoipa::path(
    post, path = "/v1/idempotency/extend", tag = "idempotency", request_body = ExtendBody,
    responses(
        (status = 200, description = "extended", body = LeaseBody),
        (status = 400, description = "invalid_request", body = ProblemMembers),
        (
            status = 409,
            description = "fenced: the token is not the newest, or there is no such key; already_completed",
            body = ProblemMembers
        ),
        (status = 503, description = "not applied", body = ProblemMembers),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = ProblemMembers),
    )
)]
pub async fn extend(
    State(app): State<App>,
    caller: Caller,
    Deadline(deadline): Deadline,
    JsonBody(body): JsonBody,
) -> Result<Json<LeaseBody>, Problem> {
    match app.service.extend(parse(&body, &caller)?, deadline).await? {
        ExtendReply::Extended(lease) => Ok(Json(lease.into())),
        ExtendReply::Fenced => Err(fenced()),
        ExtendReply::AlreadyCompleted => Err(already_completed("this key was completed: its lease is over")),
    }
}
