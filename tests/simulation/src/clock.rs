//! A machine's clocks and its randomness, as its node sees them.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use onceward_core::seams::{Clock, Entropy};
use onceward_tests::draw::Draw;
use parking_lot::Mutex;

/// Where all wall clocks begin: any time after 1970 will do.
const WALL_START_MS: i64 = 1_900_000_000_000;

/// Goes on while the machine's process does not run.
#[derive(Default)]
pub struct MachineClock {
    monotonic_ms: AtomicU64,
    wall_offset_ms: AtomicI64,
}

impl MachineClock {
    pub fn advance(&self, ms: u64) {
        self.monotonic_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// How far the wall clock is off.
    pub fn set_wall_offset(&self, ms: i64) {
        self.wall_offset_ms.store(ms, Ordering::Relaxed);
    }
}

impl Clock for MachineClock {
    fn monotonic_us(&self) -> u64 {
        self.monotonic_ms.load(Ordering::Relaxed) * 1_000
    }

    fn wall_ms(&self) -> u64 {
        let since_start = i64::try_from(self.monotonic_ms.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        let wall = WALL_START_MS + since_start + self.wall_offset_ms.load(Ordering::Relaxed);
        u64::try_from(wall).unwrap_or_default()
    }
}

/// Numbers from the seed.
pub struct MachineEntropy(Mutex<Draw>);

impl MachineEntropy {
    pub fn new(seed: u64, machine: u16) -> Arc<MachineEntropy> {
        Arc::new(MachineEntropy(Mutex::new(Draw::new(seed, &format!("entropy of machine {machine}")))))
    }
}

impl Entropy for MachineEntropy {
    fn nonce(&self) -> u128 {
        let mut draw = self.0.lock();
        u128::from(draw.draw()) << 64 | u128::from(draw.draw())
    }
}
