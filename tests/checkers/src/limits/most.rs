//! The most that any interval admitted beyond what it may, over all intervals at once.
//!
//! An interval [a, b] holds for certain what was asked for and answered within it. Walking b over the ends of answers, a
//! tree keeps for every a that matters how much [a, b] holds, less what it may at least hold: each answer and each gift
//! changes a prefix of the a's. So a history of n answers costs n log n.

use std::fmt;

use super::terms::{Policy, TOKEN};
use crate::{bounds::at_least_us, time::seconds};

/// A cost that certainly was admitted, at some time within.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admission {
    pub(super) from_us: u64,
    pub(super) until_us: u64,
    pub(super) cost: u64,
}

/// Tokens that may have come back to the bucket, at some time within.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gift {
    pub(super) from_us: u64,
    pub(super) until_us: u64,
    pub(super) amount: u64,
}

/// An interval that admitted too much.
#[derive(Debug)]
pub(super) struct Excess {
    from_us: u64,
    until_us: u64,
    admitted: u64,
    allowed: i128,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, until) = (seconds(self.from_us), seconds(self.until_us));
        let allowed = self.allowed as f64 / TOKEN as f64;
        write!(f, "admitted {} between {from} and {until}, where at most {allowed:.3} may be", self.admitted)
    }
}

/// The interval that admitted most beyond what it may, if one did.
pub(super) fn excess(policy: &Policy, mut admissions: Vec<Admission>, mut gifts: Vec<Gift>) -> Option<Excess> {
    admissions.sort_unstable_by_key(|admission| admission.until_us);
    gifts.sort_unstable_by_key(|gift| gift.from_us);
    let mut begins: Vec<u64> = admissions.iter().map(|admission| admission.from_us).collect();
    begins.sort_unstable();
    begins.dedup();
    let empty = |from_us: u64| policy.refilled(from_us) - i128::from(policy.capacity(from_us)) * TOKEN;
    let mut held = Tree::new(begins.iter().map(|from_us| empty(*from_us)));
    let (mut given, mut worst) = (0, None);
    for (place, admission) in admissions.iter().enumerate() {
        let until_us = admission.until_us;
        while let Some(gift) = gifts.get(given).filter(|gift| gift.from_us <= until_us) {
            held.add(begins.partition_point(|from_us| *from_us <= gift.until_us), -i128::from(gift.amount) * TOKEN);
            given += 1;
        }
        let since = begins.partition_point(|from_us| *from_us <= admission.from_us);
        held.add(since, i128::from(admission.cost) * TOKEN);
        if admissions.get(place + 1).is_some_and(|next| next.until_us == until_us) {
            continue;
        }
        let first_us = policy.window_us().map_or(0, |window_us| (until_us + 2).saturating_sub(at_least_us(window_us)));
        let first = begins.partition_point(|from_us| *from_us < first_us);
        let end = begins.partition_point(|from_us| *from_us <= until_us);
        let Some((most, at)) = held.most(first, end) else { continue };
        // The microsecond of an answer is cut: it came before the next one.
        let over = most - policy.refilled(until_us + 1) - policy.rounding();
        if over > 0 && worst.is_none_or(|(worst, _, _)| over > worst) {
            worst = Some((over, begins[at], until_us));
        }
    }
    let (over, from_us, until_us) = worst?;
    let within = |admission: &&Admission| admission.from_us >= from_us && admission.until_us <= until_us;
    let admitted = admissions.iter().filter(within).map(|admission| admission.cost).sum();
    Some(Excess { from_us, until_us, admitted, allowed: i128::from(admitted) * TOKEN - over })
}

/// Numbers in a row: adds to all up to a place, finds the greatest between two.
struct Tree {
    /// Of each inner place and leaf: the greatest below it and where, without what was added above.
    most: Vec<(i128, usize)>,
    added: Vec<i128>,
    leaves: usize,
}

/// Less than any sum, and far from overflow.
const LEAST: i128 = i128::MIN / 4;

impl Tree {
    fn new(values: impl ExactSizeIterator<Item = i128>) -> Tree {
        let leaves = values.len().next_power_of_two();
        let mut most = vec![(LEAST, 0); 2 * leaves];
        values.enumerate().for_each(|(place, value)| most[leaves + place] = (value, place));
        for node in (1..leaves).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        Tree { most, added: vec![0; 2 * leaves], leaves }
    }

    /// Adds to all places before `end`.
    fn add(&mut self, end: usize, amount: i128) {
        self.add_below(1, 0, self.leaves, end, amount);
    }

    fn add_below(&mut self, node: usize, from: usize, size: usize, end: usize, amount: i128) {
        if end <= from {
            return;
        }
        if end >= from + size {
            self.most[node].0 += amount;
            self.added[node] += amount;
            return;
        }
        let half = size / 2;
        self.add_below(2 * node, from, half, end, amount);
        self.add_below(2 * node + 1, from + half, half, end, amount);
        let (most, at) = self.most[2 * node].max(self.most[2 * node + 1]);
        self.most[node] = (most + self.added[node], at);
    }

    /// The greatest of the places from `first` to before `end`, and where it stands.
    fn most(&self, first: usize, end: usize) -> Option<(i128, usize)> {
        self.most_below(1, 0, self.leaves, first, end)
    }

    fn most_below(&self, node: usize, from: usize, size: usize, first: usize, end: usize) -> Option<(i128, usize)> {
        if end <= from || first >= from + size {
            return None;
        }
        if first <= from && from + size <= end {
            return Some(self.most[node]);
        }
        let half = size / 2;
        let left = self.most_below(2 * node, from, half, first, end);
        let right = self.most_below(2 * node + 1, from + half, half, first, end);
        left.max(right).map(|(most, at)| (most + self.added[node], at))
    }
}
