//! A history over time: counts and latencies in equal steps, and who led which shard when.
//!
//! However long the run was, there are at most [`STEPS_MAX`] steps: what the page holds does not grow with the history.

use std::collections::{BTreeMap, HashSet};

use onceward_checkers::history::{History, Operation, Outcome, Reply};

/// As many as a screen has pixels to tell apart; ten minutes and what follows fit with a second each.
const STEPS_MAX: u64 = 720;
/// What people like to divide time by.
const STEPS_US: [u64; 10] =
    [250_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 15_000_000, 30_000_000, 60_000_000, 300_000_000];

pub struct Timeline {
    pub end_us: u64,
    pub step_us: u64,
    pub steps: Vec<Step>,
}

/// Calls are counted where they ended, but for the last reads, which are no load.
#[derive(Default, Clone)]
pub struct Step {
    /// Answered, and not denied.
    pub answered: u32,
    /// Answered by a limit that said no.
    pub denied: u32,
    pub refused: u32,
    pub unknown: u32,
    pub unexpected: u32,
    /// Deliveries of a message to an endpoint for the first time, and again.
    pub delivered: u32,
    pub repeated: u32,
    /// Of answered calls.
    pub latency: Option<Latency>,
}

#[derive(Clone, Copy)]
pub struct Latency {
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

/// What a call comes to for somebody who counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Answered,
    Denied,
    Refused,
    Unknown,
    Unexpected,
}

pub fn class(operation: &Operation) -> Class {
    match &operation.outcome {
        Outcome::Answered { reply: Reply::Checked { allowed: false, .. } } => Class::Denied,
        Outcome::Answered { .. } => Class::Answered,
        Outcome::Refused => Class::Refused,
        Outcome::Unknown => Class::Unknown,
        Outcome::Unexpected { .. } => Class::Unexpected,
    }
}

impl Timeline {
    pub fn of(history: &History) -> Timeline {
        let end_us = end_us(history).max(1);
        let step_us = step_us(end_us);
        let count = usize::try_from(end_us / step_us + 1).expect("steps are few");
        let mut steps = vec![Step::default(); count];
        let step_at = |at_us: u64| usize::try_from(at_us / step_us).expect("steps are few").min(count - 1);

        let mut latencies: Vec<Vec<u64>> = vec![Vec::new(); count];
        for operation in history.operations.iter().filter(|operation| !operation.last) {
            let at = step_at(operation.returned_us);
            let (step, class) = (&mut steps[at], class(operation));
            match class {
                Class::Answered => step.answered += 1,
                Class::Denied => step.denied += 1,
                Class::Refused => step.refused += 1,
                Class::Unknown => step.unknown += 1,
                Class::Unexpected => step.unexpected += 1,
            }
            if matches!(class, Class::Answered | Class::Denied) {
                latencies[at].push(operation.returned_us.saturating_sub(operation.invoked_us));
            }
        }
        for (step, latencies) in steps.iter_mut().zip(&mut latencies) {
            step.latency = Latency::of(latencies);
        }
        count_deliveries(history, &mut steps, step_at);
        Timeline { end_us, step_us, steps }
    }

    pub fn per_second(&self, count: u32) -> f64 {
        f64::from(count) * 1e6 / self.step_us as f64
    }

    /// Where in the run a time lies, 0 to 1.
    pub fn place(&self, at_us: u64) -> f64 {
        at_us.min(self.end_us) as f64 / self.end_us as f64
    }
}

fn count_deliveries(history: &History, steps: &mut [Step], step_at: impl Fn(u64) -> usize) {
    let mut deliveries: Vec<_> = history.deliveries.iter().collect();
    deliveries.sort_by_key(|delivery| delivery.at_us);
    let mut seen = HashSet::new();
    for delivery in deliveries {
        let step = &mut steps[step_at(delivery.at_us)];
        if seen.insert((&delivery.app, &delivery.endpoint, &delivery.message_id)) {
            step.delivered += 1;
        } else {
            step.repeated += 1;
        }
    }
}

fn step_us(end_us: u64) -> u64 {
    let longest = STEPS_US[STEPS_US.len() - 1];
    STEPS_US.into_iter().find(|step_us| end_us / step_us < STEPS_MAX).unwrap_or(end_us / STEPS_MAX + longest)
}

/// The last thing that happened.
fn end_us(history: &History) -> u64 {
    let ends = [
        history.operations.iter().map(|operation| operation.returned_us).max(),
        history.deliveries.iter().map(|delivery| delivery.at_us).max(),
        history.state_hashes.iter().map(|hash| hash.at_us).max(),
        history.nemeses.iter().map(|nemesis| nemesis.until_us).max(),
        history.leaders.iter().map(|leader| leader.at_us).max(),
        history.recoveries.iter().map(|recovery| recovery.from_us + recovery.took_us).max(),
    ];
    ends.into_iter().flatten().max().unwrap_or(0)
}

impl Latency {
    fn of(latencies_us: &mut [u64]) -> Option<Latency> {
        latencies_us.sort_unstable();
        let max_us = *latencies_us.last()?;
        Some(Latency { p50_us: quantile(latencies_us, 50), p99_us: quantile(latencies_us, 99), max_us })
    }
}

/// The least value that `percent` of `sorted` do not exceed; `sorted` is not empty.
pub fn quantile(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() * percent).div_ceil(100).saturating_sub(1)]
}

/// A shard's leader from one change to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reign {
    pub from_us: u64,
    pub until_us: u64,
    pub term: u64,
    pub node: Option<u16>,
}

/// Per shard, one after the other. Nobody is known to lead before the first observation.
pub fn reigns(history: &History, end_us: u64) -> BTreeMap<u16, Vec<Reign>> {
    let mut leaders: Vec<_> = history.leaders.iter().collect();
    leaders.sort_by_key(|leader| leader.at_us);
    let mut shards: BTreeMap<u16, Vec<Reign>> = BTreeMap::new();
    for leader in leaders {
        let shard = shards.entry(leader.shard).or_default();
        if let Some(last) = shard.last_mut() {
            last.until_us = leader.at_us;
            if last.node == leader.node && last.term == leader.term {
                last.until_us = end_us;
                continue;
            }
        }
        shard.push(Reign { from_us: leader.at_us, until_us: end_us, term: leader.term, node: leader.node });
    }
    shards
}
