//! The judges: histories of what clients, receivers and observers saw, and a checker for each promise.
//!
//! Pure: a history goes in, verdicts come out, whether it was recorded over HTTP or in a simulation. Knows nothing of the
//! product but its contract.
//!
//! Two rules hold for every checker. A correct history is never rejected: what is not known for certain, such as whether a call
//! without an answer took effect, is taken as it suits the history best. And what could not be judged is counted, not passed.

pub mod bounds;
pub mod history;
pub mod verdict;

mod delivered;
mod durable;
mod endpoints;
mod exercised;
mod limits;
mod linear;
mod messages;
mod owner;
mod reads;
mod record;
mod recovery;
mod refusals;
mod replicas;
mod sequences;
mod time;
mod together;

pub use exercised::exercised;
use verdict::Checker;

/// The checkers of all promises, in their order.
pub fn all() -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(limits::Limits),
        Box::new(owner::Owner),
        Box::new(durable::Durable),
        Box::new(together::Together),
        Box::new(delivered::Delivered),
        Box::new(sequences::Sequences),
        Box::new(reads::Reads),
        Box::new(replicas::Replicas),
        Box::new(refusals::Refusals),
        Box::new(recovery::Recoveries),
    ]
}
