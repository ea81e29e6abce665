//! `POST /v1/limits/check`: may this request pass? 200 or 429, with the rate-limit headers.

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use onceward_core::limits::{CheckItem, ItemResult, Mode, bounds::CHECKS_MAX};
use onceward_shard::{CheckAnswer, CheckError, CheckRequest, Degraded};
use serde::Serialize;
use utoipa::ToSchema;

use super::{cost, headers, key, policy, request_id};
use crate::api::{
    App,
    call::{Deadline, JsonBody},
    json::{Field, Judge, Object, Wanted, object, read_object, shown},
    problem::{Code, Problem, ProblemMembers},
};

/// A checked request; the deadline is not in the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub mode: Mode,
    pub items: Vec<CheckItem>,
    pub request_id: Option<String>,
}

#[derive(ToSchema)]
#[schema(as = CheckRequest)]
pub struct CheckBody {
    /// All-or-nothing: if one denies, none is consumed.
    #[schema(value_type = Vec<CheckItemBody>, min_items = 1, max_items = 16)]
    checks: Field<Vec<Field<Object<CheckItemBody>>>>,
    /// `enforce` (default), `peek` or `shadow`.
    #[schema(value_type = String, required = false)]
    mode: Field<String>,
    /// An admitted id is remembered per policy and key for 60 s and answered alike.
    #[schema(value_type = String, min_length = 1, max_length = 64, required = false)]
    request_id: Field<String>,
}

#[derive(ToSchema)]
#[schema(as = CheckItem)]
pub struct CheckItemBody {
    #[schema(value_type = String)]
    policy: Field<String>,
    /// 1–512 bytes.
    #[schema(value_type = String)]
    key: Field<String>,
    /// Default 1; 0 only with mode `peek`.
    #[schema(value_type = u64, maximum = 1_000_000_000_000_u64, required = false)]
    cost: Field<u64>,
}

object!(CheckBody { checks, mode, request_id });
object!(CheckItemBody { policy, key, cost });

/// Reads and checks the body.
pub fn parse(body: &[u8]) -> Result<Check, Problem> {
    let mut judge = Judge::default();
    let body: CheckBody = read_object(body, &mut judge)?;
    let mode = mode(&mut judge, body.mode);
    let request_id = match body.request_id {
        Field::Absent => None,
        given => request_id(&mut judge, given),
    };
    let items = items(&mut judge, body.checks, mode);
    judge.verdict(items.map(|items| Check { mode, items, request_id }))
}

fn mode(judge: &mut Judge, field: Field<String>) -> Mode {
    const ALLOWED: &str = "\"enforce\", \"peek\" or \"shadow\"";
    match judge.optional(field, || "mode".to_owned(), ALLOWED).as_deref() {
        None | Some("enforce") => Mode::Enforce,
        Some("peek") => Mode::Peek,
        Some("shadow") => Mode::Shadow,
        Some(other) => {
            judge.refuse("mode", format!("must be {ALLOWED}, not {:?}", shown(other)));
            Mode::Enforce
        }
    }
}

fn items(judge: &mut Judge, field: Field<Vec<Field<Object<CheckItemBody>>>>, mode: Mode) -> Option<Vec<CheckItem>> {
    const _: () = assert!(CHECKS_MAX == 16);
    const ALLOWED: &str = "a list of 1 to 16 checks";
    let checks = judge.required(field, || "checks".to_owned(), ALLOWED)?;
    if !(1..=CHECKS_MAX).contains(&checks.len()) {
        judge.refuse("checks", format!("must be {ALLOWED}, not of {}", checks.len()));
        return None;
    }
    let mut items = Vec::with_capacity(checks.len());
    for (at, check) in checks.into_iter().enumerate() {
        items.extend(item(judge, at, check, mode));
    }
    Some(items)
}

fn item(judge: &mut Judge, at: usize, check: Field<Object<CheckItemBody>>, mode: Mode) -> Option<CheckItem> {
    let check = judge.required(check, || format!("checks[{at}]"), Object::<CheckItemBody>::WHAT)?;
    let check = judge.object(check, &format!("checks[{at}]."));
    let path = |name: &'static str| move || format!("checks[{at}].{name}");
    let policy = policy(judge, check.policy, path("policy"));
    let key = key(judge, check.key, path("key"));
    let (cost_min, cost_allowed) = match mode {
        Mode::Peek => (0, "a whole number from 0 to 1000000000000"),
        _ => (1, "a whole number from 1 to 1000000000000 (0 only with mode \"peek\")"),
    };
    let cost = match check.cost {
        Field::Absent => Some(1),
        given => cost(judge, given, path("cost"), cost_min, cost_allowed),
    };
    Some(CheckItem { policy: policy?, key: key?, cost: cost? })
}

/// What the check came to.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckAnswer)]
pub struct CheckAnswerBody<'a> {
    allowed: bool,
    /// In the order of the checks.
    results: Vec<CheckResultBody<'a>>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = CheckResult)]
pub struct CheckResultBody<'a> {
    policy: &'a str,
    key: &'a str,
    allowed: bool,
    limit: u64,
    /// Whole tokens left; never above `limit`.
    remaining: u64,
    /// After this wait the cost is admitted if nobody else asks; null: never (a `deny` override).
    retry_after_ms: Option<u64>,
    /// After this wait the bucket is full again.
    reset_after_ms: u64,
    /// `local`, `allowed` or `denied` when `on_unavailable` answered, else null.
    degraded: Option<&'static str>,
}

/// A refused check: the problem's members and the answer's; these only when there was a decision.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckRefusal)]
pub struct CheckRefusedBody<'a> {
    #[serde(flatten)]
    problem: ProblemMembers<'a>,
    #[schema(required = false)]
    allowed: bool,
    #[schema(required = false)]
    results: Vec<CheckResultBody<'a>>,
}

/// Takes from every named bucket, or from none.
#[utoipa::path(
    post, path = "/v1/limits/check", tag = "limits", request_body = CheckBody,
    responses(
        (status = 200, description = "allowed (mode shadow: whatever was decided)", body = CheckAnswerBody),
        (status = 400, description = "invalid_request, cost_exceeds_burst", body = ProblemMembers),
        (status = 404, description = "no such policy", body = ProblemMembers),
        (status = 422, description = "the request_id was admitted with another cost", body = ProblemMembers),
        (status = 429, description = "denied, nothing was taken", body = CheckRefusedBody),
        (status = 503, description = "not applied, or a policy that denies without quorum", body = CheckRefusedBody),
        (status = 504, description = "it may or may not have been counted", body = ProblemMembers),
    )
)]
pub async fn check(
    State(app): State<App>,
    Deadline(deadline): Deadline,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let Check { mode, items, request_id } = parse(&body)?;
    let request = CheckRequest { mode, items: items.clone(), request_id, deadline };
    let (answer, unavailable) = match app.service.check(request).await {
        Ok(answer) => (answer, false),
        Err(CheckError::DeniedUnavailable(answer)) => (answer, true),
        Err(CheckError::Refused(refusal)) => return Err(refusal.into()),
        Err(CheckError::Service(error)) => return Err(error.into()),
    };
    app.metrics.checked(&answer);
    Ok(respond(&app, mode, &items, &answer, unavailable))
}

fn respond(app: &App, mode: Mode, items: &[CheckItem], answer: &CheckAnswer, unavailable: bool) -> Response {
    let allowed = answer.decision.allowed;
    let results = items.iter().zip(&answer.decision.results).zip(&answer.degraded);
    let results = results.map(|((item, result), degraded)| result_body(item, result, *degraded)).collect();
    let mut response = if mode == Mode::Shadow || (allowed && !unavailable) {
        let body = serde_json::to_vec(&CheckAnswerBody { allowed, results }).expect("strings and numbers are JSON");
        ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
    } else {
        let problem = refused(answer, unavailable);
        problem.respond_with(&CheckRefusedBody { problem: problem.members(), allowed, results })
    };
    headers::write(response.headers_mut(), items, &answer.decision.results, app.http.reset_format);
    response
}

fn refused(answer: &CheckAnswer, unavailable: bool) -> Problem {
    if unavailable {
        return Problem::unavailable("not applied: a policy denies while its shard is unavailable");
    }
    let denied = answer.decision.results.iter().filter(|result| !result.allowed).count();
    let of = answer.decision.results.len();
    let retry_after_ms = longest_wait_ms(answer);
    let advice = match retry_after_ms {
        Some(wait_ms) => format!("ask again in {wait_ms} ms"),
        None => "asking again does not help".to_owned(),
    };
    Problem { retry_after_ms, ..Problem::new(Code::RateLimited, format!("{denied} of {of} checks denied; {advice}")) }
}

/// The wait after which every denied check would be admitted; `None` when one never is.
fn longest_wait_ms(answer: &CheckAnswer) -> Option<u64> {
    let denied = answer.decision.results.iter().filter(|result| !result.allowed);
    denied.map(|result| result.retry_after_us.map(to_ms)).try_fold(0, |longest, wait| Some(wait?.max(longest)))
}

fn result_body<'a>(item: &'a CheckItem, result: &ItemResult, degraded: Option<Degraded>) -> CheckResultBody<'a> {
    CheckResultBody {
        policy: &item.policy,
        key: &item.key,
        allowed: result.allowed,
        limit: result.limit,
        remaining: result.remaining,
        retry_after_ms: result.retry_after_us.map(to_ms),
        reset_after_ms: to_ms(result.reset_after_us),
        degraded: degraded.map(degraded_name),
    }
}

pub fn degraded_name(degraded: Degraded) -> &'static str {
    match degraded {
        Degraded::Local => "local",
        Degraded::Allowed => "allowed",
        Degraded::Denied => "denied",
    }
}

/// Rounded up: waiting it out always succeeds.
fn to_ms(us: u64) -> u64 {
    us.div_ceil(1_000)
}
