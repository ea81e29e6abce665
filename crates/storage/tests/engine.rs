//! RocksDB as a store: what survives a kill and a torn log, and what is refused with the file named.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onceward_core::cluster::ShardId;
use onceward_storage::{Family, RocksStore, StorageError, Store, StoreOptions, WriteSet, keys};
use tempfile::tempdir;

fn open(dir: &Path) -> Result<RocksStore, StorageError> {
    RocksStore::open(dir, &StoreOptions::default())
}

fn append(store: &dyn Store, index: u64) {
    let mut set = WriteSet::new();
    set.put(Family::RaftLog, keys::log_entry(ShardId(1), index), vec![index as u8; 100]);
    set.put(Family::State, index.to_be_bytes(), b"row of the same write");
    store.write(&set).unwrap();
}

fn count(store: &dyn Store, family: Family) -> usize {
    store.scan(family, &[], &[255; 11], usize::MAX, usize::MAX).unwrap().len()
}

/// The directory as another process finds it after this one was killed: what only our memory held isn't there.
fn killed(dir: &Path, into: &Path) {
    fs::create_dir_all(into).unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, into.join(path.file_name().unwrap())).unwrap();
    }
}

fn newest(dir: &Path, extension: &str) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|e| e == extension)).max().unwrap()
}

#[test]
fn what_was_synced_survives_a_kill_and_a_close_syncs() {
    let dir = tempdir().unwrap();
    let db = dir.path().join("db");
    let store = open(&db).unwrap();
    (0..20).for_each(|index| append(&store, index));
    store.sync().unwrap();
    append(&store, 20);
    killed(&db, &dir.path().join("killed"));
    let survivor = open(&dir.path().join("killed")).unwrap();
    assert!(count(&survivor, Family::RaftLog) >= 20);
    drop(store);
    assert_eq!(count(&open(&db).unwrap(), Family::RaftLog), 21);
}

#[test]
fn a_log_torn_at_any_byte_leaves_whole_writes_in_order() {
    let dir = tempdir().unwrap();
    let db = dir.path().join("db");
    let store = open(&db).unwrap();
    (0..20).for_each(|index| append(&store, index));
    store.sync().unwrap();
    let length = fs::metadata(newest(&db, "log")).unwrap().len();
    let mut counts = Vec::new();
    for missing in [1, 50, 171, 172, 400, 1000] {
        let torn = dir.path().join(format!("torn-{missing}"));
        killed(&db, &torn);
        fs::OpenOptions::new().write(true).open(newest(&torn, "log")).unwrap().set_len(length - missing).unwrap();
        let survivor = open(&torn).unwrap();
        let entries = count(&survivor, Family::RaftLog);
        assert_eq!(count(&survivor, Family::State), entries, "no part of a write survives alone");
        let last = survivor.last(Family::RaftLog, &[], &[255; 11]).unwrap();
        assert_eq!(last.and_then(|(key, _)| keys::log_index(&key)), (entries as u64).checked_sub(1));
        counts.push(entries);
    }
    assert!(counts.iter().all(|entries| *entries < 20) && counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
}

#[test]
fn damage_inside_the_log_is_refused() {
    let dir = tempdir().unwrap();
    let db = dir.path().join("db");
    let store = open(&db).unwrap();
    (0..20).for_each(|index| append(&store, index));
    store.sync().unwrap();
    let damaged = dir.path().join("damaged");
    killed(&db, &damaged);
    let log = newest(&damaged, "log");
    let mut bytes = fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&log, bytes).unwrap();
    let error = open(&damaged).err().expect("the damage is noticed");
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains(log.file_name().unwrap().to_str().unwrap()), "{error}");
}

#[test]
fn a_missing_or_damaged_table_file_is_refused_by_name() {
    let dir = tempdir().unwrap();
    let db = dir.path().join("db");
    // Small memtables make table files out of few writes.
    let options = StoreOptions { memtable_bytes: 1 << 20, ..StoreOptions::default() };
    let store = RocksStore::open(&db, &options).unwrap();
    let mut set = WriteSet::new();
    for index in 0..40_000u64 {
        set.put(Family::State, index.to_be_bytes(), [index as u8; 100]);
        if set.bytes() > 100_000 {
            store.write(&set).unwrap();
            set.clear();
        }
    }
    drop(store);
    let table = newest(&db, "sst");
    let name = table.file_name().unwrap().to_str().unwrap().to_owned();
    let bytes = fs::read(&table).unwrap();

    let mut damaged = bytes.clone();
    damaged[100] ^= 0xff;
    fs::write(&table, damaged).unwrap();
    let error = match open(&db) {
        Err(error) => error,
        Ok(store) => store.scan(Family::State, &[], &[255; 11], usize::MAX, usize::MAX).unwrap_err(),
    };
    assert!(matches!(&error, StorageError::Corrupt { .. }) && error.to_string().contains(&name), "{error}");

    fs::remove_file(&table).unwrap();
    let error = open(&db).err().expect("a missing file is noticed");
    assert!(error.to_string().contains(&name), "{error}");
}

#[test]
fn a_directory_without_its_current_file_is_not_taken_for_an_empty_one() {
    let dir = tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    append(&store, 1);
    drop(store);
    fs::remove_file(dir.path().join("CURRENT")).unwrap();
    let error = open(dir.path()).err().expect("it is refused");
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("CURRENT"), "{error}");
}

#[test]
fn a_directory_in_use_and_one_that_cannot_be_are_named() {
    let dir = tempdir().unwrap();
    let _first = open(dir.path()).unwrap();
    let error = open(dir.path()).err().expect("one process at a time");
    assert_eq!(error, StorageError::Locked { dir: dir.path().to_owned() });
    assert!(error.to_string().contains(&dir.path().display().to_string()));

    let file = dir.path().join("a file");
    fs::write(&file, b"").unwrap();
    let error = open(&file).err().unwrap();
    assert!(error.to_string().contains("a file"), "{error}");
}

#[test]
fn stats_count_what_was_done() {
    let dir = tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(open(dir.path()).unwrap());
    (0..5).for_each(|index| append(&*store, index));
    store.sync().unwrap();
    let stats = store.stats();
    assert_eq!((stats.writes, stats.syncs), (5, 1));
    assert!(stats.bytes_written > 500 && stats.memtable_bytes > 0);
    assert_eq!(stats.family(Family::RaftLog).rows_estimate, 5);
}
