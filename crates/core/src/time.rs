//! The shard clock: a duration since the shard began, never a wall time.
//!
//! It may run slow, never fast: running slow costs a little availability (refill and expiry come later),
//! running fast would break promises. This module is arithmetic; monotonic readings come in as arguments.

use serde::{Deserialize, Serialize};

/// Microseconds of a shard's life. An entry's stamp and every due time in a shard's rows are of this type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardTime(pub u64);

impl ShardTime {
    pub const ZERO: ShardTime = ShardTime(0);

    /// This instant `us` microseconds later; stops at the end of time instead of wrapping.
    pub const fn plus_us(self, us: u64) -> ShardTime {
        ShardTime(self.0.saturating_add(us))
    }

    /// Microseconds from `earlier` to this instant, 0 when it isn't earlier.
    pub const fn since_us(self, earlier: ShardTime) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where a replica's idea of the shard clock comes from: a stamp, and the monotonic reading when it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Anchor {
    stamp: ShardTime,
    monotonic_us: u64,
}

/// One replica's shard clock.
///
/// It *lives* once it has received an entry, or been given an estimate, since the process started; before that
/// nobody may stamp by it.
#[derive(Debug, Clone, Default)]
pub struct ShardClock {
    anchor: Option<Anchor>,
}

impl ShardClock {
    /// Takes the stamp of an entry received from another leader: from here on the clock is that stamp plus the
    /// monotonic time since now. A leader doesn't feed its own entries back, so that no rounding adds up.
    pub fn observe(&mut self, stamp: ShardTime, monotonic_us: u64) {
        self.anchor = Some(Anchor { stamp, monotonic_us });
    }

    /// The time now, or `None` while the clock doesn't live.
    pub fn now(&self, monotonic_us: u64) -> Option<ShardTime> {
        let anchor = self.anchor?;
        Some(anchor.stamp.plus_us(monotonic_us.saturating_sub(anchor.monotonic_us)))
    }
}

/// A pair stored now and then, for the one case in which a wall clock is asked: a process that restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockPair {
    pub stamp: ShardTime,
    pub wall_ms: u64,
}

impl ClockPair {
    /// What the clock may have come to by `wall_now_ms`, at least `last_stamp`; a wall clock set back adds nothing.
    pub fn guess(self, wall_now_ms: u64, last_stamp: ShardTime) -> ShardTime {
        let passed_us = wall_now_ms.saturating_sub(self.wall_ms).saturating_mul(1000);
        self.stamp.plus_us(passed_us).max(last_stamp)
    }
}
