//! G4: complete and publish are one. A completed key has all messages of the completion that it stores, with their
//! content, and a completion that was not stored has none.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    bounds::at_least_us,
    history::{Call, History, Message, Operation, Reply},
    record::KeyName,
    time::seconds,
    verdict::{Checker, Verdict},
};

pub struct Together;

/// An application and the event id of a message in it.
type Event<'a> = (&'a str, &'a str);
/// A completion, however often it was sent: its body is its own.
type CompletionName<'a> = (KeyName<'a>, &'a str);

struct Completion<'a> {
    messages: &'a [Message],
    first_us: u64,
    /// The ids of the messages, once it was answered that it is stored.
    answered: Option<&'a [String]>,
    /// Whether it may have been stored, going by its own answers.
    possible: bool,
}

/// The last read of a key.
struct LastRecord<'a> {
    read_us: u64,
    /// Of a completed one.
    body: Option<&'a str>,
}

/// What is known of a message.
#[derive(Default)]
struct Seen<'a> {
    /// How it was seen to exist.
    exists: Option<String>,
    last: Option<Last<'a>>,
}

enum Last<'a> {
    Absent,
    Found { id: &'a str, digest: Option<&'a str> },
}

/// What is known of everything, by names.
struct Facts<'a> {
    completions: BTreeMap<CompletionName<'a>, Completion<'a>>,
    records: HashMap<KeyName<'a>, LastRecord<'a>>,
    ttl_us: HashMap<KeyName<'a>, u64>,
    seen: HashMap<Event<'a>, Seen<'a>>,
    /// Events that something else may have published.
    shared: HashSet<Event<'a>>,
}

impl Checker for Together {
    fn promise(&self) -> &'static str {
        "G4"
    }

    fn check(&self, history: &History) -> Verdict {
        let mut verdict = Verdict::new(self.promise());
        let facts = Facts::of(history);
        let (mut whole, mut absent, mut unjudged) = (0, 0, 0);
        for (name, completion) in &facts.completions {
            match facts.is_stored(name, completion) {
                None => unjudged += 1,
                Some(true) => {
                    whole += 1;
                    facts.has_all(name, completion, &mut verdict);
                }
                Some(false) => {
                    absent += 1;
                    facts.has_none(name, completion, &mut verdict);
                }
            }
        }
        verdict.judged("stored completions with messages", whole);
        verdict.judged("completions that were not stored", absent);
        verdict.measured("completions of which it is not known whether they were stored", unjudged.to_string());
        verdict.told_briefly()
    }
}

impl<'a> Facts<'a> {
    fn of(history: &'a History) -> Facts<'a> {
        let mut facts = Facts {
            completions: BTreeMap::new(),
            records: HashMap::new(),
            ttl_us: HashMap::new(),
            seen: HashMap::new(),
            shared: HashSet::new(),
        };
        history.operations.iter().for_each(|operation| facts.take(operation));
        for delivery in &history.deliveries {
            let seen = facts.seen.entry((&delivery.app, &delivery.event_id)).or_default();
            seen.exists.get_or_insert_with(|| format!("delivered at {}", seconds(delivery.at_us)));
        }
        let mut publishers: HashMap<Event<'a>, CompletionName<'a>> = HashMap::new();
        for (name, completion) in facts.completions.iter().filter(|(_, completion)| completion.possible) {
            for message in completion.messages {
                let event = (message.app.as_str(), message.event_id.as_str());
                if *publishers.entry(event).or_insert(*name) != *name {
                    facts.shared.insert(event);
                }
            }
        }
        facts
    }

    fn take(&mut self, operation: &'a Operation) {
        match (&operation.call, operation.reply()) {
            (Call::Complete { account, key, body, messages, .. }, reply) if !messages.is_empty() => {
                let completion = self.completions.entry(((account, key), body)).or_insert(Completion {
                    messages,
                    first_us: operation.invoked_us,
                    answered: None,
                    possible: false,
                });
                completion.first_us = completion.first_us.min(operation.invoked_us);
                if let Some(Reply::Completed { messages }) = reply {
                    completion.answered = Some(messages);
                }
                completion.possible |=
                    operation.may_have_applied() && matches!(reply, None | Some(Reply::Completed { .. }));
            }
            (Call::Begin { account, key, ttl_ms, .. }, _) => {
                let ttl_us = at_least_us(ttl_ms * 1_000);
                let least = self.ttl_us.entry((account, key)).or_insert(ttl_us);
                *least = ttl_us.min(*least);
            }
            (Call::GetRecord { account, key }, Some(reply)) if operation.last => {
                let body = if let Reply::Record { body, .. } = reply { body.as_deref() } else { None };
                self.records.insert((account, key), LastRecord { read_us: operation.returned_us, body });
            }
            (Call::Publish { app, message }, None | Some(Reply::Message { .. })) if operation.may_have_applied() => {
                self.shared.insert((app, &message.event_id));
            }
            (Call::GetMessage { app, event_id }, Some(reply)) => self.look(operation, (app, event_id), reply),
            _ => {}
        }
    }

    fn look(&mut self, operation: &Operation, event: Event<'a>, reply: &'a Reply) {
        let seen = self.seen.entry(event).or_default();
        let last = match reply {
            Reply::Message { id, digest } => {
                seen.exists.get_or_insert_with(|| format!("read at {}", seconds(operation.returned_us)));
                Last::Found { id, digest: digest.as_deref() }
            }
            _ => Last::Absent,
        };
        if operation.last {
            seen.last = Some(last);
        }
    }

    /// Whether it was stored; `None`: not known.
    fn is_stored(&self, (key, body): &CompletionName<'_>, completion: &Completion<'_>) -> Option<bool> {
        let record = self.records.get(key);
        if completion.answered.is_some() || record.is_some_and(|record| record.body == Some(body)) {
            return Some(true);
        }
        if !completion.possible {
            return Some(false);
        }
        let record = record?;
        let ttl_us = self.ttl_us.get(key).copied().unwrap_or(u64::MAX);
        let may_be_forgotten = record.read_us - completion.first_us.min(record.read_us) >= ttl_us;
        (!may_be_forgotten).then_some(false)
    }

    fn has_all(&self, ((account, key), body): &CompletionName<'_>, completion: &Completion<'_>, verdict: &mut Verdict) {
        for (place, message) in completion.messages.iter().enumerate() {
            let event = (message.app.as_str(), message.event_id.as_str());
            let Some(seen) = self.seen.get(&event) else { continue };
            let said = completion.answered.and_then(|ids| ids.get(place));
            let wrong = match &seen.last {
                Some(Last::Absent) => "does not exist".to_owned(),
                Some(Last::Found { id, .. }) if said.is_some_and(|said| said != id) => {
                    format!("is {id}, and not {} as answered", said.map_or("", String::as_str))
                }
                Some(Last::Found { digest: Some(digest), .. }) if *digest != message.digest => {
                    if self.shared.contains(&event) {
                        continue;
                    }
                    format!("has the digest {digest} instead of {}", message.digest)
                }
                _ => continue,
            };
            let event_id = &message.event_id;
            verdict
                .violated(format!("key {account}/{key}: completed with {body:?}, but its message {event_id} {wrong}"));
        }
    }

    fn has_none(
        &self,
        ((account, key), body): &CompletionName<'_>,
        completion: &Completion<'_>,
        verdict: &mut Verdict,
    ) {
        for message in completion.messages {
            let event = (message.app.as_str(), message.event_id.as_str());
            let seen = self.seen.get(&event).and_then(|seen| seen.exists.as_ref());
            if let Some(how) = seen.filter(|_| !self.shared.contains(&event)) {
                let event_id = &message.event_id;
                verdict.violated(format!(
                    "key {account}/{key}: the completion with {body:?} was not stored, but its message {event_id} exists, {how}"
                ));
            }
        }
    }
}
