//! `POST /v1/limits/refund`: gives back, once, what was admitted under a request_id.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use onceward_core::limits::{RefundCommand, RefundReply};
use serde::Serialize;
use utoipa::ToSchema;

use super::{cost, key, policy, request_id};
use crate::api::{
    App,
    call::{Deadline, JsonBody},
    json::{Field, Judge, object, read_object},
    problem::{Code, Problem, ProblemMembers, policy_not_found},
};

#[derive(ToSchema)]
#[schema(as = RefundRequest)]
pub struct RefundBody {
    #[schema(value_type = String)]
    policy: Field<String>,
    #[schema(value_type = String)]
    key: Field<String>,
    /// At most what was admitted.
    #[schema(value_type = u64, minimum = 1, maximum = 1_000_000_000_000_u64)]
    cost: Field<u64>,
    #[schema(value_type = String, min_length = 1, max_length = 64)]
    request_id: Field<String>,
}

object!(RefundBody { policy, key, cost, request_id });

/// Reads and checks the body.
pub fn parse(body: &[u8]) -> Result<RefundCommand, Problem> {
    let mut judge = Judge::default();
    let body: RefundBody = read_object(body, &mut judge)?;
    let policy = policy(&mut judge, body.policy, || "policy".to_owned());
    let key = key(&mut judge, body.key, || "key".to_owned());
    let cost = cost(&mut judge, body.cost, || "cost".to_owned(), 1, "a whole number from 1 to 1000000000000");
    let request_id = request_id(&mut judge, body.request_id);
    let command = policy.zip(key).zip(cost.zip(request_id));
    judge.verdict(command.map(|((policy, key), (cost, request_id))| RefundCommand { policy, key, cost, request_id }))
}

#[derive(Serialize, ToSchema)]
#[schema(as = RefundAnswer)]
pub struct RefundAnswerBody {
    /// Tokens that reached the bucket, a part of one counted as one: less than asked at its capacity, 0 after a reset.
    credited: u64,
    limit: u64,
    remaining: u64,
}

/// Repeating a refund answers alike and credits nothing more.
#[utoipa::path(
    post, path = "/v1/limits/refund", tag = "limits", request_body = RefundBody,
    responses(
        (status = 200, description = "given back", body = RefundAnswerBody),
        (status = 400, description = "invalid_request", body = ProblemMembers),
        (status = 404, description = "nothing is remembered under this request_id", body = ProblemMembers),
        (status = 422, description = "another cost than was admitted or refunded", body = ProblemMembers),
        (status = 503, description = "not applied", body = ProblemMembers),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = ProblemMembers),
    )
)]
pub async fn refund(
    State(app): State<App>,
    Deadline(deadline): Deadline,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let command = parse(&body)?;
    let (policy, request_id) = (command.policy.clone(), command.request_id.clone());
    match app.service.refund(command, deadline).await? {
        RefundReply::Refunded { credited, limit, remaining } => {
            Ok(Json(RefundAnswerBody { credited, limit, remaining }).into_response())
        }
        RefundReply::PolicyNotFound { .. } => Err(policy_not_found(&policy)),
        RefundReply::Forgotten => Err(Problem::not_found(format!(
            "nothing is remembered under request_id {request_id:?} on this policy and key: \
             it was never admitted there, or more than 60 s ago"
        ))),
        RefundReply::CostMismatch { admitted_cost } => Err(Problem::new(
            Code::FingerprintMismatch,
            format!(
                "cost must be what was admitted under this request_id at the most ({admitted_cost}), and the same in every repetition"
            ),
        )),
    }
}
