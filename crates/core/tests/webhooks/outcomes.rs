//! Outcomes: what they make of deliveries and endpoints, and who is told.

use onceward_core::{
    codec::keys::{self, Kind},
    time::ShardTime,
    webhooks::*,
};

use crate::{
    HOUR_US, RETRY, SECOND_US,
    kit::{Shard, webhooks::*},
    with_operational,
};

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
    let state = keys::endpoint_state(endpoint);
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
