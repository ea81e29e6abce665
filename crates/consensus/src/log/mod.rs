//! A group's log for openraft, over the node's one log writer.
//!
//! Entries go into the tail, where they can be read at once, and into the writer's queue; its callback says when
//! they are durable. Everything that changes the log goes through that queue, so the disk sees changes in the order
//! in which they were made. `apply` asks here whether what it is about to apply is on disk.

mod reader;
mod tail;
mod value;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use onceward_core::{
    cluster::{MemberId, ShardId},
    time::ShardTime,
};
use onceward_storage::{Family, LogWrite, LogWriter, StorageError, Store, WriteSet, keys};
use openraft::{
    OptionalSend,
    storage::{IOFlushed, LogState, RaftLogStorage},
};
use tokio::sync::{oneshot, watch};

pub(crate) use self::reader::LogReader;
#[cfg(test)]
pub(crate) use self::{reader::READ_BYTES_MAX, value::read_positions as positions_on_disk};
use self::{
    tail::{Tail, entry_bytes},
    value::{Positions, encode_committed, encode_entry, encode_purged, encode_vote},
};
use crate::{
    clock::GroupClock,
    error::ConsensusError,
    types::{Entry, LogId, Payload, Types, Vote},
};

/// Bytes of entries on their way to the disk before further appends wait: what a slow disk may cost in memory.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

/// How far a log reaches: bytes of all entries up to its end, and the index of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) bytes: u64,
    pub(crate) index: u64,
}

fn extent(at: &Positions) -> Extent {
    Extent { bytes: at.last_bytes, index: at.last.map_or(0, |last| last.index) }
}

/// A handle on the log of one group; clones are the same log.
#[derive(Clone)]
pub(crate) struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    shard: ShardId,
    me: MemberId,
    store: Arc<dyn Store>,
    writer: LogWriter,
    clock: Arc<GroupClock>,
    state: Mutex<State>,
    /// Changes whenever an append became durable, or failed.
    progress: watch::Sender<Result<u64, String>>,
    /// For whoever decides on snapshots.
    grown: watch::Sender<Extent>,
}

struct State {
    at: Positions,
    /// `at.committed` isn't on its way to the disk yet.
    committed_changed: bool,
    tail: Tail,
}

impl Log {
    pub(crate) fn open(
        shard: ShardId,
        me: MemberId,
        store: Arc<dyn Store>,
        writer: LogWriter,
        clock: Arc<GroupClock>,
    ) -> Result<Log, ConsensusError> {
        let at = value::read_positions(&*store, shard)?;
        let log = Log {
            shared: Arc::new(Shared {
                shard,
                me,
                store,
                writer,
                clock,
                progress: watch::Sender::new(Ok(0)),
                grown: watch::Sender::new(extent(&at)),
                state: Mutex::new(State { at, committed_changed: false, tail: Tail::default() }),
            }),
        };
        log.find_last_stamp()?;
        Ok(log)
    }

    /// Tells the clock the stamp of the last batch, if it is among the last entries. Otherwise the clock stays slower.
    fn find_last_stamp(&self) -> Result<(), ConsensusError> {
        const ENTRIES: u64 = 16;
        let Some(last) = self.shared.lock().at.last else { return Ok(()) };
        let entries = self.shared.read(last.index.saturating_sub(ENTRIES), last.index + 1, usize::MAX);
        let entries = entries.map_err(|error| self.shared.corrupt(&error))?;
        for entry in entries {
            if let Payload::Normal(batch) = entry.payload {
                self.shared.clock.seen(batch.stamp);
            }
        }
        Ok(())
    }

    /// Waits until the entry is on disk here, so that the state never gets ahead of the log.
    pub(crate) async fn flushed(&self, index: u64) -> io::Result<()> {
        if self.shared.lock().tail.is_flushed(index) {
            return Ok(());
        }
        self.shared.until(|state| state.tail.is_flushed(index)).await
    }

    /// The last entry that the log no longer has.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.shared.lock().at.purged
    }

    /// Bytes of the entries in the log.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.shared.lock();
        state.at.last_bytes - state.at.purged_bytes
    }

    /// Bytes of all entries ever appended up to this one; up to the beginning of the log where it isn't in there.
    pub(crate) fn bytes_through(&self, index: Option<u64>) -> io::Result<u64> {
        let found = index.map(|index| self.shared.find(index)).transpose()?.flatten();
        Ok(found.map_or_else(|| self.shared.lock().at.purged_bytes, |(_, bytes)| bytes))
    }

    /// How far entries were ever appended, watched. Who looks at it must not ask the log anything meanwhile, as it is
    /// told under the log's lock.
    pub(crate) fn grown(&self) -> watch::Receiver<Extent> {
        self.shared.grown.subscribe()
    }

    /// The greatest index, at most `through`, such that from it on to `through` lie at least `bytes` of entries.
    /// None where the log is shorter.
    pub(crate) fn index_before(&self, through: u64, bytes: u64) -> io::Result<Option<u64>> {
        let (first, last) = {
            let at = &self.shared.lock().at;
            (at.first, at.last.map_or(0, |last| last.index))
        };
        let through = through.min(last);
        let bytes_through = |index| Ok::<u64, io::Error>(self.shared.find(index)?.map_or(0, |(_, bytes)| bytes));
        let Some(target) = bytes_through(through)?.checked_sub(bytes) else { return Ok(None) };
        // The first index whose bytes exceed the target, by halving.
        let (mut low, mut high) = (first, through);
        while low < high {
            let middle = low + (high - low) / 2;
            if bytes_through(middle)? > target { high = middle } else { low = middle + 1 }
        }
        Ok(low.checked_sub(1).filter(|index| *index >= first))
    }

    /// The last entry. Whoever reads the clock afterwards has one that knows of it.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.shared.lock().at.last
    }

    /// Drops the clock pair on disk, before anything that is written later.
    pub(crate) async fn forget_pair(&self) -> Result<(), StorageError> {
        self.shared.clock.forget_pair();
        let mut set = WriteSet::new();
        set.delete(Family::RaftMeta, keys::clock_pair(self.shared.shard));
        self.shared.write(set, false).await
    }

    /// The state is a snapshot of another member now, at this stamp.
    pub(crate) async fn installed(&self, stamp: ShardTime) -> Result<(), StorageError> {
        self.shared.clock.received(stamp);
        self.sync().await
    }

    /// Stores a clock pair, and waits until everything written so far is durable.
    pub(crate) async fn sync(&self) -> Result<(), StorageError> {
        let mut set = WriteSet::new();
        self.shared.put_pair(&mut set, true);
        self.shared.write(set, true).await
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the log's state")
    }

    fn corrupt(&self, error: &io::Error) -> ConsensusError {
        ConsensusError::Corrupt { what: format!("the log of shard {}", self.shard), detail: error.to_string() }
    }

    /// Waits until something is true that becomes true by appends becoming durable.
    async fn until(&self, mut reached: impl FnMut(&State) -> bool) -> io::Result<()> {
        let mut progress = self.progress.subscribe();
        loop {
            if let Err(error) = &*progress.borrow_and_update() {
                return Err(io::Error::other(error.clone()));
            }
            if reached(&self.lock()) {
                return Ok(());
            }
            if progress.changed().await.is_err() {
                return Err(io::Error::other("the log is closed"));
            }
        }
    }

    /// Hands a set to the writer and waits for it.
    async fn write(&self, set: WriteSet, synced: bool) -> Result<(), StorageError> {
        let (sender, receiver) = oneshot::channel();
        // The receiver may be gone; the write is made all the same.
        let done = Box::new(move |outcome| drop(sender.send(outcome)));
        self.writer.submit(LogWrite { set, synced, done: Some(done) });
        receiver.await.unwrap_or_else(|_| Err(StorageError::Stopped { reason: "the log writer is gone".to_owned() }))
    }

    fn put_pair(&self, set: &mut WriteSet, now: bool) {
        let pair = if now { self.clock.take_pair() } else { self.clock.due_pair() };
        if let Some(pair) = pair {
            set.put(Family::RaftMeta, keys::clock_pair(self.shard), onceward_core::codec::encode(&pair));
        }
    }

    /// One append is durable, or has failed.
    fn appended(&self, outcome: &Result<(), StorageError>) {
        match outcome {
            Ok(()) => {
                self.lock().tail.flushed();
                self.progress.send_modify(|progress| {
                    if let Ok(count) = progress {
                        *count += 1;
                    }
                });
            }
            Err(error) => drop(self.progress.send_replace(Err(error.to_string()))),
        }
    }

    /// Takes entries into the tail and lays out their write.
    fn stage(&self, entries: impl Iterator<Item = Entry>) -> WriteSet {
        let state = &mut *self.lock();
        // Whoever holds the committed vote of this term proposes the entries of this term.
        let mine = state.at.vote.is_some_and(|vote| vote.committed && vote.leader_id.voted_for == self.me.to_u64());
        let mut set = WriteSet::new();
        let mut first = None;
        for entry in entries {
            let index = entry.log_id.index;
            if state.at.last == state.at.purged {
                state.at.first = index;
            }
            state.at.last = Some(entry.log_id);
            state.at.last_bytes += entry_bytes(&entry) as u64;
            set.put(Family::RaftLog, keys::log_entry(self.shard, index), encode_entry(&entry, state.at.last_bytes));
            match &entry.payload {
                Payload::Normal(batch) if mine => self.clock.seen(batch.stamp),
                Payload::Normal(batch) => self.clock.received(batch.stamp),
                _ => {}
            }
            let bytes_through = state.at.last_bytes;
            first.get_or_insert(index);
            state.tail.push(entry, bytes_through);
        }
        if let Some(committed) = state.at.committed.filter(|_| state.committed_changed) {
            set.put(Family::RaftMeta, keys::committed(self.shard), encode_committed(&committed));
            state.committed_changed = false;
        }
        self.put_pair(&mut set, false);
        state.tail.depart(first.unwrap_or(u64::MAX), set.bytes());
        self.grown.send_replace(extent(&state.at));
        set
    }
}

fn io_error(error: StorageError) -> io::Error {
    io::Error::other(error.to_string())
}

impl RaftLogStorage<Types> for Log {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let at = &self.shared.lock().at;
        Ok(LogState { last_purged_log_id: at.purged, last_log_id: at.last })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        LogReader::new(Arc::clone(&self.shared))
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let mut set = WriteSet::new();
        set.put(Family::RaftMeta, keys::vote(self.shared.shard), encode_vote(vote));
        self.shared.write(set, true).await.map_err(io_error)?;
        self.shared.lock().at.vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.at.committed = committed;
        state.committed_changed = true;
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.shared.lock().at.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        if self.shared.lock().tail.in_flight_bytes() > IN_FLIGHT_BYTES_MAX {
            self.shared.until(|state| state.tail.in_flight_bytes() <= IN_FLIGHT_BYTES_MAX).await?;
        }
        let set = self.shared.stage(entries.into_iter());
        let shared = Arc::clone(&self.shared);
        let done = Box::new(move |outcome: Result<(), StorageError>| {
            shared.appended(&outcome);
            callback.io_completed(outcome.map_err(io_error));
        });
        self.shared.writer.submit(LogWrite { set, synced: true, done: Some(done) });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let set = {
            let state = &mut *self.shared.lock();
            if state.at.last <= last {
                return Ok(());
            }
            let (last, last_bytes) = match last {
                Some(last) if Some(last) > state.at.purged => self
                    .shared
                    .find_in(state, last.index)?
                    .ok_or_else(|| io::Error::other(format!("no entry {} to cut the log after", last.index)))
                    .map(|(id, bytes)| (Some(id), bytes))?,
                _ => (state.at.purged, state.at.purged_bytes),
            };
            state.at.last = last;
            state.at.last_bytes = last_bytes;
            state.tail.cut_after(last.map(|last| last.index));
            let cut = keys::log_from(self.shared.shard, last.map_or(0, |last| last.index + 1));
            let mut set = WriteSet::new();
            set.delete_range(Family::RaftLog, cut.from, cut.to);
            set
        };
        // Waits until it is written, though not synced: a snapshot that replaces what was cut off writes the state
        // itself, and must come behind the cut.
        self.shared.write(set, false).await.map_err(io_error)
    }

    async fn purge(&mut self, through: LogId) -> io::Result<()> {
        let set = {
            let state = &mut *self.shared.lock();
            if state.at.purged >= Some(through) {
                return Ok(());
            }
            // A snapshot may reach beyond the log: then nothing of the log is left.
            let bytes = match self.shared.find_in(state, through.index)? {
                Some((_, bytes)) => bytes,
                None => state.at.last_bytes,
            };
            let from = state.at.first;
            state.at.first = through.index + 1;
            state.at.purged = Some(through);
            state.at.purged_bytes = bytes;
            state.tail.drop_through(through.index);
            if state.at.last < Some(through) {
                state.at.last = Some(through);
                state.at.last_bytes = bytes;
            }
            let gone = keys::log_between(self.shared.shard, from, through.index);
            let mut set = WriteSet::new();
            set.delete_range(Family::RaftLog, gone.from, gone.to);
            set.put(Family::RaftMeta, keys::purged(self.shared.shard), encode_purged(&through, bytes));
            set
        };
        // Nobody waits: whatever comes later is behind it in the queue.
        self.shared.writer.submit(LogWrite { set, synced: false, done: None });
        Ok(())
    }
}
