//! Whatever bytes and whatever decoded commands come: an error or a reply, never a panic or an overflow.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../kit/mod.rs"]
mod kit;
mod webhooks;

use std::collections::BTreeMap;

use bytes::Bytes;
use kit::{
    Shard,
    idempotency::{account, key, record_row, response},
    sliding_window, token_bucket,
};
use onceward_core::{
    cluster::*,
    codec::{self, keys},
    command::*,
    idempotency::{bounds::TOKEN_MAX, *},
    limits::{bounds, *},
    query::{Answer, Query, answer},
    rows::RowsError,
    system::SystemCommand,
    time::ShardTime,
};
use proptest::{collection::vec, prelude::*, sample::select};

/// Numbers at the edges, where overflows are.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..4, any::<u64>(), Just(u64::MAX), Just(u64::MAX - 1), Just(1 << 63), 0_u64..1_000_000]
}

fn policy_text() -> impl Strategy<Value = String> {
    prop_oneof![8 => select(vec!["api", "b"]).prop_map(str::to_owned), 1 => ".{0,80}"]
}

fn key_text() -> impl Strategy<Value = String> {
    prop_oneof![8 => select(vec!["", "k", "x"]).prop_map(str::to_owned), 1 => ".{0,700}"]
}

fn request_id() -> impl Strategy<Value = Option<String>> {
    prop::option::of(select(vec!["", "1", "2"]).prop_map(str::to_owned))
}

/// Also rates that no text could have given.
fn rate() -> impl Strategy<Value = Rate> {
    let unit = select(vec![RateUnit::Millisecond, RateUnit::Second, RateUnit::Minute, RateUnit::Hour, RateUnit::Day]);
    (number(), prop_oneof![0_u32..3, any::<u32>(), Just(u32::MAX)], unit).prop_map(|(amount, every, unit)| Rate {
        amount,
        every,
        unit,
    })
}

fn spec() -> impl Strategy<Value = PolicySpec> {
    let limit = (rate(), number()).prop_map(|(rate, burst)| Override::Limit { rate, burst });
    let overrides = prop::collection::btree_map(key_text(), prop_oneof![Just(Override::Deny), limit], 0..3);
    (rate(), number(), any::<bool>(), overrides, vec(".{0,4}\\*?", 0..3)).prop_map(
        |(rate, burst, sliding, overrides, exempt)| {
            let base = if sliding { sliding_window("1/s") } else { token_bucket("1/s", 1) };
            PolicySpec { rate, burst, overrides, exempt: exempt.into(), ..base }
        },
    )
}

fn change() -> impl Strategy<Value = PolicyChange> {
    let names = select(vec!["api", "b"]);
    (names, number(), number(), prop::option::of(spec())).prop_map(|(name, revision, created_revision, spec)| {
        let parsed = PolicyName::parse(name).unwrap();
        let policy = spec.map(|spec| Policy { name: parsed, revision, created_revision, spec });
        PolicyChange { name: name.into(), revision, policy }
    })
}

fn items() -> impl Strategy<Value = Vec<CheckItem>> {
    let item = (policy_text(), key_text(), number()).prop_map(|(policy, key, cost)| CheckItem { policy, key, cost });
    vec(item, 0..5)
}

fn system_command() -> impl Strategy<Value = SystemCommand> {
    let name = || policy_text().prop_filter_map("a name", |text| PolicyName::parse(&text).ok());
    let entry = || {
        (0_u16..3, any::<u32>(), 0_u128..3).prop_map(|(id, generation, incarnation)| NodeEntry {
            id: NodeId(id),
            generation: Generation(generation),
            incarnation,
            http_address: String::new(),
            peer_address: String::new(),
        })
    };
    let manifest = vec(entry(), 0..3).prop_map(|nodes| Manifest { cluster_id: 0, data_shards: 0, nodes });
    prop_oneof![
        (name(), spec()).prop_map(|(name, spec)| SystemCommand::PutPolicy { name, spec }),
        name().prop_map(|name| SystemCommand::DeletePolicy { name }),
        number().prop_map(|through| SystemCommand::ForgetDeletedPolicies { through }),
        manifest.prop_map(|manifest| SystemCommand::RecordManifest { manifest }),
        (0_u16..3).prop_map(|node| SystemCommand::BeginReplace { node: NodeId(node) }),
        entry().prop_map(|entry| SystemCommand::AdmitReplacement { entry }),
        (0_u16..3, any::<u32>()).prop_map(|(node, generation)| SystemCommand::FinishReplace {
            node: NodeId(node),
            generation: Generation(generation),
        }),
    ]
}

fn owner() -> impl Strategy<Value = (Account, Key)> {
    let accounts = prop_oneof![8 => Just("a".to_owned()), 1 => ".{1,90}"];
    let texts = prop_oneof![8 => select(vec!["k", "\"k\""]).prop_map(str::to_owned), 1 => ".{1,90}"];
    (accounts, texts)
        .prop_filter_map("names", |(account, key)| Some((Account::parse(&account).ok()?, Key::parse(&key).ok()?)))
}

/// Also responses that no check would let through.
fn any_response() -> impl Strategy<Value = Response> {
    let values = prop_oneof![".{0,4}".prop_map(HeaderValues::One), vec(".{0,4}", 0..3).prop_map(HeaderValues::Many),];
    let body =
        prop_oneof![".{0,9}".prop_map(Body::Text), vec(any::<u8>(), 0..9).prop_map(|bytes| Body::Binary(bytes.into()))];
    let few = (any::<u16>(), vec((".{0,3}", values), 0..3), body);
    prop_oneof![
        3 => Just(response("ok")),
        1 => few.prop_map(|(status, headers, body)| Response { status, headers, body }),
    ]
}

fn idempotency_command() -> impl Strategy<Value = Command> {
    let token = || prop_oneof![4 => 0_u64..4, 1 => number()];
    let attempt = prop_oneof![
        select(vec!["", "1"]).prop_map(|id| AttemptId::Given(id.to_owned())),
        (0_u128..2).prop_map(AttemptId::Drawn),
    ];
    let begin = (owner(), select(vec!["", "f"]), number(), number(), any::<bool>(), attempt, number());
    prop_oneof![
        4 => begin.prop_map(|((account, key), fingerprint, ttl_us, lease_us, hold, attempt, wall_ms)| {
            let on_lease_expiry = if hold { OnLeaseExpiry::Hold } else { OnLeaseExpiry::Takeover };
            let fingerprint = fingerprint.to_owned();
            Command::Begin(BeginCommand {
                account, key, fingerprint, ttl_us, lease_us, on_lease_expiry, attempt, wall_ms,
            })
        }),
        2 => (owner(), token(), any_response(), number(), webhooks::any_publishing()).prop_map(
            |((account, key), token, response, wall_ms, publishing)| {
                Command::Complete(CompleteCommand { account, key, token, response, wall_ms, publishing })
            }
        ),
        1 => (owner(), token())
            .prop_map(|((account, key), token)| Command::Abandon(AbandonCommand { account, key, token })),
        2 => (owner(), token(), number(), number()).prop_map(|((account, key), token, lease_us, wall_ms)| {
            Command::Extend(ExtendCommand { account, key, token, lease_us, wall_ms })
        }),
        1 => owner().prop_map(|(account, key)| Command::DeleteRecord(DeleteRecordCommand { account, key })),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let mode = select(vec![Mode::Enforce, Mode::Peek, Mode::Shadow]);
    let hold = (0_u128..3, 0_u128..3, items(), request_id(), number());
    let refund = (policy_text(), key_text(), number(), select(vec!["", "1", "2"]));
    prop_oneof![
        6 => (mode, items(), request_id())
            .prop_map(|(mode, items, request_id)| Command::Check(CheckCommand { mode, items, request_id })),
        3 => hold.prop_map(|(id, attempt, items, request_id, lease_us)| {
            Command::Hold(HoldCommand { id: HoldId(id), attempt, items, request_id, lease_us })
        }),
        2 => (0_u128..3, 0_u128..3, any::<bool>())
            .prop_map(|(id, attempt, spent)| Command::Settle(SettleCommand { id: HoldId(id), attempt, spent })),
        2 => refund.prop_map(|(policy, key, cost, id)| {
            Command::Refund(RefundCommand { policy, key, cost, request_id: id.into() })
        }),
        1 => (policy_text(), key_text()).prop_map(|(policy, key)| Command::Reset(ResetCommand { policy, key })),
        4 => (number(), number(), vec(change(), 0..4))
            .prop_map(|(from, to, changes)| Command::CopyPolicies(CopyPolicies { from, to, changes })),
        2 => (number(), any::<u32>()).prop_map(|(up_to, limit)| Command::Expire { up_to: ShardTime(up_to), limit }),
        2 => system_command().prop_map(Command::System),
        6 => idempotency_command(),
        6 => webhooks::command(),
    ]
}

fn batch() -> impl Strategy<Value = EntryBatch> {
    (number(), vec(command(), 0..12)).prop_map(|(stamp, commands)| EntryBatch { stamp: ShardTime(stamp), commands })
}

/// At the end of time, where whatever can overflow does.
fn batch_of(commands: Vec<Command>) -> EntryBatch {
    EntryBatch { stamp: ShardTime(u64::MAX), commands }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(1_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_decoded_command_is_applied_and_none_overflows(batches in vec(batch(), 1..6), specs in vec(spec(), 1..8)) {
        for mut shard in [webhooks::shard(), Shard::system()] {
            if !shard.id.is_system() {
                for spec in &specs {
                    shard.policy("api", spec.clone());
                    shard.check_as(Mode::Enforce, &[("api", "k", 1)], None);
                }
            }
            for batch in &batches {
                let bytes = codec::encode(batch);
                prop_assert_eq!(&codec::decode::<EntryBatch>(&bytes).expect("what was encoded"), batch);
                let replies = shard.machine.apply(&mut shard.rows, batch).unwrap();
                prop_assert_eq!(replies.len(), batch.commands.len());
                for reply in &replies {
                    let bytes = codec::encode(reply);
                    prop_assert_eq!(&codec::decode::<Reply>(&bytes).expect("what was encoded"), reply);
                }
            }
            // A machine that has seen nothing but the rows goes on alike.
            let mut other = shard.reopened();
            for batch in &batches {
                let replies = shard.machine.apply(&mut shard.rows, batch).unwrap();
                prop_assert_eq!(&replies, &other.machine.apply(&mut other.rows, batch).unwrap());
            }
            prop_assert_eq!(&shard.rows, &other.rows);
        }
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(mut bytes in vec(any::<u8>(), 0..300), batch in batch(), flip in any::<prop::sample::Index>()) {
        // Bytes that nearly are an entry get further into the reader than noise.
        let mut nearly = codec::encode(&batch).to_vec();
        let at = flip.index(nearly.len());
        nearly[at] ^= bytes.first().copied().unwrap_or(1);
        if let Ok(batch) = codec::decode::<EntryBatch>(&nearly) {
            let mut shard = webhooks::shard();
            shard.policy("api", token_bucket("1/s", 5));
            shard.machine.apply(&mut shard.rows, &batch).unwrap();
        }
        nearly.truncate(at);
        prop_assert!(codec::decode::<EntryBatch>(&nearly).is_err());
        bytes.insert(0, codec::FORMAT_VERSION);
        let _ = codec::decode::<EntryBatch>(&bytes);
        let _ = codec::decode::<Reply>(&bytes);
        let _ = codec::decode::<Query>(&bytes);
        let _ = codec::decode::<Answer>(&bytes);
        let _ = codec::decode::<Bucket>(&bytes);
        let _ = codec::decode::<PolicyChain>(&bytes);
        // As a record's row: whoever comes upon it, it is an error or a record.
        let mut shard = Shard::data();
        shard.rows.state.insert(record_row("acme", "k"), bytes.into());
        let begin = Command::Begin(shard.beginning("1"));
        let _ = shard.machine.apply(&mut shard.rows, &batch_of(vec![begin]));
    }

    #[test]
    fn a_damaged_row_is_reported_and_never_panics(at in any::<prop::sample::Index>(), flip in 1_u8..=255, cost in number()) {
        let mut shard = Shard::with("1/s", 5);
        shard.check_with_id(2, "1");
        shard.hold(1, 1, &[("api", "k", 2)], 1_000_000);
        let token = shard.start(shard.holding("1"));
        let done = BeginCommand { key: key("done"), ..shard.beginning("1") };
        shard.start(done.clone());
        let complete = CompleteCommand {
            account: account("acme"), key: key("done"), token: token + 1, response: response("ok"), wall_ms: cost,
            publishing: Default::default(),
        };
        shard.apply(Command::Complete(complete.clone()));
        let rows = shard.rows.state.clone();
        let (row, value) = rows.iter().nth(at.index(rows.len())).unwrap();
        let mut damaged = value.to_vec();
        let at = at.index(damaged.len());
        damaged[at] ^= flip;
        shard.rows.state.insert(row.clone(), damaged.into());
        let commands = vec![
            Command::Check(CheckCommand { mode: Mode::Enforce, items: kit::items_of(&[("api", "k", cost)]), request_id: Some("1".into()) }),
            Command::Settle(SettleCommand { id: HoldId(1), attempt: 1, spent: false }),
            Command::Refund(RefundCommand { policy: "api".into(), key: "k".into(), cost, request_id: "1".into() }),
            Command::Begin(done),
            Command::Complete(complete),
            Command::Complete(CompleteCommand { account: account("acme"), key: key("k"), token, response: response("ok"), wall_ms: cost, publishing: Default::default() }),
            Command::Expire { up_to: ShardTime(u64::MAX), limit: 100 },
        ];
        let shard = shard.reopened();
        // One by one: the first error ends an entry.
        for command in commands {
            let mut shard = shard.reopened();
            let _ = shard.machine.apply(&mut shard.rows, &batch_of(vec![command]));
        }
        for text in ["k", "done"] {
            let (account, key) = (account("acme"), key(text));
            let _ = answer(shard.id, &shard.rows, &Query::Record { account: account.clone(), key: key.clone() });
            let fingerprint = "f".to_owned();
            let replay = Query::Replay { account: account.clone(), key: key.clone(), fingerprint };
            let _ = answer(shard.id, &shard.rows, &replay);
            let _ = answer(shard.id, &shard.rows, &Query::HasMovedOn { account: account.clone(), key, token });
            for state in [None, Some(RecordState::Indeterminate)] {
                let list = Query::Records { account: account.clone(), state, after: None, limit: 9 };
                let _ = answer(shard.id, &shard.rows, &list);
            }
        }
    }

    #[test]
    fn any_query_is_answered(
        name in policy_text(),
        number in number(),
        limit in any::<u32>(),
        (account, key) in owner(),
        after in prop::option::of(owner()),
        batch in batch(),
    ) {
        let mut shard = Shard::with("1/s", 5);
        shard.machine.apply(&mut shard.rows, &batch).unwrap();
        let states = [None, Some(RecordState::InProgress), Some(RecordState::Indeterminate), Some(RecordState::Completed)];
        let after = after.map(|(_, key)| key);
        let lists = states.map(|state| {
            Query::Records { account: account.clone(), state, after: after.clone(), limit }
        });
        for id in [ShardId::SYSTEM, ShardId(1)] {
            for query in [
                Query::Policy { name: name.clone() },
                Query::Policies { after: Some(name.clone()), limit },
                Query::PolicyChanges { since: number, bytes_max: limit },
                Query::SyncedRevision,
                Query::Nodes,
                Query::Clock,
                Query::Record { account: account.clone(), key: key.clone() },
                Query::Replay { account: account.clone(), key: key.clone(), fingerprint: name.clone() },
                Query::HasMovedOn { account: account.clone(), key: key.clone(), token: number },
            ].iter().chain(&lists) {
                let bytes = codec::encode(&answer(id, &shard.rows, query).unwrap());
                codec::decode::<Answer>(&bytes).expect("what was encoded");
            }
        }
    }
}

#[test]
fn a_fill_whose_window_is_longer_than_any_is_refused() {
    // As a row spells a sliding window: its length, its limit, the sub-window that runs, the counts.
    let fill = |window_us: u64| codec::encode(&BTreeMap::from([("w", (window_us, 5_u64, u64::MAX, [9_u64; 17]))]));
    assert!(codec::decode::<Fill>(&fill(bounds::WINDOW_US_MAX)).is_ok());
    for window_us in [0, bounds::WINDOW_US_MAX + 1, u64::MAX] {
        assert!(codec::decode::<Fill>(&fill(window_us)).is_err());
    }
}

#[test]
fn the_longest_times_at_every_stage_of_a_key_and_at_the_end_of_time_overflow_nothing() {
    for stamps in [[0, 0, 0], [1, u64::MAX - 1, u64::MAX], [u64::MAX; 3]] {
        for times in [0, 1, u64::MAX - 1, u64::MAX] {
            for on_lease_expiry in [OnLeaseExpiry::Takeover, OnLeaseExpiry::Hold] {
                let mut shard = Shard::data();
                let begin = |shard: &Shard| BeginCommand {
                    ttl_us: times,
                    lease_us: times,
                    on_lease_expiry,
                    wall_ms: u64::MAX,
                    ..shard.beginning("1")
                };
                shard.now = stamps[0];
                let mut token = shard.start(begin(&shard));
                shard.now = stamps[1];
                shard.extend(token, times);
                shard.expire();
                if let BeginReply::Started { token: next, .. } = shard.begin(begin(&shard)) {
                    token = next;
                }
                let (account, key) = (account("acme"), key("k"));
                let response = response("ok");
                let complete = CompleteCommand {
                    account,
                    key,
                    token,
                    response,
                    wall_ms: u64::MAX,
                    publishing: Default::default(),
                };
                shard.apply(Command::Complete(complete.clone()));
                shard.now = stamps[2];
                shard.apply(Command::Complete(complete));
                shard.record();
                shard.list("acme", None, 1);
                assert!(shard.expire() <= 3, "what comes up at the end of time is not filed for it again");
                assert_eq!(shard.expire(), 0);
            }
        }
    }
}

#[test]
fn a_shard_whose_tokens_are_used_up_gives_out_none_twice() {
    let mut shard = Shard::data();
    shard.rows.state.insert(keys::TOKENS.clone(), codec::encode(&(TOKEN_MAX - 1)));
    assert_eq!(shard.start(shard.beginning("1")), TOKEN_MAX);
    for newest in [TOKEN_MAX, u64::MAX] {
        let mut shard = Shard::data();
        shard.rows.state.insert(keys::TOKENS.clone(), codec::encode(&newest));
        let begin = Command::Begin(shard.beginning("2"));
        let refused = shard.machine.apply(&mut shard.rows, &batch_of(vec![begin]));
        assert!(matches!(refused, Err(RowsError::Corrupt { .. })));
    }
}

#[test]
fn names_that_no_row_key_can_hold_are_refused_when_they_are_read() {
    // As a peer would spell it.
    let delete = |account: &str, key: &str| codec::encode(&BTreeMap::from([("DeleteRecord", (account, key))]));
    let read = |bytes: Bytes| codec::decode::<Command>(&bytes);
    let longest = "k".repeat(255);
    assert!(read(delete(&longest, &longest)).is_ok());
    // A key is bare here, so that a quote is only a quote.
    assert!(read(delete("a", "\"")).is_ok());
    let longer = "k".repeat(256);
    for (account, key) in
        [("", "k"), ("a", ""), (longer.as_str(), "k"), ("a", longer.as_str()), ("a\n", "k"), ("a", "\0")]
    {
        assert!(read(delete(account, key)).is_err(), "{account:?} {key:?}");
    }
}
