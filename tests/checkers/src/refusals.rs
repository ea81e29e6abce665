//! G9: failures are told apart. A call that was answered 503 was not applied, so that nobody ever sees what it would have
//! done; a node without a majority refuses, or says that its answer is degraded; and no answer is outside the contract.

use std::collections::BTreeMap;

use crate::{
    history::{Call, History, Operation, Outcome, Reply},
    record,
    time::seconds,
    verdict::{Checker, Verdict},
};

pub struct Refusals;

impl Checker for Refusals {
    fn promise(&self) -> &'static str {
        "G9"
    }

    fn check(&self, history: &History) -> Verdict {
        let mut verdict = Verdict::new(self.promise());
        let mut effects = Effects::default();
        history.operations.iter().for_each(|operation| effects.send(operation));
        history.operations.iter().for_each(|operation| effects.see(operation));
        for delivery in &history.deliveries {
            effects.seen(message(&delivery.app, &delivery.event_id), delivery.at_us, "delivered");
        }
        for (effect, trace) in &effects.traces {
            if let (Some(refused_us), false, Some((at_us, how))) = (trace.refused_us, trace.sent_otherwise, trace.seen)
            {
                let (refused, at) = (seconds(refused_us), seconds(at_us));
                verdict.violated(format!("{effect}: refused at {refused}, but {how} at {at}"));
            }
        }
        for operation in &history.operations {
            if let Outcome::Unexpected { status, body } = &operation.outcome {
                let (at, call) = (seconds(operation.returned_us), &operation.call);
                verdict.violated(format!("node {} answered {status} at {at} to {call:?}: {body}", operation.node));
            }
        }
        let alone = judge_isolated(history, &mut verdict);
        let refused = |operation: &&Operation| operation.outcome == Outcome::Refused;
        let effects = effects.traces.values().filter(|trace| trace.refused_us.is_some() && !trace.sent_otherwise);
        verdict.judged("refused calls whose effect would be seen", effects.count());
        verdict.judged("calls to isolated nodes", alone);
        verdict.measured("calls refused", history.operations.iter().filter(refused).count().to_string());
        verdict.told_briefly()
    }
}

/// Judges the calls that began and ended while their node reached no other; says how many there were.
fn judge_isolated(history: &History, verdict: &mut Verdict) -> usize {
    let mut judged = 0;
    for isolation in &history.isolations {
        let within = |operation: &&Operation| {
            operation.node == isolation.node
                && operation.invoked_us >= isolation.from_us
                && operation.returned_us <= isolation.until_us
        };
        for operation in history.operations.iter().filter(within) {
            judged += 1;
            if let Some(reply) = operation.reply().filter(|reply| !is_degraded(reply)) {
                let (node, at, call) = (operation.node, seconds(operation.returned_us), &operation.call);
                verdict.violated(format!("node {node}, without a majority, answered {reply:?} at {at} to {call:?}"));
            }
        }
    }
    judged
}

fn is_degraded(reply: &Reply) -> bool {
    matches!(reply, Reply::Checked { results, .. } if results.iter().all(|result| result.degraded))
}

/// What calls would leave behind, by the beginning of a sentence about it.
#[derive(Default)]
struct Effects {
    traces: BTreeMap<String, Trace>,
}

#[derive(Default)]
struct Trace {
    /// When a call that would have left it was refused.
    refused_us: Option<u64>,
    /// By a call that may have been applied.
    sent_otherwise: bool,
    seen: Option<(u64, &'static str)>,
}

fn message(app: &str, event_id: &str) -> String {
    format!("message {app}/{event_id}")
}

fn completion((account, key): record::KeyName<'_>, body: &str) -> String {
    format!("key {account}/{key}: completion with {body:?}")
}

impl Effects {
    fn send(&mut self, operation: &Operation) {
        for effect in effects(&operation.call) {
            let trace = self.traces.entry(effect).or_default();
            match operation.may_have_applied() {
                true => trace.sent_otherwise = true,
                false => trace.refused_us = Some(operation.returned_us),
            }
        }
    }

    fn seen(&mut self, effect: String, at_us: u64, how: &'static str) {
        if let Some(trace) = self.traces.get_mut(&effect) {
            trace.seen.get_or_insert((at_us, how));
        }
    }

    fn see(&mut self, operation: &Operation) {
        let Some(reply) = operation.reply() else { return };
        let at_us = operation.returned_us;
        match (&operation.call, reply) {
            (Call::GetPolicy { policy }, Reply::Policy { terms, .. }) => {
                self.seen(format!("policy {policy}: {terms:?}"), at_us, "read");
            }
            (Call::GetEndpoint { app, endpoint }, Reply::Endpoint { description, .. }) => {
                self.seen(format!("endpoint {app}/{endpoint}: {description:?}"), at_us, "read");
            }
            (Call::GetMessage { app, event_id }, Reply::Message { .. }) => {
                self.seen(message(app, event_id), at_us, "read");
            }
            (Call::Publish { app, .. }, Reply::Message { .. }) => {
                self.seen(format!("application {app}"), at_us, "published to");
            }
            (Call::Begin { account, key, .. }, Reply::Replayed { body, .. }) => {
                self.seen(completion((account, key), body), at_us, "replayed");
            }
            (Call::GetRecord { account, key }, Reply::Record { body, .. }) => {
                self.seen(format!("key {account}/{key}"), at_us, "there");
                if let Some(body) = body {
                    self.seen(completion((account, key), body), at_us, "read");
                }
            }
            _ => {}
        }
    }
}

fn effects(call: &Call) -> Vec<String> {
    match call {
        Call::PutPolicy { policy, terms } => vec![format!("policy {policy}: {terms:?}")],
        Call::PutEndpoint { app, endpoint, description, .. } => {
            vec![format!("endpoint {app}/{endpoint}: {description:?}")]
        }
        Call::CreateApp { app } => vec![format!("application {app}")],
        Call::Publish { app, message: sent } => vec![message(app, &sent.event_id)],
        Call::Begin { account, key, .. } => vec![format!("key {account}/{key}")],
        Call::Complete { account, key, body, messages, .. } => {
            let messages = messages.iter().map(|sent| message(&sent.app, &sent.event_id));
            messages.chain([completion((account, key), body)]).collect()
        }
        _ => Vec::new(),
    }
}
