//! A client of one node over HTTP with connection reuse, and the classes of outcome that the promises are stated in.

use std::{net::IpAddr, time::Duration};

use reqwest::{
    Method,
    header::{AUTHORIZATION, HeaderMap, HeaderValue},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Longer than any deadline of the product: whoever is silent that long is broken or frozen.
const SILENCE_MAX: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Api {
    pub url: String,
    http: reqwest::Client,
}

/// Whatever a node answered.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

/// No answer came.
#[derive(Debug, Clone)]
pub enum NoAnswer {
    /// The request never left.
    NotSent(String),
    /// Sent, and the connection was lost: it may have been applied.
    Lost(String),
}

/// What a check or write came to, as the promises tell it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// 2xx.
    Done,
    /// 429.
    Denied,
    /// 503, or never sent: definitely not applied.
    NotApplied,
    /// 504, or the connection was lost: may be applied.
    Unknown,
    /// Any other status.
    Other(u16),
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in the answer {self:?}"))
    }

    pub fn parse<T: DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in the answer {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("headers of the product are ASCII"))
    }

    /// Panics with the whole answer unless it has this status.
    #[track_caller]
    pub fn expect_status(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// The only result of a check of one bucket.
    #[track_caller]
    pub fn result(&self) -> CheckResult {
        let CheckBody { results, .. } = self.parse();
        let [result] = <[CheckResult; 1]>::try_from(results).expect("one result");
        result
    }

    #[track_caller]
    pub fn results(&self) -> Vec<CheckResult> {
        self.parse::<CheckBody>().results
    }
}

impl Outcome {
    pub fn of(answer: &Result<Answer, NoAnswer>) -> Outcome {
        match answer {
            Ok(answer) => match answer.status {
                200..300 => Outcome::Done,
                429 => Outcome::Denied,
                503 => Outcome::NotApplied,
                504 => Outcome::Unknown,
                other => Outcome::Other(other),
            },
            Err(NoAnswer::NotSent(_)) => Outcome::NotApplied,
            Err(NoAnswer::Lost(_)) => Outcome::Unknown,
        }
    }
}

#[derive(Debug, Deserialize)]
struct CheckBody {
    results: Vec<CheckResult>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CheckResult {
    pub policy: String,
    pub key: String,
    pub allowed: bool,
    pub limit: u64,
    pub remaining: u64,
    pub retry_after_ms: Option<u64>,
    pub reset_after_ms: u64,
    pub degraded: Option<String>,
}

/// One item of a check.
#[derive(Debug, Clone, Serialize)]
pub struct Item<'a> {
    pub policy: &'a str,
    pub key: &'a str,
    pub cost: u64,
}

/// `GET /v1/cluster`.
#[derive(Debug, Clone, Deserialize)]
pub struct ClusterStatus {
    pub cluster_id: Option<String>,
    pub node_id: u16,
    pub nodes: Vec<NodeStatus>,
    pub shards: Vec<ShardStatus>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct NodeStatus {
    pub id: u16,
    pub reachable: bool,
    pub wall_clock_offset_ms: Option<i64>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ShardStatus {
    pub id: u16,
    pub leader: Option<u16>,
    /// `None` where the node knows nothing of a shard that it does not hold.
    pub term: Option<u64>,
    pub members: Vec<u16>,
    pub state_hash: Option<StateHash>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StateHash {
    pub applied_index: u64,
    pub hash: String,
}

impl Api {
    pub fn new(url: String) -> Api {
        Api::with(url, HeaderMap::new(), None)
    }

    /// A client that presents an access token, and dials from an address of its own.
    pub fn of_stranger(url: String, token: &str, from: IpAddr) -> Api {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).expect("tokens are visible characters");
        Api::with(url, HeaderMap::from_iter([(AUTHORIZATION, value)]), Some(from))
    }

    fn with(url: String, headers: HeaderMap, from: Option<IpAddr>) -> Api {
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(SILENCE_MAX)
            .default_headers(headers)
            .local_address(from)
            .build()
            .expect("a client without TLS needs nothing from the system");
        Api { url, http }
    }

    /// Sends a request as it is given: any method, path, headers and body.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<Answer, NoAnswer> {
        let method = Method::from_bytes(method.as_bytes()).expect("an HTTP method");
        let mut request = self.http.request(method, format!("{}{path}", self.url)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let lost = |error: reqwest::Error| NoAnswer::Lost(format!("{error:?}"));
        let response = request.send().await.map_err(|error| match error.is_connect() {
            true => NoAnswer::NotSent(format!("{error:?}")),
            false => lost(error),
        })?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Answer { status, headers, body: response.text().await.map_err(lost)? })
    }

    pub async fn try_json(&self, method: &str, path: &str, body: &Value) -> Result<Answer, NoAnswer> {
        self.send(method, path, &[("content-type", "application/json")], body.to_string().into_bytes()).await
    }

    pub async fn try_get(&self, path: &str) -> Result<Answer, NoAnswer> {
        self.send("GET", path, &[], Vec::new()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.try_get(path).await.expect("an answer")
    }

    pub async fn put_policy(&self, name: &str, policy: Value) -> Answer {
        self.try_json("PUT", &format!("/v1/policies/{name}"), &policy).await.expect("an answer")
    }

    pub async fn try_check(&self, body: &Value) -> Result<Answer, NoAnswer> {
        self.try_json("POST", "/v1/limits/check", body).await
    }

    /// A check of cost 1 of one bucket.
    pub async fn check(&self, policy: &str, key: &str) -> Answer {
        self.check_items(&[Item { policy, key, cost: 1 }], "enforce").await
    }

    pub async fn check_items(&self, items: &[Item<'_>], mode: &str) -> Answer {
        self.try_check(&json!({ "checks": items, "mode": mode })).await.expect("an answer")
    }

    /// What is left in a bucket, by a peek of cost 0.
    pub async fn remaining(&self, policy: &str, key: &str) -> u64 {
        let answer = self.check_items(&[Item { policy, key, cost: 0 }], "peek").await.expect_status(200);
        let result = answer.result();
        assert_eq!(result.degraded, None, "{answer:?}");
        result.remaining
    }

    pub async fn is_ready(&self) -> bool {
        matches!(self.try_get("/readyz").await, Ok(answer) if answer.status == 200)
    }

    pub async fn cluster(&self) -> ClusterStatus {
        self.get("/v1/cluster").await.expect_status(200).parse()
    }

    /// The sum over all series of a metric; 0 when there is none.
    pub async fn metric(&self, name: &str) -> f64 {
        metric(&self.get("/metrics").await.expect_status(200).body, name)
    }
}

/// The sum over all series of a metric in Prometheus' text format; 0 when there is none.
pub fn metric(text: &str, name: &str) -> f64 {
    text.lines()
        .filter_map(|line| line.strip_prefix(name))
        .filter(|rest| rest.starts_with([' ', '{']))
        .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}
