//! A service that answers by script, and the API over it, called in-process.

#![allow(dead_code, reason = "each test binary uses its part")]

mod shards;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
};

use axum::{body::Body, http::Request, response::Response};
use bytes::Bytes;
use futures::future::{BoxFuture, ready};
use http_body_util::{BodyExt, Full};
use onceward_core::{
    cluster::{Generation, NodeEntry, NodeId, ShardId},
    idempotency::{
        AbandonCommand, AbandonReply, Account, Body as StoredBody, CompleteCommand, CompleteReply, DeleteRecordCommand,
        DeleteRecordReply, ExtendCommand, ExtendReply, Key, Lease, RecordPage, RecordState, RecordView, Replay,
        Response as Stored,
    },
    limits::{
        Decision, ItemResult, Policy, PolicyName, PolicySpec, RefundCommand, RefundReply, ResetCommand, ResetReply,
    },
    system::{NodeRecord, NodeReply, ReplaceState},
    webhooks::{AppView, Page, PageIn, RecordOutcomes, WebhookAnswer, WebhookQuery, WebhookReply},
};
use onceward_dispatch::Guard;
use onceward_server::{
    api::{App, webhooks::UrlGuard},
    http::Edge,
    service::{Served, Service},
    settings::Settings,
};
use onceward_shard::{
    BeginAnswer, BeginRequest, CheckAnswer, CheckError, CheckRequest, ClusterStatus, NodeStats, NodeStatus,
    PolicyWrite, Readiness, ServiceError, ShardStatus, StateHashStatus, WebhookCall,
};
use serde_json::Value;
use shards::Shards;
use tokio::time::Instant;

pub const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// What the service answers next, and what it was last asked.
pub struct Script {
    pub check: Result<CheckAnswer, CheckError>,
    pub refund: Result<RefundReply, ServiceError>,
    pub reset: Result<ResetReply, ServiceError>,
    pub begin: Result<BeginAnswer, ServiceError>,
    /// A `begin` with `wait_ms` is answered only after that.
    pub waits: bool,
    pub complete: Result<CompleteReply, ServiceError>,
    /// What was completed last.
    pub completed: Option<CompleteCommand>,
    /// What calls of webhooks come to instead of what the shards say.
    pub webhooks: Result<(), ServiceError>,
    pub shards: Shards,
    pub abandon: Result<AbandonReply, ServiceError>,
    pub extend: Result<ExtendReply, ServiceError>,
    pub record: Result<Option<RecordView>, ServiceError>,
    pub records: Result<RecordPage, ServiceError>,
    pub delete_record: Result<DeleteRecordReply, ServiceError>,
    pub created: bool,
    pub pending_shards: Vec<ShardId>,
    pub limit_reached: bool,
    pub exists: bool,
    pub policies: Result<(), ServiceError>,
    pub ready: bool,
    pub asked: Vec<String>,
    pub patience_ms: u64,
}

#[derive(Clone)]
pub struct Fake(Arc<Mutex<Script>>);

impl Fake {
    pub fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.0.lock().unwrap());
    }

    pub fn completed(&self) -> Option<CompleteCommand> {
        self.0.lock().unwrap().completed.take()
    }

    pub fn stored(&self) -> Option<Stored> {
        self.completed().map(|command| command.response)
    }

    /// Lets outcomes of deliveries come in.
    pub fn record(&self, outcomes: RecordOutcomes) {
        self.0.lock().unwrap().shards.record(outcomes);
    }

    fn webhooks<T: Send + 'static>(
        &self,
        what: String,
        deadline: Instant,
        answer: impl FnOnce(&mut Shards) -> T,
    ) -> Served<'_, T> {
        let mut script = self.0.lock().unwrap();
        script.asked.push(what);
        script.patience_ms = deadline.saturating_duration_since(Instant::now()).as_millis() as u64;
        Box::pin(ready(script.webhooks.clone().map(|()| answer(&mut script.shards))))
    }

    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }

    pub fn patience_ms(&self) -> u64 {
        self.0.lock().unwrap().patience_ms
    }

    fn call<T>(&self, what: String, deadline: Instant, answer: impl FnOnce(&Script) -> T) -> BoxFuture<'static, T>
    where
        T: Send + 'static,
    {
        let mut script = self.0.lock().unwrap();
        script.asked.push(what);
        script.patience_ms = deadline.saturating_duration_since(Instant::now()).as_millis() as u64;
        Box::pin(ready(answer(&script)))
    }
}

impl Service for Fake {
    fn check(&self, request: CheckRequest) -> BoxFuture<'_, Result<CheckAnswer, CheckError>> {
        let what = format!("check {:?} {:?} {:?}", request.mode, request.items, request.request_id);
        self.call(what, request.deadline, |script| script.check.clone())
    }

    fn refund(&self, command: RefundCommand, deadline: Instant) -> Served<'_, RefundReply> {
        self.call(format!("{command:?}"), deadline, |script| script.refund.clone())
    }

    fn reset(&self, command: ResetCommand, deadline: Instant) -> Served<'_, ResetReply> {
        self.call(format!("{command:?}"), deadline, |script| script.reset.clone())
    }

    fn begin(&self, request: BeginRequest) -> Served<'_, BeginAnswer> {
        let (deadline, wait_ms) = (request.deadline, request.wait_ms);
        let what = format!(
            "begin {:?} {:?} {:?} ttl {} lease {} {:?} {:?} wait {wait_ms}",
            request.account.as_str(),
            request.key.as_str(),
            request.fingerprint,
            request.ttl_ms,
            request.lease_ms,
            request.on_lease_expiry,
            request.attempt_id,
        );
        let answering = self.call(what, deadline, |script| script.begin.clone());
        if wait_ms == 0 || !self.0.lock().unwrap().waits {
            return answering;
        }
        Box::pin(async move {
            tokio::time::sleep(std::time::Duration::from_millis(wait_ms)).await;
            answering.await
        })
    }

    fn complete(&self, command: CompleteCommand, deadline: Instant) -> Served<'_, CompleteReply> {
        let CompleteCommand { account, key, token, .. } = &command;
        let what = format!("complete {:?} {:?} {token}", account.as_str(), key.as_str());
        self.0.lock().unwrap().completed = Some(command);
        self.call(what, deadline, |script| script.complete.clone())
    }

    fn abandon(&self, command: AbandonCommand, deadline: Instant) -> Served<'_, AbandonReply> {
        let AbandonCommand { account, key, token } = command;
        let what = format!("abandon {:?} {:?} {token}", account.as_str(), key.as_str());
        self.call(what, deadline, |script| script.abandon.clone())
    }

    fn extend(&self, command: ExtendCommand, deadline: Instant) -> Served<'_, ExtendReply> {
        let ExtendCommand { account, key, token, lease_us, .. } = command;
        let what = format!("extend {:?} {:?} {token} {}", account.as_str(), key.as_str(), lease_us / 1_000);
        self.call(what, deadline, |script| script.extend.clone())
    }

    fn record(&self, account: Account, key: Key, deadline: Instant) -> Served<'_, Option<RecordView>> {
        let what = format!("read {:?} {:?}", account.as_str(), key.as_str());
        self.call(what, deadline, |script| script.record.clone())
    }

    fn records(
        &self,
        account: Account,
        state: Option<RecordState>,
        after: Option<Key>,
        limit: u32,
        deadline: Instant,
    ) -> Served<'_, RecordPage> {
        let after = after.as_ref().map(Key::as_str);
        let what = format!("list {:?} {state:?} {after:?} {limit}", account.as_str());
        self.call(what, deadline, |script| script.records.clone())
    }

    fn delete_record(&self, command: DeleteRecordCommand, deadline: Instant) -> Served<'_, DeleteRecordReply> {
        let DeleteRecordCommand { account, key } = command;
        let what = format!("delete {:?} {:?}", account.as_str(), key.as_str());
        self.call(what, deadline, |script| script.delete_record.clone())
    }

    fn webhook(&self, call: WebhookCall, deadline: Instant) -> Served<'_, WebhookReply> {
        self.webhooks(format!("{:?}", call.action), deadline, |shards| shards.call(call))
    }

    fn webhook_query(&self, query: WebhookQuery, deadline: Instant) -> Served<'_, WebhookAnswer> {
        self.webhooks(format!("{query:?}"), deadline, |shards| shards.query(query))
    }

    fn apps(&self, page: PageIn, deadline: Instant) -> Served<'_, Page<AppView>> {
        self.webhooks(format!("apps {page:?}"), deadline, |shards| shards.apps(page))
    }

    fn put_policy(&self, name: PolicyName, spec: PolicySpec, deadline: Instant) -> Served<'_, PolicyWrite> {
        self.call(format!("put {name}"), deadline, |script| {
            script.policies.clone()?;
            Ok(match script.limit_reached {
                true => PolicyWrite::LimitReached { what: "policies".to_owned(), max: 10_000 },
                false => PolicyWrite::Stored {
                    policy: Policy { name, revision: 7, created_revision: 7, spec },
                    created: script.created,
                    pending_shards: script.pending_shards.clone(),
                },
            })
        })
    }

    fn delete_policy(&self, name: PolicyName, deadline: Instant) -> Served<'_, Option<Vec<ShardId>>> {
        self.call(format!("delete {name}"), deadline, |script| {
            script.policies.clone()?;
            Ok(script.exists.then(|| script.pending_shards.clone()))
        })
    }

    fn policy(&self, name: PolicyName, deadline: Instant) -> Served<'_, Option<Policy>> {
        self.call(format!("get {name}"), deadline, |script| {
            script.policies.clone()?;
            Ok(script.exists.then(|| policy(name.as_str())))
        })
    }

    fn policies(&self, deadline: Instant) -> Served<'_, Vec<Policy>> {
        self.call("list".to_owned(), deadline, |script| {
            script.policies.clone()?;
            Ok(vec![policy("a"), policy("b")])
        })
    }

    fn cluster(&self, state_hash: bool) -> BoxFuture<'_, ClusterStatus> {
        Box::pin(ready(ClusterStatus {
            cluster_id: Some(0xabc),
            node: NodeId(1),
            nodes: vec![NodeStatus {
                id: NodeId(1),
                http_address: "127.0.0.1:4001".to_owned(),
                peer_address: "127.0.0.1:4101".to_owned(),
                reachable: true,
                wall_clock_offset_ms: Some(0),
            }],
            shards: vec![ShardStatus {
                id: ShardId(0),
                leader: Some(NodeId(1)),
                term: Some(3),
                last_log_index: Some(10),
                applied_index: Some(9),
                members: vec![NodeId(1)],
                state_hash: state_hash.then(|| StateHashStatus { applied_index: 9, hash: "00ff".to_owned() }),
            }],
        }))
    }

    fn replace(&self, node: NodeId, deadline: Instant) -> Served<'_, NodeReply> {
        self.call(format!("replace {node}"), deadline, |script| {
            script.policies.clone()?;
            let entry = NodeEntry {
                id: node,
                generation: Generation(2),
                incarnation: 1,
                http_address: String::new(),
                peer_address: String::new(),
            };
            let record = NodeRecord { entry, replace: ReplaceState::Awaited };
            Ok(if script.exists { NodeReply::Recorded(record) } else { NodeReply::NotFound })
        })
    }

    fn readiness(&self) -> Readiness {
        let ready = self.0.lock().unwrap().ready;
        let waiting_shards = if ready { Vec::new() } else { vec![ShardId(2)] };
        Readiness { ready, detail: "as the script says".to_owned(), waiting_shards }
    }

    fn stats(&self) -> NodeStats {
        NodeStats::default()
    }
}

pub fn policy(name: &str) -> Policy {
    let body = br#"{"rate": "2/s", "burst": 20, "exempt": ["health", "internal-*"],
        "overrides": {"vip": {"rate": "5000/15min"}, "bad": "deny"}}"#;
    let spec = onceward_server::api::policies::parse(body).unwrap();
    Policy { name: PolicyName::parse(name).unwrap(), revision: 7, created_revision: 3, spec }
}

/// 2026-01-02T03:04:05.006Z
pub const WALL_MS: u64 = 1_767_323_045_006;

/// With a part of a millisecond left that no answer shows.
pub fn lease() -> Lease {
    Lease { expires_wall_ms: WALL_MS, remaining_us: 29_999_999 }
}

/// A bucket of 20 at 2/s after one check.
pub fn allowed() -> ItemResult {
    ItemResult {
        allowed: true,
        exempt: false,
        limit: 20,
        remaining: 19,
        retry_after_us: Some(0),
        reset_after_us: 500_000,
        window_us: 10_000_000,
    }
}

/// The same, empty.
pub fn denied() -> ItemResult {
    ItemResult { allowed: false, remaining: 0, retry_after_us: Some(1_234_001), reset_after_us: 9_000_001, ..allowed() }
}

/// A replay whose text takes six times as many bytes in JSON.
pub fn large_replay(text_bytes: usize) -> BeginAnswer {
    let response = Stored { status: 200, headers: Vec::new(), body: StoredBody::Text("\u{1}".repeat(text_bytes)) };
    BeginAnswer::Completed(Replay { response, completed_wall_ms: WALL_MS })
}

pub fn answer(results: Vec<ItemResult>) -> CheckAnswer {
    let degraded = vec![None; results.len()];
    CheckAnswer { decision: Decision { allowed: results.iter().all(|result| result.allowed), results }, degraded }
}

/// The API over a fake service.
pub struct Api {
    pub edge: Edge,
    pub fake: Fake,
}

pub fn api() -> Api {
    api_with(&Settings::default())
}

pub fn api_with(settings: &Settings) -> Api {
    let fake = Fake(Arc::new(Mutex::new(Script {
        check: Ok(answer(vec![allowed()])),
        refund: Ok(RefundReply::Refunded { credited: 1, limit: 20, remaining: 20 }),
        reset: Ok(ResetReply::Done),
        begin: Ok(BeginAnswer::Started { token: 4711, lease: lease() }),
        waits: false,
        complete: Ok(CompleteReply::Completed {
            completed_wall_ms: WALL_MS,
            expires_wall_ms: WALL_MS + 86_400_000,
            messages: Vec::new(),
        }),
        completed: None,
        webhooks: Ok(()),
        shards: Shards::default(),
        abandon: Ok(AbandonReply::Abandoned),
        extend: Ok(ExtendReply::Extended(lease())),
        record: Ok(None),
        records: Ok(RecordPage { records: Vec::new(), next: None }),
        delete_record: Ok(DeleteRecordReply::Deleted),
        created: true,
        pending_shards: Vec::new(),
        limit_reached: false,
        exists: true,
        policies: Ok(()),
        ready: true,
        asked: Vec::new(),
        patience_ms: 0,
    })));
    let guard = Guard { allow: settings.webhooks.allow_private.0.clone(), https_only: settings.webhooks.https_only };
    let app = App::new(settings, Arc::new(fake.clone()), Arc::new(WithoutNames(guard)));
    Api { edge: Edge::new(app), fake }
}

/// Judges URLs without resolving names.
struct WithoutNames(Guard);

impl UrlGuard for WithoutNames {
    fn vet<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(self.0.check_url(url).map(drop).map_err(|error| error.to_string())))
    }
}

/// An answer, read whole.
pub struct Answer {
    pub status: u16,
    pub headers: axum::http::HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_else(|| panic!("no code in {:?}", self.body)).to_owned()
    }

    pub fn detail(&self) -> String {
        match &self.json()["detail"] {
            Value::String(detail) => detail.clone(),
            // Of what Svix calls a validation error.
            Value::Array(places) => places.iter().map(place_text).collect::<Vec<_>>().join("; "),
            _ => panic!("no detail in {:?}", self.body),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// That this is an error of `/api/v1` as the contract wants it.
    #[track_caller]
    pub fn assert_error(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.detail());
        assert_eq!(self.header("content-type"), Some("application/json"));
        let body = self.json();
        assert_eq!(body["detail"].is_array(), status == 422, "{body}");
        let members: Vec<&String> = body.as_object().unwrap().keys().collect();
        assert_eq!(members, ["code", "detail"]);
    }

    /// That this is a problem as the contract wants it.
    #[track_caller]
    pub fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.detail());
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let body = self.json();
        assert_eq!(body["status"], status);
        assert!(body["type"].is_string() && body["title"].is_string(), "{body}");
    }
}

fn place_text(place: &Value) -> String {
    assert_eq!(place["type"], "value_error");
    let steps = place["loc"].as_array().unwrap().iter().map(|step| step.as_str().unwrap());
    format!("{} {}", steps.collect::<Vec<_>>().join("."), place["msg"].as_str().unwrap())
}

impl Api {
    pub async fn send(&self, request: Request<impl Into<Bytes>>) -> Answer {
        let request = request.map(|body| Full::new(body.into()));
        read(self.edge.answer(CLIENT, request).await).await
    }

    /// With a JSON content type, where there is a body.
    pub async fn call(&self, method: &str, target: &str, body: impl Into<Bytes>) -> Answer {
        read(self.unread(method, target, body, &[]).await).await
    }

    /// As [`Api::call`], with more headers; the answer's body is not read yet.
    pub async fn unread(
        &self,
        method: &str,
        target: &str,
        body: impl Into<Bytes>,
        headers: &[(&str, &str)],
    ) -> Response<Body> {
        let body = body.into();
        let mut request = Request::builder().method(method).uri(target);
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.edge.answer(CLIENT, request.body(Full::new(body)).unwrap()).await
    }

    pub async fn check(&self, body: &str) -> Answer {
        self.call("POST", "/v1/limits/check", body.to_owned()).await
    }
}

pub async fn read(response: Response<Body>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}
