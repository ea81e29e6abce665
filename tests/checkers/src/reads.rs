//! G7: reads are linearizable, on every node: policies and endpoints as registers, records as what they are, and a message that
//! was once there stays.

use std::collections::BTreeMap;

use crate::{
    history::{Call, History, Operation, Reply, Terms},
    linear::{self, Judgement, Model, Span},
    messages::{self, Event},
    owner::unexplained,
    record,
    time::seconds,
    verdict::{Checker, Verdict},
};

pub struct Reads;

impl Checker for Reads {
    fn promise(&self) -> &'static str {
        "G7"
    }

    fn check(&self, history: &History) -> Verdict {
        let mut verdict = Verdict::new(self.promise());
        let mut undecided = registers(history, &mut verdict);
        undecided += records(history, &mut verdict);
        messages_stay(history, &mut verdict);
        verdict.measured("objects whose linearizability was not decided", undecided.to_string());
        verdict.told_briefly()
    }
}

/// What a register holds: terms of a policy, or the description of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Value<'a> {
    Terms(&'a Terms),
    /// An endpoint may be found disabled that nobody disabled: it failed for long.
    Endpoint {
        description: &'a str,
        disabled: bool,
    },
}

/// A call on a register.
#[derive(Debug, Clone, Copy)]
enum Access<'a> {
    Write { value: Value<'a>, revision: Option<u64> },
    Delete,
    Read { value: Option<Value<'a>>, revision: Option<u64> },
}

fn registers(history: &History, verdict: &mut Verdict) -> usize {
    let mut registers: BTreeMap<String, Vec<(&Operation, Span<Access<'_>>)>> = BTreeMap::new();
    for operation in history.operations.iter().filter(|operation| operation.may_have_applied()) {
        if let Some((name, access)) = access(operation) {
            let returned_us = operation.reply().map(|_| operation.returned_us);
            let span = Span { invoked_us: operation.invoked_us, returned_us, call: access };
            registers.entry(name).or_default().push((operation, span));
        }
    }
    let (mut linearizable, mut undecided, mut reads) = (0, 0, 0);
    // What was put there before the history began is not known.
    let is_written = |calls: &[(&Operation, Span<Access<'_>>)]| {
        calls.iter().any(|(_, span)| matches!(span.call, Access::Write { .. }))
    };
    for (name, calls) in registers.into_iter().filter(|(_, calls)| is_written(calls)) {
        let (operations, spans): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        reads += spans.iter().filter(|span| matches!(span.call, Access::Read { .. })).count();
        match linear::judge(&Register(std::marker::PhantomData), &spans) {
            Judgement::Linearizable => linearizable += 1,
            Judgement::Undecided => undecided += 1,
            Judgement::Violated(at) => {
                let Operation { call, outcome, invoked_us, returned_us, node, .. } = operations[at];
                let (invoked, returned) = (seconds(*invoked_us), seconds(*returned_us));
                verdict.violated(format!(
                    "{name}: no order of calls explains {call:?} on node {node} from {invoked} to {returned}, {outcome:?}"
                ));
            }
        }
    }
    verdict.judged("policies and endpoints linearizable", linearizable);
    verdict.judged("reads of policies and endpoints", reads);
    undecided
}

fn access(operation: &Operation) -> Option<(String, Access<'_>)> {
    let policy = |policy: &str| format!("policy {policy}");
    let endpoint = |app: &str, endpoint: &str| format!("endpoint {app}/{endpoint}");
    Some(match (&operation.call, operation.reply()) {
        (Call::PutPolicy { policy: name, terms }, None) => {
            (policy(name), Access::Write { value: Value::Terms(terms), revision: None })
        }
        (Call::PutPolicy { policy: name, terms }, Some(Reply::Policy { revision, .. })) => {
            (policy(name), Access::Write { value: Value::Terms(terms), revision: Some(*revision) })
        }
        (Call::GetPolicy { policy: name }, Some(Reply::Policy { terms, revision, .. })) => {
            (policy(name), Access::Read { value: Some(Value::Terms(terms)), revision: Some(*revision) })
        }
        (Call::GetPolicy { policy: name } | Call::DeletePolicy { policy: name }, Some(Reply::NotFound)) => {
            (policy(name), Access::Read { value: None, revision: None })
        }
        (Call::DeletePolicy { policy: name }, None | Some(Reply::Deleted)) => (policy(name), Access::Delete),
        (Call::PutEndpoint { app, endpoint: name, description, disabled }, None | Some(Reply::Endpoint { .. })) => {
            let value = Value::Endpoint { description, disabled: *disabled };
            (endpoint(app, name), Access::Write { value, revision: None })
        }
        (Call::GetEndpoint { app, endpoint: name }, Some(Reply::Endpoint { description, disabled })) => {
            let value = Some(Value::Endpoint { description, disabled: *disabled });
            (endpoint(app, name), Access::Read { value, revision: None })
        }
        (
            Call::GetEndpoint { app, endpoint: name } | Call::DeleteEndpoint { app, endpoint: name },
            Some(Reply::NotFound),
        ) => (endpoint(app, name), Access::Read { value: None, revision: None }),
        (Call::DeleteEndpoint { app, endpoint: name }, None | Some(Reply::Deleted)) => {
            (endpoint(app, name), Access::Delete)
        }
        _ => return None,
    })
}

struct Register<'a>(std::marker::PhantomData<&'a Terms>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Held<'a> {
    value: Option<Value<'a>>,
    /// Of the value, where it is known.
    revision: Option<u64>,
    revision_max: u64,
}

impl<'a> Model for Register<'a> {
    type Call = Access<'a>;
    type State = Held<'a>;

    fn initial(&self) -> Held<'a> {
        Held { value: None, revision: None, revision_max: 0 }
    }

    fn step(&self, held: &Held<'a>, access: &Access<'a>, _until_us: u64) -> Vec<Held<'a>> {
        let grows = |revision: u64| revision > held.revision_max;
        let revision_max = |revision: Option<u64>| revision.unwrap_or(0).max(held.revision_max);
        let next = match *access {
            Access::Write { value, revision } => {
                let written = Held { value: Some(value), revision, revision_max: revision_max(revision) };
                // What is written as it stands may keep its revision.
                let stays = held.value == Some(value) && (revision.is_none() || revision == held.revision);
                let changed = revision.is_none_or(grows).then_some(written);
                return changed.into_iter().chain(stays.then_some(*held)).collect();
            }
            Access::Delete => Some(Held { value: None, revision: None, ..*held }),
            Access::Read { value: None, .. } => held.value.is_none().then_some(*held),
            Access::Read { value: Some(read), revision } => {
                let same = held.value.is_some_and(|value| value.reads_as(read));
                let known = held.revision.or(revision.filter(|revision| grows(*revision)));
                (same && known == revision).then_some(Held {
                    revision: known,
                    revision_max: revision_max(known),
                    ..*held
                })
            }
        };
        next.into_iter().collect()
    }
}

impl Value<'_> {
    fn reads_as(self, read: Value<'_>) -> bool {
        match (self, read) {
            (Value::Endpoint { description, disabled }, Value::Endpoint { description: told, disabled: found }) => {
                description == told && (found || !disabled)
            }
            (Value::Terms(terms), Value::Terms(told)) => terms == told,
            _ => false,
        }
    }
}

/// Records with all that was asked of them. A key that is not even right without its reads is G2's.
fn records(history: &History, verdict: &mut Verdict) -> usize {
    let (mut linearizable, mut undecided) = (0, 0);
    for (name, operations) in record::by_key(history) {
        let is_read = |operation: &&Operation| matches!(operation.call, Call::GetRecord { .. });
        if !operations.iter().any(is_read) {
            continue;
        }
        match record::judge(operations.iter().copied()) {
            (Judgement::Linearizable, _) => linearizable += 1,
            (Judgement::Undecided, _) => undecided += 1,
            (Judgement::Violated(_), blamed) => {
                let writes = operations.iter().copied().filter(|operation| !is_read(operation));
                if !matches!(record::judge(writes), (Judgement::Violated(_), _)) {
                    verdict.violated(unexplained(&name, blamed));
                }
            }
        }
    }
    verdict.judged("records linearizable", linearizable);
    undecided
}

/// Messages are never changed or taken away: once one is accepted, every read finds it, the same.
fn messages_stay(history: &History, verdict: &mut Verdict) {
    let published = messages::published(history);
    let mut reads = 0;
    for operation in &history.operations {
        let (Call::GetMessage { app, event_id }, Some(reply)) = (&operation.call, operation.reply()) else { continue };
        let event: Event<'_> = (app, event_id);
        let Some(message) = published.get(&event) else { continue };
        reads += 1;
        let read = format!("message {app}/{event_id} on node {} at {}", operation.node, seconds(operation.returned_us));
        match reply {
            Reply::NotFound => {
                if let Some(accepted_us) = message.accepted_us.filter(|at_us| *at_us < operation.invoked_us) {
                    let accepted = seconds(accepted_us);
                    verdict.violated(format!("{read}: not found, though it was there by {accepted}"));
                }
            }
            Reply::Message { digest, .. } => {
                if message.first_us > operation.returned_us && !message.refused {
                    verdict.violated(format!("{read}: found, though nobody had published it"));
                } else if let Some(digest) = digest.as_deref().filter(|digest| !message.digests.contains(digest))
                    && message.possible()
                {
                    verdict.violated(format!("{read}: its digest is {digest}, published was {:?}", message.digests));
                }
            }
            _ => {}
        }
    }
    for ((app, event_id), message) in published.iter().filter(|(_, message)| message.ids.len() > 1) {
        verdict.violated(format!("message {app}/{event_id} has the ids {:?}", message.ids));
    }
    verdict.judged("reads of messages", reads);
}
