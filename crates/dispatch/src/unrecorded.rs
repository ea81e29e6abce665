//! Outcomes that wait for the log: one report of a shard is under way at a time, and whatever ends meanwhile is the next.

use std::collections::VecDeque;

use onceward_core::webhooks::{Outcome, Verdict, bounds::OUTCOMES_MAX};

use crate::{
    attempt::Delivery,
    bounds::{OUTCOME_BYTES_MAX, UNRECORDED_BYTES_MAX, UNRECORDED_MAX},
};

/// What an outcome takes beside its texts, about.
const OUTCOME_BYTES: usize = 128;

#[derive(Debug, Default)]
pub(crate) struct Unrecorded {
    waiting: VecDeque<(Delivery, Outcome)>,
    bytes: usize,
    /// What the report under way tells of.
    reported: Vec<Reported>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Reported {
    pub delivery: Delivery,
    /// It is due again.
    pub again: bool,
}

impl Unrecorded {
    pub(crate) fn push(&mut self, delivery: Delivery, outcome: Outcome) {
        self.bytes += size(&outcome);
        self.waiting.push_back((delivery, outcome));
    }

    /// The next report, unless one is under way or there is nothing to tell. It is under way from here on.
    pub(crate) fn next_report(&mut self) -> Option<Vec<Outcome>> {
        if !self.reported.is_empty() || self.waiting.is_empty() {
            return None;
        }
        let (mut outcomes, mut bytes) = (Vec::new(), 0);
        while let Some((_, next)) = self.waiting.front() {
            bytes += size(next);
            if outcomes.len() == OUTCOMES_MAX || (bytes > OUTCOME_BYTES_MAX && !outcomes.is_empty()) {
                break;
            }
            let Some((delivery, outcome)) = self.waiting.pop_front() else { break };
            self.bytes -= size(&outcome);
            self.reported.push(Reported { delivery, again: matches!(outcome.verdict, Verdict::Retry { .. }) });
            outcomes.push(outcome);
        }
        Some(outcomes)
    }

    /// The report under way has ended: what it told of.
    pub(crate) fn end_report(&mut self) -> Vec<Reported> {
        std::mem::take(&mut self.reported)
    }

    /// Forgets what isn't under way yet, and returns of what it was.
    pub(crate) fn forget(&mut self) -> Vec<Delivery> {
        self.bytes = 0;
        self.waiting.drain(..).map(|(delivery, _)| delivery).collect()
    }

    /// Nothing more should come in.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= UNRECORDED_MAX || self.bytes >= UNRECORDED_BYTES_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.reported.is_empty()
    }
}

fn size(outcome: &Outcome) -> usize {
    OUTCOME_BYTES + outcome.answer.body.len() + outcome.answer.url.len()
}

#[cfg(test)]
mod tests {
    use onceward_core::{
        time::ShardTime,
        webhooks::{AppId, DueItem, EndpointId, EndpointKey, MessageId, ReceiverAnswer},
    };

    use super::*;

    fn outcome(number: u64, body_bytes: usize) -> (Delivery, Outcome) {
        let endpoint = EndpointId::parse(&format!("ep_{:027}", 1)).unwrap();
        let message = MessageId::parse(&format!("msg_{number:027}")).unwrap();
        let (app, body) = (AppId::OPERATIONAL, "a".repeat(body_bytes));
        let answer = ReceiverAnswer {
            status_code: 200,
            body,
            truncated: false,
            duration_ms: 1,
            started_wall_ms: 1,
            url: String::new(),
        };
        let delivery =
            Delivery { endpoint: EndpointKey { app, endpoint }, item: DueItem { at: ShardTime(number), message } };
        let verdict = Verdict::Succeeded;
        (delivery, Outcome { app, endpoint, message, tries_before: 0, nonce: [0; 6], answer, verdict })
    }

    fn with(count: u64, body_bytes: usize) -> Unrecorded {
        let mut unrecorded = Unrecorded::default();
        (0..count)
            .map(|number| outcome(number, body_bytes))
            .for_each(|(delivery, made)| unrecorded.push(delivery, made));
        unrecorded
    }

    #[test]
    fn one_report_is_under_way_and_what_comes_meanwhile_is_the_next() {
        let mut unrecorded = with(3, 0);
        assert_eq!(unrecorded.next_report().map(|report| report.len()), Some(3));
        let (delivery, made) = outcome(9, 0);
        unrecorded.push(delivery, made);
        assert!(unrecorded.next_report().is_none());
        assert_eq!(unrecorded.end_report().len(), 3);
        assert_eq!(unrecorded.next_report().map(|report| report.len()), Some(1));
        assert!(!unrecorded.is_empty());
        unrecorded.end_report();
        assert!(unrecorded.is_empty() && unrecorded.next_report().is_none());
    }

    #[test]
    fn reports_are_bounded_in_outcomes_and_bytes_and_so_is_what_waits() {
        let mut many = with(OUTCOMES_MAX as u64 + 1, 0);
        assert_eq!(many.next_report().map(|report| report.len()), Some(OUTCOMES_MAX));
        let mut large = with(100, 16 << 10);
        let report = large.next_report().unwrap();
        let bytes: usize = report.iter().map(size).sum();
        assert!(bytes <= OUTCOME_BYTES_MAX && report.len() >= 30, "{}", report.len());
        assert!(!with(250, 16 << 10).is_full() && with(260, 16 << 10).is_full());
        assert!(with(UNRECORDED_MAX as u64, 0).is_full());
        let mut full = with(260, 16 << 10);
        assert_eq!(full.forget().len(), 260);
        assert!(!full.is_full() && full.is_empty());
    }
}
