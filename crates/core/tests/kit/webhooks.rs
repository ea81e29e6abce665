//! Short words for webhooks: most tests need one application, `acme`, which is the account of the keys, too.

use std::collections::BTreeMap;

use bytes::Bytes;
use onceward_core::{
    codec::{self, keys, keys::Kind},
    command::{Command, Reply},
    idempotency::{CompleteCommand, CompleteReply, Key, Publishing},
    query::{Answer, Query},
    time::ShardTime,
    webhooks::*,
};

use super::{
    Shard, as_others_read_it,
    idempotency::{account, key, response},
};

pub const DAY_US: u64 = 86_400_000_000;
pub const RETENTION_US: u64 = 90 * DAY_US;
pub const DISABLE_AFTER_US: u64 = 5 * DAY_US;
/// Ids need no chance here: clock and counter tell them apart.
pub const NONCE: Nonce = [7; 6];

pub fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

pub fn acme() -> AppRef {
    AppRef::Uid(name("acme"))
}

pub fn secret(fill: u8) -> Secret {
    Secret::new(Bytes::from(vec![fill; 24])).expect("24 bytes")
}

/// Of an endpoint that wants everything.
pub fn everything() -> EndpointSpec {
    EndpointSpec {
        url: "https://receiver.example/hook".to_owned(),
        description: String::new(),
        rate_limit: None,
        disabled: false,
        event_types: None,
        channels: None,
        metadata: BTreeMap::new(),
    }
}

/// Of an endpoint that wants these types, if there are any, on these channels, if there are any.
pub fn wanting(types: &[&str], channels: &[&str]) -> EndpointSpec {
    EndpointSpec {
        event_types: Some(types).filter(|types| !types.is_empty()).map(|all| all.iter().map(|one| name(one)).collect()),
        channels: Some(channels)
            .filter(|channels| !channels.is_empty())
            .map(|all| all.iter().map(|&one| one.to_owned()).collect()),
        ..everything()
    }
}

pub fn message(payload: &str) -> NewMessage {
    NewMessage {
        event_type: name("invoice.paid"),
        event_id: None,
        channels: Vec::new(),
        tags: Vec::new(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        payload_retention_us: None,
    }
}

pub fn message_with_id(event_id: &str, payload: &str) -> NewMessage {
    NewMessage { event_id: Some(name(event_id)), ..message(payload) }
}

pub fn answered(status_code: u16) -> ReceiverAnswer {
    ReceiverAnswer {
        status_code,
        body: "body".to_owned(),
        truncated: false,
        duration_ms: 12,
        started_wall_ms: 1_700_000_000_000,
        url: "https://receiver.example/hook".to_owned(),
    }
}

pub fn outcome(endpoint: EndpointKey, message: MessageId, tries_before: u16, verdict: Verdict) -> Outcome {
    let status_code = match verdict {
        Verdict::Succeeded => 200,
        Verdict::Retry { .. } | Verdict::Exhausted => 500,
        Verdict::Gone => 410,
    };
    Outcome {
        app: endpoint.app,
        endpoint: endpoint.endpoint,
        message,
        tries_before,
        nonce: NONCE,
        answer: answered(status_code),
        verdict,
    }
}

pub fn all_of_it() -> PageIn {
    PageIn { cursor: None, backwards: false, descending: false, limit: 250 }
}

/// A delivery as its row spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredDelivery {
    pub sequence: u64,
    pub tries: u16,
    pub status: DeliveryStatus,
    pub due: Option<ShardTime>,
}

impl StoredDelivery {
    pub fn read(bytes: &[u8]) -> StoredDelivery {
        type Row = (u64, u16, DeliveryStatus, Option<(ShardTime, u64)>);
        let (sequence, tries, status, due): Row = codec::decode(bytes).expect("a delivery's row");
        StoredDelivery { sequence, tries, status, due: due.map(|(at, _)| at) }
    }
}

impl Shard {
    /// A data shard with the application `acme`.
    pub fn with_acme() -> Shard {
        let mut shard = Shard::data();
        shard.app("acme");
        shard
    }

    pub fn webhook(&self, action: Action) -> WebhookCommand {
        WebhookCommand { action, request: None, nonce: NONCE, wall_ms: self.wall_ms() }
    }

    pub fn act(&mut self, action: Action) -> WebhookReply {
        let command = self.webhook(action);
        self.webhook_reply(command)
    }

    /// With an `idempotency-key`; what the call is, its fingerprint says.
    pub fn act_once(&mut self, scope: &str, key: &str, fingerprint: u8, action: Action) -> WebhookReply {
        let key = Key::parse(key).expect("a key");
        let request = RequestKey { scope: scope.to_owned(), key, fingerprint: [fingerprint; 32] };
        let command = WebhookCommand { request: Some(request), ..self.webhook(action) };
        self.webhook_reply(command)
    }

    fn webhook_reply(&mut self, command: WebhookCommand) -> WebhookReply {
        match self.apply(Command::Webhook(Box::new(command))) {
            Reply::Webhook(reply) => *reply,
            other => panic!("{other:?}"),
        }
    }

    /// What is refused changes nothing.
    pub fn refused(&mut self, action: Action) -> Refusal {
        self.apply_all(vec![]);
        let rows = self.rows.clone();
        match self.act(action) {
            WebhookReply::Refused(refusal) => {
                assert_eq!(self.rows, rows);
                refusal
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn app(&mut self, uid: &str) -> AppView {
        self.create_app(Some(uid))
    }

    pub fn create_app(&mut self, uid: Option<&str>) -> AppView {
        let create = CreateApp { uid: uid.map(name), spec: app_spec("Acme"), get_if_exists: false };
        match self.act(Action::CreateApp(create)) {
            WebhookReply::App { app, created: true } => app,
            other => panic!("{other:?}"),
        }
    }

    pub fn app_id(&self) -> AppId {
        match self.look(WebhookQuery::App { app: acme() }) {
            WebhookAnswer::App(app) => app.id,
            other => panic!("{other:?}"),
        }
    }

    /// An endpoint of `acme`.
    pub fn endpoint(&mut self, spec: EndpointSpec) -> EndpointKey {
        self.endpoint_of(acme(), None, spec)
    }

    pub fn endpoint_of(&mut self, app: AppRef, uid: Option<&str>, spec: EndpointSpec) -> EndpointKey {
        match self.act(creating(app.clone(), uid, spec)) {
            WebhookReply::Endpoint { endpoint, created: true } => {
                let app = if app == AppRef::Operational { AppId::OPERATIONAL } else { self.app_id_of(app) };
                EndpointKey { app, endpoint: endpoint.id }
            }
            other => panic!("{other:?}"),
        }
    }

    fn app_id_of(&self, app: AppRef) -> AppId {
        match self.look(WebhookQuery::App { app }) {
            WebhookAnswer::App(app) => app.id,
            other => panic!("{other:?}"),
        }
    }

    pub fn patch(&mut self, endpoint: EndpointKey, patch: EndpointPatch) -> EndpointView {
        let endpoint = EndpointRef::Id(endpoint.endpoint);
        match self.act(Action::PatchEndpoint(PatchEndpoint { app: acme(), endpoint, patch })) {
            WebhookReply::Endpoint { endpoint, created: false } => endpoint,
            other => panic!("{other:?}"),
        }
    }

    pub fn set_disabled(&mut self, endpoint: EndpointKey, disabled: bool) {
        let patch = EndpointPatch { disabled: Some(disabled), ..EndpointPatch::default() };
        assert_eq!(self.patch(endpoint, patch).spec.disabled, disabled);
    }

    pub fn delete_endpoint(&mut self, endpoint: EndpointKey) {
        let endpoint = EndpointRef::Id(endpoint.endpoint);
        let delete = Action::DeleteEndpoint(DeleteEndpoint { app: acme(), endpoint });
        assert_eq!(self.act(delete), WebhookReply::Done);
    }

    pub fn rotate(&mut self, endpoint: EndpointKey, secret: Secret, grace_us: u64) -> WebhookReply {
        let endpoint = EndpointRef::Id(endpoint.endpoint);
        self.act(Action::RotateSecret(RotateSecret { app: acme(), endpoint, secret, grace_us }))
    }

    /// Publishes what was not published before.
    pub fn publish(&mut self, message: NewMessage) -> MessageId {
        match self.publish_again(message) {
            (id, false) => id,
            (id, true) => panic!("{id} was published before"),
        }
    }

    /// The message, and whether it was there before.
    pub fn publish_again(&mut self, message: NewMessage) -> (MessageId, bool) {
        match self.act(publishing(message)) {
            WebhookReply::Published { message, repeated } => (message.id, repeated),
            other => panic!("{other:?}"),
        }
    }

    /// Completes the one key together with messages.
    pub fn complete_with(&mut self, token: u64, messages: Vec<NewMessage>) -> CompleteReply {
        let publishing = Publishing { messages, retention_us: RETENTION_US, nonce: NONCE };
        let (account, key, response, wall_ms) = (account("acme"), key("k"), response("ok"), self.wall_ms());
        match self.apply(Command::Complete(CompleteCommand { account, key, token, response, wall_ms, publishing })) {
            Reply::Complete(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn recording(&self, outcomes: Vec<Outcome>) -> RecordOutcomes {
        let wall_ms = self.wall_ms();
        RecordOutcomes { outcomes, disable_after_us: DISABLE_AFTER_US, retention_us: RETENTION_US, wall_ms }
    }

    /// Reports outcomes; returns how many of them changed something.
    pub fn report(&mut self, outcomes: Vec<Outcome>) -> u32 {
        let command = Command::RecordOutcomes(self.recording(outcomes));
        match self.apply(command) {
            Reply::RecordOutcomes { recorded } => recorded,
            other => panic!("{other:?}"),
        }
    }

    /// Reports one, which changes something.
    pub fn report_one(&mut self, endpoint: EndpointKey, message: MessageId, tries_before: u16, verdict: Verdict) {
        assert_eq!(self.report(vec![outcome(endpoint, message, tries_before, verdict)]), 1);
    }

    /// Copies these operational endpoints, as of a revision; returns the revision that the shard has then.
    pub fn copy_operational(&mut self, revision: u64, endpoints: Vec<OperationalEndpoint>) -> u64 {
        match self.apply(Command::CopyOperational(CopyOperational { revision, endpoints })) {
            Reply::CopyOperational { revision } => revision,
            other => panic!("{other:?}"),
        }
    }

    pub fn look(&self, query: WebhookQuery) -> WebhookAnswer {
        match as_others_read_it(self.ask(as_others_read_it(Query::Webhook(query)))) {
            Answer::Webhook(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub fn view_of(&self, endpoint: EndpointKey) -> EndpointView {
        match self.look(WebhookQuery::Endpoint { app: acme(), endpoint: EndpointRef::Id(endpoint.endpoint) }) {
            WebhookAnswer::Endpoint(view) => view,
            other => panic!("{other:?}"),
        }
    }

    pub fn payload_of(&self, message: MessageId) -> Option<Bytes> {
        let message = MessageRef::Id(message);
        match self.look(WebhookQuery::Message { app: acme(), message, with_payload: true }) {
            WebhookAnswer::Message(message) => message.payload,
            other => panic!("{other:?}"),
        }
    }

    pub fn attempts_of(&self, message: MessageId) -> Vec<AttemptView> {
        let (message, filter, page) = (MessageRef::Id(message), AttemptFilter::default(), all_of_it());
        match self.look(WebhookQuery::AttemptsOfMessage { app: acme(), message, filter, page }) {
            WebhookAnswer::Attempts(page) => page.items,
            other => panic!("{other:?}"),
        }
    }

    pub fn deliveries_of(&self, message: MessageId) -> Vec<DeliveryView> {
        match self.look(WebhookQuery::Deliveries { app: acme(), message: MessageRef::Id(message), page: all_of_it() }) {
            WebhookAnswer::Deliveries(page) => page.items,
            other => panic!("{other:?}"),
        }
    }

    /// What stands of a message for an endpoint; `None`: it did not match.
    pub fn status(&self, endpoint: EndpointKey, message: MessageId) -> Option<DeliveryStatus> {
        self.delivery(endpoint, message).map(|delivery| delivery.status)
    }

    pub fn delivery(&self, endpoint: EndpointKey, message: MessageId) -> Option<StoredDelivery> {
        self.rows.state.get(&keys::delivery(endpoint, message)).map(|bytes| StoredDelivery::read(bytes))
    }

    /// Everything that is pending of an endpoint, due or not.
    pub fn pending(&self, endpoint: EndpointKey) -> Vec<DueItem> {
        due(&self.rows, endpoint, ShardTime(u64::MAX), None, 10_000).expect("memory rows are sound").0
    }

    /// What is due of an endpoint by now.
    pub fn due_now(&self, endpoint: EndpointKey) -> Vec<MessageId> {
        let (items, _) = due(&self.rows, endpoint, ShardTime(self.now), None, 10_000).expect("memory rows are sound");
        items.iter().map(|item| item.message).collect()
    }

    pub fn target_of(&self, endpoint: EndpointKey) -> Option<Target> {
        target(&self.rows, endpoint, ShardTime(self.now)).expect("memory rows are sound")
    }

    /// Secrets that a delivery would be signed with at this moment.
    pub fn secrets_of(&self, endpoint: EndpointKey) -> Vec<Secret> {
        self.target_of(endpoint).expect("a target").secrets
    }

    pub fn rows_of(&self, kind: Kind) -> usize {
        self.rows
            .state
            .range(Bytes::copy_from_slice(&kind.prefix())..)
            .take_while(|(key, _)| key[0] == kind as u8)
            .count()
    }

    /// The messages to operational endpoints, oldest first: their types and bodies.
    pub fn notices(&self) -> Vec<serde_json::Value> {
        let prefix = keys::rows_of_app(Kind::Payload, AppId::OPERATIONAL);
        let rows = self.rows.state.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        rows.map(|(_, payload)| serde_json::from_slice(payload).expect("JSON")).collect()
    }

    /// The due index has each pending delivery of an endpoint that is there once, at its time, and no other but those
    /// of endpoints that are being cleared away. A pending one has its payload.
    pub(super) fn assert_what_is_pending_is_due(&self) {
        let of_kind = |kind: Kind| {
            let from = Bytes::copy_from_slice(&kind.prefix());
            self.rows.state.range(from..).take_while(move |(key, _)| key[0] == kind as u8)
        };
        let is_there = |endpoint: EndpointKey| self.rows.state.contains_key(&keys::endpoint(endpoint));
        let mut pending = 0;
        for (row, value) in of_kind(Kind::Delivery) {
            let ids: Vec<Id> = keys::ids(row).collect();
            let (endpoint, message) =
                (EndpointKey { app: AppId(ids[0]), endpoint: EndpointId(ids[2]) }, MessageId(ids[1]));
            let delivery = StoredDelivery::read(value);
            assert_eq!(delivery.due.is_some(), delivery.status == DeliveryStatus::Pending);
            let Some(at) = delivery.due.filter(|_| is_there(endpoint)) else { continue };
            let item = DueItem { at, message };
            assert!(self.rows.state.contains_key(&keys::delivery_due(endpoint, item)), "{delivery:?} is never due");
            assert!(self.rows.state.contains_key(&keys::payload(endpoint.app, message)), "{delivery:?} has no payload");
            pending += 1;
        }
        let due = of_kind(Kind::Due).filter_map(|(row, _)| keys::parse_delivery_due(row));
        assert_eq!(due.filter(|(endpoint, _)| is_there(*endpoint)).count(), pending, "nothing else is due");
    }
}

pub fn app_spec(name: &str) -> AppSpec {
    AppSpec { name: name.to_owned(), rate_limit: None, metadata: BTreeMap::new() }
}

pub fn creating(app: AppRef, uid: Option<&str>, spec: EndpointSpec) -> Action {
    let (uid, headers, secret) = (uid.map(name), Headers::new(), secret(1));
    Action::CreateEndpoint(CreateEndpoint { app, uid, spec, headers, secret })
}

pub fn publishing(message: NewMessage) -> Action {
    Action::Publish(Publish { app: acme(), message, retention_us: RETENTION_US })
}

/// An operational endpoint that wants everything; its id is that of an endpoint of the system shard.
pub fn operational(id: EndpointId) -> OperationalEndpoint {
    OperationalEndpoint {
        id,
        uid: None,
        spec: everything(),
        headers: Headers::new(),
        secret: secret(9),
        former: Vec::new(),
        created_wall_ms: 1,
        updated_wall_ms: 1,
    }
}

/// Ids of endpoints that a system shard made.
pub fn operational_ids(number: usize) -> Vec<EndpointId> {
    let mut system = Shard::system();
    (0..number).map(|_| system.endpoint_of(AppRef::Operational, None, everything()).endpoint).collect()
}

pub fn operational_key(endpoint: EndpointId) -> EndpointKey {
    EndpointKey { app: AppId::OPERATIONAL, endpoint }
}
