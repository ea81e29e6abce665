//! The figures that promises are judged by.

/// ρ: how much faster or slower than real time a node's monotonic clock may run, in per cent.
pub const DRIFT_PERCENT: u64 = 1;

/// How long an admitted request_id is remembered, and answered alike.
pub(crate) const REQUEST_ID_US: u64 = 60_000_000;

/// After healing, every shard serves through every node within this.
pub const HEALING_MAX_US: u64 = 5_000_000;
/// From the loss of a leader to the first success: each, and the median of all.
pub const LEADER_LOSS_MAX_US: u64 = 2_500_000;
pub const LEADER_LOSS_MEDIAN_MAX_US: u64 = 1_500_000;

/// The least real time in which `us` of a shard's clock pass: it may run slow, and fast by the drift alone.
pub(crate) fn at_least_us(us: u64) -> u64 {
    us - us.saturating_mul(DRIFT_PERCENT).div_ceil(100 + DRIFT_PERCENT)
}
