//! Messages: whom they go to, under which numbers, and what a repeated call comes to.

use std::collections::BTreeSet;

use bytes::Bytes;
use onceward_core::{
    codec::keys::Kind,
    idempotency::{CompleteReply, PublishedMessage, RecordState},
    webhooks::*,
};

use crate::{
    SECOND_US, expire_all,
    kit::{Shard, webhooks::*},
    sequence,
};

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
        let create = CreateApp { uid: None, spec: app_spec("Other"), get_if_exists: false };
        let reply = shard.act_once(scope, key, 3, Action::CreateApp(create));
        assert!(matches!(reply, WebhookReply::App { created: true, .. }), "{scope} {key}");
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
fn a_message_is_found_by_an_event_id_that_reads_as_an_id() {
    let mut shard = Shard::with_acme();
    let plain = shard.publish(message("{}"));
    let other_cluster = format!("msg_{:027}", 4_711);
    let forwarded = shard.publish(message_with_id(&other_cluster, "{}"));
    let by = |shard: &Shard, text: &str| {
        let message = MessageRef::parse(text).unwrap();
        match shard.look(WebhookQuery::Message { app: acme(), message, with_payload: false }) {
            WebhookAnswer::Message(message) => Some(message.id),
            _ => None,
        }
    };
    assert_eq!(by(&shard, &other_cluster), Some(forwarded));
    assert_eq!(by(&shard, &plain.to_string()), Some(plain));
    shard.publish(message_with_id(&plain.to_string(), "{}"));
    assert_eq!(by(&shard, &plain.to_string()), Some(plain), "a message of that id goes first");
}

#[test]
fn the_answers_of_a_deleted_application_are_none_for_its_successor() {
    let mut shard = Shard::with_acme();
    let publish = || publishing(message("{}"));
    let published = |reply| match reply {
        WebhookReply::Published { message, .. } => message.id,
        other => panic!("{other:?}"),
    };
    let first = published(shard.act_once("acme", "k", 1, publish()));
    let by_id = Action::Publish(Publish {
        app: AppRef::Id(shard.app_id()),
        message: message("{}"),
        retention_us: RETENTION_US,
    });
    assert_eq!(published(shard.act_once("another name for it", "k", 1, by_id)), first, "whatever it was called by");
    shard.now += 1;
    assert_eq!(shard.act(Action::DeleteApp { app: acme() }), WebhookReply::Done);
    assert_eq!(shard.act_once("acme", "k", 1, publish()), WebhookReply::Refused(Refusal::NoApp));
    shard.app("acme");
    assert_ne!(published(shard.act_once("acme", "k", 1, publish())), first);
}
