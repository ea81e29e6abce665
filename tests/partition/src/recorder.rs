//! Where everything that happens in a run is written down, in the order in which it became known: to `history.jsonl` at once,
//! so that a run that is killed leaves what it saw, and to memory for the judges. Knows the one clock of the history.

use std::{
    fs::File,
    io::{self, BufWriter},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
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
    clock: Clock,
    log: Mutex<Log>,
}

/// Microseconds since the start of the run.
type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

struct Log {
    sink: Box<dyn io::Write + Send>,
    history: History,
    /// The first error of writing, told by [`Recorder::finish`]: a run goes on without its file.
    error: Option<io::Error>,
}

impl Recorder {
    /// Starts the clock of the history, which is written to `path`.
    pub fn create(path: &Path) -> io::Result<Recorder> {
        let (file, started) = (BufWriter::new(File::create(path)?), Instant::now());
        Ok(Recorder::over(move || micros(started.elapsed()), file))
    }

    /// A history on another clock, of microseconds since the start of the run, and written elsewhere.
    pub fn over(clock: impl Fn() -> u64 + Send + Sync + 'static, sink: impl io::Write + Send + 'static) -> Recorder {
        let log = Log { sink: Box::new(sink), history: History::default(), error: None };
        let inner = Inner { started: Instant::now(), clock: Box::new(clock), log: Mutex::new(log) };
        Recorder { inner: Arc::new(inner) }
    }

    pub fn now_us(&self) -> u64 {
        (self.inner.clock)()
    }

    /// An instant of real time on the clock of the history.
    pub fn at_us(&self, instant: Instant) -> u64 {
        micros(instant.saturating_duration_since(self.inner.started))
    }

    pub fn record(&self, record: Record) {
        let mut log = self.inner.log.lock();
        if let Err(error) = record.write(&mut log.sink) {
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
        log.sink.flush()?;
        match log.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut log.history)),
        }
    }
}

fn micros(since: Duration) -> u64 {
    u64::try_from(since.as_micros()).expect("no run lasts for centuries")
}
