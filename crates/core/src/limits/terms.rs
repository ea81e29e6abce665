//! Terms: what a policy comes to for one key, in numbers that the arithmetic can rely on.

use serde::{Deserialize, Serialize};

use super::{
    Algorithm, Rate,
    bounds::{BURST_MAX, TOKENS_PER_US_MAX, WINDOW_US_MAX},
};

/// What a policy says of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// Always allowed, never counted.
    Exempt,
    /// Never allowed. The bucket stays as it is, and doesn't refill.
    Deny,
    Limit(Terms),
}

/// `amount` tokens per `window_us`, at most `burst` at once.
///
/// Always within bounds, so that nothing computed from them overflows: 1 ≤ `burst` ≤ 10^12, 1 ≤ `window_us` ≤ 365 d,
/// `amount` ≤ 1000 · `window_us`. An `amount` of 0 is a bucket that doesn't refill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Parts")]
pub struct Terms {
    algorithm: Algorithm,
    amount: u64,
    window_us: u64,
    burst: u64,
}

/// [`Terms`] as they are read, not yet held to their bounds.
#[derive(Deserialize)]
struct Parts {
    algorithm: Algorithm,
    amount: u64,
    window_us: u64,
    burst: u64,
}

impl From<Parts> for Terms {
    fn from(parts: Parts) -> Terms {
        Terms::within_bounds(parts.algorithm, parts.amount, parts.window_us, parts.burst)
    }
}

impl Terms {
    /// A checked specification passes through unchanged.
    pub fn new(algorithm: Algorithm, rate: Rate, burst: u64) -> Terms {
        Terms::within_bounds(algorithm, rate.amount, rate.window_us(), burst)
    }

    fn within_bounds(algorithm: Algorithm, amount: u64, window_us: u64, burst: u64) -> Terms {
        let window_us = window_us.clamp(1, WINDOW_US_MAX);
        Terms {
            algorithm,
            amount: amount.min(TOKENS_PER_US_MAX * window_us),
            window_us,
            burst: burst.clamp(1, BURST_MAX),
        }
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Tokens that come back per window.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    pub fn window_us(&self) -> u64 {
        self.window_us
    }

    /// The capacity, or a sliding window's limit, in tokens.
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// What one of `nodes` nodes may admit on its own: 1/nodes of the rate, max(1, 1/nodes) of the burst. A sliding
    /// window keeps its length and has the limit max(1, limit/nodes).
    pub fn share(&self, nodes: u16) -> Terms {
        let nodes = u64::from(nodes.max(1));
        let burst = (self.burst / nodes).max(1);
        match self.algorithm {
            // The longest window times 2^16 still leaves a level 27 bits of room.
            Algorithm::TokenBucket => Terms { window_us: self.window_us * nodes, burst, ..*self },
            Algorithm::SlidingWindow => Terms { amount: burst, burst, ..*self },
        }
    }

    /// Time in which an empty bucket fills, rounded up; for a sliding window the window.
    pub fn fill_us(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket if self.amount == 0 => u64::MAX,
            Algorithm::TokenBucket => {
                let capacity = u128::from(self.burst) * u128::from(self.window_us);
                u64::try_from(capacity.div_ceil(u128::from(self.amount))).unwrap_or(u64::MAX)
            }
            Algorithm::SlidingWindow => self.window_us,
        }
    }

    /// Terms under which nothing comes back that doesn't under both: for the time in which one after the other was in
    /// force, when it is no longer known which.
    pub(super) fn worse_of(a: Terms, b: Terms) -> Terms {
        let burst = a.burst.min(b.burst);
        let a_is_slower =
            u128::from(a.amount) * u128::from(b.window_us) <= u128::from(b.amount) * u128::from(a.window_us);
        match (a.algorithm, b.algorithm) {
            _ if a.is_frozen() || b.is_frozen() => Terms { burst, ..a }.frozen(),
            (Algorithm::TokenBucket, Algorithm::TokenBucket) => Terms { burst, ..if a_is_slower { a } else { b } },
            (Algorithm::SlidingWindow, Algorithm::SlidingWindow) if a.window_us == b.window_us => {
                Terms { amount: burst, burst, ..a }
            }
            // When something comes back depends on the change itself, so nothing does.
            _ => Terms { burst, ..a }.frozen(),
        }
    }

    /// Terms of this capacity under which nothing comes back, neither by refill nor by age.
    pub(super) fn frozen(self) -> Terms {
        Terms { amount: 0, ..self }
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.amount == 0
    }
}
