//! Ways to fail on purpose, for tests and demonstrations: they exist only with `--demo`.

use std::{str::FromStr, time::Duration};

use axum::http::HeaderMap;
use clap::ValueEnum;

const PAUSE_HEADER: &str = "x-demo-pause";
/// Longer than any lease that a demonstration uses.
const PAUSE_MS_MAX: u64 = 60_000;

/// Where an attempt can be slow, or die.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// It has the key and has done nothing with it
    #[value(name = "after-begin")]
    Begun,
    /// The payment is written and not committed
    #[value(name = "after-insert")]
    Inserted,
    /// The payment is committed, and Onceward does not know
    #[value(name = "after-commit")]
    Committed,
    /// Onceward has the answer, and the client does not
    #[value(name = "after-complete")]
    Completed,
}

/// What goes wrong with every attempt of this process.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    pub crash_at: Option<Step>,
    pub work: Duration,
}

/// What goes wrong with one attempt.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    crash_at: Option<Step>,
    pauses: Vec<(Step, Duration)>,
}

impl Faults {
    /// Nothing, unless the process was told to rehearse.
    pub fn of(rehearsal: Option<&Rehearsal>, headers: &HeaderMap) -> Result<Faults, String> {
        let Some(Rehearsal { crash_at, work }) = rehearsal else { return Ok(Faults::default()) };
        let mut pauses = vec![(Step::Begun, *work)];
        if let Some(value) = headers.get(PAUSE_HEADER) {
            pauses.push(parse_pause(value.to_str().unwrap_or_default())?);
        }
        Ok(Faults { crash_at: *crash_at, pauses })
    }

    /// An attempt has got there.
    pub async fn reached(&self, step: Step) {
        tokio::time::sleep(self.pause_or_crash(step)).await;
    }

    /// As [`Faults::reached`], on a thread that may block.
    pub fn reached_blocking(&self, step: Step) {
        std::thread::sleep(self.pause_or_crash(step));
    }

    fn pause_or_crash(&self, step: Step) -> Duration {
        if self.crash_at == Some(step) {
            tracing::warn!(?step, "aborting, as I was told to");
            std::process::abort();
        }
        self.pauses.iter().filter(|(at, _)| *at == step).map(|(_, pause)| *pause).sum()
    }
}

fn parse_pause(text: &str) -> Result<(Step, Duration), String> {
    let wrong = || format!("{PAUSE_HEADER}: say STEP=MS, at most {PAUSE_MS_MAX}, not {text:?}");
    let (step, wait_ms) = text.split_once('=').ok_or_else(wrong)?;
    let step = Step::from_str(step, false).map_err(|_| wrong())?;
    let wait_ms = u64::from_str(wait_ms).ok().filter(|wait_ms| *wait_ms <= PAUSE_MS_MAX).ok_or_else(wrong)?;
    Ok((step, Duration::from_millis(wait_ms)))
}
