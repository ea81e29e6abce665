//! The seams through which shard, consensus and dispatch reach time and randomness, so that they also run simulated.
//! Only traits: the real ones live beside the process, in `shard`.

/// Readings of this machine's clocks.
pub trait Clock: Send + Sync + 'static {
    /// Microseconds of a clock that never goes back and counts time in suspend (Linux: `CLOCK_BOOTTIME`).
    fn monotonic_us(&self) -> u64;
    /// Milliseconds since the Unix epoch, for people and for [`crate::time::ClockPair`]; it may jump.
    fn wall_ms(&self) -> u64;
}

/// Unpredictable numbers for ids and nonces.
pub trait Entropy: Send + Sync + 'static {
    fn nonce(&self) -> u128;
}
