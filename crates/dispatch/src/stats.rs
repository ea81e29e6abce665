//! Counters of a node's dispatch, for metrics.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{failure::Failure, sender::Answered};

/// Upper ends, in milliseconds, of the ranges in which the lag of first attempts is counted; one more range is without
/// an end.
pub const LAG_BOUNDS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 30_000];

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(crate) fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Stats {
    attempts: [Counter; Class::COUNT],
    pub reports: Counter,
    pub outcomes_recorded: Counter,
    pub crashed: Counter,
    pub in_flight: Counter,
    pub lanes: Counter,
    lag: [Counter; LAG_BOUNDS_MS.len() + 1],
    lag_sum_us: Counter,
}

/// What came of an attempt, as metrics tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Other,
    Success,
    Redirect,
    ClientError,
    ServerError,
    TimedOut,
    Failed,
    Guarded,
}

impl Class {
    const COUNT: usize = Class::Guarded as usize + 1;

    fn of(answered: &Answered) -> Class {
        match (&answered.failure, answered.status) {
            (Some(Failure::Refused(_) | Failure::HttpsOnly), _) => Class::Guarded,
            (Some(Failure::NoAnswer(_) | Failure::Incomplete(_)), _) => Class::TimedOut,
            (Some(_), _) => Class::Failed,
            (None, 200..300) => Class::Success,
            (None, 300..400) => Class::Redirect,
            (None, 400..500) => Class::ClientError,
            (None, 500..600) => Class::ServerError,
            (None, _) => Class::Other,
        }
    }
}

/// A reading of all counters. Attempts are counted by what came of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DispatchStats {
    pub attempts_2xx: u64,
    pub attempts_3xx: u64,
    pub attempts_4xx: u64,
    pub attempts_5xx: u64,
    /// Answered with a status that isn't any of those.
    pub attempts_other: u64,
    pub attempts_timed_out: u64,
    /// No connection, or none that lasted.
    pub attempts_failed: u64,
    /// The guard let no address through, or not this scheme.
    pub attempts_refused: u64,
    /// Attempts whose task ended without saying how: a bug each.
    pub attempts_crashed: u64,
    /// Commands with outcomes that were applied, and the outcomes in them.
    pub reports: u64,
    pub outcomes_recorded: u64,
    /// Attempts in flight now, and endpoints that had something to do within the last minute or will have.
    pub in_flight: u64,
    pub lanes: u64,
    /// From a message's publication to the beginning of its first attempt: how many in each range of
    /// [`LAG_BOUNDS_MS`], and the sum.
    pub lag_counts: [u64; LAG_BOUNDS_MS.len() + 1],
    pub lag_sum_us: u64,
}

impl Stats {
    pub(crate) fn note_attempt(&self, answered: &Answered) {
        self.attempts[Class::of(answered) as usize].add(1);
    }

    pub(crate) fn note_lag(&self, lag: Duration) {
        let lag_ms = lag.as_millis() as u64;
        let range = LAG_BOUNDS_MS.iter().position(|bound| lag_ms < *bound).unwrap_or(LAG_BOUNDS_MS.len());
        self.lag[range].add(1);
        self.lag_sum_us.add(lag.as_micros() as u64);
    }

    pub(crate) fn read(&self) -> DispatchStats {
        let attempts = |class: Class| self.attempts[class as usize].get();
        DispatchStats {
            attempts_2xx: attempts(Class::Success),
            attempts_3xx: attempts(Class::Redirect),
            attempts_4xx: attempts(Class::ClientError),
            attempts_5xx: attempts(Class::ServerError),
            attempts_other: attempts(Class::Other),
            attempts_timed_out: attempts(Class::TimedOut),
            attempts_failed: attempts(Class::Failed),
            attempts_refused: attempts(Class::Guarded),
            attempts_crashed: self.crashed.get(),
            reports: self.reports.get(),
            outcomes_recorded: self.outcomes_recorded.get(),
            in_flight: self.in_flight.get(),
            lanes: self.lanes.get(),
            lag_counts: std::array::from_fn(|range| self.lag[range].get()),
            lag_sum_us: self.lag_sum_us.get(),
        }
    }
}
