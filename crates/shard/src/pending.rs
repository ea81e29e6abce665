//! A shard's queue of commands that wait for the next log entry. Bounded; admission is refused here, before anything
//! is sent to an actor, whose mailbox has no bound.

use std::collections::VecDeque;

use onceward_core::command::{BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, Command, Reply};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use crate::outcome::{NotApplied, Outcome, Ticket};

/// Commands that may wait for one shard: some tens of full entries, a fraction of a second at full speed.
const PENDING_COMMANDS_MAX: usize = 16_384;
/// Their size at most. A thousand-byte command, the largest check but for policies, times the number above is less.
const PENDING_BYTES_MAX: usize = 16 << 20;

/// A command on its way into the log, and who waits for what becomes of it.
#[derive(Debug)]
pub(crate) struct Job {
    pub command: Command,
    /// Upper estimate of the command's encoded size in bytes.
    pub size: usize,
    pub deadline: Instant,
    pub ticket: Ticket,
    pub reply: oneshot::Sender<Outcome<Reply>>,
}

impl Job {
    pub(crate) fn refuse(self, why: NotApplied) {
        // Nobody waits any more when this fails, and a refusal needs no listener.
        let _ = self.reply.send(Outcome::NotApplied(why));
    }
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    bytes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<Queue>);

impl Pending {
    /// Takes a job in, unless the queue is full. True: the actor must be told, because the queue was
    /// empty, or because a full entry waits and more of them may be in flight.
    pub(crate) fn push(&self, job: Job) -> Result<bool, NotApplied> {
        let mut queue = self.0.lock();
        if queue.jobs.len() >= PENDING_COMMANDS_MAX || queue.bytes + job.size > PENDING_BYTES_MAX {
            return Err(NotApplied::Overloaded);
        }
        queue.bytes += job.size;
        queue.jobs.push_back(job);
        Ok(queue.jobs.len() == 1 || queue.jobs.len().is_multiple_of(BATCH_COMMANDS_MAX))
    }

    /// Takes what fits into one entry. Jobs past their deadline or given up are dropped on the way; every job that
    /// comes out is handed over, its caller can no longer be told a definite no.
    pub(crate) fn take_batch(&self, now: Instant) -> Vec<Job> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut queue = self.0.lock();
        while batch.len() < BATCH_COMMANDS_MAX {
            let Some(job) = queue.jobs.pop_front() else { break };
            if !batch.is_empty() && bytes + job.size > BATCH_BYTES_MAX {
                queue.jobs.push_front(job);
                break;
            }
            queue.bytes -= job.size;
            if job.deadline <= now {
                job.refuse(NotApplied::DeadlinePassed);
            } else if job.ticket.hand_over() {
                bytes += job.size;
                batch.push(job);
            }
        }
        batch
    }

    /// Refuses everything that waits.
    pub(crate) fn refuse_all(&self, why: NotApplied) {
        let jobs = {
            let mut queue = self.0.lock();
            queue.bytes = 0;
            std::mem::take(&mut queue.jobs)
        };
        for job in jobs {
            job.refuse(why);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().jobs.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use onceward_core::time::ShardTime;

    use super::*;

    fn job(size: usize, deadline: Instant) -> (Job, oneshot::Receiver<Outcome<Reply>>) {
        let (reply, answer) = oneshot::channel();
        let command = Command::Expire { up_to: ShardTime::ZERO, limit: 1 };
        (Job { command, size, deadline, ticket: Ticket::default(), reply }, answer)
    }

    #[test]
    fn a_full_queue_refuses_and_keeps_what_it_has() {
        let pending = Pending::default();
        let later = Instant::now() + Duration::from_secs(60);
        let (first, _answer) = job(PENDING_BYTES_MAX, later);
        assert_eq!(pending.push(first).ok(), Some(true));
        let (second, _answer) = job(1, later);
        assert!(pending.push(second).is_err());
        assert_eq!(pending.len(), 1);
    }

    #[test]
    fn an_entry_takes_no_more_bytes_than_its_bound() {
        let pending = Pending::default();
        let now = Instant::now();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let (job, answer) = job(BATCH_BYTES_MAX / 2, now + Duration::from_secs(60));
            answers.push(answer);
            assert!(pending.push(job).is_ok());
        }
        assert_eq!(pending.take_batch(now).len(), 2);
        assert_eq!(pending.take_batch(now).len(), 1);
    }

    #[test]
    fn what_is_past_its_deadline_is_refused_and_never_handed_over() {
        let pending = Pending::default();
        let now = Instant::now();
        let (late, mut answer) = job(1, now);
        assert!(pending.push(late).is_ok());
        assert!(pending.take_batch(now).is_empty());
        assert!(matches!(answer.try_recv(), Ok(Outcome::NotApplied(NotApplied::DeadlinePassed))));
    }
}
