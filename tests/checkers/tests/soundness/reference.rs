//! The reference: every promise kept in the plainest way, one call after the other, by a clock of its own speed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use onceward_checkers::history::{Algorithm, Call, Item, ItemResult, Message, Mode, Reply, Terms};

/// Units of a bucket's level to a token.
const TOKEN: u128 = 1_000_000_000;
const REQUEST_ID_US: u64 = 60_000_000;

pub struct Reference {
    clock_per_mille: u64,
    /// By its own clock.
    now_us: u64,
    revision: u64,
    token: u64,
    policies: BTreeMap<String, Policy>,
    buckets: HashMap<(String, String), Bucket>,
    admitted: HashMap<(String, String, String), Admitted>,
    records: HashMap<String, Record>,
    endpoints: BTreeMap<String, Endpoint>,
    messages: BTreeMap<String, Published>,
    due: Vec<Due>,
    asked: BTreeSet<String>,
    reads: Vec<Call>,
}

/// Endpoint, event id, message id, sequence and digest of a delivery.
pub type Due = (String, String, String, u64, String);

struct Policy {
    terms: Terms,
    revision: u64,
    life: u64,
}

struct Bucket {
    life: u64,
    resets: u64,
    level: u128,
    as_of_us: u64,
    /// Of a sliding window: when and how much.
    counted: Vec<(u64, u64)>,
}

#[derive(Clone)]
struct Admitted {
    life: u64,
    resets: u64,
    at_us: u64,
    cost: u64,
    remaining: u64,
    refunded: Option<u64>,
}

struct Record {
    token: u64,
    fingerprint: String,
    ttl_us: u64,
    state: State,
}

enum State {
    Held { attempt: String, hold: bool, ends_us: u64 },
    Completed { body: String, messages: Vec<Message>, ids: Vec<String>, at_us: u64 },
}

struct Endpoint {
    description: String,
    disabled: bool,
    sequence: u64,
}

struct Published {
    id: String,
    digest: String,
}

/// The terms that the policies of the test change between; the last policy's are always the same, and refill nothing.
pub fn terms(policy: usize, choice: usize) -> Terms {
    let (algorithm, amount, window_us, burst) = match (policy, choice) {
        (0, 0) => (Algorithm::TokenBucket, 10, 1_000_000, 5),
        (0, 1) => (Algorithm::TokenBucket, 2, 1_000_000, 12),
        (0, _) => (Algorithm::TokenBucket, 30, 2_000_000, 2),
        (1, 0) => (Algorithm::SlidingWindow, 4, 300_000, 4),
        (1, 1) => (Algorithm::SlidingWindow, 6, 300_000, 6),
        (1, _) => (Algorithm::SlidingWindow, 4, 900_000, 4),
        _ => (Algorithm::TokenBucket, 1, 31_536_000_000_000, 8),
    };
    Terms { algorithm, amount, window_us, burst, on_unavailable: "deny".to_owned() }
}

impl Reference {
    pub fn new(clock_per_mille: u64) -> Reference {
        Reference {
            clock_per_mille,
            now_us: 0,
            revision: 0,
            token: 0,
            policies: BTreeMap::new(),
            buckets: HashMap::new(),
            admitted: HashMap::new(),
            records: HashMap::new(),
            endpoints: BTreeMap::new(),
            messages: BTreeMap::new(),
            due: Vec::new(),
            asked: BTreeSet::new(),
            reads: Vec::new(),
        }
    }

    /// The greatest token given.
    pub fn tokens(&self) -> u64 {
        self.token
    }

    pub fn due(&mut self) -> Vec<Due> {
        std::mem::take(&mut self.due)
    }

    /// Reads of all that was ever asked for.
    pub fn reads(&self) -> Vec<Call> {
        self.reads.clone()
    }

    pub fn apply(&mut self, call: &Call, real_us: u64) -> Reply {
        self.now_us = real_us * self.clock_per_mille / 1_000;
        self.note(call);
        match call {
            Call::Check { items, mode, request_id } => self.check(items, *mode, request_id.as_deref()),
            Call::Refund { policy, key, cost, request_id } => self.refund(policy, key, *cost, request_id),
            Call::Reset { policy, key } => self.reset(policy, key),
            Call::PutPolicy { policy, terms } => self.put_policy(policy, terms),
            Call::GetPolicy { policy } => self.policies.get(policy).map_or(Reply::NotFound, |policy| Reply::Policy {
                terms: policy.terms.clone(),
                revision: policy.revision,
                pending: false,
            }),
            Call::DeletePolicy { policy } => match self.policies.remove(policy) {
                Some(_) => Reply::Deleted,
                None => Reply::NotFound,
            },
            Call::Begin { key, fingerprint, attempt_id, lease_ms, ttl_ms, hold, .. } => {
                let ends_us = self.now_us + lease_ms * 1_000;
                let state = State::Held { attempt: attempt_id.clone(), hold: *hold, ends_us };
                self.begin(key, Record { token: 0, fingerprint: fingerprint.clone(), ttl_us: ttl_ms * 1_000, state })
            }
            Call::Complete { key, token, body, messages, .. } => self.complete(key, *token, body, messages),
            Call::Abandon { key, token, .. } => match self.held_by(key, *token) {
                Ok(_) => {
                    self.records.remove(key);
                    Reply::Abandoned
                }
                Err(reply) => reply,
            },
            Call::Extend { key, token, lease_ms, .. } => {
                let until_us = self.now_us + lease_ms * 1_000;
                match self.held_by(key, *token) {
                    Ok(ends_us) => {
                        *ends_us = until_us;
                        Reply::Extended
                    }
                    Err(reply) => reply,
                }
            }
            Call::GetRecord { key, .. } => self.get_record(key),
            Call::PutEndpoint { endpoint, description, disabled, .. } => {
                let new = Endpoint { description: String::new(), disabled: false, sequence: 0 };
                let stored = self.endpoints.entry(endpoint.clone()).or_insert(new);
                (stored.description, stored.disabled) = (description.clone(), *disabled);
                Reply::Endpoint { description: description.clone(), disabled: *disabled }
            }
            Call::GetEndpoint { endpoint, .. } => self.endpoints.get(endpoint).map_or(Reply::NotFound, |stored| {
                Reply::Endpoint { description: stored.description.clone(), disabled: stored.disabled }
            }),
            Call::DeleteEndpoint { endpoint, .. } => match self.endpoints.remove(endpoint) {
                Some(_) => Reply::Deleted,
                None => Reply::NotFound,
            },
            Call::Publish { message, .. } => match self.publish(message) {
                Some(id) => Reply::Message { id, digest: None },
                None => Reply::Conflict,
            },
            Call::GetMessage { event_id, .. } => self.messages.get(event_id).map_or(Reply::NotFound, |stored| {
                Reply::Message { id: stored.id.clone(), digest: Some(stored.digest.clone()) }
            }),
            Call::CreateApp { .. } | Call::GetDelivery { .. } => Reply::NotFound,
        }
    }

    /// Remembers how to read what a call may leave.
    fn note(&mut self, call: &Call) {
        let reads = match call.clone() {
            Call::PutPolicy { policy, .. } => vec![Call::GetPolicy { policy }],
            Call::Begin { account, key, .. } => vec![Call::GetRecord { account, key }],
            Call::PutEndpoint { app, endpoint, .. } => vec![Call::GetEndpoint { app, endpoint }],
            Call::Publish { app, message } => vec![Call::GetMessage { app, event_id: message.event_id }],
            Call::Complete { messages, .. } => {
                messages.into_iter().map(|sent| Call::GetMessage { app: sent.app, event_id: sent.event_id }).collect()
            }
            _ => Vec::new(),
        };
        for read in reads {
            if self.asked.insert(format!("{read:?}")) {
                self.reads.push(read);
            }
        }
    }

    fn put_policy(&mut self, name: &str, terms: &Terms) -> Reply {
        // What is written as it stands keeps its revision.
        if let Some(policy) = self.policies.get(name).filter(|policy| policy.terms == *terms) {
            return Reply::Policy { terms: terms.clone(), revision: policy.revision, pending: false };
        }
        self.revision += 1;
        let life = self.policies.get(name).map_or(self.revision, |policy| policy.life);
        let names: Vec<_> = self.buckets.keys().filter(|(policy, _)| policy == name).cloned().collect();
        for (_, key) in names {
            let Some((old, mut bucket)) = self.bucket(name, &key) else { continue };
            let full = bucket.level >= capacity(&old);
            let moves = (old.algorithm, old.window_us) != (terms.algorithm, terms.window_us);
            bucket.level = if full { capacity(terms) } else { bucket.level.min(capacity(terms)) };
            if moves && terms.algorithm == Algorithm::SlidingWindow {
                bucket.counted.clear();
            }
            self.buckets.insert((name.to_owned(), key), bucket);
        }
        let policy = Policy { terms: terms.clone(), revision: self.revision, life };
        self.policies.insert(name.to_owned(), policy);
        Reply::Policy { terms: terms.clone(), revision: self.revision, pending: false }
    }

    /// The bucket as it stands now.
    fn bucket(&mut self, policy: &str, key: &str) -> Option<(Terms, Bucket)> {
        let Policy { terms, life, .. } = self.policies.get(policy)?;
        let full =
            || Bucket { life: *life, resets: 0, level: capacity(terms), as_of_us: self.now_us, counted: Vec::new() };
        let stored = self.buckets.remove(&(policy.to_owned(), key.to_owned())).filter(|bucket| bucket.life == *life);
        let mut bucket = stored.unwrap_or_else(full);
        let passed_us = u128::from(self.now_us - bucket.as_of_us);
        let refilled = u128::from(terms.amount) * TOKEN * passed_us / u128::from(terms.window_us);
        bucket.level = (bucket.level + refilled).min(capacity(terms));
        bucket.as_of_us = self.now_us;
        bucket.counted.retain(|(at_us, _)| at_us + terms.window_us > self.now_us);
        Some((terms.clone(), bucket))
    }

    fn check(&mut self, items: &[Item], mode: Mode, request_id: Option<&str>) -> Reply {
        let mut results = Vec::new();
        let mut costs: BTreeMap<(String, String), u64> = BTreeMap::new();
        for Item { policy, key, cost } in items {
            *costs.entry((policy.clone(), key.clone())).or_default() += cost;
        }
        let mut taken = Vec::new();
        for Item { policy, key, .. } in items {
            let cost = costs[&(policy.clone(), key.clone())];
            let Some((terms, bucket)) = self.bucket(policy, key) else { return Reply::NotFound };
            let left = left(&terms, &bucket);
            let (life, resets) = (bucket.life, bucket.resets);
            self.buckets.insert((policy.clone(), key.clone()), bucket);
            if let Some(earlier) = request_id.and_then(|id| self.admitted(policy, key, id)) {
                if earlier.cost != cost {
                    return Reply::Mismatch;
                }
                results.push(result(true, &terms, earlier.remaining));
                continue;
            }
            results.push(result(cost <= left, &terms, if cost <= left { left - cost } else { left }));
            taken.push((
                policy.clone(),
                key.clone(),
                Admitted {
                    life,
                    resets,
                    at_us: self.now_us,
                    cost,
                    remaining: left.saturating_sub(cost),
                    refunded: None,
                },
            ));
        }
        let allowed = results.iter().all(|result| result.allowed);
        if allowed && mode != Mode::Peek {
            let mut once = BTreeSet::new();
            for (policy, key, admitted) in taken {
                if once.insert((policy.clone(), key.clone())) {
                    self.take(&policy, &key, admitted.cost);
                }
                if let Some(id) = request_id {
                    self.admitted.insert((policy, key, id.to_owned()), admitted);
                }
            }
        }
        Reply::Checked { allowed, results }
    }

    fn take(&mut self, policy: &str, key: &str, cost: u64) {
        let bucket = self.buckets.get_mut(&(policy.to_owned(), key.to_owned())).expect("it was looked at");
        bucket.level = bucket.level.saturating_sub(u128::from(cost) * TOKEN);
        bucket.counted.push((self.now_us, cost));
    }

    fn admitted(&self, policy: &str, key: &str, id: &str) -> Option<Admitted> {
        let life = self.policies.get(policy)?.life;
        let admitted = self.admitted.get(&(policy.to_owned(), key.to_owned(), id.to_owned()))?;
        (admitted.life == life && self.now_us - admitted.at_us < REQUEST_ID_US).then(|| admitted.clone())
    }

    fn refund(&mut self, policy: &str, key: &str, cost: u64, id: &str) -> Reply {
        let Some(mut admitted) = self.admitted(policy, key, id) else { return Reply::NotFound };
        match admitted.refunded {
            Some(refunded) if refunded == cost => return Reply::Refunded,
            None if cost <= admitted.cost => {}
            _ => return Reply::Mismatch,
        }
        let Some((terms, mut bucket)) = self.bucket(policy, key) else { return Reply::NotFound };
        if bucket.resets == admitted.resets {
            bucket.level = (bucket.level + u128::from(cost) * TOKEN).min(capacity(&terms));
            if let Some((_, counted)) = bucket.counted.iter_mut().find(|(at_us, _)| *at_us == admitted.at_us) {
                *counted = counted.saturating_sub(cost);
            }
        }
        self.buckets.insert((policy.to_owned(), key.to_owned()), bucket);
        admitted.refunded = Some(cost);
        self.admitted.insert((policy.to_owned(), key.to_owned(), id.to_owned()), admitted);
        Reply::Refunded
    }

    fn reset(&mut self, policy: &str, key: &str) -> Reply {
        let Some((terms, mut bucket)) = self.bucket(policy, key) else { return Reply::NotFound };
        bucket.level = capacity(&terms);
        bucket.counted.clear();
        bucket.resets += 1;
        self.buckets.insert((policy.to_owned(), key.to_owned()), bucket);
        Reply::Reset
    }

    /// Forgets the record if its time is over.
    fn look(&mut self, key: &str) -> Option<&mut Record> {
        let gone = self.records.get(key).is_some_and(|record| match &record.state {
            State::Held { hold: true, .. } => false,
            State::Held { ends_us, .. } => self.now_us >= ends_us + record.ttl_us,
            State::Completed { at_us, .. } => self.now_us >= at_us + record.ttl_us,
        });
        if gone {
            self.records.remove(key);
        }
        self.records.get_mut(key)
    }

    fn begin(&mut self, key: &str, new: Record) -> Reply {
        let now_us = self.now_us;
        let State::Held { attempt: asking, .. } = &new.state else { return Reply::NotFound };
        if let Some(record) = self.look(key) {
            if record.fingerprint != new.fingerprint {
                return Reply::FingerprintMismatch;
            }
            match &record.state {
                State::Completed { body, .. } => return Reply::Replayed { status: 200, body: body.clone() },
                State::Held { ends_us, attempt, .. } if now_us < *ends_us => {
                    return if attempt == asking { Reply::Started { token: record.token } } else { Reply::InProgress };
                }
                State::Held { hold: true, .. } => return Reply::Indeterminate,
                State::Held { .. } => {}
            }
        }
        self.token += 1;
        self.records.insert(key.to_owned(), Record { token: self.token, ..new });
        Reply::Started { token: self.token }
    }

    /// The end of the lease, where this token is the newest and nothing is completed.
    fn held_by(&mut self, key: &str, token: u64) -> Result<&mut u64, Reply> {
        match self.look(key) {
            Some(record) if record.token == token => match &mut record.state {
                State::Held { ends_us, .. } => Ok(ends_us),
                State::Completed { .. } => Err(Reply::AlreadyCompleted),
            },
            _ => Err(Reply::Fenced),
        }
    }

    fn complete(&mut self, key: &str, token: u64, body: &str, messages: &[Message]) -> Reply {
        let at_us = self.now_us;
        let Some(record) = self.look(key).filter(|record| record.token == token) else { return Reply::Fenced };
        if let State::Completed { body: stored, messages: with, ids, .. } = &record.state {
            let same = stored == body && with == messages;
            return if same { Reply::Completed { messages: ids.clone() } } else { Reply::AlreadyCompleted };
        }
        let taken =
            |message: &&Message| self.messages.get(&message.event_id).is_some_and(|m| m.digest != message.digest);
        if messages.iter().any(|message| taken(&message)) {
            return Reply::MessageRefused { code: "event_id_taken".to_owned() };
        }
        let ids: Vec<_> = messages.iter().filter_map(|message| self.publish(message)).collect();
        let record = self.records.get_mut(key).expect("it was just there");
        let (body, messages) = (body.to_owned(), messages.to_vec());
        record.state = State::Completed { body, messages, ids: ids.clone(), at_us };
        Reply::Completed { messages: ids }
    }

    fn get_record(&mut self, key: &str) -> Reply {
        let now_us = self.now_us;
        let Some(record) = self.look(key) else { return Reply::NotFound };
        let (state, body) = match &record.state {
            State::Held { hold: true, ends_us, .. } if now_us >= *ends_us => ("indeterminate", None),
            State::Held { .. } => ("in_progress", None),
            State::Completed { body, .. } => ("completed", Some(body.clone())),
        };
        Reply::Record { state: state.to_owned(), body }
    }

    fn publish(&mut self, message: &Message) -> Option<String> {
        if let Some(earlier) = self.messages.get(&message.event_id) {
            return (earlier.digest == message.digest).then(|| earlier.id.clone());
        }
        let id = format!("msg_{}", self.messages.len());
        for (name, endpoint) in &mut self.endpoints {
            endpoint.sequence += 1;
            let (event_id, digest) = (message.event_id.clone(), message.digest.clone());
            self.due.push((name.clone(), event_id, id.clone(), endpoint.sequence, digest));
        }
        let published = Published { id: id.clone(), digest: message.digest.clone() };
        self.messages.insert(message.event_id.clone(), published);
        Some(id)
    }
}

fn capacity(terms: &Terms) -> u128 {
    u128::from(terms.burst) * TOKEN
}

/// Whole tokens that can be taken.
fn left(terms: &Terms, bucket: &Bucket) -> u64 {
    match terms.algorithm {
        Algorithm::TokenBucket => u64::try_from(bucket.level / TOKEN).expect("a level is at most a capacity"),
        Algorithm::SlidingWindow => {
            terms.amount.saturating_sub(bucket.counted.iter().map(|(_, cost)| cost).sum::<u64>())
        }
    }
}

fn result(allowed: bool, terms: &Terms, remaining: u64) -> ItemResult {
    ItemResult { allowed, limit: terms.burst, remaining, retry_after_ms: None, degraded: false }
}
