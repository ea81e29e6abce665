//! The way of a command or query to the leader of its shard, from any node.
//!
//! Retries what was definitely not applied, and follows leader changes. What may have been handed over is sent again only
//! where the caller knows that it lands once.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use onceward_core::{
    cluster::{NodeId, ShardId},
    command::{Command, Reply},
    faults::{self, Fault},
    query::{self, Answer, Query},
};
use onceward_transport::{CallError, Lane, Request};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::debug;

use crate::{
    forward::{Forwarder, not_carried_out},
    node::Surroundings,
    outcome::{NotApplied, Outcome},
    shard_actor::Shard,
    wire::{self, Method, Queried, QueryRequest},
};

/// Between two tries on a shard whose leader isn't settled; it doubles, for elections take hundreds of milliseconds, and
/// thousands may wait for one.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(20);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(320);
/// A leader that answers no query for so long may have been stopped; asking somebody else does no harm.
const QUERY_TRY_MAX: Duration = Duration::from_millis(700);
/// A shard without a leader for this many leases is known to be without quorum: longer than an election takes, which is
/// done after twice the longest election timeout.
const QUORUM_LOST_AFTER_LEASES: f64 = 1.5;
/// How often somebody is sent all the same to a shard known to be without quorum, where no replica here would notice
/// that it has one again.
const PROBE_EVERY: Duration = Duration::from_millis(250);

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
    leaderless: Mutex<Option<Leaderless>>,
    /// Which voter is asked first while no leader is believed in.
    turn: AtomicUsize,
}

/// A shard that nobody is known to lead.
#[derive(Debug, Clone, Copy)]
struct Leaderless {
    since: Instant,
    probe_at: Instant,
}

/// Whether a command was sent more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resent(pub bool);

/// Where to try next.
#[derive(Clone, Copy)]
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
    pub(crate) async fn submit(&self, shard: ShardId, command: &Command, deadline: Instant) -> Outcome<Reply> {
        let mut tries = Tries::new(deadline);
        loop {
            let route = self.route(shard, tries.number);
            let outcome = match route {
                Route::Here(local) => local.execute(command.clone(), deadline).await,
                Route::There(node) => self.forwarder.forward(node, shard, command.clone(), deadline).await,
                Route::Nowhere => Outcome::NotApplied(NotApplied::NoQuorum),
            };
            match (outcome, route) {
                (Outcome::NotApplied(why), _) => {
                    if let Err(why) = self.pause_after(shard, why, &mut tries).await {
                        return Outcome::NotApplied(why);
                    }
                }
                (Outcome::Unknown, route) => {
                    if let Route::There(node) = route {
                        self.doubt(shard, node);
                    }
                    return Outcome::Unknown;
                }
                (Outcome::Applied(reply), _) => {
                    self.note_served(shard);
                    return Outcome::Applied(reply);
                }
            }
        }
    }

    /// As [`Router::submit`], for a command that lands once however often it is sent: what may have been handed over and
    /// was not answered is sent again, while there is time. Whether that was necessary is told too: then another copy
    /// may have landed, or land yet.
    pub(crate) async fn submit_until_known(
        &self,
        shard: ShardId,
        command: &Command,
        deadline: Instant,
    ) -> (Outcome<Reply>, Resent) {
        let mut resent = Resent(false);
        loop {
            match self.submit(shard, command, deadline).await {
                Outcome::Unknown if Instant::now() + RETRY_PAUSE_MIN < deadline => {
                    resent = Resent(true);
                    sleep(RETRY_PAUSE_MIN).await;
                }
                // It says nothing of what was handed over before.
                Outcome::NotApplied(_) if resent.0 => return (Outcome::Unknown, resent),
                outcome => return (outcome, resent),
            }
        }
    }

    /// Answers a query from the leader's applied state, behind ReadIndex. Reads are repeated at will.
    pub(crate) async fn query(&self, shard: ShardId, query: Query, deadline: Instant) -> Outcome<Answer> {
        if faults::active(Fault::ReadWithoutReadIndex)
            && let Some(local) = self.local(shard)
        {
            return read_here(local, &query);
        }
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
        let local = self.shards.get(&shard);
        let mut leaderless = view.leaderless.lock();
        if local.is_some_and(|local| local.live_leader().is_some()) {
            *leaderless = None;
        }
        let lost_after = self.surroundings.tuning.leader_lease.mul_f64(QUORUM_LOST_AFTER_LEASES);
        leaderless.as_mut().is_some_and(|leaderless| leaderless.is_lost(Instant::now(), lost_after, local.is_none()))
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
        let turn = self.remote.get(&shard).map_or(0, |view| view.turn.load(Ordering::Relaxed));
        let node = believed.or_else(|| voters.get(turn.wrapping_add(attempt as usize) % voters.len().max(1)).copied());
        node.map_or(Route::Nowhere, Route::There)
    }

    async fn query_there(&self, node: NodeId, shard: ShardId, query: &Query, deadline: Instant) -> Outcome<Answer> {
        let request = Request {
            lane: Lane::Data,
            method: Method::Query.code(),
            shard,
            body: wire::encode(&QueryRequest { query: query.clone() }),
            timeout: deadline.saturating_duration_since(Instant::now()).min(QUERY_TRY_MAX),
        };
        let answer = match self.surroundings.links.call(node, request).await {
            Ok(body) => wire::decode::<Queried>(&body),
            Err(error) => {
                debug!(%node, %shard, %error, "query not answered");
                if matches!(error, CallError::TimedOut | CallError::Lost(_)) {
                    self.doubt(shard, node);
                }
                let why = not_carried_out(&error).unwrap_or(NotApplied::NotLeader { hint: None });
                return Outcome::NotApplied(why);
            }
        };
        match answer {
            Ok(Queried::Answer(answer)) => Outcome::Applied(*answer),
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
            let mut leaderless = view.leaderless.lock();
            if leaderless.is_some() {
                *leaderless = None;
            }
        }
    }

    /// `node` took a command or query of the shard and never answered: the next one goes elsewhere.
    fn doubt(&self, shard: ShardId, node: NodeId) {
        let Some(view) = self.remote.get(&shard) else { return };
        if **view.leader.load() == Some(node) {
            view.leader.store(Arc::new(None));
        }
        view.turn.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a definite no as a reason to try again a little later, or returns it when there is no sense or no time.
    async fn pause_after(&self, shard: ShardId, why: NotApplied, tries: &mut Tries) -> Result<(), NotApplied> {
        let Some(view) = self.remote.get(&shard) else { return Err(why) };
        tries.number += 1;
        match why {
            NotApplied::Overloaded | NotApplied::DeadlinePassed | NotApplied::DiskLow => return Err(why),
            NotApplied::NoQuorum => self.note_leaderless(view),
            NotApplied::NotLeader { hint } => {
                view.leader.store(Arc::new(hint));
                match hint {
                    // Straight to the leader that was named, unless nodes keep naming each other.
                    Some(_) if tries.number <= 3 && Instant::now() < tries.deadline => return Ok(()),
                    Some(_) => {}
                    None => self.note_leaderless(view),
                }
            }
        }
        let pause = tries.next_pause(Instant::now()).ok_or(NotApplied::NoQuorum)?;
        match self.shards.get(&shard) {
            // Over as soon as another leader is known.
            Some(local) => drop(timeout(pause, local.leadership_change()).await),
            None => sleep(pause).await,
        }
        Ok(())
    }

    fn note_leaderless(&self, view: &RemoteView) {
        let now = Instant::now();
        view.leaderless.lock().get_or_insert(Leaderless { since: now, probe_at: now });
    }
}

impl Leaderless {
    /// Whether asking the shard is in vain. Where it has to be `probed`, one caller now and then is told otherwise.
    fn is_lost(&mut self, now: Instant, lost_after: Duration, probed: bool) -> bool {
        if now - self.since <= lost_after {
            return false;
        }
        if probed && now >= self.probe_at {
            self.probe_at = now + PROBE_EVERY;
            return false;
        }
        true
    }
}

struct Tries {
    number: u32,
    pause: Duration,
    deadline: Instant,
}

impl Tries {
    fn new(deadline: Instant) -> Tries {
        Tries { number: 0, pause: RETRY_PAUSE_MIN, deadline }
    }

    /// How long to wait, with time left for another try behind it; `None` when there is none.
    fn next_pause(&mut self, now: Instant) -> Option<Duration> {
        let left = self.deadline.saturating_duration_since(now).checked_sub(RETRY_PAUSE_MIN)?;
        let pause = self.pause.min(left);
        self.pause = (self.pause * 2).min(RETRY_PAUSE_MAX);
        Some(pause).filter(|pause| !pause.is_zero())
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
    read_here(shard, query)
}

/// Answers a query from what is applied here; not stale only behind [`answer_here`]'s checks.
fn read_here(shard: &Shard, query: &Query) -> Outcome<Answer> {
    match shard.group.read(|rows| query::answer(shard.id, rows, query)) {
        Ok(answer) => Outcome::Applied(answer),
        Err(error) => {
            // A row that can't be read is fatal where it is applied; a read only reports it.
            tracing::error!(shard = %shard.id, %error, "query failed");
            Outcome::NotApplied(NotApplied::NoQuorum)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_known_to_be_lost_is_still_probed_where_no_replica_would_tell_of_its_return() {
        let since = Instant::now();
        let mut leaderless = Leaderless { since, probe_at: since };
        let after = Duration::from_secs(2);
        let later = since + after + Duration::from_millis(1);
        assert!(!leaderless.is_lost(since + after, after, true), "an election may be under way");
        assert!(leaderless.is_lost(later, after, false));
        assert!(!leaderless.is_lost(later, after, true), "the probe");
        assert!(leaderless.is_lost(later, after, true));
        assert!(!leaderless.is_lost(later + PROBE_EVERY, after, true));
    }

    #[test]
    fn tries_pause_ever_longer_and_leave_time_for_a_last_one() {
        let now = Instant::now();
        let mut tries = Tries::new(now + Duration::from_secs(60));
        let pauses: Vec<_> = (0..6).filter_map(|_| tries.next_pause(now)).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 320]);
        let last = tries.deadline - Duration::from_millis(50);
        assert_eq!(tries.next_pause(last), Some(Duration::from_millis(30)));
        assert_eq!(tries.next_pause(tries.deadline - RETRY_PAUSE_MIN), None);
    }
}
