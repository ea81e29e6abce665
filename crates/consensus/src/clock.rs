//! A group's shard clock on this member, and the pairs that let a restarted process guess what passed.
//!
//! Time comes in with the entries of other leaders and with snapshots; a leader's own entries are not fed back.
//! Everything here may make the clock slow, nothing may make it fast: between two stamps of a log never lies more than
//! the time that really passed between them. So a clock that once ran slow stays behind, and a member may only stamp by
//! a clock that is no further ahead than the last stamp in its own log.

use std::sync::{Arc, Mutex, MutexGuard};

use onceward_core::{
    faults::{self, Fault},
    seams::Clock,
    time::{ClockPair, ShardClock, ShardTime},
};

/// A pair is stored this often at the most; a restart guesses wrong by no more than that.
const PAIR_EVERY_US: u64 = 1_000_000;
/// What a guess stays below its pair: the pair may be ahead of the log by so much, see [`PAIR_AHEAD_MAX_US`].
const PAIR_SLACK_MS: u64 = 10;
/// How far the pair may be ahead of a stamp that comes in before another one is stored with it. Entries arrive after
/// varying delays, and not each of them is worth a pair; two milliseconds are left for the grain of wall clocks.
const PAIR_AHEAD_MAX_US: u64 = 8_000;

pub(crate) struct GroupClock {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    living: ShardClock,
    /// As stored by this process or the last one.
    pair: Option<ClockPair>,
    pair_taken_us: Option<u64>,
    /// The greatest stamp known to be in the log or in the state.
    last_stamp: ShardTime,
}

impl GroupClock {
    pub(crate) fn new(clock: Arc<dyn Clock>, pair: Option<ClockPair>) -> GroupClock {
        GroupClock { clock, state: Mutex::new(State { pair, ..State::default() }) }
    }

    /// An entry of another leader, or a snapshot, arrived. What lies between its arrival and this call makes the clock
    /// slow.
    pub(crate) fn received(&self, stamp: ShardTime) {
        let now_us = self.monotonic_us();
        let mut state = self.lock();
        let state = &mut *state;
        if let (Some(pair), Some(taken_us)) = (state.pair, state.pair_taken_us) {
            let says = pair.stamp.plus_us(now_us.saturating_sub(taken_us));
            // By a pair that is ahead of the log a restarted process would run fast: another one is due at once.
            state.pair_taken_us = state.pair_taken_us.filter(|_| says.since_us(stamp) <= PAIR_AHEAD_MAX_US);
        }
        state.living.observe(stamp, now_us);
        state.last_stamp = state.last_stamp.max(stamp);
    }

    /// A stamp that is in the log or the state, by whoever.
    pub(crate) fn seen(&self, stamp: ShardTime) {
        let mut state = self.lock();
        state.last_stamp = state.last_stamp.max(stamp);
    }

    /// The members agreed on an estimate. Comes too late where an entry arrived meanwhile, which may say less.
    pub(crate) fn adopt(&self, stamp: ShardTime) {
        let now_us = self.monotonic_us();
        let mut state = self.lock();
        if state.living.now(now_us).is_none() {
            let stamp = stamp.max(state.last_stamp);
            state.living.observe(stamp, now_us);
        }
    }

    pub(crate) fn now(&self) -> Option<ShardTime> {
        self.lock().living.now(self.monotonic_us())
    }

    /// The living clock, or else what may have passed since a process stored a pair.
    pub(crate) fn guess(&self) -> ShardTime {
        let (now_us, wall_ms) = (self.monotonic_us(), self.clock.wall_ms());
        let state = self.lock();
        match (state.living.now(now_us), state.pair) {
            (Some(now), _) => now.max(state.last_stamp),
            (None, Some(pair)) => pair.guess(wall_ms.saturating_sub(PAIR_SLACK_MS), state.last_stamp),
            (None, None) => state.last_stamp,
        }
    }

    /// A pair to store, when the last one is old enough.
    pub(crate) fn due_pair(&self) -> Option<ClockPair> {
        let now_us = self.monotonic_us();
        let fresh = |taken_us: u64| now_us.saturating_sub(taken_us) < PAIR_EVERY_US;
        if self.lock().pair_taken_us.is_some_and(fresh) { None } else { self.take_pair() }
    }

    /// There is no pair any more.
    pub(crate) fn forget_pair(&self) {
        let mut state = self.lock();
        (state.pair, state.pair_taken_us) = (None, None);
    }

    /// A pair to store now; none while the clock doesn't live.
    pub(crate) fn take_pair(&self) -> Option<ClockPair> {
        let (now_us, wall_ms) = (self.monotonic_us(), self.clock.wall_ms());
        let mut state = self.lock();
        let pair = ClockPair { stamp: state.living.now(now_us)?, wall_ms };
        state.pair = Some(pair);
        state.pair_taken_us = Some(now_us);
        Some(pair)
    }

    /// What the shard clock goes on by.
    fn monotonic_us(&self) -> u64 {
        match faults::active(Fault::ClockFollowsWall) {
            true => self.clock.wall_ms() * 1_000,
            false => self.clock.monotonic_us(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the clock")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Hands {
        monotonic_us: AtomicU64,
        wall_ms: AtomicU64,
    }

    impl Clock for Hands {
        fn monotonic_us(&self) -> u64 {
            self.monotonic_us.load(Ordering::Relaxed)
        }

        fn wall_ms(&self) -> u64 {
            self.wall_ms.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_clock_lives_by_what_it_receives_and_a_jump_of_the_wall_clock_changes_nothing() {
        let hands = Arc::new(Hands::default());
        let clock = GroupClock::new(hands.clone(), None);
        assert_eq!(clock.now(), None);
        clock.received(ShardTime(500));
        hands.monotonic_us.store(40, Ordering::Relaxed);
        hands.wall_ms.store(3_600_000, Ordering::Relaxed);
        assert_eq!(clock.now(), Some(ShardTime(540)));
        assert_eq!(clock.guess(), ShardTime(540));
    }

    #[test]
    fn a_restarted_process_guesses_from_the_pair_and_never_below_the_last_stamp() {
        let hands = Arc::new(Hands::default());
        hands.wall_ms.store(10_000, Ordering::Relaxed);
        let pair = ClockPair { stamp: ShardTime(1_000_000), wall_ms: 9_000 };
        let clock = GroupClock::new(hands.clone(), Some(pair));
        assert_eq!(clock.now(), None);
        assert_eq!(clock.guess(), ShardTime(2_000_000 - PAIR_SLACK_MS * 1_000));
        hands.wall_ms.store(0, Ordering::Relaxed);
        clock.seen(ShardTime(1_500_000));
        assert_eq!(clock.guess(), ShardTime(1_500_000), "a wall clock set back adds nothing");
    }

    #[test]
    fn pairs_are_taken_once_a_second_and_only_of_a_living_clock() {
        let hands = Arc::new(Hands::default());
        let clock = GroupClock::new(hands.clone(), None);
        assert_eq!(clock.due_pair(), None);
        clock.adopt(ShardTime(7));
        assert!(clock.due_pair().is_some());
        hands.monotonic_us.store(PAIR_EVERY_US - 1, Ordering::Relaxed);
        assert_eq!(clock.due_pair(), None);
        hands.monotonic_us.store(PAIR_EVERY_US, Ordering::Relaxed);
        assert_eq!(clock.due_pair(), Some(ClockPair { stamp: ShardTime(7 + PAIR_EVERY_US), wall_ms: 0 }));
    }

    #[test]
    fn a_pair_that_is_ahead_of_what_comes_in_is_replaced_with_it() {
        let hands = Arc::new(Hands::default());
        let clock = GroupClock::new(hands.clone(), None);
        clock.received(ShardTime(3_600_000_000));
        assert!(clock.due_pair().is_some());
        clock.received(ShardTime(3_600_000_000 - PAIR_AHEAD_MAX_US));
        assert_eq!(clock.due_pair(), None, "delays vary");
        clock.received(ShardTime(5));
        assert_eq!(clock.due_pair(), Some(ClockPair { stamp: ShardTime(5), wall_ms: 0 }));
    }

    #[test]
    fn an_estimate_that_comes_behind_an_entry_changes_nothing() {
        let clock = GroupClock::new(Arc::new(Hands::default()), None);
        clock.received(ShardTime(5));
        clock.adopt(ShardTime(3_600_000_000));
        assert_eq!(clock.now(), Some(ShardTime(5)));
    }
}
