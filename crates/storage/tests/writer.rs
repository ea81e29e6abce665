//! The log writer: order, one sync for all, and an end for good at the first error.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod disks;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use onceward_core::cluster::ShardId;
use onceward_storage::{Family, LogWrite, LogWriter, MemoryStore, StorageError, Store, WriteSet, keys, limits};

type Outcome = Result<(), StorageError>;

fn entry(shard: u16, index: u64, value: &[u8]) -> WriteSet {
    let mut set = WriteSet::new();
    set.put(Family::RaftLog, keys::log_entry(ShardId(shard), index), value);
    set
}

fn no_error() -> Arc<dyn Fn(StorageError) + Send + Sync> {
    Arc::new(|error| panic!("{error}"))
}

/// Submits a synced write, whose outcome comes out of the channel.
fn submit(writer: &LogWriter, set: WriteSet) -> Receiver<Outcome> {
    let (told, outcome) = channel();
    let done = move |result| told.send(result).unwrap();
    writer.submit(LogWrite { set, synced: true, done: Some(Box::new(done)) });
    outcome
}

/// Keeps the writer in its first callback until the sender is used, so that what is submitted meanwhile queues up.
fn hold(writer: &LogWriter) -> Sender<()> {
    let (release, released) = channel();
    let (told, held) = channel();
    let done = move |_: Outcome| {
        told.send(()).unwrap();
        released.recv().unwrap();
    };
    writer.submit(LogWrite { set: entry(0, 1, b"held"), synced: true, done: Some(Box::new(done)) });
    held.recv().unwrap();
    release
}

#[test]
fn one_sync_serves_all_shards_and_makes_their_writes_durable() {
    let store = MemoryStore::new();
    let writer = LogWriter::start(Arc::new(store.clone()), no_error());
    let release = hold(&writer);
    let outcomes: Vec<_> = (1..=50).map(|shard| submit(&writer, entry(shard, 7, b"entry"))).collect();
    release.send(()).unwrap();
    outcomes.iter().for_each(|outcome| outcome.recv().unwrap().unwrap());

    let survivor = store.crash();
    for shard in 1..=50 {
        assert!(survivor.get(Family::RaftLog, &keys::log_entry(ShardId(shard), 7)).unwrap().is_some());
    }
    let stats = writer.stats();
    assert_eq!((stats.rounds, stats.syncs, stats.writes), (2, 2, 51));
    assert_eq!(store.stats().writes, 2, "a round is one write");
    writer.stop();
}

#[test]
fn writes_and_callbacks_keep_the_order_of_submission() {
    for disk in disks::each() {
        let writer = LogWriter::start(Arc::clone(&disk.store), no_error());
        let release = hold(&writer);
        let order = Arc::new(Mutex::new(Vec::new()));
        let submit = |set: WriteSet, synced: bool, number: u32| {
            let order = Arc::clone(&order);
            let done = move |result: Outcome| order.lock().unwrap().push((number, result.is_ok()));
            writer.submit(LogWrite { set, synced, done: Some(Box::new(done)) });
        };
        // Append, truncate what was appended, append again at the same index, purge the beginning.
        let shard = ShardId(3);
        (1..=4).for_each(|index| submit(entry(3, index, b"old"), true, index as u32));
        let mut truncate = WriteSet::new();
        let range = keys::log_from(shard, 3);
        truncate.delete_range(Family::RaftLog, range.from, range.to);
        submit(truncate, true, 5);
        submit(entry(3, 3, b"new"), false, 6);
        let mut purge = WriteSet::new();
        let range = keys::log_through(shard, 1);
        purge.delete_range(Family::RaftLog, range.from, range.to);
        purge.put(Family::RaftMeta, keys::purged(shard), b"1");
        submit(purge, false, 7);
        release.send(()).unwrap();
        writer.stop();

        assert_eq!(*order.lock().unwrap(), (1..=7).map(|number| (number, true)).collect::<Vec<_>>());
        let range = keys::log(shard);
        let log = disk.store.scan(Family::RaftLog, &range.from, &range.to, 100, usize::MAX).unwrap();
        let log: Vec<_> = log.iter().map(|(key, value)| (keys::log_index(key).unwrap(), &value[..])).collect();
        assert_eq!(log, [(2, &b"old"[..]), (3, b"new")], "{}", disk.name);
        let last = disk.store.last(Family::RaftLog, &range.from, &range.to).unwrap().unwrap();
        assert_eq!(keys::log_index(&last.0), Some(3));
    }
}

#[test]
fn a_round_is_bounded_in_bytes() {
    let writer = LogWriter::start(Arc::new(MemoryStore::new()), no_error());
    let release = hold(&writer);
    let megabyte = vec![0; 1 << 20];
    let count = 2 * (limits::ROUND_BYTES_MAX >> 20) as u64;
    let outcomes: Vec<_> = (0..count).map(|index| submit(&writer, entry(1, index, &megabyte))).collect();
    release.send(()).unwrap();
    outcomes.iter().for_each(|outcome| outcome.recv().unwrap().unwrap());
    assert_eq!(writer.stats().rounds, 3);
    writer.stop();
}

#[test]
fn the_first_error_stops_the_writer_for_good_and_is_told_once() {
    let store = MemoryStore::new();
    let fatal = Arc::new(AtomicUsize::new(0));
    let on_fatal = {
        let fatal = Arc::clone(&fatal);
        Arc::new(move |_| {
            fatal.fetch_add(1, Ordering::Relaxed);
        })
    };
    let writer = LogWriter::start(Arc::new(store.clone()), on_fatal);
    submit(&writer, entry(1, 1, b"good")).recv().unwrap().unwrap();

    store.fail_next_sync();
    let failed = submit(&writer, entry(1, 2, b"lost")).recv().unwrap();
    assert!(matches!(failed, Err(StorageError::Failed { .. })), "{failed:?}");
    let writes = store.stats().writes;
    for index in 3..6 {
        let refused = submit(&writer, entry(1, index, b"refused")).recv().unwrap();
        assert!(matches!(refused, Err(StorageError::Stopped { .. })), "{refused:?}");
    }
    writer.stop();
    assert_eq!(fatal.load(Ordering::Relaxed), 1);
    assert_eq!(store.stats().writes, writes, "nothing is written after an error");
    let range = keys::log(ShardId(1));
    assert_eq!(store.crash().scan(Family::RaftLog, &range.from, &range.to, 10, usize::MAX).unwrap().len(), 1);
}

#[test]
fn a_stop_makes_everything_durable_and_later_writes_are_told_so() {
    let store = MemoryStore::new();
    let writer = LogWriter::start(Arc::new(store.clone()), no_error());
    writer.submit(LogWrite { set: entry(1, 1, b"unsynced"), synced: false, done: None });
    let late = writer.clone();
    writer.stop();
    assert!(store.crash().get(Family::RaftLog, &keys::log_entry(ShardId(1), 1)).unwrap().is_some());
    let refused = submit(&late, entry(1, 2, b"late")).recv().unwrap();
    assert!(matches!(refused, Err(StorageError::Stopped { .. })), "{refused:?}");
    late.stop();
}

#[test]
fn the_last_handle_to_go_waits_until_everything_is_durable_and_the_store_is_let_go() {
    let disk = MemoryStore::new();
    let store: Arc<dyn Store> = Arc::new(disk.clone());
    let writer = LogWriter::start(Arc::clone(&store), no_error());
    let other = writer.clone();
    let outcome = submit(&writer, entry(1, 1, b"value"));
    drop(writer);
    drop(other);
    assert_eq!(Arc::strong_count(&store), 1, "the thread has ended");
    assert!(outcome.recv().unwrap().is_ok());
    assert_eq!(disk.unsynced(), 0);

    // Also when it goes in a callback, on the thread that it would have to wait for.
    let writer = LogWriter::start(Arc::clone(&store), no_error());
    let (told, hears) = channel();
    let last = writer.clone();
    let done = Box::new(move |_| {
        drop(last);
        told.send(()).unwrap();
    });
    writer.submit(LogWrite { set: entry(1, 2, b"value"), synced: true, done: Some(done) });
    drop(writer);
    hears.recv().unwrap();
}

#[test]
fn a_panicking_callback_is_fatal_and_leaves_nobody_waiting() {
    let (told, fatal) = channel();
    let told = Mutex::new(told);
    let on_fatal = Arc::new(move |error| told.lock().unwrap().send(error).unwrap());
    let writer = LogWriter::start(Arc::new(MemoryStore::new()), on_fatal);
    let release = hold(&writer);
    let done = |_| panic!("the panic that this test is about");
    writer.submit(LogWrite { set: entry(1, 1, b""), synced: true, done: Some(Box::new(done)) });
    let waiting = submit(&writer, entry(1, 2, b""));
    release.send(()).unwrap();
    assert!(matches!(fatal.recv().unwrap(), StorageError::Stopped { .. }));
    assert!(waiting.recv().unwrap().is_err());
    writer.stop();
}

#[test]
fn a_writer_without_a_thread_writes_and_syncs_when_it_is_told_to() {
    let store = MemoryStore::new();
    let queued = Arc::new(AtomicUsize::new(0));
    let on_queued = {
        let queued = Arc::clone(&queued);
        Box::new(move || {
            queued.fetch_add(1, Ordering::Relaxed);
        })
    };
    let (writer, mut rounds) = LogWriter::stepwise(Arc::new(store.clone()), no_error(), on_queued);
    assert!(!rounds.begin());
    let (first, second) = (submit(&writer, entry(1, 1, b"first")), submit(&writer, entry(1, 2, b"second")));
    assert_eq!(queued.load(Ordering::Relaxed), 2);

    assert!(rounds.begin() && first.try_recv().is_err());
    assert_eq!(store.unsynced(), 1, "both in one set, which a crash may take");
    assert!(rounds.finish());
    assert_eq!((first.recv().unwrap(), second.recv().unwrap(), store.unsynced()), (Ok(()), Ok(()), 0));

    writer.stop();
    assert!(rounds.begin() && !rounds.finish(), "stopped");
}
