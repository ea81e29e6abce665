//! The real clock and the real randomness behind the seams of `core`.

use std::time::{SystemTime, UNIX_EPOCH};

use onceward_core::seams::{Clock, Entropy};
use rustix::time::{ClockId, clock_gettime};

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn monotonic_us(&self) -> u64 {
        // CLOCK_BOOTTIME counts time in suspend, which `Instant` doesn't.
        let now = clock_gettime(ClockId::Boottime);
        (now.tv_sec as u64).saturating_mul(1_000_000).saturating_add(now.tv_nsec as u64 / 1_000)
    }

    fn wall_ms(&self) -> u64 {
        // A wall clock before 1970 counts as 1970: it only ever makes a guess smaller.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}

/// The operating system's random numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn nonce(&self) -> u128 {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system gives random numbers once it has booted");
        u128::from_le_bytes(bytes)
    }
}
