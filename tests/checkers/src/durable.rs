//! G3: acknowledged is durable. What was answered as done is found by the last reads, unless something later, or something
//! of which that is not known, took its place.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    bounds::{REQUEST_ID_US, at_least_us},
    history::{Call, History, Item, Mode, Operation, Reply},
    messages, record,
    time::seconds,
    verdict::{Checker, Verdict},
};

pub struct Durable;

impl Checker for Durable {
    fn promise(&self) -> &'static str {
        "G3"
    }

    fn check(&self, history: &History) -> Verdict {
        let mut verdict = Verdict::new(self.promise());
        let mut unread = last_values(history, &mut verdict);
        unread += last_records(history, &mut verdict);
        unread += last_messages(history, &mut verdict);
        apps_stay(history, &mut verdict);
        request_ids_stay(history, &mut verdict);
        verdict.measured("acknowledged writes that nobody read at the end", unread.to_string());
        verdict.told_briefly()
    }
}

/// A policy or endpoint, and what it may hold: what a put writes and a get reads, in the same words.
fn value_of(operation: &Operation) -> Option<(String, Option<String>)> {
    let policy = |name: &str| format!("policy {name}");
    let endpoint = |app: &str, name: &str| format!("endpoint {app}/{name}");
    Some(match (&operation.call, operation.reply()) {
        (Call::PutPolicy { policy: name, terms }, None | Some(Reply::Policy { .. }))
        | (Call::GetPolicy { policy: name }, Some(Reply::Policy { terms, .. })) => {
            (policy(name), Some(format!("{terms:?}")))
        }
        (Call::DeletePolicy { policy: name }, None | Some(Reply::Deleted | Reply::NotFound))
        | (Call::GetPolicy { policy: name }, Some(Reply::NotFound)) => (policy(name), None),
        (Call::PutEndpoint { app, endpoint: name, description, .. }, None | Some(Reply::Endpoint { .. }))
        | (Call::GetEndpoint { app, endpoint: name }, Some(Reply::Endpoint { description, .. })) => {
            (endpoint(app, name), Some(description.clone()))
        }
        (Call::DeleteEndpoint { app, endpoint: name }, None | Some(Reply::Deleted | Reply::NotFound))
        | (Call::GetEndpoint { app, endpoint: name }, Some(Reply::NotFound)) => (endpoint(app, name), None),
        _ => return None,
    })
}

fn last_values(history: &History, verdict: &mut Verdict) -> usize {
    let mut writes: BTreeMap<String, Vec<(&Operation, Option<String>)>> = BTreeMap::new();
    let mut reads: HashMap<String, Vec<(&Operation, Option<String>)>> = HashMap::new();
    for operation in history.operations.iter().filter(|operation| operation.may_have_applied()) {
        let Some((name, value)) = value_of(operation) else { continue };
        let is_read = matches!(operation.call, Call::GetPolicy { .. } | Call::GetEndpoint { .. });
        if !is_read {
            writes.entry(name).or_default().push((operation, value));
        } else if operation.last && operation.reply().is_some() {
            reads.entry(name).or_default().push((operation, value));
        }
    }
    let (mut judged, mut unread) = (0, 0);
    for (name, writes) in writes {
        let Some(last_began_us) = writes.iter().filter_map(|(w, _)| w.reply().map(|_| w.invoked_us)).max() else {
            continue;
        };
        let Some(reads) = reads.get(&name) else {
            unread += 1;
            continue;
        };
        judged += 1;
        let may_be_last: Vec<_> = writes.iter().filter(|(w, _)| w.effective_until_us() >= last_began_us).collect();
        for (read, found) in reads.iter().filter(|(_, found)| !may_be_last.iter().any(|(_, value)| value == found)) {
            let (at, node) = (seconds(read.returned_us), read.node);
            let expected: Vec<_> = may_be_last.iter().map(|(_, value)| value).collect();
            verdict.violated(format!("{name}: at {at} node {node} has {found:?}, and not one of {expected:?}"));
        }
    }
    verdict.judged("policies and endpoints read at the end", judged);
    unread
}

fn last_records(history: &History, verdict: &mut Verdict) -> usize {
    let (mut judged, mut unread) = (0, 0);
    for (name, operations) in record::by_key(history) {
        let Some(kept) = Kept::of(&operations) else { continue };
        let reads = operations.iter().filter(|operation| {
            operation.last && matches!(operation.call, Call::GetRecord { .. }) && operation.reply().is_some()
        });
        let mut reads = reads.peekable();
        if reads.peek().is_none() {
            unread += 1;
        }
        for read in reads.filter(|read| read.returned_us < kept.until_us) {
            judged += 1;
            let found = read.reply();
            let body = if let Some(Reply::Record { body, .. }) = found { body.as_deref() } else { None };
            let lost = match kept.body {
                Some(stored) => body != Some(stored),
                None => matches!(found, Some(Reply::NotFound)),
            };
            if lost {
                let ((account, key), at, node) = (name, seconds(read.returned_us), read.node);
                let what = kept.body.map_or("begun".to_owned(), |body| format!("completed with {body:?}"));
                let since = seconds(kept.since_us);
                verdict
                    .violated(format!("key {account}/{key}: {what} at {since}, but at {at} node {node} has {found:?}"));
            }
        }
    }
    verdict.judged("last reads of records", judged);
    unread
}

/// What must be left of a key until some time.
struct Kept<'a> {
    since_us: u64,
    until_us: u64,
    /// Of a completion; none of an attempt that began.
    body: Option<&'a str>,
}

impl<'a> Kept<'a> {
    fn of(operations: &[&'a Operation]) -> Option<Kept<'a>> {
        Kept::by_completion(operations).or_else(|| Kept::by_attempt(operations))
    }

    /// What was completed is kept for its time to live, counted from the first call that may have completed it so.
    fn by_completion(operations: &[&'a Operation]) -> Option<Kept<'a>> {
        let (done, stored) = operations.iter().find_map(|operation| match (&operation.call, operation.reply()) {
            (Call::Complete { body, .. }, Some(Reply::Completed { .. })) => Some((operation, body)),
            _ => None,
        })?;
        let first = operations
            .iter()
            .filter(|operation| matches!(&operation.call, Call::Complete { body, .. } if body == stored));
        let first_us = first.map(|operation| operation.invoked_us).min()?;
        Some(Kept {
            since_us: done.returned_us,
            until_us: first_us.saturating_add(least_ttl_us(operations)),
            body: Some(stored),
        })
    }

    /// An attempt that nobody may have abandoned is kept for the time to live, whether it is completed or its lease ends.
    fn by_attempt(operations: &[&'a Operation]) -> Option<Kept<'a>> {
        let abandons = |operation: &&Operation| {
            matches!((&operation.call, operation.reply()), (Call::Abandon { .. }, None | Some(Reply::Abandoned)))
        };
        if operations.iter().any(abandons) {
            return None;
        }
        let begun = operations.iter().find(|operation| matches!(operation.reply(), Some(Reply::Started { .. })))?;
        let first_us = operations.iter().map(|operation| operation.invoked_us).min()?;
        let until_us = first_us.saturating_add(least_ttl_us(operations));
        Some(Kept { since_us: begun.returned_us, until_us, body: None })
    }
}

fn least_ttl_us(operations: &[&Operation]) -> u64 {
    let ttl_us = operations.iter().filter_map(|operation| match &operation.call {
        Call::Begin { ttl_ms, .. } => Some(at_least_us(ttl_ms * 1_000)),
        _ => None,
    });
    ttl_us.min().unwrap_or(u64::MAX)
}

fn last_messages(history: &History, verdict: &mut Verdict) -> usize {
    let published = messages::published(history);
    let mut read_at_all = HashSet::new();
    for read in history.operations.iter().filter(|operation| operation.last) {
        let (Call::GetMessage { app, event_id }, Some(reply)) = (&read.call, read.reply()) else { continue };
        let event: messages::Event<'_> = (app, event_id);
        let Some(accepted_us) = published.get(&event).and_then(|message| message.accepted_us) else { continue };
        read_at_all.insert(event);
        if *reply == Reply::NotFound {
            let (accepted, at, node) = (seconds(accepted_us), seconds(read.returned_us), read.node);
            verdict
                .violated(format!("message {app}/{event_id}: accepted by {accepted}, but lost on node {node} at {at}"));
        }
    }
    verdict.judged("messages read at the end", read_at_all.len());
    published.values().filter(|message| message.accepted_us.is_some()).count() - read_at_all.len()
}

/// Nobody deletes applications.
fn apps_stay(history: &History, verdict: &mut Verdict) {
    let mut created: BTreeMap<&str, u64> = BTreeMap::new();
    for operation in &history.operations {
        if let (Call::CreateApp { app }, Some(Reply::AppCreated)) = (&operation.call, operation.reply()) {
            let first_us = created.entry(app).or_insert(operation.returned_us);
            *first_us = operation.returned_us.min(*first_us);
        }
    }
    for operation in &history.operations {
        let (Call::Publish { app, .. } | Call::PutEndpoint { app, .. }) = &operation.call else { continue };
        let Some(created_us) = created.get(app.as_str()).filter(|at_us| **at_us < operation.invoked_us) else {
            continue;
        };
        if matches!(operation.reply(), Some(Reply::NotFound)) {
            let (at, created) = (seconds(operation.returned_us), seconds(*created_us));
            verdict.violated(format!("application {app}: not found at {at}, though created by {created}"));
        }
    }
    verdict.judged("applications", created.len());
}

/// What is known of a request_id on a bucket.
struct Identified<'a> {
    /// When the first call began that may have been admitted.
    began_us: u64,
    /// Answers, and whether they allowed it.
    answers: Vec<(&'a Operation, bool)>,
}

/// An admitted request_id that is asked again is answered alike.
fn request_ids_stay(history: &History, verdict: &mut Verdict) {
    // Made anew, a policy knows no ids any more.
    let made_anew: HashSet<&str> = history.operations.iter().filter_map(|operation| deleted(&operation.call)).collect();
    let mut identified: BTreeMap<(&Item, &str), Identified<'_>> = BTreeMap::new();
    for operation in history.operations.iter().filter(|operation| operation.may_have_applied()) {
        let Call::Check { items, mode, request_id: Some(id) } = &operation.call else { continue };
        for item in items.iter().filter(|item| !made_anew.contains(item.policy.as_str())) {
            let began_us = operation.invoked_us;
            let known = identified.entry((item, id)).or_insert(Identified { began_us, answers: Vec::new() });
            known.began_us = known.began_us.min(began_us);
            if let Some(Reply::Checked { allowed, results }) = operation.reply()
                && (items.len(), *mode) == (1, Mode::Enforce)
                && !results.iter().any(|result| result.degraded)
            {
                known.answers.push((operation, *allowed));
            }
        }
    }
    let mut asked_again = 0;
    for ((Item { policy, key, .. }, id), Identified { began_us, answers }) in identified {
        let admitted = answers.iter().filter(|(_, allowed)| *allowed).map(|(answer, _)| answer.returned_us);
        let Some(admitted_us) = admitted.min() else { continue };
        let until_us = began_us.saturating_add(at_least_us(REQUEST_ID_US));
        let later = |answer: &Operation| answer.invoked_us > admitted_us && answer.returned_us < until_us;
        for (answer, allowed) in answers.iter().filter(|(answer, _)| later(answer)) {
            asked_again += 1;
            if !allowed {
                let (admitted, at) = (seconds(admitted_us), seconds(answer.returned_us));
                verdict.violated(format!(
                    "bucket {policy}/{key}: request_id {id}, admitted by {admitted}, is denied at {at}"
                ));
            }
        }
    }
    verdict.judged("request_ids asked again", asked_again);
}

fn deleted(call: &Call) -> Option<&str> {
    if let Call::DeletePolicy { policy } = call { Some(policy) } else { None }
}
