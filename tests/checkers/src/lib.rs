//! The judges: histories of what clients, receivers and observers saw, and a checker for each promise.
//!
//! Pure: a history goes in, verdicts come out, whether it was recorded over HTTP or in a simulation. Knows nothing of the
//! product but its contract.

pub mod history;
pub mod verdict;
