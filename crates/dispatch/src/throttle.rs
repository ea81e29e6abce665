//! Throttle: an endpoint's or an application's messages a second, by the limiter that serves rate limits, too.
//!
//! It lives in the process of the leader and starts used up as of the beginning of its term, so that a change of leaders
//! never lets more through.

use std::time::Duration;

use onceward_core::limits::{Algorithm, LocalBucket, Rate, RateUnit, Terms};
use tokio::time::Instant;

/// At most `rate` in any second.
#[derive(Debug, Clone)]
pub(crate) struct Throttle {
    bucket: LocalBucket,
    since: Instant,
}

impl Throttle {
    /// Nothing has been let through since `since`; before that, nobody knows.
    pub(crate) fn new(rate: u32, since: Instant) -> Throttle {
        Throttle { bucket: LocalBucket::new(&terms(rate), 0), since }
    }

    /// Lets one message through, or says how long it has to wait.
    pub(crate) fn take(&mut self, rate: u32, now: Instant) -> Result<(), Duration> {
        let now_us = now.saturating_duration_since(self.since).as_micros() as u64;
        let taken = self.bucket.take(&terms(rate), 1, now_us);
        // A window is a second: there is always an end to the wait.
        let wait_us = taken.retry_after_us.unwrap_or(1_000_000).max(1_000);
        if taken.allowed { Ok(()) } else { Err(Duration::from_micros(wait_us)) }
    }
}

fn terms(rate: u32) -> Terms {
    let rate = u64::from(rate.max(1));
    let a_second = Rate { amount: rate, every: 1, unit: RateUnit::Second };
    Terms::new(Algorithm::SlidingWindow, a_second, rate)
}

/// Takes from all of them, or from none and says how long to wait.
pub(crate) fn take_all<'t>(
    throttles: impl IntoIterator<Item = (&'t mut Throttle, u32)>,
    now: Instant,
) -> Result<(), Duration> {
    let mut taken: Vec<(&mut Throttle, Throttle)> = Vec::with_capacity(2);
    for (throttle, rate) in throttles {
        let before = throttle.clone();
        if let Err(wait) = throttle.take(rate, now) {
            for (throttle, before) in taken {
                *throttle = before;
            }
            return Err(wait);
        }
        taken.push((throttle, before));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_sees_more_than_the_rate_and_a_beginning_sees_nothing() {
        let start = Instant::now();
        let mut throttle = Throttle::new(5, start);
        let mut admitted: Vec<u64> = Vec::new();
        for at_ms in 0..5_000 {
            if throttle.take(5, start + Duration::from_millis(at_ms)).is_ok() {
                admitted.push(at_ms);
            }
        }
        assert!(admitted[0] >= 1_000 && admitted.len() >= 15, "{admitted:?}");
        assert!(admitted.windows(6).all(|six| six[5] - six[0] >= 1_000), "{admitted:?}");
        let now = start + Duration::from_millis(5_000);
        let wait = throttle.take(5, now).expect_err("used up");
        assert!(throttle.take(5, now + wait).is_ok(), "waiting it out succeeds");
    }

    #[test]
    fn what_one_of_two_refuses_costs_the_other_nothing() {
        let start = Instant::now();
        let now = start + Duration::from_secs(2);
        let (mut wide, mut narrow) = (Throttle::new(2, start), Throttle::new(1, start));
        assert!(take_all([(&mut wide, 2), (&mut narrow, 1)], now).is_ok());
        assert!(take_all([(&mut wide, 2), (&mut narrow, 1)], now).is_err());
        assert!(wide.take(2, now).is_ok(), "its second one is still there");
        assert!(wide.take(2, now).is_err());
    }
}
