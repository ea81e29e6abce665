//! An idempotency record as a sequential object that knows time: what calls on a key may be answered, one after the other.
//!
//! A lease, or a record's time to live, ends at the earliest when so much time has passed by the fastest clock since the call that
//! granted it began; it may end any time later, since shards' clocks may run slow.

use std::{collections::BTreeMap, marker::PhantomData};

use crate::{
    bounds::at_least_us,
    history::{Call, History, Message, Operation, Reply},
    linear::{self, Judgement, Model, Span},
};

/// An account and a key in it.
pub(crate) type KeyName<'a> = (&'a str, &'a str);

/// All calls on each key that may have taken effect, and the reads.
pub(crate) fn by_key(history: &History) -> BTreeMap<KeyName<'_>, Vec<&Operation>> {
    let mut keys: BTreeMap<KeyName<'_>, Vec<&Operation>> = BTreeMap::new();
    for operation in history.operations.iter().filter(|operation| operation.may_have_applied()) {
        if let Some(name) = key_of(&operation.call) {
            keys.entry(name).or_default().push(operation);
        }
    }
    keys
}

pub(crate) fn key_of(call: &Call) -> Option<KeyName<'_>> {
    match call {
        Call::Begin { account, key, .. }
        | Call::Complete { account, key, .. }
        | Call::Abandon { account, key, .. }
        | Call::Extend { account, key, .. }
        | Call::GetRecord { account, key } => Some((account, key)),
        _ => None,
    }
}

/// Judges the calls on one key; with the one that nothing explains where there is one.
pub(crate) fn judge<'a>(operations: impl Iterator<Item = &'a Operation>) -> (Judgement, Option<&'a Operation>) {
    let mut spans = Vec::new();
    for operation in operations {
        let reply = operation.reply();
        if reply.is_none() && matches!(operation.call, Call::GetRecord { .. }) {
            continue;
        }
        let returned_us = reply.map(|_| operation.returned_us);
        spans.push(Span { invoked_us: operation.invoked_us, returned_us, call: Asked { operation, reply } });
        spans.extend(second_win(operation));
    }
    let judgement = linear::judge(&Record(PhantomData), &spans);
    let blamed = if let Judgement::Violated(at) = judgement { Some(spans[at].call.operation) } else { None };
    (judgement, blamed)
}

/// A node that doesn't know what became of a `begin` sends it again under the same attempt. Where the lease can be over by
/// the time that arrives, one call wins twice.
fn second_win(operation: &Operation) -> Option<Span<Asked<'_>>> {
    let Call::Begin { lease_ms, .. } = &operation.call else { return None };
    let took_us = operation.returned_us - operation.invoked_us;
    let may_lapse = operation.reply().is_none() || took_us >= at_least_us(lease_ms * 1_000);
    let call = Asked { operation, reply: None };
    may_lapse.then_some(Span { invoked_us: operation.invoked_us, returned_us: None, call })
}

struct Asked<'a> {
    operation: &'a Operation,
    /// None: unknown.
    reply: Option<&'a Reply>,
}

/// The model.
struct Record<'a>(PhantomData<&'a Operation>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State<'a> {
    /// The greatest token that is known to have been given.
    token_max: u64,
    standing: Standing<'a>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Standing<'a> {
    Absent,
    Held(Holding<'a>),
    Completed { token: u64, fingerprint: &'a str, body: &'a str, messages: &'a [Message], expires_us: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Holding<'a> {
    /// None: of a win whose answer nobody got.
    token: Option<u64>,
    attempt: &'a str,
    fingerprint: &'a str,
    hold: bool,
    /// When the lease may be over, at the earliest.
    lapses_us: u64,
    ttl_us: u64,
}

impl<'a> Model for Record<'a> {
    type Call = Asked<'a>;
    type State = State<'a>;

    fn initial(&self) -> State<'a> {
        State { token_max: 0, standing: Standing::Absent }
    }

    fn step(&self, state: &State<'a>, asked: &Asked<'a>, until_us: u64) -> Vec<State<'a>> {
        let absent = State { standing: Standing::Absent, ..state.clone() };
        let views = std::iter::once(state.clone()).chain(state.may_be_gone(until_us).then_some(absent));
        views.flat_map(|view| view.after(asked, until_us)).collect()
    }
}

impl<'a> State<'a> {
    fn may_be_gone(&self, until_us: u64) -> bool {
        match &self.standing {
            Standing::Absent => false,
            Standing::Held(holding) => !holding.hold && until_us >= holding.lapses_us.saturating_add(holding.ttl_us),
            Standing::Completed { expires_us, .. } => until_us >= *expires_us,
        }
    }

    fn after(self, asked: &Asked<'a>, until_us: u64) -> Vec<State<'a>> {
        let (operation, reply) = (asked.operation, asked.reply);
        match &operation.call {
            Call::Begin { .. } => self.begin(operation, reply, until_us),
            Call::Complete { token, body, messages, .. } => {
                self.complete(operation, *token, body, messages, reply).into_iter().collect()
            }
            Call::Abandon { token, .. } => self.abandon(*token, reply).into_iter().collect(),
            Call::Extend { token, lease_ms, .. } => {
                let lapses_us = operation.invoked_us.saturating_add(at_least_us(lease_ms * 1_000));
                self.extend(*token, lapses_us, reply).into_iter().collect()
            }
            _ => {
                if self.reads_as(reply, until_us) {
                    vec![self]
                } else {
                    Vec::new()
                }
            }
        }
    }

    fn begin(self, operation: &'a Operation, reply: Option<&Reply>, until_us: u64) -> Vec<State<'a>> {
        let Call::Begin { fingerprint, attempt_id, .. } = &operation.call else { return Vec::new() };
        let same = |known: &str| known == fingerprint.as_str();
        match (&self.standing, reply) {
            (Standing::Absent, _) => self.won(operation, reply).into_iter().collect(),
            (Standing::Held(Holding { fingerprint, .. }) | Standing::Completed { fingerprint, .. }, _)
                if !same(fingerprint) =>
            {
                if matches!(reply, Some(Reply::FingerprintMismatch)) {
                    vec![self]
                } else {
                    Vec::new()
                }
            }
            (Standing::Completed { body: stored, .. }, Some(Reply::Replayed { body, .. })) if body == stored => {
                vec![self]
            }
            (Standing::Completed { .. }, _) => Vec::new(),
            (Standing::Held(holding), _) => {
                let (own, lapsed) = (holding.attempt == attempt_id, until_us >= holding.lapses_us);
                let hold = holding.hold;
                let mut states = Vec::new();
                match reply {
                    Some(Reply::InProgress) if !own => states.push(self.clone()),
                    Some(Reply::Indeterminate) if hold && lapsed => states.push(self.clone()),
                    Some(Reply::Started { token }) if own => states.extend(self.clone().owned_by(*token)),
                    _ => {}
                }
                if lapsed && !hold {
                    states.extend(self.won(operation, reply));
                }
                states
            }
        }
    }

    fn won(self, operation: &'a Operation, reply: Option<&Reply>) -> Option<State<'a>> {
        let Call::Begin { fingerprint, attempt_id, lease_ms, ttl_ms, hold, .. } = &operation.call else { return None };
        let (token, token_max) = match reply {
            None => (None, self.token_max),
            Some(Reply::Started { token }) if *token > self.token_max => (Some(*token), *token),
            Some(_) => return None,
        };
        let standing = Standing::Held(Holding {
            token,
            attempt: attempt_id,
            fingerprint,
            hold: *hold,
            lapses_us: operation.invoked_us.saturating_add(at_least_us(lease_ms * 1_000)),
            ttl_us: at_least_us(ttl_ms * 1_000),
        });
        Some(State { token_max, standing })
    }

    /// The record as held by this token, if it can be.
    fn owned_by(self, token: u64) -> Option<State<'a>> {
        let Standing::Held(holding) = &self.standing else { return None };
        match holding.token {
            Some(known) if known == token => Some(self),
            None if token > self.token_max => {
                let standing = Standing::Held(Holding { token: Some(token), ..holding.clone() });
                Some(State { token_max: token, standing })
            }
            _ => None,
        }
    }

    /// Whether a call with this token can be fenced.
    fn fences(&self, token: u64) -> bool {
        match &self.standing {
            Standing::Absent => true,
            Standing::Held(holding) => holding.token != Some(token),
            Standing::Completed { token: newest, .. } => *newest != token,
        }
    }

    fn is_completed_by(&self, token: u64) -> bool {
        matches!(&self.standing, Standing::Completed { token: newest, .. } if *newest == token)
    }

    fn complete(
        self,
        operation: &Operation,
        token: u64,
        body: &'a str,
        messages: &'a [Message],
        reply: Option<&Reply>,
    ) -> Option<State<'a>> {
        match reply {
            Some(Reply::Fenced) => self.fences(token).then_some(self),
            Some(Reply::MessageRefused { .. }) => self.owned_by(token),
            Some(Reply::AlreadyCompleted) => {
                (self.is_completed_by(token) && !self.stores(body, messages)).then_some(self)
            }
            Some(Reply::Completed { .. }) if self.is_completed_by(token) => self.stores(body, messages).then_some(self),
            Some(Reply::Completed { .. }) | None => {
                let State { token_max, standing } = self.owned_by(token)?;
                let Standing::Held(Holding { fingerprint, ttl_us, .. }) = standing else { return None };
                let expires_us = operation.invoked_us.saturating_add(ttl_us);
                Some(State {
                    token_max,
                    standing: Standing::Completed { token, fingerprint, body, messages, expires_us },
                })
            }
            Some(_) => None,
        }
    }

    fn stores(&self, wanted: &str, with: &[Message]) -> bool {
        matches!(&self.standing, Standing::Completed { body, messages, .. } if *body == wanted && *messages == with)
    }

    fn abandon(self, token: u64, reply: Option<&Reply>) -> Option<State<'a>> {
        match reply {
            Some(Reply::Fenced) => self.fences(token).then_some(self),
            Some(Reply::AlreadyCompleted) => self.is_completed_by(token).then_some(self),
            Some(Reply::Abandoned) | None => {
                let State { token_max, .. } = self.owned_by(token)?;
                Some(State { token_max, standing: Standing::Absent })
            }
            Some(_) => None,
        }
    }

    fn extend(self, token: u64, lapses_us: u64, reply: Option<&Reply>) -> Option<State<'a>> {
        match reply {
            Some(Reply::Fenced) => self.fences(token).then_some(self),
            Some(Reply::AlreadyCompleted) => self.is_completed_by(token).then_some(self),
            Some(Reply::Extended) | None => {
                let State { token_max, standing } = self.owned_by(token)?;
                let Standing::Held(holding) = standing else { return None };
                Some(State { token_max, standing: Standing::Held(Holding { lapses_us, ..holding }) })
            }
            Some(_) => None,
        }
    }

    fn reads_as(&self, reply: Option<&Reply>, until_us: u64) -> bool {
        match (&self.standing, reply) {
            (Standing::Absent, Some(Reply::NotFound)) => true,
            (Standing::Held(holding), Some(Reply::Record { state, .. })) => {
                state == "in_progress" || state == "indeterminate" && holding.hold && until_us >= holding.lapses_us
            }
            (Standing::Completed { body: stored, .. }, Some(Reply::Record { state, body })) => {
                state == "completed" && body.as_deref() == Some(stored)
            }
            _ => false,
        }
    }
}
