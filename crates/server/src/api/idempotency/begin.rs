//! `POST /v1/idempotency/begin`: may this attempt do the work of a key, or what came of it already?

use axum::{
    Json,
    extract::State,
    http::{HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use onceward_core::idempotency::{
    OnLeaseExpiry, Replay,
    bounds::{
        ATTEMPT_ID_BYTES_MAX, FINGERPRINT_BYTES_MAX, LEASE_MS_DEFAULT, TTL_MS_DEFAULT, TTL_MS_MAX, TTL_MS_MIN,
        WAIT_MS_MAX,
    },
};
use onceward_shard::{BeginAnswer, BeginRequest};
use serde::Serialize;
use tokio::time::Instant as Until;
use utoipa::ToSchema;

use super::{COMPLETED, Instant, LeaseBody, account, key, lease_ms, response::ResponseOut};
use crate::api::{
    App,
    call::{Caller, Deadline, JsonBody},
    json::{Field, Judge, object, read_object, shown},
    problem::{Code, Problem, ProblemMembers},
};

/// On an answer that repeats a stored response.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

#[derive(ToSchema)]
#[schema(as = BeginRequest)]
pub struct BeginBody {
    /// On whose behalf: 1–255 bytes, no control characters.
    #[schema(value_type = String)]
    account: Field<String>,
    /// 1–255 bytes, no control characters; `"abc"` in quotes (RFC 8941) is the key `abc`.
    #[schema(value_type = String)]
    key: Field<String>,
    /// The caller's hash of its request, 1–128 bytes.
    #[schema(value_type = String)]
    fingerprint: Field<String>,
    /// How long the outcome is kept, from completion. Default 86400000.
    #[schema(value_type = u64, minimum = 1000, maximum = 31_536_000_000_u64, required = false)]
    ttl_ms: Field<u64>,
    /// Default 30000.
    #[schema(value_type = u64, minimum = 100, maximum = 3_600_000, required = false)]
    lease_ms: Field<u64>,
    /// What becomes of the key when this attempt dies: `takeover` (default) or `hold`.
    #[schema(value_type = String, required = false)]
    on_lease_expiry: Field<String>,
    /// Repeated with the same one, while the attempt has the lease, the call answers the same.
    #[schema(value_type = String, min_length = 1, max_length = 64, required = false)]
    attempt_id: Field<String>,
    /// How long to wait for another attempt's outcome, beyond the deadline. Default 0.
    #[schema(value_type = u64, maximum = 30_000, required = false)]
    wait_ms: Field<u64>,
}

object!(BeginBody { account, key, fingerprint, ttl_ms, lease_ms, on_lease_expiry, attempt_id, wait_ms });

/// Reads and checks the body.
pub fn parse(body: &[u8], caller: &Caller, deadline: Until) -> Result<BeginRequest, Problem> {
    const _: () = assert!(TTL_MS_MIN == 1_000 && TTL_MS_MAX == 31_536_000_000 && WAIT_MS_MAX == 30_000);
    const _: () = assert!(FINGERPRINT_BYTES_MAX == 128 && ATTEMPT_ID_BYTES_MAX == 64);
    let mut judge = Judge::default();
    let body: BeginBody = read_object(body, &mut judge)?;
    let account = account(&mut judge, caller, body.account)?;
    let path = |name: &'static str| move || name.to_owned();
    let key = key(&mut judge, body.key);
    let fingerprint = "a string of 1 to 128 bytes";
    let fingerprint = judge.text(body.fingerprint, path("fingerprint"), FINGERPRINT_BYTES_MAX, fingerprint);
    let ttl_ms = match body.ttl_ms {
        Field::Absent => Some(TTL_MS_DEFAULT),
        given => {
            judge.number(given, path("ttl_ms"), TTL_MS_MIN..=TTL_MS_MAX, "a whole number from 1000 to 31536000000")
        }
    };
    let lease_ms = match body.lease_ms {
        Field::Absent => Some(LEASE_MS_DEFAULT),
        given => lease_ms(&mut judge, given),
    };
    let on_lease_expiry = on_lease_expiry(&mut judge, body.on_lease_expiry);
    let attempt_id = match body.attempt_id {
        Field::Absent => None,
        given => judge.text(given, path("attempt_id"), ATTEMPT_ID_BYTES_MAX, "a string of 1 to 64 bytes"),
    };
    let wait_ms = match body.wait_ms {
        Field::Absent => Some(0),
        given => judge.number(given, path("wait_ms"), 0..=WAIT_MS_MAX, "a whole number from 0 to 30000"),
    };
    let request = || {
        Some(BeginRequest {
            account: account?,
            key: key?,
            fingerprint: fingerprint?,
            ttl_ms: ttl_ms?,
            lease_ms: lease_ms?,
            on_lease_expiry,
            attempt_id,
            wait_ms: wait_ms?,
            deadline,
        })
    };
    judge.verdict(request())
}

fn on_lease_expiry(judge: &mut Judge, field: Field<String>) -> OnLeaseExpiry {
    const ALLOWED: &str = "\"takeover\" or \"hold\"";
    match judge.optional(field, || "on_lease_expiry".to_owned(), ALLOWED).as_deref() {
        None | Some("takeover") => OnLeaseExpiry::Takeover,
        Some("hold") => OnLeaseExpiry::Hold,
        Some(other) => {
            judge.refuse("on_lease_expiry", format!("must be {ALLOWED}, not {:?}", shown(other)));
            OnLeaseExpiry::Takeover
        }
    }
}

/// The caller owns the key: do the work, then complete.
#[derive(Serialize, ToSchema)]
#[schema(as = Started)]
pub struct StartedBody {
    /// `started`
    state: &'static str,
    /// Greater than any that this key had before; below 2^53.
    token: u64,
    #[serde(flatten)]
    lease: LeaseBody,
}

/// The outcome of the key, as it was stored.
#[derive(Serialize, ToSchema)]
#[schema(as = Completed)]
pub struct CompletedBody {
    /// `completed`
    state: &'static str,
    response: ResponseOut,
    #[schema(value_type = String, format = "date-time")]
    completed_at: Instant,
}

/// 201: do the work, then complete. 200: it was done, and this is what came of it.
#[utoipa::path(
    post, path = "/v1/idempotency/begin", tag = "idempotency", request_body = BeginBody,
    responses(
        (status = 201, description = "started", body = StartedBody),
        (
            status = 200, description = "completed: the stored response", body = CompletedBody,
            headers(("Idempotent-Replayed" = String, description = "true"))
        ),
        (status = 400, description = "invalid_request", body = ProblemMembers),
        (
            status = 409,
            description = "in_progress: another attempt holds the key; indeterminate: an attempt on a hold key died",
            body = ProblemMembers,
            headers(("Retry-After" = u64, description = "with in_progress: seconds, rounded up, at least 1"))
        ),
        (status = 413, description = "too_large: the body or the key; nothing was started", body = ProblemMembers),
        (status = 422, description = "fingerprint_mismatch: the key was begun with another", body = ProblemMembers),
        (status = 503, description = "not applied", body = ProblemMembers),
        (
            status = 504, description = "it may or may not apply; repeat it with the same attempt_id",
            body = ProblemMembers
        ),
    )
)]
pub async fn begin(
    State(app): State<App>,
    caller: Caller,
    Deadline(deadline): Deadline,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let request = parse(&body, &caller, deadline)?;
    // A caller that waits holds no large body meanwhile.
    drop(body);
    let answer = app.service.begin(request).await?;
    app.metrics.begun(outcome(&answer));
    match answer {
        BeginAnswer::Started { token, lease } => {
            let body = StartedBody { state: "started", token, lease: lease.into() };
            Ok((StatusCode::CREATED, Json(body)).into_response())
        }
        BeginAnswer::Completed(Replay { response, completed_wall_ms }) => {
            let body = CompletedBody {
                state: COMPLETED,
                response: response.into(),
                completed_at: Instant::of_wall_ms(completed_wall_ms),
            };
            Ok(([(REPLAYED, HeaderValue::from_static("true"))], Json(body)).into_response())
        }
        BeginAnswer::InProgress { retry_after_ms } => Err(Problem {
            retry_after_ms: Some(retry_after_ms),
            ..Problem::new(
                Code::InProgress,
                format!(
                    "another attempt holds this key; ask again in {retry_after_ms} ms, or wait for it with wait_ms"
                ),
            )
        }),
        BeginAnswer::Indeterminate => Err(Problem::new(
            Code::Indeterminate,
            "an attempt on this key, which was begun with on_lease_expiry hold, died without an outcome: its late owner \
             completes or abandons it, or an admin deletes it",
        )),
        BeginAnswer::FingerprintMismatch => Err(Problem::new(
            Code::FingerprintMismatch,
            "this key was begun with another fingerprint: it belongs to another request",
        )),
    }
}

fn outcome(answer: &BeginAnswer) -> &'static str {
    match answer {
        BeginAnswer::Started { .. } => "started",
        BeginAnswer::Completed(_) => COMPLETED,
        BeginAnswer::InProgress { .. } => super::IN_PROGRESS,
        BeginAnswer::Indeterminate => super::INDETERMINATE,
        BeginAnswer::FingerprintMismatch => "fingerprint_mismatch",
    }
}
