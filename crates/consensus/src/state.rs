//! A shard's state for openraft: committed entries in, replies out, snapshots built and installed.
//!
//! The rows and the machine stand behind one mutex, never held across an await, nor while rows are written. An entry is
//! applied only when it is on disk here, so the state can't get ahead of the log; applied rows are written behind,
//! together with their position.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use onceward_core::{
    cluster::ShardId,
    command::Reply,
    machine::Machine,
    rows::{ReadRows, RowsError},
    time::ShardTime,
};
#[cfg(feature = "faults")]
use onceward_core::{
    command::EntryBatch,
    faults::{self, Fault},
};
use onceward_storage::{FrozenState, ShardState, SnapshotDir, SnapshotFile, StorageError, Store};
use openraft::{
    OptionalSend, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine, Snapshot},
};
use tokio::{
    sync::{Notify, watch},
    task::yield_now,
};

use crate::{
    applied::Applied,
    config::GroupConfig,
    error::ConsensusError,
    log::Log,
    types::{Entry, LogId, Payload, SnapshotMeta, StoredMembers, Types},
};

pub(crate) type RaftSnapshot = openraft::type_config::alias::SnapshotOf<Types, SnapshotFile>;

/// A shard's state on this member.
pub(crate) struct State {
    shard: ShardId,
    inner: Mutex<Inner>,
    snapshots: Arc<SnapshotDir>,
    /// The newest snapshot, at or behind the applied position.
    current: Mutex<Option<SnapshotFile>>,
    flush_rows: usize,
    flush_bytes: usize,
    /// Held by whoever writes rows behind, or replaces them all: one at a time. Taken before `inner`.
    writing: Mutex<()>,
    /// Rows wait to be written behind.
    dirty: Notify,
    /// The term of the last applied entry.
    applied_term: watch::Sender<u64>,
    /// The index of the last applied entry.
    applied_index: watch::Sender<u64>,
    /// The last index in the newest snapshot.
    snapshot_index: watch::Sender<Option<u64>>,
    on_moved: OnceLock<OnMoved>,
}

/// What others may have waited for, as this replica applies it.
#[derive(Debug)]
pub enum Moved {
    /// The rows of idempotency records whose attempt ended, and the state rows of endpoints that have something new to
    /// do or were changed.
    Rows(Vec<Bytes>),
    /// A snapshot was installed: anything may have changed.
    All,
}

/// Called behind each entry that moved something, in the order of the log; it must be short.
pub type OnMoved = Box<dyn Fn(Moved) + Send + Sync>;

struct Inner {
    rows: ShardState,
    machine: Machine,
    applied: Applied,
    /// An entry failed half-way: rows and position don't belong together any more, and must not reach the disk.
    broken: bool,
}

impl Inner {
    fn expect_whole(&self) -> Result<(), StorageError> {
        if self.broken {
            let place = format!("the state of shard {}", self.rows.shard());
            let detail = "an entry could not be applied, and what it changed is not written".to_owned();
            return Err(StorageError::Failed { place, detail });
        }
        Ok(())
    }
}

impl State {
    /// `purged` is the last entry that the log no longer has.
    pub(crate) fn open(
        config: &GroupConfig,
        store: Arc<dyn Store>,
        purged: Option<LogId>,
    ) -> Result<State, ConsensusError> {
        let shard = config.shard;
        let rows = ShardState::open(store, shard)?;
        let applied = match rows.applied() {
            Some(applied) => decode_applied(shard, applied)?,
            None => Applied::default(),
        };
        let (snapshots, newest) = SnapshotDir::open(&config.snapshot_dir, shard)?;
        let current = match newest {
            Some(file) => {
                let of = file.applied().map(|applied| decode_applied(shard, applied)).transpose()?;
                let of = of.unwrap_or_default().log_id;
                // One beyond the state was received and not installed: the leader sends another one, and installing
                // it here would skip what openraft does to the log before. One that the log doesn't follow on is of
                // no use to anybody; openraft builds a new one.
                Some(file).filter(|_| purged <= of && of <= applied.log_id)
            }
            None => None,
        };
        let state = State {
            shard,
            snapshots,
            flush_rows: config.flush_rows,
            flush_bytes: config.flush_bytes,
            writing: Mutex::default(),
            dirty: Notify::new(),
            applied_term: watch::Sender::new(applied.log_id.map_or(0, |id| id.leader_id.term)),
            applied_index: watch::Sender::new(applied.log_id.map_or(0, |id| id.index)),
            snapshot_index: watch::Sender::new(None),
            on_moved: OnceLock::new(),
            inner: Mutex::new(Inner { rows, machine: Machine::new(shard), applied, broken: false }),
            current: Mutex::new(None),
        };
        if let Some(file) = current {
            state.keep_snapshot(file)?;
        }
        Ok(state)
    }

    pub(crate) fn read<R>(&self, f: impl FnOnce(&dyn ReadRows) -> R) -> R {
        f(&self.lock().rows)
    }

    pub(crate) fn clock(&self) -> Result<ShardTime, RowsError> {
        let inner = self.lock();
        inner.machine.clock(&inner.rows)
    }

    pub(crate) fn next_due(&self) -> Result<Option<ShardTime>, RowsError> {
        let inner = self.lock();
        inner.machine.next_due(&inner.rows)
    }

    pub(crate) fn applied_index(&self) -> Option<u64> {
        self.lock().applied.log_id.map(|id| id.index)
    }

    pub(crate) fn applied_term(&self) -> watch::Receiver<u64> {
        self.applied_term.subscribe()
    }

    pub(crate) fn applied_index_changes(&self) -> watch::Receiver<u64> {
        self.applied_index.subscribe()
    }

    pub(crate) fn snapshot_index(&self) -> watch::Receiver<Option<u64>> {
        self.snapshot_index.subscribe()
    }

    /// Bytes of the newest snapshot; 0 when there is none.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        let current = self.current.lock().expect("no code panics while it holds the current snapshot");
        current.as_ref().map_or(0, SnapshotFile::bytes)
    }

    pub(crate) fn snapshots(&self) -> Arc<SnapshotDir> {
        Arc::clone(&self.snapshots)
    }

    /// Set once, before the group runs.
    pub(crate) fn set_on_moved(&self, on_moved: OnMoved) {
        if self.on_moved.set(on_moved).is_err() {
            unreachable!("a group is given one listener");
        }
    }

    fn tell_moved(&self, moved: Moved) {
        if let Some(on_moved) = self.on_moved.get() {
            on_moved(moved);
        }
    }

    pub(crate) fn dirty_rows(&self) -> usize {
        self.lock().rows.dirty_rows()
    }

    /// Waits until rows wait to be written behind.
    pub(crate) async fn dirty(&self) {
        self.dirty.notified().await;
    }

    /// Writes what was applied, not synced. Meanwhile entries are applied and rows are read.
    pub(crate) fn flush(&self) -> Result<(), StorageError> {
        self.flush_under(&self.writing())
    }

    fn flush_under(&self, _writing: &MutexGuard<'_, ()>) -> Result<(), StorageError> {
        let flush = {
            let mut inner = self.lock();
            inner.expect_whole()?;
            inner.rows.begin_flush()
        };
        let Some(flush) = flush else { return Ok(()) };
        if let Err(error) = flush.write() {
            // The rows are not on their way any more, and nothing that follows from them may reach the disk.
            self.lock().broken = true;
            return Err(error);
        }
        self.lock().rows.end_flush(flush);
        Ok(())
    }

    /// The state as it is now, to be read without any lock. `store` is where its rows lie.
    fn freeze<'s>(&self, store: &'s Arc<dyn Store>) -> Result<FrozenState<'s>, StorageError> {
        let writing = self.writing();
        self.flush_under(&writing)?;
        self.lock().rows.freeze(store)
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().expect("a panic while writing ends the process")
    }

    /// The applied index and the hash of the rows at it. Blocks for as long as reading all rows takes.
    pub(crate) fn hash(&self) -> Result<(u64, String), ConsensusError> {
        let store = self.lock().rows.store();
        let frozen = self.freeze(&store)?;
        let applied = frozen.applied().map(|applied| decode_applied(self.shard, applied)).transpose()?;
        let index = applied.and_then(|applied| applied.log_id).map_or(0, |id| id.index);
        Ok((index, frozen.hash()?.to_string()))
    }

    /// What applying `batch` now would answer; nothing is changed.
    #[cfg(feature = "faults")]
    pub(crate) fn foresee(&self, batch: &EntryBatch) -> Result<Vec<Reply>, RowsError> {
        self.lock().rows.try_out(|rows| Machine::new(self.shard).apply(rows, batch))
    }

    /// Applies one entry. What fails here is fatal: the rows may be half changed, and are not written any more.
    pub(crate) fn apply(&self, entry: Entry) -> io::Result<(Vec<Reply>, IsFull)> {
        let fatal = |detail: String| {
            io::Error::other(format!("applying entry {} of shard {}: {detail}", entry.log_id, self.shard))
        };
        let batch = match &entry.payload {
            Payload::Normal(batch) => Some(batch.decode().map_err(|error| fatal(error.to_string()))?),
            _ => None,
        };
        let mut guard = self.lock();
        let inner = &mut *guard;
        #[cfg(feature = "faults")]
        if faults::active(Fault::RefillOnLeaderChange)
            && inner.applied.log_id.is_some_and(|last| last.leader_id != entry.log_id.leader_id)
        {
            faults::forget_buckets(&mut inner.rows).map_err(|error| fatal(error.to_string()))?;
        }
        let mut moved = Vec::new();
        let replies = match &batch {
            Some(batch) => {
                inner.expect_whole().map_err(|error| fatal(error.to_string()))?;
                inner.broken = true;
                let replies = inner.machine.apply(&mut inner.rows, batch).map_err(|error| fatal(error.to_string()))?;
                inner.broken = false;
                moved = inner.machine.take_moved();
                replies
            }
            None => Vec::new(),
        };
        inner.applied.log_id = Some(entry.log_id);
        if let Payload::Membership(members) = entry.payload {
            inner.applied.set_members(entry.log_id, members);
        }
        inner.rows.set_applied(inner.applied.encode());
        let full = inner.rows.dirty_rows() >= self.flush_rows || inner.rows.dirty_bytes() >= self.flush_bytes;
        drop(guard);
        if !moved.is_empty() {
            self.tell_moved(Moved::Rows(moved));
        }
        Ok((replies, IsFull(full)))
    }

    fn note_applied(&self, log_id: LogId) {
        self.applied_index.send_replace(log_id.index);
        self.applied_term
            .send_if_modified(|term| std::mem::replace(term, log_id.leader_id.term) != log_id.leader_id.term);
    }

    fn build_snapshot(&self) -> Result<RaftSnapshot, ConsensusError> {
        let store = self.lock().rows.store();
        let frozen = self.freeze(&store)?;
        let file = self.snapshots.write(&frozen)?;
        self.keep_snapshot(file.clone())?;
        self.raft_snapshot(file)
    }

    fn install(&self, meta: &SnapshotMeta, file: SnapshotFile) -> Result<(), ConsensusError> {
        let applied = match file.applied() {
            Some(applied) => decode_applied(self.shard, applied)?,
            None => Applied::default(),
        };
        if applied.snapshot_meta() != *meta {
            let what = format!("the snapshot {}", file.path().display());
            return Err(ConsensusError::Corrupt { what, detail: format!("it is not of {meta}") });
        }
        let install = self.lock().rows.begin_install();
        let loaded = install.load(&file)?;
        {
            let _writing = self.writing();
            let store = {
                let mut inner = self.lock();
                inner.expect_whole()?;
                inner.rows.flip(loaded)?;
                inner.machine = Machine::new(self.shard);
                inner.applied = applied;
                inner.rows.store()
            };
            store.sync()?;
        }
        if let Some(log_id) = meta.last_log_id {
            self.note_applied(log_id);
        }
        self.tell_moved(Moved::All);
        self.keep_snapshot(file)
    }

    /// Makes a snapshot the current one, unless there is a newer one by now.
    fn keep_snapshot(&self, file: SnapshotFile) -> Result<(), ConsensusError> {
        let meta = self.meta(&file)?;
        let mut current = self.current.lock().expect("no code panics while it holds the current snapshot");
        let older = match &*current {
            Some(current) => self.meta(current)?.last_log_id <= meta.last_log_id,
            None => true,
        };
        if older {
            *current = Some(file);
            self.snapshot_index.send_replace(meta.last_log_id.map(|id| id.index));
        }
        Ok(())
    }

    fn current_snapshot(&self) -> Result<Option<RaftSnapshot>, ConsensusError> {
        let current = self.current.lock().expect("no code panics while it holds the current snapshot").clone();
        current.map(|file| self.raft_snapshot(file)).transpose()
    }

    pub(crate) fn raft_snapshot(&self, file: SnapshotFile) -> Result<RaftSnapshot, ConsensusError> {
        Ok(Snapshot { meta: self.meta(&file)?, snapshot: file })
    }

    fn meta(&self, file: &SnapshotFile) -> Result<SnapshotMeta, ConsensusError> {
        let applied = file.applied().map(|applied| decode_applied(self.shard, applied)).transpose()?;
        Ok(applied.unwrap_or_default().snapshot_meta())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("a panic while applying ends the process")
    }
}

/// The overlay has reached its bound.
pub(crate) struct IsFull(bool);

fn decode_applied(shard: ShardId, applied: &[u8]) -> Result<Applied, ConsensusError> {
    Applied::decode(&bytes::Bytes::copy_from_slice(applied)).map_err(|error| ConsensusError::Corrupt {
        what: format!("the applied position of shard {shard}"),
        detail: error.to_string(),
    })
}

/// Runs what blocks for long aside, so that it holds up no other group.
async fn aside<T: Send + 'static>(
    state: &Arc<State>,
    work: impl FnOnce(&State) -> Result<T, ConsensusError> + Send + 'static,
) -> io::Result<T> {
    let state = Arc::clone(state);
    match crate::aside(move || work(&state)).await {
        Ok(done) => done.map_err(|error| io::Error::other(error.to_string())),
        Err(error) => Err(io::Error::other(format!("the work was cut short: {error}"))),
    }
}

/// What openraft drives.
pub(crate) struct StateMachine {
    state: Arc<State>,
    log: Log,
    on_fatal: Arc<dyn Fn(String) + Send + Sync>,
}

impl StateMachine {
    pub(crate) fn new(state: Arc<State>, log: Log, on_fatal: Arc<dyn Fn(String) + Send + Sync>) -> StateMachine {
        StateMachine { state, log, on_fatal }
    }
}

impl Drop for StateMachine {
    /// openraft doesn't notice when the task that applies panics, and would wait for it for ever.
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.on_fatal)(format!("a panic while applying entries of shard {}", self.state.shard));
        }
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembers)> {
        let inner = self.state.lock();
        Ok((inner.applied.log_id, inner.applied.members.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut last = None;
        while let Some(next) = entries.next().await {
            let (entry, port) = next?;
            last = Some(entry.log_id);
            self.log.flushed(entry.log_id.index).await?;
            let (replies, full) = self.state.apply(entry)?;
            if let Some(port) = port {
                port.send(replies);
            }
            if full.0 {
                aside(&self.state, |state| Ok(state.flush()?)).await?;
            }
            // A long catch-up must not starve the other groups' heartbeats of this thread.
            yield_now().await;
        }
        if let Some(last) = last {
            self.state.note_applied(last);
            self.state.dirty.notify_one();
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder { state: Arc::clone(&self.state) }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotFile) -> io::Result<()> {
        let meta = meta.clone();
        let failed = |error: StorageError| io::Error::other(error.to_string());
        // The pair may say more than the snapshot does; with the snapshot on disk it would make a restarted clock fast.
        self.log.forget_pair().await.map_err(failed)?;
        aside(&self.state, move |state| state.install(&meta, snapshot)).await?;
        let stamp = self.state.clock().map_err(|error| io::Error::other(error.to_string()))?;
        self.log.installed(stamp).await.map_err(failed)
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<RaftSnapshot>> {
        self.state.current_snapshot().map_err(|error| io::Error::other(error.to_string()))
    }
}

pub(crate) struct SnapshotBuilder {
    state: Arc<State>,
}

impl RaftSnapshotBuilder<Types> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<RaftSnapshot> {
        aside(&self.state, State::build_snapshot).await
    }
}
