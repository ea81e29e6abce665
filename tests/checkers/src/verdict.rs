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
}

/// A judge of one promise.
pub trait Checker {
    fn promise(&self) -> &'static str;
    fn check(&self, history: &History) -> Verdict;
}

impl Verdict {
    pub fn kept(&self) -> bool {
        self.violations.is_empty()
    }

    /// Whether there was anything to judge.
    pub fn tested(&self) -> bool {
        self.judged.iter().any(|(_, count)| *count > 0)
    }
}
