//! What a run tells while it goes on: on a terminal one line that is written anew, elsewhere a line for every event.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    sync::Arc,
    time::{Duration, Instant},
};

use onceward_checkers::history::Outcome;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::recorder::Recorder;

const TICK: Duration = Duration::from_millis(500);

/// Clones tell on the same line.
#[derive(Clone)]
pub struct Progress {
    inner: Arc<Inner>,
}

struct Inner {
    started: Instant,
    terminal: bool,
    /// What is going on.
    doing: Mutex<String>,
}

impl Progress {
    pub fn new() -> Progress {
        let inner = Inner { started: Instant::now(), terminal: stderr().is_terminal(), doing: Mutex::default() };
        Progress { inner: Arc::new(inner) }
    }

    /// Says what goes on from now on.
    pub fn say(&self, doing: &str) {
        doing.clone_into(&mut self.inner.doing.lock());
        if !self.inner.terminal {
            eprintln!("{}  {doing}", self.elapsed());
        }
    }

    /// Keeps the line of a terminal up to date until stopped.
    pub async fn show(self, recorder: Recorder, stop: CancellationToken) {
        if !self.inner.terminal {
            return;
        }
        let mut counts = Counts::default();
        loop {
            recorder.with(|history| {
                for operation in &history.operations[counts.seen..] {
                    counts.add(&operation.outcome);
                }
            });
            let doing = self.inner.doing.lock().clone();
            let Counts { seen, refused, unknown } = counts;
            // "Erase in line": what was longer before is gone.
            eprint!("\r\x1b[K{}  {seen} calls, {refused} refused, {unknown} unknown  {doing}", self.elapsed());
            // Nobody is told of an error of the terminal by way of the terminal.
            drop(stderr().flush());
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = stop.cancelled() => break eprintln!("\r\x1b[K"),
            }
        }
    }

    fn elapsed(&self) -> String {
        let seconds = self.inner.started.elapsed().as_secs();
        format!("{:>3}:{:02}", seconds / 60, seconds % 60)
    }
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

#[derive(Default)]
struct Counts {
    seen: usize,
    refused: usize,
    unknown: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        self.seen += 1;
        match outcome {
            Outcome::Refused => self.refused += 1,
            Outcome::Unknown => self.unknown += 1,
            Outcome::Answered { .. } | Outcome::Unexpected { .. } => {}
        }
    }
}
