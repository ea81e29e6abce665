//! The machine's clocks, wrong as they are told to be while the process runs. Only for tests.

use std::sync::atomic::{AtomicI64, Ordering};

use onceward_core::seams::Clock;
use parking_lot::Mutex;

use crate::sources::SystemClock;

/// What is wrong with a clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClockFaults {
    pub wall_offset_ms: i64,
    /// How much faster than it should the monotonic clock goes on, in millionths; at most [`FaultyClock::RATE_PPM_MAX`]
    /// either way.
    pub monotonic_rate_ppm: i64,
}

/// A clock with faults. The monotonic one is continuous: another rate holds from the moment at which it is set.
#[derive(Debug)]
pub struct FaultyClock<C = SystemClock> {
    true_clock: C,
    wall_offset_ms: AtomicI64,
    hand: Mutex<Hand>,
}

/// A reading of the monotonic clock, and how it goes on from there.
#[derive(Debug, Clone, Copy)]
struct Hand {
    true_us: u64,
    shown_us: u64,
    rate_ppm: i64,
}

const MILLION: u64 = 1_000_000;

impl Hand {
    fn at(self, true_us: u64) -> u64 {
        let pace = MILLION.saturating_add_signed(self.rate_ppm);
        let passed = u128::from(true_us.saturating_sub(self.true_us)) * u128::from(pace) / u128::from(MILLION);
        self.shown_us.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

impl<C: Clock> FaultyClock<C> {
    /// What drifts faster is broken: the guarantees assume a hundredth.
    pub const RATE_PPM_MAX: i64 = 10_000;

    pub fn new(true_clock: C) -> FaultyClock<C> {
        let true_us = true_clock.monotonic_us();
        let hand = Mutex::new(Hand { true_us, shown_us: true_us, rate_ppm: 0 });
        FaultyClock { true_clock, wall_offset_ms: AtomicI64::new(0), hand }
    }

    pub fn set(&self, faults: ClockFaults) {
        self.wall_offset_ms.store(faults.wall_offset_ms, Ordering::Relaxed);
        let rate_ppm = faults.monotonic_rate_ppm.clamp(-Self::RATE_PPM_MAX, Self::RATE_PPM_MAX);
        let mut hand = self.hand.lock();
        // Read under the lock: a reading that is older than another one would let the clock go back.
        let true_us = self.true_clock.monotonic_us();
        *hand = Hand { true_us, shown_us: hand.at(true_us), rate_ppm };
    }
}

impl<C: Clock> Clock for FaultyClock<C> {
    fn monotonic_us(&self) -> u64 {
        let hand = self.hand.lock();
        hand.at(self.true_clock.monotonic_us())
    }

    fn wall_ms(&self) -> u64 {
        self.true_clock.wall_ms().saturating_add_signed(self.wall_offset_ms.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicU64};

    use super::*;

    #[derive(Clone, Default)]
    struct Hands(Arc<AtomicU64>);

    impl Clock for Hands {
        fn monotonic_us(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        fn wall_ms(&self) -> u64 {
            5_000
        }
    }

    #[test]
    fn a_rate_holds_from_when_it_is_set_and_the_clock_never_goes_back() {
        let hands = Hands::default();
        let clock = FaultyClock::new(hands.clone());
        let after = |true_us: u64, monotonic_rate_ppm: i64| {
            hands.0.store(true_us, Ordering::Relaxed);
            clock.set(ClockFaults { monotonic_rate_ppm, ..ClockFaults::default() });
            clock.monotonic_us()
        };
        assert_eq!(after(1_000_000, 10_000), 1_000_000);
        assert_eq!(after(2_000_000, -10_000), 2_010_000);
        assert_eq!(after(3_000_000, -99_999), 3_000_000, "no rate is set that is more than the greatest");
        assert_eq!(after(4_000_000, 0), 3_990_000);
        assert_eq!(after(5_000_000, 0), 4_990_000);
    }

    #[test]
    fn a_wall_clock_is_off_by_what_it_is_told_and_never_before_its_epoch() {
        let clock = FaultyClock::new(Hands::default());
        let off = |wall_offset_ms| {
            clock.set(ClockFaults { wall_offset_ms, ..ClockFaults::default() });
            clock.wall_ms()
        };
        assert_eq!([off(3_600_000), off(-1_000), off(-3_600_000)], [3_605_000, 4_000, 0]);
    }
}
