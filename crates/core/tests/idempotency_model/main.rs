//! Idempotency keys against a small reference: random histories of all calls, with lost answers, crashes, and time that
//! stands still, comes to the edge of a lease, or runs far.
//!
//! Behind every entry the replies, all reads, and what waiters are told must be the reference's, and G2 must hold: at
//! most one live token a key, greater tokens ever, nothing changed by a fenced one, replays byte for byte.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../kit/mod.rs"]
mod kit;
mod reference;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kit::{
    MemoryRows, Shard,
    idempotency::{account, given, key, record_row},
};
use onceward_core::{
    codec::{self, keys},
    command::*,
    idempotency::*,
    query::{Answer, Query},
    time::ShardTime,
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};
use reference::{Name, Record, Reference, Stage};

/// Accounts and keys that would meet if they were merely joined, and a key that begins with a quote.
const SLOTS: [(&str, &str); 5] = [("a", "k"), ("a", "b_c"), ("a_b", "c"), ("ab", "k"), ("a", r#""\"q\" ü""#)];
const FINGERPRINTS: [&str; 2] = ["f", "other"];

#[derive(Debug, Clone)]
enum Call {
    Begin { slot: usize, attempt: AttemptId, fingerprint: usize, ttl_us: u64, lease_us: u64, hold: bool },
    Complete { slot: usize, token: Which, content: usize },
    Abandon { slot: usize, token: Which },
    Extend { slot: usize, token: Which, lease_us: u64 },
    Delete { slot: usize },
    Expire { before_us: u64, limit: u32 },
}

/// Tokens, as they are known before the entry.
#[derive(Debug, Clone)]
enum Which {
    Newest,
    OfTheKey(Index),
    OfAnyKey(Index),
    /// Not given out yet. The first of them a `begin` of the same entry may get.
    Future(u64),
}

/// The stamp of an entry, from the clock.
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
        wall_ms: u64,
        calls: Vec<Call>,
    },
    /// The answers to the entry before were lost, and it is sent again.
    Again(Passing),
    Crash,
}

fn lease() -> impl Strategy<Value = u64> {
    select(vec![100_000_u64, 1_000_000, 30_000_000, 3_600_000_000])
}

fn call() -> impl Strategy<Value = Call> {
    let slot = || prop_oneof![4 => Just(0_usize), 1 => 0..SLOTS.len()];
    let token = || {
        prop_oneof![
            8 => Just(Which::Newest),
            3 => any::<Index>().prop_map(Which::OfTheKey),
            1 => any::<Index>().prop_map(Which::OfAnyKey),
            2 => (0_u64..3).prop_map(Which::Future),
        ]
    };
    let attempt = prop_oneof![
        select(vec!["1", "2"]).prop_map(given),
        select(vec![1_u128, 2, u128::MAX]).prop_map(AttemptId::Drawn),
    ];
    let fingerprint = prop_oneof![6 => Just(0_usize), 1 => Just(1)];
    let ttl = select(vec![1_000_000_u64, 60_000_000, 86_400_000_000]);
    let begin = (slot(), attempt, fingerprint, ttl, lease(), any::<bool>());
    let before_us = prop_oneof![3 => Just(0_u64), 1 => 0_u64..60_000_000];
    let limit = prop_oneof![2 => Just(u32::MAX), 1 => 0_u32..4];
    prop_oneof![
        8 => begin.prop_map(|(slot, attempt, fingerprint, ttl_us, lease_us, hold)| Call::Begin {
            slot, attempt, fingerprint, ttl_us, lease_us, hold,
        }),
        4 => (slot(), token(), 0..contents().len())
            .prop_map(|(slot, token, content)| Call::Complete { slot, token, content }),
        2 => (slot(), token()).prop_map(|(slot, token)| Call::Abandon { slot, token }),
        4 => (slot(), token(), lease()).prop_map(|(slot, token, lease_us)| Call::Extend { slot, token, lease_us }),
        1 => slot().prop_map(|slot| Call::Delete { slot }),
        4 => (before_us, limit).prop_map(|(before_us, limit)| Call::Expire { before_us, limit }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let passing = || {
        prop_oneof![
            3 => Just(Passing::By(0)),
            3 => (0_u64..200_000).prop_map(Passing::By),
            2 => (0_u64..40_000_000).prop_map(Passing::By),
            1 => (0_u64..100_000_000_000).prop_map(Passing::By),
            1 => (0_u64..40_000_000).prop_map(Passing::Back),
            5 => (any::<Index>(), -1_i64..=1).prop_map(|(index, off)| Passing::ToAnEdge(index, off)),
        ]
    };
    // Display time judges nothing, so that it may be any.
    let wall_ms = 0_u64..10_000_000_000_000;
    let calls = prop_oneof![4 => vec(call(), 1), 1 => vec(call(), 0..5)];
    let step = prop_oneof![
        20 => (passing(), wall_ms, calls)
            .prop_map(|(passing, wall_ms, calls)| Step::Entry { passing, wall_ms, calls }),
        3 => passing().prop_map(Step::Again),
        2 => Just(Step::Crash),
    ];
    vec(step, 1..50)
}

/// The first two are the same content; the third has the same bytes, and goes out as it came in, in base64.
fn contents() -> [Response; 5] {
    let one = |name: &str, value: &str| (name.to_owned(), HeaderValues::One(value.to_owned()));
    let many = ("set-cookie".to_owned(), HeaderValues::Many(vec!["a=1".to_owned(), String::new()]));
    const TEXT: &str = "{\"id\":\"ü\"}";
    let text = |headers| Response { status: 201, headers, body: Body::Text(TEXT.to_owned()) };
    let binary = Body::Binary(Bytes::from_static(TEXT.as_bytes()));
    [
        text(vec![one("Content-Type", "application/json"), many.clone()]),
        text(vec![many.clone(), one("Content-Type", "application/json")]),
        Response { body: binary, ..text(vec![one("Content-Type", "application/json"), many.clone()]) },
        Response { status: 200, headers: vec![many], body: Body::Binary(Bytes::from_static(b"\xff\0\xfe")) },
        Response { status: 502, headers: vec![], body: Body::Text(String::new()) },
    ]
}

fn name_of(slot: usize) -> Name {
    (SLOTS[slot].0.to_owned(), key(SLOTS[slot].1).as_str().to_owned())
}

/// All rows but the clock.
fn without_clock(rows: &MemoryRows) -> MemoryRows {
    let mut rows = rows.clone();
    rows.state.remove(&keys::CLOCK);
    rows
}

/// Both sides of the comparison, and what was seen of them.
struct Trial {
    shard: Shard,
    /// Its machine is made anew before each entry.
    twin: Shard,
    reference: Reference,
    handed_out: BTreeMap<Name, BTreeSet<u64>>,
    /// Attempts of which waiters were not told that they are over.
    open: BTreeMap<Name, u64>,
    last: Vec<Command>,
}

impl Trial {
    fn new() -> Trial {
        let (shard, twin) = (Shard::data(), Shard::data());
        let reference = Reference { now: 0, ..Reference::default() };
        Trial { shard, twin, reference, handed_out: BTreeMap::new(), open: BTreeMap::new(), last: Vec::new() }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Entry { passing, wall_ms, calls } => {
                let stamp = self.stamp(passing);
                let now = self.reference.now.max(stamp);
                self.last = calls.iter().map(|call| self.command(call, now, *wall_ms)).collect();
                self.entry(stamp);
            }
            Step::Again(passing) => self.entry(self.stamp(passing)),
            Step::Crash => self.shard = self.shard.reopened(),
        }
    }

    fn stamp(&self, passing: &Passing) -> u64 {
        let now = self.reference.now;
        match passing {
            Passing::By(us) => now + us,
            Passing::Back(us) => now.saturating_sub(*us),
            Passing::ToAnEdge(index, off) => {
                let edges: Vec<u64> = self.reference.records.values().flat_map(Record::edges).collect();
                if edges.is_empty() { now } else { index.get(&edges).saturating_add_signed(*off) }
            }
        }
    }

    fn token(&self, slot: usize, which: &Which) -> u64 {
        let of_the_key: Vec<u64> = self.handed_out.get(&name_of(slot)).into_iter().flatten().copied().collect();
        let of_any_key: Vec<u64> = self.handed_out.values().flatten().copied().collect();
        let known = match which {
            Which::Newest => of_the_key.last(),
            Which::OfTheKey(index) if !of_the_key.is_empty() => Some(index.get(&of_the_key)),
            Which::OfAnyKey(index) if !of_any_key.is_empty() => Some(index.get(&of_any_key)),
            Which::Future(ahead) => return self.reference.tokens + 1 + ahead,
            _ => None,
        };
        known.copied().unwrap_or(0)
    }

    fn command(&self, call: &Call, now: u64, wall_ms: u64) -> Command {
        let names = |slot: usize| (account(SLOTS[slot].0), key(SLOTS[slot].1));
        match *call {
            Call::Begin { slot, ref attempt, fingerprint, ttl_us, lease_us, hold } => {
                let (account, key) = names(slot);
                Command::Begin(BeginCommand {
                    account,
                    key,
                    fingerprint: FINGERPRINTS[fingerprint].to_owned(),
                    ttl_us,
                    lease_us,
                    on_lease_expiry: if hold { OnLeaseExpiry::Hold } else { OnLeaseExpiry::Takeover },
                    attempt: attempt.clone(),
                    wall_ms,
                })
            }
            Call::Complete { slot, ref token, content } => {
                let (account, key) = names(slot);
                let (token, response) = (self.token(slot, token), contents()[content].clone());
                Command::Complete(CompleteCommand {
                    account,
                    key,
                    token,
                    response,
                    wall_ms,
                    publishing: Default::default(),
                })
            }
            Call::Abandon { slot, ref token } => {
                let (account, key) = names(slot);
                Command::Abandon(AbandonCommand { account, key, token: self.token(slot, token) })
            }
            Call::Extend { slot, ref token, lease_us } => {
                let (account, key) = names(slot);
                Command::Extend(ExtendCommand { account, key, token: self.token(slot, token), lease_us, wall_ms })
            }
            Call::Delete { slot } => {
                let (account, key) = names(slot);
                Command::DeleteRecord(DeleteRecordCommand { account, key })
            }
            Call::Expire { before_us, limit } => {
                Command::Expire { up_to: ShardTime(now.saturating_sub(before_us)), limit }
            }
        }
    }

    /// One entry of the commands at hand, on both shards and the reference.
    fn entry(&mut self, stamp: u64) {
        let rows_before = without_clock(&self.shard.rows);
        let records_before = self.reference.records.clone();
        self.reference.pass(stamp);
        let records_at_stamp = self.reference.records.clone();

        (self.shard.now, self.twin) = (stamp, Shard { now: stamp, ..self.twin.reopened() });
        let replies = self.shard.apply_all(self.last.clone());
        assert_eq!(replies, self.twin.apply_all(self.last.clone()), "a machine that only knows the rows");
        assert_eq!(self.shard.rows, self.twin.rows);
        let moved = self.shard.machine.take_moved();
        assert_eq!(moved, self.twin.machine.take_moved());

        let (mut all_looked_at, mut all_refused) = (false, true);
        for (command, reply) in self.last.clone().iter().zip(&replies) {
            all_refused &= self.changes_nothing(command, reply);
            all_looked_at = self.compare(command, reply);
        }
        if all_refused {
            assert_eq!(without_clock(&self.shard.rows), rows_before);
        }
        self.assert_told(&moved, &records_before, &records_at_stamp, all_looked_at);
        self.assert_reads();
        self.assert_filed();
    }

    /// Whether a command that is answered so must not have changed anything.
    fn changes_nothing(&self, command: &Command, reply: &Reply) -> bool {
        match (command, reply) {
            // The same attempt, which had it already.
            (Command::Begin(_), Reply::Begin(BeginReply::Started { token, .. })) => *token <= self.reference.tokens,
            (_, Reply::Begin(reply)) => *reply != BeginReply::Indeterminate,
            (_, Reply::Complete(reply)) => matches!(reply, CompleteReply::Fenced | CompleteReply::AlreadyCompleted),
            (_, Reply::Abandon(reply)) => *reply != AbandonReply::Abandoned,
            (_, Reply::Extend(reply)) => matches!(reply, ExtendReply::Fenced | ExtendReply::AlreadyCompleted),
            (_, Reply::DeleteRecord(reply)) => *reply == DeleteRecordReply::NotFound,
            (_, Reply::Expire { removed }) => *removed == 0,
            other => panic!("{other:?}"),
        }
    }

    /// Returns whether everything that is due was looked at.
    fn compare(&mut self, command: &Command, reply: &Reply) -> bool {
        let expected = match command {
            Command::Begin(begin) => Reply::Begin(self.reference.begin(begin)),
            Command::Complete(complete) => Reply::Complete(self.reference.complete(complete)),
            Command::Abandon(abandon) => Reply::Abandon(self.reference.abandon(abandon)),
            Command::Extend(extend) => Reply::Extend(self.reference.extend(extend)),
            Command::DeleteRecord(delete) => Reply::DeleteRecord(self.reference.delete(delete)),
            Command::Expire { up_to, limit } => {
                let Reply::Expire { removed } = *reply else { panic!("{reply:?}") };
                assert!(removed <= *limit);
                let all = up_to.0 >= self.reference.now && removed < *limit;
                if all {
                    self.reference.note_indeterminate();
                }
                return all;
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(*reply, expected, "to {command:?}");
        if let (Command::Begin(begin), Reply::Begin(BeginReply::Started { token, .. })) = (command, reply) {
            let newest = self.handed_out.values().flatten().max().copied().unwrap_or_default();
            let of_the_key =
                self.handed_out.entry((begin.account.as_str().into(), begin.key.as_str().into())).or_default();
            assert!(of_the_key.last() == Some(token) || *token > newest, "{token} behind {newest}");
            of_the_key.insert(*token);
        }
        false
    }

    /// Waiters are told of every attempt that is over, at the latest by an `Expire` of all that is due; of no other.
    fn assert_told(
        &mut self,
        moved: &[Bytes],
        before: &BTreeMap<Name, Record>,
        at_stamp: &BTreeMap<Name, Record>,
        all_looked_at: bool,
    ) {
        for slot in 0..SLOTS.len() {
            let name = name_of(slot);
            if !moved.contains(&record_row(&name.0, &name.1)) {
                continue;
            }
            let is_over = self.open.get(&name).is_none_or(|&token| self.has_moved_on(&name, token));
            if self.last.len() == 1 {
                assert!(is_over, "{name:?} holds its key");
                assert!(!matches!(before.get(&name), Some(Record { stage: Stage::Done { .. }, .. })), "{name:?}");
            }
            if is_over {
                self.open.remove(&name);
            }
        }
        for (name, &token) in &self.open {
            match self.reference.records.get(name) {
                Some(record) => {
                    let goes_on = record.token == token && record.state() != RecordState::Completed;
                    assert!(goes_on && (!all_looked_at || record.is_live(self.reference.now)), "{name:?} was not told");
                }
                None => assert!(!at_stamp.contains_key(name) && !all_looked_at, "{name:?} was not told"),
            }
        }
        let now = self.reference.now;
        let live = self.reference.records.iter().filter(|(_, record)| record.is_live(now));
        self.open.extend(live.map(|(name, record)| (name.clone(), record.token)));
    }

    fn has_moved_on(&self, (of, bare): &Name, token: u64) -> bool {
        let bare = Key::try_from(bare.clone()).expect("a bare key");
        has_moved_on(&self.shard.rows, &account(of), &bare, token).expect("memory rows are sound")
    }

    fn assert_reads(&self) {
        let now = self.reference.now;
        for (slot, (of, text)) in SLOTS.iter().enumerate() {
            let (name, account, key) = (name_of(slot), account(of), key(text));
            let record = self.reference.records.get(&name);
            let query = Query::Record { account: account.clone(), key: key.clone() };
            assert_eq!(self.shard.ask(query), Answer::Record(record.map(Record::view)));
            let mut is_replayed = false;
            for fingerprint in FINGERPRINTS {
                let expected = record.and_then(|record| record.replay(fingerprint));
                is_replayed |= expected.is_some();
                let (account, key, fingerprint) = (account.clone(), key.clone(), fingerprint.to_owned());
                let answer = self.shard.ask(Query::Replay { account, key, fingerprint });
                assert_eq!(codec::encode(&answer), codec::encode(&Answer::Replay(expected)), "byte for byte");
            }
            assert_eq!(completed_bytes(&self.shard.rows, &account, &key).unwrap().is_some(), is_replayed);

            let handed_out = self.handed_out.get(&name).into_iter().flatten();
            let live: Vec<u64> = handed_out.copied().filter(|&token| !self.has_moved_on(&name, token)).collect();
            let expected = record.filter(|record| record.is_live(now)).map(|record| record.token);
            assert_eq!(live, Vec::from_iter(expected));
        }
        self.assert_lists();
        let (clock, next_due) = (ShardTime(now), self.shard.machine.next_due(&self.shard.rows).unwrap());
        assert_eq!(self.shard.ask(Query::Clock), Answer::Clock { clock, next_due });
    }

    fn assert_lists(&self) {
        const STATES: [RecordState; 3] = [RecordState::InProgress, RecordState::Completed, RecordState::Indeterminate];
        let limit = 1 + self.reference.tokens as u32 % 3;
        for (of, _) in SLOTS {
            let mine = || self.reference.records.iter().filter(|(name, _)| name.0 == of);
            for state in STATES.map(Some).into_iter().chain([None]) {
                let listed = self.shard.list(of, state, limit);
                for summary in &listed {
                    let view = self.reference.records[&(of.to_owned(), summary.key.as_str().to_owned())].view();
                    let expected = RecordSummary {
                        key: summary.key.clone(),
                        state: view.state,
                        created_wall_ms: view.created_wall_ms,
                        lease_expires_wall_ms: view.lease_expires_wall_ms,
                        completed_wall_ms: view.completed_wall_ms,
                        expires_wall_ms: view.expires_wall_ms,
                    };
                    assert_eq!(*summary, expected);
                }
                let listed: Vec<&str> = listed.iter().map(|summary| summary.key.as_str()).collect();
                // Of what is indeterminate, the list has all of which that was committed.
                let surely = |record: &Record| !matches!(record.stage, Stage::Indeterminate { noted: false, .. });
                let expected: Vec<&str> = mine()
                    .filter(|(name, record)| {
                        let is_wanted = state.is_none_or(|state| state == record.state());
                        let must_be = surely(record) || state != Some(RecordState::Indeterminate);
                        is_wanted && (must_be || listed.contains(&name.1.as_str()))
                    })
                    .map(|(name, _)| name.1.as_str())
                    .collect();
                assert_eq!(listed, expected, "{of} {state:?}");
            }
        }
    }

    /// Whatever changes by itself comes up by then.
    fn assert_filed(&self) {
        let now = self.reference.now;
        for ((of, bare), record) in &self.reference.records {
            let Some(edge) = record.edges().into_iter().find(|&edge| edge > now) else { continue };
            let row = record_row(of, bare);
            let mut filed = self.shard.rows.expiry.keys().filter(|key| key[8..] == row);
            assert!(filed.any(|key| *key <= keys::due(ShardTime(edge), &row)), "{record:?} comes up too late");
        }
    }

    /// Long after, nothing is left but what a person has to decide.
    fn end(&mut self, limit: u32) {
        let stamp = self.reference.now + 400 * 86_400_000_000;
        self.last = vec![Command::Expire { up_to: ShardTime(stamp), limit }];
        let rows = self.shard.rows.expiry.len() as u32;
        for _ in 0..=rows.div_ceil(limit) {
            self.entry(stamp);
        }
        let mut left: BTreeSet<Bytes> = [keys::CLOCK.clone()].into();
        left.extend((self.reference.tokens > 0).then(|| keys::TOKENS.clone()));
        for ((of, bare), record) in &self.reference.records {
            assert_eq!(record.state(), RecordState::Indeterminate);
            let row = record_row(of, bare);
            left.extend([keys::indeterminate(&row), row]);
        }
        assert_eq!(self.shard.rows.state.keys().cloned().collect::<BTreeSet<_>>(), left);
        assert!(self.shard.rows.expiry.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(4_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn idempotency_keys_are_their_reference(steps in steps(), limit in 1_u32..6) {
        let mut trial = Trial::new();
        for step in &steps {
            trial.step(step);
        }
        trial.end(limit);
    }
}
