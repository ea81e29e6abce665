//! What each command on webhooks promises, by example. The laws are in `webhooks_model`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kit;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kit::{
    Shard,
    idempotency::{account, key, response},
    webhooks::*,
};
use onceward_core::{
    cluster::{Generation, Manifest, NodeEntry, NodeId, ShardId},
    codec::keys::Kind,
    command::*,
    idempotency::{BeginCommand, CompleteCommand, CompleteReply, PublishedMessage, Publishing, RecordState},
    query::{Answer, Query},
    time::ShardTime,
    webhooks::{bounds::*, *},
};

const SECOND_US: u64 = 1_000_000;
const HOUR_US: u64 = 3_600 * SECOND_US;
const RETRY: Verdict = Verdict::Retry { after_us: 5 * SECOND_US };
/// All kinds of rows that belong to an application.
const KINDS_OF_APP: [Kind; 12] = [
    Kind::App,
    Kind::AppUid,
    Kind::Endpoint,
    Kind::EndpointUid,
    Kind::EndpointState,
    Kind::Message,
    Kind::Payload,
    Kind::EventId,
    Kind::Delivery,
    Kind::Due,
    Kind::Attempt,
    Kind::AttemptOfEndpoint,
];

fn manifest() -> Manifest {
    let node = NodeEntry {
        id: NodeId(1),
        generation: Generation(0),
        incarnation: 0,
        http_address: String::new(),
        peer_address: String::new(),
    };
    Manifest { cluster_id: 1, data_shards: 8, nodes: vec![node] }
}

fn sequence(shard: &Shard, endpoint: EndpointKey, message: MessageId) -> u64 {
    shard.delivery(endpoint, message).expect("a delivery").sequence
}

/// Works the expiry table off as a shard's leader would, until nothing is due or is due right behind.
fn expire_all(shard: &mut Shard) {
    let mut idle = 0;
    while idle < 2 {
        idle = if shard.expire() == 0 { idle + 1 } else { 0 };
        shard.now += 1;
    }
}

#[test]
fn ids_sort_by_age_and_say_where_they_were_made() {
    let mut shard = Shard::data();
    let mut last = String::new();
    for entry in 0..4 {
        let create = |_| {
            let create = CreateApp { uid: None, spec: app_spec("Acme"), get_if_exists: false };
            Command::Webhook(Box::new(shard.webhook(Action::CreateApp(create))))
        };
        let commands = (0..3).map(create).collect();
        for reply in shard.apply_all(commands) {
            let Reply::Webhook(reply) = reply else { panic!("{reply:?}") };
            let WebhookReply::App { app, created: true } = *reply else { panic!("{reply:?}") };
            let text = app.id.to_string();
            assert!(text > last, "{text} behind {last}");
            assert_eq!((AppId::parse(&text), app.id.shard()), (Some(app.id), shard.id));
            // Whoever has the id knows the way, and so has whoever has it as an account's name.
            assert_eq!(manifest().app_shard(&AppRef::Id(app.id)), Some(shard.id));
            assert_eq!(manifest().account_shard(&app.account()), shard.id);
            last = text;
        }
        // In the second entry the clock stands still, in the third it has moved on.
        shard.now += entry % 2;
        shard = shard.reopened();
    }
    let elsewhere = Manifest { data_shards: 8, ..manifest() };
    let far = Shard { id: ShardId(9), machine: onceward_core::machine::Machine::new(ShardId(9)), ..Shard::data() }
        .create_app(None)
        .id;
    assert_eq!(elsewhere.app_shard(&AppRef::Id(far)), None, "no shard of this cluster made it");
    assert_eq!(manifest().app_shard(&acme()), Some(manifest().account_shard("acme")));
}

#[test]
fn an_application_is_the_account_of_its_uid_or_of_its_id_where_it_has_none() {
    let mut shard = Shard::data();
    let named = shard.app("acme");
    let unnamed = shard.create_app(None);
    assert_eq!(named.account(), "acme");
    assert_eq!(unnamed.account(), unnamed.id.to_string());
    for (of, is_account) in [("acme".to_owned(), true), (unnamed.account(), true), (named.id.to_string(), false)] {
        let (of, key) = (account(&of), key("k"));
        let token = shard.start(BeginCommand { account: of.clone(), ..shard.beginning("1") });
        let publishing = Publishing { messages: vec![message("{}")], retention_us: RETENTION_US, nonce: NONCE };
        let (response, wall_ms) = (response("ok"), shard.wall_ms());
        let complete = CompleteCommand { account: of, key, token, response, wall_ms, publishing };
        let reply = shard.apply(Command::Complete(complete));
        let is_completed = matches!(reply, Reply::Complete(CompleteReply::Completed { .. }));
        assert_eq!(is_completed, is_account, "{reply:?}");
    }
}

#[test]
fn an_applications_uid_is_fixed_when_it_is_made() {
    let mut shard = Shard::data();
    let named = AppRef::Id(shard.app("acme").id);
    let unnamed = AppRef::Id(shard.create_app(None).id);
    let put = |app: &AppRef, uid: Option<&str>| {
        Action::PutApp(PutApp { app: app.clone(), uid: uid.map(name), spec: app_spec("New") })
    };
    let patch = |app: &AppRef, uid: Option<&str>| {
        Action::PatchApp(PatchApp {
            app: app.clone(),
            patch: AppPatch { uid: Some(uid.map(name)), ..AppPatch::default() },
        })
    };
    for action in [
        put(&named, Some("other")),
        put(&unnamed, Some("other")),
        patch(&named, Some("other")),
        patch(&named, None),
        patch(&unnamed, Some("other")),
        put(&AppRef::Uid(name("other")), Some("another")),
    ] {
        assert_eq!(shard.refused(action), Refusal::UidFixed);
    }
    // The one that it has is no change, and a body that names none leaves it.
    for action in [put(&named, Some("acme")), patch(&named, Some("acme")), patch(&unnamed, None), put(&named, None)] {
        assert!(matches!(shard.act(action), WebhookReply::App { created: false, .. }));
    }
    let WebhookAnswer::App(app) = shard.look(WebhookQuery::App { app: acme() }) else { panic!("no app") };
    assert_eq!((app.uid, app.spec.name.as_str()), (Some(name("acme")), "New"));
}

#[test]
fn creating_an_application_twice_is_refused_unless_the_one_that_is_there_will_do() {
    let mut shard = Shard::data();
    let first = shard.app("acme");
    let again = |get_if_exists| {
        Action::CreateApp(CreateApp { uid: Some(name("acme")), spec: app_spec("Other"), get_if_exists })
    };
    assert_eq!(shard.refused(again(false)), Refusal::Taken);
    assert_eq!(shard.act(again(true)), WebhookReply::App { app: first.clone(), created: false });
    assert_eq!(shard.act(Action::DeleteApp { app: acme() }), WebhookReply::Done);
    let WebhookReply::App { app, created: true } = shard.act(again(true)) else { panic!("not made anew") };
    assert!(app.id > first.id);
}

#[test]
fn put_makes_what_its_path_names_by_a_uid_and_never_by_an_id() {
    let mut shard = Shard::data();
    let put =
        |app: &str| Action::PutApp(PutApp { app: AppRef::parse(app).unwrap(), uid: None, spec: app_spec("Acme") });
    assert!(matches!(shard.act(put("acme")), WebhookReply::App { created: true, .. }));
    let app_id = shard.app_id();
    let other_id = shard.endpoint(everything()).endpoint;
    let gone = shard.create_app(None).id;
    shard.act(Action::DeleteApp { app: AppRef::Id(gone) });
    assert_eq!(shard.refused(put(&gone.to_string())), Refusal::NoApp);
    // An id of another kind reads as a uid, but as one that nobody can have.
    assert_eq!(shard.refused(put(&other_id.to_string())), Refusal::NoApp);
    assert_eq!(Name::parse_uid(&app_id.to_string()), Err(NameError::IsId));

    let put = |endpoint: &str, uid: Option<&str>| {
        let endpoint = EndpointRef::parse(endpoint).unwrap();
        let (uid, spec, secret) = (uid.map(name), everything(), secret(2));
        Action::PutEndpoint(PutEndpoint { app: acme(), endpoint, uid, spec, secret })
    };
    let WebhookReply::Endpoint { endpoint, created: true } = shard.act(put("hook", None)) else { panic!("not made") };
    assert_eq!(endpoint.uid, Some(name("hook")));
    assert_eq!(shard.refused(put(&app_id.to_string(), None)), Refusal::NoEndpoint);
    shard.delete_endpoint(EndpointKey { app: app_id, endpoint: other_id });
    assert_eq!(shard.refused(put(&other_id.to_string(), None)), Refusal::NoEndpoint);

    // Unlike an application's, an endpoint's uid may change, but not to one that is taken.
    let WebhookReply::Endpoint { endpoint: renamed, created: false } = shard.act(put("hook", Some("new"))) else {
        panic!("made")
    };
    assert_eq!((renamed.id, renamed.uid), (endpoint.id, Some(name("new"))));
    let key = EndpointKey { app: app_id, endpoint: endpoint.id };
    assert_eq!(shard.secrets_of(key), [secret(2)], "a put of one that is there keeps its secret");
    assert!(matches!(shard.act(put("hook", None)), WebhookReply::Endpoint { created: true, .. }), "free again");
    assert_eq!(shard.refused(put("hook", Some("new"))), Refusal::Taken);
    assert_eq!(shard.refused(creating(acme(), Some("new"), everything())), Refusal::Taken);
}

#[test]
fn an_application_has_a_hundred_endpoints_and_the_cluster_ten() {
    for (mut shard, app, max) in
        [(Shard::with_acme(), acme(), ENDPOINTS_MAX), (Shard::system(), AppRef::Operational, OPERATIONAL_ENDPOINTS_MAX)]
    {
        let endpoints: Vec<_> = (0..max).map(|_| shard.endpoint_of(app.clone(), None, everything())).collect();
        let one_more = creating(app.clone(), None, everything());
        assert_eq!(shard.refused(one_more.clone()), Refusal::TooMany { max: u64::from(max) });
        let endpoint = EndpointRef::Id(endpoints[0].endpoint);
        assert_eq!(shard.act(Action::DeleteEndpoint(DeleteEndpoint { app, endpoint })), WebhookReply::Done);
        assert!(matches!(shard.act(one_more), WebhookReply::Endpoint { .. }));
    }
}

#[test]
fn a_message_goes_to_the_endpoints_that_want_its_type_and_one_of_its_channels() {
    let mut shard = Shard::with_acme();
    let all = shard.endpoint(everything());
    let typed = shard.endpoint(wanting(&["invoice.paid", "user.created"], &[]));
    let channelled = shard.endpoint(wanting(&[], &["eu", "us"]));
    let both = shard.endpoint(wanting(&["invoice.paid"], &["eu"]));
    let late_for_it = |shard: &mut Shard, event_type: &str, channels: &[&str]| {
        shard.now += 1;
        shard.publish(NewMessage {
            event_type: name(event_type),
            channels: channels.iter().map(|&channel| channel.to_owned()).collect(),
            ..message("{}")
        })
    };
    for (event_type, channels, wanted) in [
        ("invoice.paid", vec![], vec![all, typed]),
        ("invoice.paid", vec!["asia", "eu"], vec![all, typed, channelled, both]),
        ("invoice.paid", vec!["us"], vec![all, typed, channelled]),
        ("invoice.sent", vec!["eu"], vec![all, channelled]),
        ("invoice", vec!["e"], vec![all]),
    ] {
        let message = late_for_it(&mut shard, event_type, &channels);
        let found: Vec<_> = [all, typed, channelled, both]
            .into_iter()
            .filter(|&endpoint| shard.due_now(endpoint).contains(&message))
            .collect();
        assert_eq!(found, wanted, "{event_type} {channels:?}");
        assert_eq!(shard.deliveries_of(message).len(), wanted.len());
        let next = pending_delivery(&shard.rows, all, message).unwrap().expect("pending");
        assert_eq!((next.tries, next.payload), (0, Bytes::from_static(b"{}")));
    }
    // What is changed of an endpoint counts from its entry on, and for no message before.
    let patch = EndpointPatch { event_types: Some(Some([name("user.created")].into())), ..EndpointPatch::default() };
    shard.patch(all, patch);
    let unwanted = late_for_it(&mut shard, "invoice.paid", &[]);
    assert_eq!(shard.status(all, unwanted), None);
    let endpoint = shard.endpoint(everything());
    assert!(shard.pending(endpoint).is_empty(), "nor does a new one get what was published before it");
}

#[test]
fn an_endpoints_messages_are_numbered_one_by_one() {
    let mut shard = Shard::with_acme();
    let all = shard.endpoint(everything());
    let paid = shard.endpoint(wanting(&["invoice.paid"], &[]));
    let first = shard.publish(message("1"));
    let sent = shard.publish(NewMessage { event_type: name("invoice.sent"), ..message("2") });
    shard.set_disabled(all, true);
    let withheld = shard.publish(message_with_id("evt", "3"));
    // What is published again gets no number, nor does what is refused.
    assert_eq!(shard.publish_again(message_with_id("evt", "3")), (withheld, true));
    assert_eq!(shard.refused(publishing(message_with_id("evt", "4"))), Refusal::EventIdTaken);
    shard.set_disabled(all, false);
    shard = shard.reopened();
    let last = shard.publish(message("5"));
    let of_all = [first, sent, withheld, last].map(|message| sequence(&shard, all, message));
    assert_eq!(of_all, [1, 2, 3, 4]);
    assert_eq!([first, withheld, last].map(|message| sequence(&shard, paid, message)), [1, 2, 3]);
    assert_eq!(shard.status(all, withheld), Some(DeliveryStatus::Withheld));
    assert!(!shard.due_now(all).contains(&withheld));
    let told = pending_delivery(&shard.rows, all, last).unwrap().expect("pending");
    assert_eq!(told.sequence, Some(4));
}

#[test]
fn a_repeated_event_id_answers_the_first_message_or_is_refused_with_other_content() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let first = message_with_id("evt", "{\"id\": 1}");
    let id = shard.publish(first.clone());
    shard.now += SECOND_US;
    shard = shard.reopened();
    let rows = shard.rows.state.len();
    // How long its payload is to be kept is not what it says.
    let same = NewMessage { payload_retention_us: Some(DAY_US), ..first.clone() };
    assert_eq!([first.clone(), same].map(|same| shard.publish_again(same)), [(id, true); 2]);
    assert_eq!(shard.rows.state.len(), rows);
    for other in [
        NewMessage { payload: Bytes::from_static(b"{\"id\":1}"), ..first.clone() },
        NewMessage { event_type: name("invoice.sent"), ..first.clone() },
        NewMessage { channels: vec!["eu".to_owned()], ..first.clone() },
        NewMessage { tags: vec!["eu".to_owned()], ..first.clone() },
    ] {
        assert_eq!(shard.refused(publishing(other)), Refusal::EventIdTaken);
    }
    // It is known as long as the message is.
    shard.now += RETENTION_US;
    shard.report_one(endpoint, id, 0, Verdict::Succeeded);
    expire_all(&mut shard);
    assert_ne!(shard.publish(message_with_id("evt", "other")), id);
}

#[test]
fn a_completion_and_its_messages_are_both_there_or_neither() {
    let published = message_with_id("taken", "{}");
    let good = message_with_id("good", "{}");
    let other = |message: &NewMessage| NewMessage { payload: Bytes::from_static(b"[]"), ..message.clone() };
    for (messages, index, refusal) in [
        (vec![good.clone(), other(&published)], 1, Refusal::EventIdTaken),
        (vec![good.clone(), message("{}"), other(&good)], 2, Refusal::EventIdTaken),
    ] {
        let mut shard = Shard::with_acme();
        let endpoint = shard.endpoint(everything());
        shard.publish(published.clone());
        let token = shard.start(shard.beginning("1"));
        let rows = shard.rows.clone();
        assert_eq!(shard.complete_with(token, messages), CompleteReply::MessageRefused { index, refusal });
        assert_eq!(shard.rows, rows);
        assert_eq!(shard.state(), Some(RecordState::InProgress));
        // The key is still its own.
        let CompleteReply::Completed { messages, .. } = shard.complete_with(token, vec![good.clone()]) else {
            panic!("not completed")
        };
        assert_eq!((messages.len(), shard.due_now(endpoint).len()), (1, 2));
    }
    let mut shard = Shard::data();
    let token = shard.start(shard.beginning("1"));
    let rows = shard.rows.clone();
    let refused = CompleteReply::MessageRefused { index: 0, refusal: Refusal::NoApp };
    assert_eq!(shard.complete_with(token, vec![good.clone()]), refused);
    assert_eq!(shard.complete_with(token + 1, vec![good]), CompleteReply::Fenced);
    assert_eq!(shard.rows, rows);
}

#[test]
fn a_repeated_completion_answers_the_messages_that_it_published() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let known = shard.publish(message_with_id("known", "{}"));
    let token = shard.start(shard.beginning("1"));
    let same_twice = message_with_id("twice", "{}");
    let messages = vec![message("1"), message_with_id("known", "{}"), same_twice.clone(), same_twice, message("1")];
    let first = shard.complete_with(token, messages.clone());
    let CompleteReply::Completed { messages: published, .. } = &first else { panic!("{first:?}") };
    let ids: Vec<_> = published.iter().map(|message| message.id).collect();
    assert_eq!((ids.len(), ids[1], ids[2]), (5, known, ids[3]));
    assert_eq!(published[1], PublishedMessage { id: known, event_id: Some(name("known")) });
    assert_ne!(ids[0], ids[4], "without an event id, the same is published as often as it is asked for");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 4);
    let fresh: Vec<_> = [known, ids[0], ids[2], ids[4]].map(|id| sequence(&shard, endpoint, id)).into();
    assert_eq!(fresh, [1, 2, 3, 4]);

    shard.now += SECOND_US;
    shard = shard.reopened();
    shard.apply_all(vec![]);
    let rows = shard.rows.clone();
    assert_eq!(shard.complete_with(token, messages.clone()), first);
    for other in [vec![], messages[..4].to_vec(), messages.iter().rev().cloned().collect()] {
        assert_eq!(shard.complete_with(token, other), CompleteReply::AlreadyCompleted);
    }
    assert_eq!(shard.rows, rows);
}

#[test]
fn a_call_repeated_under_its_idempotency_key_is_answered_alike_for_a_day() {
    let mut shard = Shard::with_acme();
    let first = shard.act_once("acme", "k", 1, creating(acme(), None, everything()));
    let published = shard.act_once("acme", "k2", 1, publishing(message("{}")));
    shard.now += DAY_US - 1;
    shard = shard.reopened();
    shard.apply_all(vec![]);
    let rows = shard.rows.clone();
    assert_eq!(shard.act_once("acme", "k", 1, creating(acme(), None, everything())), first);
    assert_eq!(shard.act_once("acme", "k2", 1, publishing(message("{}"))), published);
    let mismatch = WebhookReply::Refused(Refusal::RequestMismatch);
    assert_eq!(shard.act_once("acme", "k", 2, creating(acme(), None, everything())), mismatch);
    assert_eq!(shard.act_once("acme", "k", 2, publishing(message("{}"))), mismatch);
    assert_eq!(shard.rows, rows);
    // The same key in another scope is another, however the two are cut.
    for (scope, key) in [("acm", "ek"), ("acmek", "k"), ("", "acmek")] {
        let reply = shard.act_once(scope, key, 3, creating(acme(), None, everything()));
        assert!(matches!(reply, WebhookReply::Endpoint { created: true, .. }), "{scope} {key}");
    }

    shard.now += 1;
    for expired in [false, true] {
        let mut shard = shard.reopened();
        if expired {
            let before = shard.rows_of(Kind::Request);
            expire_all(&mut shard);
            assert_eq!(shard.rows_of(Kind::Request), before - 2, "those of the other scopes are younger");
        }
        let anew = shard.act_once("acme", "k", 2, creating(acme(), None, everything()));
        assert!(matches!(anew, WebhookReply::Endpoint { created: true, .. }));
        assert_ne!(anew, first);
        // What was filed for the one of before does not take the new one away.
        shard.now += SECOND_US;
        expire_all(&mut shard);
        assert_eq!(shard.act_once("acme", "k", 2, creating(acme(), None, everything())), anew);
    }
}

#[test]
fn a_call_that_was_refused_is_not_remembered() {
    let mut shard = Shard::data();
    let create = || creating(acme(), None, everything());
    assert_eq!(shard.act_once("acme", "k", 1, create()), WebhookReply::Refused(Refusal::NoApp));
    shard.app("acme");
    assert!(matches!(shard.act_once("acme", "k", 1, create()), WebhookReply::Endpoint { .. }));
}

#[test]
fn an_outcome_counts_once() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let message = shard.publish(message("{}"));
    let failed = outcome(endpoint, message, 0, RETRY);
    // Twice in one report, and once more in another.
    assert_eq!(shard.report(vec![failed.clone(), failed.clone()]), 1);
    shard.now += SECOND_US;
    assert_eq!(shard.report(vec![failed.clone()]), 0);
    assert_eq!(shard.attempts_of(message).len(), 1);
    let due = shard.delivery(endpoint, message).unwrap().due;
    // A leader of before says what it saw of the first try: that it failed is known, that it succeeded is news.
    for verdict in [RETRY, Verdict::Exhausted, Verdict::Gone] {
        assert_eq!(shard.report(vec![outcome(endpoint, message, 0, verdict)]), 0);
    }
    assert_eq!(shard.delivery(endpoint, message).unwrap().due, due);
    assert_eq!(shard.report(vec![outcome(endpoint, message, 0, Verdict::Succeeded)]), 1);
    assert_eq!(shard.status(endpoint, message), Some(DeliveryStatus::Succeeded));
    assert!(shard.pending(endpoint).is_empty());
    assert_eq!(pending_delivery(&shard.rows, endpoint, message).unwrap(), None);
    for verdict in [RETRY, Verdict::Succeeded, Verdict::Gone] {
        assert_eq!(shard.report(vec![outcome(endpoint, message, 2, verdict)]), 0, "nothing comes behind success");
    }
    let statuses: Vec<_> = shard.attempts_of(message).iter().map(|attempt| attempt.status).collect();
    assert_eq!(statuses, [AttemptStatus::Retrying, AttemptStatus::Succeeded]);
    assert!(!shard.view_of(endpoint).spec.disabled);
}

#[test]
fn an_outcome_of_what_is_not_there_changes_nothing() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(wanting(&["invoice.paid"], &[]));
    let other = shard.endpoint(wanting(&["nothing"], &[]));
    let message = shard.publish(message("{}"));
    let nowhere = EndpointKey { app: shard.create_app(None).id, ..endpoint };
    let rows = shard.rows.clone();
    let no_message = MessageId(endpoint.endpoint.0);
    assert_eq!(
        shard.report(vec![
            outcome(other, message, 0, Verdict::Succeeded),
            outcome(nowhere, message, 0, Verdict::Gone),
            outcome(endpoint, no_message, 0, Verdict::Exhausted),
        ]),
        0
    );
    assert_eq!(shard.rows, rows);
}

#[test]
fn a_retry_is_due_again_when_its_time_has_come() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let (first, second) = (shard.publish(message("1")), shard.publish(message("2")));
    shard.now += SECOND_US;
    shard.machine.take_moved();
    shard.report_one(endpoint, first, 0, RETRY);
    let state = onceward_core::codec::keys::endpoint_state(endpoint);
    assert_eq!(shard.machine.take_moved(), [state], "the dispatcher is told");
    let at = ShardTime(shard.now + 5 * SECOND_US);
    let (items, next) = due(&shard.rows, endpoint, ShardTime(shard.now), None, 10).unwrap();
    assert_eq!((items.iter().map(|item| item.message).collect::<Vec<_>>(), next), (vec![second], Some(at)));
    assert_eq!(pending_endpoints(&shard.rows, None, 10).unwrap(), [(endpoint, ShardTime(shard.now - SECOND_US))]);
    let view = &shard.deliveries_of(first)[0];
    assert_eq!(view.status, DeliveryStatus::Pending);
    assert_eq!(view.next_attempt_wall_ms, Some(shard.wall_ms() + 5_000));
    shard.now += 5 * SECOND_US - 1;
    assert_eq!(shard.due_now(endpoint), [second]);
    shard.now += 1;
    assert_eq!(shard.due_now(endpoint), [second, first]);
    let told = pending_delivery(&shard.rows, endpoint, first).unwrap().expect("pending");
    assert_eq!((told.tries, told.sequence), (1, Some(1)));
    // "At once" is behind this entry, too.
    shard.report_one(endpoint, first, 1, Verdict::Retry { after_us: 0 });
    assert_eq!(shard.delivery(endpoint, first).unwrap().due, Some(ShardTime(shard.now + 1)));
}

#[test]
fn what_is_pending_is_listed_by_endpoint_and_time() {
    let mut shard = Shard::with_acme();
    let mut endpoints: Vec<_> = (0..5).map(|_| shard.endpoint(everything())).collect();
    let mut messages = Vec::new();
    for _ in 0..7 {
        shard.now += 1;
        messages.push(shard.publish(message("{}")));
    }
    let idle = endpoints.remove(2);
    for &message in &messages {
        shard.report_one(idle, message, 0, Verdict::Succeeded);
    }
    for limit in 1..6 {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let some = pending_endpoints(&shard.rows, after, limit).unwrap();
            found.extend(some.iter().map(|(endpoint, _)| *endpoint));
            after = found.last().copied();
            if some.len() < limit {
                break;
            }
        }
        assert_eq!(found, endpoints);
        let (mut items, mut after) = (Vec::new(), None);
        loop {
            let (some, next) = due(&shard.rows, endpoints[1], ShardTime(shard.now), after, limit).unwrap();
            assert_eq!(next, None);
            items.extend(some.iter().map(|item| item.message));
            after = some.last().copied();
            if some.len() < limit {
                break;
            }
        }
        assert_eq!(items, messages);
    }
}

/// A shard with operational endpoints in it: one that wants everything, and one that wants nothing of ours.
fn with_operational() -> (Shard, EndpointKey) {
    let mut shard = Shard::with_acme();
    let ids = operational_ids(2);
    let indifferent = OperationalEndpoint { spec: wanting(&["nothing"], &[]), ..operational(ids[1]) };
    assert_eq!(shard.copy_operational(1, vec![operational(ids[0]), indifferent]), 1);
    (shard, operational_key(ids[0]))
}

#[test]
fn a_delivery_given_up_is_told_in_the_entry_that_gives_it_up() {
    let (mut shard, told) = with_operational();
    let endpoint = shard.endpoint_of(acme(), Some("hook"), everything());
    let message = shard.publish(message_with_id("evt", "{}"));
    shard.report_one(endpoint, message, 0, Verdict::Exhausted);
    assert_eq!(shard.status(endpoint, message), Some(DeliveryStatus::Failed));
    assert!(shard.pending(endpoint).is_empty() && !shard.view_of(endpoint).spec.disabled);
    let attempt = shard.attempts_of(message).remove(0);
    assert_eq!(attempt.status, AttemptStatus::Failed);
    let expected = serde_json::json!({
        "type": "message.attempt.exhausted",
        "data": {
            "appId": shard.app_id().to_string(),
            "appUid": "acme",
            "endpointId": endpoint.endpoint.to_string(),
            "endpointUid": "hook",
            "msgId": message.to_string(),
            "msgEventId": "evt",
            "lastAttempt": {
                "id": attempt.id.to_string(),
                "responseStatusCode": 500,
                "timestamp": "2023-11-14T22:13:20Z",
            },
        },
    });
    assert_eq!(shard.notices(), [expected]);
    let notice = shard.due_now(told)[0];
    let pending = pending_delivery(&shard.rows, told, notice).unwrap().expect("pending");
    assert_eq!(pending.sequence, None, "each shard sends its own, and numbers them for itself");
    assert_eq!(shard.rows_of(Kind::Due), 1, "whoever wants other types is not told");
}

#[test]
fn an_endpoint_that_is_gone_or_fails_for_too_long_is_disabled_and_that_is_told_once() {
    for is_gone in [true, false] {
        let (mut shard, told) = with_operational();
        let endpoint = shard.endpoint(everything());
        let messages: Vec<_> = (0..3).map(|_| shard.publish(message("{}"))).collect();
        if is_gone {
            shard.report_one(endpoint, messages[0], 0, Verdict::Gone);
        } else {
            shard.report_one(endpoint, messages[0], 0, RETRY);
            shard.now += DISABLE_AFTER_US - 1;
            shard.report_one(endpoint, messages[1], 0, RETRY);
            assert!(!shard.view_of(endpoint).spec.disabled);
            shard.now += 1;
            shard.report_one(endpoint, messages[0], 1, RETRY);
        }
        assert!(shard.view_of(endpoint).spec.disabled && shard.target_of(endpoint).unwrap().disabled);
        // What its deliveries come to is recorded still, and says nothing new.
        shard.report_one(endpoint, messages[2], 0, Verdict::Gone);
        let [notice] = &shard.notices()[..] else { panic!("{:?}", shard.notices()) };
        assert_eq!(notice["type"], "endpoint.disabled");
        assert_eq!(notice["data"]["endpointUid"], serde_json::Value::Null);
        assert_eq!(notice["data"]["failSince"], "2023-11-14T22:13:21Z", "since the first failure, not the last");
        assert_eq!(shard.due_now(told).len(), 1);
    }
}

#[test]
fn success_starts_an_endpoints_patience_anew_and_so_does_enabling_it() {
    for by_success in [true, false] {
        let mut shard = Shard::with_acme();
        let endpoint = shard.endpoint(everything());
        let [first, second, third] = [(); 3].map(|()| shard.publish(message("{}")));
        shard.report_one(endpoint, first, 0, RETRY);
        shard.now += DISABLE_AFTER_US - 1;
        if by_success {
            shard.report_one(endpoint, second, 0, Verdict::Succeeded);
        } else {
            shard.set_disabled(endpoint, true);
            shard.set_disabled(endpoint, false);
        }
        shard.now += 1;
        shard.report_one(endpoint, third, 0, RETRY);
        assert!(!shard.view_of(endpoint).spec.disabled);
        shard.now += DISABLE_AFTER_US;
        shard.report_one(endpoint, first, 1, RETRY);
        assert!(shard.view_of(endpoint).spec.disabled);
    }
}

#[test]
fn nothing_is_told_where_nobody_listens_and_nothing_about_who_is_told() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let messages = [(); 2].map(|()| shard.publish(message("{}")));
    shard.report_one(endpoint, messages[0], 0, Verdict::Exhausted);
    shard.report_one(endpoint, messages[1], 0, Verdict::Gone);
    assert!(shard.view_of(endpoint).spec.disabled && shard.notices().is_empty());

    let (mut shard, told) = with_operational();
    let endpoint = shard.endpoint(everything());
    let messages = [(); 3].map(|()| shard.publish(message("{}")));
    for message in messages {
        shard.report_one(endpoint, message, 0, Verdict::Exhausted);
    }
    let [first, second, third] = shard.due_now(told)[..] else { panic!("three notices") };
    shard.report_one(told, first, 0, RETRY);
    shard.now += 2 * DISABLE_AFTER_US;
    shard.report_one(told, second, 0, Verdict::Exhausted);
    shard.report_one(told, third, 0, Verdict::Gone);
    assert_eq!(shard.notices().len(), 3, "about operational endpoints nobody is told");
    assert!(!shard.target_of(told).unwrap().disabled, "people enable and disable them");
    assert_eq!(shard.due_now(told), [first]);
}

#[test]
fn an_endpoint_that_is_enabled_again_goes_on_with_what_was_pending() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let (first, second) = (shard.publish(message("1")), shard.publish(message("2")));
    shard.report_one(endpoint, first, 0, RETRY);
    shard.report_one(endpoint, second, 0, Verdict::Gone);
    let withheld = shard.publish(message("3"));
    assert_eq!(shard.status(endpoint, second), Some(DeliveryStatus::Failed));
    assert_eq!(shard.status(endpoint, first), Some(DeliveryStatus::Pending));
    shard.now += HOUR_US;
    shard.machine.take_moved();
    shard.set_disabled(endpoint, false);
    assert_eq!(shard.machine.take_moved().len(), 1, "the dispatcher is told");
    assert_eq!(shard.due_now(endpoint), [first]);
    shard.report_one(endpoint, first, 1, Verdict::Succeeded);
    assert_eq!(shard.status(endpoint, withheld), Some(DeliveryStatus::Withheld));
    assert_eq!(shard.report(vec![outcome(endpoint, withheld, 0, Verdict::Succeeded)]), 0);
}

#[test]
fn a_rotated_secret_signs_from_its_entry_on_and_the_former_one_until_its_grace_is_over() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    assert_eq!(shard.secrets_of(endpoint), [secret(1)]);
    assert_eq!(shard.rotate(endpoint, secret(2), HOUR_US), WebhookReply::Done);
    assert_eq!(shard.secrets_of(endpoint), [secret(2), secret(1)], "the newest first");
    assert_eq!(shard.rotate(endpoint, secret(2), HOUR_US), WebhookReply::Done, "the same again is no rotation");
    assert_eq!(shard.secrets_of(endpoint), [secret(2), secret(1)]);
    shard.now += HOUR_US - 1;
    assert_eq!(shard.secrets_of(endpoint).len(), 2);
    shard.now += 1;
    assert_eq!(shard.secrets_of(endpoint), [secret(2)]);
    let WebhookAnswer::Secret(told) =
        shard.look(WebhookQuery::Secret { app: acme(), endpoint: EndpointRef::Id(endpoint.endpoint) })
    else {
        panic!("no secret")
    };
    assert_eq!(told, secret(2));

    // Back to a former one: it is the newest, and no former one any more.
    shard.rotate(endpoint, secret(3), HOUR_US);
    shard.rotate(endpoint, secret(2), HOUR_US);
    assert_eq!(shard.secrets_of(endpoint), [secret(2), secret(3)]);
    shard.rotate(endpoint, secret(4), 0);
    assert_eq!(shard.secrets_of(endpoint), [secret(4), secret(3)], "without grace it is over at once");
    shard.now += HOUR_US;
    for n in 0..FORMER_SECRETS_MAX as u8 {
        assert_eq!(shard.rotate(endpoint, secret(10 + n), HOUR_US), WebhookReply::Done);
    }
    assert_eq!(shard.secrets_of(endpoint).len(), 1 + FORMER_SECRETS_MAX);
    let rows = shard.rows.clone();
    let too_many = WebhookReply::Refused(Refusal::TooManySecrets);
    assert_eq!(shard.rotate(endpoint, secret(20), HOUR_US), too_many);
    assert_eq!(shard.rows, rows);
    shard.now += HOUR_US;
    assert_eq!(shard.rotate(endpoint, secret(20), HOUR_US), WebhookReply::Done);
}

#[test]
fn a_secret_is_never_printed() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let printed = format!("{:?} {:?}", shard.target_of(endpoint), creating(acme(), None, everything()));
    assert!(printed.contains("Secret(…)") && !printed.contains("1, 1, 1") && !printed.contains("\\x01"), "{printed}");
}

#[test]
fn headers_are_replaced_or_patched_whatever_their_case() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let set = |patch: bool, headers: &[(&str, Option<&str>)]| {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect();
        let endpoint = EndpointRef::Id(endpoint.endpoint);
        Action::SetHeaders(SetHeaders { app: acme(), endpoint, patch, headers })
    };
    let of = |shard: &Shard| shard.target_of(endpoint).unwrap().headers;
    let headers = |all: &[(&str, &str)]| -> Headers {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    shard.act(set(false, &[("X-One", Some("1")), ("x-two", Some("2"))]));
    assert_eq!(of(&shard), headers(&[("X-One", "1"), ("x-two", "2")]));
    shard.act(set(true, &[("x-one", Some("one")), ("X-Three", Some("3")), ("X-TWO", None), ("x-none", None)]));
    assert_eq!(of(&shard), headers(&[("x-one", "one"), ("X-Three", "3")]));
    let long = "v".repeat(HEADER_BYTES_MAX);
    assert_eq!(shard.refused(set(true, &[("x-long", Some(&long))])), Refusal::HeadersTooLarge);
    let names: Vec<String> = (0..=HEADERS_MAX).map(|n| format!("x-{n}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), Some("v"))).collect();
    assert_eq!(shard.refused(set(false, &many)), Refusal::HeadersTooLarge);
    assert_eq!(shard.act(set(false, &many[1..])), WebhookReply::Done);
    assert_eq!(of(&shard).len(), HEADERS_MAX);
    shard.act(set(false, &[]));
    assert_eq!(of(&shard), headers(&[]));
}

/// `acme` with two endpoints and more rows than one step removes, in every state.
fn with_much() -> (Shard, EndpointKey, EndpointKey) {
    let mut shard = Shard::with_acme();
    let (one, two) = (shard.endpoint_of(acme(), Some("one"), everything()), shard.endpoint(everything()));
    for n in 0..400 {
        shard.now += 1;
        let message = shard.publish(message_with_id(&format!("evt-{n}"), "{}"));
        match n % 4 {
            0 => {}
            1 => shard.report_one(one, message, 0, RETRY),
            2 => shard.report_one(one, message, 0, Verdict::Succeeded),
            _ => shard.report_one(one, message, 0, Verdict::Exhausted),
        }
        if n % 2 == 0 {
            shard.report_one(two, message, 0, RETRY);
        }
    }
    (shard, one, two)
}

/// Of all kinds that an application has.
fn rows_of_apps(shard: &Shard) -> usize {
    KINDS_OF_APP.iter().chain(&[Kind::Clearing]).map(|&kind| shard.rows_of(kind)).sum()
}

#[test]
fn a_deleted_application_leaves_nothing_behind_and_is_removed_in_bounded_steps() {
    let (mut shard, one, two) = with_much();
    let pending = shard.pending(one);
    shard.machine.take_moved();
    assert_eq!(shard.act(Action::DeleteApp { app: acme() }), WebhookReply::Done);
    assert_eq!(shard.machine.take_moved().len(), 2, "the dispatcher is told of both endpoints");
    assert_eq!([shard.target_of(one), shard.target_of(two)], [None, None]);
    assert_eq!(shard.refused(publishing(message("{}"))), Refusal::NoApp);
    // Outcomes of what was under way come too late, also while the rows go.
    let late = |shard: &mut Shard| {
        let rows = shard.rows.clone();
        let late = |item: &DueItem| outcome(one, item.message, 1, RETRY);
        assert_eq!(shard.report(pending.iter().map(late).collect()), 0);
        assert_eq!(shard.rows, rows);
    };
    late(&mut shard);
    let mut steps = 0;
    while rows_of_apps(&shard) > 0 {
        let before = rows_of_apps(&shard);
        shard.now += 1;
        shard.apply(Command::Expire { up_to: ShardTime(u64::MAX), limit: 1 });
        assert!(before - rows_of_apps(&shard) <= 1_025, "a step of {}", before - rows_of_apps(&shard));
        late(&mut shard);
        steps += 1;
    }
    assert!(steps > 2, "in {steps} steps");
    // A new one of the name has nothing of the old one.
    shard.app("acme");
    let new = shard.endpoint_of(acme(), Some("one"), everything());
    let message = shard.publish(message_with_id("evt-1", "other"));
    assert_eq!(sequence(&shard, new, message), 1);
    // The messages of the old one come up when their retention is over, and are not there.
    shard.report_one(new, message, 0, Verdict::Succeeded);
    shard.now += 2 * RETENTION_US;
    expire_all(&mut shard);
    assert!(shard.rows.expiry.is_empty());
    assert_eq!(shard.rows_of(Kind::Message), 0);
}

#[test]
fn a_deleted_endpoint_has_nothing_pending_and_its_neighbour_keeps_everything() {
    let (mut shard, one, two) = with_much();
    let (kept, attempts) = (shard.pending(two), shard.rows_of(Kind::Attempt));
    let late = shard.pending(one)[0].message;
    shard.delete_endpoint(one);
    assert_eq!(shard.target_of(one), None);
    assert_eq!(shard.report(vec![outcome(one, late, 0, Verdict::Succeeded)]), 0);
    let gone = &shard.deliveries_of(late)[0];
    assert_eq!((gone.endpoint_id, &gone.endpoint, gone.status), (one.endpoint, &None, DeliveryStatus::Failed));
    assert_eq!(gone.next_attempt_wall_ms, None, "nobody tries it any more");
    expire_all(&mut shard);
    assert!(shard.pending(one).is_empty());
    assert_eq!(shard.pending(two), kept);
    assert_eq!(pending_endpoints(&shard.rows, None, 9).unwrap().len(), 1);
    assert_eq!(shard.rows_of(Kind::Clearing), 0);
    assert_eq!(shard.rows_of(Kind::Attempt), attempts, "what was tried is listed with its message");
    let missing = shard.look(WebhookQuery::AttemptsOfEndpoint {
        app: acme(),
        endpoint: EndpointRef::Uid(name("one")),
        filter: AttemptFilter::default(),
        page: all_of_it(),
    });
    assert_eq!(missing, WebhookAnswer::NotFound(Missing::Endpoint));
    // It holds no message back.
    for item in kept {
        assert!(shard.report(vec![outcome(two, item.message, 1, Verdict::Succeeded)]) <= 1);
        shard.report(vec![outcome(two, item.message, 0, Verdict::Succeeded)]);
    }
    shard.now += RETENTION_US;
    expire_all(&mut shard);
    assert_eq!(
        (shard.rows_of(Kind::Delivery), shard.rows_of(Kind::Attempt), shard.rows_of(Kind::AttemptOfEndpoint)),
        (0, 0, 0)
    );
}

const KINDS_OF_MESSAGE: [Kind; 7] =
    [Kind::Message, Kind::Payload, Kind::EventId, Kind::Delivery, Kind::Due, Kind::Attempt, Kind::AttemptOfEndpoint];

fn rows_of_messages(shard: &Shard) -> usize {
    KINDS_OF_MESSAGE.iter().map(|&kind| shard.rows_of(kind)).sum()
}

#[test]
fn a_message_goes_with_all_that_belongs_to_it_when_its_retention_is_over() {
    let mut shard = Shard::with_acme();
    let (one, two) = (shard.endpoint(everything()), shard.endpoint(everything()));
    let message = shard.publish(message_with_id("evt", "{}"));
    shard.report_one(one, message, 0, RETRY);
    shard.report_one(one, message, 1, Verdict::Succeeded);
    shard.report_one(two, message, 0, Verdict::Exhausted);
    shard.now += RETENTION_US - 1;
    shard.expire();
    assert_eq!(shard.attempts_of(message).len(), 3);
    assert!(shard.payload_of(message).is_some());
    shard.now += 1;
    assert_eq!(shard.expire(), 1);
    assert_eq!((rows_of_messages(&shard), shard.rows.expiry.len()), (0, 0));
}

#[test]
fn a_message_with_more_attempts_than_one_step_removes_goes_in_several() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let message = shard.publish(message("{}"));
    for tries in 0..1_500 {
        shard.report_one(endpoint, message, tries, Verdict::Retry { after_us: 0 });
    }
    shard.report_one(endpoint, message, 1_500, Verdict::Succeeded);
    shard.now += RETENTION_US;
    assert_eq!(shard.expire(), 1);
    assert!(rows_of_messages(&shard) > 0);
    expire_all(&mut shard);
    assert_eq!((rows_of_messages(&shard), shard.rows.expiry.len()), (0, 0));
}

#[test]
fn a_pending_delivery_keeps_its_message_unless_its_endpoint_is_disabled_or_gone() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let message = shard.publish(message("{}"));
    shard.report_one(endpoint, message, 0, Verdict::Retry { after_us: 2 * RETENTION_US });
    shard.now += RETENTION_US + DAY_US;
    expire_all(&mut shard);
    assert_eq!(shard.payload_of(message), Some(Bytes::from_static(b"{}")));
    assert!(pending_delivery(&shard.rows, endpoint, message).unwrap().is_some());

    for way in 0..3 {
        let mut shard = shard.reopened();
        match way {
            0 => shard.report_one(endpoint, message, 1, Verdict::Succeeded),
            1 => shard.set_disabled(endpoint, true),
            _ => shard.delete_endpoint(endpoint),
        }
        // It is looked at every hour.
        shard.now += HOUR_US;
        expire_all(&mut shard);
        assert_eq!((rows_of_messages(&shard), shard.rows.expiry.len()), (0, 0), "{way}");
    }
}

#[test]
fn a_payload_goes_before_the_rest_where_its_publisher_asked_for_it() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let sensitive = |id: &str| NewMessage { payload_retention_us: Some(DAY_US), ..message_with_id(id, "{}") };
    let (delivered, pending) = (shard.publish(sensitive("1")), shard.publish(sensitive("2")));
    shard.report_one(endpoint, delivered, 0, Verdict::Succeeded);
    shard.now += DAY_US - 1;
    shard.expire();
    assert!(shard.payload_of(delivered).is_some());
    shard.now += 1;
    expire_all(&mut shard);
    assert_eq!(shard.payload_of(delivered), None);
    assert!(shard.payload_of(pending).is_some(), "it is still to be delivered");
    assert_eq!(shard.attempts_of(delivered).len(), 1);
    assert_eq!(shard.publish_again(sensitive("1")), (delivered, true), "its event id is known");

    // Of a disabled endpoint nothing is kept back: what was pending is given up.
    shard.set_disabled(endpoint, true);
    shard.now += HOUR_US;
    expire_all(&mut shard);
    assert_eq!(shard.payload_of(pending), None);
    assert_eq!(shard.status(endpoint, pending), Some(DeliveryStatus::Failed));
    shard.set_disabled(endpoint, false);
    assert!(shard.pending(endpoint).is_empty());
    shard.now += RETENTION_US;
    expire_all(&mut shard);
    assert_eq!((rows_of_messages(&shard), shard.rows.expiry.len()), (0, 0));

    // Longer than the rest it is not kept.
    let longer = NewMessage { payload_retention_us: Some(2 * RETENTION_US), ..message("{}") };
    let longer = shard.publish(longer);
    shard.report_one(endpoint, longer, 0, Verdict::Succeeded);
    shard.now += RETENTION_US;
    expire_all(&mut shard);
    assert_eq!(rows_of_messages(&shard), 0);
}

#[test]
fn operational_endpoints_are_copied_whole_and_only_upwards() {
    let (mut shard, told) = with_operational();
    let endpoint = shard.endpoint(everything());
    let messages = [(); 2].map(|()| shard.publish(message("{}")));
    shard.report_one(endpoint, messages[0], 0, Verdict::Exhausted);
    let numbered = shard.delivery(told, shard.due_now(told)[0]).unwrap().sequence;
    let rows = shard.rows.clone();
    for older in [0, 1] {
        assert_eq!(shard.copy_operational(older, vec![]), 1);
    }
    assert_eq!(shard.rows, rows);

    let moved = EndpointSpec { url: "https://other.example".to_owned(), ..everything() };
    let former = vec![(secret(8), HOUR_US)];
    shard.copy_operational(7, vec![OperationalEndpoint { spec: moved, former, ..operational(told.endpoint) }]);
    assert_eq!(shard.look(WebhookQuery::OperationalRevision), WebhookAnswer::OperationalRevision(7));
    let target = shard.target_of(told).unwrap();
    assert_eq!((target.url.as_str(), target.secrets), ("https://other.example", vec![secret(9), secret(8)]));
    shard.now += HOUR_US;
    assert_eq!(shard.secrets_of(told), [secret(9)], "the grace runs by this shard's clock");
    shard.report_one(endpoint, messages[1], 0, Verdict::Exhausted);
    let second = *shard.due_now(told).last().unwrap();
    assert_eq!(shard.delivery(told, second).unwrap().sequence, numbered + 1, "the copy keeps what it counts");

    // One that is not among them is removed, with what is pending.
    shard.copy_operational(8, vec![]);
    assert_eq!(shard.target_of(told), None);
    expire_all(&mut shard);
    assert!(shard.pending(told).is_empty());
    let kinds = [Kind::Clearing, Kind::EndpointState].map(|kind| shard.rows_of(kind));
    assert_eq!(kinds, [0, 1], "only that of acme's endpoint is left");
    shard.now += RETENTION_US;
    expire_all(&mut shard);
    assert_eq!(rows_of_messages(&shard), 0);
}

#[test]
fn the_system_shard_counts_each_change_of_an_operational_endpoint() {
    let mut shard = Shard::system();
    let all = |shard: &Shard| match shard.look(WebhookQuery::Operational) {
        WebhookAnswer::Operational(copy) => copy,
        other => panic!("{other:?}"),
    };
    let endpoint = shard.endpoint_of(AppRef::Operational, Some("ops"), everything()).endpoint;
    assert_eq!(all(&shard).revision, 1);
    let rotate = |secret, grace_us| {
        let endpoint = EndpointRef::Uid(name("ops"));
        Action::RotateSecret(RotateSecret { app: AppRef::Operational, endpoint, secret, grace_us })
    };
    assert_eq!(shard.act(rotate(secret(2), HOUR_US)), WebhookReply::Done);
    shard.now += HOUR_US / 2;
    shard.apply_all(vec![]);
    let copy = all(&shard);
    assert_eq!((copy.revision, copy.endpoints.len()), (2, 1));
    let copied = &copy.endpoints[0];
    assert_eq!((copied.id, &copied.secret), (endpoint, &secret(2)));
    assert_eq!(copied.former, [(secret(1), HOUR_US / 2)], "with the time that is left");
    let app = AppRef::Operational;
    let patch = EndpointPatch { uid: Some(None), disabled: Some(true), ..EndpointPatch::default() };
    shard.act(Action::PatchEndpoint(PatchEndpoint { app: app.clone(), endpoint: EndpointRef::Id(endpoint), patch }));
    shard.act(Action::SetHeaders(SetHeaders {
        app: app.clone(),
        endpoint: EndpointRef::Id(endpoint),
        patch: false,
        headers: BTreeMap::new(),
    }));
    assert_eq!(all(&shard).revision, 4);
    assert!(all(&shard).endpoints[0].spec.disabled);
    shard.act(Action::DeleteEndpoint(DeleteEndpoint { app, endpoint: EndpointRef::Id(endpoint) }));
    assert_eq!(all(&shard), CopyOperational { revision: 5, endpoints: vec![] });
    expire_all(&mut shard);
    assert!(shard.rows.expiry.is_empty());
    // To the cluster itself nothing but endpoints belongs.
    for action in [
        Action::PutApp(PutApp { app: AppRef::Operational, uid: None, spec: app_spec("x") }),
        Action::PatchApp(PatchApp { app: AppRef::Operational, patch: AppPatch::default() }),
        Action::DeleteApp { app: AppRef::Operational },
        Action::Publish(Publish { app: AppRef::Operational, message: message("{}"), retention_us: 1 }),
    ] {
        assert_eq!(shard.refused(action), Refusal::NoApp);
    }
}

fn event_type_spec(description: &str) -> EventTypeSpec {
    EventTypeSpec {
        description: description.to_owned(),
        archived: false,
        deprecated: false,
        feature_flag: None,
        group_name: None,
        schemas: None,
    }
}

#[test]
fn event_types_are_archived_and_come_back_or_are_expunged() {
    let mut shard = Shard::system();
    let change = |change| Action::EventType(change);
    let (create, put) = (
        |of: &str| change(EventTypeChange::Create { name: name(of), spec: event_type_spec("first") }),
        |of: &str| change(EventTypeChange::Put { name: name(of), spec: event_type_spec("put") }),
    );
    let delete = |of: &str, expunge| change(EventTypeChange::Delete { name: name(of), expunge });
    let stored = |reply: WebhookReply| match reply {
        WebhookReply::EventType { event_type, created } => (event_type, created),
        other => panic!("{other:?}"),
    };
    let (first, created) = stored(shard.act(create("user.created")));
    assert!(created);
    assert_eq!(shard.refused(create("user.created")), Refusal::Taken);
    shard.now += SECOND_US;
    assert_eq!(shard.act(delete("user.created", false)), WebhookReply::Done);
    let (again, created) = stored(shard.act(create("user.created")));
    assert_eq!((again.spec.archived, created, again.created_wall_ms), (false, true, first.created_wall_ms));
    assert!(!stored(shard.act(put("user.created"))).1 && stored(shard.act(put("user.deleted"))).1);
    let patch = EventTypePatch { deprecated: Some(true), group_name: Some(Some(name("user"))), ..Default::default() };
    let (patched, _) = stored(shard.act(change(EventTypeChange::Patch { name: name("user.deleted"), patch })));
    assert_eq!((patched.spec.description.as_str(), patched.spec.deprecated), ("put", true));

    assert_eq!(shard.act(delete("user.created", true)), WebhookReply::Done);
    let get = |of: &str| shard.look(WebhookQuery::EventType { name: name(of) });
    assert_eq!(get("user.created"), WebhookAnswer::NotFound(Missing::EventType));
    assert_eq!(get("user.deleted"), WebhookAnswer::EventType(patched));
    assert_eq!(shard.refused(delete("user.created", true)), Refusal::NoEventType);

    for n in 1..EVENT_TYPES_MAX {
        shard.act(create(&format!("t{n}")));
    }
    assert_eq!(shard.refused(create("more")), Refusal::TooMany { max: EVENT_TYPES_MAX });
    assert_eq!(shard.act(delete("t7", true)), WebhookReply::Done);
    assert!(stored(shard.act(create("more"))).1, "one that is gone makes room");
}

#[test]
fn event_types_are_listed_page_by_page_in_both_orders_and_both_directions() {
    let mut shard = Shard::system();
    let names: Vec<String> = (10..31).map(|n| format!("t{n}")).collect();
    for of in &names {
        let spec = EventTypeSpec { archived: of.ends_with('5'), ..event_type_spec("") };
        shard.act(Action::EventType(EventTypeChange::Put { name: name(of), spec }));
    }
    for (limit, include_archived, descending) in every_way() {
        let page = |cursor: Option<Name>, backwards: bool| {
            let list = WebhookQuery::EventTypes { cursor, backwards, descending, include_archived, limit };
            match shard.look(list) {
                WebhookAnswer::EventTypes { items, done } => {
                    let names: Vec<String> = items.iter().map(|item| item.name.as_str().to_owned()).collect();
                    (names, done)
                }
                other => panic!("{other:?}"),
            }
        };
        let mut expected: Vec<String> =
            names.iter().filter(|of| include_archived || !of.ends_with('5')).cloned().collect();
        if descending {
            expected.reverse();
        }
        for backwards in [false, true] {
            let (mut found, mut cursor) = (Vec::new(), None);
            loop {
                let (items, done) = page(cursor, backwards);
                assert!(items.len() <= limit as usize);
                let next = if backwards { items.first() } else { items.last() };
                cursor = next.map(|next| name(next));
                found = if backwards { [items, found].concat() } else { [found, items].concat() };
                if done {
                    break;
                }
            }
            assert_eq!(found, expected, "{limit} {include_archived} {descending} {backwards}");
        }
    }
}

fn every_way() -> impl Iterator<Item = (u32, bool, bool)> {
    [1, 2, 3, 7, 21, 22, 250].into_iter().flat_map(|limit| {
        [(false, false), (false, true), (true, false), (true, true)].map(|(one, two)| (limit, one, two))
    })
}

/// Everything that a list has, by pages in one direction; checks that each page has at most `limit` items.
fn walk<T: Clone>(limit: u32, backwards: bool, descending: bool, list: impl Fn(PageIn) -> Page<T>) -> Vec<T> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = list(PageIn { cursor, backwards, descending, limit });
        assert!(page.items.len() <= limit as usize);
        assert!(page.done || page.cursor.is_some(), "a page that is not the last one gets further");
        found = if backwards { [page.items, found].concat() } else { [found, page.items].concat() };
        cursor = page.cursor;
        if page.done {
            return found;
        }
    }
}

/// The list is the same whichever way it is walked.
fn assert_pages<T: Clone + PartialEq + std::fmt::Debug>(expected: &[T], list: impl Fn(PageIn) -> Page<T>) {
    for (limit, backwards, descending) in every_way() {
        let mut expected = expected.to_vec();
        if descending {
            expected.reverse();
        }
        assert_eq!(walk(limit, backwards, descending, &list), expected, "{limit} {backwards} {descending}");
    }
}

#[test]
fn every_list_has_everything_once_whichever_way_it_is_walked() {
    let mut shard = Shard::with_acme();
    let apps: Vec<_> = std::iter::once(shard.app_id()).chain((0..20).map(|_| shard.create_app(None).id)).collect();
    assert_pages(&apps, |page| match shard.look(WebhookQuery::Apps { page }) {
        WebhookAnswer::Apps(Page { items, done, cursor }) => {
            Page { items: items.iter().map(|app| app.id).collect(), done, cursor }
        }
        other => panic!("{other:?}"),
    });
    let endpoints: Vec<_> = (0..21).map(|_| shard.endpoint(everything())).collect();
    let ids: Vec<_> = endpoints.iter().map(|endpoint| endpoint.endpoint).collect();
    assert_pages(&ids, |page| match shard.look(WebhookQuery::Endpoints { app: acme(), page }) {
        WebhookAnswer::Endpoints(Page { items, done, cursor }) => {
            Page { items: items.iter().map(|endpoint| endpoint.id).collect(), done, cursor }
        }
        other => panic!("{other:?}"),
    });
    let messages: Vec<_> = (0..21).map(|n| shard.publish(message(&n.to_string()))).collect();
    for with_payload in [false, true] {
        assert_pages(&messages, |page| {
            let filter = MessageFilter::default();
            match shard.look(WebhookQuery::Messages { app: acme(), filter, with_payload, page }) {
                WebhookAnswer::Messages(Page { items, done, cursor }) => {
                    assert!(items.iter().all(|item| item.payload.is_some() == with_payload));
                    Page { items: items.iter().map(|message| message.id).collect(), done, cursor }
                }
                other => panic!("{other:?}"),
            }
        });
    }
    let message = MessageRef::Id(messages[3]);
    assert_pages(&ids, |page| {
        match shard.look(WebhookQuery::Deliveries { app: acme(), message: message.clone(), page }) {
            WebhookAnswer::Deliveries(Page { items, done, cursor }) => {
                Page { items: items.iter().map(|delivery| delivery.endpoint_id).collect(), done, cursor }
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn attempts_are_listed_by_message_and_by_endpoint_with_their_filters() {
    let mut shard = Shard::with_acme();
    let endpoints: Vec<_> = (0..21).map(|_| shard.endpoint(everything())).collect();
    let tagged =
        NewMessage { tags: vec!["eu".to_owned()], channels: vec!["c".to_owned()], ..message_with_id("evt", "{}") };
    let first = shard.publish(tagged);
    let others: Vec<_> =
        (0..20).map(|_| shard.publish(NewMessage { event_type: name("other"), ..message("{}") })).collect();
    for &endpoint in &endpoints {
        shard.report_one(endpoint, first, 0, if endpoint == endpoints[0] { RETRY } else { Verdict::Succeeded });
    }
    for &other in &others {
        shard.report_one(endpoints[0], other, 0, Verdict::Exhausted);
    }
    let of_message = |filter: AttemptFilter| {
        let shard = &shard;
        move |page: PageIn| {
            let (message, filter) = (MessageRef::EventId(name("evt")), filter.clone());
            match shard.look(WebhookQuery::AttemptsOfMessage { app: acme(), message, filter, page }) {
                WebhookAnswer::Attempts(Page { items, done, cursor }) => {
                    Page { items: items.iter().map(|item| (item.message, item.endpoint)).collect(), done, cursor }
                }
                other => panic!("{other:?}"),
            }
        }
    };
    let of_endpoint = |filter: AttemptFilter| {
        let (shard, endpoint) = (&shard, endpoints[0].endpoint);
        move |page: PageIn| {
            let (endpoint, filter) = (EndpointRef::Id(endpoint), filter.clone());
            match shard.look(WebhookQuery::AttemptsOfEndpoint { app: acme(), endpoint, filter, page }) {
                WebhookAnswer::Attempts(Page { items, done, cursor }) => {
                    Page { items: items.iter().map(|item| item.message).collect(), done, cursor }
                }
                other => panic!("{other:?}"),
            }
        }
    };
    let all = AttemptFilter::default;
    let of_type = |of: &str| MessageFilter { event_types: Some(vec![name(of)]), ..MessageFilter::default() };
    let by_message: Vec<_> = endpoints.iter().map(|endpoint| (first, endpoint.endpoint)).collect();
    assert_pages(&by_message, of_message(all()));
    let one = Some(EndpointRef::Id(endpoints[4].endpoint));
    assert_pages(&by_message[4..5], of_message(AttemptFilter { endpoint: one, ..all() }));
    assert_pages(&by_message[1..], of_message(AttemptFilter { status: Some(AttemptStatus::Succeeded), ..all() }));
    assert_pages(&by_message[..1], of_message(AttemptFilter { status_code_class: Some(5), ..all() }));
    assert_pages(&[], of_message(AttemptFilter { message: of_type("other"), ..all() }));

    let by_endpoint: Vec<_> = [&[first], &others[..]].concat();
    assert_pages(&by_endpoint, of_endpoint(all()));
    assert_pages(&others, of_endpoint(AttemptFilter { message: of_type("other"), ..all() }));
    assert_pages(&[first], of_endpoint(AttemptFilter { status: Some(AttemptStatus::Retrying), ..all() }));
    assert_pages(&by_endpoint, of_endpoint(AttemptFilter { status: Some(AttemptStatus::Failed), ..all() }));
    let tag = MessageFilter { tag: Some("eu".to_owned()), ..MessageFilter::default() };
    assert_pages(&[first], of_endpoint(AttemptFilter { message: tag, ..all() }));
    let before = MessageFilter { before_wall_ms: Some(1_700_000_000_000), ..MessageFilter::default() };
    assert_pages(&[], of_endpoint(AttemptFilter { message: before, ..all() }));

    let attempt = shard.attempts_of(first).remove(2);
    let get = |message: MessageId| {
        shard.look(WebhookQuery::Attempt { app: acme(), message: MessageRef::Id(message), attempt: attempt.id })
    };
    assert_eq!(get(first), WebhookAnswer::Attempt(attempt.clone()));
    assert_eq!(get(others[0]), WebhookAnswer::NotFound(Missing::Attempt));
}

#[test]
fn messages_are_listed_by_type_channel_tag_and_time() {
    let mut shard = Shard::with_acme();
    let mut messages = Vec::new();
    for n in 0..12_u32 {
        shard.now += SECOND_US;
        let (event_type, channel, tag) = (format!("t{}", n % 2), format!("c{}", n % 3), format!("g{}", n % 4));
        messages.push(shard.publish(NewMessage {
            event_type: name(&event_type),
            channels: vec!["all".to_owned(), channel],
            tags: vec![tag],
            ..message("{}")
        }));
    }
    let wall_ms = |n: u64| 1_700_000_000_000 + 2_000 + n * 1_000;
    let list = |filter: MessageFilter| {
        let shard = &shard;
        move |page: PageIn| match shard.look(WebhookQuery::Messages {
            app: acme(),
            filter: filter.clone(),
            with_payload: true,
            page,
        }) {
            WebhookAnswer::Messages(Page { items, done, cursor }) => {
                Page { items: items.iter().map(|message| message.id).collect(), done, cursor }
            }
            other => panic!("{other:?}"),
        }
    };
    let none = MessageFilter::default;
    let every = |step: usize, from: usize| messages[from..].iter().step_by(step).copied().collect::<Vec<_>>();
    assert_pages(&every(2, 1), list(MessageFilter { event_types: Some(vec![name("t1"), name("t9")]), ..none() }));
    assert_pages(&every(3, 2), list(MessageFilter { channel: Some("c2".to_owned()), ..none() }));
    assert_pages(&messages, list(MessageFilter { channel: Some("all".to_owned()), ..none() }));
    assert_pages(&every(4, 3), list(MessageFilter { tag: Some("g3".to_owned()), ..none() }));
    assert_pages(&messages[..5], list(MessageFilter { before_wall_ms: Some(wall_ms(5)), ..none() }));
    assert_pages(&messages[6..], list(MessageFilter { after_wall_ms: Some(wall_ms(5)), ..none() }));
    assert_pages(&[], list(MessageFilter { event_types: Some(vec![]), ..none() }));
}

#[test]
fn a_page_comes_short_rather_than_slow_or_large_and_goes_on() {
    let mut shard = Shard::with_acme();
    let large = "x".repeat(PAYLOAD_BYTES_MAX);
    let messages: Vec<_> = (0..9).map(|_| shard.publish(message(&large))).collect();
    let list = |page| match shard.look(WebhookQuery::Messages {
        app: acme(),
        filter: MessageFilter::default(),
        with_payload: true,
        page,
    }) {
        WebhookAnswer::Messages(page) => page,
        other => panic!("{other:?}"),
    };
    let page = list(all_of_it());
    assert!(!page.done && page.items.len() < 6, "{} items", page.items.len());
    assert_pages(&messages, |page| {
        let Page { items, done, cursor } = list(page);
        Page { items: items.iter().map(|message| message.id).collect(), done, cursor }
    });

    let mut shard = Shard::with_acme();
    for _ in 0..PAGE_ROWS_READ_MAX {
        shard.publish(message("{}"));
    }
    let rare = shard.publish(NewMessage { event_type: name("rare"), ..message("{}") });
    let filter = MessageFilter { event_types: Some(vec![name("rare")]), ..MessageFilter::default() };
    let list = |page| match shard.look(WebhookQuery::Messages {
        app: acme(),
        filter: filter.clone(),
        with_payload: false,
        page,
    }) {
        WebhookAnswer::Messages(page) => page,
        other => panic!("{other:?}"),
    };
    let page = list(all_of_it());
    assert!(page.items.is_empty() && !page.done && page.cursor.is_some());
    let page = list(PageIn { cursor: page.cursor, ..all_of_it() });
    assert!(page.items[0].id == rare && page.done);
}

#[test]
fn a_command_on_the_wrong_kind_of_shard_changes_nothing() {
    let mut data = Shard::with_acme();
    data.publish(message("{}"));
    let event_type = Action::EventType(EventTypeChange::Put { name: name("user.created"), spec: event_type_spec("") });
    for mut shard in [data.reopened(), Shard::system()] {
        let of_data = vec![
            Command::Webhook(Box::new(shard.webhook(publishing(message("{}"))))),
            Command::Webhook(Box::new(shard.webhook(creating(acme(), None, everything())))),
            Command::Webhook(Box::new(shard.webhook(Action::CreateApp(CreateApp {
                uid: None,
                spec: app_spec("x"),
                get_if_exists: true,
            })))),
            Command::RecordOutcomes(shard.recording(vec![])),
            Command::CopyOperational(CopyOperational { revision: 1, endpoints: vec![] }),
        ];
        let of_system = vec![
            Command::Webhook(Box::new(shard.webhook(event_type.clone()))),
            Command::Webhook(Box::new(shard.webhook(creating(AppRef::Operational, None, everything())))),
        ];
        shard.apply_all(vec![]);
        let rows = shard.rows.clone();
        for command in if shard.id.is_system() { of_data } else { of_system } {
            assert_eq!(shard.apply(command), Reply::Misrouted);
        }
        assert_eq!(shard.rows, rows);
        let page = all_of_it();
        let of_data = [WebhookQuery::Apps { page }, WebhookQuery::App { app: acme() }];
        let of_system = [
            WebhookQuery::EventType { name: name("user.created") },
            WebhookQuery::Endpoints { app: AppRef::Operational, page },
        ];
        for query in if shard.id.is_system() { of_data } else { of_system } {
            assert_eq!(shard.ask(Query::Webhook(query)), Answer::Misrouted);
        }
    }
}
