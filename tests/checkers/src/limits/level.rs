//! Buckets that refill less than a token in all the time they are asked: their level is a whole number that every answer
//! tells, so that they have to be linearizable, and a cost taken twice or given back twice is seen at once.

use std::{collections::BTreeMap, marker::PhantomData};

use super::{
    Bucket,
    terms::{Policy, TOKEN},
};
use crate::{
    bounds::{REQUEST_ID_US, at_least_us},
    history::{Algorithm, Call, Mode, Operation, Reply},
    linear::{self, Judgement, Model, Span},
};

/// Judges the bucket, if its level can be known; with the call that is to blame where there is one.
pub(super) fn judge<'a>(policy: &Policy, bucket: &Bucket<'a>) -> Option<(Judgement, &'a Operation)> {
    let terms = policy.only_terms().filter(|terms| terms.algorithm == Algorithm::TokenBucket)?;
    let first = bucket.operations.iter().map(|operation| operation.invoked_us).min()?;
    let last = bucket.operations.iter().map(|operation| operation.returned_us).max()?;
    let stands_still = policy.refilled(last) - policy.refilled(first) + policy.rounding() < TOKEN;
    // A request_id that was forgotten could be admitted again.
    let remembers = last - first < at_least_us(REQUEST_ID_US);
    let exists = !bucket.operations.iter().any(|operation| {
        matches!((&operation.call, operation.reply()), (Call::Check { .. } | Call::Reset { .. }, Some(Reply::NotFound)))
    });
    if bucket.in_company || !stands_still || !remembers || !exists {
        return None;
    }
    let spans: Vec<Span<&Operation>> = bucket.operations.iter().map(|operation| span(operation)).collect();
    let judgement = linear::judge(&Level { capacity: terms.burst, history: PhantomData }, &spans);
    let blamed = if let Judgement::Violated(at) = judgement { at } else { 0 };
    Some((judgement, spans[blamed].call))
}

/// A check that was answered `degraded` may have been handed to the shard before, and is open like an unknown one.
fn span(operation: &Operation) -> Span<&Operation> {
    let degraded = match operation.reply() {
        Some(Reply::Checked { results, .. }) => results.iter().any(|result| result.degraded),
        _ => false,
    };
    let returned_us = operation.reply().filter(|_| !degraded).map(|_| operation.returned_us);
    Span { invoked_us: operation.invoked_us, returned_us, call: operation }
}

/// A bucket that only its calls change.
struct Level<'a> {
    capacity: u64,
    history: PhantomData<&'a Operation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State<'a> {
    left: u64,
    resets: u32,
    admitted: BTreeMap<&'a str, Admitted>,
}

/// A request_id that is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Admitted {
    cost: u64,
    remaining: u64,
    resets: u32,
    refunded: Option<u64>,
}

/// What the bucket answers; a peek tells the level before or after.
#[derive(PartialEq)]
enum Answer {
    Checked { allowed: bool, remaining: [u64; 2] },
    Mismatch,
    Refunded,
    NotFound,
    Reset,
}

impl<'a> Model for Level<'a> {
    type Call = &'a Operation;
    type State = State<'a>;

    fn initial(&self) -> State<'a> {
        State { left: self.capacity, resets: 0, admitted: BTreeMap::new() }
    }

    fn step(&self, state: &State<'a>, operation: &&'a Operation, _until_us: u64) -> Vec<State<'a>> {
        let mut next = state.clone();
        let answer = match &operation.call {
            Call::Check { items, mode, request_id } => next.check(items[0].cost, *mode, request_id.as_deref()),
            Call::Refund { cost, request_id, .. } => next.refund(*cost, request_id, self.capacity),
            _ => {
                (next.left, next.resets) = (self.capacity, next.resets + 1);
                Answer::Reset
            }
        };
        if span(operation).returned_us.is_none() || answer.is(operation.reply()) { vec![next] } else { Vec::new() }
    }
}

impl<'a> State<'a> {
    fn check(&mut self, cost: u64, mode: Mode, request_id: Option<&'a str>) -> Answer {
        if let Some(earlier) = request_id.and_then(|id| self.admitted.get(id)) {
            return match earlier.cost == cost {
                true => Answer::Checked { allowed: true, remaining: [earlier.remaining; 2] },
                false => Answer::Mismatch,
            };
        }
        let before = self.left;
        let Some(after) = before.checked_sub(cost) else {
            return Answer::Checked { allowed: false, remaining: [before; 2] };
        };
        if mode == Mode::Peek {
            return Answer::Checked { allowed: true, remaining: [before, after] };
        }
        self.left = after;
        if let Some(id) = request_id {
            let admitted = Admitted { cost, remaining: after, resets: self.resets, refunded: None };
            self.admitted.insert(id, admitted);
        }
        Answer::Checked { allowed: true, remaining: [after; 2] }
    }

    fn refund(&mut self, cost: u64, request_id: &str, capacity: u64) -> Answer {
        let Some(admitted) = self.admitted.get_mut(request_id) else { return Answer::NotFound };
        match admitted.refunded {
            Some(refunded) if refunded == cost => return Answer::Refunded,
            Some(_) => return Answer::Mismatch,
            None if cost > admitted.cost => return Answer::Mismatch,
            None => admitted.refunded = Some(cost),
        }
        if admitted.resets == self.resets {
            self.left = capacity.min(self.left.saturating_add(cost));
        }
        Answer::Refunded
    }
}

impl Answer {
    fn is(&self, reply: Option<&Reply>) -> bool {
        match (self, reply) {
            (Answer::Checked { allowed, remaining }, Some(Reply::Checked { results, .. })) => {
                results.first().is_some_and(|told| told.allowed == *allowed && remaining.contains(&told.remaining))
            }
            (Answer::Mismatch, Some(Reply::Mismatch))
            | (Answer::Refunded, Some(Reply::Refunded))
            | (Answer::NotFound, Some(Reply::NotFound))
            | (Answer::Reset, Some(Reply::Reset)) => true,
            _ => false,
        }
    }
}
