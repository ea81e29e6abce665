//! A shard's state: reads through the overlay, atomic flushes, hashes that depend on rows alone.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod disks;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::Bytes;
use onceward_core::cluster::ShardId;
use onceward_core::rows::{ReadRows, Row, Rows, Table};
use onceward_storage::{Family, Flush, MemoryStore, ShardState, StorageError, Store, WriteSet};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

#[derive(Debug, Clone)]
enum Step {
    Put(Table, Vec<u8>, Vec<u8>),
    Delete(Table, Vec<u8>),
    Flush,
    /// A flush is begun, and goes on while other steps are taken.
    BeginFlush,
    /// What was begun is written.
    EndFlush,
    /// The process ends without a flush and starts again.
    Restart,
    Get(Table, Vec<u8>),
    Scan(Table, Vec<u8>, Option<Vec<u8>>, usize),
    ScanBack(Table, Vec<u8>, Option<Vec<u8>>, usize),
}

/// Keys over few bytes, so that they meet, share prefixes and touch both ends of the byte range.
fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(prop::sample::select(vec![0, 1, b'a', 254, 255]), 0..4)
}

fn table() -> impl Strategy<Value = Table> {
    prop::sample::select(vec![Table::State, Table::Expiry])
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (table(), key(), vec(any::<u8>(), 0..3)).prop_map(|(table, key, value)| Step::Put(table, key, value)),
        4 => (table(), key()).prop_map(|(table, key)| Step::Delete(table, key)),
        4 => (table(), key()).prop_map(|(table, key)| Step::Get(table, key)),
        2 => Just(Step::Flush),
        2 => Just(Step::BeginFlush),
        2 => Just(Step::EndFlush),
        1 => Just(Step::Restart),
        // Mostly as the machine looks for what is due: from the front, with a small limit.
        4 => (table(), prop_oneof![Just(vec![]), key()], prop::option::of(key()), 0..5usize)
            .prop_map(|(table, prefix, after, limit)| Step::Scan(table, prefix, after, limit)),
        3 => (1..4usize).prop_map(|limit| Step::Scan(Table::Expiry, vec![], None, limit)),
        3 => (table(), prop_oneof![Just(vec![]), key()], prop::option::of(key()), 0..5usize)
            .prop_map(|(table, prefix, before, limit)| Step::ScanBack(table, prefix, before, limit)),
    ]
}

/// What a state should be: plain ordered rows, and the step at which they were so.
#[derive(Clone, Default)]
struct Model {
    rows: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
    applied: Option<u64>,
}

impl Model {
    fn scan(&self, table: Table, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Vec<Row> {
        self.rows
            .iter()
            .filter(|((t, key), _)| *t == table && key.starts_with(prefix))
            .filter(|((_, key), _)| after.is_none_or(|after| key.as_slice() > after))
            .take(limit)
            .map(|((_, key), value)| (Bytes::from(key.clone()), Bytes::from(value.clone())))
            .collect()
    }

    fn scan_back(&self, table: Table, prefix: &[u8], before: Option<&[u8]>, limit: usize) -> Vec<Row> {
        let descending = self.scan(table, prefix, None, usize::MAX).into_iter().rev();
        descending.filter(|(key, _)| before.is_none_or(|before| key.as_ref() < before)).take(limit).collect()
    }
}

fn run(store: &Arc<dyn Store>, shard: ShardId, steps: &[Step]) {
    let mut state = ShardState::open(Arc::clone(store), shard).unwrap();
    let mut model = Model::default();
    let mut flushed = model.clone();
    let mut under_way: Option<(Flush, Model)> = None;
    for (number, step) in steps.iter().enumerate() {
        match step.clone() {
            Step::Put(table, key, value) => {
                state.put(table, key.clone().into(), value.clone().into());
                model.rows.insert((table, key), value);
            }
            Step::Delete(table, key) => {
                state.delete(table, key.clone().into());
                model.rows.remove(&(table, key));
            }
            Step::BeginFlush if under_way.is_none() => {
                model.applied = Some(number as u64);
                state.set_applied(Bytes::copy_from_slice(&(number as u64).to_be_bytes()));
                let flush = state.begin_flush().expect("the position changed");
                under_way = Some((flush, model.clone()));
            }
            Step::EndFlush | Step::BeginFlush => {
                if let Some((flush, then)) = under_way.take() {
                    flush.write().unwrap();
                    state.end_flush(flush);
                    flushed = then;
                }
            }
            Step::Flush => {
                if let Some((flush, _)) = under_way.take() {
                    flush.write().unwrap();
                    state.end_flush(flush);
                }
                model.applied = Some(number as u64);
                state.set_applied(Bytes::copy_from_slice(&(number as u64).to_be_bytes()));
                state.flush().unwrap();
                assert_eq!((state.dirty_rows(), state.dirty_bytes()), (0, 0));
                flushed = model.clone();
            }
            Step::Restart => {
                under_way = None;
                state = ShardState::open(Arc::clone(store), shard).unwrap();
                model = flushed.clone();
            }
            Step::Get(table, key) => {
                let expected = model.rows.get(&(table, key.clone())).map(|value| Bytes::from(value.clone()));
                assert_eq!(state.get(table, &key).unwrap(), expected);
            }
            Step::Scan(table, prefix, after, limit) => {
                let after = after.as_deref();
                let expected = model.scan(table, &prefix, after, limit);
                assert_eq!(state.scan(table, &prefix, after, limit).unwrap(), expected);
            }
            Step::ScanBack(table, prefix, before, limit) => {
                let before = before.as_deref();
                let expected = model.scan_back(table, &prefix, before, limit);
                assert_eq!(state.scan_back(table, &prefix, before, limit).unwrap(), expected);
            }
        }
        let applied = state.applied().map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
        assert_eq!(applied, model.applied);
    }
    for table in [Table::State, Table::Expiry] {
        assert_eq!(state.scan(table, &[], None, usize::MAX).unwrap(), model.scan(table, &[], None, usize::MAX));
        for (_, key) in model.rows.keys().filter(|(t, _)| *t == table) {
            let value = model.rows.get(&(table, key.clone())).map(|value| Bytes::from(value.clone()));
            assert_eq!(state.get(table, key).unwrap(), value);
        }
    }
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() })
}

#[test]
fn a_state_reads_like_a_sorted_map_and_restarts_at_its_last_flush() {
    for disk in disks::each() {
        let shards = AtomicU16::new(0);
        let mut runner = runner(if disk.name == "memory" { 512 } else { 128 });
        // Each case has a shard of its own, between neighbours that hold rows of earlier cases.
        let result = runner.run(&vec(step(), 1..80), |steps| {
            run(&disk.store, ShardId(shards.fetch_add(1, Ordering::Relaxed)), &steps);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{}: {error}", disk.name));
    }
}

/// Rows put (with a value) or deleted (without).
type Changes = Vec<(Table, Vec<u8>, Option<Vec<u8>>)>;

fn changes() -> impl Strategy<Value = Changes> {
    vec((table(), key(), prop::option::weighted(0.7, vec(any::<u8>(), 1))), 0..12)
}

fn change(state: &mut ShardState, model: &mut Model, changes: &Changes) {
    for (table, key, value) in changes.clone() {
        match value {
            Some(value) => {
                state.put(table, key.clone().into(), value.clone().into());
                model.rows.insert((table, key), value);
            }
            None => {
                state.delete(table, key.clone().into());
                model.rows.remove(&(table, key));
            }
        }
    }
}

/// Rows at both ends of the neighbouring shards, and of other generations of the shard itself as an install that is under
/// way leaves them. The generation of a state into which nothing was installed is 0.
fn surround(store: &Arc<dyn Store>, shard: ShardId) {
    let mut set = WriteSet::new();
    for (neighbour, generation) in [(shard.0 - 1, 0), (shard.0, 1), (shard.0, u32::MAX), (shard.0 + 1, 0)] {
        for end in [&[][..], &[255; 4]] {
            let key = [&neighbour.to_be_bytes()[..], &u32::to_be_bytes(generation), end].concat();
            set.put(Family::State, &key, b"not ours");
            set.put(Family::Expiry, &key, b"not ours");
        }
    }
    store.write(&set).unwrap();
}

/// Compares scans back under each prefix, before each key and what follows it, with the model's rows turned round.
fn assert_scans_back(state: &ShardState, model: &Model, limit: usize) {
    const PREFIXES: [&[u8]; 8] = [&[], &[0], b"a", b"a\xff", &[254], &[254, 255], &[255], &[255, 255]];
    let keys = model.rows.keys().flat_map(|(_, key)| [key.clone(), [key, &[0][..]].concat()]);
    let edges = [None, Some(vec![]), Some(vec![255; 4])];
    let befores: Vec<_> = keys.map(Some).chain(edges).collect();
    for table in [Table::State, Table::Expiry] {
        for prefix in PREFIXES {
            for before in &befores {
                let before = before.as_deref();
                let mut expected = model.scan_back(table, prefix, before, usize::MAX);
                assert_eq!(state.scan_back(table, prefix, before, usize::MAX).unwrap(), expected);
                expected.truncate(limit);
                assert_eq!(state.scan_back(table, prefix, before, limit).unwrap(), expected);
            }
            assert_eq!(state.scan(table, prefix, None, limit).unwrap(), model.scan(table, prefix, None, limit));
        }
    }
}

#[test]
fn a_scan_back_is_the_scan_turned_round_wherever_the_rows_lie() {
    for disk in disks::each() {
        let shards = AtomicU16::new(1);
        let steps = (changes(), changes(), changes(), 0..4usize);
        let mut runner = runner(if disk.name == "memory" { 128 } else { 32 });
        let result = runner.run(&steps, |(stored, flushing, changed, limit)| {
            let shard = ShardId(shards.fetch_add(3, Ordering::Relaxed));
            let mut state = ShardState::open(Arc::clone(&disk.store), shard).unwrap();
            let mut model = Model::default();
            surround(&disk.store, shard);
            change(&mut state, &mut model, &stored);
            assert_scans_back(&state, &model, limit);
            state.flush().unwrap();
            assert_scans_back(&state, &model, limit);
            change(&mut state, &mut model, &flushing);
            state.set_applied(Bytes::from_static(b"here"));
            let flush = state.begin_flush().expect("the position changed");
            change(&mut state, &mut model, &changed);
            assert_scans_back(&state, &model, limit);
            flush.write().unwrap();
            assert_scans_back(&state, &model, limit);
            state.end_flush(flush);
            assert_scans_back(&state, &model, limit);
            state.flush().unwrap();
            assert_scans_back(&state, &model, limit);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{}: {error}", disk.name));
    }
}

#[test]
fn a_scan_goes_on_behind_a_page_full_of_deleted_rows() {
    for disk in disks::each() {
        let mut state = ShardState::open(Arc::clone(&disk.store), ShardId(1)).unwrap();
        let key = |number: u32| Bytes::copy_from_slice(&number.to_be_bytes());
        (0..3000).for_each(|number| state.put(Table::State, key(number), key(number)));
        state.flush().unwrap();
        (0..2500).for_each(|number| state.delete(Table::State, key(number)));
        let rows = state.scan(Table::State, &[], None, 2).unwrap();
        assert_eq!(rows, [(key(2500), key(2500)), (key(2501), key(2501))]);
        assert_eq!(state.scan(Table::State, &[], None, usize::MAX).unwrap().len(), 500);
        state.flush().unwrap();
        (0..3000).for_each(|number| state.put(Table::State, key(number), key(number)));
        state.flush().unwrap();
        (500..3000).for_each(|number| state.delete(Table::State, key(number)));
        let rows = state.scan_back(Table::State, &[], None, 2).unwrap();
        assert_eq!(rows, [(key(499), key(499)), (key(498), key(498))]);
        assert_eq!(state.scan_back(Table::State, &[], None, usize::MAX).unwrap().len(), 500);
    }
}

#[test]
fn a_scan_goes_on_behind_a_page_full_of_bytes() {
    for disk in disks::each() {
        let mut state = ShardState::open(Arc::clone(&disk.store), ShardId(1)).unwrap();
        let rows: Vec<Row> = (0..10u8).map(|n| (Bytes::from(vec![n]), Bytes::from(vec![n; 400 << 10]))).collect();
        rows.iter().for_each(|(key, value)| state.put(Table::State, key.clone(), value.clone()));
        state.flush().unwrap();
        // Compared without being printed: a row is large.
        assert!(state.scan(Table::State, &[], None, 9).unwrap() == rows[..9]);
        let back = state.scan_back(Table::State, &[], None, 9).unwrap();
        assert!(back.iter().eq(rows[1..].iter().rev()));
    }
}

#[test]
fn rows_and_applied_position_survive_a_crash_together_or_not_at_all() {
    let disk = MemoryStore::new();
    let store: Arc<dyn Store> = Arc::new(disk.clone());
    let mut state = ShardState::open(store, ShardId(1)).unwrap();
    for number in 1..=10u8 {
        state.put(Table::State, Bytes::from_static(b"counter"), Bytes::copy_from_slice(&[number]));
        state.put(Table::Expiry, Bytes::copy_from_slice(&[number]), Bytes::new());
        state.set_applied(Bytes::copy_from_slice(&[number]));
        state.flush().unwrap();
    }
    for kept in 0..=disk.unsynced() {
        let state = ShardState::open(Arc::new(disk.crash_keeping(kept)), ShardId(1)).unwrap();
        let counter = state.get(Table::State, b"counter").unwrap();
        assert_eq!(state.applied(), counter.as_deref());
        assert_eq!(state.scan(Table::Expiry, &[], None, 100).unwrap().len(), kept);
    }
}

#[test]
fn the_hash_tells_rows_apart_and_nothing_else() {
    for disk in disks::each() {
        let hash = |shard: u16, rows: &[(Table, &'static str, &'static str)]| {
            let mut state = ShardState::open(Arc::clone(&disk.store), ShardId(shard)).unwrap();
            for (table, key, value) in rows {
                state.put(*table, Bytes::from_static(key.as_bytes()), Bytes::from_static(value.as_bytes()));
            }
            state.flush().unwrap();
            state.freeze(&disk.store).unwrap().hash().unwrap()
        };
        let base = hash(1, &[(Table::State, "a", "1"), (Table::State, "b", "2")]);
        assert_eq!(hash(2, &[(Table::State, "b", "2"), (Table::State, "a", "1")]), base);
        assert_ne!(hash(3, &[(Table::State, "a", "1b"), (Table::State, "", "2")]), base);
        assert_ne!(hash(4, &[(Table::State, "a", "1"), (Table::Expiry, "b", "2")]), base);
        assert_ne!(hash(5, &[(Table::State, "a", "1"), (Table::State, "b", "3")]), base);
    }
}

#[test]
fn a_frozen_state_stays_as_it_was() {
    for disk in disks::each() {
        let mut state = ShardState::open(Arc::clone(&disk.store), ShardId(1)).unwrap();
        state.put(Table::State, Bytes::from_static(b"a"), Bytes::from_static(b"1"));
        state.set_applied(Bytes::from_static(b"one"));
        state.flush().unwrap();
        let frozen = state.freeze(&disk.store).unwrap();
        let hash = frozen.hash().unwrap();
        state.put(Table::State, Bytes::from_static(b"a"), Bytes::from_static(b"2"));
        state.set_applied(Bytes::from_static(b"two"));
        state.flush().unwrap();
        assert_eq!(frozen.hash().unwrap(), hash, "{}", disk.name);
        assert_eq!(frozen.applied().map(|applied| &applied[..]), Some(&b"one"[..]));
    }
}

#[test]
fn a_damaged_head_row_is_refused_and_names_the_shard() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut set = WriteSet::new();
    // The key of shard 7's state head: see the pinned keys.
    set.put(Family::RaftMeta, [0, 7, 5], b"\xff\0\0\0\0");
    store.write(&set).unwrap();
    let error = ShardState::open(store, ShardId(7)).err().unwrap();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("shard 7"), "{error}");
}
