//! What a policy may have allowed at any time: the terms that were possibly in force, and what changing them gave.

use std::collections::BTreeMap;

use super::most::Gift;
use crate::{
    bounds::DRIFT_PERCENT,
    history::{Algorithm, Call, Operation, Reply, Terms},
};

/// Amounts in millionths of a token, so that sums over rates are exact enough for every rate and length of a run.
pub(super) const TOKEN: i128 = 1_000_000;

/// A change of a policy that may have taken effect, and the time in which it may have been in force.
struct Change {
    /// None: deleted.
    terms: Option<Terms>,
    from_us: u64,
    /// Until when it took effect on every shard; open where that is not known.
    effective_us: u64,
    /// Until when the system shard had it, so that a later change has a greater revision.
    stored_us: u64,
    superseded_us: u64,
}

/// The history of a policy.
pub(super) struct Policy {
    changes: Vec<Change>,
    /// From this time to the next piece's: sorted, the first begins at 0.
    pieces: Vec<Piece>,
    gifts: Vec<Gift>,
}

struct Piece {
    from_us: u64,
    capacity: u64,
    /// Of the fastest terms possible, drift included: millionths of a token in 10^6 µs.
    rate: i128,
    /// Refilled from 0 to `from_us`.
    refilled: i128,
}

pub(super) fn policies(operations: &[Operation]) -> BTreeMap<&str, Policy> {
    let mut changes: BTreeMap<&str, Vec<Change>> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| operation.may_have_applied()) {
        let (policy, terms) = match (&operation.call, operation.reply()) {
            (Call::PutPolicy { policy, terms }, None | Some(Reply::Policy { .. })) => (policy, Some(terms.clone())),
            (Call::DeletePolicy { policy }, None | Some(Reply::Deleted)) => (policy, None),
            _ => continue,
        };
        let stored_us = operation.effective_until_us();
        let pending = matches!(operation.reply(), Some(Reply::Policy { pending: true, .. }));
        changes.entry(policy).or_default().push(Change {
            terms,
            from_us: operation.invoked_us,
            effective_us: if pending { u64::MAX } else { stored_us },
            stored_us,
            superseded_us: u64::MAX,
        });
    }
    changes.into_iter().map(|(policy, changes)| (policy, Policy::new(changes))).collect()
}

impl Policy {
    fn new(mut changes: Vec<Change>) -> Policy {
        changes.sort_by_key(|change| change.from_us);
        for at in 0..changes.len() {
            let after = changes[at..].iter().filter(|later| later.from_us > changes[at].stored_us);
            let superseded_us = after.map(|later| later.effective_us).min().unwrap_or(u64::MAX);
            changes[at].superseded_us = superseded_us;
            // Every shard has the later one by then, and with it this one, or never.
            changes[at].effective_us = changes[at].effective_us.min(superseded_us);
        }
        let mut policy = Policy { changes, pieces: Vec::new(), gifts: Vec::new() };
        policy.cut_into_pieces();
        policy.gifts = policy.changes.iter().filter_map(|change| policy.gift(change)).collect();
        policy
    }

    fn cut_into_pieces(&mut self) {
        let mut cuts: Vec<u64> = vec![0];
        for change in &self.changes {
            cuts.extend([change.from_us, change.superseded_us.saturating_add(1)]);
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut refilled = 0;
        for (place, &from_us) in cuts.iter().enumerate() {
            let in_force: Vec<&Change> = self.in_force(from_us, from_us).collect();
            let terms = || in_force.iter().filter_map(|change| change.terms.as_ref());
            let rate = terms().map(Terms::rate).max().unwrap_or(0);
            // Under a policy that is still to come every bucket is full.
            let capacity = match in_force.is_empty() {
                true => self.terms().map(Terms::capacity).max().unwrap_or(0),
                false => terms().map(Terms::capacity).max().unwrap_or(0),
            };
            self.pieces.push(Piece { from_us, capacity, rate, refilled });
            if let Some(next_us) = cuts.get(place + 1).filter(|next_us| **next_us != u64::MAX) {
                refilled += refill(rate, next_us - from_us);
            }
        }
    }

    fn in_force(&self, from_us: u64, until_us: u64) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.from_us <= until_us && change.superseded_us >= from_us)
    }

    fn piece(&self, at_us: u64) -> &Piece {
        &self.pieces[self.pieces.partition_point(|piece| piece.from_us <= at_us) - 1]
    }

    /// The greatest capacity possible at this time, in tokens.
    pub(super) fn capacity(&self, at_us: u64) -> u64 {
        self.piece(at_us).capacity
    }

    pub(super) fn capacity_max(&self, from_us: u64, until_us: u64) -> u64 {
        let terms = self.in_force(from_us, until_us).filter_map(|change| change.terms.as_ref());
        terms.map(Terms::capacity).max().unwrap_or(0)
    }

    /// At most refilled from 0 to then, in millionths.
    pub(super) fn refilled(&self, at_us: u64) -> i128 {
        let piece = self.piece(at_us);
        piece.refilled + refill(piece.rate, at_us - piece.from_us)
    }

    /// What rounding may have taken from a sum over an interval.
    pub(super) fn rounding(&self) -> i128 {
        self.pieces.len() as i128 + 2
    }

    /// The window of a sliding window, the shortest of all terms; none of a token bucket.
    pub(super) fn window_us(&self) -> Option<u64> {
        self.terms().filter(|terms| terms.algorithm == Algorithm::SlidingWindow).map(|terms| terms.window_us).min()
    }

    /// Buckets that change their kind keep no promise that could be told in one number; nothing asks for that.
    pub(super) fn has_one_algorithm(&self) -> bool {
        let mut terms = self.terms();
        terms.next().is_some_and(|first| terms.all(|other| other.algorithm == first.algorithm))
    }

    /// The terms that every change gave alike, in force from the first on.
    pub(super) fn only_terms(&self) -> Option<&Terms> {
        let first = self.changes.first()?.terms.as_ref()?;
        self.changes.iter().all(|change| change.terms.as_ref() == Some(first)).then_some(first)
    }

    fn terms(&self) -> impl Iterator<Item = &Terms> {
        self.changes.iter().filter_map(|change| change.terms.as_ref())
    }

    /// What changes of the policy may have given to a bucket.
    pub(super) fn gifts(&self) -> impl Iterator<Item = Gift> {
        self.gifts.iter().copied()
    }

    /// A full bucket is full under the new terms, too, and one of a policy that was deleted and made anew is full.
    fn gift(&self, change: &Change) -> Option<Gift> {
        let terms = change.terms.as_ref()?;
        let before = self.in_force(change.from_us, change.effective_us).filter(|before| !std::ptr::eq(*before, change));
        let kept =
            |before: &Change| before.terms.as_ref().filter(|before| before.is_alike(terms)).map_or(0, Terms::capacity);
        // Before the first of all every bucket is full.
        let amount = terms.capacity().saturating_sub(before.map(kept).min()?);
        (amount > 0).then_some(Gift { from_us: change.from_us, until_us: change.effective_us, amount })
    }
}

impl Terms {
    fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket => self.burst,
            Algorithm::SlidingWindow => self.amount,
        }
    }

    /// Millionths of a token in 10^6 µs, by the fastest clock. A sliding window refills by its window alone.
    fn rate(&self) -> i128 {
        match self.algorithm {
            Algorithm::SlidingWindow => 0,
            Algorithm::TokenBucket => {
                let fastest = i128::from(self.amount) * TOKEN * 1_000_000 * i128::from(100 + DRIFT_PERCENT);
                fastest / (100 * i128::from(self.window_us.max(1))) + 1
            }
        }
    }

    /// Whether what a bucket counted under the one set of terms counts under the other.
    fn is_alike(&self, other: &Terms) -> bool {
        self.algorithm == other.algorithm
            && (self.algorithm == Algorithm::TokenBucket || self.window_us == other.window_us)
    }
}

fn refill(rate: i128, us: u64) -> i128 {
    rate * i128::from(us) / 1_000_000 + 1
}
