//! G2: one owner. Per key at most one live token, tokens strictly increase, a fenced token changes nothing, and what is
//! replayed is what was stored.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    history::{Call, History, Operation, Outcome, Reply},
    linear::Judgement,
    record::{self, KeyName},
    time::seconds,
    verdict::{Checker, Verdict},
};

pub struct Owner;

impl Checker for Owner {
    fn promise(&self) -> &'static str {
        "G2"
    }

    fn check(&self, history: &History) -> Verdict {
        let mut verdict = Verdict::new(self.promise());
        let keys = record::by_key(history);
        let (mut wins, mut linearizable, mut undecided, mut judged) = (0, 0, 0, 0);
        for (name, operations) in &keys {
            let writes = || operations.iter().copied().filter(|operation| !is_read(operation));
            judged += usize::from(writes().next().is_some());
            wins += won(operations).count();
            let told = verdict.violations.len();
            tokens_increase(name, operations, &mut verdict);
            fenced_changes_nothing(name, operations, &mut verdict);
            replays_are_alike(name, operations, &mut verdict);
            if verdict.violations.len() > told {
                continue;
            }
            match record::judge(writes()) {
                (Judgement::Linearizable, _) => linearizable += 1,
                (Judgement::Undecided, _) => undecided += 1,
                (Judgement::Violated(_), blamed) => verdict.violated(unexplained(name, blamed)),
            }
        }
        verdict.judged("keys", judged);
        verdict.judged("wins of a key", wins);
        verdict.judged("keys linearizable", linearizable);
        verdict.measured("keys whose linearizability was not decided", undecided.to_string());
        verdict.told_briefly()
    }
}

pub(crate) fn unexplained((account, key): &KeyName<'_>, blamed: Option<&Operation>) -> String {
    let Some(operation) = blamed else { return format!("key {account}/{key} is not linearizable") };
    let Operation { call, outcome, invoked_us, returned_us, .. } = operation;
    let (invoked, returned) = (seconds(*invoked_us), seconds(*returned_us));
    format!("key {account}/{key}: no order of calls explains {call:?} from {invoked} to {returned}, {outcome:?}")
}

fn is_read(operation: &Operation) -> bool {
    matches!(operation.call, Call::GetRecord { .. })
}

/// Calls that won the key, with their attempt and token.
fn won<'a>(operations: &[&'a Operation]) -> impl Iterator<Item = (&'a Operation, &'a str, u64)> {
    operations.iter().filter_map(|operation| match (&operation.call, operation.reply()) {
        (Call::Begin { attempt_id, .. }, Some(Reply::Started { token })) => {
            Some((*operation, attempt_id.as_str(), *token))
        }
        _ => None,
    })
}

fn tokens_increase((account, key): &KeyName<'_>, operations: &[&Operation], verdict: &mut Verdict) {
    let mut owners: BTreeMap<u64, &str> = BTreeMap::new();
    for (operation, attempt, token) in won(operations) {
        let owner = *owners.entry(token).or_insert(attempt);
        if owner != attempt {
            let at = seconds(operation.returned_us);
            verdict.violated(format!("key {account}/{key}: token {token} given to {owner} and, at {at}, to {attempt}"));
        }
    }
    let wins = Wins::of(operations);
    for (operation, attempt, token) in won(operations) {
        if let Some(newer) = wins.newest_before(operation.invoked_us).filter(|newer| newer.token > token) {
            let (at, since) = (seconds(operation.returned_us), seconds(newer.since_us));
            verdict.violated(format!(
                "key {account}/{key}: {attempt} got token {token} at {at}, though {} had token {} since {since}",
                newer.attempt, newer.token
            ));
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Win<'a> {
    since_us: u64,
    token: u64,
    attempt: &'a str,
}

/// In order of time, each the one with the greatest token so far.
struct Wins<'a>(Vec<Win<'a>>);

impl<'a> Wins<'a> {
    fn of(operations: &[&'a Operation]) -> Wins<'a> {
        let mut wins: Vec<_> = won(operations)
            .map(|(operation, attempt, token)| Win { since_us: operation.returned_us, token, attempt })
            .collect();
        wins.sort_by_key(|win| win.since_us);
        for at in 1..wins.len() {
            if wins[at].token < wins[at - 1].token {
                wins[at] = wins[at - 1];
            }
        }
        Wins(wins)
    }

    fn newest_before(&self, us: u64) -> Option<Win<'a>> {
        let before = self.0.partition_point(|win| win.since_us < us);
        self.0[..before].last().copied()
    }
}

/// A call accepted with a token although a greater one had been given when it was made.
fn fenced_changes_nothing((account, key): &KeyName<'_>, operations: &[&Operation], verdict: &mut Verdict) {
    let wins = Wins::of(operations);
    for operation in operations {
        let (what, token) = match (&operation.call, operation.reply()) {
            (Call::Complete { token, .. }, Some(Reply::Completed { .. })) => ("completed", *token),
            (Call::Abandon { token, .. }, Some(Reply::Abandoned)) => ("abandoned", *token),
            (Call::Extend { token, .. }, Some(Reply::Extended)) => ("extended", *token),
            _ => continue,
        };
        if let Some(newer) = wins.newest_before(operation.invoked_us).filter(|newer| newer.token > token) {
            let (at, since) = (seconds(operation.returned_us), seconds(newer.since_us));
            verdict.violated(format!(
                "key {account}/{key}: fenced token {token} {what} it at {at}, though {} had token {} since {since}",
                newer.attempt, newer.token
            ));
        }
    }
}

/// Every replay is a completion's, byte for byte, and always the same status goes with it.
fn replays_are_alike((account, key): &KeyName<'_>, operations: &[&Operation], verdict: &mut Verdict) {
    let mut stored: BTreeMap<&str, u64> = BTreeMap::new();
    for operation in operations {
        if let Call::Complete { body, .. } = &operation.call
            && matches!(operation.reply(), None | Some(Reply::Completed { .. }))
        {
            let first_us = stored.entry(body).or_insert(operation.invoked_us);
            *first_us = (*first_us).min(operation.invoked_us);
        }
    }
    let mut statuses: BTreeMap<&str, BTreeSet<u16>> = BTreeMap::new();
    for operation in operations {
        let Outcome::Answered { reply: Reply::Replayed { status, body } } = &operation.outcome else { continue };
        let at = seconds(operation.returned_us);
        if stored.get(body.as_str()).is_none_or(|first_us| *first_us > operation.returned_us) {
            verdict.violated(format!("key {account}/{key}: replayed at {at} {body:?}, which nobody had stored"));
        }
        let known = statuses.entry(body).or_default();
        if known.insert(*status) && known.len() > 1 {
            verdict.violated(format!("key {account}/{key}: {body:?} replayed with the statuses {known:?}, at {at}"));
        }
    }
}
