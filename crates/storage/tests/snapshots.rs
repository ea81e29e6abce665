//! Snapshots: round trip, damage, what a directory keeps, and installs that a crash can't tear.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod disks;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use onceward_core::cluster::ShardId;
use onceward_core::rows::{ReadRows, Rows, Table};
use onceward_storage::{
    Family, MemoryStore, ShardState, SnapshotDir, SnapshotFile, StateHash, StorageError, Store, keys,
};
use tempfile::tempdir;

const SHARD: ShardId = ShardId(3);

/// A state with rows of a kilobyte, enough of them for several chunks.
fn filled(store: &Arc<dyn Store>, rows: u32, applied: &'static [u8]) -> ShardState {
    let mut state = ShardState::open(Arc::clone(store), SHARD).unwrap();
    for number in 0..rows {
        state.put(Table::State, Bytes::copy_from_slice(&number.to_be_bytes()), vec![number as u8; 1000].into());
        state.put(Table::Expiry, Bytes::copy_from_slice(&number.to_le_bytes()), Bytes::new());
    }
    state.set_applied(Bytes::from_static(applied));
    state.flush().unwrap();
    state
}

fn snapshot(dir: &SnapshotDir, state: &mut ShardState) -> SnapshotFile {
    let store = state.store();
    state.flush().unwrap();
    let frozen = state.freeze(&store).unwrap();
    dir.write(&frozen).unwrap()
}

fn small_snapshot(dir: &Path, shard: ShardId) -> SnapshotFile {
    let mut state = ShardState::open(Arc::new(MemoryStore::new()), shard).unwrap();
    state.put(Table::State, Bytes::from_static(b"key"), Bytes::from_static(b"value"));
    state.put(Table::State, Bytes::from_static(b"other"), Bytes::new());
    state.put(Table::Expiry, Bytes::from_static(b"due"), Bytes::from_static(b"key"));
    state.set_applied(Bytes::from_static(b"applied at 7"));
    snapshot(&SnapshotDir::open(dir, shard).unwrap().0, &mut state)
}

fn receive(dir: &Arc<SnapshotDir>, file: &SnapshotFile) -> SnapshotFile {
    let mut receiver = dir.receive(file.bytes()).unwrap();
    for piece in file.pieces() {
        receiver.append(&piece.unwrap()).unwrap();
    }
    assert_eq!(receiver.bytes_missing(), 0);
    receiver.finish().unwrap()
}

fn install(state: &mut ShardState, file: &SnapshotFile) -> Result<(), StorageError> {
    let loaded = state.begin_install().load(file)?;
    state.flip(loaded)?;
    state.store().sync()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn hash(state: &mut ShardState) -> StateHash {
    let store = state.store();
    state.flush().unwrap();
    state.freeze(&store).unwrap().hash().unwrap()
}

#[test]
fn a_state_that_travels_as_a_snapshot_arrives_equal_on_every_store() {
    let dir = tempdir().unwrap();
    for source in disks::each() {
        let mut sender = filled(&source.store, 3000, b"at 3000");
        let (ours, _) = SnapshotDir::open(&dir.path().join(source.name), SHARD).unwrap();
        let sent = snapshot(&ours, &mut sender);
        assert!(sent.pieces().count() >= 5, "header, several chunks, footer");
        assert_eq!((sent.rows(), sent.hash()), (6000, hash(&mut sender)));
        for target in disks::each() {
            let (theirs, _) = SnapshotDir::open(&dir.path().join("theirs"), SHARD).unwrap();
            let mut receiver = filled(&target.store, 10, b"at 10");
            receiver.put(Table::State, Bytes::from_static(b"flushed"), Bytes::new());
            receiver.flush().unwrap();
            receiver.put(Table::State, Bytes::from_static(b"not flushed"), Bytes::new());
            install(&mut receiver, &receive(&theirs, &sent)).unwrap();
            assert_eq!(receiver.applied(), Some(&b"at 3000"[..]));
            assert_eq!(receiver.dirty_rows(), 0);
            for gone in [&b"flushed"[..], b"not flushed"] {
                assert_eq!(receiver.get(Table::State, gone).unwrap(), None);
            }
            assert_eq!(hash(&mut receiver), sent.hash(), "from {} to {}", source.name, target.name);
            let mut reopened = ShardState::open(Arc::clone(&target.store), SHARD).unwrap();
            assert_eq!(hash(&mut reopened), sent.hash());
        }
    }
}

#[test]
fn a_crash_at_any_step_of_an_install_leaves_the_old_state_or_the_new_one() {
    let dir = tempdir().unwrap();
    let (snapshots, _) = SnapshotDir::open(dir.path(), SHARD).unwrap();
    let mut sender = filled(&(Arc::new(MemoryStore::new()) as Arc<dyn Store>), 3000, b"new");
    let file = snapshot(&snapshots, &mut sender);
    let base = MemoryStore::new();
    let old_hash = hash(&mut filled(&(Arc::new(base.clone()) as Arc<dyn Store>), 10, b"old"));
    base.sync().unwrap();

    let (mut old, mut new) = (0, 0);
    for operations in 0.. {
        let disk = base.crash();
        let mut state = ShardState::open(Arc::new(disk.clone()), SHARD).unwrap();
        disk.fail_after(operations);
        let installed = install(&mut state, &file).is_ok();
        for kept in 0..=disk.unsynced() {
            let survivor: Arc<dyn Store> = Arc::new(disk.crash_keeping(kept));
            let mut state = ShardState::open(Arc::clone(&survivor), SHARD).unwrap();
            let (applied, rows) = match hash(&mut state) {
                hash if hash == old_hash => (b"old", 10),
                hash if hash == file.hash() => (b"new", 3000),
                _ => panic!("a mix after {operations} operations, {kept} unsynced writes kept"),
            };
            assert_eq!(state.applied(), Some(&applied[..]));
            assert!(!installed || applied == b"new", "an install that returned was lost");
            for family in [Family::State, Family::Expiry] {
                let stored = survivor.scan(family, &[], &[255; 3], usize::MAX, usize::MAX).unwrap();
                assert_eq!(stored.len(), rows, "rows of another generation are left");
            }
            if applied == b"old" { old += 1 } else { new += 1 }
        }
        if installed {
            break;
        }
    }
    assert!(old > 3 && new >= 2, "the crashes came before and after the flip: {old} and {new}");
}

#[test]
fn an_abandoned_install_never_mixes_into_the_next_one() {
    let dir = tempdir().unwrap();
    let (snapshots, _) = SnapshotDir::open(dir.path(), SHARD).unwrap();
    for disk in disks::each() {
        let large =
            snapshot(&snapshots, &mut filled(&(Arc::new(MemoryStore::new()) as Arc<dyn Store>), 3000, b"large"));
        let small = snapshot(&snapshots, &mut filled(&(Arc::new(MemoryStore::new()) as Arc<dyn Store>), 5, b"small"));
        let mut state = filled(&disk.store, 10, b"old");
        drop(state.begin_install().load(&large).unwrap());
        install(&mut state, &small).unwrap();
        assert_eq!(state.scan(Table::State, &[], None, usize::MAX).unwrap().len(), 5);
        let stored = disk.store.scan(Family::State, &[], &[255; 3], usize::MAX, usize::MAX).unwrap();
        assert_eq!(stored.len(), 5, "{}", disk.name);
    }
}

#[test]
fn every_damaged_byte_and_every_missing_one_is_noticed() {
    let dir = tempdir().unwrap();
    let good = fs::read(small_snapshot(dir.path(), SHARD).path()).unwrap();
    let received = tempdir().unwrap();
    let (snapshots, _) = SnapshotDir::open(received.path(), SHARD).unwrap();
    let refused = |bytes: &[u8]| {
        let mut receiver = snapshots.receive(bytes.len() as u64).unwrap();
        receiver.append(bytes).unwrap();
        let error = receiver.finish().expect_err("the damage is noticed");
        assert!(matches!(error, StorageError::Snapshot { .. }), "{error}");
    };
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 0x41;
        refused(&damaged);
        refused(&good[..at]);
    }
    refused(&[&good[..], b"x"].concat());
    assert!(names(received.path()).is_empty(), "nothing of a refused snapshot is left");
    let mut receiver = snapshots.receive(1).unwrap();
    assert!(receiver.append(b"xx").is_err(), "more than was announced");
}

#[test]
fn a_snapshot_of_another_shard_is_refused() {
    let dir = tempdir().unwrap();
    let foreign = small_snapshot(dir.path(), ShardId(4));
    let (snapshots, _) = SnapshotDir::open(dir.path(), SHARD).unwrap();
    let mut receiver = snapshots.receive(foreign.bytes()).unwrap();
    foreign.pieces().for_each(|piece| receiver.append(&piece.unwrap()).unwrap());
    assert!(matches!(receiver.finish(), Err(StorageError::Snapshot { .. })));
    let mut state = ShardState::open(Arc::new(MemoryStore::new()), SHARD).unwrap();
    assert!(matches!(install(&mut state, &foreign), Err(StorageError::Snapshot { .. })));
}

#[test]
fn a_directory_keeps_the_newest_snapshot_and_no_partial_file() {
    let dir = tempdir().unwrap();
    let mut state = filled(&(Arc::new(MemoryStore::new()) as Arc<dyn Store>), 5, b"first");
    let (snapshots, none) = SnapshotDir::open(dir.path(), SHARD).unwrap();
    assert!(none.is_none());
    let neighbour = small_snapshot(dir.path(), ShardId(4));
    let first = snapshot(&snapshots, &mut state);
    state.set_applied(Bytes::from_static(b"second"));
    let second = snapshot(&snapshots, &mut state);
    assert!(!first.path().exists() && first.pieces().all(|piece| piece.is_ok()), "it stays readable without its name");
    let partial = dir.path().join("shard-00003-00000000000000000009.partial");
    fs::write(&partial, b"torn").unwrap();

    let (_, newest) = SnapshotDir::open(dir.path(), SHARD).unwrap();
    let newest = newest.unwrap();
    assert_eq!(newest.applied().map(|applied| &applied[..]), Some(&b"second"[..]));
    assert_eq!(newest.path(), second.path());
    assert!(!partial.exists());
    assert_eq!(names(dir.path()).len(), 2);
    assert!(neighbour.path().exists(), "another shard's files are left alone");
}

#[test]
fn a_snapshot_that_was_begun_earlier_does_not_displace_a_newer_one() {
    let dir = tempdir().unwrap();
    let (snapshots, _) = SnapshotDir::open(dir.path(), SHARD).unwrap();
    let elsewhere = tempdir().unwrap();
    let file = small_snapshot(elsewhere.path(), SHARD);
    let mut slow = snapshots.receive(file.bytes()).unwrap();
    let fast = receive(&snapshots, &file);
    file.pieces().for_each(|piece| slow.append(&piece.unwrap()).unwrap());
    slow.finish().unwrap();
    assert_eq!(SnapshotDir::open(dir.path(), SHARD).unwrap().1.unwrap().path(), fast.path());
}

#[test]
fn a_kept_snapshot_that_rots_is_named_at_open() {
    let dir = tempdir().unwrap();
    let path = small_snapshot(dir.path(), SHARD).path().to_owned();
    let mut bytes = fs::read(&path).unwrap();
    bytes[40] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = SnapshotDir::open(dir.path(), SHARD).err().unwrap();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

/// What a snapshot looks like on disk and between nodes. Another outcome is another format: raise its version.
#[test]
fn the_snapshot_format_is_pinned() {
    let dir = tempdir().unwrap();
    let bytes = fs::read(small_snapshot(dir.path(), SHARD).path()).unwrap();
    let hex: String =
        bytes.chunks(16).map(|line| line.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n").collect();
    assert_eq!(hex, include_str!("golden/snapshot-v1.hex"), "{hex}");
}

#[test]
fn logs_of_shards_do_not_touch_each_other() {
    for disk in disks::each() {
        let mut set = onceward_storage::WriteSet::new();
        for shard in [2, 3, 4] {
            (0..3).for_each(|index| set.put(Family::RaftLog, keys::log_entry(ShardId(shard), index), b"entry"));
        }
        let range = keys::log(SHARD);
        set.delete_range(Family::RaftLog, range.from, range.to);
        disk.store.write(&set).unwrap();
        let left = disk.store.scan(Family::RaftLog, &[], &[255; 10], 100, usize::MAX).unwrap();
        assert_eq!(left.len(), 6, "{}", disk.name);
    }
}
