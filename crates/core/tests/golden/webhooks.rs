//! Every command, reply, query and answer of webhooks, every kind of key, and stories that leave every kind of row.

use std::collections::BTreeMap;

use bytes::Bytes;
use onceward_core::{
    codec::keys as k,
    command::*,
    idempotency::{CompleteCommand, CompleteReply, PublishedMessage, Publishing},
    query::{Answer, Query},
    time::ShardTime,
    webhooks::*,
};

use crate::kit::{
    Shard,
    idempotency::{account, key, response},
    webhooks::{
        DAY_US, NONCE, RETENTION_US, acme, all_of_it, answered, creating, everything, message_with_id, name,
        operational, outcome, publishing, secret,
    },
};

const WALL_MS: u64 = 1_700_000_000_000;
const APP: &str = "app_000000000000001AbvLS5ieAWTS";
const ENDPOINT: &str = "ep_000000000000001AbvLS5ieAWTT";
const MESSAGE: &str = "msg_000000000000001AbvLS5ieAWTU";
const ATTEMPT: &str = "atmpt_000000000000001AbvLS5ieAWTV";

fn app_id() -> AppId {
    AppId::parse(APP).unwrap()
}

fn endpoint_id() -> EndpointId {
    EndpointId::parse(ENDPOINT).unwrap()
}

fn message_id() -> MessageId {
    MessageId::parse(MESSAGE).unwrap()
}

fn attempt_id() -> DeliveryAttemptId {
    DeliveryAttemptId::parse(ATTEMPT).unwrap()
}

fn metadata() -> BTreeMap<String, String> {
    [("ü".to_owned(), "1".to_owned())].into()
}

fn app_spec() -> AppSpec {
    AppSpec { name: "Acme".to_owned(), rate_limit: Some(100), metadata: metadata() }
}

fn endpoint_spec() -> EndpointSpec {
    EndpointSpec {
        url: "https://receiver.example/hook?a=b".to_owned(),
        description: "ü".to_owned(),
        rate_limit: Some(50),
        disabled: true,
        event_types: Some([name("invoice.paid")].into()),
        channels: Some(["eu".to_owned()].into()),
        metadata: metadata(),
    }
}

fn headers() -> Headers {
    [("X-Key".to_owned(), "value".to_owned())].into()
}

fn event_type_spec() -> EventTypeSpec {
    EventTypeSpec {
        description: "An invoice was paid".to_owned(),
        archived: false,
        deprecated: true,
        feature_flag: Some(name("beta")),
        group_name: Some(name("invoice")),
        schemas: Some("{\"1\":{}}".to_owned()),
    }
}

fn new_message() -> NewMessage {
    NewMessage {
        event_type: name("invoice.paid"),
        event_id: Some(name("evt-1")),
        channels: vec!["eu".to_owned()],
        tags: vec!["t".to_owned()],
        payload: Bytes::from_static("{\"id\": \"ü\"}".as_bytes()),
        payload_retention_us: Some(DAY_US),
    }
}

fn actions() -> Vec<Action> {
    let (by_id, by_uid) = (AppRef::Id(app_id()), acme());
    let (endpoint, of_uid) = (EndpointRef::Id(endpoint_id()), EndpointRef::Uid(name("hook")));
    let full_patch = EndpointPatch {
        uid: Some(Some(name("new"))),
        url: Some("https://other.example".to_owned()),
        description: Some(String::new()),
        rate_limit: Some(Some(1)),
        disabled: Some(false),
        event_types: Some(None),
        channels: Some(Some(["us".to_owned()].into())),
        metadata: Some(BTreeMap::new()),
    };
    let app_patch = AppPatch {
        name: Some("New".to_owned()),
        rate_limit: Some(None),
        metadata: Some(metadata()),
        uid: Some(Some(name("acme"))),
    };
    let event_type_patch = EventTypePatch {
        description: Some(String::new()),
        archived: Some(true),
        deprecated: Some(false),
        feature_flag: Some(None),
        group_name: Some(Some(name("g"))),
        schemas: Some(None),
    };
    let set = [("X-Key".to_owned(), Some("v".to_owned())), ("X-Gone".to_owned(), None)];
    let of_type = || name("invoice.paid");
    let mut actions = vec![
        Action::CreateApp(CreateApp { uid: Some(name("acme")), spec: app_spec(), get_if_exists: true }),
        Action::PutApp(PutApp { app: by_uid.clone(), uid: None, spec: app_spec() }),
        Action::PatchApp(PatchApp { app: by_id.clone(), patch: app_patch }),
        Action::PatchApp(PatchApp { app: by_id.clone(), patch: AppPatch::default() }),
        Action::DeleteApp { app: by_id.clone() },
        Action::CreateEndpoint(CreateEndpoint {
            app: by_uid.clone(),
            uid: Some(name("hook")),
            spec: endpoint_spec(),
            headers: headers(),
            secret: secret(1),
        }),
        creating(AppRef::Operational, None, everything()),
        Action::PutEndpoint(PutEndpoint {
            app: by_id.clone(),
            endpoint: of_uid.clone(),
            uid: None,
            spec: endpoint_spec(),
            secret: secret(2),
        }),
        Action::PatchEndpoint(PatchEndpoint { app: by_id.clone(), endpoint: endpoint.clone(), patch: full_patch }),
        Action::DeleteEndpoint(DeleteEndpoint { app: by_id.clone(), endpoint: endpoint.clone() }),
        Action::SetHeaders(SetHeaders { app: by_id.clone(), endpoint: of_uid, patch: true, headers: set.into() }),
        Action::RotateSecret(RotateSecret { app: by_uid, endpoint, secret: secret(3), grace_us: DAY_US }),
        Action::Publish(Publish { app: by_id, message: new_message(), retention_us: RETENTION_US }),
    ];
    actions.extend(
        [
            EventTypeChange::Create { name: of_type(), spec: event_type_spec() },
            EventTypeChange::Put { name: of_type(), spec: event_type_spec() },
            EventTypeChange::Patch { name: of_type(), patch: event_type_patch },
            EventTypeChange::Delete { name: of_type(), expunge: true },
        ]
        .map(Action::EventType),
    );
    actions
}

fn outcomes() -> RecordOutcomes {
    let endpoint = EndpointKey { app: app_id(), endpoint: endpoint_id() };
    let verdicts = [Verdict::Succeeded, Verdict::Retry { after_us: 5_000_000 }, Verdict::Exhausted, Verdict::Gone];
    RecordOutcomes {
        outcomes: verdicts.map(|verdict| outcome(endpoint, message_id(), 3, verdict)).into(),
        disable_after_us: 5 * DAY_US,
        retention_us: RETENTION_US,
        wall_ms: WALL_MS,
    }
}

fn operational_endpoint() -> OperationalEndpoint {
    OperationalEndpoint {
        uid: Some(name("ops")),
        headers: headers(),
        former: vec![(secret(4), DAY_US)],
        ..operational(endpoint_id())
    }
}

pub fn commands() -> Vec<Command> {
    let request = RequestKey { scope: "token".to_owned(), key: key("8e03978e-40d5"), fingerprint: [5; 32] };
    let of = |action: Action, request: Option<RequestKey>| {
        Command::Webhook(Box::new(WebhookCommand { action, request, nonce: [1, 2, 3, 4, 5, 255], wall_ms: WALL_MS }))
    };
    let mut commands: Vec<Command> = actions().into_iter().map(|action| of(action, None)).collect();
    commands.push(of(actions().remove(12), Some(request)));
    commands.push(Command::RecordOutcomes(outcomes()));
    let copy = CopyOperational { revision: 7, endpoints: vec![operational_endpoint()] };
    commands.push(Command::CopyOperational(copy));
    commands.push(Command::Complete(CompleteCommand {
        account: account("acme"),
        key: key("k"),
        token: 4_711,
        response: response("ok"),
        wall_ms: WALL_MS,
        publishing: Publishing { messages: vec![new_message()], retention_us: RETENTION_US, nonce: NONCE },
    }));
    commands
}

fn app_view() -> AppView {
    let (created_wall_ms, updated_wall_ms) = (WALL_MS, WALL_MS + 1);
    AppView { id: app_id(), uid: Some(name("acme")), spec: app_spec(), created_wall_ms, updated_wall_ms }
}

fn endpoint_view() -> EndpointView {
    let (created_wall_ms, updated_wall_ms) = (WALL_MS, WALL_MS + 1);
    EndpointView { id: endpoint_id(), uid: Some(name("hook")), spec: endpoint_spec(), created_wall_ms, updated_wall_ms }
}

fn event_type_view() -> EventTypeView {
    let (created_wall_ms, updated_wall_ms) = (WALL_MS, WALL_MS + 1);
    EventTypeView { name: name("invoice.paid"), spec: event_type_spec(), created_wall_ms, updated_wall_ms }
}

fn message_view(payload: Option<Bytes>) -> MessageView {
    let NewMessage { event_type, event_id, channels, tags, .. } = new_message();
    MessageView { id: message_id(), event_id, event_type, channels, tags, created_wall_ms: WALL_MS, payload }
}

pub fn replies() -> Vec<Reply> {
    let refusals = [
        Refusal::NoApp,
        Refusal::NoEndpoint,
        Refusal::NoEventType,
        Refusal::Taken,
        Refusal::UidFixed,
        Refusal::TooMany { max: 100 },
        Refusal::HeadersTooLarge,
        Refusal::TooManySecrets,
        Refusal::EventIdTaken,
        Refusal::RequestMismatch,
    ];
    let mut replies = vec![
        WebhookReply::App { app: app_view(), created: true },
        WebhookReply::Endpoint { endpoint: endpoint_view(), created: false },
        WebhookReply::EventType { event_type: event_type_view(), created: true },
        WebhookReply::Published { message: message_view(None), repeated: true },
        WebhookReply::Done,
    ];
    replies.extend(refusals.map(WebhookReply::Refused));
    let mut replies: Vec<Reply> = replies.into_iter().map(|reply| Reply::Webhook(Box::new(reply))).collect();
    let messages = vec![
        PublishedMessage { id: message_id(), event_id: Some(name("evt-1")) },
        PublishedMessage { id: message_id(), event_id: None },
    ];
    let (completed_wall_ms, expires_wall_ms) = (WALL_MS, WALL_MS + 86_400_000);
    let completed = CompleteReply::Completed { completed_wall_ms, expires_wall_ms, messages };
    replies.extend([
        Reply::RecordOutcomes { recorded: 3 },
        Reply::CopyOperational { revision: 7 },
        Reply::Complete(completed),
        Reply::Complete(CompleteReply::MessageRefused { index: 1, refusal: Refusal::EventIdTaken }),
    ]);
    replies
}

pub fn queries() -> Vec<Query> {
    let (app, endpoint) = (acme(), EndpointRef::Id(endpoint_id()));
    let (message, of_event) = (MessageRef::Id(message_id()), MessageRef::EventId(name("evt-1")));
    let page = all_of_it();
    let behind = PageIn { cursor: Some(message_id().0), backwards: true, descending: true, limit: 50 };
    let filter = MessageFilter {
        event_types: Some(vec![name("invoice.paid")]),
        channel: Some("eu".to_owned()),
        tag: Some("t".to_owned()),
        before_wall_ms: Some(WALL_MS),
        after_wall_ms: Some(1),
    };
    let attempts = AttemptFilter {
        message: filter.clone(),
        status: Some(AttemptStatus::Retrying),
        status_code_class: Some(5),
        endpoint: Some(endpoint.clone()),
    };
    let of_type = |backwards| WebhookQuery::EventTypes {
        cursor: Some(name("invoice.paid")).filter(|_| backwards),
        backwards,
        descending: true,
        include_archived: false,
        limit: 50,
    };
    let queries = vec![
        WebhookQuery::App { app: AppRef::Id(app_id()) },
        WebhookQuery::Apps { page },
        WebhookQuery::Endpoint { app: AppRef::Operational, endpoint: EndpointRef::Uid(name("ops")) },
        WebhookQuery::Endpoints { app: app.clone(), page: behind },
        WebhookQuery::Secret { app: app.clone(), endpoint: endpoint.clone() },
        WebhookQuery::Headers { app: app.clone(), endpoint: endpoint.clone() },
        WebhookQuery::Message { app: app.clone(), message: of_event.clone(), with_payload: true },
        WebhookQuery::Messages { app: app.clone(), filter, with_payload: false, page: behind },
        WebhookQuery::AttemptsOfMessage { app: app.clone(), message: message.clone(), filter: attempts.clone(), page },
        WebhookQuery::AttemptsOfEndpoint { app: app.clone(), endpoint, filter: attempts, page },
        WebhookQuery::Attempt { app: app.clone(), message, attempt: attempt_id() },
        WebhookQuery::Deliveries { app, message: of_event, page },
        WebhookQuery::EventType { name: name("invoice.paid") },
        of_type(false),
        of_type(true),
        WebhookQuery::Operational,
        WebhookQuery::OperationalRevision,
    ];
    queries.into_iter().map(Query::Webhook).collect()
}

pub fn answers() -> Vec<Answer> {
    let attempt = |status| AttemptView {
        id: attempt_id(),
        endpoint: endpoint_id(),
        message: message_id(),
        status,
        answer: answered(502),
    };
    let attempts = [AttemptStatus::Succeeded, AttemptStatus::Retrying, AttemptStatus::Failed].map(attempt);
    let delivery = |(status, endpoint): (DeliveryStatus, Option<EndpointView>)| DeliveryView {
        next_attempt_wall_ms: endpoint.is_some().then_some(WALL_MS),
        endpoint,
        endpoint_id: endpoint_id(),
        status,
    };
    let deliveries = [
        (DeliveryStatus::Pending, Some(endpoint_view())),
        (DeliveryStatus::Succeeded, None),
        (DeliveryStatus::Failed, None),
        (DeliveryStatus::Withheld, None),
    ];
    let missing = [Missing::App, Missing::Endpoint, Missing::Message, Missing::Attempt, Missing::EventType];
    let mut answers = vec![
        WebhookAnswer::App(app_view()),
        WebhookAnswer::Apps(page_of(vec![app_view()])),
        WebhookAnswer::Endpoint(endpoint_view()),
        WebhookAnswer::Endpoints(page_of(vec![endpoint_view()])),
        WebhookAnswer::Secret(secret(1)),
        WebhookAnswer::Headers(headers()),
        WebhookAnswer::Message(message_view(Some(new_message().payload))),
        WebhookAnswer::Messages(Page { items: vec![], done: true, cursor: None }),
        WebhookAnswer::Messages(page_of(vec![message_view(None)])),
        WebhookAnswer::Attempt(attempts[0].clone()),
        WebhookAnswer::Attempts(page_of(attempts.into())),
        WebhookAnswer::Deliveries(page_of(deliveries.map(delivery).into())),
        WebhookAnswer::EventType(event_type_view()),
        WebhookAnswer::EventTypes { items: vec![event_type_view()], done: true },
        WebhookAnswer::Operational(CopyOperational { revision: 7, endpoints: vec![operational_endpoint()] }),
        WebhookAnswer::OperationalRevision(7),
    ];
    answers.extend(missing.map(WebhookAnswer::NotFound));
    answers.into_iter().map(Answer::Webhook).collect()
}

fn page_of<T>(items: Vec<T>) -> Page<T> {
    Page { items, done: false, cursor: Some(message_id().0) }
}

pub fn keys() -> Vec<(&'static str, Bytes)> {
    let endpoint = EndpointKey { app: app_id(), endpoint: endpoint_id() };
    vec![
        ("ids", k::IDS.clone()),
        ("app", k::app(app_id())),
        ("app_uid", k::app_uid("acme")),
        ("rows_of_app", k::rows_of_app(k::Kind::Message, app_id())),
        ("endpoint", k::endpoint(endpoint)),
        ("endpoint_uid", k::endpoint_uid(app_id(), "hook")),
        ("endpoint_state", k::endpoint_state(endpoint)),
        ("message", k::message(app_id(), message_id())),
        ("payload", k::payload(app_id(), message_id())),
        ("event_id", k::event_id(app_id(), "evt-1")),
        ("delivery", k::delivery(endpoint, message_id())),
        ("deliveries_of", k::deliveries_of(app_id(), message_id())),
        ("delivery_due", k::delivery_due(endpoint, DueItem { at: ShardTime(1 << 40), message: message_id() })),
        ("due_of", k::due_of(endpoint)),
        ("attempt", k::attempt(app_id(), message_id(), attempt_id())),
        ("attempts_of", k::attempts_of(app_id(), message_id())),
        ("attempt_of_endpoint", k::attempt_of_endpoint(endpoint, attempt_id())),
        ("attempts_of_endpoint", k::attempts_of_endpoint(endpoint)),
        ("request", k::request("token", "8e03978e-40d5")),
        ("clearing_app", k::clearing_app(app_id())),
        ("clearing_endpoint", k::clearing_endpoint(endpoint)),
        ("event_type", k::event_type("invoice.paid")),
        ("event_types", k::EVENT_TYPES.clone()),
        ("operational_revision", k::OPERATIONAL_REVISION.clone()),
    ]
}

/// Every kind of row, and of them every form.
pub fn data_shard() -> Shard {
    let mut shard = Shard::data();
    let create = CreateApp { uid: Some(name("acme")), spec: app_spec(), get_if_exists: false };
    shard.act(Action::CreateApp(create));
    let to_be_deleted = shard.create_app(None).id;
    shard.copy_operational(7, vec![operational_endpoint()]);
    let all = shard.endpoint(everything());
    let hook = EndpointSpec { disabled: false, ..endpoint_spec() };
    let (headers, secret_1) = (headers(), secret(1));
    shard.act(Action::CreateEndpoint(CreateEndpoint {
        app: acme(),
        uid: Some(name("hook")),
        spec: hook,
        headers,
        secret: secret_1,
    }));
    let disabled = shard.endpoint(EndpointSpec { disabled: true, ..everything() });
    let to_be_deleted_too = shard.endpoint(everything());
    shard.rotate(all, secret(2), DAY_US);
    shard.now += 1_000_000;
    let first = shard.publish(new_message());
    let second = shard.publish(message_with_id("evt-2", "[]"));
    let third = shard.publish(message_with_id("evt-3", "null"));
    shard.report_one(all, first, 0, Verdict::Retry { after_us: 5_000_000 });
    shard.report_one(all, second, 0, Verdict::Exhausted);
    shard.report_one(all, third, 0, Verdict::Succeeded);
    shard.report_one(all, first, 1, Verdict::Retry { after_us: 300_000_000 });
    shard.set_disabled(disabled, false);
    shard.act_once("token", "8e03978e-40d5", 5, publishing(message_with_id("evt-4", "{}")));
    let token = shard.start(shard.beginning("attempt-1"));
    shard.complete_with(token, vec![message_with_id("evt-5", "{}")]);
    shard.delete_endpoint(to_be_deleted_too);
    shard.act(Action::DeleteApp { app: AppRef::Id(to_be_deleted) });
    shard
}

pub fn system_shard() -> Shard {
    let mut shard = Shard::system();
    let endpoint = shard.endpoint_of(AppRef::Operational, Some("ops"), everything()).endpoint;
    shard.endpoint_of(AppRef::Operational, None, endpoint_spec());
    let (app, endpoint) = (AppRef::Operational, EndpointRef::Id(endpoint));
    shard.act(Action::RotateSecret(RotateSecret { app, endpoint, secret: secret(3), grace_us: DAY_US }));
    for of in ["invoice.paid", "invoice.sent"] {
        let put = EventTypeChange::Put { name: name(of), spec: event_type_spec() };
        shard.act_once("token", of, 6, Action::EventType(put));
    }
    shard.act(Action::EventType(EventTypeChange::Delete { name: name("invoice.sent"), expunge: false }));
    shard
}
