//! A correct history is never rejected: whatever an exact, sequential reference answers, however long the calls took that
//! asked it and however many answers were lost, no checker finds a violation in it.

mod reference;

use std::time::Duration;

use onceward_checkers::{
    all,
    history::{Call, Delivery, History, Item, Message, Mode, Operation, Outcome},
};
use proptest::{collection::vec, prelude::*};

use reference::Reference;

/// What becomes of a call that reached the cluster.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Answered,
    Refused,
    /// Applied, but the answer was lost.
    Lost,
    /// Not applied, and nobody knows.
    Vanished,
    /// Applied long after the client gave up.
    Late,
}

#[derive(Debug, Clone)]
struct Step {
    /// Since the step before.
    gap_us: u64,
    /// From the invocation to the effect, and from there to the return.
    before_us: u64,
    after_us: u64,
    fate: Fate,
    wish: Wish,
}

/// A call still without what only the run knows: tokens, and names that are used once.
#[derive(Debug, Clone)]
enum Wish {
    Call(Call),
    Complete {
        key: u8,
        token: prop::sample::Index,
        messages: u8,
    },
    Abandon {
        key: u8,
        token: prop::sample::Index,
    },
    Extend {
        key: u8,
        token: prop::sample::Index,
        lease_ms: u64,
    },
    /// A call made before, again.
    Again(prop::sample::Index),
}

const POLICIES: [&str; 3] = ["bucket", "window", "slow"];

fn step() -> impl Strategy<Value = Step> {
    let gap_us = prop_oneof![8 => 0..30_000_u64, 1 => 30_000..1_200_000_u64];
    let fate = prop_oneof![
        12 => Just(Fate::Answered),
        1 => Just(Fate::Refused),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Vanished),
        1 => Just(Fate::Late),
    ];
    (gap_us, 0..100_000_u64, 0..100_000_u64, fate, wish()).prop_map(|(gap_us, before_us, after_us, fate, wish)| Step {
        gap_us,
        before_us,
        after_us,
        fate,
        wish,
    })
}

fn wish() -> impl Strategy<Value = Wish> {
    let token = any::<prop::sample::Index>;
    let key = || 0..3_u8;
    prop_oneof![
        12 => limits().prop_map(Wish::Call),
        4 => policies().prop_map(Wish::Call),
        8 => begin().prop_map(Wish::Call),
        4 => (key(), token(), 0..3_u8).prop_map(|(key, token, messages)| Wish::Complete { key, token, messages }),
        1 => (key(), token()).prop_map(|(key, token)| Wish::Abandon { key, token }),
        2 => (key(), token(), 50..600_u64).prop_map(|(key, token, lease_ms)| Wish::Extend { key, token, lease_ms }),
        4 => webhooks().prop_map(Wish::Call),
        3 => token().prop_map(Wish::Again),
    ]
}

fn limits() -> impl Strategy<Value = Call> {
    let names =
        || (0..POLICIES.len(), 0..2_u8).prop_map(|(policy, key)| (POLICIES[policy].to_owned(), format!("k{key}")));
    let item = || (names(), 1..4_u64).prop_map(|((policy, key), cost)| Item { policy, key, cost });
    let mode = prop_oneof![8 => Just(Mode::Enforce), 1 => Just(Mode::Peek), 1 => Just(Mode::Shadow)];
    let items = prop_oneof![6 => vec(item(), 1), 1 => vec(item(), 2..3)];
    let id = || (0..40_u8).prop_map(|id| format!("r{id}"));
    prop_oneof![
        12 => (items, mode, prop::option::weighted(0.3, id()))
            .prop_map(|(items, mode, request_id)| Call::Check { items, mode, request_id }),
        2 => (names(), 1..4_u64, id())
            .prop_map(|((policy, key), cost, request_id)| Call::Refund { policy, key, cost, request_id }),
        1 => names().prop_map(|(policy, key)| Call::Reset { policy, key }),
    ]
}

fn policies() -> impl Strategy<Value = Call> {
    prop_oneof![
        5 => (0..3_usize, 0..3_usize)
            .prop_map(|(policy, terms)| Call::PutPolicy { policy: POLICIES[policy].to_owned(), terms: reference::terms(policy, terms) }),
        5 => (0..3_usize).prop_map(|policy| Call::GetPolicy { policy: POLICIES[policy].to_owned() }),
        1 => (0..2_usize).prop_map(|policy| Call::DeletePolicy { policy: POLICIES[policy].to_owned() }),
    ]
}

fn begin() -> impl Strategy<Value = Call> {
    let begin = (0..3_u8, 0..4_u8, 0..8_u8, 50..600_u64, 1_000..3_000_u64, prop::bool::weighted(0.2));
    prop_oneof![
        3 => begin.prop_map(|(key, attempt, fingerprint, lease_ms, ttl_ms, hold)| Call::Begin {
            account: "acct".to_owned(),
            key: format!("k{key}"),
            fingerprint: if fingerprint == 0 { "other" } else { "same" }.to_owned(),
            attempt_id: format!("a{attempt}"),
            lease_ms,
            ttl_ms,
            hold,
        }),
        1 => (0..3_u8).prop_map(|key| Call::GetRecord { account: "acct".to_owned(), key: format!("k{key}") }),
    ]
}

fn webhooks() -> impl Strategy<Value = Call> {
    let app = || "acct".to_owned();
    let event = || (0..30_u8).prop_map(|event| format!("e{event}"));
    let endpoint = || (0..3_u8).prop_map(|endpoint| format!("p{endpoint}"));
    prop_oneof![
        6 => (event(), 0..2_u8).prop_map(move |(event_id, content)| Call::Publish {
            app: app(),
            message: Message { app: app(), event_id, digest: format!("d{content}") },
        }),
        3 => event().prop_map(move |event_id| Call::GetMessage { app: app(), event_id }),
        3 => (endpoint(), 0..100_u8).prop_map(move |(endpoint, value)| Call::PutEndpoint {
            app: app(),
            endpoint,
            description: format!("v{value}"),
            disabled: false,
        }),
        3 => endpoint().prop_map(move |endpoint| Call::GetEndpoint { app: app(), endpoint }),
        1 => Just(Call::DeleteEndpoint { app: app(), endpoint: "p2".to_owned() }),
    ]
}

/// What a run begins with.
fn setting_up() -> impl Iterator<Item = Step> {
    let policies = (0..POLICIES.len())
        .map(|policy| Call::PutPolicy { policy: POLICIES[policy].to_owned(), terms: reference::terms(policy, 0) });
    let endpoints = (0..2).map(|endpoint| Call::PutEndpoint {
        app: "acct".to_owned(),
        endpoint: format!("p{endpoint}"),
        description: "new".to_owned(),
        disabled: false,
    });
    policies.chain(endpoints).map(|call| Step {
        gap_us: 1_000,
        before_us: 100,
        after_us: 100,
        fate: Fate::Answered,
        wish: Wish::Call(call),
    })
}

/// A run of the reference: what is done to it in order of time, and what clients make of it.
struct Play {
    reference: Reference,
    history: History,
    made: Vec<Call>,
    now_us: u64,
}

impl Play {
    fn step(&mut self, Step { gap_us, before_us, after_us, fate, wish }: Step) {
        self.now_us += gap_us;
        let Some(call) = self.call(wish) else { return };
        self.made.push(call.clone());
        let (mut invoked_us, mut returned_us) = (self.now_us - before_us, self.now_us + after_us);
        let reply = match fate {
            Fate::Refused | Fate::Vanished => None,
            Fate::Answered | Fate::Lost | Fate::Late => Some(self.reference.apply(&call, self.now_us)),
        };
        let outcome = match (fate, reply) {
            (Fate::Answered, Some(reply)) => Outcome::Answered { reply },
            (Fate::Refused, _) => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        if matches!(fate, Fate::Late) {
            (invoked_us, returned_us) = (invoked_us.saturating_sub(300_000), self.now_us - before_us);
        }
        let process = self.made.len() as u64;
        self.history.operations.push(Operation {
            process,
            node: 1,
            invoked_us,
            returned_us,
            last: false,
            call,
            outcome,
        });
        self.deliver(after_us);
    }

    fn call(&self, wish: Wish) -> Option<Call> {
        let account = || "acct".to_owned();
        let name = |key: u8| format!("k{key}");
        let token = |token: prop::sample::Index| Some(1 + token.index(self.reference.tokens() as usize + 1) as u64);
        Some(match wish {
            Wish::Call(call) => call,
            Wish::Complete { key, token: index, messages } => {
                let body = format!("b{}", self.made.len());
                let message = |n| Message { app: account(), event_id: format!("{body}-{n}"), digest: format!("d{n}") };
                let messages = (0..messages).map(message).collect();
                Call::Complete { account: account(), key: name(key), token: token(index)?, body, messages }
            }
            Wish::Abandon { key, token: index } => {
                Call::Abandon { account: account(), key: name(key), token: token(index)? }
            }
            Wish::Extend { key, token: index, lease_ms } => {
                Call::Extend { account: account(), key: name(key), token: token(index)?, lease_ms }
            }
            Wish::Again(_) if self.made.is_empty() => return None,
            Wish::Again(index) => index.get(&self.made).clone(),
        })
    }

    /// All that is due, some of it twice.
    fn deliver(&mut self, after_us: u64) {
        for (endpoint, event_id, message_id, sequence, digest) in self.reference.due() {
            for again in 0..1 + after_us % 2 {
                self.history.deliveries.push(Delivery {
                    at_us: self.now_us + again * 1_000,
                    app: "acct".to_owned(),
                    endpoint: endpoint.clone(),
                    message_id: message_id.clone(),
                    event_id: event_id.clone(),
                    sequence,
                    digest: digest.clone(),
                    signed: true,
                    answered: Some(if again == 0 && after_us % 2 == 1 { 500 } else { 200 }),
                });
            }
        }
    }

    fn read_all(mut self) -> History {
        self.now_us += 500_000;
        for call in self.reference.reads() {
            let reply = self.reference.apply(&call, self.now_us);
            let (invoked_us, returned_us) = (self.now_us, self.now_us + 10);
            let outcome = Outcome::Answered { reply };
            self.history.operations.push(Operation {
                process: 0,
                node: 1,
                invoked_us,
                returned_us,
                last: true,
                call,
                outcome,
            });
        }
        self.history
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_time: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_correct_history_is_never_rejected(steps in vec(step(), 1..250), clock_per_mille in 800..=1_010_u64) {
        let now_us = Duration::from_secs(1).as_micros() as u64;
        let reference = Reference::new(clock_per_mille);
        let mut play = Play { reference, history: History::default(), made: Vec::new(), now_us };
        setting_up().chain(steps).for_each(|step| play.step(step));
        let history = play.read_all();
        for checker in all() {
            let verdict = checker.check(&history);
            for (w,c) in &verdict.judged { eprintln!("J {} {}|{}", verdict.promise, w, c); }
            for (w,c) in &verdict.measured { eprintln!("M {} {}|{}", verdict.promise, w, c); }
            prop_assert!(verdict.kept(), "{}: {:#?}", verdict.promise, verdict.violations);
        }
    }
}
