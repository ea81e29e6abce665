//! The storage beneath openraft: its own tests of one, on the engine and on the simulated disk; and what we promise
//! beyond them, about what is on disk when.

use std::{sync::Arc, time::Duration};

use onceward_core::{cluster::ShardId, command::EntryBatch, time::ShardTime};
use onceward_storage::{Family, LogWriter, MemoryStore, RocksStore, Store, StoreOptions, WriteSet, keys};
use openraft::{
    RaftLogReader, StorageError,
    storage::{IOFlushed, RaftLogStorage, RaftStateMachine},
    testing::log::{StoreBuilder, Suite},
    type_config::TypeConfigExt,
};
use tempfile::TempDir;
use tokio::time::Instant;

use super::{RealClock, SlowDisk, config, member};
use crate::{
    clock::GroupClock,
    error::ConsensusError,
    log::{Log, positions_on_disk},
    state::{State, StateMachine},
    types::{Batch, Entry, Payload, Types, Vote, log_id},
};

struct Builder<S>(S);

const SHARD: ShardId = ShardId(1);

impl<S: Fn(&TempDir) -> Arc<dyn Store> + Send + Sync> StoreBuilder<Types, Log, StateMachine, TempDir> for Builder<S> {
    async fn build(&self) -> Result<(TempDir, Log, StateMachine), StorageError<Types>> {
        let dir = tempfile::tempdir().unwrap();
        let (log, machine) = open((self.0)(&dir), &dir);
        Ok((dir, log, machine))
    }
}

fn open(store: Arc<dyn Store>, dir: &TempDir) -> (Log, StateMachine) {
    let writer = LogWriter::start(Arc::clone(&store), Arc::new(|error| panic!("{error}")));
    let clock = Arc::new(GroupClock::new(Arc::new(RealClock(Instant::now())), None));
    // The suite calls its own node 0.
    let mut config = config(member(0, 0), dir);
    config.shard = SHARD;
    let log = Log::open(SHARD, config.me, Arc::clone(&store), writer, clock).unwrap();
    let state = Arc::new(State::open(&config, store, log.purged()).unwrap());
    let machine = StateMachine::new(state, log.clone(), Arc::new(|what| panic!("{what}")));
    (log, machine)
}

fn blank(term: u64, index: u64) -> Entry {
    Entry { log_id: log_id(term, index), payload: Payload::Blank }
}

/// Appends and waits until it is durable.
async fn append(log: &mut Log, entries: Vec<Entry>) {
    let (sender, receiver) = Types::oneshot();
    log.append(entries, IOFlushed::signal(sender)).await.unwrap();
    receiver.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_storage_does_on_the_engine_what_openraft_asks_of_one() {
    let builder = Builder(|dir: &TempDir| {
        let store = RocksStore::open(&dir.path().join("store"), &StoreOptions::default()).unwrap();
        Arc::new(store) as Arc<dyn Store>
    });
    Suite::test_all(builder).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_storage_does_on_the_simulated_disk_what_openraft_asks_of_one() {
    let builder =
        Builder(|_: &TempDir| Arc::new(SlowDisk::new(MemoryStore::new(), Duration::from_millis(1))) as Arc<dyn Store>);
    Suite::test_all(builder).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_is_applied_only_when_it_is_on_disk_here() {
    let disk = MemoryStore::new();
    let dir = tempfile::tempdir().unwrap();
    // A sync that takes longer than anything else here.
    let (mut log, mut machine) = open(Arc::new(SlowDisk::new(disk.clone(), Duration::from_millis(200))), &dir);
    let entry = blank(1, 0);
    log.append([entry.clone()], IOFlushed::noop()).await.unwrap();
    machine.apply(futures::stream::iter([Ok((entry, None))])).await.unwrap();
    assert_eq!(positions_on_disk(&disk.crash(), SHARD).unwrap().last, Some(log_id(1, 0)));
}

#[test]
fn rows_are_applied_and_read_while_the_engine_stalls_a_write_of_rows() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SlowDisk::new(MemoryStore::new(), Duration::ZERO);
    let stall = Arc::clone(&disk.rows);
    let state = State::open(&config(member(1, 0), &dir), Arc::new(disk), None).unwrap();
    let state = &state;
    let entry = |index: u64| {
        let batch = EntryBatch { stamp: ShardTime(index), commands: Vec::new() };
        Entry { log_id: log_id(1, index), payload: Payload::Normal(Batch::new(&batch)) }
    };
    state.apply(entry(1)).unwrap();
    std::thread::scope(|scope| {
        let stalled = stall.write().unwrap();
        let writing = scope.spawn(|| state.flush());
        while state.dirty_rows() > 0 {
            std::thread::yield_now();
        }
        state.apply(entry(2)).unwrap();
        assert_eq!(state.clock().unwrap(), ShardTime(2));
        assert!(!writing.is_finished());
        drop(stalled);
        writing.join().unwrap().unwrap();
    });
    assert_eq!(state.dirty_rows(), 1, "what came meanwhile is written by the next one");
    state.flush().unwrap();
    assert_eq!((state.dirty_rows(), state.clock().unwrap()), (0, ShardTime(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_is_on_disk_when_it_is_given_and_the_committed_position_with_the_next_append() {
    let disk = MemoryStore::new();
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _machine) = open(Arc::new(disk.clone()), &dir);
    let vote = Vote::new_committed(7, 3);
    log.save_vote(&vote).await.unwrap();
    assert_eq!(positions_on_disk(&disk.crash(), SHARD).unwrap().vote, Some(vote));

    append(&mut log, vec![blank(7, 0)]).await;
    log.save_committed(Some(log_id(7, 0))).await.unwrap();
    assert_eq!(positions_on_disk(&disk.crash(), SHARD).unwrap().committed, None);
    append(&mut log, vec![blank(7, 1)]).await;
    assert_eq!(positions_on_disk(&disk.crash(), SHARD).unwrap().committed, Some(log_id(7, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_cut_and_purged_in_the_order_in_which_it_was_asked_for() {
    let disk = MemoryStore::new();
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _machine) = open(Arc::new(disk.clone()), &dir);
    append(&mut log, (0..10).map(|index| blank(1, index)).collect()).await;
    let all = log.bytes();
    log.truncate_after(Some(log_id(1, 5))).await.unwrap();
    log.purge(log_id(1, 2)).await.unwrap();
    append(&mut log, vec![blank(2, 6)]).await;
    assert_eq!(log.bytes(), all * 4 / 10);
    let mut reader = log.get_log_reader().await;
    let found = reader.try_get_log_entries(..).await.unwrap();
    assert_eq!(
        found.iter().map(|entry| entry.log_id).collect::<Vec<_>>(),
        [log_id(1, 3), log_id(1, 4), log_id(1, 5), log_id(2, 6)]
    );
    assert_eq!(log.index_before(6, all * 2 / 10).unwrap(), Some(4), "5 and 6 are two entries");
    assert_eq!(log.index_before(6, all).unwrap(), None);

    // A snapshot beyond the log, then a new beginning behind it.
    log.purge(log_id(3, 20)).await.unwrap();
    assert_eq!(log.bytes(), 0);
    append(&mut log, vec![blank(3, 21)]).await;
    let found = positions_on_disk(&disk.crash(), SHARD).unwrap();
    assert_eq!((found.purged, found.first, found.last), (Some(log_id(3, 20)), 21, Some(log_id(3, 21))));
    assert_eq!(found.last_bytes - found.purged_bytes, all / 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_with_a_hole_or_garbage_is_refused() {
    let disk = MemoryStore::new();
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _machine) = open(Arc::new(disk.clone()), &dir);
    append(&mut log, (0..3).map(|index| blank(1, index)).collect()).await;
    for (key, value) in [(keys::log_entry(SHARD, 0), None), (keys::log_entry(SHARD, 2), Some(b"\x07garbage"))] {
        let damaged = disk.crash();
        let mut set = WriteSet::new();
        match value {
            None => set.delete(Family::RaftLog, key),
            Some(value) => set.put(Family::RaftLog, key, value),
        }
        damaged.write(&set).unwrap();
        let refused = positions_on_disk(&damaged, SHARD).unwrap_err();
        assert!(matches!(refused, ConsensusError::Corrupt { .. }), "{refused}");
    }
}
