//! Errors as the API answers them (RFC 9457, <https://www.rfc-editor.org/rfc/rfc9457>): the one place where errors of
//! the domain and of the node become a status and a code. What is internal stays out of `detail`.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use onceward_core::limits::{FieldError, Refusal};
use onceward_shard::ServiceError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::bounds;

/// `application/problem+json`
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A code is part of the contract: clients decide by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    InvalidRequest,
    CostExceedsBurst,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Conflict,
    InProgress,
    Fenced,
    AlreadyCompleted,
    Indeterminate,
    TooLarge,
    FingerprintMismatch,
    LimitReached,
    EventTypeExists,
    RateLimited,
    Unavailable,
    OutcomeUnknown,
}

impl Code {
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::InvalidRequest => "invalid_request",
            Code::CostExceedsBurst => "cost_exceeds_burst",
            Code::Unauthorized => "unauthorized",
            Code::Forbidden => "forbidden",
            Code::NotFound => "not_found",
            Code::MethodNotAllowed => "method_not_allowed",
            Code::Conflict => "conflict",
            Code::InProgress => "in_progress",
            Code::Fenced => "fenced",
            Code::AlreadyCompleted => "already_completed",
            Code::Indeterminate => "indeterminate",
            Code::TooLarge => "too_large",
            Code::FingerprintMismatch => "fingerprint_mismatch",
            Code::LimitReached => "limit_reached",
            Code::EventTypeExists => "event_type_exists",
            Code::RateLimited => "rate_limited",
            Code::Unavailable => "unavailable",
            Code::OutcomeUnknown => "outcome_unknown",
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Code::InvalidRequest | Code::CostExceedsBurst | Code::LimitReached => StatusCode::BAD_REQUEST,
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Forbidden => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Code::Conflict
            | Code::InProgress
            | Code::Fenced
            | Code::AlreadyCompleted
            | Code::Indeterminate
            | Code::EventTypeExists => StatusCode::CONFLICT,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::FingerprintMismatch => StatusCode::UNPROCESSABLE_ENTITY,
            Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::OutcomeUnknown => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// Where in a request a wrong field is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Place {
    #[default]
    Body,
    Query,
    Path,
    Header,
}

/// An error answer. Every response that is made of one carries it along, for whoever has to write it otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub status: StatusCode,
    pub code: Code,
    pub detail: String,
    pub errors: Vec<FieldError>,
    /// Of what is wrong with what was sent.
    pub place: Option<Place>,
    pub retry_after_ms: Option<u64>,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        let detail = detail.into();
        Problem { status: code.status(), code, detail, errors: Vec::new(), place: None, retry_after_ms: None }
    }

    pub fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(Code::InvalidRequest, detail)
    }

    /// One invalid field or more; the detail names them all.
    pub fn invalid_fields(mut errors: Vec<FieldError>) -> Problem {
        errors.truncate(bounds::FIELD_ERRORS_MAX);
        let detail = sentences(&errors);
        Problem { errors, ..Problem::invalid(detail) }
    }

    /// Fields that are more than is taken.
    pub fn too_large_fields(errors: Vec<FieldError>) -> Problem {
        let detail = format!("{}; nothing was done, and a key that is held stays held", sentences(&errors));
        Problem { errors, ..Problem::new(Code::TooLarge, detail) }
    }

    pub fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(Code::NotFound, detail)
    }

    /// Definitely not applied; worth another try soon.
    pub fn unavailable(detail: impl Into<String>) -> Problem {
        Problem { retry_after_ms: Some(bounds::UNAVAILABLE_RETRY_AFTER_MS), ..Problem::new(Code::Unavailable, detail) }
    }

    pub fn with_status(self, status: StatusCode) -> Problem {
        Problem { status, ..self }
    }

    pub fn in_place(self, place: Place) -> Problem {
        Problem { place: Some(place), ..self }
    }

    /// The members that every problem has, to be followed by those of a particular answer.
    pub fn members(&self) -> ProblemMembers<'_> {
        ProblemMembers {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code.as_str(),
            errors: self
                .errors
                .iter()
                .map(|error| InvalidField { field: &error.field, message: &error.message })
                .collect(),
            retry_after_ms: self.retry_after_ms,
        }
    }

    /// An answer of this status whose body is `members` and what stands beside them.
    pub fn respond_with(&self, body: &impl Serialize) -> Response {
        let bytes = serde_json::to_vec(body).expect("strings and numbers are JSON");
        let mut response = Response::new(Body::from(bytes));
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM_JSON);
        if let Some(retry_after_ms) = self.retry_after_ms {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry_after_seconds(retry_after_ms)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

fn sentences(errors: &[FieldError]) -> String {
    let sentences: Vec<String> = errors.iter().map(|error| format!("{} {}", error.field, error.message)).collect();
    sentences.join("; ")
}

/// `Retry-After` in whole seconds, rounded up, at least 1.
fn retry_after_seconds(retry_after_ms: u64) -> u64 {
    retry_after_ms.div_ceil(1_000).max(1)
}

/// The body of an error answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemMembers<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    /// What is wrong and what is allowed.
    detail: &'a str,
    /// Stable: decide by it.
    code: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<InvalidField<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct InvalidField<'a> {
    field: &'a str,
    message: &'a str,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.respond_with(&self.members());
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Problem {
        match error {
            ServiceError::Unavailable { reason, retry_after_ms } => Problem {
                retry_after_ms: Some(retry_after_ms),
                ..Problem::new(Code::Unavailable, format!("not applied: {reason}"))
            },
            ServiceError::Unknown => Problem::new(
                Code::OutcomeUnknown,
                "the deadline passed after the write was handed to the log: it may or may not apply. \
                 Ask again with the same identity",
            ),
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        match refusal {
            Refusal::PolicyNotFound { policy } => policy_not_found(&policy),
            Refusal::CostExceedsBurst { policy, key, cost, burst } => Problem::new(
                Code::CostExceedsBurst,
                format!(
                    "a cost of {cost} on policy {policy:?} and key {key:?} can never be admitted: its capacity is {burst}"
                ),
            ),
            Refusal::RequestIdReused { policy, key, admitted_cost } => Problem::new(
                Code::FingerprintMismatch,
                format!(
                    "this request_id was admitted on policy {policy:?} and key {key:?} with a cost of {admitted_cost}; \
                     repeat it with that cost, or use a new request_id"
                ),
            ),
        }
    }
}

pub fn policy_not_found(name: &str) -> Problem {
    Problem::not_found(format!("there is no policy {name:?}"))
}
