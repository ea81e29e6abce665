//! A shard's deliveries from publication to the recorded outcome, through everything that may come between.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use onceward_core::webhooks::{Action, AttemptStatus, EndpointPatch, EndpointRef, RotateSecret};
use onceward_dispatch::{DispatchConfig, sign};
use tokio::time::{Instant, sleep};

use crate::kit::{
    Answer, Counting, Fault, Received, Receiver, Shard, acme, config, dispatch, dispatch_over, dispatch_with, ok,
    secret, until,
};

/// What a receiver checks, with the keys of the secrets that it knows.
fn signed_with(received: &Received, fills: &[u8]) -> bool {
    let header = |name: &str| received.headers[name].as_str();
    let timestamp_s = header("webhook-timestamp").parse().unwrap();
    let secrets: Vec<_> = fills.iter().map(|fill| secret(*fill)).collect();
    let keys = secrets.iter().map(|secret| secret.reveal());
    header("webhook-signature") == sign(keys, header("webhook-id"), timestamp_s, &received.body)
}

#[tokio::test]
async fn a_message_arrives_signed_in_sequence_and_byte_for_byte_and_is_recorded() {
    let receiver = Receiver::always(ok(200)).await;
    let shard = Shard::leading();
    let endpoint = shard.endpoint(&receiver.url());
    let dispatch = dispatch(&shard, config()).await;
    let mut messages = Vec::new();
    for number in 1..=3 {
        let payload = format!("{{ \"number\":{number} }} ");
        messages.push(shard.publish(&receiver.url(), &payload));
        until("it arrives", || receiver.received().len() == number).await;
        let received = receiver.received().remove(number - 1);
        assert_eq!(received.headers["webhook-id"], messages[number - 1].to_string());
        assert_eq!(received.headers["onceward-sequence"], number.to_string());
        assert_eq!(received.body, payload.as_bytes());
        assert!(signed_with(&received, &[1]));
    }
    until("all is recorded", || shard.pending() == 0).await;
    for message in messages {
        let attempts = shard.attempts(message);
        assert_eq!(attempts.len(), 1);
        assert_eq!((attempts[0].endpoint, attempts[0].status), (endpoint, AttemptStatus::Succeeded));
        assert_eq!((attempts[0].answer.status_code, attempts[0].answer.url.as_str()), (200, receiver.url().as_str()));
    }
    let stats = dispatch.stats();
    assert_eq!((stats.attempts_2xx, stats.outcomes_recorded, stats.in_flight), (3, 3, 0));
    assert_eq!(stats.lag_counts.iter().sum::<u64>(), 3);
}

/// Rotated secret not used while traffic kept a cache warm.
#[tokio::test]
async fn a_rotated_secret_signs_at_once_and_the_former_one_beside_it_for_its_grace() {
    let receiver = Receiver::always(ok(200)).await;
    let shard = Shard::leading();
    let endpoint = shard.endpoint(&receiver.url());
    let _dispatch = dispatch(&shard, config()).await;
    let mut sent = 0;
    let mut next = async || {
        shard.publish(&receiver.url(), "{}");
        sent += 1;
        until("it arrives", || receiver.received().len() == sent).await;
        receiver.received().remove(sent - 1)
    };
    assert!(signed_with(&next().await, &[1]));
    let (app, endpoint) = (acme(), EndpointRef::Id(endpoint));
    shard.act(Action::RotateSecret(RotateSecret { app, endpoint, secret: secret(2), grace_us: 3_600_000_000 }));
    assert!(signed_with(&next().await, &[2, 1]));
    shard.set_forward(3_600);
    assert!(signed_with(&next().await, &[2]));
}

#[tokio::test]
async fn a_failed_delivery_is_retried_by_the_schedule_with_the_same_id_sequence_and_body() {
    let receiver = Receiver::start(|number, _| if number < 2 { ok(500) } else { ok(204) }).await;
    let shard = Shard::leading();
    shard.endpoint(&receiver.url());
    let _dispatch = dispatch(&shard, config()).await;
    let message = shard.publish(&receiver.url(), "{\"a\": 1}");
    until("it is delivered", || shard.pending() == 0).await;
    let received = receiver.received();
    let statuses: Vec<_> = shard.attempts(message).iter().map(|attempt| attempt.status).collect();
    assert_eq!(statuses, [AttemptStatus::Retrying, AttemptStatus::Retrying, AttemptStatus::Succeeded]);
    for again in &received[1..] {
        assert_eq!(again.body, received[0].body);
        for header in ["webhook-id", "onceward-sequence"] {
            assert_eq!(again.headers[header], received[0].headers[header]);
        }
    }
    // 100 ms and 200 ms, a fifth less at the least.
    assert!(received[1].at - received[0].at >= Duration::from_millis(80));
    assert!(received[2].at - received[1].at >= Duration::from_millis(160));
}

/// Permanently failing delivery retried every 30 s for ever.
#[tokio::test]
async fn when_the_schedule_ends_the_delivery_is_given_up() {
    let receiver = Receiver::always(ok(503)).await;
    let shard = Shard::leading();
    shard.endpoint(&receiver.url());
    let _dispatch = dispatch(&shard, config()).await;
    let message = shard.publish(&receiver.url(), "{}");
    until("it is given up", || shard.pending() == 0).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(receiver.received().len(), 3);
    assert_eq!(shard.attempts(message)[2].status, AttemptStatus::Failed);
}

/// 410 Gone ignored.
#[tokio::test]
async fn an_endpoint_that_is_gone_is_disabled_and_one_that_is_enabled_again_receives() {
    let receiver = Receiver::start(|number, _| if number == 0 { ok(410) } else { ok(200) }).await;
    let shard = Shard::leading();
    let endpoint = shard.endpoint(&receiver.url());
    let _dispatch = dispatch(&shard, config()).await;
    shard.publish(&receiver.url(), "{}");
    until("it is disabled", || shard.is_disabled(endpoint)).await;
    shard.publish(&receiver.url(), "{}");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(receiver.received().len(), 1);
    shard.patch(endpoint, EndpointPatch { disabled: Some(false), ..EndpointPatch::default() });
    let message = shard.publish(&receiver.url(), "{}");
    until("it receives again", || receiver.received().len() == 2).await;
    assert_eq!(receiver.received()[1].headers["webhook-id"], message.to_string());
}

#[tokio::test]
async fn a_disabled_endpoint_gets_nothing_that_is_due_and_a_new_url_gets_the_retry() {
    let (old, new) = (Receiver::always(ok(500)).await, Receiver::always(ok(200)).await);
    let shard = Shard::leading();
    let endpoint = shard.endpoint(&old.url());
    let _dispatch = dispatch(&shard, config()).await;
    let message = shard.publish(&old.url(), "{}");
    until("it has failed", || shard.attempts(message).len() == 1).await;
    shard.patch(endpoint, EndpointPatch { disabled: Some(true), ..EndpointPatch::default() });
    sleep(Duration::from_millis(300)).await;
    assert_eq!(old.received().len(), 1);
    let url = Some(new.url());
    shard.patch(endpoint, EndpointPatch { url, disabled: Some(false), ..EndpointPatch::default() });
    until("it arrives", || new.received().len() == 1).await;
    assert_eq!(old.received().len(), 1);
}

/// Outcomes are recorded in batches: far fewer log entries than attempts.
#[tokio::test]
async fn many_outcomes_share_a_report_and_nothing_is_sent_twice() {
    let receiver = Receiver::always(ok(200)).await;
    let shard = Shard::leading();
    shard.endpoint(&receiver.url());
    let dispatch = dispatch(&shard, config()).await;
    for _ in 0..1_000 {
        shard.publish(&receiver.url(), "{}");
    }
    until("all is delivered", || shard.pending() == 0).await;
    let received = receiver.received();
    assert_eq!(received.len(), 1_000);
    let mut sequences: Vec<u64> =
        received.iter().map(|one| one.headers["onceward-sequence"].parse().unwrap()).collect();
    sequences.sort_unstable();
    assert_eq!(sequences, (1..=1_000).collect::<Vec<_>>());
    let stats = dispatch.stats();
    assert_eq!(stats.outcomes_recorded, 1_000);
    assert!(stats.reports <= 250, "{} reports", stats.reports);
    assert!(receiver.connections() <= 40, "{} connections", receiver.connections());
}

#[tokio::test]
async fn a_report_that_is_refused_or_unknown_is_repeated_and_counts_once() {
    let receiver = Receiver::always(ok(200)).await;
    let shard = Shard::leading();
    shard.endpoint(&receiver.url());
    shard.meets.lock().extend([Fault::Refused, Fault::AppliedUnknown, Fault::Refused]);
    let _dispatch = dispatch(&shard, config()).await;
    let message = shard.publish(&receiver.url(), "{}");
    until("it is recorded", || shard.pending() == 0).await;
    until("the report was repeated", || shard.reports.load(Relaxed) == 4).await;
    sleep(Duration::from_millis(50)).await;
    assert_eq!((receiver.received().len(), shard.attempts(message).len()), (1, 1));
}

/// Retries stopped silently: a new leader and a restart both resume it.
#[tokio::test]
async fn a_new_leader_resumes_what_is_due_now_and_what_is_due_later() {
    let receiver = Receiver::start(|number, _| if number == 0 { ok(500) } else { ok(200) }).await;
    let shard = Shard::leading();
    shard.endpoint(&receiver.url());
    let first = dispatch(&shard, config()).await;
    let failed = shard.publish(&receiver.url(), "{}");
    until("it has failed once", || shard.attempts(failed).len() == 1).await;
    first.stop().await;
    let waiting = shard.publish(&receiver.url(), "{}");
    sleep(Duration::from_millis(200)).await;
    assert_eq!(receiver.received().len(), 1, "nobody dispatches");
    let _second = dispatch(&shard, config()).await;
    until("both are delivered", || shard.pending() == 0).await;
    assert_eq!((shard.attempts(failed).len(), shard.attempts(waiting).len()), (2, 1));
}

#[tokio::test]
async fn only_a_leader_that_is_sure_starts_attempts() {
    let receiver = Receiver::always(ok(200)).await;
    let shard = Shard::new();
    shard.endpoint(&receiver.url());
    let _dispatch = dispatch(&shard, config()).await;
    shard.publish(&receiver.url(), "{}");
    sleep(Duration::from_millis(150)).await;
    assert_eq!(receiver.connections(), 0, "a follower");
    shard.leads.store(false, Relaxed);
    shard.term.send_replace(Some(3));
    sleep(Duration::from_millis(150)).await;
    assert_eq!(receiver.connections(), 0, "a leader that hasn't caught up");
    shard.leads.store(true, Relaxed);
    until("it arrives", || receiver.received().len() == 1).await;
    shard.leads.store(false, Relaxed);
    shard.publish(&receiver.url(), "{}");
    sleep(Duration::from_millis(300)).await;
    assert_eq!(receiver.received().len(), 1, "a leader whose majority is silent");
    shard.leads.store(true, Relaxed);
    until("it arrives", || receiver.received().len() == 2).await;
}

#[tokio::test]
async fn what_ends_after_leadership_was_lost_is_left_to_the_next_leader_and_starts_nothing() {
    let Answer::Bytes(bytes) = ok(200) else { unreachable!() };
    let receiver = Receiver::always(Answer::Late(bytes, Duration::from_millis(100))).await;
    let shard = Shard::leading();
    shard.endpoint(&receiver.url());
    let dispatch = dispatch(&shard, config()).await;
    for _ in 0..20 {
        shard.publish(&receiver.url(), "{}");
    }
    until("some are on their way", || !receiver.received().is_empty()).await;
    shard.term.send_replace(None);
    until("they have ended", || dispatch.stats().in_flight == 0).await;
    let before = receiver.received().len();
    sleep(Duration::from_millis(250)).await;
    assert_eq!((receiver.received().len(), shard.pending()), (before, 20));
    assert_eq!(dispatch.stats().lanes, 0, "nothing of it is remembered");
    shard.term.send_replace(Some(5));
    until("all is delivered", || shard.pending() == 0).await;
    let ids: std::collections::BTreeSet<_> =
        receiver.received().iter().map(|one| one.headers["webhook-id"].clone()).collect();
    assert_eq!((ids.len(), receiver.received().len()), (20, 20 + before), "the same ids again, and no others");
}

#[tokio::test]
async fn a_stop_waits_for_what_runs_and_records_it() {
    let Answer::Bytes(bytes) = ok(200) else { unreachable!() };
    let receiver = Receiver::always(Answer::Late(bytes, Duration::from_millis(150))).await;
    let shard = Shard::leading();
    shard.endpoint(&receiver.url());
    let dispatch = dispatch(&shard, config()).await;
    shard.publish(&receiver.url(), "{}");
    until("it is on its way", || receiver.received().len() == 1).await;
    let began = Instant::now();
    dispatch.stop().await;
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(shard.pending(), 0);
}

#[tokio::test]
async fn a_shard_whose_work_has_ended_starts_nothing_while_another_still_ends_its_own() {
    let Answer::Bytes(bytes) = ok(200) else { unreachable!() };
    let slow = Receiver::always(Answer::Late(bytes, Duration::from_millis(300))).await;
    let quick = Receiver::always(ok(200)).await;
    let (busy, idle) = (Shard::leading(), Shard::leading());
    busy.endpoint(&slow.url());
    idle.endpoint(&quick.url());
    let dispatch = dispatch_over(vec![busy.clone(), idle.clone()], config(), Arc::<Counting>::default()).await;
    busy.publish(&slow.url(), "{}");
    until("it is on its way", || slow.received().len() == 1).await;
    tokio::join!(dispatch.stop(), async {
        sleep(Duration::from_millis(100)).await;
        idle.publish(&quick.url(), "{}");
    });
    assert_eq!((busy.pending(), idle.pending(), quick.received().len()), (0, 1, 0));
}

#[tokio::test]
async fn an_attempt_that_crashes_keeps_neither_its_place_nor_its_permit() {
    let receiver = Receiver::always(ok(200)).await;
    let shard = Shard::leading();
    shard.endpoint(&receiver.url());
    let entropy = Arc::new(Counting::default());
    entropy.panics.store(2, Relaxed);
    let config = DispatchConfig { in_flight_max: 2, ..config() };
    let dispatch = dispatch_with(&shard, config, entropy).await;
    for _ in 0..4 {
        shard.publish(&receiver.url(), "{}");
    }
    until("all is delivered", || shard.pending() == 0).await;
    let stats = dispatch.stats();
    assert_eq!((stats.attempts_crashed, stats.in_flight), (2, 0));
}
