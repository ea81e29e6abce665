//! A shard on this node: the handle that others call, and the actor that turns queued commands into log entries.
//!
//! The actor is thin: it decides when to propose and keeps the expiry timer. Replication is awaited outside of it, state
//! lives in the group, and the queue outlives a crash of the actor.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use onceward_consensus::{Group, Leadership, ProposeError};
#[cfg(feature = "faults")]
use onceward_core::faults::{self, Fault};
use onceward_core::{
    cluster::{NodeId, ShardId},
    command::{BATCH_COMMANDS_MAX, Command, Reply},
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::{
    sync::{oneshot, watch},
    task::AbortHandle,
    time::{Instant, timeout, timeout_at},
};
use tracing::{debug, error, warn};

use crate::{
    clock,
    node::Surroundings,
    outcome::{NotApplied, Outcome, Ticket},
    pending::{Job, Pending},
    shard_port::Touches,
    waiting::Waiting,
};

/// Entries in flight while full batches wait; otherwise one, so that what queues up behind it is the next batch.
const FULL_BATCHES_IN_FLIGHT_MAX: usize = 4;
/// A responder resolves only at apply, truncation or purge. No caller waits this long, so the slot is freed.
const PROPOSAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How soon after a change the expiry table is looked at again: what comes due in between is one entry. Commands compare
/// due times with the stamp themselves; this only bounds how late an idle shard notices.
const EXPIRY_SCAN_DELAY: Duration = Duration::from_millis(100);
/// How soon a leader without a majority looks again.
const EXPIRY_SCAN_AGAIN: Duration = Duration::from_secs(1);
/// The longest sleep until the next look at the expiry table.
const EXPIRY_SLEEP_MAX: Duration = Duration::from_secs(3600);
/// Rows that one `Expire` works off, and there is one each [`EXPIRY_SCAN_DELAY`]: what comes due in masses is removed in
/// passing, and nobody waits long behind it.
const EXPIRE_ROWS: u64 = 24;
/// For each of these that the first row is overdue, an `Expire` works off as many rows again: so it keeps up with whatever
/// comes due all the time, as far behind as that takes.
const EXPIRY_BEHIND: Duration = Duration::from_secs(600);
/// The most that it works off, so that the entry still applies in well under a heartbeat.
const EXPIRE_ROWS_MAX: u64 = 1024;

/// The handle of a shard whose replica lives on this node.
pub(crate) struct Shard {
    pub id: ShardId,
    pub group: Group,
    pub waiting: Arc<Waiting>,
    pub touches: Arc<Touches>,
    leadership: watch::Receiver<Leadership>,
    pending: Pending,
    actor: ArcSwapOption<ActorRef<Message>>,
    surroundings: Arc<Surroundings>,
}

/// What the actor is told. Each is a nudge: what to do follows from the state at the time it is handled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Message {
    /// Commands wait.
    Flush,
    /// An entry in flight was resolved.
    Proposed,
    /// The leadership of the group changed.
    Leadership,
    /// The shard clock was recovered, or could not be.
    ClockRecovered,
    /// Look at the expiry table.
    ScanExpiry,
    /// The `Expire` under way was resolved.
    Expired,
    #[cfg(test)]
    Panic,
}

impl Shard {
    pub(crate) fn new(id: ShardId, group: Group, surroundings: Arc<Surroundings>) -> Arc<Shard> {
        let leadership = group.leadership();
        let (waiting, touches) = (Arc::<Waiting>::default(), Arc::<Touches>::default());
        let (wake, touch) = (waiting.clone(), touches.clone());
        group.set_on_moved(Box::new(move |moved| {
            wake.wake(&moved);
            touch.note(&moved);
        }));
        Arc::new(Shard {
            id,
            group,
            waiting,
            touches,
            leadership,
            pending: Pending::default(),
            actor: ArcSwapOption::empty(),
            surroundings,
        })
    }

    /// Whether this node may take commands of the shard: it leads, and a majority said so within the lease.
    pub(crate) fn leads(&self) -> Result<(), NotApplied> {
        let leadership = *self.leadership.borrow();
        if !leadership.am_leader {
            let hint = leadership.leader.map(|member| member.node).filter(|node| *node != self.surroundings.me.node);
            return Err(NotApplied::NotLeader { hint });
        }
        if self.group.heard_from_leader_within(self.surroundings.tuning.leader_lease) {
            Ok(())
        } else {
            Err(NotApplied::NoQuorum)
        }
    }

    /// The leader that this replica has heard from within the lease.
    pub(crate) fn live_leader(&self) -> Option<NodeId> {
        let leader = self.leadership.borrow().leader?;
        self.group.heard_from_leader_within(self.surroundings.tuning.leader_lease).then_some(leader.node)
    }

    /// Waits until the group has another leader, or none, or the present one in another term.
    pub(crate) async fn leadership_change(&self) {
        let mut leadership = self.leadership.clone();
        leadership.mark_unchanged();
        // An error means that the group has ended: nothing will change any more.
        if leadership.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Gets `command` into the log of this shard, which this node must lead, and waits for its reply.
    pub(crate) async fn execute(&self, command: Command, deadline: Instant) -> Outcome<Reply> {
        if let Err(why) = self.leads().and_then(|()| self.surroundings.disk.admit(&command)) {
            return Outcome::NotApplied(why);
        }
        let ticket = Ticket::default();
        let mut answer = match self.enqueue(command, deadline, ticket.clone()) {
            Ok(answer) => answer,
            Err(why) => return Outcome::NotApplied(why),
        };
        match timeout_at(deadline, &mut answer).await {
            Ok(Ok(outcome)) => outcome,
            // The sender was dropped with a crashed task, or time is up: the ticket says on which side of the hand-over.
            Ok(Err(_)) | Err(_) if ticket.abandon() => Outcome::NotApplied(NotApplied::DeadlinePassed),
            // The answer may have come in just now.
            _ => answer.try_recv().unwrap_or(Outcome::Unknown),
        }
    }

    fn enqueue(
        &self,
        command: Command,
        deadline: Instant,
        ticket: Ticket,
    ) -> Result<oneshot::Receiver<Outcome<Reply>>, NotApplied> {
        let (reply, answer) = oneshot::channel();
        let size = command.size_estimate();
        match self.pending.push(Job { command, size, deadline, ticket, reply }) {
            Ok(tell_actor) => {
                if tell_actor {
                    self.tell(Message::Flush);
                }
                Ok(answer)
            }
            Err(why) => {
                self.surroundings.stats.refused_overloaded.add(1);
                Err(why)
            }
        }
    }

    /// Commands that wait for an entry.
    pub(crate) fn queued(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn tell(&self, message: Message) {
        if let Some(actor) = self.actor.load().as_ref() {
            // A message to an actor that just crashed is lost; the supervisor makes its successor look at everything.
            let _ = actor.cast(message);
        }
    }

    #[cfg(test)]
    pub(crate) fn actor_id(&self) -> Option<ractor::ActorId> {
        self.actor.load().as_ref().map(|actor| actor.get_id())
    }

    pub(crate) fn adopt_actor(&self, actor: ActorRef<Message>) {
        self.actor.store(Some(Arc::new(actor)));
        self.tell(Message::Leadership);
        self.tell(Message::Flush);
    }
}

/// The behaviour; one value serves all shards.
pub(crate) struct ShardActor;

pub(crate) struct ShardActorState {
    shard: Arc<Shard>,
    in_flight: usize,
    /// A clock recovery is under way.
    recovering_clock: bool,
    /// An `Expire` is under way.
    expiring: bool,
    scan: Option<(Instant, AbortHandle)>,
    leadership_watch: AbortHandle,
}

impl Actor for ShardActor {
    type Msg = Message;
    type State = ShardActorState;
    type Arguments = Arc<Shard>;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        shard: Arc<Shard>,
    ) -> Result<ShardActorState, ActorProcessingErr> {
        let mut leadership = shard.group.leadership();
        let watch = tokio::spawn(async move {
            while leadership.changed().await.is_ok() && myself.cast(Message::Leadership).is_ok() {}
        });
        Ok(ShardActorState {
            shard,
            in_flight: 0,
            recovering_clock: false,
            expiring: false,
            scan: None,
            leadership_watch: watch.abort_handle(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut ShardActorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Flush => {
                // What is being queued at this moment joins the batch.
                tokio::task::yield_now().await;
                state.flush(&myself);
            }
            Message::Proposed => {
                state.in_flight = state.in_flight.saturating_sub(1);
                state.flush(&myself);
                state.scan_within(EXPIRY_SCAN_DELAY, &myself);
            }
            Message::Leadership => {
                state.flush(&myself);
                state.scan_within(EXPIRY_SCAN_DELAY, &myself);
            }
            Message::ClockRecovered => {
                state.recovering_clock = false;
                state.flush(&myself);
            }
            Message::ScanExpiry => {
                state.scan = None;
                state.scan_expiry(&myself)?;
            }
            Message::Expired => {
                state.expiring = false;
                state.scan_within(EXPIRY_SCAN_DELAY, &myself);
            }
            #[cfg(test)]
            Message::Panic => panic!("asked to by a test"),
        }
        Ok(())
    }
}

impl Drop for ShardActorState {
    fn drop(&mut self) {
        self.leadership_watch.abort();
        if let Some((_, scan)) = &self.scan {
            scan.abort();
        }
    }
}

impl ShardActorState {
    /// Proposes what waits, as far as the entries in flight allow. Whenever it leaves commands waiting, a later message
    /// is certain: `Proposed`, `ClockRecovered` or `Leadership`.
    fn flush(&mut self, myself: &ActorRef<Message>) {
        loop {
            let waiting = self.shard.pending.len();
            let in_flight_max = if waiting >= BATCH_COMMANDS_MAX { FULL_BATCHES_IN_FLIGHT_MAX } else { 1 };
            if waiting == 0 || self.in_flight >= in_flight_max {
                return;
            }
            if let Err(why) = self.shard.leads() {
                self.shard.pending.refuse_all(why);
                return;
            }
            if self.shard.group.shard_clock().is_none() {
                self.recover_clock(myself);
                return;
            }
            let jobs = self.shard.pending.take_batch(Instant::now());
            if !jobs.is_empty() {
                self.in_flight += 1;
                tokio::spawn(propose(self.shard.clone(), jobs, Nudge::new(myself, Message::Proposed)));
            }
        }
    }

    fn recover_clock(&mut self, myself: &ActorRef<Message>) {
        if std::mem::replace(&mut self.recovering_clock, true) {
            return;
        }
        let (shard, nudge) = (self.shard.clone(), Nudge::new(myself, Message::ClockRecovered));
        tokio::spawn(async move {
            clock::recover(&shard.group, shard.id, &shard.surroundings).await;
            drop(nudge);
        });
    }

    /// Sees to it that the expiry table is looked at within `delay`.
    fn scan_within(&mut self, delay: Duration, myself: &ActorRef<Message>) {
        let at = Instant::now() + delay;
        if self.scan.as_ref().is_some_and(|(planned, _)| *planned <= at) {
            return;
        }
        let myself = myself.clone();
        let timer = tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            let _ = myself.cast(Message::ScanExpiry);
        });
        if let Some((_, earlier)) = self.scan.replace((at, timer.abort_handle())) {
            earlier.abort();
        }
    }

    /// On the leader: commits an `Expire` when something is due, else sleeps until something is.
    fn scan_expiry(&mut self, myself: &ActorRef<Message>) -> Result<(), ActorProcessingErr> {
        if self.expiring {
            return Ok(());
        }
        match self.shard.leads() {
            Ok(()) => {}
            // The same leader may find its majority again, which nobody tells.
            Err(NotApplied::NoQuorum) => {
                self.scan_within(EXPIRY_SCAN_AGAIN, myself);
                return Ok(());
            }
            Err(_) => return Ok(()),
        }
        let Some(now) = self.shard.group.shard_clock() else {
            self.recover_clock(myself);
            self.scan_within(EXPIRY_SCAN_DELAY, myself);
            return Ok(());
        };
        let Some(due) = self.shard.group.next_due()? else { return Ok(()) };
        if due > now {
            let sleep = Duration::from_micros(due.since_us(now)).clamp(Duration::from_millis(1), EXPIRY_SLEEP_MAX);
            self.scan_within(sleep, myself);
            return Ok(());
        }
        self.expiring = true;
        let behind = now.since_us(due) / EXPIRY_BEHIND.as_micros() as u64;
        let limit = EXPIRE_ROWS.saturating_mul(1 + behind).min(EXPIRE_ROWS_MAX) as u32;
        let command = Command::Expire { up_to: now, limit };
        let (shard, nudge) = (self.shard.clone(), Nudge::new(myself, Message::Expired));
        tokio::spawn(async move {
            let outcome = shard.execute(command, Instant::now() + PROPOSAL_TIMEOUT).await;
            debug!(shard = %shard.id, ?outcome, "expired");
            drop(nudge);
        });
        Ok(())
    }
}

/// Tells the actor that work outside of it is over when it is dropped, also by a panic: the actor would wait for ever.
struct Nudge {
    actor: ActorRef<Message>,
    message: Message,
}

impl Nudge {
    fn new(actor: &ActorRef<Message>, message: Message) -> Nudge {
        Nudge { actor: actor.clone(), message }
    }
}

impl Drop for Nudge {
    fn drop(&mut self) {
        // An actor that crashed meanwhile has a successor that looks at everything anew.
        let _ = self.actor.cast(self.message);
    }
}

/// Proposes one entry and tells every job what became of it. It is stamped now, after every one of its commands came in:
/// a stamp from before would let buckets refill for time that had passed when they were asked.
async fn propose(shard: Arc<Shard>, jobs: Vec<Job>, nudge: Nudge) {
    let mut commands = Vec::with_capacity(jobs.len());
    let mut replies = Vec::with_capacity(jobs.len());
    for job in jobs {
        commands.push(job.command);
        replies.push(job.reply);
    }
    let stats = &shard.surroundings.stats;
    stats.entries_proposed.add(1);
    stats.commands_proposed.add(commands.len() as u64);
    #[cfg(feature = "faults")]
    if faults::active(Fault::AnswerBeforeApply)
        && let Some(foreseen) = shard.group.foresee(commands.clone())
    {
        for (reply, foreseen) in replies.into_iter().zip(foreseen) {
            let _ = reply.send(Outcome::Applied(foreseen));
        }
        let outcome = timeout(PROPOSAL_TIMEOUT, shard.group.propose(commands)).await;
        debug!(shard = %shard.id, ?outcome, "answered before");
        return;
    }
    let outcome = timeout(PROPOSAL_TIMEOUT, shard.group.propose(commands)).await;
    drop(nudge);
    let refuse_with = match outcome {
        Ok(Ok(applied)) if applied.len() == replies.len() => {
            for (reply, applied) in replies.into_iter().zip(applied) {
                let _ = reply.send(Outcome::Applied(applied));
            }
            return;
        }
        Ok(Ok(applied)) => {
            error!(shard = %shard.id, expected = replies.len(), got = applied.len(), "apply answered another number of commands");
            None
        }
        Ok(Err(ProposeError::NotLeader { hint })) => {
            Some(NotApplied::NotLeader { hint: hint.map(|member| member.node) })
        }
        // It died with the leadership that it was recovered for.
        Ok(Err(ProposeError::NoClock)) => Some(NotApplied::NoQuorum),
        Ok(Err(ProposeError::TooLarge { bytes })) => {
            error!(shard = %shard.id, bytes, "a batch was larger than its size estimate");
            Some(NotApplied::Overloaded)
        }
        Ok(Err(ProposeError::Unknown(why))) => {
            warn!(shard = %shard.id, why, "an entry's outcome is unknown");
            None
        }
        Err(_) => {
            warn!(shard = %shard.id, "an entry was not resolved in {PROPOSAL_TIMEOUT:?}");
            None
        }
    };
    for reply in replies {
        let _ = reply.send(refuse_with.map_or(Outcome::Unknown, Outcome::NotApplied));
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Passes on what it is told.
    struct Listener(mpsc::UnboundedSender<Message>);

    impl Actor for Listener {
        type Msg = Message;
        type State = ();
        type Arguments = ();

        async fn pre_start(&self, _: ActorRef<Message>, (): ()) -> Result<(), ActorProcessingErr> {
            Ok(())
        }

        async fn handle(&self, _: ActorRef<Message>, message: Message, (): &mut ()) -> Result<(), ActorProcessingErr> {
            Ok(self.0.send(message)?)
        }
    }

    #[tokio::test]
    async fn the_actor_is_told_that_its_work_is_over_also_when_that_panics() {
        let (sender, mut heard) = mpsc::unbounded_channel();
        let (actor, _) = Actor::spawn(None, Listener(sender), ()).await.unwrap();
        let nudge = Nudge::new(&actor, Message::Proposed);
        let crashed = tokio::spawn(async move {
            let _nudge = nudge;
            panic!("asked to by a test");
        });
        assert!(crashed.await.is_err());
        assert!(matches!(heard.recv().await, Some(Message::Proposed)));
    }
}
