//! Lane: what the dispatcher knows of one endpoint. What it has pending stays in the rows; here is only what is next.

use std::collections::{BTreeSet, VecDeque};

use onceward_core::{time::ShardTime, webhooks::DueItem};
use tokio::time::Instant;

use crate::{
    bounds::{
        FAILING_STREAK, LANE_ASSURED, LANE_FAILING_MAX, LANE_HEALTHY_MAX, LANE_IDLE, LANE_NEW_MAX, LANE_SHARE,
        LANE_UNRECORDED_MAX, READ_AHEAD,
    },
    permits::Standing,
    throttle::Throttle,
};

/// Messages a second, as the rows had them when they were last read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    pub endpoint: Option<u32>,
    pub app: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Lane {
    /// Due, read, and not started.
    ahead: VecDeque<DueItem>,
    /// Started, and not recorded: they are still in the rows and must not be started again.
    marks: BTreeSet<DueItem>,
    running: usize,
    /// The rows may have something due that isn't in `ahead`.
    unread: bool,
    /// The rows may say something else of the endpoint than when they were last read.
    pub changed: bool,
    /// When they will.
    due_at: Option<Instant>,
    /// Nothing is started before, by a rate limit or after a crash.
    not_before: Option<Instant>,
    /// It is deleted or disabled: nothing is started until it is touched.
    closed: bool,
    /// Failures in a row.
    streak: u32,
    /// Attempts in flight that it may have by what it has shown so far.
    window: usize,
    /// Everything up to here is recorded, and nothing comes in before it: what a command files is due at its stamp or
    /// later. Without it, each read would pass over what was deleted since the store last cleaned up.
    floor: Option<DueItem>,
    recorded: Option<DueItem>,
    pub rates: Rates,
    pub throttle: Option<Throttle>,
    used: Instant,
    /// It waits for its turn.
    pub queued: bool,
    /// When it is to be looked at again, as it stands among the timers.
    pub wake: Option<Instant>,
}

impl Lane {
    pub(crate) fn new(now: Instant) -> Lane {
        Lane {
            ahead: VecDeque::new(),
            marks: BTreeSet::new(),
            running: 0,
            unread: false,
            changed: false,
            due_at: None,
            not_before: None,
            closed: false,
            streak: 0,
            window: LANE_NEW_MAX,
            floor: None,
            recorded: None,
            rates: Rates::default(),
            throttle: None,
            used: now,
            queued: false,
            wake: None,
        }
    }

    /// Something may be due, or it was changed.
    pub(crate) fn touch(&mut self) {
        self.unread = true;
        self.changed = true;
        self.closed = false;
    }

    /// Something will be due.
    pub(crate) fn note_due(&mut self, at: Instant) {
        self.due_at = Some(self.due_at.map_or(at, |due_at| due_at.min(at)));
    }

    pub(crate) fn pause(&mut self, until: Instant) {
        self.not_before = Some(until);
    }

    /// What was timed is over.
    pub(crate) fn pass_time(&mut self, now: Instant) {
        if self.not_before.is_some_and(|at| at <= now) {
            self.not_before = None;
        }
        if self.due_at.is_some_and(|at| at <= now) {
            self.due_at = None;
            self.unread = true;
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        match self.window {
            0..LANE_NEW_MAX => Standing::Failing,
            LANE_NEW_MAX => Standing::Unknown,
            _ => Standing::Proven,
        }
    }

    /// Whether it has something to start, and may; `free` are the attempts that the node has left.
    pub(crate) fn may_start(&self, free: usize) -> bool {
        let share = (free / LANE_SHARE).max(LANE_ASSURED);
        let in_flight_max = self.window.min(share);
        let has_some = self.unread || !self.ahead.is_empty();
        let has_room = self.running < in_flight_max && self.marks.len() < LANE_UNRECORDED_MAX;
        has_some && has_room && !self.closed && self.not_before.is_none()
    }

    /// Whether the rows are to be read: where from, and how much.
    pub(crate) fn wants_rows(&self) -> Option<(Option<DueItem>, usize)> {
        (self.ahead.is_empty() && self.unread).then(|| (self.floor, self.marks.len() + READ_AHEAD))
    }

    /// Takes what was read as [`Lane::wants_rows`] said. `clock` was the shard's, in the rows, before: whatever comes in
    /// later is due no earlier.
    pub(crate) fn take_rows(&mut self, items: Vec<DueItem>, limit: usize, next: Option<Instant>, clock: ShardTime) {
        if let Some(recorded) = self.recorded
            && recorded.at < clock
            && items.first().is_none_or(|first| recorded < *first)
        {
            self.floor = Some(recorded);
        }
        self.unread = items.len() >= limit;
        self.due_at = next;
        self.ahead.extend(items.into_iter().filter(|item| !self.marks.contains(item)));
    }

    /// The next to be started; it counts as started.
    pub(crate) fn start(&mut self, now: Instant) -> Option<DueItem> {
        let item = self.ahead.pop_front()?;
        self.marks.insert(item);
        self.running += 1;
        self.used = now;
        Some(item)
    }

    pub(crate) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// An attempt has ended; its mark stays until it is recorded.
    pub(crate) fn end(&mut self, now: Instant) {
        self.running = self.running.saturating_sub(1);
        self.used = now;
    }

    pub(crate) fn learn(&mut self, succeeded: bool) {
        if succeeded {
            self.streak = 0;
            self.window = (self.window.max(LANE_NEW_MAX) + 1).min(LANE_HEALTHY_MAX);
            return;
        }
        self.streak = self.streak.saturating_add(1);
        if self.streak >= FAILING_STREAK || self.standing() == Standing::Unknown {
            self.window = LANE_FAILING_MAX;
        }
    }

    /// What came of a delivery is in the rows.
    pub(crate) fn record(&mut self, item: DueItem) {
        self.marks.remove(&item);
        self.recorded = self.recorded.max(Some(item));
    }

    /// A delivery that was started, and of which nothing will be recorded, is to be read again.
    pub(crate) fn give_up(&mut self, item: DueItem) {
        self.marks.remove(&item);
        self.unread = true;
    }

    /// Starts nothing more until it is touched.
    pub(crate) fn close(&mut self) {
        self.stop();
        self.closed = true;
    }

    /// Forgets what isn't started: this node doesn't lead any more.
    pub(crate) fn stop(&mut self) {
        self.ahead.clear();
        self.unread = false;
        self.due_at = None;
        self.not_before = None;
        self.floor = None;
        self.recorded = None;
    }

    /// When it is to be looked at again if nothing happens.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        if self.unread || !self.ahead.is_empty() {
            return self.not_before;
        }
        self.due_at.or_else(|| self.marks.is_empty().then(|| self.used + LANE_IDLE))
    }

    /// Whether there is no reason to remember it: nothing is left to do, and a rate limit has nothing left to count.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let idle = now.saturating_duration_since(self.used) >= LANE_IDLE;
        let has_none = self.ahead.is_empty() && !self.unread && self.due_at.is_none();
        self.marks.is_empty() && has_none && idle
    }

    /// Whether nothing of it runs or waits to be recorded.
    pub(crate) fn is_quiet(&self) -> bool {
        self.marks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use onceward_core::webhooks::MessageId;

    use super::*;

    fn item(at: u64) -> DueItem {
        DueItem { at: ShardTime(at), message: MessageId::parse(&format!("msg_{at:027}")).unwrap() }
    }

    fn items(ats: impl IntoIterator<Item = u64>) -> Vec<DueItem> {
        ats.into_iter().map(item).collect()
    }

    fn touched() -> Lane {
        let mut lane = Lane::new(Instant::now());
        lane.touch();
        lane
    }

    /// A million pending deliveries cost disk, not memory.
    #[test]
    fn it_reads_a_little_ahead_and_no_more_until_that_is_started() {
        let mut lane = touched();
        assert_eq!(lane.wants_rows(), Some((None, READ_AHEAD)));
        lane.take_rows(items(0..READ_AHEAD as u64), READ_AHEAD, None, ShardTime(1_000));
        for _ in 0..READ_AHEAD {
            assert_eq!(lane.wants_rows(), None);
            lane.start(Instant::now()).unwrap();
        }
        assert_eq!(lane.wants_rows(), Some((None, 2 * READ_AHEAD)), "what is in flight is read again, and left out");
        lane.take_rows(items(0..READ_AHEAD as u64 + 1), 2 * READ_AHEAD, None, ShardTime(1_000));
        assert_eq!(lane.start(Instant::now()), Some(item(READ_AHEAD as u64)));
        assert_eq!((lane.start(Instant::now()), lane.wants_rows()), (None, None));
    }

    #[test]
    fn rows_are_read_from_behind_what_is_recorded_and_never_past_what_may_still_come_in() {
        let mut lane = touched();
        lane.take_rows(items([10, 20, 30]), 64, None, ShardTime(100));
        (0..3).for_each(|_| assert!(lane.start(Instant::now()).is_some()));
        lane.record(item(20));
        lane.touch();
        lane.take_rows(items([10, 30]), 64, None, ShardTime(100));
        assert_eq!(lane.floor, None, "10 is still in flight");
        lane.record(item(10));
        lane.touch();
        lane.take_rows(items([30]), 64, None, ShardTime(20));
        assert_eq!(lane.floor, None, "something may come in that is due at 20");
        lane.touch();
        lane.take_rows(items([30]), 64, None, ShardTime(100));
        assert_eq!(lane.floor, Some(item(20)));
        lane.stop();
        lane.touch();
        assert_eq!(lane.wants_rows().map(|(floor, _)| floor), Some(None), "another leader may have been in between");
    }

    #[test]
    fn successes_widen_its_window_failures_close_it_and_many_others_narrow_its_share() {
        let mut lane = touched();
        let started = |lane: &mut Lane, free: usize| {
            lane.take_rows(items(0..64), 64, None, ShardTime(1_000));
            let mut count = 0;
            while lane.may_start(free) {
                count += usize::from(lane.start(Instant::now()).is_some());
            }
            (lane.running, lane.marks, lane.ahead) = (0, BTreeSet::new(), VecDeque::new());
            lane.unread = true;
            (count, lane.standing())
        };
        assert_eq!(started(&mut lane, 1_024), (LANE_NEW_MAX, Standing::Unknown));
        lane.learn(false);
        assert_eq!(started(&mut lane, 1_024), (LANE_FAILING_MAX, Standing::Failing));
        lane.learn(true);
        assert_eq!(started(&mut lane, 1_024), (LANE_NEW_MAX + 1, Standing::Proven));
        (0..100).for_each(|_| lane.learn(true));
        assert_eq!(started(&mut lane, 1_024).0, LANE_HEALTHY_MAX);
        assert_eq!(started(&mut lane, 40).0, 10);
        assert_eq!(started(&mut lane, 0).0, LANE_ASSURED);
        (0..FAILING_STREAK - 1).for_each(|_| lane.learn(false));
        assert_eq!(started(&mut lane, 1_024).0, LANE_HEALTHY_MAX, "a failure or two are no reason");
        lane.learn(false);
        assert_eq!(started(&mut lane, 1_024), (LANE_FAILING_MAX, Standing::Failing));
    }

    #[test]
    fn it_sleeps_until_something_is_due_and_is_forgotten_when_nothing_was_for_a_while() {
        let now = Instant::now();
        let due = now + Duration::from_secs(300);
        let mut lane = Lane::new(now);
        lane.note_due(due);
        assert_eq!((lane.next_look(), lane.may_start(9)), (Some(due), false));
        lane.pass_time(due);
        assert!(lane.may_start(9) && !lane.is_over(due));
        lane.pause(due + Duration::from_secs(1));
        assert!(!lane.may_start(9) && lane.next_look() == Some(due + Duration::from_secs(1)));
        lane.close();
        assert_eq!(lane.next_look(), Some(now + LANE_IDLE));
        assert!(lane.is_over(now + LANE_IDLE) && !lane.is_over(now));
    }
}
