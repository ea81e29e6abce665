//! A shard without replication: commands are applied at once, and a test decides who leads and what a report meets.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use onceward_core::{
    cluster::ShardId,
    codec::keys::{self, Kind},
    command::{Command, EntryBatch, Reply},
    machine::Machine,
    query::{Answer, Query, answer},
    rows::{ReadRows, RowsError},
    time::ShardTime,
    webhooks::*,
};
use onceward_dispatch::{Feed, Recorded, Touched};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::rows::MemoryRows;

const DAY_US: u64 = 86_400_000_000;

pub struct Shard {
    state: Mutex<(Machine, MemoryRows)>,
    began: Instant,
    /// By how much its clock was set forward.
    ahead_us: AtomicU64,
    pub term: watch::Sender<Option<u64>>,
    /// Whether a majority said within the lease that this node leads.
    pub leads: AtomicBool,
    touched: Mutex<HashSet<EndpointKey>>,
    came: Notify,
    /// What reports meet first; then they are applied.
    pub meets: Mutex<VecDeque<Fault>>,
    pub reports: AtomicUsize,
}

/// What may happen to a report.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    Refused,
    /// It is applied, and nobody is told.
    AppliedUnknown,
}

impl Shard {
    /// A shard that this node leads, with the application `acme`.
    pub fn leading() -> Arc<Shard> {
        let shard = Shard::new();
        shard.term.send_replace(Some(1));
        shard
    }

    pub fn new() -> Arc<Shard> {
        let shard = Arc::new(Shard {
            state: Mutex::new((Machine::new(ShardId(1)), MemoryRows::default())),
            began: Instant::now(),
            ahead_us: AtomicU64::new(0),
            term: watch::Sender::new(None),
            leads: AtomicBool::new(true),
            touched: Mutex::default(),
            came: Notify::new(),
            meets: Mutex::default(),
            reports: AtomicUsize::new(0),
        });
        let spec = AppSpec { name: "Acme".to_owned(), rate_limit: None, metadata: BTreeMap::new() };
        shard.act(Action::CreateApp(CreateApp { uid: Some(name("acme")), spec, get_if_exists: false }));
        shard
    }

    pub fn set_forward(&self, seconds: u64) {
        self.ahead_us.fetch_add(seconds * 1_000_000, Relaxed);
    }

    fn apply(&self, command: Command) -> Reply {
        let mut state = self.state.lock();
        let (machine, rows) = &mut *state;
        let stamp = ShardTime(1_000_000 + self.began.elapsed().as_micros() as u64 + self.ahead_us.load(Relaxed));
        let mut replies = machine.apply(rows, &EntryBatch { stamp, commands: vec![command] }).unwrap();
        let moved = machine.take_moved();
        self.touched.lock().extend(moved.iter().filter_map(|row| endpoint_of(row)));
        self.came.notify_one();
        replies.remove(0)
    }

    pub fn act(&self, action: Action) -> WebhookReply {
        let command = WebhookCommand { action, request: None, nonce: [7; 6], wall_ms: 1 };
        match self.apply(Command::Webhook(Box::new(command))) {
            Reply::Webhook(reply) => *reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn query(&self, query: WebhookQuery) -> WebhookAnswer {
        match answer(ShardId(1), &self.state.lock().1, &Query::Webhook(query)).unwrap() {
            Answer::Webhook(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub fn endpoint(&self, url: &str) -> EndpointId {
        self.endpoint_with(url, None)
    }

    pub fn endpoint_with(&self, url: &str, rate_limit: Option<u32>) -> EndpointId {
        let spec = EndpointSpec {
            url: url.to_owned(),
            description: String::new(),
            rate_limit,
            disabled: false,
            event_types: None,
            channels: Some([url.to_owned()].into()),
            metadata: BTreeMap::new(),
        };
        let create = CreateEndpoint { app: acme(), uid: None, spec, headers: Headers::new(), secret: secret(1) };
        match self.act(Action::CreateEndpoint(create)) {
            WebhookReply::Endpoint { endpoint, .. } => endpoint.id,
            other => panic!("{other:?}"),
        }
    }

    pub fn patch(&self, endpoint: EndpointId, patch: EndpointPatch) {
        let endpoint = EndpointRef::Id(endpoint);
        let reply = self.act(Action::PatchEndpoint(PatchEndpoint { app: acme(), endpoint, patch }));
        assert!(matches!(reply, WebhookReply::Endpoint { .. }), "{reply:?}");
    }

    pub fn is_disabled(&self, endpoint: EndpointId) -> bool {
        match self.query(WebhookQuery::Endpoint { app: acme(), endpoint: EndpointRef::Id(endpoint) }) {
            WebhookAnswer::Endpoint(endpoint) => endpoint.spec.disabled,
            other => panic!("{other:?}"),
        }
    }

    /// Publishes to the endpoint with this URL.
    pub fn publish(&self, url: &str, payload: &str) -> MessageId {
        let message = NewMessage {
            event_type: name("invoice.paid"),
            event_id: None,
            channels: vec![url.to_owned()],
            tags: Vec::new(),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            payload_retention_us: None,
        };
        match self.act(Action::Publish(Publish { app: acme(), message, retention_us: 90 * DAY_US })) {
            WebhookReply::Published { message, .. } => message.id,
            other => panic!("{other:?}"),
        }
    }

    /// The attempts of a message, the first first.
    pub fn attempts(&self, message: MessageId) -> Vec<AttemptView> {
        let query = WebhookQuery::AttemptsOfMessage {
            app: acme(),
            message: MessageRef::Id(message),
            filter: AttemptFilter::default(),
            page: PageIn { cursor: None, backwards: false, descending: false, limit: 250 },
        };
        match self.query(query) {
            WebhookAnswer::Attempts(page) => page.items,
            other => panic!("{other:?}"),
        }
    }

    /// How many deliveries still have to be made.
    pub fn pending(&self) -> usize {
        self.state
            .lock()
            .1
            .scan(onceward_core::rows::Table::State, &Kind::Due.prefix(), None, usize::MAX)
            .unwrap()
            .len()
    }
}

impl Feed for Shard {
    fn shard(&self) -> ShardId {
        ShardId(1)
    }

    fn terms(&self) -> BoxStream<'static, Option<u64>> {
        let mut terms = self.term.subscribe();
        terms.mark_changed();
        stream::unfold(terms, |mut terms| async move {
            terms.changed().await.ok()?;
            let term = *terms.borrow_and_update();
            Some((term, terms))
        })
        .boxed()
    }

    fn catch_up(&self) -> BoxFuture<'_, bool> {
        std::future::ready(self.leads.load(Relaxed)).boxed()
    }

    fn leads(&self) -> bool {
        self.leads.load(Relaxed)
    }

    fn now(&self) -> Option<ShardTime> {
        Some(ShardTime(1_000_000 + self.began.elapsed().as_micros() as u64 + self.ahead_us.load(Relaxed)))
    }

    fn touched(&self) -> BoxFuture<'_, Touched> {
        Box::pin(async {
            loop {
                let touched = std::mem::take(&mut *self.touched.lock());
                if !touched.is_empty() {
                    return Touched::Endpoints(touched);
                }
                self.came.notified().await;
            }
        })
    }

    fn read(&self, read: &mut dyn FnMut(&dyn ReadRows) -> Result<(), RowsError>) -> Result<(), RowsError> {
        read(&self.state.lock().1)
    }

    fn record(&self, report: RecordOutcomes, _: Instant) -> BoxFuture<'_, Recorded> {
        self.reports.fetch_add(1, Relaxed);
        Box::pin(async move {
            // As long as an entry takes.
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            let fault = self.meets.lock().pop_front();
            if self.term.borrow().is_none() || matches!(fault, Some(Fault::Refused)) {
                return Recorded::NotApplied;
            }
            self.apply(Command::RecordOutcomes(report));
            if fault.is_some() { Recorded::Unknown } else { Recorded::Applied }
        })
    }
}

fn endpoint_of(row: &[u8]) -> Option<EndpointKey> {
    if Kind::of(row) != Some(Kind::EndpointState) {
        return None;
    }
    let mut ids = keys::ids(row);
    Some(EndpointKey { app: AppId(ids.next()?), endpoint: EndpointId(ids.next()?) })
}

pub fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

pub fn acme() -> AppRef {
    AppRef::Uid(name("acme"))
}

pub fn secret(fill: u8) -> Secret {
    Secret::new(Bytes::from(vec![fill; 24])).unwrap()
}
