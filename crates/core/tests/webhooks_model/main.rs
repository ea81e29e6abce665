//! Webhooks against a small reference: random histories of calls, outcomes and copies, with lost answers, crashes, and
//! time that stands still, comes to the edge of something, or runs far.
//!
//! Behind every entry the replies and rows must be the reference's: each message is, for each endpoint that it matched,
//! pending and in the due index, succeeded, failed or withheld, under numbers without a hole; and nothing goes that may
//! not go yet. In the end, nothing is left of what was delivered or deleted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../kit/mod.rs"]
mod kit;
mod reference;

use std::collections::BTreeSet;

use bytes::Bytes;
use kit::{
    Shard,
    idempotency::{LEASE_US, TTL_US, account, key, response},
    webhooks::*,
};
use onceward_core::{
    codec::{
        self,
        keys::{self, Kind},
    },
    command::*,
    idempotency::{BeginCommand, CompleteCommand, OnLeaseExpiry, Publishing},
    time::ShardTime,
    webhooks::*,
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};
use reference::Reference;

/// Applications by uid; the last slot has none.
const APPS: [&str; 2] = ["acme", "beta"];
const HOUR_US: u64 = 3_600_000_000;

#[derive(Debug, Clone)]
enum Call {
    CreateApp { slot: usize, get_if_exists: bool },
    DeleteApp { slot: usize },
    CreateEndpoint { slot: usize, wants: usize, disabled: bool },
    SetDisabled { slot: usize, endpoint: Index, disabled: bool },
    DeleteEndpoint { slot: usize, endpoint: Index },
    Publish { slot: usize, said: Said, retention_us: u64, request: Option<(usize, u8)> },
    Complete { slot: usize, said: Vec<Said>, retention_us: u64 },
    Report(Vec<Reported>),
    CopyOperational { ahead: u64, which: u8 },
}

/// What a message says, of few things that there are to say.
#[derive(Debug, Clone, Copy)]
struct Said {
    event_id: Option<usize>,
    event_type: usize,
    channel: usize,
    payload: usize,
    payload_retention_us: Option<u64>,
}

/// An outcome of a delivery that is pending or that ever was, as of its tries or of others.
#[derive(Debug, Clone)]
struct Reported {
    of_pending: bool,
    which: Index,
    off: i8,
    verdict: Verdict,
}

#[derive(Debug, Clone)]
enum Passing {
    By(u64),
    Back(u64),
    /// To an instant at which something changes by itself, 1 µs before or 1 µs behind it.
    ToAnEdge(Index, i64),
}

#[derive(Debug, Clone)]
enum Step {
    Entry {
        passing: Passing,
        calls: Vec<Call>,
    },
    Expire {
        passing: Passing,
        before_us: u64,
        limit: u32,
    },
    /// The answers to the entry before were lost, and it is sent again.
    Again(Passing),
    Crash,
}

fn said() -> impl Strategy<Value = Said> {
    let event_id = prop_oneof![2 => Just(None), 1 => (0..3_usize).prop_map(Some)];
    let retention = prop_oneof![4 => Just(None), 1 => select(vec![0, HOUR_US, 2 * DAY_US]).prop_map(Some)];
    (event_id, 0..2_usize, 0..2_usize, prop_oneof![4 => Just(0_usize), 1 => Just(1)], retention).prop_map(
        |(event_id, event_type, channel, payload, payload_retention_us)| Said {
            event_id,
            event_type,
            channel,
            payload,
            payload_retention_us,
        },
    )
}

fn reported() -> impl Strategy<Value = Reported> {
    let off = prop_oneof![6 => Just(0_i8), 1 => -2..3_i8];
    let verdict = prop_oneof![
        3 => Just(Verdict::Succeeded),
        4 => select(vec![0, 1, 5_000_000, HOUR_US, 3 * DAY_US]).prop_map(|after_us| Verdict::Retry { after_us }),
        1 => Just(Verdict::Exhausted),
        1 => Just(Verdict::Gone),
    ];
    (prop_oneof![4 => Just(true), 1 => Just(false)], any::<Index>(), off, verdict)
        .prop_map(|(of_pending, which, off, verdict)| Reported { of_pending, which, off, verdict })
}

fn call() -> impl Strategy<Value = Call> {
    let slot = || prop_oneof![6 => Just(0_usize), 1 => 1..=APPS.len()];
    let retention = || select(vec![HOUR_US, 2 * DAY_US, 90 * DAY_US]);
    let request = prop::option::weighted(0.2, (0..2_usize, 0..2_u8));
    prop_oneof![
        1 => (slot(), any::<bool>()).prop_map(|(slot, get_if_exists)| Call::CreateApp { slot, get_if_exists }),
        1 => slot().prop_map(|slot| Call::DeleteApp { slot }),
        3 => (slot(), 0..4_usize, prop_oneof![4 => Just(false), 1 => Just(true)])
            .prop_map(|(slot, wants, disabled)| Call::CreateEndpoint { slot, wants, disabled }),
        3 => (slot(), any::<Index>(), any::<bool>())
            .prop_map(|(slot, endpoint, disabled)| Call::SetDisabled { slot, endpoint, disabled }),
        1 => (slot(), any::<Index>()).prop_map(|(slot, endpoint)| Call::DeleteEndpoint { slot, endpoint }),
        8 => (slot(), said(), retention(), request)
            .prop_map(|(slot, said, retention_us, request)| Call::Publish { slot, said, retention_us, request }),
        2 => (slot(), vec(said(), 1..4), retention())
            .prop_map(|(slot, said, retention_us)| Call::Complete { slot, said, retention_us }),
        10 => vec(reported(), 1..5).prop_map(Call::Report),
        1 => (0..3_u64, 0..16_u8).prop_map(|(ahead, which)| Call::CopyOperational { ahead, which }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let passing = || {
        prop_oneof![
            3 => Just(Passing::By(0)),
            3 => (0_u64..10_000_000).prop_map(Passing::By),
            2 => (0_u64..2 * HOUR_US).prop_map(Passing::By),
            1 => (0_u64..4 * DAY_US).prop_map(Passing::By),
            1 => (0_u64..HOUR_US).prop_map(Passing::Back),
            3 => (any::<Index>(), -1_i64..=1).prop_map(|(index, off)| Passing::ToAnEdge(index, off)),
        ]
    };
    let calls = prop_oneof![3 => vec(call(), 1), 1 => vec(call(), 0..5)];
    let before_us = prop_oneof![3 => Just(0_u64), 1 => 0_u64..HOUR_US];
    let limit = prop_oneof![2 => Just(u32::MAX), 1 => 0_u32..4];
    let step = prop_oneof![
        20 => (passing(), calls).prop_map(|(passing, calls)| Step::Entry { passing, calls }),
        5 => (passing(), before_us, limit)
            .prop_map(|(passing, before_us, limit)| Step::Expire { passing, before_us, limit }),
        3 => passing().prop_map(Step::Again),
        2 => Just(Step::Crash),
    ];
    vec(step, 1..50)
}

impl Said {
    fn message(self) -> NewMessage {
        NewMessage {
            event_type: name(["invoice.paid", "invoice.sent"][self.event_type]),
            event_id: self.event_id.map(|n| name(["evt-0", "evt-1", "evt-2"][n])),
            channels: vec![["eu", "us"][self.channel].to_owned()],
            payload_retention_us: self.payload_retention_us,
            ..message(["{}", "[1]"][self.payload])
        }
    }
}

/// Both sides of the comparison.
struct Trial {
    shard: Shard,
    /// Its machine is made anew before each entry.
    twin: Shard,
    reference: Reference,
    /// Endpoints of the system shard that may be copied, and those that were.
    operational: Vec<EndpointId>,
    copied: BTreeSet<EndpointId>,
    last: Vec<Command>,
    completions: usize,
}

impl Trial {
    fn new() -> Trial {
        let (shard, twin) = (Shard::data(), Shard::data());
        let mut trial = Trial {
            shard,
            twin,
            reference: Reference::default(),
            operational: operational_ids(4),
            copied: BTreeSet::new(),
            last: Vec::new(),
            completions: 0,
        };
        let calls = [
            Call::CreateApp { slot: 0, get_if_exists: false },
            Call::CreateApp { slot: APPS.len(), get_if_exists: false },
            Call::CreateEndpoint { slot: 0, wants: 0, disabled: false },
        ];
        for call in calls {
            trial.step(&Step::Entry { passing: Passing::By(1), calls: vec![call] });
        }
        trial
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Entry { passing, calls } => {
                self.last.clear();
                for call in calls {
                    let commands = self.commands(call);
                    self.last.extend(commands);
                }
                self.entry(self.stamp(passing));
            }
            Step::Expire { passing, before_us, limit } => {
                let stamp = self.stamp(passing);
                let up_to = ShardTime(self.reference.now.max(stamp).saturating_sub(*before_us));
                self.last = vec![Command::Expire { up_to, limit: *limit }];
                self.entry(stamp);
            }
            // That a key is completed once, its own model shows.
            Step::Again(passing) => {
                if !self.last.iter().any(|command| matches!(command, Command::Begin(_))) {
                    self.entry(self.stamp(passing));
                }
            }
            Step::Crash => self.shard = self.shard.reopened(),
        }
    }

    fn stamp(&self, passing: &Passing) -> u64 {
        let now = self.reference.now;
        match passing {
            Passing::By(us) => now + us,
            Passing::Back(us) => now.saturating_sub(*us),
            Passing::ToAnEdge(index, off) => {
                let messages = self.reference.apps.values().flat_map(|app| app.messages.values());
                let edges: Vec<u64> = messages
                    .flat_map(|message| {
                        let due = message.deliveries.values().filter_map(|delivery| Some(delivery.due?.0));
                        due.chain(message.payload_expires_at).chain([message.expires_at])
                    })
                    .filter(|edge| *edge < now + 10 * DAY_US)
                    .collect();
                if edges.is_empty() { now } else { index.get(&edges).saturating_add_signed(*off) }
            }
        }
    }

    /// An application as a path names it.
    fn app(&self, slot: usize) -> AppRef {
        let unnamed = || self.reference.apps.iter().find(|(_, app)| app.uid.is_none()).map(|(id, _)| AppRef::Id(*id));
        APPS.get(slot).map(|uid| AppRef::Uid(name(uid))).or_else(unnamed).unwrap_or_else(|| AppRef::Uid(name("none")))
    }

    /// One of its endpoints; where there are none, one that is no endpoint.
    fn endpoint(&self, app: &AppRef, which: &Index) -> EndpointRef {
        let ids: Vec<EndpointId> = self
            .reference
            .app_of(app)
            .map(|app| self.reference.apps[&app].endpoints.keys().copied().collect())
            .unwrap_or_default();
        EndpointRef::Id(if ids.is_empty() { EndpointId(AppId::OPERATIONAL.0) } else { *which.get(&ids) })
    }

    fn commands(&mut self, call: &Call) -> Vec<Command> {
        let action = match call {
            Call::Complete { slot, said, retention_us } => return self.completion(*slot, said, *retention_us),
            Call::Report(reported) => return vec![self.report(reported)],
            Call::CopyOperational { ahead, which } => {
                let known = self.shard.look(WebhookQuery::OperationalRevision);
                let WebhookAnswer::OperationalRevision(known) = known else { panic!("{known:?}") };
                let wanted = self.operational.iter().enumerate().filter(|(n, _)| which & (1 << n) != 0);
                let wanted: Vec<EndpointId> = wanted.map(|(_, id)| *id).collect();
                // An id that was deleted never comes back.
                self.operational.retain(|id| wanted.contains(id) || !self.copied.contains(id));
                self.copied.extend(&wanted);
                let endpoints = wanted.into_iter().map(operational).collect();
                return vec![Command::CopyOperational(CopyOperational { revision: known + ahead, endpoints })];
            }
            Call::CreateApp { slot, get_if_exists } => Action::CreateApp(CreateApp {
                uid: APPS.get(*slot).map(|uid| name(uid)),
                spec: app_spec("name"),
                get_if_exists: *get_if_exists,
            }),
            Call::DeleteApp { slot } => Action::DeleteApp { app: self.app(*slot) },
            Call::CreateEndpoint { slot, wants, disabled } => {
                let all = [wanting(&[], &[]), wanting(&["invoice.paid"], &[]), wanting(&[], &["eu"])];
                let wants = all.into_iter().nth(*wants).unwrap_or(wanting(&["invoice.sent"], &["eu", "us"]));
                creating(self.app(*slot), None, EndpointSpec { disabled: *disabled, ..wants })
            }
            Call::SetDisabled { slot, endpoint, disabled } => {
                let app = self.app(*slot);
                let patch = EndpointPatch { disabled: Some(*disabled), ..EndpointPatch::default() };
                Action::PatchEndpoint(PatchEndpoint { endpoint: self.endpoint(&app, endpoint), app, patch })
            }
            Call::DeleteEndpoint { slot, endpoint } => {
                let app = self.app(*slot);
                Action::DeleteEndpoint(DeleteEndpoint { endpoint: self.endpoint(&app, endpoint), app })
            }
            Call::Publish { slot, said, retention_us, .. } => {
                Action::Publish(Publish { app: self.app(*slot), message: said.message(), retention_us: *retention_us })
            }
        };
        let request = match call {
            Call::Publish { request: Some((key, fingerprint)), .. } => Some(RequestKey {
                scope: "scope".to_owned(),
                key: kit::idempotency::key(["one", "two"][*key]),
                fingerprint: [*fingerprint; 32],
            }),
            _ => None,
        };
        vec![Command::Webhook(Box::new(WebhookCommand { request, ..self.shard.webhook(action) }))]
    }

    /// Of a key that nobody used before: it is begun in the same entry.
    fn completion(&mut self, slot: usize, said: &[Said], retention_us: u64) -> Vec<Command> {
        self.completions += 1;
        let account = match self.app(slot) {
            AppRef::Id(id) => account(&id.to_string()),
            _ => account(APPS.get(slot).unwrap_or(&"none")),
        };
        let key = key(&self.completions.to_string());
        let begin = BeginCommand {
            account: account.clone(),
            key: key.clone(),
            ttl_us: TTL_US,
            lease_us: LEASE_US,
            on_lease_expiry: OnLeaseExpiry::Takeover,
            ..self.shard.beginning("1")
        };
        let begun = self.last.iter().filter(|command| matches!(command, Command::Begin(_))).count() as u64;
        let token = self.reference.tokens + begun + 1;
        let messages = said.iter().map(|said| said.message()).collect();
        let publishing = Publishing { messages, retention_us, nonce: NONCE };
        let (response, wall_ms) = (response("ok"), self.shard.wall_ms());
        let complete = CompleteCommand { account, key, token, response, wall_ms, publishing };
        vec![Command::Begin(begin), Command::Complete(complete)]
    }

    fn report(&self, reported: &[Reported]) -> Command {
        let pending: Vec<(EndpointKey, MessageId)> = self.pending();
        let ever = &self.reference.deliveries_ever;
        let outcomes = reported.iter().filter_map(|reported| {
            let from = if reported.of_pending { &pending } else { ever };
            if from.is_empty() {
                return None;
            }
            let (endpoint, message) = *reported.which.get(from);
            let tries = self.shard.delivery(endpoint, message).map_or(0, |delivery| delivery.tries);
            let tries_before = tries.saturating_add_signed(i16::from(reported.off));
            Some(outcome(endpoint, message, tries_before, reported.verdict))
        });
        Command::RecordOutcomes(self.shard.recording(outcomes.collect()))
    }

    /// What the dispatcher finds to be done, now or later, those to operational endpoints excepted.
    fn pending(&self) -> Vec<(EndpointKey, MessageId)> {
        let endpoints = pending_endpoints(&self.shard.rows, None, 1_000).unwrap();
        let of_apps = endpoints.into_iter().filter(|(endpoint, _)| endpoint.app != AppId::OPERATIONAL);
        of_apps
            .flat_map(|(endpoint, _)| {
                self.shard.pending(endpoint).into_iter().map(move |item| (endpoint, item.message))
            })
            .collect()
    }

    /// One entry of the commands at hand, on both shards and the reference.
    fn entry(&mut self, stamp: u64) {
        self.reference.now = self.reference.now.max(stamp);
        let notices_before = self.notices();
        (self.shard.now, self.twin) = (stamp, Shard { now: stamp, ..self.twin.reopened() });
        let replies = self.shard.apply_all(self.last.clone());
        assert_eq!(replies, self.twin.apply_all(self.last.clone()), "a machine that only knows the rows");
        assert_eq!(self.shard.rows, self.twin.rows);
        assert_eq!(self.shard.machine.take_moved(), self.twin.machine.take_moved());

        let mut notices = 0;
        for (command, reply) in self.last.iter().zip(&replies) {
            notices += self.reference.apply(command, reply);
        }
        if self.last.iter().any(|command| matches!(command, Command::Expire { .. })) {
            self.lose_what_is_gone();
        } else {
            assert_eq!(self.notices(), notices_before + notices);
        }
        self.assert_rows();
    }

    fn rows_of(&self, prefix: Bytes) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        let rows = self.shard.rows.state.range(prefix.clone()..);
        rows.take_while(move |(key, _)| key.starts_with(&prefix))
    }

    /// Messages to operational endpoints.
    fn notices(&self) -> usize {
        self.rows_of(keys::rows_of_app(Kind::Message, AppId::OPERATIONAL)).count()
    }

    fn has(&self, row: Bytes) -> bool {
        self.shard.rows.state.contains_key(&row)
    }

    /// Whatever went, the reference says whether it may.
    fn lose_what_is_gone(&mut self) {
        let messages = self
            .reference
            .apps
            .iter()
            .flat_map(|(app, found)| found.messages.iter().map(|(id, message)| (*app, *id, message.has_payload)));
        for (app, id, had_payload) in messages.collect::<Vec<_>>() {
            if !self.has(keys::message(app, id)) {
                self.reference.lose(app, id);
            } else if had_payload && !self.has(keys::payload(app, id)) {
                self.reference.lose_payload(app, id);
            }
        }
    }

    fn assert_rows(&self) {
        for (&app, found) in &self.reference.apps {
            for (&endpoint, expected) in &found.endpoints {
                let endpoint = EndpointKey { app, endpoint };
                assert_eq!(self.shard.target_of(endpoint).unwrap().disabled, expected.spec.disabled);
                let state = self.shard.rows.state.get(&keys::endpoint_state(endpoint));
                type State = (u64, Option<(ShardTime, u64)>);
                let sequence = state.map_or(0, |state| codec::decode::<State>(state).unwrap().0);
                assert_eq!(sequence, expected.sequence);
                let attempts = found.messages.values().filter_map(|message| message.attempts.get(&endpoint.endpoint));
                assert_eq!(self.rows_of(keys::attempts_of_endpoint(endpoint)).count(), attempts.sum::<usize>());
            }
            assert_eq!(self.rows_of(keys::rows_of_app(Kind::Message, app)).count(), found.messages.len());
            for (&id, expected) in &found.messages {
                assert_eq!(self.has(keys::payload(app, id)), expected.has_payload);
                assert_eq!(self.rows_of(keys::attempts_of(app, id)).count(), expected.attempts.values().sum::<usize>());
                let rows = self.rows_of(keys::deliveries_of(app, id));
                let deliveries: Vec<StoredDelivery> = rows.map(|(_, value)| StoredDelivery::read(value)).collect();
                assert_eq!(deliveries, expected.deliveries.values().copied().collect::<Vec<_>>());
                if let Some(event_id) = &expected.said.event_id {
                    assert!(self.has(keys::event_id(app, event_id.as_str())));
                }
            }
        }
    }

    /// Whatever is pending is delivered in the end; then, long after, only applications and endpoints are left.
    fn end(&mut self, limit: u32) {
        // What was deleted is cleared away first, so that there is nothing else in the due index.
        for _ in 0..2 {
            self.step(&Step::Expire { passing: Passing::By(1), before_us: 0, limit: u32::MAX });
        }
        let mut outcomes = Vec::new();
        for (endpoint, _) in pending_endpoints(&self.shard.rows, None, 1_000).unwrap() {
            for item in self.shard.pending(endpoint) {
                outcomes.push(outcome(endpoint, item.message, u16::MAX, Verdict::Succeeded));
            }
        }
        self.last = vec![Command::RecordOutcomes(self.shard.recording(outcomes))];
        self.entry(self.reference.now + 1);
        let rows = self.shard.rows.expiry.len() as u32;
        for _ in 0..3 + rows.div_ceil(limit) {
            let stamp = self.reference.now + 400 * DAY_US;
            self.last = vec![Command::Expire { up_to: ShardTime(stamp), limit }];
            self.entry(stamp);
        }
        assert!(self.shard.rows.expiry.is_empty(), "{:?}", self.shard.rows.expiry);
        let endpoints: usize = self.reference.apps.values().map(|app| app.endpoints.len()).sum();
        let named = self.reference.apps.values().filter(|app| app.uid.is_some()).count();
        let left = |kind| self.shard.rows_of(kind);
        assert_eq!([left(Kind::App), left(Kind::AppUid)], [self.reference.apps.len(), named]);
        let operational = self.rows_of(keys::rows_of_app(Kind::Endpoint, AppId::OPERATIONAL)).count();
        assert_eq!(left(Kind::Endpoint), endpoints + operational);
        assert!(left(Kind::EndpointState) <= endpoints + operational);
        for kind in [
            Kind::Message,
            Kind::Payload,
            Kind::EventId,
            Kind::Delivery,
            Kind::Due,
            Kind::Attempt,
            Kind::AttemptOfEndpoint,
            Kind::Request,
            Kind::Clearing,
            Kind::Record,
        ] {
            assert_eq!(left(kind), 0, "{kind:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(2_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn webhooks_are_their_reference(steps in steps(), limit in 1_u32..6) {
        let mut trial = Trial::new();
        for step in &steps {
            trial.step(step);
        }
        trial.end(limit);
    }
}
