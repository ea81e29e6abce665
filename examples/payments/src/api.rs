//! The HTTP side: who is asking, which key, what for. Nothing is begun before all of that is in order, so a request that
//! is refused here has not touched its key, and may come again corrected under the same one.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, Request, State, rejection::BytesRejection},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::json;

use crate::{
    attempt::{Call, Service},
    demo::Faults,
    fingerprint::fingerprint,
    idempotency_key::{IdempotencyKey, KeyError},
    ledger::Order,
    onceward::new_attempt_id,
    problem::Problem,
};

const BODY_BYTES_MAX: usize = 16 << 10;
/// An account is an application of Onceward's, too, whose names have letters, digits, `-`, `_` and `.`.
const ACCOUNT_BYTES_MAX: usize = 255;
/// SQLite adds such amounts up without overflow, and JSON numbers hold them exactly.
const AMOUNT_CENTS_MAX: i64 = 1_000_000_000_000;
const RECIPIENT_CHARS_MAX: usize = 140;

pub fn routes(service: Arc<Service>) -> Router {
    Router::new()
        .route("/payments", post(create_payment).get(list_payments))
        .route("/payments/{id}", get(read_payment))
        .fallback(async |_: Request| Problem::not_found())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(service)
}

async fn create_payment(
    State(service): State<Arc<Service>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let account = account(&headers)?;
    let attempt_id = new_attempt_id().map_err(|_| Problem::internal())?;
    service.admit(&account, &attempt_id).await?;

    let key = IdempotencyKey::of(&headers).map_err(|error| match error {
        KeyError::Missing => Problem::no_key(),
        other => Problem::bad_key(&other.to_string()),
    })?;
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large(BODY_BYTES_MAX),
        _ => Problem::bad_request("the body ended too early"),
    })?;
    let content_type = json_content_type(&headers)?;
    let order = order(&body)?;
    let fingerprint = fingerprint(method.as_str(), uri.path(), uri.query().unwrap_or_default(), content_type, &body);
    let faults = Faults::of(service.rehearsal.as_ref(), &headers).map_err(Problem::bad_request)?;
    let call = Call { account, key, fingerprint, attempt_id, order, faults };

    // In a task of its own: a client that hangs up does not stop a payment half way.
    let answer = tokio::spawn(async move { service.pay(call).await }).await;
    let answer = answer.unwrap_or_else(|error| {
        tracing::error!(%error, "an attempt panicked");
        Err(Problem::outcome_unknown())
    })?;
    answer.response.to_http(answer.replayed).map_err(|error| {
        tracing::error!(%error, "the stored response is no HTTP");
        Problem::internal()
    })
}

async fn list_payments(State(service): State<Arc<Service>>, headers: HeaderMap) -> Result<Response, Problem> {
    let account = account(&headers)?;
    let payments = read(service, move |service| service.ledger.payments(&account)).await?;
    Ok(json_response(json!({ "payments": payments })))
}

async fn read_payment(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let account = account(&headers)?;
    let payment = read(service, move |service| service.ledger.payment(&account, &id)).await?;
    Ok(json_response(json!(payment.ok_or_else(Problem::not_found)?)))
}

async fn read<T: Send + 'static>(
    service: Arc<Service>,
    query: impl FnOnce(&Service) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, Problem> {
    let found = tokio::task::spawn_blocking(move || query(&service)).await.map_err(|_| Problem::internal())?;
    found.map_err(|error| {
        tracing::error!(%error, "the ledger cannot be read");
        Problem::internal()
    })
}

fn json_response(body: serde_json::Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// The account that the API key names. In this example that is the key itself; a real service looks the key up, so that
/// a key may be renewed and is not written into its database.
fn account(headers: &HeaderMap) -> Result<String, Problem> {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (scheme, key) = authorization.and_then(|text| text.split_once(' ')).ok_or_else(Problem::no_account)?;
    let key = key.trim();
    let is_name = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !scheme.eq_ignore_ascii_case("bearer") || key.is_empty() || key.len() > ACCOUNT_BYTES_MAX || !is_name {
        return Err(Problem::no_account());
    }
    Ok(key.to_owned())
}

fn json_content_type(headers: &HeaderMap) -> Result<&str, Problem> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") { Ok(value) } else { Err(Problem::not_json()) }
}

fn order(body: &[u8]) -> Result<Order, Problem> {
    let order: Order = serde_json::from_slice(body).map_err(|error| Problem::bad_request(error.to_string()))?;
    let Order { amount_cents, currency, to } = &order;
    if !(1..=AMOUNT_CENTS_MAX).contains(amount_cents) {
        return Err(Problem::bad_request(format!("amount_cents must be from 1 to {AMOUNT_CENTS_MAX}")));
    }
    if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err(Problem::bad_request("currency must be three capital letters"));
    }
    if to.is_empty() || to.chars().count() > RECIPIENT_CHARS_MAX || to.chars().any(char::is_control) {
        return Err(Problem::bad_request(format!("to must be 1 to {RECIPIENT_CHARS_MAX} characters")));
    }
    Ok(order)
}
