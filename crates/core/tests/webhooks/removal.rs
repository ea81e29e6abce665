//! What goes, when, and that nothing is left of it.

use bytes::Bytes;
use onceward_core::{
    codec::keys::Kind,
    command::*,
    time::ShardTime,
    webhooks::{bounds::ENDPOINTS_MAX, *},
};

use crate::{
    HOUR_US, RETRY, expire_all,
    kit::{Shard, webhooks::*},
    rows_of_messages, sequence,
};

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
fn what_goes_in_masses_goes_in_entries_that_hold_nobody_up() {
    let mut shard = Shard::with_acme();
    let endpoints: Vec<_> = (0..ENDPOINTS_MAX).map(|_| shard.endpoint(everything())).collect();
    for _ in 0..80 {
        let message = shard.publish(message("{}"));
        shard.report(endpoints.iter().map(|&endpoint| outcome(endpoint, message, 0, Verdict::Succeeded)).collect());
    }
    shard.now += RETENTION_US;
    let mut entries = 0;
    while rows_of_messages(&shard) > 0 {
        let before = rows_of_messages(&shard);
        shard.expire();
        let gone = before - rows_of_messages(&shard);
        assert!((1..10_000).contains(&gone), "{gone} rows");
        entries += 1;
    }
    assert!(entries > 2, "in {entries} entries");
    assert!(shard.rows.expiry.is_empty());
}
