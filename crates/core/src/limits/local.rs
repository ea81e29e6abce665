//! LocalBucket: what a node admits on its own while a bucket's shard has no quorum (`on_unavailable: local`).

use super::{ItemResult, Terms};

/// A bucket in one process, outside the log. It starts empty, so that losing quorum over and over admits no burst each
/// time: keep it across flaps.
#[derive(Debug, Clone)]
pub struct LocalBucket {}

impl LocalBucket {
    /// An empty bucket of [`Terms::share`] size. `now_us` is of this process's monotonic clock.
    pub fn new(_share: &Terms, _now_us: u64) -> LocalBucket {
        unimplemented!()
    }

    /// Takes `cost`, or nothing. `share` are the terms now; when they changed, the tokens left are carried over as for
    /// any bucket.
    pub fn take(&mut self, _share: &Terms, _cost: u64, _now_us: u64) -> ItemResult {
        unimplemented!()
    }
}
