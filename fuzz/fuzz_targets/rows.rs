//! What lies on disk: values and keys of rows, snapshot files, the log; and `apply` over rows that hold anything. Errors
//! are in order, panics are not.

#![no_main]

use std::{fs, sync::Arc};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use onceward_core::{
    cluster::{Manifest, NodeId, ShardId},
    codec::{
        self,
        keys::{self, Kind},
    },
    command::{EntryBatch, Reply},
    idempotency::{self, Account, Key, RecordState},
    limits::{Bucket, Fill, HoldId, Policy, PolicyChain, PolicyName, PolicySpec},
    machine::Machine,
    query::{Answer, Query, answer},
    rows::{Rows, Table},
    system::NodeRecord,
    time::{ClockPair, ShardTime},
    webhooks::{
        self, AppId, AppRef, AttemptFilter, DeliveryAttemptId, DueItem, EndpointId, EndpointKey, EndpointRef,
        MessageFilter, MessageId, MessageRef, Name, PageIn, WebhookQuery, due, pending_delivery, pending_endpoints,
        target,
    },
};
use onceward_fuzz::{assert_bounded, assert_survives, dispatch, memory_bytes_max};
use onceward_storage::{Family, MemoryStore, ShardState, SnapshotDir, StateHash, Store, WriteSet, keys as disk_keys};
use xxhash_rust::xxh3::xxh3_128;

const READERS: &[fn(&[u8])] = &[
    values,
    row_keys,
    |input| apply(ShardId::SYSTEM, input),
    |input| apply(ShardId(1), input),
    snapshot,
    |input| snapshot(&sealed(input)),
    log,
    state_head,
];

fuzz_target!(|input: &[u8]| assert_bounded(2 * memory_bytes_max(input), || dispatch(READERS, input)));

fn values(bytes: &[u8]) {
    assert_survives::<ShardTime>(bytes);
    assert_survives::<ClockPair>(bytes);
    assert_survives::<PolicyChain>(bytes);
    assert_survives::<Bucket>(bytes);
    assert_survives::<Fill>(bytes);
    assert_survives::<PolicyName>(bytes);
    assert_survives::<PolicySpec>(bytes);
    assert_survives::<Policy>(bytes);
    assert_survives::<Manifest>(bytes);
    assert_survives::<NodeRecord>(bytes);
    assert_survives::<EntryBatch>(bytes);
    assert_survives::<Reply>(bytes);
    assert_survives::<Query>(bytes);
    assert_survives::<Answer>(bytes);
    idempotency::fuzzing::record(bytes);
    (0..=u8::MAX).filter_map(|tag| Kind::of(&[tag])).for_each(|kind| {
        webhooks::fuzzing::row(kind, bytes);
    });
    onceward_shard::fuzzing::identity(bytes);
    onceward_consensus::fuzzing::applied_position(bytes);
}

fn row_keys(bytes: &[u8]) {
    if let Some((policy, key)) = keys::parse_bucket(bytes) {
        assert_eq!(keys::bucket(policy, key), bytes);
    }
    if let Some(revision) = keys::parse_revision(bytes) {
        assert_eq!(keys::revision(revision), bytes);
    }
    if let Some((endpoint, item)) = keys::parse_delivery_due(bytes) {
        assert_eq!(keys::delivery_due(endpoint, item), bytes);
    }
    if let Ok(text) = str::from_utf8(bytes) {
        assert!(AppId::parse(text).is_none_or(|id| id.to_string() == text));
        assert!(DeliveryAttemptId::parse(text).is_none_or(|id| id.to_string() == text));
    }
    let bytes = Bytes::copy_from_slice(bytes);
    if let Some((at, row)) = keys::parse_due(&bytes) {
        assert_eq!(keys::due(at, &row), bytes);
    }
    if let Some(index) = disk_keys::log_index(&bytes) {
        assert_eq!(disk_keys::log_entry(ShardId(u16::from_be_bytes([bytes[0], bytes[1]])), index), *bytes);
    }
}

/// An input cut into pieces: a byte that says what it is, a length (u16 big-endian), and that many bytes or what is
/// left of them.
fn pieces(mut input: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&[what, high, low], rest) = input.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
        let (piece, rest) = rest.split_at(length);
        input = rest;
        Some((what, piece))
    })
}

/// An [`EntryBatch`], among pieces that are rows.
const BATCH: u8 = 0x40;
/// Together with a row's number: the row is filed as due, at the time (u64 big-endian) in the piece.
const FILED: u8 = 0x80;

/// Pieces that are rows, each under the key of its number, then batches, in order. Rows behind a batch are left out:
/// nothing but a machine changes them while it runs.
///
/// Whether a shard goes on, or is started anew before each batch and knows nothing but what lies in the store, makes
/// no difference.
fn apply(shard: ShardId, input: &[u8]) {
    let row_keys = row_keys_by_number();
    let (mut running, mut restarted) = (empty_state(shard), empty_state(shard));
    let mut machine = Machine::new(shard);
    let mut runs = false;
    for (what, piece) in pieces(input) {
        if what == BATCH {
            runs = true;
            let Ok(batch) = codec::decode::<EntryBatch>(piece) else { return };
            let replies = machine.apply(&mut running, &batch);
            restarted.flush().expect("memory takes every write");
            let replies_again = Machine::new(shard).apply(&mut restarted, &batch);
            let (Ok(replies), Ok(replies_again)) = (&replies, &replies_again) else {
                assert!(replies.is_err() && replies_again.is_err());
                return;
            };
            assert_eq!(replies, replies_again);
            assert_eq!(replies.len(), batch.commands.len());
            assert_survives::<Vec<Reply>>(&codec::encode(replies));
        } else if let Some(key) = row_keys.get(usize::from(what & !FILED)).filter(|_| !runs) {
            let due = || Some(keys::due(ShardTime(u64::from_be_bytes(piece.try_into().ok()?)), key));
            for rows in [&mut running, &mut restarted] {
                match what & FILED {
                    0 => rows.put(Table::State, key.clone(), Bytes::copy_from_slice(piece)),
                    _ => due().into_iter().for_each(|due| rows.put(Table::Expiry, due, Bytes::new())),
                }
            }
        }
    }
    assert_eq!(hash(&mut running), hash(&mut restarted));
    for query in queries() {
        // A row that no command has read may be unreadable.
        drop(answer(shard, &running, &query));
    }
    dispatch_from(&running);
}

/// Keys are only ever added at the end: the seeds name them by number.
fn row_keys_by_number() -> Vec<Bytes> {
    let (endpoint, message, attempt) = ids();
    let (app, told) = (endpoint.app, EndpointKey { app: AppId::OPERATIONAL, ..endpoint });
    vec![
        keys::CLOCK.clone(),
        keys::SYNCED_REVISION.clone(),
        keys::policy_chain("api"),
        keys::policy_chain("window"),
        keys::bucket("api", "k"),
        keys::bucket("api", "key_123"),
        keys::bucket("window", "k"),
        keys::admitted_id("api", "k", "r"),
        keys::admitted_id("api", "key_123", "req-1"),
        keys::hold(HoldId(5)),
        keys::POLICY_TOTALS.clone(),
        keys::policy("api"),
        keys::policy("window"),
        keys::revision(1),
        keys::revision(7),
        keys::MANIFEST.clone(),
        keys::node(NodeId(2)),
        keys::record("acme", "k"),
        keys::record("acme", "8e03978e-40d5"),
        keys::TOKENS.clone(),
        keys::indeterminate(&keys::record("acme", "k")),
        keys::indeterminate(&keys::record("acme", "8e03978e-40d5")),
        keys::IDS.clone(),
        keys::app(app),
        keys::app(AppId::OPERATIONAL),
        keys::app_uid("acme"),
        keys::endpoint(endpoint),
        keys::endpoint(told),
        keys::endpoint_uid(app, "hook"),
        keys::endpoint_state(endpoint),
        keys::message(app, message),
        keys::message(AppId::OPERATIONAL, message),
        keys::payload(app, message),
        keys::event_id(app, "evt-1"),
        keys::delivery(endpoint, message),
        keys::delivery_due(endpoint, DueItem { at: ShardTime(7_000_000), message }),
        keys::attempt(app, message, attempt),
        keys::attempt_of_endpoint(endpoint, attempt),
        keys::request("token", "8e03978e-40d5"),
        keys::clearing_app(app),
        keys::clearing_endpoint(endpoint),
        keys::event_type("invoice.paid"),
        keys::EVENT_TYPES.clone(),
        keys::OPERATIONAL_REVISION.clone(),
    ]
}

/// Those that the golden files name.
fn ids() -> (EndpointKey, MessageId, DeliveryAttemptId) {
    let app = AppId::parse("app_000000000000001AbvLS5ieAWTS").expect("an id");
    let endpoint = EndpointId::parse("ep_000000000000001AbvLS5ieAWTT").expect("an id");
    let message = MessageId::parse("msg_000000000000001AbvLS5ieAWTU").expect("an id");
    let attempt = DeliveryAttemptId::parse("atmpt_000000000000001AbvLS5ieAWTV").expect("an id");
    (EndpointKey { app, endpoint }, message, attempt)
}

fn queries() -> Vec<Query> {
    let (account, key) = (Account::parse("acme").expect("an account"), Key::parse("k").expect("a key"));
    let list = |state| Query::Records { account: account.clone(), state, after: None, limit: 9 };
    let mut queries = vec![
        Query::Policy { name: "api".to_owned() },
        Query::Policies { after: None, limit: 1 },
        Query::PolicyChanges { since: 0, bytes_max: 1_000 },
        Query::SyncedRevision,
        Query::Nodes,
        Query::Clock,
        list(None),
        list(Some(RecordState::Indeterminate)),
        Query::Record { account: account.clone(), key: key.clone() },
        Query::Replay { account: account.clone(), key: key.clone(), fingerprint: "f".to_owned() },
        Query::HasMovedOn { account, key, token: 1 },
    ];
    queries.extend(queries_of_webhooks().map(Query::Webhook));
    queries
}

fn queries_of_webhooks() -> [WebhookQuery; 17] {
    let (EndpointKey { endpoint, .. }, message, attempt) = ids();
    let name = |text: &str| Name::parse(text).expect("a name");
    let (app, by_id) = (AppRef::Uid(name("acme")), AppRef::Id(ids().0.app));
    let (endpoint, hook) = (EndpointRef::Id(endpoint), EndpointRef::Uid(name("hook")));
    let (by_event, message) = (MessageRef::EventId(name("evt-1")), MessageRef::Id(message));
    let page = PageIn { cursor: None, backwards: false, descending: true, limit: 9 };
    let filter = || MessageFilter { event_types: Some(vec![name("invoice.paid")]), ..MessageFilter::default() };
    let attempts = || AttemptFilter { message: filter(), ..AttemptFilter::default() };
    let with_payload = true;
    [
        WebhookQuery::App { app: app.clone() },
        WebhookQuery::Apps { page },
        WebhookQuery::Endpoint { app: app.clone(), endpoint: hook.clone() },
        WebhookQuery::Endpoints { app: AppRef::Operational, page },
        WebhookQuery::Endpoints { app: app.clone(), page },
        WebhookQuery::Secret { app: app.clone(), endpoint: endpoint.clone() },
        WebhookQuery::Headers { app: by_id.clone(), endpoint: hook },
        WebhookQuery::Message { app: by_id.clone(), message: by_event, with_payload },
        WebhookQuery::Messages { app: app.clone(), filter: filter(), with_payload, page },
        WebhookQuery::AttemptsOfMessage { app: by_id.clone(), message: message.clone(), filter: attempts(), page },
        WebhookQuery::AttemptsOfEndpoint { app: by_id, endpoint, filter: attempts(), page },
        WebhookQuery::Attempt { app: app.clone(), message: message.clone(), attempt },
        WebhookQuery::Deliveries { app, message, page },
        WebhookQuery::EventType { name: name("invoice.paid") },
        WebhookQuery::EventTypes { cursor: None, backwards: true, descending: false, include_archived: true, limit: 9 },
        WebhookQuery::Operational,
        WebhookQuery::OperationalRevision,
    ]
}

/// What a dispatcher reads.
fn dispatch_from(state: &ShardState) {
    let until = ShardTime(u64::MAX);
    for (endpoint, _) in pending_endpoints(state, None, 9).unwrap_or_default() {
        drop(target(state, endpoint, until));
        let (items, _) = due(state, endpoint, until, None, 9).unwrap_or_default();
        items.iter().for_each(|item| drop(pending_delivery(state, endpoint, item.message)));
    }
}

fn empty_state(shard: ShardId) -> ShardState {
    ShardState::open(Arc::new(MemoryStore::new()), shard).expect("an empty store holds an empty state")
}

fn hash(state: &mut ShardState) -> StateHash {
    let store = state.store();
    state
        .flush()
        .and_then(|()| state.freeze(&store))
        .and_then(|frozen| frozen.hash())
        .expect("memory takes and gives back every row")
}

/// A snapshot file. One that is whole is cut into pieces that are the file again, and installed has the hash that it
/// says.
fn snapshot(bytes: &[u8]) {
    const SHARD: ShardId = ShardId(1);
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    fs::write(dir.path().join("shard-00001-00000000000000000001.snapshot"), bytes).expect("a writable directory");
    let Ok((_, file)) = SnapshotDir::open(dir.path(), SHARD) else { return };
    let file = file.expect("the file that was put there");
    let pieces: Vec<Bytes> = file.pieces().collect::<Result<_, _>>().expect("the file was verified");
    assert_eq!(pieces.concat(), bytes);

    let mut state = empty_state(SHARD);
    let loaded = state.begin_install().load(&file).expect("the file was verified");
    state.flip(loaded).expect("memory takes every write");
    assert_eq!(hash(&mut state), file.hash());
    assert_eq!(state.applied(), file.applied().map(|applied| &**applied));
}

/// A snapshot file with right checksums and a right footer around the pieces of an input: the first one is the applied
/// position, the others are bodies of chunks.
fn sealed(input: &[u8]) -> Vec<u8> {
    let mut pieces = pieces(input).map(|(_, piece)| piece);
    let applied = pieces.next().unwrap_or_default();
    let mut file = [b"ONCESNAP\0\x01\0\x01", &(applied.len() as u32).to_be_bytes()[..], applied].concat();
    seal(&mut file, 0);
    let mut rows = Vec::new();
    for body in pieces {
        let start = file.len();
        file.push(1);
        file.extend_from_slice(&(body.len() as u32).to_be_bytes());
        file.extend_from_slice(body);
        seal(&mut file, start);
        rows.extend_from_slice(body);
    }
    let start = file.len();
    file.push(2);
    file.extend_from_slice(&count_rows(&rows).to_be_bytes());
    file.extend_from_slice(&xxh3_128(&rows).to_be_bytes());
    seal(&mut file, start);
    file
}

fn seal(file: &mut Vec<u8>, start: usize) {
    let crc = crc32c::crc32c(&file[start..]);
    file.extend_from_slice(&crc.to_be_bytes());
}

/// Rows up to the first that is cut short: table u8, lengths of key and value (u32 big-endian), key, value.
fn count_rows(mut rows: &[u8]) -> u64 {
    let mut count = 0;
    while let Some((&[_, k0, k1, k2, k3, v0, v1, v2, v3], rest)) = rows.split_first_chunk() {
        let length = |bytes| u32::from_be_bytes(bytes) as usize;
        let Some(rest) = rest.get(length([k0, k1, k2, k3]) + length([v0, v1, v2, v3])..) else { break };
        (rows, count) = (rest, count + 1);
    }
    count
}

/// A log whose rows are pieces: its positions under 0 to 2, entries under 3 and above, from entry 0 on and, because the
/// last index is a place where sums overflow, at the end.
fn log(input: &[u8]) {
    const SHARD: ShardId = onceward_consensus::fuzzing::SHARD;
    let mut set = WriteSet::new();
    for (what, piece) in pieces(input) {
        match what {
            0 => set.put(Family::RaftMeta, disk_keys::vote(SHARD), piece),
            1 => set.put(Family::RaftMeta, disk_keys::committed(SHARD), piece),
            2 => set.put(Family::RaftMeta, disk_keys::purged(SHARD), piece),
            3..=0x7f => set.put(Family::RaftLog, disk_keys::log_entry(SHARD, u64::from(what - 3)), piece),
            _ => set.put(Family::RaftLog, disk_keys::log_entry(SHARD, u64::MAX - u64::from(u8::MAX - what)), piece),
        }
    }
    drop(onceward_consensus::fuzzing::open_log(store_of(&set)));
}

/// The row that says which generation of rows is the state of shard 1. If it is readable, the state can be replaced.
fn state_head(row: &[u8]) {
    const SHARD: ShardId = ShardId(1);
    // As `onceward_storage` pins it.
    const KEY: [u8; 3] = [0, 1, 5];
    let mut set = WriteSet::new();
    set.put(Family::RaftMeta, KEY, row);
    let Ok(mut state) = ShardState::open(store_of(&set), SHARD) else { return };
    state.put(Table::State, keys::CLOCK.clone(), codec::encode(&ShardTime(7)));
    let before = hash(&mut state);
    let mut reopened = ShardState::open(state.store(), SHARD).expect("what was just written");
    assert_eq!(reopened.applied(), state.applied());
    assert_eq!(hash(&mut reopened), before);
    drop(reopened.begin_install());
}

fn store_of(set: &WriteSet) -> Arc<dyn Store> {
    let store = MemoryStore::new();
    store.write(set).expect("memory takes every write");
    Arc::new(store)
}
