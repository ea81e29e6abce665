//! `POST /v1/idempotency/extend`: the work takes longer than its lease.

use axum::{Json, extract::State};
use onceward_core::idempotency::{Account, ExtendReply, Key};
use utoipa::ToSchema;

use super::{LeaseBody, account, already_completed, fenced, key, lease_ms, token};
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

/// A checked request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extend {
    pub account: Account,
    pub key: Key,
    pub token: u64,
    pub lease_ms: u64,
}

/// Reads and checks the body.
pub fn parse(body: &[u8], caller: &Caller) -> Result<Extend, Problem> {
    let mut judge = Judge::default();
    let body: ExtendBody = read_object(body, &mut judge)?;
    let account = account(&mut judge, caller, body.account)?;
    let key = key(&mut judge, body.key);
    let token = token(&mut judge, body.token);
    let lease_ms = lease_ms(&mut judge, body.lease_ms);
    let extend = account.zip(key).zip(token.zip(lease_ms));
    judge.verdict(extend.map(|((account, key), (token, lease_ms))| Extend { account, key, token, lease_ms }))
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
    let Extend { account, key, token, lease_ms } = parse(&body, &caller)?;
    match app.service.extend(account, key, token, lease_ms, deadline).await? {
        ExtendReply::Extended(lease) => Ok(Json(lease.into())),
        ExtendReply::Fenced => Err(fenced()),
        ExtendReply::AlreadyCompleted => Err(already_completed("this key was completed: its lease is over")),
    }
}
