//! Calls of a history as HTTP, and HTTP's answers as outcomes of a history. Every class of outcome is decided here, by the
//! contract alone: what it does not allow is [`Outcome::Unexpected`], whatever else it may mean.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures::future::BoxFuture;
use onceward_checkers::history::{Algorithm, Call, Item, ItemResult, Message, Mode, Outcome, Reply, Terms};
use onceward_tests::client::{Api, NoAnswer};
use serde_json::{Value, json};

use crate::message::{EVENT_TYPE, digest, payload};

/// More than the product's own deadline of 2 s: a node that is silent for longer is frozen or cut off.
const PATIENCE: Duration = Duration::from_secs(3);

/// The deadline of a call in a hurry: what a write takes on a good day, and too little on a bad one.
const HURRY_MS: &str = "20";
const HURRY_EVERY: u64 = 12;

/// Where endpoints lead to: base URLs of receivers, such as `http://127.0.0.1:4000`.
#[derive(Debug, Clone)]
pub struct Targets(pub Vec<String>);

impl Targets {
    /// The receiver of an endpoint, by its name.
    pub fn receiver(&self, endpoint: &str) -> usize {
        endpoint.bytes().map(usize::from).sum::<usize>() % self.0.len()
    }

    fn url(&self, app: &str, endpoint: &str) -> String {
        format!("{}/{app}/{endpoint}", self.0[self.receiver(endpoint)])
    }
}

/// A way to one node.
pub trait Gate: Send + Sync {
    /// Makes the call and says what came of it.
    fn perform<'c>(&'c self, targets: &'c Targets, call: &'c Call) -> BoxFuture<'c, Outcome>;
}

/// By HTTP.
pub struct HttpGate {
    api: Api,
    /// Every so many calls one is in a hurry, so that deadlines pass before a write is handed to the log, and behind it.
    hurry_every: u64,
    calls: AtomicU64,
}

impl HttpGate {
    pub fn hurried(api: Api) -> HttpGate {
        HttpGate { api, hurry_every: HURRY_EVERY, calls: AtomicU64::new(0) }
    }

    pub fn patient(api: Api) -> HttpGate {
        HttpGate { api, hurry_every: u64::MAX, calls: AtomicU64::new(0) }
    }
}

impl Gate for HttpGate {
    fn perform<'c>(&'c self, targets: &'c Targets, call: &'c Call) -> BoxFuture<'c, Outcome> {
        Box::pin(async {
            let (method, path, body) = request(targets, call);
            let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
            let mut headers = vec![("content-type", "application/json")];
            if (self.calls.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.hurry_every) {
                headers.push(("onceward-timeout-ms", HURRY_MS));
            }
            match tokio::time::timeout(PATIENCE, self.api.send(method, &path, &headers, body)).await {
                Ok(Ok(answer)) => outcome(call, answer.status, &answer.body),
                Ok(Err(NoAnswer::NotSent(_))) => Outcome::Refused,
                Ok(Err(NoAnswer::Lost(_))) | Err(_) => Outcome::Unknown,
            }
        })
    }
}

/// The call as HTTP: method, path and JSON.
pub fn request(targets: &Targets, call: &Call) -> (&'static str, String, Option<Value>) {
    let post = |path: &str, body: Value| ("POST", path.to_owned(), Some(body));
    match call {
        Call::Check { items, mode, request_id } => post("/v1/limits/check", check(items, *mode, request_id.as_deref())),
        Call::Refund { policy, key, cost, request_id } => {
            post("/v1/limits/refund", json!({ "policy": policy, "key": key, "cost": cost, "request_id": request_id }))
        }
        Call::Reset { policy, key } => ("DELETE", format!("/v1/limits/{policy}/{key}"), None),
        Call::PutPolicy { policy, terms } => ("PUT", format!("/v1/policies/{policy}"), Some(policy_body(terms))),
        Call::GetPolicy { policy } => ("GET", format!("/v1/policies/{policy}"), None),
        Call::DeletePolicy { policy } => ("DELETE", format!("/v1/policies/{policy}"), None),
        Call::Begin { account, key, fingerprint, attempt_id, lease_ms, ttl_ms, hold } => post(
            "/v1/idempotency/begin",
            json!({
                "account": account, "key": key, "fingerprint": fingerprint, "attempt_id": attempt_id,
                "lease_ms": lease_ms, "ttl_ms": ttl_ms, "on_lease_expiry": if *hold { "hold" } else { "takeover" },
            }),
        ),
        Call::Complete { account, key, token, body, messages } => {
            let response = json!({ "status": 201, "headers": {}, "body": body });
            let messages: Vec<Value> = messages.iter().map(message_in).collect();
            let call = json!({
                "account": account, "key": key, "token": token, "response": response, "messages": messages,
            });
            post("/v1/idempotency/complete", call)
        }
        Call::Abandon { account, key, token } => {
            post("/v1/idempotency/abandon", json!({ "account": account, "key": key, "token": token }))
        }
        Call::Extend { account, key, token, lease_ms } => post(
            "/v1/idempotency/extend",
            json!({ "account": account, "key": key, "token": token, "lease_ms": lease_ms }),
        ),
        Call::GetRecord { account, key } => ("GET", format!("/v1/idempotency/{account}/{key}"), None),
        Call::CreateApp { app } => post("/api/v1/app?get_if_exists=true", json!({ "name": app, "uid": app })),
        Call::PutEndpoint { app, endpoint, description, disabled } => {
            let url = targets.url(app, endpoint);
            let body = json!({ "url": url, "uid": endpoint, "description": description, "disabled": disabled });
            ("PUT", format!("/api/v1/app/{app}/endpoint/{endpoint}"), Some(body))
        }
        Call::GetEndpoint { app, endpoint } => ("GET", format!("/api/v1/app/{app}/endpoint/{endpoint}"), None),
        Call::DeleteEndpoint { app, endpoint } => ("DELETE", format!("/api/v1/app/{app}/endpoint/{endpoint}"), None),
        Call::Publish { app, message } => post(&format!("/api/v1/app/{app}/msg"), message_in(message)),
        Call::GetMessage { app, event_id } => ("GET", format!("/api/v1/app/{app}/msg/{event_id}"), None),
        Call::GetDelivery { app, event_id, .. } => {
            ("GET", format!("/api/v1/app/{app}/msg/{event_id}/endpoint?limit=250"), None)
        }
    }
}

fn check(items: &[Item], mode: Mode, request_id: Option<&str>) -> Value {
    let checks: Vec<Value> =
        items.iter().map(|item| json!({ "policy": item.policy, "key": item.key, "cost": item.cost })).collect();
    let mode = match mode {
        Mode::Enforce => "enforce",
        Mode::Peek => "peek",
        Mode::Shadow => "shadow",
    };
    let mut body = json!({ "checks": checks, "mode": mode });
    if let Some(request_id) = request_id {
        body["request_id"] = request_id.into();
    }
    body
}

fn policy_body(terms: &Terms) -> Value {
    let mut body = json!({
        "rate": format!("{}/{}ms", terms.amount, terms.window_us / 1_000), "on_unavailable": terms.on_unavailable,
    });
    match terms.algorithm {
        Algorithm::TokenBucket => {
            body["algorithm"] = "token_bucket".into();
            body["burst"] = terms.burst.into();
        }
        Algorithm::SlidingWindow => body["algorithm"] = "sliding_window".into(),
    }
    body
}

fn message_in(message: &Message) -> Value {
    let payload: Value = serde_json::from_str(&payload(&message.event_id)).expect("it is JSON");
    json!({ "eventType": EVENT_TYPE, "eventId": message.event_id, "payload": payload })
}

/// What an answer to the call says.
pub fn outcome(call: &Call, status: u16, body: &str) -> Outcome {
    match status {
        503 => return Outcome::Refused,
        504 => return Outcome::Unknown,
        _ => {}
    }
    let parsed = serde_json::from_str(body).unwrap_or(Value::Null);
    match reply(call, status, &parsed) {
        Some(reply) => Outcome::Answered { reply },
        None => Outcome::Unexpected { status, body: body.to_owned() },
    }
}

/// What the contract lets a node answer to the call; none: this it does not.
fn reply(call: &Call, status: u16, body: &Value) -> Option<Reply> {
    match call {
        Call::Check { .. }
        | Call::Refund { .. }
        | Call::Reset { .. }
        | Call::PutPolicy { .. }
        | Call::GetPolicy { .. }
        | Call::DeletePolicy { .. } => limits_reply(call, status, body),
        Call::Begin { .. }
        | Call::Complete { .. }
        | Call::Abandon { .. }
        | Call::Extend { .. }
        | Call::GetRecord { .. } => idempotency_reply(call, status, body),
        _ => webhooks_reply(call, status, body),
    }
}

fn limits_reply(call: &Call, status: u16, body: &Value) -> Option<Reply> {
    match (call, status) {
        (Call::Check { .. }, 200 | 429) => checked(body),
        (Call::Check { .. } | Call::Refund { .. }, 422) => Some(Reply::Mismatch),
        (Call::Refund { .. }, 200) => Some(Reply::Refunded),
        (Call::Reset { .. }, 204) => Some(Reply::Reset),
        (Call::PutPolicy { .. }, 200..=202) | (Call::GetPolicy { .. }, 200) => {
            let revision = body["revision"].as_u64()?;
            Some(Reply::Policy { terms: terms(body)?, revision, pending: status == 202 })
        }
        (Call::DeletePolicy { .. }, 202 | 204) => Some(Reply::Deleted),
        (_, 404) if !matches!(call, Call::PutPolicy { .. }) => Some(Reply::NotFound),
        _ => None,
    }
}

fn checked(body: &Value) -> Option<Reply> {
    let result = |result: &Value| {
        Some(ItemResult {
            allowed: result["allowed"].as_bool()?,
            limit: result["limit"].as_u64()?,
            remaining: result["remaining"].as_u64()?,
            retry_after_ms: result["retry_after_ms"].as_u64(),
            degraded: !result["degraded"].is_null(),
        })
    };
    let results = body["results"].as_array()?.iter().map(result).collect::<Option<Vec<_>>>()?;
    Some(Reply::Checked { allowed: body["allowed"].as_bool()?, results })
}

fn terms(body: &Value) -> Option<Terms> {
    let (amount, window) = body["rate"].as_str()?.split_once('/')?;
    let amount = amount.parse().ok()?;
    let algorithm = match body["algorithm"].as_str()? {
        "token_bucket" => Algorithm::TokenBucket,
        "sliding_window" => Algorithm::SlidingWindow,
        _ => return None,
    };
    let burst = match algorithm {
        Algorithm::TokenBucket => body["burst"].as_u64()?,
        Algorithm::SlidingWindow => amount,
    };
    let on_unavailable = body["on_unavailable"].as_str()?.to_owned();
    Some(Terms { algorithm, amount, window_us: window_us(window)?, burst, on_unavailable })
}

/// `ms`, `15min` …
fn window_us(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let unit_us = match unit {
        "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    let count = if count.is_empty() { 1 } else { count.parse::<u64>().ok()? };
    Some(count * unit_us)
}

fn idempotency_reply(call: &Call, status: u16, body: &Value) -> Option<Reply> {
    let code = body["code"].as_str().unwrap_or_default();
    match (call, status) {
        (Call::Begin { .. }, 201) => Some(Reply::Started { token: body["token"].as_u64()? }),
        (Call::Begin { .. }, 200) => {
            let status = u16::try_from(body["response"]["status"].as_u64()?).ok()?;
            Some(Reply::Replayed { status, body: body["response"]["body"].as_str()?.to_owned() })
        }
        (Call::Begin { .. }, 422) => Some(Reply::FingerprintMismatch),
        (Call::Begin { .. }, 409) => match code {
            "in_progress" => Some(Reply::InProgress),
            "indeterminate" => Some(Reply::Indeterminate),
            _ => None,
        },
        (Call::Complete { .. }, 200) => {
            let ids = body["messages"].as_array()?.iter().map(|message| Some(message["id"].as_str()?.to_owned()));
            Some(Reply::Completed { messages: ids.collect::<Option<Vec<_>>>()? })
        }
        (Call::Complete { messages, .. }, 404) if !messages.is_empty() => {
            Some(Reply::MessageRefused { code: code.to_owned() })
        }
        (Call::Complete { .. } | Call::Abandon { .. } | Call::Extend { .. }, 409) => match (call, code) {
            (_, "fenced") => Some(Reply::Fenced),
            (_, "already_completed") => Some(Reply::AlreadyCompleted),
            (Call::Complete { .. }, "conflict") => Some(Reply::MessageRefused { code: code.to_owned() }),
            _ => None,
        },
        (Call::Abandon { .. }, 200) => Some(Reply::Abandoned),
        (Call::Extend { .. }, 200) => Some(Reply::Extended),
        (Call::GetRecord { .. }, 200) => {
            let body_text = body["response"]["body"].as_str().map(str::to_owned);
            Some(Reply::Record { state: body["state"].as_str()?.to_owned(), body: body_text })
        }
        (Call::GetRecord { .. }, 404) => Some(Reply::NotFound),
        _ => None,
    }
}

fn webhooks_reply(call: &Call, status: u16, body: &Value) -> Option<Reply> {
    match (call, status) {
        (Call::CreateApp { .. }, 200 | 201) => Some(Reply::AppCreated),
        (Call::PutEndpoint { .. }, 200 | 201) | (Call::GetEndpoint { .. }, 200) => Some(Reply::Endpoint {
            description: body["description"].as_str()?.to_owned(),
            disabled: body["disabled"].as_bool()?,
        }),
        (Call::DeleteEndpoint { .. }, 204) => Some(Reply::Deleted),
        (Call::Publish { .. }, 202) => Some(Reply::Message { id: body["id"].as_str()?.to_owned(), digest: None }),
        (Call::Publish { .. }, 409) => Some(Reply::Conflict),
        (Call::GetMessage { .. }, 200) => {
            let payload = digest(body.get("payload")?.to_string().as_bytes());
            Some(Reply::Message { id: body["id"].as_str()?.to_owned(), digest: Some(payload) })
        }
        (Call::GetDelivery { endpoint, .. }, 200) => {
            let of_endpoint = body["data"].as_array()?.iter().find(|found| found["uid"] == endpoint.as_str());
            match of_endpoint {
                Some(found) => Some(Reply::DeliveryStatus { status: u8::try_from(found["status"].as_u64()?).ok()? }),
                None => Some(Reply::NotFound),
            }
        }
        (Call::CreateApp { .. }, _) => None,
        (_, 404) => Some(Reply::NotFound),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> Call {
        let messages = vec![crate::message::message("shop", "e")];
        Call::Complete { account: "shop".into(), key: "k".into(), token: 7, body: "b".into(), messages }
    }

    #[test]
    fn an_answer_is_classed_by_the_contract_alone() {
        let answered = |reply| Outcome::Answered { reply };
        let unexpected = |status, body: &str| Outcome::Unexpected { status, body: body.into() };
        let policy = Call::GetPolicy { policy: "p".into() };
        let stored = r#"{"revision":3,"algorithm":"token_bucket","rate":"5/15min","burst":9,"on_unavailable":"deny"}"#;
        let terms = Terms {
            algorithm: Algorithm::TokenBucket,
            amount: 5,
            window_us: 900_000_000,
            burst: 9,
            on_unavailable: "deny".into(),
        };
        for (call, status, body, expected) in [
            (&policy, 200, stored, answered(Reply::Policy { terms, revision: 3, pending: false })),
            (&policy, 404, "{}", answered(Reply::NotFound)),
            (&policy, 503, "", Outcome::Refused),
            (&policy, 504, "", Outcome::Unknown),
            (&policy, 200, "{}", unexpected(200, "{}")),
            (&policy, 500, "", unexpected(500, "")),
            (&complete(), 409, r#"{"code":"fenced"}"#, answered(Reply::Fenced)),
            (&complete(), 404, r#"{"code":"not_found"}"#, answered(Reply::MessageRefused { code: "not_found".into() })),
            (&complete(), 409, r#"{"code":"in_progress"}"#, unexpected(409, r#"{"code":"in_progress"}"#)),
        ] {
            assert_eq!(outcome(call, status, body), expected, "{call:?} answered {status} {body}");
        }
    }

    #[test]
    fn a_message_that_is_read_has_the_digest_that_it_was_published_with() {
        let targets = Targets(vec!["http://127.0.0.1:1".into()]);
        let (_, _, body) = request(&targets, &complete());
        let body = body.unwrap();
        let published = &body["messages"][0];
        let read = json!({ "id": "msg_1", "payload": published["payload"] }).to_string();
        let call = Call::GetMessage { app: "shop".into(), event_id: "e".into() };
        let Call::Complete { messages, .. } = complete() else { unreachable!("it is one") };
        let expected = Reply::Message { id: "msg_1".into(), digest: Some(messages[0].digest.clone()) };
        assert_eq!(outcome(&call, 200, &read), Outcome::Answered { reply: expected });
    }
}
