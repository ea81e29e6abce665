//! The limiter against an exact model: rationals, every change applied at once, every admission remembered.
//!
//! The model shares no arithmetic with the crate. After every step both must agree to the token; what was admitted must
//! obey G1 on every interval; and waiting `retry_after` must admit where asking 1 µs earlier doesn't.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod exact;
#[path = "../kit/mod.rs"]
mod kit;

use exact::{Ledger, Limit, Model};
use kit::{Shard, denying, sliding_window, token_bucket};
use onceward_core::limits::*;
use proptest::prelude::*;

fn policies() -> Vec<(PolicySpec, Option<Limit>)> {
    const S: u64 = 1_000_000;
    const YEAR: u64 = 365 * 86_400 * S;
    let token = |rate: &str, amount, window, burst| {
        (token_bucket(rate, burst), Some(Limit { sliding: false, amount, window, burst }))
    };
    let sliding = |rate: &str, amount, window| {
        (sliding_window(rate), Some(Limit { sliding: true, amount, window, burst: amount }))
    };
    let mut overridden = token_bucket("1000/s", 1_000);
    overridden.overrides.insert("k".into(), Override::Limit { rate: "3/7s".parse().unwrap(), burst: 4 });
    vec![
        token("2/s", 2, S, 20),
        token("3/7s", 3, 7 * S, 5),
        token("1/365d", 1, YEAR, 2),
        token("1/365d", 1, YEAR, 1_000_000_000_000),
        token("1000000000/s", 1_000_000_000, S, 1_000_000_000_000),
        token("1000000/ms", 1_000_000, 1_000, 1),
        token("5000/15min", 5_000, 900 * S, 10),
        sliding("10/s", 10, S),
        sliding("25/s", 25, S),
        sliding("7/3ms", 7, 3_000),
        sliding("10/min", 10, 60 * S),
        sliding("100/365d", 100, YEAR),
        sliding("1000000000000/h", 1_000_000_000_000, 3_600 * S),
        (overridden, Some(Limit { sliding: false, amount: 3, window: 7 * S, burst: 4 })),
        (denying(token_bucket("2/s", 20), "k"), None),
        (denying(sliding_window("10/s"), "k"), None),
    ]
}

/// What the limits of a denied key's policy are for others.
fn base_of(policy: usize) -> Limit {
    match policies()[policy] {
        (_, Some(limit)) => limit,
        (ref spec, None) => Limit {
            sliding: spec.algorithm == Algorithm::SlidingWindow,
            amount: spec.rate.amount,
            window: spec.rate.window_us(),
            burst: spec.burst,
        },
    }
}

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    /// Parts per thousand of the capacity, at least 1 token.
    Check(u64),
    CheckWithId(usize, u64),
    Hold {
        slot: usize,
        cost: u64,
        lease: u64,
    },
    Settle {
        slot: usize,
        spent: bool,
    },
    Refund(usize, u64),
    Reset,
    Policy(usize),
    Expire,
    Reopen,
}

fn pass() -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..3,
        0_u64..3_000,
        0_u64..3_000_000,
        0_u64..100_000_000,
        0_u64..100_000_000_000_000,
        Just(u64::MAX / 64),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cost = || prop_oneof![Just(0_u64), 0_u64..300, 0_u64..=1_000];
    let lease = prop_oneof![0_u64..5_000, 0_u64..5_000_000];
    let step = prop_oneof![
        6 => pass().prop_map(Step::Pass),
        8 => cost().prop_map(Step::Check),
        3 => (0_usize..3, cost()).prop_map(|(id, cost)| Step::CheckWithId(id, cost)),
        3 => (0_usize..4, cost(), lease).prop_map(|(slot, cost, lease)| Step::Hold { slot, cost, lease }),
        3 => (0_usize..4, any::<bool>()).prop_map(|(slot, spent)| Step::Settle { slot, spent }),
        2 => (0_usize..3, cost()).prop_map(|(id, cost)| Step::Refund(id, cost)),
        1 => Just(Step::Reset),
        2 => (0..policies().len()).prop_map(Step::Policy),
        1 => Just(Step::Expire),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

#[derive(Debug, Clone, Copy)]
struct Admitted {
    cost: u64,
    at: u64,
    epoch: u64,
    refunded: Option<u64>,
}

/// Both sides of the comparison, and what was seen of them.
struct Trial {
    shard: Shard,
    model: Model,
    policy: usize,
    /// Revisions that the bucket's row has yet to follow; beyond two the chain rounds against the caller.
    unfollowed: usize,
    admitted: [Option<Admitted>; 3],
    /// Each hold counted when it was granted, and when it was spent: it may be spent at any time between.
    early: Ledger,
    late: Ledger,
    holds: u128,
    hold_of_slot: [u128; 4],
}

impl Trial {
    fn new(policy: usize) -> Trial {
        let mut shard = Shard::data();
        shard.policy("api", policies()[policy].0.clone());
        let mut model = Model::new(base_of(policy), shard.now);
        model.denied = policies()[policy].1.is_none();
        Trial {
            shard,
            model,
            policy,
            unfollowed: 0,
            admitted: [None; 3],
            early: Ledger::default(),
            late: Ledger::default(),
            holds: 0,
            hold_of_slot: [0; 4],
        }
    }

    fn tokens(&self, per_mille: u64) -> u64 {
        let burst = base_of(self.policy).burst;
        (u128::from(burst) * u128::from(per_mille) / 1_000).max(1) as u64
    }

    fn close_ledgers(&mut self) {
        let limit = self.model.limit;
        self.early.close(limit);
        self.late.close(limit);
    }

    fn pass(&mut self, us: u64) {
        self.shard.now = self.shard.now.saturating_add(us);
        self.model.advance(self.shard.now);
        for grant in std::mem::take(&mut self.model.lapsed) {
            if grant.era == self.model.era {
                self.late.add(grant.ends_at, i128::from(grant.cost));
            }
        }
    }

    fn expected(&self, cost: u64, allowed: bool) -> (bool, u64, u64) {
        match self.model.denied {
            true => (false, 0, 0),
            false => {
                (allowed, self.model.limit.burst, if allowed { self.model.left() - cost } else { self.model.left() })
            }
        }
    }

    fn check(&mut self, cost: u64, id: Option<usize>) {
        let now = self.shard.now;
        let remembered = id.and_then(|id| self.admitted[id]).filter(|admitted| now - admitted.at < 60_000_000);
        let name = id.map(|id| id.to_string());
        let reply = self.shard.check_as(Mode::Enforce, &[("api", "k", cost)], name.as_deref());
        if let Some(admitted) = remembered {
            match reply {
                CheckReply::Decided(decision) => assert!(decision.allowed && admitted.cost == cost),
                CheckReply::Refused(Refusal::RequestIdReused { admitted_cost, .. }) => {
                    assert!(admitted.cost != cost && admitted_cost == admitted.cost);
                }
                other => panic!("{other:?}"),
            }
            return;
        }
        let CheckReply::Decided(mut decision) = reply else { panic!("{reply:?}") };
        let result = decision.results.remove(0);
        let allowed = !self.model.denied && cost <= self.model.left();
        assert_eq!((result.allowed, result.limit, result.remaining), self.expected(cost, allowed));
        if allowed {
            self.model.take(cost);
            self.unfollowed = 0;
            self.early.add(now, i128::from(cost));
            self.late.add(now, i128::from(cost));
            if let Some(id) = id {
                self.admitted[id] = Some(Admitted { cost, at: now, epoch: self.model.epoch, refunded: None });
            }
        }
        self.waits_are_exact(cost, &result);
    }

    /// Waiting `retry_after` admits, 1 µs less doesn't; the same for `reset_after` and the whole capacity.
    fn waits_are_exact(&self, cost: u64, result: &ItemResult) {
        if self.model.denied {
            assert_eq!((result.retry_after_us, result.reset_after_us), (None, 0));
            return;
        }
        let limit = self.model.limit.burst;
        let retry_us = result.retry_after_us.expect("only a denied key waits for ever");
        if !result.allowed {
            self.admits_first_after(cost, retry_us);
        }
        self.admits_first_after(limit, result.reset_after_us);
    }

    fn admits_first_after(&self, cost: u64, wait_us: u64) {
        let mut later = self.shard.reopened();
        let Some(then) = later.now.checked_add(wait_us) else { return };
        if wait_us > 0 {
            later.now = then - 1;
            assert!(!later.peek(cost).allowed, "{cost} fit before {wait_us} µs had passed");
        }
        later.now = then;
        assert!(later.peek(cost).allowed, "{cost} didn't fit after {wait_us} µs");
    }

    fn hold(&mut self, slot: usize, cost: u64, lease: u64) {
        if self.model.grants.iter().any(|grant| grant.slot == slot) {
            return;
        }
        self.holds += 1;
        self.hold_of_slot[slot] = self.holds;
        let HoldReply::Decided(mut decision) = self.shard.hold(self.holds, 7, &[("api", "k", cost)], lease) else {
            panic!("not decided");
        };
        let result = decision.results.remove(0);
        let allowed = !self.model.denied && cost <= self.model.left();
        assert_eq!((result.allowed, result.limit, result.remaining), self.expected(cost, allowed));
        if allowed {
            self.model.hold(slot, cost, self.shard.now.saturating_add(lease));
            self.unfollowed = 0;
            self.early.add(self.shard.now, i128::from(cost));
            self.pass(0);
        }
        self.waits_are_exact(cost, &result);
    }

    fn settle(&mut self, slot: usize, spent: bool) {
        let reply = self.shard.settle(self.hold_of_slot[slot], 7, spent);
        let epoch = self.model.epoch;
        let grant = self.model.settle(slot, spent);
        assert_eq!(reply.settled, grant.is_some());
        let Some(grant) = grant else { return };
        self.unfollowed = 0;
        // What was granted under another policy was admitted by that one.
        let counts = grant.era == self.model.era;
        if counts && spent {
            self.late.add(self.shard.now, i128::from(grant.cost));
        } else if counts && grant.epoch == epoch {
            self.early.add(self.shard.now, -i128::from(grant.cost));
        }
        if !spent && !self.model.denied {
            assert_eq!(reply.results[0].remaining, self.model.left());
        }
    }

    fn refund(&mut self, id: usize, cost: u64) {
        let now = self.shard.now;
        let reply = self.shard.refund(cost, &id.to_string());
        let remembered = self.admitted[id].as_mut().filter(|admitted| now - admitted.at < 60_000_000);
        let Some(admitted) = remembered else {
            assert_eq!(reply, RefundReply::Forgotten);
            return;
        };
        if admitted.refunded.is_some_and(|refunded| refunded != cost) || cost > admitted.cost {
            assert_eq!(reply, RefundReply::CostMismatch { admitted_cost: admitted.cost });
            return;
        }
        let RefundReply::Refunded { credited, .. } = reply else { panic!("{reply:?}") };
        if admitted.refunded.is_none() {
            admitted.refunded = Some(cost);
            assert_eq!(credited, self.model.refund(admitted.epoch, admitted.at, cost));
            if credited > 0 {
                self.unfollowed = 0;
            }
            self.early.add(now, -i128::from(credited));
            self.late.add(now, -i128::from(credited));
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Pass(us) => self.pass(us),
            Step::Check(cost) => self.check(self.tokens(cost), None),
            Step::CheckWithId(id, cost) => self.check(self.tokens(cost), Some(id)),
            Step::Hold { slot, cost, lease } => self.hold(slot, self.tokens(cost), lease),
            Step::Settle { slot, spent } => self.settle(slot, spent),
            Step::Refund(id, cost) => self.refund(id, self.tokens(cost)),
            Step::Reset => {
                self.close_ledgers();
                assert_eq!(self.shard.reset(), ResetReply::Done);
                self.model.reset(base_of(self.policy));
                self.unfollowed = 0;
            }
            Step::Policy(policy) if self.unfollowed < 2 => {
                self.close_ledgers();
                let (spec, limit) = policies().swap_remove(policy);
                self.shard.policy("api", spec);
                self.model.change(limit);
                self.policy = policy;
                self.unfollowed += 1;
            }
            Step::Policy(_) => {}
            Step::Expire => {
                self.shard.expire();
            }
            Step::Reopen => self.shard = self.shard.reopened(),
        }
    }
}

proptest! {
    // Milliseconds for each thousand; `PROPTEST_CASES` asks for more.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(4_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_limiter_is_its_exact_model(policy in 0..policies().len(), steps in steps()) {
        let mut trial = Trial::new(policy);
        for step in &steps {
            trial.step(step);
        }
        trial.close_ledgers();
    }

    #[test]
    fn revisions_no_longer_told_apart_give_back_no_more_than_the_exact_model(
        // All but the last two, which deny.
        first in 0..policies().len() - 2,
        cost in 0_u64..=1_000,
        changes in prop::collection::vec((pass(), 0..policies().len()), 3..9),
        passes in prop::collection::vec(pass(), 1..4),
    ) {
        let mut trial = Trial::new(first);
        let taken = trial.tokens(cost);
        let taken_at = trial.shard.now;
        trial.check(taken, None);
        let kinds: Vec<bool> = changes.iter().map(|(_, policy)| base_of(*policy).sliding).chain([base_of(first).sliding]).collect();
        let windows = changes.iter().map(|(_, policy)| base_of(*policy).window).chain([base_of(first).window]);
        let shortest = windows.min().expect("the first");
        for (us, policy) in changes {
            trial.pass(us);
            trial.unfollowed = 0;
            trial.step(&Step::Policy(policy));
        }
        for us in passes {
            trial.pass(us);
            let limit = trial.model.limit;
            let remaining = trial.shard.peek(0).remaining;
            if trial.model.denied {
                continue;
            }
            if !kinds.contains(&true) {
                prop_assert!(remaining <= trial.model.left(), "{remaining} of {}", trial.model.left());
            }
            // The exact rule may count a token twice here, once by its age and once as left over: so only the law, for
            // as long as what was taken is within every window that was in force.
            if !kinds.contains(&false) && trial.shard.now - taken_at < shortest {
                prop_assert!(u128::from(remaining) + u128::from(taken) <= u128::from(limit.burst.max(taken)));
            }
        }
    }
}
