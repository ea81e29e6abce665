//! Golden files: the bytes of every command, reply, row and key, as other nodes and later versions will read them.
//!
//! A difference means that a running cluster couldn't be upgraded. Where a new format is meant (fields and variants added
//! at the end), `ONCEWARD_WRITE_GOLDEN=1 cargo test -p onceward-core --test golden` writes the files anew.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../kit/mod.rs"]
mod kit;
mod webhooks;

use std::{fmt::Debug, fmt::Write, fs, path::PathBuf};

use bytes::Bytes;
use kit::{
    Shard, denying,
    idempotency::{LEASE_US, TTL_US, account, given, key},
    items_of, sliding_window, token_bucket,
};
use onceward_core::{
    cluster::*,
    codec::{self, keys},
    command::*,
    idempotency::*,
    limits::*,
    query::{Answer, Query},
    system::*,
    time::ShardTime,
};
use serde::{Serialize, de::DeserializeOwned};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn bytes_of_hex(hex: &str) -> Bytes {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// One file of lines `name hex`.
fn assert_golden(file: &str, lines: &[(String, Bytes)]) {
    let text = lines.iter().fold(String::new(), |mut text, (name, bytes)| {
        writeln!(text, "{name} {}", hex(bytes)).unwrap();
        text
    });
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("ONCEWARD_WRITE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let golden = fs::read_to_string(&path).expect("a golden file");
    for (line, golden) in text.lines().zip(golden.lines()) {
        assert_eq!(line, golden, "in {file}");
    }
    assert_eq!(text.lines().count(), golden.lines().count(), "lines of {file}");
}

/// The bytes, after making sure that they read as the same value.
fn bytes_of<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Bytes {
    let bytes = codec::encode(value);
    assert_eq!(codec::decode::<T>(&bytes).as_ref(), Ok(value));
    bytes
}

fn policy() -> Policy {
    let mut spec = denying(token_bucket("5000/15min", 10), "bad");
    spec.exempt = Exemptions::from(vec!["internal-*".into(), "health".into()]);
    spec.overrides.insert("big".into(), Override::Limit { rate: "7/ms".parse().unwrap(), burst: 1_000 });
    Policy { name: PolicyName::parse("api").unwrap(), revision: 7, created_revision: 3, spec }
}

fn result() -> ItemResult {
    ItemResult {
        allowed: true,
        exempt: false,
        limit: 20,
        remaining: 19,
        retry_after_us: Some(0),
        reset_after_us: 500_000,
        window_us: 10_000_000,
    }
}

fn entry() -> NodeEntry {
    NodeEntry {
        id: NodeId(2),
        generation: Generation(3),
        incarnation: u128::MAX - 1,
        http_address: "127.0.0.1:4002".into(),
        peer_address: "127.0.0.1:4102".into(),
    }
}

fn commands() -> Vec<Command> {
    let request_id = Some("req-1".to_owned());
    let items = items_of(&[("api", "key_123", 1), ("api", "ü", 1_000_000_000_000)]);
    let name = PolicyName::parse("api").unwrap();
    let check = |mode| Command::Check(CheckCommand { mode, items: items.clone(), request_id: request_id.clone() });
    let changes = vec![
        PolicyChange { name: "gone".into(), revision: 6, policy: None },
        PolicyChange { name: "api".into(), revision: 7, policy: Some(policy()) },
    ];
    let mut commands = vec![check(Mode::Enforce), check(Mode::Peek), check(Mode::Shadow)];
    commands.extend([
        Command::Hold(HoldCommand { id: HoldId(5), attempt: 1 << 100, items, request_id, lease_us: 2_000_000 }),
        Command::Settle(SettleCommand { id: HoldId(5), attempt: 1 << 100, spent: true }),
        Command::Refund(RefundCommand { policy: "api".into(), key: "k".into(), cost: 1, request_id: "r".into() }),
        Command::Reset(ResetCommand { policy: "api".into(), key: "k".into() }),
        Command::CopyPolicies(CopyPolicies { from: 5, to: 7, changes }),
        Command::Expire { up_to: ShardTime(u64::MAX), limit: 1_000 },
    ]);
    let sliding = sliding_window("100/365d");
    commands.extend(
        [
            SystemCommand::PutPolicy { name: name.clone(), spec: sliding },
            SystemCommand::DeletePolicy { name },
            SystemCommand::ForgetDeletedPolicies { through: 7 },
            SystemCommand::RecordManifest {
                manifest: Manifest { cluster_id: 1, data_shards: 8, nodes: vec![entry()] },
            },
            SystemCommand::BeginReplace { node: NodeId(2) },
            SystemCommand::AdmitReplacement { entry: entry() },
            SystemCommand::FinishReplace { node: NodeId(2), generation: Generation(3) },
        ]
        .map(Command::System),
    );
    commands
}

fn replies() -> Vec<Reply> {
    let decision = Decision {
        allowed: false,
        results: vec![result(), ItemResult { allowed: false, retry_after_us: None, ..result() }],
    };
    let (policy_name, key) = ("api".to_owned(), "k".to_owned());
    let refusals = [
        Refusal::PolicyNotFound { policy: policy_name.clone() },
        Refusal::CostExceedsBurst { policy: policy_name.clone(), key: key.clone(), cost: 9, burst: 5 },
        Refusal::RequestIdReused { policy: policy_name.clone(), key, admitted_cost: 2 },
    ];
    let record = |replace| NodeRecord { entry: entry(), replace };
    let mut replies = vec![Reply::Check(CheckReply::Decided(decision.clone()))];
    replies.extend(refusals.clone().map(|refusal| Reply::Check(CheckReply::Refused(refusal))));
    replies.extend([
        Reply::Hold(HoldReply::Decided(decision)),
        Reply::Hold(HoldReply::Refused(refusals[0].clone())),
        Reply::Hold(HoldReply::Aborted),
        Reply::Settle(SettleReply { settled: true, results: vec![result()] }),
        Reply::Refund(RefundReply::Refunded { credited: 1, limit: 20, remaining: 20 }),
        Reply::Refund(RefundReply::PolicyNotFound { policy: policy_name.clone() }),
        Reply::Refund(RefundReply::Forgotten),
        Reply::Refund(RefundReply::CostMismatch { admitted_cost: 2 }),
        Reply::Reset(ResetReply::Done),
        Reply::Reset(ResetReply::PolicyNotFound { policy: policy_name }),
        Reply::CopyPolicies { synced_revision: 7 },
        Reply::Expire { removed: 3 },
        Reply::System(SystemReply::Policy(PolicyReply::Stored { policy: policy(), created: true })),
        Reply::System(SystemReply::Policy(PolicyReply::Deleted { revision: 8 })),
        Reply::System(SystemReply::Policy(PolicyReply::NotFound)),
        Reply::System(SystemReply::Policy(PolicyReply::LimitReached { what: "policies".into(), max: 1_000 })),
        Reply::System(SystemReply::Node(NodeReply::Recorded(record(ReplaceState::No)))),
        Reply::System(SystemReply::Node(NodeReply::NotAwaited(record(ReplaceState::Awaited)))),
        Reply::System(SystemReply::Node(NodeReply::NotAwaited(record(ReplaceState::Filling)))),
        Reply::System(SystemReply::Node(NodeReply::NotFound)),
        Reply::System(SystemReply::Done),
        Reply::Misrouted,
    ]);
    replies
}

fn one_header(name: &str, value: &str) -> (String, HeaderValues) {
    (name.to_owned(), HeaderValues::One(value.to_owned()))
}

fn text_response() -> Response {
    let cookies = HeaderValues::Many(vec!["a=1".into(), "b=ü".into()]);
    let headers = vec![one_header("content-type", "text/plain"), ("Set-Cookie".to_owned(), cookies)];
    Response { status: 201, headers, body: Body::Text("{\"id\": \"ü\"}".into()) }
}

fn binary_response() -> Response {
    Response { status: 502, headers: vec![], body: Body::Binary(Bytes::from_static(b"\xff\0\xfe")) }
}

fn idempotency_commands() -> Vec<Command> {
    let (account, key) = (account("acme"), key("8e03978e-40d5"));
    let begin = BeginCommand {
        account: account.clone(),
        key: key.clone(),
        fingerprint: "sha-256:9f86d081".into(),
        ttl_us: TTL_US,
        lease_us: LEASE_US,
        on_lease_expiry: OnLeaseExpiry::Takeover,
        attempt: given("attempt-1"),
        wall_ms: 1_700_000_000_000,
    };
    let (on_lease_expiry, attempt) = (OnLeaseExpiry::Hold, AttemptId::Drawn(1 << 100));
    let held = BeginCommand { on_lease_expiry, attempt, ..begin.clone() };
    let complete = |response| {
        let (account, key, token, wall_ms) = (account.clone(), key.clone(), 4_711, 1_700_000_000_001);
        Command::Complete(CompleteCommand { account, key, token, response, wall_ms, publishing: Default::default() })
    };
    let (lease_us, wall_ms) = (LEASE_US, 1_700_000_000_001);
    vec![
        Command::Begin(begin),
        Command::Begin(held),
        complete(text_response()),
        complete(binary_response()),
        Command::Abandon(AbandonCommand { account: account.clone(), key: key.clone(), token: 4_711 }),
        Command::Extend(ExtendCommand { account: account.clone(), key: key.clone(), token: 4_711, lease_us, wall_ms }),
        Command::DeleteRecord(DeleteRecordCommand { account, key }),
    ]
}

fn idempotency_replies() -> Vec<Reply> {
    let lease = Lease { expires_wall_ms: 1_700_000_030_000, remaining_us: LEASE_US };
    let (completed_wall_ms, expires_wall_ms) = (1_700_000_000_001, 1_700_086_400_001);
    vec![
        Reply::Begin(BeginReply::Started { token: 4_711, lease }),
        Reply::Begin(BeginReply::InProgress { token: 4_711, lease_remaining_us: LEASE_US }),
        Reply::Begin(BeginReply::Completed),
        Reply::Begin(BeginReply::Indeterminate),
        Reply::Begin(BeginReply::FingerprintMismatch),
        Reply::Complete(CompleteReply::Completed { completed_wall_ms, expires_wall_ms, messages: Vec::new() }),
        Reply::Complete(CompleteReply::Fenced),
        Reply::Complete(CompleteReply::AlreadyCompleted),
        Reply::Abandon(AbandonReply::Abandoned),
        Reply::Abandon(AbandonReply::Fenced),
        Reply::Abandon(AbandonReply::AlreadyCompleted),
        Reply::Extend(ExtendReply::Extended(lease)),
        Reply::Extend(ExtendReply::Fenced),
        Reply::Extend(ExtendReply::AlreadyCompleted),
        Reply::DeleteRecord(DeleteRecordReply::Deleted),
        Reply::DeleteRecord(DeleteRecordReply::NotFound),
    ]
}

#[test]
fn entries_and_their_replies() {
    let batch = EntryBatch { stamp: ShardTime(1 << 40), commands: commands() };
    let mut lines = vec![("EntryBatch".to_owned(), bytes_of(&batch))];
    let numbered = |what: &str, n: usize, bytes| (format!("{what}-{n:02}"), bytes);
    lines.extend(batch.commands.iter().enumerate().map(|(n, command)| numbered("Command", n, bytes_of(command))));
    lines.extend(replies().iter().enumerate().map(|(n, reply)| numbered("Reply", n, bytes_of(reply))));
    // What came later stands behind, so that no line moves.
    let (commands, replies) = (idempotency_commands(), idempotency_replies());
    let (first_command, first_reply) = (batch.commands.len(), self::replies().len());
    lines.extend(commands.iter().zip(first_command..).map(|(command, n)| numbered("Command", n, bytes_of(command))));
    lines.extend(replies.iter().zip(first_reply..).map(|(reply, n)| numbered("Reply", n, bytes_of(reply))));
    let (first_command, first_reply) = (first_command + commands.len(), first_reply + replies.len());
    let (commands, replies) = (webhooks::commands(), webhooks::replies());
    lines.extend(commands.iter().zip(first_command..).map(|(command, n)| numbered("Command", n, bytes_of(command))));
    lines.extend(replies.iter().zip(first_reply..).map(|(reply, n)| numbered("Reply", n, bytes_of(reply))));
    assert_golden("log.hex", &lines);
}

#[test]
fn queries_and_their_answers() {
    let change = PolicyChange { name: "api".into(), revision: 7, policy: Some(policy()) };
    let queries = [
        Query::Policy { name: "api".into() },
        Query::Policies { after: Some("a".into()), limit: 100 },
        Query::PolicyChanges { since: 5, bytes_max: 65_536 },
        Query::SyncedRevision,
        Query::Nodes,
        Query::Clock,
    ];
    let answers = [
        Answer::Policy(Some(policy())),
        Answer::Policies { policies: vec![policy()], more: true },
        Answer::PolicyChanges { from: 5, to: 7, changes: vec![change], head: 9 },
        Answer::SyncedRevision(7),
        Answer::Nodes(vec![NodeRecord { entry: entry(), replace: ReplaceState::No }]),
        Answer::Clock { clock: ShardTime(3), next_due: None },
        Answer::Misrouted,
    ];
    let mut lines = Vec::new();
    lines.extend(queries.iter().enumerate().map(|(n, query)| (format!("Query-{n}"), bytes_of(query))));
    lines.extend(answers.iter().enumerate().map(|(n, answer)| (format!("Answer-{n}"), bytes_of(answer))));

    let (account, key) = (account("acme"), key("8e03978e-40d5"));
    let after = Some(key.clone());
    let later = [
        Query::Record { account: account.clone(), key: key.clone() },
        Query::Replay { account: account.clone(), key: key.clone(), fingerprint: "sha-256:9f86d081".into() },
        Query::HasMovedOn { account: account.clone(), key: key.clone(), token: 4_711 },
        Query::Records { account: account.clone(), state: None, after: None, limit: 50 },
        Query::Records { account, state: Some(RecordState::Indeterminate), after, limit: 250 },
    ];
    let summary = |state, at: Option<u64>| RecordSummary {
        key: key.clone(),
        state,
        created_wall_ms: 1_700_000_000_000,
        lease_expires_wall_ms: at.is_none().then_some(1_700_000_030_000),
        completed_wall_ms: at,
        expires_wall_ms: at.map(|at| at + 86_400_000),
    };
    let view = |state, response: Option<Response>| {
        let RecordSummary { created_wall_ms, lease_expires_wall_ms, completed_wall_ms, expires_wall_ms, .. } =
            summary(state, response.is_some().then_some(1_700_000_000_001));
        RecordView { state, created_wall_ms, lease_expires_wall_ms, completed_wall_ms, expires_wall_ms, response }
    };
    let replay = Replay { response: binary_response(), completed_wall_ms: 1_700_000_000_001 };
    let records =
        vec![summary(RecordState::InProgress, None), summary(RecordState::Completed, Some(1_700_000_000_001))];
    let later_answers = [
        Answer::Record(None),
        Answer::Record(Some(view(RecordState::InProgress, None))),
        Answer::Record(Some(view(RecordState::Indeterminate, None))),
        Answer::Record(Some(view(RecordState::Completed, Some(text_response())))),
        Answer::Replay(None),
        Answer::Replay(Some(replay)),
        Answer::HasMovedOn(true),
        Answer::Records(RecordPage { records, next: Some(key.clone()) }),
        Answer::Records(RecordPage { records: vec![], next: None }),
    ];
    let (first_query, first_answer) = (queries.len(), answers.len());
    lines.extend(later.iter().zip(first_query..).map(|(query, n)| (format!("Query-{n}"), bytes_of(query))));
    lines.extend(later_answers.iter().zip(first_answer..).map(|(answer, n)| (format!("Answer-{n}"), bytes_of(answer))));
    let (first_query, first_answer) = (first_query + later.len(), first_answer + later_answers.len());
    let (later, later_answers) = (webhooks::queries(), webhooks::answers());
    lines.extend(later.iter().zip(first_query..).map(|(query, n)| (format!("Query-{n}"), bytes_of(query))));
    lines.extend(later_answers.iter().zip(first_answer..).map(|(answer, n)| (format!("Answer-{n}"), bytes_of(answer))));
    assert_golden("queries.hex", &lines);
}

#[test]
fn keys_of_all_tables() {
    let lines = [
        ("clock", keys::CLOCK.clone()),
        ("synced_revision", keys::SYNCED_REVISION.clone()),
        ("policy_chain", keys::policy_chain("api")),
        ("bucket", keys::bucket("api", "key_123")),
        ("admitted_id", keys::admitted_id("api", "key_123", "req-1")),
        ("hold", keys::hold(HoldId(5))),
        ("policy_totals", keys::POLICY_TOTALS.clone()),
        ("policy", keys::policy("api")),
        ("revision", keys::revision(7)),
        ("manifest", keys::MANIFEST.clone()),
        ("node", keys::node(NodeId(2))),
        ("due", keys::due(ShardTime(1 << 40), &keys::hold(HoldId(5)))),
        ("record", keys::record("acme", "8e03978e-40d5")),
        ("records_of", keys::records_of("acme")),
        ("tokens", keys::TOKENS.clone()),
        ("indeterminate", keys::indeterminate(&keys::record("acme", "8e03978e-40d5"))),
    ];
    let lines: Vec<_> = lines.into_iter().chain(webhooks::keys()).map(|(name, key)| (name.to_owned(), key)).collect();
    assert_golden("keys.hex", &lines);
}

/// All rows that a story leaves behind, key and value.
fn assert_rows(file: &str, shard: &Shard) {
    let tables = [("state", &shard.rows.state), ("expiry", &shard.rows.expiry)];
    let mut lines = Vec::new();
    for (table, rows) in tables {
        lines.extend(rows.iter().map(|(key, value)| (format!("{table} {}", hex(key)), value.clone())));
    }
    assert_golden(file, &lines);
}

#[test]
fn rows_of_a_data_shard() {
    let mut shard = Shard::data();
    shard.policy("api", policy().spec);
    shard.policy("window", sliding_window("100/h"));
    for burst in 11..16 {
        shard.policy("api", denying(token_bucket("5000/15min", burst), "bad"));
    }
    shard.checks(&[("api", "tokens", 3), ("window", "counts", 5)]);
    shard.check_with_id(2, "refunded");
    shard.refund(1, "refunded");
    shard.hold_with_id(1, 10, &[("api", "held", 4), ("window", "held", 4)], 5_000_000, Some("id"));
    shard.hold(2, 20, &[("api", "settled", 4)], 5_000_000);
    shard.settle(2, 20, true);
    shard.settle(3, 30, false);
    shard.reset();
    shard.now += 300_000_000;
    shard.checks(&[("window", "counts", 7)]);
    assert_rows("data_shard_rows.hex", &shard);
}

fn shard_with_idempotency_keys() -> Shard {
    let mut shard = Shard::data();
    let of = |begin: BeginCommand, name: &str| BeginCommand { key: key(name), ..begin };
    let drawn = |begin: BeginCommand| BeginCommand { attempt: AttemptId::Drawn(1 << 100), ..begin };
    shard.start(of(shard.holding("lapses"), "indeterminate"));
    shard.start(of(drawn(shard.beginning("")), "lapsed"));
    shard.now += LEASE_US;
    shard.expire();
    shard.start(of(shard.holding("attempt-1"), "held"));
    shard.start(of(drawn(shard.beginning("")), "in-progress"));
    shard.start(BeginCommand { account: account("ü"), ..shard.beginning("attempt-1") });
    for (name, response) in [("text", text_response()), ("binary", binary_response())] {
        let token = shard.start(of(shard.beginning("attempt-1"), name));
        let (account, key, wall_ms) = (account("acme"), key(name), shard.wall_ms());
        shard.apply(Command::Complete(CompleteCommand {
            account,
            key,
            token,
            response,
            wall_ms,
            publishing: Default::default(),
        }));
    }
    shard
}

#[test]
fn rows_of_idempotency_keys() {
    assert_rows("idempotency_rows.hex", &shard_with_idempotency_keys());
}

#[test]
fn completions_written_before_they_could_publish_are_completions_without_messages() {
    let (commands, replies) = (idempotency_commands(), idempotency_replies());
    let shard = shard_with_idempotency_keys();
    let mut older = shard.reopened();
    for line in include_str!("before_webhooks.hex").lines() {
        let (name, hex) = line.rsplit_once(' ').unwrap();
        let bytes = bytes_of_hex(hex);
        match name {
            "Command-18" => assert_eq!(codec::decode(&bytes).as_ref(), Ok(&commands[2])),
            "Command-19" => assert_eq!(codec::decode(&bytes).as_ref(), Ok(&commands[3])),
            "Reply-31" => assert_eq!(codec::decode(&bytes).as_ref(), Ok(&replies[5])),
            row => {
                let key = bytes_of_hex(row.strip_prefix("state ").unwrap());
                assert!(older.rows.state.insert(key, bytes).is_some());
            }
        }
    }
    assert_ne!(older.rows, shard.rows);
    for (name, response) in [("text", text_response()), ("binary", binary_response())] {
        let of = |shard: &Shard| shard.ask(Query::Record { account: account("acme"), key: key(name) });
        assert_eq!(of(&older), of(&shard));
        assert!(matches!(of(&older), Answer::Record(Some(view)) if view.response == Some(response)));
    }
}

#[test]
fn rows_of_the_system_shard() {
    let mut shard = Shard::system();
    for command in commands().into_iter().filter(|command| matches!(command, Command::System(_))) {
        shard.apply(command);
    }
    shard.apply(Command::System(SystemCommand::PutPolicy {
        name: PolicyName::parse("live").unwrap(),
        spec: policy().spec,
    }));
    let gone = PolicyName::parse("gone").unwrap();
    shard.apply(Command::System(SystemCommand::PutPolicy { name: gone.clone(), spec: policy().spec }));
    shard.apply(Command::System(SystemCommand::DeletePolicy { name: gone }));
    assert_rows("system_shard_rows.hex", &shard);
}

#[test]
fn rows_of_webhooks() {
    assert_rows("webhook_rows.hex", &webhooks::data_shard());
    assert_rows("webhook_system_rows.hex", &webhooks::system_shard());
}
