//! The judges: histories of what clients, receivers and observers saw, and a checker for each promise.
//!
//! Pure: a history goes in, verdicts come out, whether it was recorded over HTTP or in a simulation. Knows nothing of the
//! product but its contract.
//!
//! Two rules hold for every checker. A correct history is never rejected: what is not known for certain, such as whether a call
//! without an answer took effect, is taken as it suits the history best. And what could not be judged is counted, not passed.

pub mod history;
pub mod verdict;

mod bounds;
mod limits;
mod linear;
mod owner;
mod record;
mod recovery;
mod replicas;
mod time;
mod together;

use verdict::Checker;

/// A checker for each promise that has one.
pub fn all() -> Vec<Box<dyn Checker>> {
    vec![Box::new(limits::Limits), Box::new(owner::Owner), Box::new(together::Together), Box::new(replicas::Replicas)]
}
