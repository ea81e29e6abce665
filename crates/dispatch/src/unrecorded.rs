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
