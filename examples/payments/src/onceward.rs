//! Onceward over HTTP, as far as this service needs it: check a limit, begin a key, complete it with a message, abandon it.
//!
//! Any node takes any request, so a node that does not answer is not waited for: the next one is asked, with the same
//! identity, until the deadline. Repeating is harmless, because every call here has an identity: the check its
//! `request_id`, `begin` its `attempt_id`, an application its uid, the others their token.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::response::StoredResponse;

/// A node that is frozen, or cut off, is given up after this time.
const TRY_MAX: Duration = Duration::from_millis(2_500);
/// Between tries: a random time below a bound that doubles, so that clients do not come back together.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

pub struct Onceward {
    http: reqwest::Client,
    nodes: Vec<String>,
    token: Option<String>,
    deadline: Duration,
    /// The node that answered last.
    preferred: AtomicUsize,
}

#[derive(Debug, thiserror::Error)]
pub enum OncewardError {
    /// Within the deadline no node said what came of it: it may have been applied, as a lost answer hides a success.
    #[error("no node answers: {0}")]
    Unavailable(String),
    /// The two do not understand each other: a fault in this service or in its settings.
    #[error("{path} was answered {status}: {body}")]
    Unexpected { path: &'static str, status: u16, body: String },
}

#[derive(Debug)]
pub enum Admission {
    Admitted,
    /// With the headers that say so.
    Limited(Vec<(HeaderName, HeaderValue)>),
}

/// A key, and who wants it.
#[derive(Debug, Clone)]
pub struct Begin<'a> {
    pub account: &'a str,
    pub key: &'a str,
    pub fingerprint: &'a str,
    pub attempt_id: &'a str,
    pub lease_ms: u64,
    pub ttl_ms: u64,
}

#[derive(Debug)]
pub enum Begun {
    /// The key is ours: do the work, then complete it with this token.
    Started {
        token: i64,
    },
    Completed(StoredResponse),
    InProgress {
        retry_after: Duration,
    },
    OtherRequest,
}

/// What a call with a token came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The key is completed, or free again, as it was asked for.
    Done,
    /// The key is another attempt's by now.
    Fenced,
}

struct Reply {
    status: u16,
    headers: HeaderMap,
    body: String,
}

#[derive(Deserialize)]
struct Started {
    token: i64,
}

#[derive(Deserialize)]
struct Replay {
    response: StoredResponse,
}

#[derive(Deserialize, Default)]
struct Refusal {
    code: String,
    retry_after_ms: Option<u64>,
}

impl Onceward {
    pub fn new(nodes: Vec<String>, token: Option<String>, deadline: Duration) -> anyhow::Result<Onceward> {
        anyhow::ensure!(!nodes.is_empty(), "name at least one node of Onceward");
        let nodes = nodes.into_iter().map(|node| node.trim_end_matches('/').to_owned()).collect();
        let http = reqwest::Client::builder().no_proxy().build()?;
        Ok(Onceward { http, nodes, token, deadline, preferred: AtomicUsize::new(0) })
    }

    pub async fn check(&self, policy: &str, key: &str, request_id: &str) -> Result<Admission, OncewardError> {
        const PATH: &str = "/v1/limits/check";
        let checks = json!([{ "policy": policy, "key": key }]);
        let reply = self.ask(PATH, &json!({ "checks": checks, "request_id": request_id })).await?;
        match reply.status {
            200 => Ok(Admission::Admitted),
            429 => Ok(Admission::Limited(limit_headers(&reply.headers))),
            _ => Err(reply.unexpected(PATH)),
        }
    }

    pub async fn begin(&self, begin: &Begin<'_>) -> Result<Begun, OncewardError> {
        const PATH: &str = "/v1/idempotency/begin";
        let Begin { account, key, fingerprint, attempt_id, lease_ms, ttl_ms } = begin;
        let body = json!({
            "account": account, "key": key, "fingerprint": fingerprint, "attempt_id": attempt_id,
            "lease_ms": lease_ms, "ttl_ms": ttl_ms, "on_lease_expiry": "takeover",
        });
        let reply = self.ask(PATH, &body).await?;
        match (reply.status, reply.refusal()) {
            (201, _) => Ok(Begun::Started { token: reply.parse::<Started>(PATH)?.token }),
            (200, _) => Ok(Begun::Completed(reply.parse::<Replay>(PATH)?.response)),
            (409, Refusal { code, retry_after_ms }) if code == "in_progress" => {
                Ok(Begun::InProgress { retry_after: Duration::from_millis(retry_after_ms.unwrap_or(1_000)) })
            }
            (422, Refusal { code, .. }) if code == "fingerprint_mismatch" => Ok(Begun::OtherRequest),
            _ => Err(reply.unexpected(PATH)),
        }
    }

    /// Stores the answer and publishes the message to the account's endpoints: both or neither.
    pub async fn complete(
        &self,
        account: &str,
        key: &str,
        token: i64,
        response: &StoredResponse,
        message: Option<Value>,
    ) -> Result<Ended, OncewardError> {
        const PATH: &str = "/v1/idempotency/complete";
        let messages = Vec::from_iter(message);
        let body = json!({
            "account": account, "key": key, "token": token, "response": response, "messages": messages,
        });
        let mut reply = self.ask(PATH, &body).await?;
        if reply.status == 404 {
            // The account's first message: nobody has made its application yet.
            self.create_application(account).await?;
            reply = self.ask(PATH, &body).await?;
        }
        reply.ended(PATH)
    }

    pub async fn abandon(&self, account: &str, key: &str, token: i64) -> Result<Ended, OncewardError> {
        const PATH: &str = "/v1/idempotency/abandon";
        self.ask(PATH, &json!({ "account": account, "key": key, "token": token })).await?.ended(PATH)
    }

    async fn create_application(&self, account: &str) -> Result<(), OncewardError> {
        const PATH: &str = "/api/v1/app?get_if_exists=true";
        let reply = self.ask(PATH, &json!({ "name": account, "uid": account })).await?;
        if matches!(reply.status, 200 | 201) { Ok(()) } else { Err(reply.unexpected(PATH)) }
    }

    /// Asks node after node until one gives a definite answer.
    async fn ask(&self, path: &'static str, body: &Value) -> Result<Reply, OncewardError> {
        let end = Instant::now() + self.deadline;
        let mut node = self.preferred.load(Ordering::Relaxed);
        let mut pause_max = PAUSE_FIRST;
        loop {
            let url = &self.nodes[node % self.nodes.len()];
            let failure = match self.try_once(url, path, body, end).await {
                Ok(reply) if reply.status < 500 => {
                    self.preferred.store(node % self.nodes.len(), Ordering::Relaxed);
                    return Ok(reply);
                }
                Ok(reply) => format!("{url}{path}: status {}", reply.status),
                Err(error) => format!("{url}{path}: {error}"),
            };
            let pause = random_below(pause_max);
            if Instant::now() + pause >= end {
                return Err(OncewardError::Unavailable(failure));
            }
            tokio::time::sleep(pause).await;
            pause_max = (pause_max * 2).min(PAUSE_MAX);
            node += 1;
        }
    }

    async fn try_once(
        &self,
        url: &str,
        path: &'static str,
        body: &Value,
        end: Instant,
    ) -> Result<Reply, reqwest::Error> {
        let timeout = end.saturating_duration_since(Instant::now()).min(TRY_MAX);
        let mut request = self.http.post(format!("{url}{path}")).timeout(timeout).json(body);
        // The node is to say that it gave up before we do: its 503 or 504 tells more than silence.
        request = request.header("onceward-timeout-ms", ((timeout * 4 / 5).as_millis() as u64).max(1));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Reply { status, headers, body: response.text().await? })
    }
}

impl Reply {
    fn parse<T: for<'a> Deserialize<'a>>(&self, path: &'static str) -> Result<T, OncewardError> {
        serde_json::from_str(&self.body).map_err(|_| self.unexpected(path))
    }

    /// What a call with a token came to.
    fn ended(&self, path: &'static str) -> Result<Ended, OncewardError> {
        match (self.status, self.refusal().code.as_str()) {
            (200, _) => Ok(Ended::Done),
            (409, "fenced" | "already_completed") => Ok(Ended::Fenced),
            _ => Err(self.unexpected(path)),
        }
    }

    fn refusal(&self) -> Refusal {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    fn unexpected(&self, path: &'static str) -> OncewardError {
        OncewardError::Unexpected { path, status: self.status, body: self.body.clone() }
    }
}

fn limit_headers(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let about_limits = |name: &str| name == "retry-after" || name.starts_with("ratelimit");
    let of_limits = headers.iter().filter(|(name, _)| about_limits(name.as_str()));
    of_limits.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn random_below(bound: Duration) -> Duration {
    // Without randomness at hand the full time is as good as any.
    getrandom::u32().map_or(bound, |random| bound.mul_f64(f64::from(random) / f64::from(u32::MAX)))
}

/// Names one request, so that all its repetitions are known to be that one.
pub fn new_attempt_id() -> Result<String, getrandom::Error> {
    Ok(format!("{:016x}{:016x}", getrandom::u64()?, getrandom::u64()?))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::{Router, http::StatusCode, routing::post};
    use tokio::net::TcpListener;

    use super::*;

    const BEGIN: Begin<'_> = Begin {
        account: "alice",
        key: "\"k\"",
        fingerprint: "f",
        attempt_id: "a1",
        lease_ms: 30_000,
        ttl_ms: 86_400_000,
    };

    /// A node that gives these answers in turn, the last one for ever, and keeps what it was asked.
    async fn node(answers: Vec<(u16, &'static str)>) -> (String, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let handler = async move |body: String| {
            let mut seen = seen.lock().unwrap();
            let (status, answer) = answers[seen.len().min(answers.len() - 1)];
            seen.push(body);
            (StatusCode::from_u16(status).unwrap(), answer)
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().route("/v1/idempotency/begin", post(handler));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (url, asked)
    }

    fn client(nodes: &[&str]) -> Onceward {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        Onceward::new(nodes, None, Duration::from_secs(2)).unwrap()
    }

    #[tokio::test]
    async fn what_one_node_cannot_answer_another_is_asked_with_the_same_identity() {
        let (first, asked_first) = node(vec![(504, "{}")]).await;
        let (second, asked_second) = node(vec![(503, "{}"), (201, r#"{"state": "started", "token": 7}"#)]).await;
        let onceward = client(&["http://127.0.0.1:1", &first, &second]);
        let begun = onceward.begin(&BEGIN).await.unwrap();
        assert!(matches!(begun, Begun::Started { token: 7 }), "{begun:?}");
        let all = [asked_first.lock().unwrap().clone(), asked_second.lock().unwrap().clone()].concat();
        assert_eq!(all.len(), 4, "each once, then the first two again until the last answered: {all:?}");
        assert!(all.iter().all(|body| *body == all[0] && body.contains(r#""attempt_id":"a1""#)), "{all:?}");
        // The node that answered is asked first from then on.
        onceward.begin(&BEGIN).await.unwrap();
        assert_eq!((asked_first.lock().unwrap().len(), asked_second.lock().unwrap().len()), (2, 3));
    }

    #[tokio::test]
    async fn without_an_answer_it_gives_up_at_its_deadline() {
        let (node, asked) = node(vec![(503, "{}")]).await;
        let began = Instant::now();
        let error = client(&["http://127.0.0.1:1", &node]).begin(&BEGIN).await.unwrap_err();
        assert!(matches!(error, OncewardError::Unavailable(_)), "{error}");
        assert!(began.elapsed() < Duration::from_secs(3));
        assert!(asked.lock().unwrap().len() > 2);
    }

    #[tokio::test]
    async fn refusals_are_told_apart_by_their_codes() {
        let in_progress = (409, r#"{"code": "in_progress", "retry_after_ms": 250}"#);
        let mismatch = (422, r#"{"code": "fingerprint_mismatch"}"#);
        let indeterminate = (409, r#"{"code": "indeterminate"}"#);
        let (node, _) = node(vec![in_progress, mismatch, indeterminate, (200, "no JSON")]).await;
        let onceward = client(&[&node]);
        let begun = onceward.begin(&BEGIN).await.unwrap();
        assert!(matches!(begun, Begun::InProgress { retry_after } if retry_after == Duration::from_millis(250)));
        assert!(matches!(onceward.begin(&BEGIN).await.unwrap(), Begun::OtherRequest));
        for _ in 0..2 {
            let error = onceward.begin(&BEGIN).await.unwrap_err();
            assert!(matches!(error, OncewardError::Unexpected { .. }), "{error}");
        }
    }
}
