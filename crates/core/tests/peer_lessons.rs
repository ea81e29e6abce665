//! Faults seen in systems that do this job, each as a test of its own. The laws behind most of them are property tests:
//! G1 on every interval in `model`, G2 in `idempotency_model`, those of webhooks in `webhooks_model`.

mod kit;

use bytes::Bytes;
use kit::{
    Shard,
    idempotency::*,
    sliding_window, token_bucket,
    webhooks::{everything, message, message_with_id, publishing, secret},
};
use onceward_core::{
    command::*,
    idempotency::*,
    limits::{bounds, *},
    time::ShardTime,
    webhooks::{
        self, DeliveryStatus, EndpointSpec, NewMessage, Verdict, WebhookReply, pending_delivery, pending_endpoints,
    },
};

const SECOND_US: u64 = 1_000_000;

#[test]
fn a_bucket_that_emptied_does_not_admit_most_of_another_burst_shortly_after() {
    let mut shard = Shard::with("2/s", 20);
    assert!(shard.check(20).allowed);
    let mut admitted = 0;
    for _ in 0..1_000 {
        shard.now += 1_000;
        admitted += u64::from(shard.check(1).allowed);
    }
    assert_eq!(admitted, 2, "one second at 2/s");
}

#[test]
fn reset_after_a_single_hit_is_the_time_of_one_token() {
    let mut shard = Shard::with("1/s", 10);
    assert_eq!(shard.check(1).reset_after_us, SECOND_US);
}

#[test]
fn waiting_retry_after_out_succeeds_and_one_microsecond_less_never_does() {
    let mut shard = Shard::with("3/7s", 5);
    shard.check(5);
    let wait_us = shard.check(1).retry_after_us.expect("a wait");
    assert_eq!(wait_us, 2_333_334, "7/3 s, rounded up");
    shard.now += wait_us - 1;
    assert!(!shard.check(1).allowed);
    shard.now += 1;
    assert!(shard.check(1).allowed);
}

#[test]
fn the_longest_period_times_the_largest_burst_panics_nobody() {
    let mut shard = Shard::with("1/365d", bounds::BURST_MAX);
    assert!(shard.check(bounds::BURST_MAX).allowed);
    let denied = shard.check(bounds::BURST_MAX);
    assert_eq!(denied.retry_after_us, Some(u64::MAX), "longer than can be told");
    shard.now = u64::MAX;
    assert!(shard.check(1).allowed, "later calls work");
    assert!("9223372036854775807/365d".parse::<Rate>().is_err());
}

#[test]
fn more_than_a_thousand_a_second_is_no_zero_rate() {
    let mut shard = Shard::with("1000000000/s", 1_000);
    shard.check(1_000);
    shard.now += 1;
    assert_eq!(shard.peek(0).remaining, 1_000, "1000 tokens a µs");
}

#[test]
fn a_millisecond_interval_and_fifty_idle_days_wrap_nothing() {
    let mut shard = Shard::with("1/ms", 3);
    shard.check(3);
    shard.now += 50 * 86_400 * SECOND_US;
    assert_eq!(shard.check(3).remaining, 0);
    assert!(!shard.check(1).allowed);
}

#[test]
fn refunds_mint_no_tokens_above_the_capacity() {
    let mut shard = Shard::with("1/s", 10);
    shard.check_with_id(5, "a");
    shard.now += 4 * SECOND_US;
    let refunded = RefundReply::Refunded { credited: 1, limit: 10, remaining: 10 };
    assert_eq!(shard.refund(5, "a"), refunded);
    assert_eq!(shard.refund(5, "a"), refunded, "repeated, it answers alike and credits nothing");
    assert!(shard.check(10).allowed);
    assert!(!shard.check(1).allowed);
}

#[test]
fn a_refund_gives_all_back_though_the_bucket_refilled_a_little_meanwhile() {
    let mut shard = Shard::with("1/h", 5);
    shard.check_with_id(2, "a");
    shard.now += 1_000;
    assert_eq!(shard.refund(2, "a"), RefundReply::Refunded { credited: 2, limit: 5, remaining: 5 });
    assert!(shard.check(5).allowed);
    shard.now += 1_000;
    assert!(!shard.check(1).allowed, "and no more than that");
}

#[test]
fn a_refund_gives_back_at_most_what_its_request_took() {
    let mut shard = Shard::with("1/h", 10);
    shard.check_with_id(2, "a");
    shard.check(8);
    assert_eq!(shard.refund(3, "a"), RefundReply::CostMismatch { admitted_cost: 2 });
    assert_eq!(shard.refund(2, "b"), RefundReply::Forgotten);
    assert_eq!(shard.refund(2, "a"), RefundReply::Refunded { credited: 2, limit: 10, remaining: 2 });
}

#[test]
fn joined_names_do_not_share_a_counter() {
    let mut shard = Shard::data();
    for name in ["a", "a_b"] {
        shard.policy(name, token_bucket("1/h", 1));
    }
    let longest = "k".repeat(bounds::KEY_BYTES_MAX);
    for (policy, key) in [
        ("a_b", "c"),
        ("a", "b_c"),
        ("a", "_b_c"),
        ("a", "ü"),
        ("a", "u\u{308}"),
        ("a", "/:\0"),
        ("a", longest.as_str()),
    ] {
        assert!(shard.checks(&[(policy, key, 1)]).allowed, "{policy} {key:?}");
        assert!(!shard.checks(&[(policy, key, 1)]).allowed);
    }
}

#[test]
fn a_policy_changes_at_every_level_up_and_down() {
    for left in 0..=10 {
        for burst in [1, 5, 10, 20] {
            for change in [token_bucket("1/h", burst), sliding_window(&format!("{burst}/h"))] {
                let mut shard = Shard::with("1/h", 10);
                if left < 10 {
                    shard.check(10 - left);
                }
                shard.policy("api", change);
                let expected = if left == 10 { burst } else { left.min(burst) };
                let seen = shard.peek(0);
                assert_eq!((seen.limit, seen.remaining), (burst, expected), "{left} of 10 to burst {burst}");
            }
        }
    }
}

#[test]
fn a_denied_request_burns_nothing() {
    let mut shard = Shard::with("1/h", 5);
    shard.check(3);
    let before = shard.rows.clone();
    let denied = shard.check(5);
    assert_eq!((denied.allowed, denied.remaining), (false, 2));
    assert_eq!(shard.rows, before);
    assert!(shard.check(2).allowed);
}

#[test]
fn a_denied_multi_check_burns_none_of_its_limits() {
    let mut shard = Shard::with("1/h", 5);
    shard.policy("ip", token_bucket("1/h", 1));
    assert!(shard.checks(&[("ip", "x", 1)]).allowed);
    let before = shard.rows.clone();
    let decision = shard.checks(&[("api", "k", 2), ("ip", "x", 1)]);
    assert!(!decision.allowed);
    assert_eq!((decision.results[0].allowed, decision.results[0].remaining), (true, 5));
    assert!(!decision.results[1].allowed);
    assert_eq!(shard.rows, before);
}

#[test]
fn live_buckets_are_never_evicted_by_a_spray_of_keys() {
    let mut shard = Shard::with("1/h", 1);
    shard.policy("burstless", token_bucket("1/ms", 1));
    assert!(shard.check(1).allowed);
    for key in 0..500 {
        shard.now += 1_000;
        shard.checks(&[("burstless", &key.to_string(), 1)]);
    }
    shard.now += 2 * 60 * SECOND_US;
    assert_eq!(shard.expire(), 500, "the sprayed buckets are full and go");
    assert!(!shard.check(1).allowed, "the live one stays");
}

#[test]
fn a_new_machine_over_the_same_rows_does_not_begin_at_full() {
    let mut shard = Shard::with("1/h", 10);
    for _ in 0..10 {
        assert!(shard.check(1).allowed);
        shard = shard.reopened();
    }
    assert!(!shard.check(1).allowed);
}

#[test]
fn there_are_only_units_of_fixed_length() {
    for text in ["1/month", "1/y", "1/w", "1/mo", "1/M", "1/us", "1/ns"] {
        assert!(text.parse::<Rate>().is_err(), "{text}");
    }
    assert_eq!("1/30d".parse::<Rate>().expect("a rate").window_us(), 30 * 86_400 * SECOND_US);
}

#[test]
fn a_slow_handler_does_not_overwrite_the_newer_result_of_the_one_that_took_over() {
    let mut shard = Shard::data();
    let slow = shard.start(shard.beginning("slow"));
    shard.now += LEASE_US;
    let newer = shard.start(shard.beginning("newer"));
    assert!(newer > slow);
    for completed in [false, true] {
        if completed {
            assert_eq!(shard.complete(newer, response("newer")), shard.completed_now());
        }
        let rows = shard.rows.clone();
        assert_eq!(shard.complete(slow, response("slow")), CompleteReply::Fenced);
        assert_eq!(shard.abandon(slow), AbandonReply::Fenced);
        assert_eq!(shard.extend(slow, LEASE_US), ExtendReply::Fenced);
        assert_eq!(shard.rows, rows);
    }
    assert_eq!(shard.replay("f").expect("a replay").response, response("newer"));
}

#[test]
fn abandon_does_not_delete_a_completed_key() {
    let mut shard = Shard::data();
    let token = shard.start(shard.beginning("1"));
    shard.complete(token, response("ok"));
    let rows = shard.rows.clone();
    assert_eq!(shard.abandon(token), AbandonReply::AlreadyCompleted);
    assert_eq!(shard.rows, rows);
    assert_eq!(shard.begin(shard.beginning("2")), BeginReply::Completed);
}

#[test]
fn an_orphaned_lease_does_not_block_a_key_for_as_long_as_a_record_is_kept() {
    let mut shard = Shard::data();
    let ttl_us = 3 * 86_400 * SECOND_US;
    let lasting = |shard: &Shard, attempt: &str| BeginCommand { ttl_us, ..shard.beginning(attempt) };
    let orphan = shard.start(lasting(&shard, "1"));
    shard.now += LEASE_US - 1;
    assert!(matches!(shard.begin(lasting(&shard, "2")), BeginReply::InProgress { lease_remaining_us: 1, .. }));
    shard.now += 1;
    let token = shard.start(lasting(&shard, "2"));
    assert!(token > orphan);
    shard.complete(token, response("ok"));
    shard.now += ttl_us - 1;
    shard.expire();
    assert!(shard.replay("f").is_some(), "and the record outlives the lease");

    // Or, by choice, it waits for a person.
    let mut shard = Shard::data();
    shard.start(shard.holding("1"));
    shard.now += 30 * ttl_us;
    shard.expire();
    assert_eq!(shard.begin(shard.beginning("2")), BeginReply::Indeterminate);
    assert_eq!(shard.delete(), DeleteRecordReply::Deleted);
    shard.start(shard.beginning("2"));
}

#[test]
fn of_a_thousand_concurrent_first_requests_one_executes() {
    let mut shard = Shard::data();
    let begins: Vec<Command> = (0..1_000).map(|n| Command::Begin(shard.beginning(&n.to_string()))).collect();
    let mut replies = Vec::new();
    // Some share an entry, some don't.
    for entry in begins.chunks(300) {
        replies.extend(shard.apply_all(entry.to_vec()));
        shard.now += 1;
    }
    let started = replies.iter().filter(|reply| matches!(reply, Reply::Begin(BeginReply::Started { .. })));
    assert_eq!(started.count(), 1);
    let in_progress = replies.iter().filter(|reply| matches!(reply, Reply::Begin(BeginReply::InProgress { .. })));
    assert_eq!(in_progress.count(), 999);
}

#[test]
fn the_same_key_with_another_body_is_refused_in_every_state() {
    let mut shard = Shard::data();
    let other = |shard: &Shard| BeginCommand { fingerprint: "another body".into(), ..shard.beginning("1") };
    let token = shard.start(shard.beginning("1"));
    assert_eq!(shard.begin(other(&shard)), BeginReply::FingerprintMismatch, "in progress");
    shard.now += LEASE_US;
    assert_eq!(shard.begin(other(&shard)), BeginReply::FingerprintMismatch, "its lease is over");
    shard.complete(token, response("ok"));
    assert_eq!(shard.begin(other(&shard)), BeginReply::FingerprintMismatch, "completed");
    assert_eq!(shard.replay("another body"), None);

    let mut shard = Shard::data();
    shard.start(shard.holding("1"));
    shard.now += LEASE_US;
    assert_eq!(shard.begin(other(&shard)), BeginReply::FingerprintMismatch, "to hold, its lease is over");
    shard.expire();
    assert_eq!(shard.begin(other(&shard)), BeginReply::FingerprintMismatch, "indeterminate");
}

#[test]
fn a_stored_response_keeps_its_status_its_headers_and_every_byte_of_its_body() {
    let one = |name: &str, value: &str| (name.to_owned(), HeaderValues::One(value.to_owned()));
    let many = |name: &str, values: &[&str]| {
        (name.to_owned(), HeaderValues::Many(values.iter().map(|value| (*value).to_owned()).collect()))
    };
    let headers = vec![
        one("X-Mixed-Case", " spaced\t"),
        many("Set-Cookie", &["b=2", "a=1", "b=2", ""]),
        many("single", &["one"]),
        many("none", &[]),
        one("empty", ""),
        one("accents", "ü, \u{2028}"),
    ];
    let every_byte: Vec<u8> = (0..=255).collect();
    let bodies = [
        Body::Text("{\"id\": 1}\r\n\0".to_owned()),
        Body::Text(String::new()),
        Body::Binary(Bytes::new()),
        Body::Binary(Bytes::from(every_byte)),
        Body::Binary(Bytes::from_static(b"valid UTF-8, and yet binary")),
    ];
    for status in [100, 201, 204, 304, 409, 503, 599] {
        for body in &bodies {
            let mut shard = Shard::data();
            let token = shard.start(shard.beginning("1"));
            let response = Response { status, headers: headers.clone(), body: body.clone() };
            shard.complete(token, response.clone());
            shard.now += SECOND_US;
            let shard = shard.reopened();
            assert_eq!(shard.replay("f").expect("a replay").response, response);
            assert_eq!(shard.record().expect("a record").response, Some(response));
        }
    }
}

#[test]
fn a_message_and_its_due_deliveries_are_stored_in_one_entry_and_its_retry_is_the_same_message() {
    let mut shard = Shard::with_acme();
    let endpoints = [(); 3].map(|()| shard.endpoint(everything()));
    let id = shard.publish(message_with_id("evt", "{}"));
    // Whoever leads next knows nothing but the rows.
    let mut shard = shard.reopened();
    let due: Vec<_> = pending_endpoints(&shard.rows, None, 10)
        .expect("sound rows")
        .into_iter()
        .map(|(endpoint, _)| endpoint)
        .collect();
    assert_eq!(due, endpoints);
    assert!(endpoints.iter().all(|&endpoint| shard.due_now(endpoint) == [id]));
    assert_eq!(shard.publish_again(message_with_id("evt", "{}")), (id, true));
    let refusal = shard.refused(publishing(message_with_id("evt", "[]")));
    assert_eq!(refusal, webhooks::Refusal::EventIdTaken);
    assert!(endpoints.iter().all(|&endpoint| shard.due_now(endpoint) == [id]), "and it is delivered once");
}

#[test]
fn a_payload_is_delivered_byte_for_byte_as_it_came_in() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let every_byte: Vec<u8> = (0..=255).collect();
    for payload in [
        Bytes::from_static(b"{ \"b\":1,\r\n\"a\":1.0, \"\\u00fc\": \"\xc3\xbc\"}"),
        Bytes::from(every_byte),
        Bytes::new(),
    ] {
        let id = shard.publish(NewMessage { payload: payload.clone(), ..message("") });
        let pending = pending_delivery(&shard.rows, endpoint, id).expect("sound rows").expect("pending");
        assert_eq!((pending.payload, shard.payload_of(id)), (payload.clone(), Some(payload)));
    }
}

#[test]
fn retries_never_stop_silently_what_is_pending_is_in_the_due_index_of_whoever_leads() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let id = shard.publish(message("{}"));
    for tries in 0..10 {
        let after_us = 1 << (2 * tries);
        shard.report_one(endpoint, id, tries, Verdict::Retry { after_us });
        // A new leader, or the same after a restart.
        shard = shard.reopened();
        let next = pending_endpoints(&shard.rows, None, 10).expect("sound rows");
        assert_eq!(next, [(endpoint, ShardTime(shard.now + after_us))], "never in the past");
        shard.now += after_us - 1;
        assert!(shard.due_now(endpoint).is_empty());
        shard.now += 1;
        assert_eq!(shard.due_now(endpoint), [id]);
    }
}

#[test]
fn a_permanently_failing_delivery_ends_and_is_seen_to_have_failed() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let id = shard.publish(message("{}"));
    shard.report_one(endpoint, id, 0, Verdict::Retry { after_us: SECOND_US });
    shard.report_one(endpoint, id, 1, Verdict::Exhausted);
    assert!(pending_endpoints(&shard.rows, None, 10).expect("sound rows").is_empty(), "nobody tries it again");
    assert_eq!(shard.deliveries_of(id)[0].status, DeliveryStatus::Failed);
    assert_eq!(shard.attempts_of(id).len(), 2);
    assert!(shard.payload_of(id).is_some(), "its payload is there for whoever recovers it");
}

#[test]
fn a_receiver_that_answers_410_is_left_alone() {
    let mut shard = Shard::with_acme();
    let (endpoint, other) = (shard.endpoint(everything()), shard.endpoint(everything()));
    let (first, second) = (shard.publish(message("1")), shard.publish(message("2")));
    shard.report_one(endpoint, first, 0, Verdict::Gone);
    assert!(shard.target_of(endpoint).expect("a target").disabled);
    assert_eq!(shard.status(endpoint, first), Some(DeliveryStatus::Failed));
    let third = shard.publish(message("3"));
    assert_eq!(shard.status(endpoint, third), Some(DeliveryStatus::Withheld));
    assert_eq!(shard.due_now(other), [first, second, third]);
}

#[test]
fn events_of_a_disabled_endpoint_are_kept_and_numbered() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(EndpointSpec { disabled: true, ..everything() });
    let withheld = [(); 3].map(|()| shard.publish(message("{}")));
    shard.set_disabled(endpoint, false);
    let next = shard.publish(message("{}"));
    for id in withheld {
        assert_eq!(shard.status(endpoint, id), Some(DeliveryStatus::Withheld));
        assert!(shard.payload_of(id).is_some());
    }
    assert_eq!(shard.due_now(endpoint), [next]);
    let told = pending_delivery(&shard.rows, endpoint, next).expect("sound rows").expect("pending");
    assert_eq!(told.sequence, Some(4), "the receiver sees the hole");
}

#[test]
fn a_rotated_secret_signs_from_its_log_index_on_though_traffic_keeps_the_cache_warm() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    for n in 2..6 {
        shard.publish(message("{}"));
        assert_eq!(shard.secrets_of(endpoint)[0], secret(n - 1));
        assert_eq!(shard.rotate(endpoint, secret(n), 60 * SECOND_US), WebhookReply::Done);
        let due = shard.due_now(endpoint)[0];
        shard.report_one(endpoint, due, 0, Verdict::Succeeded);
        assert_eq!(shard.secrets_of(endpoint)[..2], [secret(n), secret(n - 1)], "both, while the grace runs");
    }
    shard.now += 60 * SECOND_US;
    assert_eq!(shard.secrets_of(endpoint), [secret(5)]);
}
