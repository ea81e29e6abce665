//! Commands for shards that another node leads: bundled per node on the way out, and taken apart on the way in.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use onceward_core::{
    cluster::{NodeId, ShardId},
    command::{Command, Reply},
    faults::{self, Fault},
};
use onceward_transport::{CallError, Lane, RefusalCode, Request};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};
use tracing::debug;

use crate::{
    node::Surroundings,
    outcome::{NotApplied, Outcome, Ticket},
    pending::Job,
    router::Router,
    wire::{self, Forward, ForwardItem, Forwarded, Method},
};

/// Commands that may wait for one node; beyond it the caller is refused.
const QUEUE_MAX: usize = 16_384;
/// Their size at most, as in a shard's own queue: responses to be stored take up to a quarter of a megabyte each.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Commands of one frame: as many as an entry takes.
const BUNDLE_COMMANDS_MAX: usize = onceward_core::command::BATCH_COMMANDS_MAX;
/// Bytes of one frame, well below the frame limit of the transport.
const BUNDLE_BYTES_MAX: usize = 1 << 20;
/// The leader gives up this much earlier than the caller, so that its definite no arrives in time; a quarter of what is
/// left where that is less.
const ANSWER_MARGIN: Duration = Duration::from_millis(20);
/// How long after the last deadline of a bundle its answer may still come.
const ANSWER_GRACE: Duration = Duration::from_millis(500);

/// The outgoing side: a queue and a task for each other node.
pub(crate) struct Forwarder {
    queues: BTreeMap<NodeId, Queue>,
}

struct Queue {
    jobs: mpsc::Sender<(ShardId, Job)>,
    /// Of the jobs in it.
    bytes: Arc<AtomicUsize>,
}

impl Queue {
    fn push(&self, shard: ShardId, job: Job) -> Result<(), NotApplied> {
        let size = job.size;
        let before = self.bytes.fetch_add(size, Ordering::Relaxed);
        if before + size <= QUEUE_BYTES_MAX && self.jobs.try_send((shard, job)).is_ok() {
            return Ok(());
        }
        self.bytes.fetch_sub(size, Ordering::Relaxed);
        Err(NotApplied::Overloaded)
    }
}

impl Forwarder {
    pub(crate) fn new(surroundings: Arc<Surroundings>) -> Forwarder {
        let others = surroundings.manifest.nodes.iter().map(|node| node.id).filter(|id| *id != surroundings.me.node);
        let queues = others
            .map(|node| {
                let (queue, jobs) = mpsc::channel(QUEUE_MAX);
                let bytes = Arc::<AtomicUsize>::default();
                tokio::spawn(forward_to(node, jobs, bytes.clone(), surroundings.clone()));
                (node, Queue { jobs: queue, bytes })
            })
            .collect();
        Forwarder { queues }
    }

    /// Has `node` execute the command. A definite no can be tried again elsewhere.
    pub(crate) async fn forward(
        &self,
        node: NodeId,
        shard: ShardId,
        command: Command,
        deadline: Instant,
    ) -> Outcome<Reply> {
        let Some(queue) = self.queues.get(&node) else {
            return Outcome::NotApplied(NotApplied::NotLeader { hint: None });
        };
        let (reply, mut answer) = oneshot::channel();
        let ticket = Ticket::default();
        let size = command.size_estimate();
        let job = Job { command, size, deadline, ticket: ticket.clone(), reply };
        if let Err(why) = queue.push(shard, job) {
            return Outcome::NotApplied(why);
        }
        match timeout_at(deadline, &mut answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) if ticket.abandon() => Outcome::NotApplied(NotApplied::DeadlinePassed),
            _ => answer.try_recv().unwrap_or(Outcome::Unknown),
        }
    }
}

/// Drains the queue of one node: what waits together goes out together.
async fn forward_to(
    node: NodeId,
    mut jobs: mpsc::Receiver<(ShardId, Job)>,
    bytes: Arc<AtomicUsize>,
    surroundings: Arc<Surroundings>,
) {
    let mut waiting = Vec::with_capacity(BUNDLE_COMMANDS_MAX);
    while jobs.recv_many(&mut waiting, BUNDLE_COMMANDS_MAX).await > 0 {
        bytes.fetch_sub(waiting.iter().map(|(_, job)| job.size).sum(), Ordering::Relaxed);
        let mut rest = waiting.drain(..).peekable();
        while rest.peek().is_some() {
            let bundle = Bundle::fill(&mut rest);
            if !bundle.replies.is_empty() {
                surroundings.stats.commands_forwarded.add(bundle.replies.len() as u64);
                tokio::spawn(bundle.send(node, surroundings.clone()));
            }
        }
    }
}

struct Bundle {
    items: Vec<ForwardItem>,
    replies: Vec<oneshot::Sender<Outcome<Reply>>>,
    last_deadline: Instant,
}

impl Bundle {
    /// Takes jobs up to the bounds of a frame and hands them over; what is late or given up is dropped.
    fn fill(jobs: &mut std::iter::Peekable<impl Iterator<Item = (ShardId, Job)>>) -> Bundle {
        let now = Instant::now();
        let mut bundle = Bundle { items: Vec::new(), replies: Vec::new(), last_deadline: now };
        let mut bytes = 0;
        while let Some((shard, job)) = jobs.next_if(|(_, job)| bytes == 0 || bytes + job.size <= BUNDLE_BYTES_MAX) {
            let remaining = leaders_time(job.deadline.saturating_duration_since(now));
            let remaining_ms = u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX);
            if remaining_ms == 0 {
                job.refuse(NotApplied::DeadlinePassed);
            } else if job.ticket.hand_over() {
                bytes += job.size;
                bundle.last_deadline = bundle.last_deadline.max(job.deadline);
                bundle.items.push(ForwardItem { shard, remaining_ms, command: job.command });
                bundle.replies.push(job.reply);
            }
        }
        bundle
    }

    async fn send(self, node: NodeId, surroundings: Arc<Surroundings>) {
        let body = wire::encode(&Forward { items: self.items });
        let timeout = self.last_deadline.saturating_duration_since(Instant::now()) + ANSWER_GRACE;
        let shard = ShardId::SYSTEM; // A bundle mixes shards: each item names its own.
        let request = Request { lane: Lane::Data, method: Method::Forward.code(), shard, body, timeout };
        let answered = surroundings.links.call(node, request).await;
        let same_for_all = match answered {
            Ok(body) => match wire::decode::<Forwarded>(&body) {
                Ok(Forwarded { outcomes }) if outcomes.len() == self.replies.len() => {
                    for (reply, outcome) in self.replies.into_iter().zip(outcomes) {
                        let _ = reply.send(outcome.into());
                    }
                    return;
                }
                _ => None,
            },
            Err(error) => {
                debug!(%node, commands = self.replies.len(), %error, "a bundle was not answered");
                not_carried_out(&error)
            }
        };
        for reply in self.replies {
            let _ = reply.send(same_for_all.map_or(Outcome::Unknown, Outcome::NotApplied));
        }
    }
}

/// What the leader has of the time that is left.
fn leaders_time(left: Duration) -> Duration {
    left - ANSWER_MARGIN.min(left / 4)
}

/// What a call that was certainly not carried out says of the commands in it; `None` when nothing is certain.
pub(crate) fn not_carried_out(error: &CallError) -> Option<NotApplied> {
    match error {
        CallError::Refused { code: RefusalCode::Overloaded, .. } => Some(NotApplied::Overloaded),
        CallError::NotSent(_) | CallError::Refused { .. } => Some(NotApplied::NotLeader { hint: None }),
        CallError::Lost(_) | CallError::TimedOut => None,
    }
}

/// The incoming side: executes every item on the shard that this node leads; nothing is forwarded twice.
pub(crate) async fn execute(router: &Router, body: Bytes) -> Result<Bytes, String> {
    let forward: Forward = wire::decode(&body)?;
    let now = Instant::now();
    let outcomes = join_all(forward.items.into_iter().map(|item| async move {
        let deadline = now + Duration::from_millis(item.remaining_ms.into());
        match router.local(item.shard) {
            Some(shard) => {
                if faults::active(Fault::ApplyForwardedTwice) {
                    shard.execute(item.command.clone(), deadline).await;
                }
                shard.execute(item.command, deadline).await
            }
            None => Outcome::NotApplied(NotApplied::NotLeader { hint: None }),
        }
    }))
    .await;
    Ok(wire::encode(&Forwarded { outcomes: outcomes.into_iter().map(Into::into).collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_may_have_been_carried_out_is_no_definite_no() {
        let refused = |code| not_carried_out(&CallError::Refused { code, message: String::new() });
        assert_eq!(refused(RefusalCode::Overloaded), Some(NotApplied::Overloaded), "it has a leader, and is busy");
        assert_eq!(refused(RefusalCode::Unavailable), Some(NotApplied::NotLeader { hint: None }));
        assert_eq!(not_carried_out(&CallError::TimedOut), None);
        assert_eq!(not_carried_out(&CallError::Lost(String::new())), None);
    }

    #[tokio::test]
    async fn a_queue_takes_no_more_bytes_than_its_bound_and_forgets_what_it_refused() {
        let (jobs, mut taken) = mpsc::channel(8);
        let queue = Queue { jobs, bytes: Arc::default() };
        let push = |size| {
            let command = Command::Expire { up_to: onceward_core::time::ShardTime::ZERO, limit: 1 };
            let (reply, _) = oneshot::channel();
            queue.push(ShardId(1), Job { command, size, deadline: Instant::now(), ticket: Ticket::default(), reply })
        };
        assert_eq!(push(QUEUE_BYTES_MAX - 1), Ok(()));
        assert_eq!(push(2), Err(NotApplied::Overloaded));
        assert_eq!(push(1), Ok(()));
        assert_eq!(queue.bytes.load(Ordering::Relaxed), QUEUE_BYTES_MAX);
        assert_eq!([taken.try_recv().is_ok(), taken.try_recv().is_ok(), taken.try_recv().is_ok()], [true, true, false]);
    }

    #[test]
    fn the_leader_has_less_time_than_the_caller_and_some_even_of_little() {
        let ms = Duration::from_millis;
        assert_eq!([0, 8, 250].map(|left| leaders_time(ms(left))), [ms(0), ms(6), ms(230)]);
    }
}
