//! What a checker says about a history.

use serde::{Deserialize, Serialize};

use crate::history::History;

/// What the suite holds of one promise, see `docs/partition-tests.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// `G1` … `G10`.
    pub promise: String,
    /// What was judged, and how many: `("buckets", 412)`. A promise of which nothing was judged is not kept but untested.
    pub judged: Vec<(String, u64)>,
    /// Each a sentence that names keys and times, so that it can be found in the history. Empty: kept.
    pub violations: Vec<String>,
    /// What was found on the way, for people: `("median of leader losses", "0.93 s")`.
    #[serde(default)]
    pub measured: Vec<(String, String)>,
}

/// Violations of one promise that are told in full; the rest is counted. One fault shows in thousands of keys.
const VIOLATIONS_TOLD_MAX: usize = 20;

/// A judge of one promise.
pub trait Checker {
    fn promise(&self) -> &'static str;
    fn check(&self, history: &History) -> Verdict;
}

impl Verdict {
    pub fn new(promise: &str) -> Verdict {
        Verdict { promise: promise.to_owned(), judged: Vec::new(), violations: Vec::new(), measured: Vec::new() }
    }

    pub(crate) fn judged(&mut self, what: &str, count: usize) {
        self.judged.push((what.to_owned(), count as u64));
    }

    pub(crate) fn measured(&mut self, what: impl Into<String>, value: impl Into<String>) {
        self.measured.push((what.into(), value.into()));
    }

    pub(crate) fn violated(&mut self, sentence: String) {
        self.violations.push(sentence);
    }

    /// Cuts what nobody would read to the end.
    pub(crate) fn told_briefly(mut self) -> Verdict {
        let more = self.violations.len().saturating_sub(VIOLATIONS_TOLD_MAX);
        if more > 0 {
            self.violations.truncate(VIOLATIONS_TOLD_MAX);
            self.violations.push(format!("and {more} more"));
        }
        self
    }

    pub fn kept(&self) -> bool {
        self.violations.is_empty()
    }

    /// Whether there was anything to judge.
    pub fn tested(&self) -> bool {
        self.judged.iter().any(|(_, count)| *count > 0)
    }
}
