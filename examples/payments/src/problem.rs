//! What this service says when it does not pay: problem details (RFC 9457) with a stable `code`.

use std::time::Duration;

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// How soon to ask again where nothing better is known.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: impl Into<String>) -> Problem {
        Problem { status, code, title, detail: detail.into(), retry_after: None, headers: Vec::new() }
    }

    fn retry_after(self, wait: Duration) -> Problem {
        Problem { retry_after: Some(wait), ..self }
    }

    pub fn no_account() -> Problem {
        let detail = "send your API key: Authorization: Bearer KEY";
        let mut problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "Who is asking?", detail);
        problem.headers.push((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        problem
    }

    pub fn no_key() -> Problem {
        let detail = "a payment needs a key of its own, so that it can be repeated without paying twice: draw one at \
                      random, send it as Idempotency-Key: \"…\", and keep it for every repetition";
        Problem::new(StatusCode::BAD_REQUEST, "idempotency_key_missing", "Idempotency-Key is missing", detail)
    }

    pub fn bad_key(detail: &str) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "idempotency_key_invalid", "Idempotency-Key is invalid", detail)
    }

    pub fn bad_request(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid_request", "This is not a payment", detail)
    }

    pub fn not_json() -> Problem {
        let detail = "send Content-Type: application/json";
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "Only JSON is read", detail)
    }

    pub fn too_large(bytes_max: usize) -> Problem {
        let detail = format!("a payment takes at most {bytes_max} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "The body is too large", detail)
    }

    pub fn not_found() -> Problem {
        let detail = "there is no such thing here, or it is not yours";
        Problem::new(StatusCode::NOT_FOUND, "not_found", "Not found", detail)
    }

    /// `headers` tell the limit; they are passed on as they came.
    pub fn rate_limited(headers: Vec<(HeaderName, HeaderValue)>) -> Problem {
        let detail = "the account's limit of payments is spent for now";
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "Too many payments", detail);
        Problem { headers, ..problem }
    }

    pub fn in_progress(retry_after: Duration) -> Problem {
        let detail = "another request with this key is being worked on; ask again with the same key for its answer";
        Problem::new(StatusCode::CONFLICT, "in_progress", "A request with this key is under way", detail)
            .retry_after(retry_after)
    }

    pub fn superseded() -> Problem {
        let detail = "this request took so long that a newer one with its key took over; ask again with the same key";
        Problem::new(StatusCode::CONFLICT, "in_progress", "A newer request has this key", detail)
            .retry_after(RETRY_AFTER)
    }

    pub fn other_request() -> Problem {
        let detail = "this key was used for another request; a new payment needs a new key";
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "fingerprint_mismatch",
            "Idempotency-Key is already used",
            detail,
        )
    }

    /// This request has not paid. An earlier one with its key may have.
    pub fn unavailable() -> Problem {
        let detail = "this request did not pay; ask again with the same key";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Not now", detail).retry_after(RETRY_AFTER)
    }

    /// No request with this key has paid, and none that is under way will.
    pub fn bank_offline() -> Problem {
        let detail = "the recipient's bank does not answer; nothing was paid with this key; try again, with the same \
                      key or another";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "bank_offline", "The bank does not answer", detail)
            .retry_after(RETRY_AFTER)
    }

    /// This request may have paid.
    pub fn outcome_unknown() -> Problem {
        let detail = "this request may have paid; ask again with the same key, which never pays twice";
        Problem::new(StatusCode::GATEWAY_TIMEOUT, "outcome_unknown", "The outcome is not known yet", detail)
            .retry_after(RETRY_AFTER)
    }

    pub fn internal() -> Problem {
        let detail = "this is a fault of the service; ask again later with the same key";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something is wrong here", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Problem { status, code, title, detail, retry_after, headers } = self;
        let mut headers = HeaderMap::from_iter(headers);
        let mut body = json!({
            "type": "about:blank", "title": title, "status": status.as_u16(), "code": code, "detail": detail
        });
        if let Some(wait) = retry_after {
            let wait_ms = wait.as_millis() as u64;
            body["retry_after_ms"] = wait_ms.into();
            // Whole seconds, rounded up: whoever waits that long has waited long enough.
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait_ms.div_ceil(1000).max(1)));
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        (status, headers, body.to_string()).into_response()
    }
}
