//! Verdict: what becomes of a delivery after an attempt. A pure function of the answer, the tries so far and a nonce.

use std::time::Duration;

use onceward_core::webhooks::Verdict;

use crate::{
    bounds::{JITTER_PERCENT, RETRY_AFTER_MAX},
    sender::Answered,
};

const GONE: u16 = 410;

/// `tries`: before this attempt.
pub(crate) fn verdict(answered: &Answered, tries: u16, schedule: &[Duration], nonce: u64) -> Verdict {
    let complete = answered.failure.is_none();
    match answered.status {
        200..300 if complete => Verdict::Succeeded,
        GONE if complete => Verdict::Gone,
        _ => {
            let Some(pause) = schedule.get(usize::from(tries)) else { return Verdict::Exhausted };
            let asked = answered.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
            let pause = jittered(*pause, nonce).max(asked);
            Verdict::Retry { after_us: u64::try_from(pause.as_micros()).unwrap_or(u64::MAX) }
        }
    }
}

/// A pause, longer or shorter by up to [`JITTER_PERCENT`].
fn jittered(pause: Duration, nonce: u64) -> Duration {
    const PARTS: u64 = 1 << 20;
    let spread = pause * JITTER_PERCENT as u32 / 100;
    let part = (nonce % (2 * PARTS + 1)) as f64 / PARTS as f64;
    pause - spread + spread.mul_f64(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::DispatchConfig, failure::Failure};

    const SECOND_US: u64 = 1_000_000;

    fn of(status: u16, tries: u16, retry_after_s: Option<u64>) -> Verdict {
        let answered = Answered { status, retry_after: retry_after_s.map(Duration::from_secs), ..Answered::default() };
        // The middle of the spread.
        verdict(&answered, tries, &DispatchConfig::default().schedule, 1 << 20)
    }

    fn retry_s(seconds: u64) -> Verdict {
        Verdict::Retry { after_us: seconds * SECOND_US }
    }

    /// Permanently failing delivery retried every 30 s for ever.
    #[test]
    fn the_schedule_is_followed_to_its_end_and_then_the_delivery_is_given_up() {
        let pauses_s = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
        for (tries, pause_s) in (0..).zip(pauses_s) {
            assert_eq!(of(500, tries, None), retry_s(pause_s));
        }
        for tries in [9, 10, u16::MAX] {
            assert_eq!(of(500, tries, None), Verdict::Exhausted);
        }
    }

    #[test]
    fn success_is_a_complete_answer_with_2xx_and_gone_is_410() {
        for status in [200, 204, 299] {
            assert_eq!(of(status, 9, None), Verdict::Succeeded);
        }
        assert_eq!(of(410, 0, None), Verdict::Gone);
        for status in [0, 100, 199, 300, 301, 302, 304, 307, 400, 404, 409, 429, 500, 503] {
            assert_eq!(of(status, 0, None), retry_s(5), "{status}");
        }
        for status in [200, 410] {
            let cut = Answered { status, failure: Some(Failure::Closed), ..Answered::default() };
            assert_eq!(verdict(&cut, 9, &DispatchConfig::default().schedule, 0), Verdict::Exhausted);
        }
    }

    #[test]
    fn retry_after_makes_a_pause_longer_and_never_shorter_up_to_a_day() {
        assert_eq!(of(503, 0, Some(60)), retry_s(60));
        assert_eq!(of(429, 1, Some(60)), retry_s(300));
        assert_eq!(of(503, 0, Some(u64::MAX)), retry_s(86_400));
        assert_eq!(of(503, 9, Some(60)), Verdict::Exhausted);
    }

    #[test]
    fn pauses_are_spread_by_a_fifth_in_both_directions() {
        let pause = Duration::from_secs(10);
        assert_eq!(jittered(pause, 0), Duration::from_secs(8));
        assert_eq!(jittered(pause, 1 << 20), pause);
        assert_eq!(jittered(pause, 1 << 21), Duration::from_secs(12));
        for nonce in [1, u64::MAX, u64::MAX / 3, 123_456_789_123] {
            assert!((8.0..=12.0).contains(&jittered(pause, nonce).as_secs_f64()));
        }
    }
}
