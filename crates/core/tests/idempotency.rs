//! What each command on idempotency keys promises, by example. The laws are in `idempotency_model`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kit;

use bytes::Bytes;
use kit::{Shard, idempotency::*};
use onceward_core::{
    codec::{self, keys},
    command::*,
    idempotency::{bounds::*, *},
    query::{Answer, Query},
    time::ShardTime,
};

const SECOND_US: u64 = 1_000_000;

/// Every stage that a record can be in, the record's token, and whether its lease is over.
fn stages() -> Vec<(&'static str, Shard, u64)> {
    let mut stages = Vec::new();
    let mut held = Shard::data();
    let token = held.start(held.beginning("1"));
    stages.push(("leased", held, token));

    let mut lapsed = Shard::data();
    let token = lapsed.start(lapsed.beginning("1"));
    lapsed.now += LEASE_US;
    stages.push(("lapsed", lapsed, token));

    let mut indeterminate = Shard::data();
    let token = indeterminate.start(indeterminate.holding("1"));
    indeterminate.now += LEASE_US;
    stages.push(("to hold, lapsed", indeterminate, token));

    let mut noted = Shard::data();
    let token = noted.start(noted.holding("1"));
    noted.now += LEASE_US;
    noted.expire();
    stages.push(("indeterminate", noted, token));

    let mut completed = Shard::data();
    let token = completed.start(completed.beginning("1"));
    completed.complete(token, response("ok"));
    stages.push(("completed", completed, token));
    stages
}

fn stage(name: &str) -> (Shard, u64) {
    let (_, shard, token) = stages().into_iter().find(|(stage, ..)| *stage == name).expect("a stage");
    (shard, token)
}

/// Records that are there in the rows, and of which the time is over.
fn gone() -> [(&'static str, Shard, u64); 2] {
    let (mut lapsed, token) = stage("lapsed");
    lapsed.now += TTL_US;
    let (mut completed, completed_token) = stage("completed");
    completed.now += TTL_US;
    [("lapsed", lapsed, token), ("completed", completed, completed_token)]
}

/// Each row once: two entries of the expiry table may have come up for it.
fn moved(shard: &mut Shard) -> Vec<Bytes> {
    let mut moved = shard.machine.take_moved();
    moved.dedup();
    moved
}

fn the_row() -> Vec<Bytes> {
    vec![record_row("acme", "k")]
}

#[test]
fn an_unseen_key_is_started_with_a_token_and_a_lease() {
    let mut shard = Shard::data();
    let lease = Lease { expires_wall_ms: shard.wall_ms() + 30_000, remaining_us: LEASE_US };
    assert_eq!(shard.begin(shard.beginning("1")), BeginReply::Started { token: 1, lease });
    let view = shard.record().expect("a record");
    assert_eq!((view.state, view.created_wall_ms), (RecordState::InProgress, shard.wall_ms()));
    assert_eq!(view.lease_expires_wall_ms, Some(lease.expires_wall_ms));
    assert_eq!((view.completed_wall_ms, view.expires_wall_ms, view.response), (None, None, None));
    assert_eq!(shard.replay("f"), None);
}

#[test]
fn a_key_in_progress_is_told_from_its_own_attempt_by_the_attempt_id() {
    let mut shard = Shard::data();
    let drawn = |shard: &Shard, nonce| BeginCommand { attempt: AttemptId::Drawn(nonce), ..shard.beginning("") };
    let token = shard.start(drawn(&shard, 7));
    let lease_end_wall_ms = shard.wall_ms() + 30_000;
    shard.now += SECOND_US;
    let lease = Lease { expires_wall_ms: lease_end_wall_ms, remaining_us: LEASE_US - SECOND_US };
    // An id that a caller gives never meets one that a node drew.
    for other in [drawn(&shard, 8), shard.beginning("7"), shard.beginning("")] {
        let in_progress = BeginReply::InProgress { token, lease_remaining_us: lease.remaining_us };
        assert_eq!(shard.begin(other), in_progress);
    }
    // The lease that it asks for now, and how, is not asked any more.
    let again = BeginCommand { lease_us: 1, ttl_us: 1, on_lease_expiry: OnLeaseExpiry::Hold, ..drawn(&shard, 7) };
    assert_eq!(shard.begin(again), BeginReply::Started { token, lease });
}

#[test]
fn a_completed_key_is_replayed_to_whoever_asks_with_its_fingerprint() {
    let (mut shard, _) = stage("completed");
    let completed_wall_ms = shard.wall_ms();
    shard.now += TTL_US - 1;
    for attempt in ["1", "2"] {
        assert_eq!(shard.begin(shard.beginning(attempt)), BeginReply::Completed);
    }
    assert_eq!(shard.replay("f"), Some(Replay { response: response("ok"), completed_wall_ms }));
    assert_eq!(shard.replay("other"), None);
    let view = shard.record().expect("a record");
    assert_eq!((view.state, view.response), (RecordState::Completed, Some(response("ok"))));
    assert_eq!(view.lease_expires_wall_ms, None);
    assert_eq!(view.completed_wall_ms, Some(completed_wall_ms));
    assert_eq!(view.expires_wall_ms, Some(completed_wall_ms + TTL_US / 1_000));
    assert!(completed_bytes(&shard.rows, &account("acme"), &key("k")).unwrap().is_some());
}

#[test]
fn another_fingerprint_is_a_mismatch_whatever_the_state_and_changes_nothing() {
    for (stage, mut shard, token) in stages() {
        shard.apply_all(vec![]);
        let rows = shard.rows.clone();
        for attempt in ["1", "2"] {
            let begin = BeginCommand { fingerprint: "F".to_owned(), ..shard.beginning(attempt) };
            assert_eq!(shard.begin(begin), BeginReply::FingerprintMismatch, "{stage}");
        }
        assert_eq!(shard.rows, rows, "{stage}");
        assert_ne!(
            shard.complete(token, response("ok")),
            CompleteReply::Fenced,
            "{stage}: the owner is still the owner"
        );
    }
}

#[test]
fn a_lapsed_lease_is_taken_over_by_whoever_comes_next_and_the_old_token_is_fenced() {
    for attempt in ["1", "2"] {
        let (mut shard, old) = stage("lapsed");
        let created_wall_ms = shard.record().expect("it is there until then").created_wall_ms;
        assert_eq!(shard.state(), Some(RecordState::InProgress));
        let token = shard.start(shard.holding(attempt));
        assert!(token > old);
        assert_eq!(shard.complete(old, response("old")), CompleteReply::Fenced);
        assert_eq!(shard.abandon(old), AbandonReply::Fenced);
        assert_eq!(shard.extend(old, LEASE_US), ExtendReply::Fenced);
        assert_eq!(shard.record().expect("a record").created_wall_ms, created_wall_ms);
        // What was asked for with the key is what the last one asked for.
        shard.now += LEASE_US;
        assert_eq!(shard.begin(shard.beginning("3")), BeginReply::Indeterminate);
    }
}

#[test]
fn a_lease_lasts_up_to_its_last_microsecond() {
    let (mut shard, token) = stage("leased");
    shard.now += LEASE_US - 1;
    assert_eq!(shard.begin(shard.beginning("2")), BeginReply::InProgress { token, lease_remaining_us: 1 });
    assert!(!shard.has_moved_on(token));
    shard.now += 1;
    assert_eq!(shard.start(shard.beginning("2")), token + 1);
}

#[test]
fn a_key_to_hold_is_indeterminate_for_every_attempt_once_its_lease_ended() {
    for name in ["to hold, lapsed", "indeterminate"] {
        let (mut shard, token) = stage(name);
        shard.now += 400 * TTL_US;
        for attempt in ["1", "2"] {
            assert_eq!(shard.begin(shard.beginning(attempt)), BeginReply::Indeterminate, "{name}");
        }
        shard.expire();
        assert_eq!(shard.state(), Some(RecordState::Indeterminate), "{name}: it never goes by itself");
        assert_eq!(shard.rows.expiry.len(), 0);
        assert_eq!(shard.complete(token, response("late")), shard.completed_now(), "{name}: its late owner");
        assert_eq!(shard.page("acme", Some(RecordState::Indeterminate), None, 9).0, []);
    }
}

#[test]
fn the_newest_token_completes_in_every_state_and_answers_alike_ever_after() {
    for (stage, mut shard, token) in stages() {
        let first = shard.completed_now();
        assert_eq!(shard.complete(token, response("ok")), first, "{stage}");
        shard.now += TTL_US - 1;
        let rows = shard.rows.state.get(&the_row()[0]).cloned();
        assert_eq!(shard.complete(token, response("ok")), first, "{stage}: repeated");
        assert_eq!(shard.complete(token, response("other")), CompleteReply::AlreadyCompleted, "{stage}");
        assert_eq!(shard.complete(token + 1, response("ok")), CompleteReply::Fenced, "{stage}");
        assert_eq!(shard.rows.state.get(&the_row()[0]).cloned(), rows, "{stage}");
    }
}

#[test]
fn the_same_content_in_another_order_of_names_is_the_same_completion() {
    let (mut shard, token) = stage("leased");
    let header = |name: &str| (name.to_owned(), HeaderValues::One("v".to_owned()));
    let ordered = |headers| Response { headers, ..response("ok") };
    let first = ordered(vec![header("a"), header("b")]);
    let completed = shard.complete(token, first.clone());
    shard.now += SECOND_US;
    assert_eq!(shard.complete(token, ordered(vec![header("b"), header("a")])), completed);
    assert_eq!(shard.replay("f").expect("a replay").response, first, "as the first one came");
}

#[test]
fn the_newest_token_abandons_whatever_is_not_completed() {
    for (stage, mut shard, token) in stages() {
        assert_eq!(shard.abandon(token + 1), AbandonReply::Fenced, "{stage}");
        if stage == "completed" {
            assert_eq!(shard.abandon(token), AbandonReply::AlreadyCompleted);
            assert!(shard.replay("f").is_some());
            continue;
        }
        assert_eq!(shard.abandon(token), AbandonReply::Abandoned, "{stage}");
        assert_eq!(shard.record(), None);
        assert_eq!(shard.list("acme", Some(RecordState::Indeterminate), 9), []);
        assert_eq!(shard.abandon(token), AbandonReply::Fenced, "{stage}: there is no such record any more");
        assert_eq!(shard.start(BeginCommand { fingerprint: "F".to_owned(), ..shard.beginning("1") }), token + 1);
        assert_eq!(shard.complete(token, response("ok")), CompleteReply::Fenced, "{stage}");
    }
}

#[test]
fn the_newest_token_extends_whatever_is_not_completed_also_to_less() {
    for (stage, mut shard, token) in stages() {
        assert_eq!(shard.extend(token + 1, LEASE_US), ExtendReply::Fenced, "{stage}");
        let lease_us = SECOND_US;
        let lease = Lease { expires_wall_ms: shard.wall_ms() + 1_000, remaining_us: lease_us };
        if stage == "completed" {
            assert_eq!(shard.extend(token, lease_us), ExtendReply::AlreadyCompleted);
            continue;
        }
        assert_eq!(shard.extend(token, lease_us), ExtendReply::Extended(lease), "{stage}");
        let in_progress = BeginReply::InProgress { token, lease_remaining_us: lease_us };
        assert_eq!(shard.begin(shard.beginning("2")), in_progress, "{stage}");
        // It is still the same attempt.
        assert_eq!(shard.begin(shard.beginning("1")), BeginReply::Started { token, lease }, "{stage}");
        assert_eq!(shard.list("acme", Some(RecordState::Indeterminate), 9), [], "{stage}");
        shard.now += lease_us;
        let is_held = stage == "to hold, lapsed" || stage == "indeterminate";
        let expected = if is_held { RecordState::Indeterminate } else { RecordState::InProgress };
        moved(&mut shard);
        assert!(shard.expire() > 0, "{stage}: the shorter lease comes up in time");
        assert_eq!((shard.state(), moved(&mut shard)), (Some(expected), the_row()), "{stage}");
        assert_eq!(shard.list("acme", Some(RecordState::Indeterminate), 9).len(), usize::from(is_held), "{stage}");
    }
}

#[test]
fn delete_frees_a_key_in_every_state() {
    for (stage, mut shard, token) in stages() {
        assert_eq!(shard.delete(), DeleteRecordReply::Deleted, "{stage}");
        assert_eq!(shard.delete(), DeleteRecordReply::NotFound, "{stage}");
        assert_eq!((shard.record(), shard.replay("f")), (None, None));
        assert_eq!(shard.list("acme", Some(RecordState::Indeterminate), 9), [], "{stage}");
        assert_eq!(shard.complete(token, response("ok")), CompleteReply::Fenced, "{stage}");
        assert_eq!(shard.start(shard.beginning("1")), token + 1, "{stage}");
    }
}

#[test]
fn any_call_on_a_missing_record_is_fenced() {
    let mut shard = Shard::data();
    shard.apply_all(vec![]);
    let rows = shard.rows.clone();
    for token in [0, 1, u64::MAX] {
        assert_eq!(shard.complete(token, response("ok")), CompleteReply::Fenced);
        assert_eq!(shard.abandon(token), AbandonReply::Fenced);
        assert_eq!(shard.extend(token, LEASE_US), ExtendReply::Fenced);
    }
    assert_eq!(shard.delete(), DeleteRecordReply::NotFound);
    assert_eq!(shard.rows, rows);
}

#[test]
fn what_expired_is_absent_before_it_is_removed() {
    for (stage, mut shard, token) in gone() {
        shard.apply_all(vec![]);
        assert!(shard.rows.state.contains_key(&the_row()[0]), "{stage}");
        assert_eq!((shard.record(), shard.replay("f")), (None, None), "{stage}");
        assert_eq!(completed_bytes(&shard.rows, &account("acme"), &key("k")).unwrap(), None);
        assert_eq!(shard.list("acme", None, 9), [], "{stage}");
        assert_eq!(shard.complete(token, response("ok")), CompleteReply::Fenced, "{stage}");
        assert_eq!(shard.abandon(token), AbandonReply::Fenced, "{stage}");
        assert_eq!(shard.extend(token, LEASE_US), ExtendReply::Fenced, "{stage}");
        assert_eq!(shard.delete(), DeleteRecordReply::NotFound, "{stage}");

        let mut swept = shard.reopened();
        assert!(swept.expire() > 0);
        assert!(!swept.rows.state.contains_key(&the_row()[0]), "{stage}");
        for mut shard in [shard, swept] {
            let begin = BeginCommand { fingerprint: "F".to_owned(), ..shard.beginning("1") };
            assert_eq!(shard.start(begin), token + 1, "{stage}: a new record");
            assert_eq!(shard.record().expect("a record").created_wall_ms, shard.wall_ms());
            shard.expire();
            assert_eq!(
                shard.state(),
                Some(RecordState::InProgress),
                "{stage}: what is filed of the old one is not due"
            );
        }
    }
}

#[test]
fn a_record_nobody_takes_over_goes_at_the_end_of_its_lease_and_ttl() {
    let (mut shard, token) = stage("lapsed");
    shard.expire();
    shard.now += TTL_US - 1;
    assert_eq!(shard.expire(), 0);
    let mut late = shard.reopened();
    assert_eq!(late.complete(token, response("late")), shard.completed_now());
    shard.now += 1;
    assert_eq!(shard.expire(), 1);
    assert_eq!(shard.rows.state.keys().collect::<Vec<_>>(), [&keys::CLOCK, &keys::TOKENS]);
    assert!(shard.rows.expiry.is_empty());
}

#[test]
fn ttl_counts_from_completion() {
    let (mut shard, token) = stage("leased");
    shard.now += LEASE_US - 1;
    shard.complete(token, response("ok"));
    shard.now += TTL_US - 1;
    shard.expire();
    assert!(shard.replay("f").is_some());
    shard.now += 1;
    assert!(shard.replay("f").is_some(), "as long as the clock has not come to it");
    assert_eq!(shard.expire(), 1);
    assert_eq!((shard.replay("f"), shard.rows.expiry.len()), (None, 0));
}

#[test]
fn an_expire_works_off_its_limit_and_not_what_is_due_later_than_it_says() {
    let mut shard = Shard::data();
    for n in 0..5 {
        shard.start(BeginCommand { key: key(&n.to_string()), ..shard.holding("1") });
        shard.now += SECOND_US;
    }
    shard.now += LEASE_US;
    let limited = Command::Expire { up_to: ShardTime(u64::MAX), limit: 2 };
    assert_eq!(shard.apply(limited), Reply::Expire { removed: 2 });
    let up_to = ShardTime(1_000_000 + LEASE_US + 3 * SECOND_US);
    assert_eq!(shard.apply(Command::Expire { up_to, limit: 9 }), Reply::Expire { removed: 2 });
    assert_eq!(shard.list("acme", Some(RecordState::Indeterminate), 9).len(), 4);
    assert_eq!(shard.expire(), 1);
}

#[test]
fn a_key_is_the_same_quoted_and_bare() {
    let mut shard = Shard::data();
    let begin = |shard: &Shard, text: &str| BeginCommand { key: key(text), ..shard.beginning(text) };
    let token = shard.start(begin(&shard, "8e03-978e"));
    let in_progress = BeginReply::InProgress { token, lease_remaining_us: LEASE_US };
    assert_eq!(shard.begin(begin(&shard, "\"8e03-978e\"")), in_progress);
    // Quotes that are not around the whole, and escapes outside of quotes, are part of the key.
    for other in [r#"8e03-978e""#, r#""\"8e03-978e\"""#, r"8e03\-978e", r#""8e03\\-978e ""#] {
        assert_eq!(shard.start(begin(&shard, other)), shard.list("acme", None, 9).len() as u64, "{other}");
    }
}

#[test]
fn accounts_and_keys_that_look_alike_do_not_meet() {
    let mut shard = Shard::data();
    let names = [
        ("a", "b_c"),
        ("a_b", "c"),
        ("a", "_b_c"),
        ("ab", "_c"),
        ("a", "u\u{308}"),
        ("a", "ü"),
        ("A", "ü"),
        ("a", "/%2F"),
    ];
    for (of, text) in names {
        let begin = BeginCommand { account: account(of), key: key(text), ..shard.beginning("1") };
        let token = shard.start(begin.clone());
        for (other, text) in names.iter().filter(|name| **name != (of, text)) {
            let (account, key, lease_us) = (account(other), key(text), LEASE_US);
            let extend = ExtendCommand { account, key, token, lease_us, wall_ms: 0 };
            assert_eq!(shard.apply(Command::Extend(extend)), Reply::Extend(ExtendReply::Fenced));
        }
    }
    let longest = "k".repeat(KEY_BYTES_MAX);
    shard.start(BeginCommand { account: account(&longest), key: key(&longest), ..shard.beginning("1") });
    assert_eq!(shard.list(&longest, None, 9).len(), 1);
}

#[test]
fn a_list_has_the_records_of_its_account_page_by_page_in_the_order_of_keys() {
    let mut shard = Shard::data();
    for of in ["a", "aa", "ab", "b"] {
        for n in 0..70 {
            // Prefixes of each other, too.
            let text = format!("k{}", "x".repeat(n));
            shard.start(BeginCommand { account: account(of), key: key(&text), ..shard.holding("1") });
        }
    }
    shard.start(BeginCommand { account: account("a"), key: key(r#""\"quoted""#), ..shard.beginning("1") });
    let keys_of =
        |records: Vec<RecordSummary>| records.iter().map(|record| record.key.as_str().to_owned()).collect::<Vec<_>>();
    let mut expected: Vec<String> = (0..70).map(|n| format!("k{}", "x".repeat(n))).collect();
    assert_eq!(keys_of(shard.list("ab", None, 250)), expected);
    expected.insert(0, "\"quoted".to_owned());
    for limit in [1, 7, 32, 70, 71, 72] {
        assert_eq!(keys_of(shard.list("a", None, limit)), expected, "in pages of {limit}");
    }
    assert_eq!(shard.page("a", None, Some("zzz"), 5), (vec![], None));
    assert_eq!(shard.page("nobody", None, None, 5), (vec![], None));

    let indeterminate = Some(RecordState::Indeterminate);
    assert_eq!(shard.list("a", indeterminate, 5), []);
    shard.now += LEASE_US;
    shard.expire();
    for limit in [1, 7, 70, 71] {
        assert_eq!(keys_of(shard.list("a", indeterminate, limit)), expected[1..], "in pages of {limit}");
    }
    assert_eq!(keys_of(shard.list("a", Some(RecordState::InProgress), 5)), expected[..1]);
    let (page, next) = shard.page("a", indeterminate, Some("kx"), 2);
    assert_eq!((keys_of(page), next), (vec!["kxx".to_owned(), "kxxx".to_owned()], Some(key("kxxx"))));
}

#[test]
fn a_page_takes_what_was_asked_for_within_its_bounds_and_ends_short_where_few_match() {
    let mut shard = Shard::data();
    let rows = PAGE_ROWS_READ_MAX + 1;
    let begins =
        (0..rows).map(|n| Command::Begin(BeginCommand { key: key(&format!("{n:05}")), ..shard.beginning("1") }));
    shard.apply_all(begins.collect());
    assert_eq!(shard.page("acme", None, None, u32::MAX).0.len(), PAGE_MAX as usize);
    assert_eq!(shard.page("acme", None, None, 0).0.len(), 1);
    let completed = Some(RecordState::Completed);
    assert_eq!(shard.page("acme", completed, None, 5), (vec![], Some(key(&format!("{:05}", PAGE_ROWS_READ_MAX - 1)))));
    assert_eq!(shard.page("acme", completed, Some(&format!("{:05}", PAGE_ROWS_READ_MAX - 1)), 5), (vec![], None));
}

#[test]
fn waiters_are_told_of_every_attempt_that_ended_and_of_nothing_else() {
    let none = Vec::<Bytes>::new();
    for (stage, shard, token) in stages() {
        let has_attempt = stage != "completed";
        let told = if has_attempt { the_row() } else { none.clone() };
        let fresh = || shard.reopened();

        let mut completed = fresh();
        completed.complete(token, response("ok"));
        assert_eq!(moved(&mut completed), told, "{stage}, completed");
        completed.complete(token, response("ok"));
        completed.abandon(token);
        completed.begin(completed.beginning("2"));
        completed.now += TTL_US;
        completed.expire();
        assert_eq!(moved(&mut completed), none, "{stage}: a completed one has no attempt that could end");

        let mut abandoned = fresh();
        abandoned.abandon(token);
        assert_eq!(moved(&mut abandoned), told, "{stage}, abandoned");

        let mut deleted = fresh();
        deleted.delete();
        assert_eq!(moved(&mut deleted), told, "{stage}, deleted");
        deleted.delete();
        assert_eq!(moved(&mut deleted), none);

        let mut extended = fresh();
        extended.extend(token, LEASE_US);
        extended.extend(token + 1, LEASE_US);
        extended.complete(token + 1, response("ok"));
        extended.begin(BeginCommand { fingerprint: "F".to_owned(), ..extended.beginning("2") });
        assert_eq!(moved(&mut extended), none, "{stage}, extended: it goes on");
        assert_eq!(extended.has_moved_on(token), !has_attempt, "{stage}");

        let mut looked_at = fresh();
        looked_at.expire();
        let lapses = ["lapsed", "to hold, lapsed"].contains(&stage);
        assert_eq!(moved(&mut looked_at), if lapses { the_row() } else { none.clone() }, "{stage}, looked at");
        looked_at.expire();
        assert_eq!(moved(&mut looked_at), none, "{stage}: once");

        let mut begun = fresh();
        begun.begin(begun.beginning("2"));
        assert_eq!(moved(&mut begun), if lapses { the_row() } else { none.clone() }, "{stage}, begun");
        assert_eq!(moved(&mut begun), none);
    }
    for (stage, shard, _) in gone() {
        let mut shard = shard.reopened();
        shard.expire();
        assert_eq!(moved(&mut shard), if stage == "lapsed" { the_row() } else { none.clone() }, "{stage}, gone");
    }
}

#[test]
fn an_attempt_has_moved_on_only_as_far_as_the_rows_know() {
    let mut shard = Shard::data();
    assert!(!shard.has_moved_on(1), "rows that are behind don't know of it yet");
    let behind = shard.reopened();
    let token = shard.start(shard.beginning("1"));
    assert!(!shard.has_moved_on(token));
    assert!(!behind.has_moved_on(token));
    assert_eq!(
        shard.ask(Query::HasMovedOn { account: account("acme"), key: key("k"), token }),
        Answer::HasMovedOn(false)
    );

    let mut lapsed = shard.reopened();
    lapsed.now += LEASE_US;
    assert!(!lapsed.has_moved_on(token), "not before the clock came to it");
    lapsed.expire();
    assert!(lapsed.has_moved_on(token));
    let next = lapsed.start(lapsed.beginning("2"));
    assert!(lapsed.has_moved_on(token) && !lapsed.has_moved_on(next));
    assert!(!shard.has_moved_on(next), "rows that are behind");

    shard.complete(token, response("ok"));
    assert!(shard.has_moved_on(token));
    shard.delete();
    assert!(shard.has_moved_on(token));
}

#[test]
fn commands_of_one_entry_see_each_other() {
    let mut shard = Shard::data();
    let (account, key, token) = (account("acme"), key("k"), 1);
    let abandon = AbandonCommand { account: account.clone(), key: key.clone(), token };
    let complete =
        CompleteCommand { account, key, token, response: response("ok"), wall_ms: 5, publishing: Default::default() };
    let replies = shard.apply_all(vec![
        Command::Complete(complete.clone()),
        Command::Begin(shard.beginning("1")),
        Command::Begin(shard.beginning("2")),
        Command::Complete(complete),
        Command::Abandon(abandon),
        Command::Begin(shard.beginning("2")),
    ]);
    let lease = Lease { expires_wall_ms: shard.wall_ms() + 30_000, remaining_us: LEASE_US };
    let completed =
        CompleteReply::Completed { completed_wall_ms: 5, expires_wall_ms: 5 + TTL_US / 1_000, messages: Vec::new() };
    let expected = [
        Reply::Complete(CompleteReply::Fenced),
        Reply::Begin(BeginReply::Started { token, lease }),
        Reply::Begin(BeginReply::InProgress { token, lease_remaining_us: LEASE_US }),
        Reply::Complete(completed),
        Reply::Abandon(AbandonReply::AlreadyCompleted),
        Reply::Begin(BeginReply::Completed),
    ];
    assert_eq!(replies, expected);
}

#[test]
fn the_system_shard_has_no_records() {
    let mut shard = Shard::system();
    assert_eq!(shard.apply(Command::Begin(shard.beginning("1"))), Reply::Misrouted);
    assert_eq!(shard.ask(Query::Record { account: account("acme"), key: key("k") }), Answer::Misrouted);
}

/// The largest command of its kind, in every shape in which headers can come.
fn largest_completions() -> Vec<Command> {
    let name = |n: usize| format!("{n:0>2}");
    let one = |value: &str| HeaderValues::One(value.to_owned());
    let short: Vec<_> = (0..HEADERS_MAX).map(|n| (name(n), one(""))).collect();
    let mut text = short[1..].to_vec();
    text.push((name(0), one(&"v".repeat(HEADER_BYTES_MAX - 3 * 31 - 2))));
    let many = |count: usize| HeaderValues::Many(vec![String::new(); count]);
    let mut empty = short[1..].to_vec();
    empty.push((name(0), many(HEADER_BYTES_MAX - 3 * 31 - 2)));
    let spread = HEADER_BYTES_MAX / HEADERS_MAX - 2;
    let spread: Vec<_> = (0..HEADERS_MAX).map(|n| (name(n), many(spread))).collect();
    let nothing: Vec<_> = (0..HEADERS_MAX).map(|n| (name(n), many(0))).collect();
    let bodies = [
        Body::Text("b".repeat(BODY_BYTES_MAX)),
        Body::Binary(Bytes::from(vec![0xff; BODY_BYTES_MAX])),
        Body::Text(String::new()),
    ];
    let mut commands = Vec::new();
    for headers in [vec![], short, text, empty, spread, nothing] {
        Response::check_headers(&headers).expect("within the bounds");
        for body in &bodies {
            Response::check_body(body).expect("within the bounds");
            for longest in [1, KEY_BYTES_MAX] {
                let name = "k".repeat(longest);
                commands.push(Command::Complete(CompleteCommand {
                    account: account(&name),
                    key: key(&name),
                    token: u64::MAX,
                    response: Response { status: STATUS_MAX, headers: headers.clone(), body: body.clone() },
                    wall_ms: u64::MAX,
                    publishing: Default::default(),
                }));
            }
        }
    }
    commands
}

#[test]
fn the_size_of_a_command_is_never_underestimated_and_the_largest_fits_an_entry() {
    let name = |bytes| "k".repeat(bytes);
    let mut commands = largest_completions();
    for bytes in [1, KEY_BYTES_MAX] {
        let (account, key) = (account(&name(bytes)), key(&name(bytes)));
        for attempt in [given(""), given(&name(ATTEMPT_ID_BYTES_MAX)), AttemptId::Drawn(u128::MAX)] {
            commands.push(Command::Begin(BeginCommand {
                account: account.clone(),
                key: key.clone(),
                fingerprint: name(FINGERPRINT_BYTES_MAX),
                ttl_us: u64::MAX,
                lease_us: u64::MAX,
                on_lease_expiry: OnLeaseExpiry::Takeover,
                attempt,
                wall_ms: u64::MAX,
            }));
        }
        let token = u64::MAX;
        commands.push(Command::Abandon(AbandonCommand { account: account.clone(), key: key.clone(), token }));
        let (lease_us, wall_ms) = (u64::MAX, u64::MAX);
        let extend = ExtendCommand { account: account.clone(), key: key.clone(), token, lease_us, wall_ms };
        commands.push(Command::Extend(extend));
        commands.push(Command::DeleteRecord(DeleteRecordCommand { account, key }));
    }
    for command in commands {
        let (encoded, estimate) = (codec::encode(&command).len(), command.size_estimate());
        assert!(encoded <= estimate, "{encoded} bytes, estimated as {estimate}");
        assert!(estimate < BATCH_BYTES_MAX, "{estimate}");
    }
}

#[test]
fn values_of_headers_are_bounded_in_number_though_they_are_empty() {
    let headers = |values| vec![("x".to_owned(), HeaderValues::Many(vec![String::new(); values]))];
    assert_eq!(Response::check_headers(&headers(HEADER_BYTES_MAX - 1)), Ok(()));
    let refused = Response::check_headers(&headers(HEADER_BYTES_MAX)).expect_err("one too many");
    assert_eq!(refused, ResponseError::HeadersTooLarge(HEADER_BYTES_MAX + 1));
    assert!(refused.is_too_large());
}
