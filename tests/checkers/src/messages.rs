//! What a history tells of each message: who may have published it, since when it certainly existed, and by which id.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    history::{Call, History, Message, Operation, Reply},
    record::KeyName,
};

/// An application and the event id of a message in it.
pub(crate) type Event<'a> = (&'a str, &'a str);

#[derive(Debug, Clone)]
pub(crate) struct Published<'a> {
    /// When the first call that may have published it began; `u64::MAX`: there was none.
    pub first_us: u64,
    /// By when it certainly was published: answered, read or delivered.
    pub accepted_us: Option<u64>,
    /// What may have been published as its payload.
    pub digests: BTreeSet<&'a str>,
    /// As publishers and readers were told.
    pub ids: BTreeSet<&'a str>,
    /// Calls that carried it and were refused.
    pub refused: bool,
}

pub(crate) fn published(history: &History) -> BTreeMap<Event<'_>, Published<'_>> {
    let mut messages = Messages { all: BTreeMap::new(), of_completions: HashMap::new() };
    history.operations.iter().for_each(|operation| messages.send(operation));
    history.operations.iter().for_each(|operation| messages.see(operation));
    for delivery in &history.deliveries {
        messages.entry((&delivery.app, &delivery.event_id)).accept(delivery.at_us);
    }
    messages.all
}

struct Messages<'a> {
    all: BTreeMap<Event<'a>, Published<'a>>,
    of_completions: HashMap<(KeyName<'a>, &'a str), &'a [Message]>,
}

impl<'a> Messages<'a> {
    fn entry(&mut self, event: Event<'a>) -> &mut Published<'a> {
        self.all.entry(event).or_insert_with(|| Published {
            first_us: u64::MAX,
            accepted_us: None,
            digests: BTreeSet::new(),
            ids: BTreeSet::new(),
            refused: false,
        })
    }

    fn send(&mut self, operation: &'a Operation) {
        let messages = match &operation.call {
            Call::Publish { message, .. } => std::slice::from_ref(message),
            Call::Complete { account, key, body, messages, .. } => {
                if operation.may_have_applied() {
                    self.of_completions.insert(((account, key), body), messages);
                }
                messages
            }
            _ => return,
        };
        let possible = match operation.reply() {
            Some(Reply::Message { .. } | Reply::Completed { .. }) => true,
            Some(_) => false,
            None => operation.may_have_applied(),
        };
        for message in messages {
            let known = self.entry((&message.app, &message.event_id));
            known.refused |= !operation.may_have_applied();
            if possible {
                known.first_us = known.first_us.min(operation.invoked_us);
                known.digests.insert(&message.digest);
            }
        }
    }

    fn see(&mut self, operation: &'a Operation) {
        let at_us = operation.returned_us;
        match (&operation.call, operation.reply()) {
            (Call::Publish { message, .. }, Some(Reply::Message { id, .. })) => {
                self.entry((&message.app, &message.event_id)).accept(at_us).ids.insert(id);
            }
            (Call::GetMessage { app, event_id }, Some(Reply::Message { id, .. })) => {
                self.entry((app, event_id)).accept(at_us).ids.insert(id);
            }
            (Call::Complete { messages, .. }, Some(Reply::Completed { messages: ids })) => {
                for (place, message) in messages.iter().enumerate() {
                    let known = self.entry((&message.app, &message.event_id)).accept(at_us);
                    known.ids.extend(ids.get(place).map(String::as_str));
                }
            }
            (Call::Begin { account, key, .. }, Some(Reply::Replayed { body, .. }))
            | (Call::GetRecord { account, key }, Some(Reply::Record { body: Some(body), .. })) => {
                let messages = self.of_completions.get(&((account, key), body)).copied().unwrap_or_default();
                for message in messages {
                    self.entry((&message.app, &message.event_id)).accept(at_us);
                }
            }
            _ => {}
        }
    }
}

impl Published<'_> {
    fn accept(&mut self, at_us: u64) -> &mut Self {
        self.accepted_us = Some(self.accepted_us.map_or(at_us, |known| known.min(at_us)));
        self
    }

    /// Whether anything may have published it.
    pub(crate) fn possible(&self) -> bool {
        self.first_us != u64::MAX
    }
}
