//! The way of a command or query to the leader of its shard, from any node.
//!
//! Retries what was definitely not applied, follows leader changes, and never resends what may have been handed over.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use onceward_core::{
    cluster::{NodeId, ShardId},
    command::{Command, Reply},
    query::{self, Answer, Query},
};
use onceward_transport::{CallError, Lane, Request};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use crate::{
    forward::Forwarder,
    node::Surroundings,
    outcome::{NotApplied, Outcome},
    shard_actor::Shard,
    wire::{self, Method, Queried, QueryRequest},
};

/// Between two tries on a shard whose leader isn't settled; elections take hundreds of milliseconds.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// A shard without a leader for this long is known to be without quorum: longer than an election takes.
const QUORUM_LOST_AFTER: Duration = Duration::from_millis(1500);

pub(crate) struct Router {
    surroundings: Arc<Surroundings>,
    shards: BTreeMap<ShardId, Arc<Shard>>,
    forwarder: Forwarder,
    remote: BTreeMap<ShardId, RemoteView>,
}

/// What is believed of a shard from answers of other nodes.
#[derive(Default)]
struct RemoteView {
    leader: ArcSwap<Option<NodeId>>,
    leaderless_since: Mutex<Option<Instant>>,
}

/// Where to try next.
enum Route<'a> {
    Here(&'a Arc<Shard>),
    There(NodeId),
    Nowhere,
}

impl Router {
    pub(crate) fn new(surroundings: Arc<Surroundings>, shards: BTreeMap<ShardId, Arc<Shard>>) -> Router {
        let forwarder = Forwarder::new(surroundings.clone());
        let remote = surroundings.manifest.shards().map(|shard| (shard, RemoteView::default())).collect();
        Router { surroundings, shards, forwarder, remote }
    }

    pub(crate) fn local(&self, shard: ShardId) -> Option<&Arc<Shard>> {
        self.shards.get(&shard)
    }

    pub(crate) fn local_shards(&self) -> impl Iterator<Item = &Arc<Shard>> {
        self.shards.values()
    }

    /// The node that leads `shard` as far as this one knows.
    pub(crate) fn believed_leader(&self, shard: ShardId) -> Option<NodeId> {
        match self.shards.get(&shard) {
            Some(local) => local.live_leader(),
            None => **self.remote.get(&shard)?.leader.load(),
        }
    }

    /// Gets a command applied on its shard, or says what is known of it by `deadline`.
    pub(crate) async fn submit(&self, shard: ShardId, command: Command, deadline: Instant) -> Outcome<Reply> {
        let mut tries = Tries::new(deadline);
        loop {
            let outcome = match self.route(shard, tries.number) {
                Route::Here(local) => local.execute(command.clone(), deadline).await,
                Route::There(node) => self.forwarder.forward(node, shard, command.clone(), deadline).await,
                Route::Nowhere => Outcome::NotApplied(NotApplied::NoQuorum),
            };
            let Outcome::NotApplied(why) = outcome else {
                self.note_served(shard);
                return outcome;
            };
            if let Err(why) = self.pause_after(shard, why, &mut tries).await {
                return Outcome::NotApplied(why);
            }
        }
    }

    /// Answers a query from the leader's applied state, behind ReadIndex. Reads are repeated at will.
    pub(crate) async fn query(&self, shard: ShardId, query: Query, deadline: Instant) -> Outcome<Answer> {
        let mut tries = Tries::new(deadline);
        loop {
            let outcome = match self.route(shard, tries.number) {
                Route::Here(local) => timeout_at(deadline, answer_here(local, &query))
                    .await
                    .unwrap_or(Outcome::NotApplied(NotApplied::DeadlinePassed)),
                Route::There(node) => self.query_there(node, shard, &query, deadline).await,
                Route::Nowhere => Outcome::NotApplied(NotApplied::NoQuorum),
            };
            let Outcome::NotApplied(why) = outcome else {
                self.note_served(shard);
                return outcome;
            };
            if let Err(why) = self.pause_after(shard, why, &mut tries).await {
                return Outcome::NotApplied(why);
            }
        }
    }

    /// Whether the shard has been without a leader for so long that waiting for one is in vain.
    pub(crate) fn quorum_is_lost(&self, shard: ShardId) -> bool {
        let Some(view) = self.remote.get(&shard) else { return false };
        if self.shards.get(&shard).is_some_and(|local| local.live_leader().is_some()) {
            *view.leaderless_since.lock() = None;
            return false;
        }
        view.leaderless_since.lock().is_some_and(|since| since.elapsed() > QUORUM_LOST_AFTER)
    }

    fn route(&self, shard: ShardId, attempt: u32) -> Route<'_> {
        let believed = self.believed_leader(shard);
        if let Some(local) = self.shards.get(&shard) {
            return match believed {
                Some(node) if node == self.surroundings.me.node => Route::Here(local),
                Some(node) => Route::There(node),
                None => Route::Nowhere,
            };
        }
        // This node holds no replica: it asks the voters in turn until one names the leader.
        let voters = self.surroundings.manifest.voters(shard);
        let node = believed.or_else(|| voters.get(attempt as usize % voters.len().max(1)).copied());
        node.map_or(Route::Nowhere, Route::There)
    }

    async fn query_there(&self, node: NodeId, shard: ShardId, query: &Query, deadline: Instant) -> Outcome<Answer> {
        let request = Request {
            lane: Lane::Data,
            method: Method::Query.code(),
            shard,
            body: wire::encode(&QueryRequest { query: query.clone() }),
            timeout: deadline.saturating_duration_since(Instant::now()),
        };
        let queried = match self.surroundings.links.call(node, request).await {
            Ok(body) => wire::decode::<Queried>(&body),
            Err(CallError::TimedOut) => return Outcome::NotApplied(NotApplied::DeadlinePassed),
            Err(error) => Err(error.to_string()),
        };
        match queried {
            Ok(Queried::Answer(answer)) => Outcome::Applied(answer),
            Ok(Queried::NotLeader { hint }) => Outcome::NotApplied(NotApplied::NotLeader { hint }),
            Ok(Queried::NoQuorum) => Outcome::NotApplied(NotApplied::NoQuorum),
            Err(error) => {
                debug!(%node, %shard, error, "query not answered");
                Outcome::NotApplied(NotApplied::NotLeader { hint: None })
            }
        }
    }

    fn note_served(&self, shard: ShardId) {
        if let Some(view) = self.remote.get(&shard) {
            let mut since = view.leaderless_since.lock();
            if since.is_some() {
                *since = None;
            }
        }
    }

    /// Takes a definite no as a reason to try again a little later, or returns it when there is no sense or no time.
    async fn pause_after(&self, shard: ShardId, why: NotApplied, tries: &mut Tries) -> Result<(), NotApplied> {
        let Some(view) = self.remote.get(&shard) else { return Err(why) };
        let mut pause = RETRY_PAUSE;
        match why {
            NotApplied::Overloaded | NotApplied::DeadlinePassed => return Err(why),
            NotApplied::NoQuorum => self.note_leaderless(view),
            NotApplied::NotLeader { hint } => {
                view.leader.store(Arc::new(hint));
                match hint {
                    // Straight to the leader that was named, unless nodes keep naming each other.
                    Some(_) if tries.number < 3 => pause = Duration::ZERO,
                    Some(_) => {}
                    None => self.note_leaderless(view),
                }
            }
        }
        tries.number += 1;
        if Instant::now() + pause >= tries.deadline {
            return Err(NotApplied::NoQuorum);
        }
        sleep(pause).await;
        Ok(())
    }

    fn note_leaderless(&self, view: &RemoteView) {
        view.leaderless_since.lock().get_or_insert_with(Instant::now);
    }
}

struct Tries {
    number: u32,
    deadline: Instant,
}

impl Tries {
    fn new(deadline: Instant) -> Tries {
        Tries { number: 0, deadline }
    }
}

/// Answers a query from this node's replica, which must lead.
pub(crate) async fn answer_here(shard: &Shard, query: &Query) -> Outcome<Answer> {
    if let Err(why) = shard.leads() {
        return Outcome::NotApplied(why);
    }
    if let Err(error) = shard.group.read_index().await {
        debug!(shard = %shard.id, %error, "no read index");
        return Outcome::NotApplied(NotApplied::NoQuorum);
    }
    match shard.group.read(|rows| query::answer(shard.id, rows, query)) {
        Ok(answer) => Outcome::Applied(answer),
        Err(error) => {
            // A row that can't be read is fatal where it is applied; a read only reports it.
            tracing::error!(shard = %shard.id, %error, "query failed");
            Outcome::NotApplied(NotApplied::NoQuorum)
        }
    }
}
