//! LocalBucket: what a node admits on its own while a bucket's shard has no quorum (`on_unavailable: local`).

use super::{Fill, ItemResult, Terms};
use crate::time::ShardTime;

/// A bucket in one process, outside the log. It starts empty, so that losing quorum again and again doesn't admit a
/// burst each time: it is to be kept across flaps.
#[derive(Debug, Clone)]
pub struct LocalBucket {
    share: Terms,
    fill: Fill,
    as_of: ShardTime,
}

impl LocalBucket {
    /// An empty bucket of [`Terms::share`]. `now_us` is of this process's monotonic clock.
    pub fn new(share: &Terms, now_us: u64) -> LocalBucket {
        let as_of = ShardTime(now_us);
        LocalBucket { share: *share, fill: Fill::used_up(share, as_of), as_of }
    }

    /// Takes `cost`, or nothing. `share` is the share now: when it changed, the tokens left are carried over as in any
    /// bucket. A cost above its burst is denied for good (`retry_after_us` is `None`).
    pub fn take(&mut self, share: &Terms, cost: u64, now_us: u64) -> ItemResult {
        let now = self.as_of.max(ShardTime(now_us));
        self.fill.refill(&self.share, now.since_us(self.as_of), 0);
        self.as_of = now;
        if *share != self.share {
            self.fill.note_if_full(&self.share, now);
            self.fill.change(share, now, 0);
            self.share = *share;
        }
        let allowed = cost <= self.fill.left(share, now, 0);
        if allowed {
            self.fill.take(share, now, cost);
        }
        let wait_us = |tokens| self.fill.wait_us(share, now, tokens, 0, std::iter::empty());
        ItemResult {
            allowed,
            exempt: false,
            limit: share.burst(),
            remaining: self.fill.left(share, now, 0).min(share.burst()),
            retry_after_us: if allowed { Some(0) } else { wait_us(cost) },
            reset_after_us: wait_us(share.burst()).unwrap_or(u64::MAX),
            window_us: share.fill_us(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Algorithm, Rate};

    fn share(algorithm: Algorithm, rate: &str, burst: u64) -> Terms {
        Terms::new(algorithm, rate.parse::<Rate>().expect("a rate"), burst).share(3)
    }

    #[test]
    fn a_share_is_a_part_of_the_rate_and_at_least_one_token() {
        let share_of_seven = share(Algorithm::TokenBucket, "3/s", 7);
        assert_eq!((share_of_seven.burst(), share_of_seven.amount(), share_of_seven.window_us()), (2, 3, 3_000_000));
        assert_eq!(share(Algorithm::TokenBucket, "1/365d", 1).burst(), 1);
        assert_eq!(share(Algorithm::SlidingWindow, "2/s", 2).burst(), 1);
    }

    #[test]
    fn it_starts_empty_and_fills_at_its_share() {
        let share = share(Algorithm::TokenBucket, "3/s", 6);
        let mut bucket = LocalBucket::new(&share, 5);
        let denied = bucket.take(&share, 1, 5);
        assert_eq!((denied.allowed, denied.remaining, denied.retry_after_us), (false, 0, Some(1_000_000)));
        assert!(!bucket.take(&share, 1, 1_000_004).allowed);
        assert!(bucket.take(&share, 1, 1_000_005).allowed);
        assert_eq!(bucket.take(&share, 3, 1_000_005).retry_after_us, None);
        // A monotonic clock that steps back gives nothing.
        assert!(!bucket.take(&share, 1, 0).allowed);
    }

    #[test]
    fn a_sliding_share_starts_used_up_for_a_whole_window() {
        let share = share(Algorithm::SlidingWindow, "6/s", 6);
        let mut bucket = LocalBucket::new(&share, 0);
        assert_eq!(bucket.take(&share, 2, 0).retry_after_us, Some(1_062_500));
        assert!(!bucket.take(&share, 1, 1_062_499).allowed);
        assert!(bucket.take(&share, 2, 1_062_500).allowed);
        assert!(!bucket.take(&share, 1, 1_062_500).allowed);
    }
}
