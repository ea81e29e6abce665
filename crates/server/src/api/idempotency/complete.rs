//! `POST /v1/idempotency/complete`: stores the outcome of a key's work, once.

use axum::{Json, extract::State};
use onceward_core::idempotency::{CompleteCommand, CompleteReply};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    COMPLETED, Claim, Instant, already_completed, claim, fenced,
    response::{self, ResponseIn},
};
use crate::api::{
    App,
    call::{Caller, CountedBody, Deadline},
    json::{Field, Judge, Object, object, read_object},
    problem::{Problem, ProblemMembers},
};

#[derive(ToSchema)]
#[schema(as = CompleteRequest)]
pub struct CompleteBody {
    #[schema(value_type = String)]
    account: Field<String>,
    #[schema(value_type = String)]
    key: Field<String>,
    /// What `begin` gave.
    #[schema(value_type = u64, minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    token: Field<u64>,
    #[schema(value_type = ResponseIn)]
    response: Field<Object<ResponseIn>>,
    /// Refused by this version.
    #[schema(value_type = Vec<Object>, required = false)]
    messages: Field<String>,
}

object!(CompleteBody { account, key, token, response, messages });

/// Reads and checks the body.
pub fn parse(body: &[u8], caller: &Caller) -> Result<CompleteCommand, Problem> {
    let mut judge = Judge::default();
    let body: CompleteBody = read_object(body, &mut judge)?;
    let claim = claim(&mut judge, caller, body.account, body.key, body.token)?;
    let response = response::read(&mut judge, body.response);
    if !matches!(body.messages, Field::Absent) {
        judge.refuse("messages", "cannot be given: this version does not take messages yet; nothing was changed");
    }
    let command = claim.zip(response).map(|(Claim { account, key, token }, response)| CompleteCommand {
        account,
        key,
        token,
        response,
        wall_ms: 0,
    });
    judge.verdict(command)
}

#[derive(Serialize, ToSchema)]
#[schema(as = CompleteAnswer)]
pub struct CompleteAnswerBody {
    /// `completed`
    state: &'static str,
    #[schema(value_type = String, format = "date-time")]
    completed_at: Instant,
    #[schema(value_type = String, format = "date-time")]
    expires_at: Instant,
    /// Always empty in this version.
    #[schema(value_type = Vec<Object>)]
    messages: [(); 0],
}

/// Repeating it with the same token and content answers the same.
#[utoipa::path(
    post, path = "/v1/idempotency/complete", tag = "idempotency", request_body = CompleteBody,
    responses(
        (status = 200, description = "stored, now or by the same call before", body = CompleteAnswerBody),
        (status = 400, description = "invalid_request; the key stays held", body = ProblemMembers),
        (
            status = 409,
            description = "fenced: the token is not the newest; already_completed: with other content",
            body = ProblemMembers
        ),
        (status = 413, description = "too_large: nothing was stored, the key stays held", body = ProblemMembers),
        (status = 503, description = "not applied", body = ProblemMembers),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = ProblemMembers),
    )
)]
pub async fn complete(
    State(app): State<App>,
    caller: Caller,
    Deadline(deadline): Deadline,
    CountedBody { bytes, room }: CountedBody,
) -> Result<Json<CompleteAnswerBody>, Problem> {
    let command = parse(&bytes, &caller)?;
    drop(bytes);
    let reply = app.service.complete(command, deadline).await?;
    // Until here the response that was read from the body is in memory.
    drop(room);
    app.metrics.completed(outcome(&reply));
    match reply {
        CompleteReply::Completed { completed_wall_ms, expires_wall_ms } => Ok(Json(CompleteAnswerBody {
            state: COMPLETED,
            completed_at: Instant::of_wall_ms(completed_wall_ms),
            expires_at: Instant::of_wall_ms(expires_wall_ms),
            messages: [],
        })),
        CompleteReply::Fenced => Err(fenced()),
        CompleteReply::AlreadyCompleted => {
            Err(already_completed("this key was completed with other content, which stays"))
        }
    }
}

fn outcome(reply: &CompleteReply) -> &'static str {
    match reply {
        CompleteReply::Completed { .. } => COMPLETED,
        CompleteReply::Fenced => "fenced",
        CompleteReply::AlreadyCompleted => "already_completed",
    }
}
