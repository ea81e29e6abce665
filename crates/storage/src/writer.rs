//! The node's one log writer thread: what all shards queue becomes one write, one sync, then everyone is told.
//!
//! In go write sets in the order of their submission; out come callbacks in that same order, once a set is durable.
//! There is no linger: whatever queues up while one round writes and syncs is the next round. In a simulation there is no
//! thread: [`Rounds`] are what it would do, step by step.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use onceward_core::faults::{self, Fault};

use crate::limits::ROUND_BYTES_MAX;
use crate::{StorageError, Store, WriteSet};

/// Called exactly once with the outcome; see [`LogWrite::done`].
type Done = Box<dyn FnOnce(Result<(), StorageError>) + Send>;
type OnFatal = Arc<dyn Fn(StorageError) + Send + Sync>;
type OnQueued = Box<dyn Fn() + Send + Sync>;

/// One submission to the log writer.
pub struct LogWrite {
    pub set: WriteSet,
    /// Whether `done` waits until the set is durable. Where false it may ride along unsynced.
    pub synced: bool,
    /// Called exactly once, in the order of submission. It runs on the writer thread, so it must be short and never
    /// block; only after the writer has stopped does it run on the submitting thread.
    pub done: Option<Done>,
}

/// Counters since the start of the writer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Times that the writer drained its queue.
    pub rounds: u64,
    /// Rounds that ended in a sync.
    pub syncs: u64,
    /// Submissions written.
    pub writes: u64,
    /// Bytes of their write sets.
    pub bytes: u64,
}

/// A handle on the writer; its clones reach the same thread.
#[derive(Clone)]
pub struct LogWriter {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Sender<Message>,
    counters: Arc<Counters>,
    /// Told of each submission where no thread waits for it.
    on_queued: Option<OnQueued>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Counters {
    rounds: AtomicU64,
    syncs: AtomicU64,
    writes: AtomicU64,
    bytes: AtomicU64,
}

enum Message {
    Write(Queued),
    Stop,
}

/// A submission on its way. Whoever drops it unanswered tells its owner that it wasn't written.
struct Queued {
    set: WriteSet,
    synced: bool,
    done: Option<Done>,
}

impl Queued {
    fn answer(mut self, outcome: Result<(), StorageError>) {
        if let Some(done) = self.done.take() {
            done(outcome);
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(StorageError::Stopped { reason: "it was stopped before this write".to_owned() }));
        }
    }
}

impl LogWriter {
    /// Starts the thread. `on_fatal` is called once, on that thread, with the first error of the store, after which
    /// nothing is written any more; the process is expected to end.
    pub fn start(store: Arc<dyn Store>, on_fatal: OnFatal) -> LogWriter {
        let (queue, worker) = Worker::new(store, on_fatal);
        let counters = Arc::clone(&worker.counters);
        let thread = thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || worker.run())
            .expect("a process that has just started can start a thread");
        LogWriter { shared: Arc::new(Shared { queue, counters, on_queued: None, thread: Mutex::new(Some(thread)) }) }
    }

    /// A writer without a thread, whose rounds take place when the other half of the pair says so. `on_queued` is called
    /// with each submission, on the thread that submits.
    pub fn stepwise(store: Arc<dyn Store>, on_fatal: OnFatal, on_queued: OnQueued) -> (LogWriter, Rounds) {
        let (queue, worker) = Worker::new(store, on_fatal);
        let counters = Arc::clone(&worker.counters);
        let shared = Shared { queue, counters, on_queued: Some(on_queued), thread: Mutex::default() };
        let rounds = Rounds { worker, round: Vec::new(), joined: WriteSet::new(), next: Next::Round };
        (LogWriter { shared: Arc::new(shared) }, rounds)
    }

    /// Queues a write and returns at once. The queue has no bound of its own: callers bound what they have in flight
    /// by the callbacks.
    pub fn submit(&self, write: LogWrite) {
        let queued = Queued { set: write.set, synced: write.synced, done: write.done };
        self.shared.queue(Message::Write(queued));
    }

    pub fn stats(&self) -> WriterStats {
        let counters = &self.shared.counters;
        WriterStats {
            rounds: counters.rounds.load(Ordering::Relaxed),
            syncs: counters.syncs.load(Ordering::Relaxed),
            writes: counters.writes.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
        }
    }

    /// Writes what is queued, syncs, and waits for the thread to end. What other handles submit afterwards is
    /// answered with [`StorageError::Stopped`]. Must not be called from a callback.
    pub fn stop(self) {
        self.shared.stop();
    }
}

impl Shared {
    fn queue(&self, message: Message) {
        // A writer that has stopped hands the message back, and dropping it answers.
        drop(self.queue.send(message));
        if let Some(on_queued) = &self.on_queued {
            on_queued();
        }
    }

    fn stop(&self) {
        self.queue(Message::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A callback that has the last handle cannot wait for its own thread.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // A panic of the thread was already reported through `on_fatal`.
            drop(thread.join());
        }
    }
}

/// Whoever gives up the last handle waits too: the thread holds the store, and a process that ended meanwhile would leave
/// while it is being closed.
impl Drop for Shared {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Worker {
    store: Arc<dyn Store>,
    submissions: Receiver<Message>,
    on_fatal: OnFatal,
    counters: Arc<Counters>,
    failed: Option<StorageError>,
}

/// The work of a writer without a thread. Dropped, it answers what is still queued as not written.
pub struct Rounds {
    worker: Worker,
    round: Vec<Queued>,
    joined: WriteSet,
    next: Next,
}

impl Rounds {
    /// Begins a round with everything that is queued: writes it, and says whether there was anything.
    /// [`Rounds::finish`] ends it.
    pub fn begin(&mut self) -> bool {
        let Ok(first) = self.worker.submissions.try_recv() else { return false };
        self.next = self.worker.gather(first, &mut self.round);
        self.worker.write(&self.round, &mut self.joined);
        true
    }

    /// Syncs what [`Rounds::begin`] wrote and tells everyone. False: the writer was stopped, this was the last round.
    pub fn finish(&mut self) -> bool {
        self.worker.finish(&mut self.round, &self.joined, self.next);
        self.next == Next::Round
    }
}

/// Whether the writer goes on after a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Round,
    Stop,
}

impl Worker {
    fn new(store: Arc<dyn Store>, on_fatal: OnFatal) -> (Sender<Message>, Worker) {
        let (queue, submissions) = channel();
        (queue, Worker { store, submissions, on_fatal, counters: Arc::default(), failed: None })
    }

    fn run(mut self) {
        let mut round = Vec::new();
        let mut joined = WriteSet::new();
        loop {
            // The end of all handles is a stop too.
            let first = self.submissions.recv().unwrap_or(Message::Stop);
            let next = self.gather(first, &mut round);
            self.write(&round, &mut joined);
            self.finish(&mut round, &joined, next);
            if next == Next::Stop {
                return;
            }
        }
    }

    /// Takes everything that is queued behind the first message, up to the bound of a round.
    fn gather(&mut self, first: Message, round: &mut Vec<Queued>) -> Next {
        let mut bytes = 0;
        let mut message = Ok(first);
        loop {
            match message {
                Ok(Message::Write(queued)) => {
                    bytes += queued.set.bytes();
                    round.push(queued);
                }
                Ok(Message::Stop) | Err(TryRecvError::Disconnected) => return Next::Stop,
                Err(TryRecvError::Empty) => return Next::Round,
            }
            if bytes >= ROUND_BYTES_MAX {
                return Next::Round;
            }
            message = self.submissions.try_recv();
        }
    }

    /// Writes a round as one set.
    fn write(&mut self, round: &[Queued], joined: &mut WriteSet) {
        joined.clear();
        for queued in round {
            joined.append(&queued.set);
        }
        if self.failed.is_none() && !joined.is_empty() {
            let written = self.store.write(joined);
            self.note(&written);
        }
    }

    /// Syncs a round that was written and answers it, in order.
    fn finish(&mut self, round: &mut Vec<Queued>, joined: &WriteSet, next: Next) {
        let outcome = match &self.failed {
            Some(error) => Err(error.clone()),
            None => self.sync(round, joined, next),
        };
        self.note(&outcome);
        for queued in round.drain(..) {
            queued.answer(outcome.clone());
        }
    }

    /// The first error is the last that happens: nothing is written any more.
    fn note(&mut self, outcome: &Result<(), StorageError>) {
        if let Err(error) = outcome
            && self.failed.is_none()
        {
            self.failed = Some(StorageError::Stopped { reason: error.to_string() });
            (self.on_fatal)(error.clone());
        }
    }

    fn sync(&self, round: &[Queued], joined: &WriteSet, next: Next) -> Result<(), StorageError> {
        let sync = next == Next::Stop || round.iter().any(|queued| queued.synced);
        if sync && !faults::active(Fault::SkipFsync) {
            self.store.sync()?;
        }
        self.counters.rounds.fetch_add(1, Ordering::Relaxed);
        self.counters.syncs.fetch_add(u64::from(sync), Ordering::Relaxed);
        self.counters.writes.fetch_add(round.len() as u64, Ordering::Relaxed);
        self.counters.bytes.fetch_add(joined.bytes() as u64, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if thread::panicking() && self.failed.is_none() {
            (self.on_fatal)(StorageError::Stopped { reason: "a callback panicked on the writer thread".to_owned() });
        }
    }
}
