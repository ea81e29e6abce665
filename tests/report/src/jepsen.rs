//! A history as Jepsen writes them: one op map a line, an invocation and a completion for each call, in the order of time.
//!
//! Refused is `:fail`, unknown is `:info`. What was done to the cluster are ops of `:nemesis`, what receivers got are ops of
//! `:receivers`; checkers look at processes that are numbers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

use onceward_checkers::history::{Delivery, History, Nemesis, Operation, Outcome, Reply};
use serde_json::Value;

use crate::edn::Edn;

/// An op without its index. Of events in the same microsecond those of the lowest `rank` come first.
struct Event {
    at_us: u64,
    rank: u32,
    op: Vec<(&'static str, Edn)>,
}

/// Writes every op of `history`.
pub fn write(out: &mut impl Write, history: &History) -> io::Result<()> {
    let mut events = events_of_calls(&history.operations);
    events.extend(history.nemeses.iter().flat_map(events_of_nemesis));
    events.extend(history.deliveries.iter().map(event_of_delivery));
    events.sort_by_key(|event| (event.at_us, event.rank));
    for (index, event) in events.into_iter().enumerate() {
        let place = [
            ("index", Edn::Integer(index as i128)),
            ("time", Edn::Integer(i128::from(event.at_us) * NANOSECONDS_PER_MICROSECOND)),
        ];
        writeln!(out, "{}", Edn::map(place.into_iter().chain(event.op)))?;
    }
    Ok(())
}

const NANOSECONDS_PER_MICROSECOND: i128 = 1000;

/// Calls that touch in a microsecond are concurrent, so an invocation comes before the completions of others; within a
/// process the order is kept.
fn events_of_calls(operations: &[Operation]) -> Vec<Event> {
    let mut calls: Vec<&Operation> = operations.iter().collect();
    calls.sort_by_key(|call| (call.invoked_us, call.returned_us));
    let mut names = ProcessNames::of(&calls);
    let mut last_of_process: HashMap<u64, (u64, u32)> = HashMap::new();
    let mut events = Vec::with_capacity(calls.len() * 2);
    for call in calls {
        let process = names.of_call(call);
        let last = last_of_process.entry(process).or_insert((0, 0));
        let mut rank = |at_us: u64, least: u32| {
            let rank = if last.0 == at_us { least.max(last.1 + 1) } else { least };
            *last = (at_us, rank);
            rank
        };
        let (invoke_rank, return_rank) = (rank(call.invoked_us, 0), rank(call.returned_us, 1));
        let (f, arguments) = split(serde_json::to_value(&call.call).expect("calls are plain data"), "call");
        let (kind, value, error) = completion(&call.outcome, &arguments);
        let op = |kind: &str, value: Edn| {
            let mut op = vec![
                ("type", Edn::keyword(kind)),
                ("process", Edn::Integer(i128::from(process))),
                ("f", Edn::keyword(&f)),
                ("value", value),
                ("node", Edn::Integer(i128::from(call.node))),
            ];
            op.extend(call.last.then_some(("final", Edn::Bool(true))));
            op
        };
        let mut done = op(kind, value);
        done.extend(error.map(|error| ("error", error)));
        events.push(Event { at_us: call.invoked_us, rank: invoke_rank, op: op("invoke", arguments) });
        events.push(Event { at_us: call.returned_us, rank: return_rank, op: done });
    }
    events
}

/// The numbers of processes: Jepsen's checkers hold a process that ended in `:info` for gone, so one that goes on here
/// goes on there by a number that nobody has.
struct ProcessNames {
    next: u64,
    gone: HashSet<u64>,
    names: HashMap<u64, u64>,
}

impl ProcessNames {
    fn of(calls: &[&Operation]) -> ProcessNames {
        let next = calls.iter().map(|call| call.process + 1).max().unwrap_or(0);
        ProcessNames { next, gone: HashSet::new(), names: HashMap::new() }
    }

    fn of_call(&mut self, call: &Operation) -> u64 {
        if self.gone.remove(&call.process) {
            self.names.insert(call.process, self.next);
            self.next += 1;
        }
        let name = *self.names.get(&call.process).unwrap_or(&call.process);
        if matches!(call.outcome, Outcome::Unknown | Outcome::Unexpected { .. }) {
            self.gone.insert(call.process);
        }
        name
    }
}

/// Type, value and error of the completion. Jepsen repeats the arguments where there is no answer.
fn completion(outcome: &Outcome, arguments: &Edn) -> (&'static str, Edn, Option<Edn>) {
    match outcome {
        Outcome::Answered { reply } => ("ok", answer(reply), None),
        Outcome::Refused => ("fail", arguments.clone(), Some(Edn::keyword("refused"))),
        Outcome::Unknown => ("info", arguments.clone(), Some(Edn::keyword("unknown"))),
        Outcome::Unexpected { status, body } => {
            let error =
                Edn::map([("unexpected", Edn::Integer(i128::from(*status))), ("body", Edn::string(body.as_str()))]);
            ("info", arguments.clone(), Some(error))
        }
    }
}

fn answer(reply: &Reply) -> Edn {
    let (name, rest) = split(serde_json::to_value(reply).expect("replies are plain data"), "reply");
    let mut fields = vec![(Edn::keyword("reply"), Edn::keyword(&name))];
    if let Edn::Map(rest) = rest {
        fields.extend(rest);
    }
    Edn::Map(fields)
}

/// The tag of a value that serde tagged, and the rest.
fn split(mut value: Value, tag: &str) -> (String, Edn) {
    let name = value.as_object_mut().and_then(|fields| fields.remove(tag));
    let name = name.and_then(|name| name.as_str().map(str::to_owned)).expect("it is tagged");
    (name, Edn::from(value))
}

fn events_of_nemesis(nemesis: &Nemesis) -> [Event; 2] {
    let op = |f: String, value: Edn| {
        vec![
            ("type", Edn::keyword("info")),
            ("process", Edn::keyword("nemesis")),
            ("f", Edn::keyword(&f)),
            ("value", value),
        ]
    };
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    nemesis.effects.iter().for_each(|effect| *sums.entry(&effect.name).or_default() += effect.count);
    let effects = sums.into_iter().map(|(name, count)| (Edn::keyword(name), Edn::Integer(i128::from(count)))).collect();
    [
        Event {
            at_us: nemesis.from_us,
            rank: 0,
            op: op(format!("start-{}", nemesis.name), Edn::string(nemesis.target.as_str())),
        },
        Event { at_us: nemesis.until_us, rank: 0, op: op(format!("stop-{}", nemesis.name), Edn::Map(effects)) },
    ]
}

fn event_of_delivery(delivery: &Delivery) -> Event {
    let mut value = serde_json::to_value(delivery).expect("deliveries are plain data");
    value.as_object_mut().expect("a struct is an object").remove("at_us");
    let op = vec![
        ("type", Edn::keyword("info")),
        ("process", Edn::keyword("receivers")),
        ("f", Edn::keyword("delivery")),
        ("value", Edn::from(value)),
    ];
    Event { at_us: delivery.at_us, rank: 0, op }
}
