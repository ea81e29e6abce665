//! Where everything that happens in a run is written down, in the order in which it became known: to `history.jsonl` at once,
//! so that a run that is killed leaves what it saw, and to memory for the judges. Knows the one clock of the history.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
    sync::Arc,
    time::Instant,
};

use onceward_checkers::history::{History, Record};
use parking_lot::Mutex;

/// Cheap to clone; all clones write the same history.
#[derive(Clone)]
pub struct Recorder {
    inner: Arc<Inner>,
}

struct Inner {
    started: Instant,
    log: Mutex<Log>,
}

struct Log {
    file: BufWriter<File>,
    history: History,
    /// The first error of writing, told by [`Recorder::finish`]: a run goes on without its file.
    error: Option<io::Error>,
}

impl Recorder {
    /// Starts the clock of the history, which is written to `path`.
    pub fn create(path: &Path) -> io::Result<Recorder> {
        let log = Log { file: BufWriter::new(File::create(path)?), history: History::default(), error: None };
        Ok(Recorder { inner: Arc::new(Inner { started: Instant::now(), log: Mutex::new(log) }) })
    }

    /// Microseconds since the start of the run.
    pub fn now_us(&self) -> u64 {
        self.at_us(Instant::now())
    }

    /// `instant` on the clock of the history.
    pub fn at_us(&self, instant: Instant) -> u64 {
        let elapsed = instant.saturating_duration_since(self.inner.started);
        u64::try_from(elapsed.as_micros()).expect("no run lasts for centuries")
    }

    pub fn record(&self, record: Record) {
        let mut line = serde_json::to_vec(&record).expect("records are plain data");
        line.push(b'\n');
        let mut log = self.inner.log.lock();
        if let Err(error) = log.file.write_all(&line) {
            log.error.get_or_insert(error);
        }
        log.history.push(record);
    }

    /// What is recorded so far.
    pub fn with<T>(&self, look: impl FnOnce(&History) -> T) -> T {
        look(&self.inner.log.lock().history)
    }

    /// Writes out what is buffered, and hands over the whole history.
    pub fn finish(&self) -> io::Result<History> {
        let mut log = self.inner.log.lock();
        log.file.flush()?;
        match log.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut log.history)),
        }
    }
}
