//! Webhooks in commands that no API would let through, on rows that hold anything, at the end of time.

use std::{collections::BTreeMap, sync::LazyLock};

use bytes::Bytes;
use onceward_core::{
    codec::{
        self,
        keys::{self, Kind},
    },
    command::*,
    idempotency::{Account, Body, CompleteCommand, HeaderValues, Key, Publishing, Response, bounds as key_bounds},
    query::{Answer, Query, answer},
    rows::{ReadRows, Table},
    time::ShardTime,
    webhooks::{bounds::*, *},
};
use proptest::{collection::vec, prelude::*, sample::select};

use super::{
    batch_of,
    kit::{
        Shard,
        idempotency::{account, key, response},
        webhooks::*,
    },
    number,
};

/// The ids in [`shard`].
struct Known {
    apps: Vec<AppId>,
    endpoints: Vec<EndpointId>,
    messages: Vec<MessageId>,
    attempts: Vec<DeliveryAttemptId>,
}

static KNOWN: LazyLock<Known> = LazyLock::new(|| known().1);

/// With one of everything.
pub fn shard() -> Shard {
    known().0
}

fn known() -> (Shard, Known) {
    let mut shard = Shard::data();
    let mut apps = vec![shard.app("a").id, shard.app("acme").id, shard.create_app(None).id];
    let operational_id = operational_ids(1)[0];
    shard.copy_operational(1, vec![operational(operational_id)]);
    let endpoint = shard.endpoint_of(acme(), Some("hook"), everything());
    let disabled = shard.endpoint(EndpointSpec { disabled: true, ..everything() });
    shard.rotate(endpoint, secret(2), DAY_US);
    let sensitive = NewMessage { payload_retention_us: Some(DAY_US), ..message_with_id("evt", "{}") };
    let messages = vec![shard.publish(sensitive), shard.publish(message("{}"))];
    shard.report_one(endpoint, messages[0], 0, Verdict::Retry { after_us: 1 });
    shard.report_one(endpoint, messages[1], 0, Verdict::Exhausted);
    shard.act_once("scope", "k", 1, publishing(message("{}")));
    let gone = shard.endpoint(everything());
    shard.delete_endpoint(gone);
    let attempts = shard.attempts_of(messages[0]).iter().map(|attempt| attempt.id).collect();
    apps.push(AppId::OPERATIONAL);
    let endpoints = vec![endpoint.endpoint, disabled.endpoint, operational_id, gone.endpoint];
    (shard, Known { apps, endpoints, messages, attempts })
}

fn any_name() -> impl Strategy<Value = Name> {
    select(vec!["a", "acme", "hook", "evt", "invoice.paid", "x"]).prop_map(name)
}

fn any_app() -> impl Strategy<Value = AppRef> {
    prop_oneof![
        4 => any_name().prop_map(AppRef::Uid),
        2 => select(KNOWN.apps.clone()).prop_map(AppRef::Id),
        1 => Just(AppRef::Operational),
    ]
}

fn any_endpoint() -> impl Strategy<Value = EndpointRef> {
    prop_oneof![
        2 => any_name().prop_map(EndpointRef::Uid),
        4 => select(KNOWN.endpoints.clone()).prop_map(EndpointRef::Id),
    ]
}

fn any_message() -> impl Strategy<Value = MessageRef> {
    prop_oneof![any_name().prop_map(MessageRef::EventId), select(KNOWN.messages.clone()).prop_map(MessageRef::Id)]
}

fn any_app_spec() -> impl Strategy<Value = AppSpec> {
    (".{0,4}", any::<Option<u32>>()).prop_map(|(name, rate_limit)| AppSpec { rate_limit, ..app_spec(&name) })
}

fn any_endpoint_spec() -> impl Strategy<Value = EndpointSpec> {
    (any::<bool>(), any::<Option<u32>>(), any::<bool>(), ".{0,4}").prop_map(|(disabled, rate_limit, picky, url)| {
        let wants = if picky { wanting(&["invoice.paid"], &["", "eu"]) } else { everything() };
        EndpointSpec { disabled, rate_limit, url, ..wants }
    })
}

fn any_new_message() -> impl Strategy<Value = NewMessage> {
    let channels = vec(select(vec!["", "eu"]).prop_map(str::to_owned), 0..3);
    let retention = prop::option::of(number());
    (any_name(), prop::option::of(any_name()), channels, vec(any::<u8>(), 0..4), retention).prop_map(
        |(event_type, event_id, channels, payload, payload_retention_us)| NewMessage {
            event_type,
            event_id,
            tags: channels.clone(),
            channels,
            payload: payload.into(),
            payload_retention_us,
        },
    )
}

fn any_secret() -> impl Strategy<Value = Secret> {
    (0_u8..4).prop_map(secret)
}

fn event_type_change() -> impl Strategy<Value = EventTypeChange> {
    let spec = (any::<bool>(), ".{0,4}").prop_map(|(archived, description)| EventTypeSpec {
        description,
        archived,
        deprecated: archived,
        feature_flag: None,
        group_name: None,
        schemas: None,
    });
    (any_name(), spec, 0..4_u8, any::<bool>()).prop_map(|(name, spec, which, expunge)| match which {
        0 => EventTypeChange::Create { name, spec },
        1 => EventTypeChange::Put { name, spec },
        2 => EventTypeChange::Patch { name, patch: EventTypePatch { schemas: Some(None), ..Default::default() } },
        _ => EventTypeChange::Delete { name, expunge },
    })
}

fn action() -> impl Strategy<Value = Action> {
    let uid = || prop::option::of(any_name());
    let at = || (any_app(), any_endpoint());
    let headers = prop::collection::btree_map("[Xx]-[ab]", prop::option::of(".{0,4}"), 0..3);
    prop_oneof![
        1 => (uid(), any_app_spec(), any::<bool>())
            .prop_map(|(uid, spec, get_if_exists)| Action::CreateApp(CreateApp { uid, spec, get_if_exists })),
        1 => (any_app(), uid(), any_app_spec()).prop_map(|(app, uid, spec)| Action::PutApp(PutApp { app, uid, spec })),
        1 => (any_app(), prop::option::of(uid())).prop_map(|(app, uid)| {
            Action::PatchApp(PatchApp { app, patch: AppPatch { uid, rate_limit: Some(None), ..AppPatch::default() } })
        }),
        1 => any_app().prop_map(|app| Action::DeleteApp { app }),
        2 => (any_app(), uid(), any_endpoint_spec(), any_secret()).prop_map(|(app, uid, spec, secret)| {
            Action::CreateEndpoint(CreateEndpoint { app, uid, spec, headers: Headers::new(), secret })
        }),
        2 => (at(), uid(), any_endpoint_spec(), any_secret()).prop_map(|((app, endpoint), uid, spec, secret)| {
            Action::PutEndpoint(PutEndpoint { app, endpoint, uid, spec, secret })
        }),
        2 => (at(), prop::option::of(uid()), any::<Option<bool>>()).prop_map(|((app, endpoint), uid, disabled)| {
            let patch = EndpointPatch { uid, disabled, ..EndpointPatch::default() };
            Action::PatchEndpoint(PatchEndpoint { app, endpoint, patch })
        }),
        1 => at().prop_map(|(app, endpoint)| Action::DeleteEndpoint(DeleteEndpoint { app, endpoint })),
        1 => (at(), any::<bool>(), headers).prop_map(|((app, endpoint), patch, headers)| {
            Action::SetHeaders(SetHeaders { app, endpoint, patch, headers })
        }),
        2 => (at(), any_secret(), number()).prop_map(|((app, endpoint), secret, grace_us)| {
            Action::RotateSecret(RotateSecret { app, endpoint, secret, grace_us })
        }),
        5 => (any_app(), any_new_message(), number())
            .prop_map(|(app, message, retention_us)| Action::Publish(Publish { app, message, retention_us })),
        1 => event_type_change().prop_map(Action::EventType),
    ]
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    let verdict = prop_oneof![
        Just(Verdict::Succeeded),
        number().prop_map(|after_us| Verdict::Retry { after_us }),
        Just(Verdict::Exhausted),
        Just(Verdict::Gone),
    ];
    let ids = (select(KNOWN.apps.clone()), select(KNOWN.endpoints.clone()), select(KNOWN.messages.clone()));
    let tries = prop_oneof![4 => 0_u16..4, 1 => Just(u16::MAX), 1 => any::<u16>()];
    (ids, tries, verdict, any::<u16>(), number()).prop_map(
        |((app, endpoint, message), tries_before, verdict, status_code, started_wall_ms)| {
            let key = EndpointKey { app, endpoint };
            let answer = ReceiverAnswer { started_wall_ms, ..answered(status_code) };
            Outcome { answer, ..outcome(key, message, tries_before, verdict) }
        },
    )
}

/// What `complete` takes with it.
pub fn any_publishing() -> impl Strategy<Value = Publishing> {
    prop_oneof![
        3 => Just(Publishing::default()),
        1 => (vec(any_new_message(), 0..4), number(), any::<Nonce>())
            .prop_map(|(messages, retention_us, nonce)| Publishing { messages, retention_us, nonce }),
    ]
}

pub fn command() -> impl Strategy<Value = Command> {
    let request = prop::option::weighted(
        0.3,
        (select(vec!["", "scope"]), select(vec!["k", "x"]), 0..2_u8).prop_map(|(scope, text, fill)| RequestKey {
            scope: scope.to_owned(),
            key: key(text),
            fingerprint: [fill; 32],
        }),
    );
    let copied = (select(KNOWN.endpoints.clone()), any_endpoint_spec(), number()).prop_map(|(id, spec, left_us)| {
        OperationalEndpoint { spec, former: vec![(secret(3), left_us)], ..operational(id) }
    });
    prop_oneof![
        8 => (action(), request, any::<Nonce>(), number()).prop_map(|(action, request, nonce, wall_ms)| {
            Command::Webhook(Box::new(WebhookCommand { action, request, nonce, wall_ms }))
        }),
        4 => (vec(any_outcome(), 0..5), number(), number(), number()).prop_map(
            |(outcomes, disable_after_us, retention_us, wall_ms)| {
                Command::RecordOutcomes(RecordOutcomes { outcomes, disable_after_us, retention_us, wall_ms })
            }
        ),
        1 => (number(), vec(copied, 0..3))
            .prop_map(|(revision, endpoints)| Command::CopyOperational(CopyOperational { revision, endpoints })),
    ]
}

pub fn query() -> impl Strategy<Value = WebhookQuery> {
    let page = || {
        let cursor = prop::option::of(select(KNOWN.messages.clone()).prop_map(|id| id.0));
        (cursor, any::<bool>(), any::<bool>(), prop_oneof![0_u32..3, any::<u32>()])
            .prop_map(|(cursor, backwards, descending, limit)| PageIn { cursor, backwards, descending, limit })
    };
    let filter = || {
        (prop::option::of(any_name()), prop::option::of(number()), prop::option::of(number())).prop_map(
            |(event_type, before_wall_ms, after_wall_ms)| MessageFilter {
                event_types: event_type.map(|event_type| vec![event_type]),
                channel: None,
                tag: None,
                before_wall_ms,
                after_wall_ms,
            },
        )
    };
    let attempts = || {
        (filter(), prop::option::of(any_endpoint()), any::<Option<u8>>()).prop_map(
            |(message, endpoint, status_code_class)| AttemptFilter {
                message,
                status: None,
                status_code_class,
                endpoint,
            },
        )
    };
    let at = || (any_app(), any_endpoint());
    let of = || (any_app(), any_message());
    prop_oneof![
        any_app().prop_map(|app| WebhookQuery::App { app }),
        page().prop_map(|page| WebhookQuery::Apps { page }),
        at().prop_map(|(app, endpoint)| WebhookQuery::Endpoint { app, endpoint }),
        (any_app(), page()).prop_map(|(app, page)| WebhookQuery::Endpoints { app, page }),
        at().prop_map(|(app, endpoint)| WebhookQuery::Secret { app, endpoint }),
        at().prop_map(|(app, endpoint)| WebhookQuery::Headers { app, endpoint }),
        (of(), any::<bool>()).prop_map(|((app, message), with_payload)| WebhookQuery::Message {
            app,
            message,
            with_payload
        }),
        (any_app(), filter(), any::<bool>(), page()).prop_map(|(app, filter, with_payload, page)| {
            WebhookQuery::Messages { app, filter, with_payload, page }
        }),
        (of(), attempts(), page()).prop_map(|((app, message), filter, page)| WebhookQuery::AttemptsOfMessage {
            app,
            message,
            filter,
            page
        }),
        (at(), attempts(), page()).prop_map(|((app, endpoint), filter, page)| WebhookQuery::AttemptsOfEndpoint {
            app,
            endpoint,
            filter,
            page
        }),
        (of(), select(KNOWN.attempts.clone())).prop_map(|((app, message), attempt)| WebhookQuery::Attempt {
            app,
            message,
            attempt
        }),
        (of(), page()).prop_map(|((app, message), page)| WebhookQuery::Deliveries { app, message, page }),
        any_name().prop_map(|name| WebhookQuery::EventType { name }),
        (prop::option::of(any_name()), any::<bool>(), any::<bool>(), any::<u32>()).prop_map(
            |(cursor, backwards, descending, limit)| WebhookQuery::EventTypes {
                cursor,
                backwards,
                descending,
                include_archived: true,
                limit
            }
        ),
        Just(WebhookQuery::Operational),
        Just(WebhookQuery::OperationalRevision),
    ]
}

/// Reads whatever a dispatcher would.
fn dispatch(shard: &Shard) {
    let now = ShardTime(u64::MAX);
    let Ok(endpoints) = pending_endpoints(&shard.rows, None, 100) else { return };
    for (endpoint, _) in endpoints {
        let _ = target(&shard.rows, endpoint, now);
        let Ok((items, _)) = due(&shard.rows, endpoint, now, None, usize::MAX) else { continue };
        for item in items {
            let _ = pending_delivery(&shard.rows, endpoint, item.message);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(1_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_damaged_row_of_webhooks_is_reported_and_never_panics(
        at in any::<prop::sample::Index>(),
        flip in 1_u8..=255,
        commands in vec(command(), 1..6),
        queries in vec(query(), 1..6),
    ) {
        let mut shard = shard();
        let rows = shard.rows.state.clone();
        let damageable: Vec<_> = rows.iter().filter(|(_, value)| !value.is_empty()).collect();
        let (row, value) = at.get(&damageable);
        let mut damaged = value.to_vec();
        let at = at.index(damaged.len());
        damaged[at] ^= flip;
        shard.rows.state.insert((*row).clone(), damaged.into());
        dispatch(&shard);
        for query in &queries {
            let _ = answer(shard.id, &shard.rows, &Query::Webhook(query.clone()));
        }
        let expire = Command::Expire { up_to: ShardTime(u64::MAX), limit: 100 };
        // One by one: the first error ends an entry.
        for command in commands.into_iter().chain([expire]) {
            let mut shard = shard.reopened();
            let _ = shard.machine.apply(&mut shard.rows, &batch_of(vec![command]));
        }
    }

    #[test]
    fn any_query_of_webhooks_is_answered(queries in vec(query(), 1..20), commands in vec(command(), 0..6)) {
        let mut shard = shard();
        shard.machine.apply(&mut shard.rows, &batch_of(commands)).unwrap();
        dispatch(&shard);
        for id in [onceward_core::cluster::ShardId::SYSTEM, shard.id] {
            for query in &queries {
                let query = Query::Webhook(query.clone());
                prop_assert_eq!(codec::decode::<Query>(&codec::encode(&query)), Ok(query.clone()));
                let answered = answer(id, &shard.rows, &query).unwrap();
                prop_assert_eq!(codec::decode::<Answer>(&codec::encode(&answered)), Ok(answered));
            }
        }
    }
}

#[test]
fn the_longest_times_of_webhooks_at_the_end_of_time_overflow_nothing() {
    for stamp in [0, u64::MAX - 1, u64::MAX] {
        let mut shard = Shard::data();
        shard.now = stamp;
        shard.app("acme");
        let endpoint = shard.endpoint(everything());
        shard.rotate(endpoint, secret(2), u64::MAX);
        assert_eq!(shard.secrets_of(endpoint).len(), if stamp == u64::MAX { 1 } else { 2 });
        let lasting = NewMessage { payload_retention_us: Some(u64::MAX), ..message("{}") };
        let publish = Publish { app: acme(), message: lasting, retention_us: u64::MAX };
        let WebhookReply::Published { message, .. } = shard.act(Action::Publish(publish)) else { panic!("refused") };
        let retry = Verdict::Retry { after_us: u64::MAX };
        let mut record = shard.recording(vec![outcome(endpoint, message.id, 0, retry)]);
        (record.disable_after_us, record.retention_us, record.wall_ms) = (u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(shard.apply(Command::RecordOutcomes(record)), Reply::RecordOutcomes { recorded: 1 });
        assert_eq!(shard.pending(endpoint), [DueItem { at: ShardTime(u64::MAX), message: message.id }]);
        assert_eq!(shard.deliveries_of(message.id)[0].next_attempt_wall_ms, Some(u64::MAX));
        shard.expire();
        shard.now = u64::MAX;
        shard.apply(Command::Expire { up_to: ShardTime(u64::MAX), limit: 3 });
        shard.report_one(endpoint, message.id, 1, Verdict::Succeeded);
        shard.expire();
        assert_eq!(shard.rows_of(Kind::Message), 0);
    }
}

#[test]
fn tries_do_not_wrap() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let message = shard.publish(message("{}"));
    let row = keys::delivery(endpoint, message);
    let due = shard.pending(endpoint)[0].at;
    let tried = (1_u64, u16::MAX, DeliveryStatus::Pending, Some((due, 0_u64)));
    shard.rows.state.insert(row, codec::encode(&tried));
    shard.report_one(endpoint, message, u16::MAX, Verdict::Retry { after_us: 0 });
    assert_eq!(shard.delivery(endpoint, message).unwrap().tries, u16::MAX);
}

/// Strings and lists as long as any may be.
fn longest_message(payload_bytes: usize) -> NewMessage {
    NewMessage {
        event_type: name(&"t".repeat(NAME_BYTES_MAX)),
        event_id: Some(name(&"e".repeat(NAME_BYTES_MAX))),
        channels: vec!["c".repeat(LABEL_BYTES_MAX); MESSAGE_CHANNELS_MAX],
        tags: vec!["t".repeat(LABEL_BYTES_MAX); TAGS_MAX],
        payload: Bytes::from(vec![b' '; payload_bytes]),
        payload_retention_us: Some(u64::MAX),
    }
}

fn longest_completion() -> CompleteCommand {
    let (text, headers) = (
        "ü".repeat(key_bounds::BODY_BYTES_MAX / 2),
        vec![("n".repeat(250), HeaderValues::Many(vec!["v".to_owned(); 5])); key_bounds::HEADERS_MAX],
    );
    let payload_bytes = COMPLETION_PAYLOAD_BYTES_MAX / COMPLETION_MESSAGES_MAX;
    let messages = (0..COMPLETION_MESSAGES_MAX).map(|n| NewMessage {
        event_id: Some(name(&format!("{n:0>width$}", width = NAME_BYTES_MAX))),
        ..longest_message(payload_bytes)
    });
    CompleteCommand {
        account: Account::parse(&"a".repeat(255)).unwrap(),
        key: Key::parse(&"k".repeat(255)).unwrap(),
        token: u64::MAX,
        response: Response { status: 599, headers, body: Body::Text(text) },
        wall_ms: u64::MAX,
        publishing: Publishing { messages: messages.collect(), retention_us: u64::MAX, nonce: [255; 6] },
    }
}

fn longest_outcome() -> Outcome {
    let longest = KNOWN.endpoints[0];
    let answer = ReceiverAnswer {
        status_code: u16::MAX,
        body: "b".repeat(ANSWER_BYTES_MAX),
        truncated: true,
        duration_ms: u32::MAX,
        started_wall_ms: u64::MAX,
        url: "u".repeat(URL_BYTES_MAX),
    };
    let key = EndpointKey { app: KNOWN.apps[0], endpoint: longest };
    let verdict = Verdict::Retry { after_us: u64::MAX };
    Outcome { answer, nonce: [255; 6], ..outcome(key, KNOWN.messages[0], u16::MAX, verdict) }
}

#[test]
fn the_size_of_a_command_of_webhooks_is_never_underestimated_and_the_largest_fit_an_entry() {
    let request =
        RequestKey { scope: "s".repeat(255), key: Key::parse(&"k".repeat(255)).unwrap(), fingerprint: [255; 32] };
    let longest_uid = AppRef::Uid(name(&"u".repeat(NAME_BYTES_MAX)));
    let publish = |app: AppRef, payload_bytes, request| {
        let message = longest_message(payload_bytes);
        let action = Action::Publish(Publish { app, message, retention_us: u64::MAX });
        Command::Webhook(Box::new(WebhookCommand { action, request, nonce: [255; 6], wall_ms: u64::MAX }))
    };
    let outcomes = |number: usize| {
        let outcomes = vec![longest_outcome(); number];
        let (disable_after_us, retention_us, wall_ms) = (u64::MAX, u64::MAX, u64::MAX);
        Command::RecordOutcomes(RecordOutcomes { outcomes, disable_after_us, retention_us, wall_ms })
    };
    let many_small = Outcome {
        answer: ReceiverAnswer { body: String::new(), url: String::new(), ..longest_outcome().answer },
        ..longest_outcome()
    };
    let many_small = RecordOutcomes { outcomes: vec![many_small; OUTCOMES_MAX], ..shard().recording(vec![]) };
    let names: std::collections::BTreeSet<_> =
        (0..FILTER_MAX).map(|n| name(&format!("{n:0>width$}", width = NAME_BYTES_MAX))).collect();
    let channels = (0..ENDPOINT_CHANNELS_MAX).map(|n| format!("{n:0>width$}", width = LABEL_BYTES_MAX)).collect();
    let metadata: BTreeMap<_, _> =
        (0..METADATA_MAX).map(|n| (format!("{n:0>32}"), "v".repeat(METADATA_BYTES_MAX / METADATA_MAX - 32))).collect();
    let spec = EndpointSpec {
        url: "u".repeat(URL_BYTES_MAX),
        description: "d".repeat(DESCRIPTION_BYTES_MAX),
        rate_limit: Some(u32::MAX),
        disabled: true,
        event_types: Some(names),
        channels: Some(channels),
        metadata,
    };
    let headers: Headers =
        (0..HEADERS_MAX).map(|n| (format!("{n:0>32}"), "v".repeat(HEADER_BYTES_MAX / HEADERS_MAX - 32))).collect();
    let copied = OperationalEndpoint {
        spec: spec.clone(),
        headers: headers.clone(),
        former: vec![(secret(255), u64::MAX); FORMER_SECRETS_MAX],
        ..operational(KNOWN.endpoints[0])
    };
    let endpoints = vec![copied; OPERATIONAL_ENDPOINTS_MAX as usize];
    let create = Action::CreateEndpoint(CreateEndpoint {
        app: longest_uid.clone(),
        uid: None,
        spec,
        headers,
        secret: secret(255),
    });
    for command in [
        publish(longest_uid.clone(), PAYLOAD_BYTES_MAX, Some(request.clone())),
        publish(longest_uid, 0, None),
        publish(AppRef::Id(KNOWN.apps[0]), 1, Some(request.clone())),
        outcomes(1),
        outcomes(20),
        Command::RecordOutcomes(many_small),
        Command::Complete(longest_completion()),
        Command::CopyOperational(CopyOperational { revision: u64::MAX, endpoints }),
        Command::Webhook(Box::new(WebhookCommand {
            action: create,
            request: Some(request),
            nonce: [255; 6],
            wall_ms: u64::MAX,
        })),
    ] {
        let (encoded, estimate) = (codec::encode(&command).len(), command.size_estimate());
        assert!(encoded <= estimate, "{encoded} bytes, estimated as {estimate}");
        assert!(estimate < BATCH_BYTES_MAX, "{estimate}");
    }
}

#[test]
fn the_largest_completion_reaches_every_endpoint_in_its_entry() {
    let mut shard = Shard::with_acme();
    let endpoints: Vec<_> = (0..ENDPOINTS_MAX).map(|_| shard.endpoint(everything())).collect();
    let token = shard.start(shard.beginning("1"));
    let complete = CompleteCommand {
        account: account("acme"),
        key: key("k"),
        token,
        response: response("ok"),
        ..longest_completion()
    };
    let Reply::Complete(_) = shard.apply(Command::Complete(complete)) else { panic!("not completed") };
    let all = ENDPOINTS_MAX as usize * COMPLETION_MESSAGES_MAX;
    assert_eq!([Kind::Delivery, Kind::Due].map(|kind| shard.rows_of(kind)), [all, all]);
    for endpoint in endpoints {
        let numbers: Vec<_> = shard
            .pending(endpoint)
            .iter()
            .map(|item| shard.delivery(endpoint, item.message).unwrap().sequence)
            .collect();
        assert_eq!(numbers, (1..=COMPLETION_MESSAGES_MAX as u64).collect::<Vec<_>>());
    }
    let row = shard.rows.get(Table::State, &keys::IDS).unwrap();
    assert!(row.is_some());
}
