//! What each command on limits promises, by example.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kit;

use kit::{MemoryRows, Shard, denying, sliding_window, token_bucket};
use onceward_core::{command::*, limits::*, time::ShardTime};

const SECOND_US: u64 = 1_000_000;

fn decided(reply: CheckReply) -> Decision {
    match reply {
        CheckReply::Decided(decision) => decision,
        CheckReply::Refused(refusal) => panic!("{refusal:?}"),
    }
}

#[test]
fn costs_on_the_same_bucket_add_up() {
    let mut shard = Shard::with("1/h", 5);
    let decision = shard.checks(&[("api", "k", 2), ("api", "k", 2), ("api", "other", 5)]);
    assert!(decision.allowed);
    assert_eq!(decision.results.iter().map(|result| result.remaining).collect::<Vec<_>>(), [1, 1, 0]);
    let reply = shard.check_as(Mode::Enforce, &[("api", "x", 3), ("api", "x", 3)], None);
    let exceeds = Refusal::CostExceedsBurst { policy: "api".into(), key: "x".into(), cost: 6, burst: 5 };
    assert_eq!(reply, CheckReply::Refused(exceeds));
}

#[test]
fn an_unknown_policy_refuses_the_whole() {
    let mut shard = Shard::with("1/h", 5);
    let before = shard.rows.clone();
    let reply = shard.check_as(Mode::Enforce, &[("api", "k", 1), ("nope", "k", 1)], None);
    assert_eq!(reply, CheckReply::Refused(Refusal::PolicyNotFound { policy: "nope".into() }));
    assert_eq!(shard.rows, before);
}

#[test]
fn exempt_keys_are_never_counted_and_denied_ones_never_allowed() {
    let mut spec = denying(token_bucket("1/h", 2), "bad");
    spec.exempt = Exemptions::from(vec!["health".into(), "internal-*".into()]);
    let mut shard = Shard::data();
    shard.policy("api", spec);
    let before = shard.rows.clone();
    for key in ["health", "internal-7", "internal-"] {
        let decision = shard.checks(&[("api", key, 1_000)]);
        assert!(decision.allowed && decision.results[0].exempt);
    }
    let denied = shard.checks(&[("api", "bad", 1)]).results.remove(0);
    assert_eq!((denied.allowed, denied.limit, denied.remaining, denied.retry_after_us), (false, 0, 0, None));
    assert!(!shard.checks(&[("api", "bad", 1_000)]).allowed);
    assert_eq!(shard.rows, before);
}

#[test]
fn a_peek_says_what_enforce_would_and_writes_nothing() {
    let mut shard = Shard::with("1/h", 5);
    shard.check(1);
    let before = shard.rows.clone();
    let peeked = decided(shard.check_as(Mode::Peek, &[("api", "k", 3)], Some("id")));
    assert_eq!(shard.rows, before);
    assert_eq!(peeked, decided(shard.check_with_id(3, "id")));
    shard.now += SECOND_US;
    assert_eq!(peeked, decided(shard.check_as(Mode::Peek, &[("api", "k", 3)], Some("id"))));
}

#[test]
fn shadow_counts_as_enforce_does() {
    let mut shard = Shard::with("1/h", 2);
    assert!(decided(shard.check_as(Mode::Shadow, &[("api", "k", 2)], None)).allowed);
    assert!(!decided(shard.check_as(Mode::Shadow, &[("api", "k", 1)], None)).allowed);
    assert!(!shard.check(1).allowed);
}

#[test]
fn an_admitted_request_id_counts_once_for_sixty_seconds() {
    let mut shard = Shard::with("1/h", 5);
    let first = shard.check_with_id(2, "a");
    shard.now += 60 * SECOND_US - 1;
    assert_eq!(shard.check_with_id(2, "a"), first);
    let reused = Refusal::RequestIdReused { policy: "api".into(), key: "k".into(), admitted_cost: 2 };
    assert_eq!(shard.check_with_id(1, "a"), CheckReply::Refused(reused));
    assert_eq!(shard.peek(0).remaining, 3);
    // Nothing has removed the row, yet it is forgotten; the new one is remembered for its own sixty seconds.
    shard.now += 1;
    assert_eq!(shard.refund(2, "a"), RefundReply::Forgotten);
    assert_eq!(decided(shard.check_with_id(1, "a")).results[0].remaining, 2);
    assert_eq!(shard.expire(), 1);
    assert_eq!(decided(shard.check_with_id(1, "a")).results[0].remaining, 2);
}

#[test]
fn denials_are_not_remembered_and_half_remembered_checks_count_the_rest() {
    let mut shard = Shard::with("1/s", 2);
    shard.policy("ip", token_bucket("1/s", 2));
    shard.check(2);
    assert!(!decided(shard.check_with_id(1, "a")).allowed);
    shard.now += SECOND_US;
    assert!(decided(shard.check_with_id(1, "a")).allowed);
    let both = shard.check_as(Mode::Enforce, &[("api", "k", 1), ("ip", "x", 1)], Some("a"));
    let both = decided(both);
    assert!(both.allowed, "api's bucket is empty, but the id was admitted there");
    assert_eq!(both.results[1].remaining, 1);
    assert_eq!(shard.peek(0).remaining, 0);
}

#[test]
fn a_refund_after_a_reset_credits_nothing_to_the_new_epoch() {
    let mut shard = Shard::with("1/h", 5);
    shard.check_with_id(3, "a");
    shard.reset();
    // Also when the reset bucket was full and could have been forgotten.
    shard.now += 30 * SECOND_US;
    shard.expire();
    assert_eq!(shard.check(4).remaining, 1);
    assert_eq!(shard.refund(3, "a"), RefundReply::Refunded { credited: 0, limit: 5, remaining: 1 });
}

#[test]
fn a_refund_of_a_sliding_window_frees_only_what_is_still_in_it() {
    let mut shard = Shard::data();
    shard.policy("api", sliding_window("10/s"));
    shard.check_with_id(4, "a");
    shard.now += SECOND_US * 17 / 16;
    shard.check_with_id(6, "b");
    assert_eq!(shard.refund(4, "a"), RefundReply::Refunded { credited: 0, limit: 10, remaining: 4 });
    assert_eq!(shard.refund(5, "b"), RefundReply::Refunded { credited: 5, limit: 10, remaining: 9 });
    assert_eq!(shard.refund(4, "b"), RefundReply::CostMismatch { admitted_cost: 6 });
}

#[test]
fn a_hold_is_taken_once_and_comes_back_on_abort() {
    let mut shard = Shard::with("1/h", 5);
    let items = [("api", "k", 2), ("api", "k", 1)];
    let first = shard.hold(1, 1, &items, SECOND_US);
    assert_eq!(shard.hold(1, 1, &items, SECOND_US), first);
    assert_eq!(shard.peek(0).remaining, 2);
    let aborted = shard.settle(1, 1, false);
    assert!(aborted.settled);
    assert_eq!(aborted.results.iter().map(|result| result.remaining).collect::<Vec<_>>(), [5, 5]);
    assert!(!shard.settle(1, 1, false).settled);
    assert!(!shard.settle(1, 1, true).settled);
    assert_eq!(shard.peek(0).remaining, 5);
}

#[test]
fn an_abort_tells_of_costs_on_the_same_bucket_added_up() {
    let mut shard = Shard::with("1/s", 5);
    shard.hold(1, 1, &[("api", "k", 2), ("api", "k", 1)], SECOND_US);
    shard.check(2);
    shard.policy("api", token_bucket("1/s", 2));
    // Two are left of a capacity of two: the hold's three never fit again.
    let aborted = shard.settle(1, 1, false);
    let told: Vec<_> = aborted.results.iter().map(|result| (result.allowed, result.retry_after_us)).collect();
    assert_eq!(told, [(false, None), (false, None)]);
}

#[test]
fn a_denied_hold_takes_nothing() {
    let mut shard = Shard::with("1/h", 5);
    shard.check(4);
    let before = shard.rows.clone();
    let HoldReply::Decided(decision) = shard.hold(1, 1, &[("api", "new", 1), ("api", "k", 2)], SECOND_US) else {
        panic!("not decided");
    };
    assert!(!decision.allowed);
    assert_eq!(shard.rows, before);
}

#[test]
fn a_hold_that_lapses_counts_as_spent() {
    let mut shard = Shard::with("1/h", 5);
    shard.hold(1, 1, &[("api", "k", 3)], SECOND_US);
    shard.now += SECOND_US;
    assert!(!shard.settle(1, 1, false).settled);
    assert_eq!(shard.peek(0).remaining, 2);
}

#[test]
fn a_newer_attempt_takes_the_hold_over_and_the_older_ones_abort_changes_nothing() {
    let mut shard = Shard::with("1/h", 5);
    let items = [("api", "k", 3)];
    let first = shard.hold(1, 1, &items, SECOND_US);
    shard.now += SECOND_US / 2;
    assert_eq!(shard.hold(1, 2, &items, SECOND_US), first);
    assert!(!shard.settle(1, 1, false).settled);
    assert_eq!(shard.hold(1, 1, &items, SECOND_US), HoldReply::Aborted);
    // The lease is the newer attempt's.
    shard.now += SECOND_US - 1;
    assert!(shard.settle(1, 2, true).settled);
    assert_eq!(shard.peek(0).remaining, 2);
}

#[test]
fn an_abort_that_overtakes_its_hold_leaves_a_tombstone() {
    let mut shard = Shard::with("1/h", 5);
    assert!(!shard.settle(1, 1, false).settled);
    shard.now += 30 * SECOND_US;
    assert_eq!(shard.hold(1, 1, &[("api", "k", 1)], SECOND_US), HoldReply::Aborted);
    assert!(
        matches!(shard.hold(1, 2, &[("api", "k", 1)], SECOND_US), HoldReply::Decided(decision) if decision.allowed)
    );
    shard.now += 3_600 * SECOND_US;
    while shard.expire() > 0 {}
    assert!(!shard.rows.state.keys().any(|key| key[0] == 6), "hold rows expire");
}

#[test]
fn a_spent_hold_remembers_its_request_id() {
    let mut shard = Shard::with("1/h", 5);
    let items = [("api", "k", 2)];
    let HoldReply::Decided(decision) = shard.hold_with_id(1, 1, &items, SECOND_US, Some("a")) else { panic!() };
    // Not before it is settled.
    assert_eq!(shard.refund(2, "a"), RefundReply::Forgotten);
    assert!(shard.settle(1, 1, true).settled);
    assert_eq!(decided(shard.check_with_id(2, "a")), decision);
    assert_eq!(shard.hold_with_id(1, 2, &items, SECOND_US, Some("a")), HoldReply::Decided(decision));
    assert_eq!(shard.peek(0).remaining, 3);
    assert_eq!(shard.refund(2, "a"), RefundReply::Refunded { credited: 2, limit: 5, remaining: 5 });
}

#[test]
fn a_hold_of_other_items_under_the_same_id_is_refused() {
    let mut shard = Shard::with("1/h", 5);
    shard.hold_with_id(1, 1, &[("api", "k", 2)], SECOND_US, Some("a"));
    let reply = shard.hold_with_id(1, 2, &[("api", "k", 3)], SECOND_US, Some("a"));
    assert!(matches!(reply, HoldReply::Refused(Refusal::RequestIdReused { admitted_cost: 2, .. })));
}

#[test]
fn a_reset_leaves_room_for_what_is_outstanding() {
    let mut shard = Shard::with("1/s", 5);
    shard.hold(1, 1, &[("api", "k", 3)], 10 * SECOND_US);
    shard.reset();
    assert_eq!(shard.peek(0).remaining, 2);
    shard.now += SECOND_US;
    assert_eq!(shard.peek(0).remaining, 2, "it refills to the capacity less what is outstanding");
    shard.settle(1, 1, false);
    assert_eq!(shard.peek(0).remaining, 2, "the abort is of another epoch");
    shard.now += SECOND_US;
    assert_eq!(shard.peek(0).remaining, 3, "but the room is free");
}

#[test]
fn beyond_the_bound_the_grant_soonest_to_end_is_spent() {
    let (burst, held) = (1000, bounds::GRANTS_MAX as u64 + 1);
    let mut shard = Shard::with("1/365d", burst);
    for id in 0..u128::from(held) {
        assert!(matches!(shard.hold(id, 1, &[("api", "k", 1)], SECOND_US + id as u64), HoldReply::Decided(_)));
    }
    assert!(shard.settle(0, 1, false).settled);
    assert_eq!(shard.peek(0).remaining, burst - held);
    assert!(shard.settle(1, 1, false).settled);
    assert_eq!(shard.peek(0).remaining, burst - held + 1);
}

#[test]
fn a_policy_made_anew_starts_with_full_buckets_and_forgets_ids() {
    let mut shard = Shard::with("1/h", 5);
    shard.check_with_id(5, "a");
    shard.copy("api", None);
    assert!(matches!(shard.check_with_id(5, "a"), CheckReply::Refused(Refusal::PolicyNotFound { .. })));
    assert_eq!(shard.reset(), ResetReply::PolicyNotFound { policy: "api".into() });
    assert!(matches!(shard.refund(1, "a"), RefundReply::PolicyNotFound { .. }));
    shard.policy_of_creation("api", token_bucket("1/h", 5), 3);
    assert_eq!(shard.refund(5, "a"), RefundReply::Forgotten);
    assert_eq!(shard.check(1).remaining, 4);
}

#[test]
fn a_denial_stops_the_refill_while_it_lasts() {
    let mut shard = Shard::with("1/s", 10);
    shard.check(8);
    shard.policy("api", denying(token_bucket("1/s", 10), "k"));
    shard.now += 100 * SECOND_US;
    assert!(!shard.check(1).allowed);
    shard.policy("api", token_bucket("1/s", 10));
    shard.now += SECOND_US;
    assert_eq!(shard.peek(0).remaining, 3);
}

#[test]
fn older_revisions_than_the_chain_knows_count_at_the_worst_of_their_terms() {
    let mut shard = Shard::with("10/s", 100);
    shard.check(90);
    for (rate, burst) in [("1/s", 100), ("10/s", 50), ("10/s", 100), ("10/s", 100), ("10/s", 101)] {
        shard.now += SECOND_US;
        shard.policy("api", token_bucket(rate, burst));
    }
    // Ten were left. Exactly, 10 + 1 + 10 + 10 + 10 came back since; with 1/s for the first three seconds 3 + 10 + 10.
    assert_eq!(shard.peek(0).remaining, 33);
    // What was full before all of them is full: a missing row depends on no revision.
    assert_eq!(shard.checks(&[("api", "other", 1)]).results[0].remaining, 100);
}

#[test]
fn copied_policies_leave_no_gap_and_a_stale_copy_changes_nothing() {
    let mut shard = Shard::with("1/h", 5);
    let before = shard.rows.clone();
    for (from, to) in [(2, 3), (0, 1), (0, 0)] {
        let change = PolicyChange { name: "api".into(), revision: to, policy: None };
        let command = CopyPolicies { from, to, changes: vec![change] };
        assert_eq!(shard.apply(Command::CopyPolicies(command)), Reply::CopyPolicies { synced_revision: 1 });
    }
    assert_eq!(shard.rows, before);
    // One that begins earlier brings only what is new.
    let policy = |revision, burst| {
        let name = PolicyName::parse("api").unwrap();
        let spec = token_bucket("1/h", burst);
        PolicyChange {
            name: "api".into(),
            revision,
            policy: Some(Policy { name, revision, created_revision: 1, spec }),
        }
    };
    let command = CopyPolicies { from: 0, to: 2, changes: vec![policy(1, 7), policy(2, 9)] };
    assert_eq!(shard.apply(Command::CopyPolicies(command)), Reply::CopyPolicies { synced_revision: 2 });
    assert_eq!(shard.peek(0).limit, 9);
}

#[test]
fn only_full_buckets_expire_and_only_what_is_due() {
    let mut shard = Shard::with("1/s", 10);
    shard.check(1);
    assert_eq!(shard.machine.next_due(&shard.rows).unwrap(), Some(ShardTime(shard.now + 61 * SECOND_US)));
    shard.now += 61 * SECOND_US - 1;
    assert_eq!(shard.expire(), 0);
    shard.check(10);
    shard.now += 1;
    assert_eq!(shard.expire(), 1, "it moved and is filed anew");
    assert_eq!(shard.machine.next_due(&shard.rows).unwrap(), Some(ShardTime(shard.now + 70 * SECOND_US - 1)));
    shard.now += 70 * SECOND_US;
    assert_eq!(shard.expire(), 1);
    assert!(shard.rows.expiry.is_empty());
}

#[test]
fn expire_works_off_as_many_rows_as_asked_and_none_ahead_of_the_clock() {
    let mut shard = Shard::with("1/ms", 1);
    for key in 0..10 {
        shard.checks(&[("api", &key.to_string(), 1)]);
    }
    let expire = |shard: &mut Shard, up_to, limit| {
        let Reply::Expire { removed } = shard.apply(Command::Expire { up_to: ShardTime(up_to), limit }) else {
            panic!()
        };
        removed
    };
    assert_eq!(expire(&mut shard, u64::MAX, 100), 0);
    shard.now += 3_600 * SECOND_US;
    assert_eq!(expire(&mut shard, 1, 100), 0);
    assert_eq!(expire(&mut shard, u64::MAX, 4), 4);
    assert_eq!(expire(&mut shard, u64::MAX, 0), 0);
    assert_eq!(expire(&mut shard, u64::MAX, 100), 6);
}

#[test]
fn the_clock_never_goes_back() {
    let mut shard = Shard::with("1/s", 5);
    shard.check(5);
    let reached = shard.now;
    shard.now = 0;
    assert_eq!(shard.check(1).retry_after_us, Some(SECOND_US));
    assert_eq!(shard.reopened().machine.clock(&shard.rows).unwrap(), ShardTime(reached));
}

#[test]
fn commands_on_the_wrong_kind_of_shard_change_nothing() {
    let mut system = Shard::system();
    let check = CheckCommand { mode: Mode::Enforce, items: vec![], request_id: None };
    assert_eq!(system.apply(Command::Check(check)), Reply::Misrouted);
    let mut data = Shard { now: 0, ..Shard::data() };
    let forget = onceward_core::system::SystemCommand::ForgetDeletedPolicies { through: 1 };
    assert_eq!(data.apply(Command::System(forget)), Reply::Misrouted);
    assert_eq!(data.rows, MemoryRows::default());
}
