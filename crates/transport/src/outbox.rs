//! Where frames wait for a connection's socket, and where it is decided whether a call ever left.
//!
//! [`Calls`] belongs to a connection that this node dialled, [`Answers`] to one that it serves. A writer drains them in
//! rounds. Neither knows sockets, so that every race is decided here, under one lock, and can be tested without any.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use onceward_core::cluster::ShardId;
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::frame::Frame;
use crate::limits::{
    UNANSWERED_CALLS_MAX, WAITING_ANSWER_BYTES_MAX, WAITING_ANSWERS_MAX, WAITING_BYTES_MAX, WAITING_CALLS_MAX,
    WRITE_ROUND_BYTES,
};
use crate::links::CallError;

/// A served request's share of its connection's bounds.
pub(crate) struct Held {
    pub _request: OwnedSemaphorePermit,
    pub _bytes: OwnedSemaphorePermit,
}

/// What a writer drains.
pub(crate) trait Outbox: Send + Sync + 'static {
    /// Moves up to [`WRITE_ROUND_BYTES`], and at least one frame if there is one, into `round`. From then on they count
    /// as sent. False once it is closed and nothing is left.
    fn drain(&self, round: &mut Vec<Frame>) -> bool;

    /// Told whenever there is something to drain, or it is closed.
    fn wake(&self) -> &Notify;
}

type Outcome = Result<Bytes, CallError>;

/// The calls of a connection that this node dialled.
#[derive(Default)]
pub(crate) struct Calls {
    state: Mutex<CallsState>,
    wake: Notify,
}

#[derive(Default)]
struct CallsState {
    next_id: u64,
    /// Not given to the socket: by ascending id, which is the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    waiting_bytes: usize,
    /// Given to the socket, not answered.
    sent: HashMap<u64, oneshot::Sender<Outcome>>,
    /// Why, once the connection is over.
    closed: Option<String>,
}

struct Waiting {
    method: u8,
    shard: ShardId,
    body: Bytes,
    deadline: Instant,
    outcome: oneshot::Sender<Outcome>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, CallsState> {
        // No code panics half-way through a change of this state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a call and waits for its outcome, until `deadline` at most. Dropping the future forgets the call; one
    /// that was still waiting is then never sent.
    pub async fn call(self: Arc<Self>, method: u8, shard: ShardId, body: Bytes, deadline: Instant) -> Outcome {
        let (sender, mut receiver) = oneshot::channel();
        let id = self.enqueue(Waiting { method, shard, body, deadline, outcome: sender })?;
        let slot = Slot { calls: &self, id };
        if let Ok(outcome) = tokio::time::timeout_at(deadline, &mut receiver).await {
            return outcome.unwrap_or_else(|_| Err(CallError::Lost("the connection is gone".to_owned())));
        }
        match slot.calls.forget(id) {
            Some(Forgotten::Waiting) => {
                Err(CallError::NotSent("its time was over before the connection could take it".to_owned()))
            }
            Some(Forgotten::Sent) => Err(CallError::TimedOut),
            // The outcome came between the timer and the lock.
            None => receiver.try_recv().unwrap_or(Err(CallError::TimedOut)),
        }
    }

    fn enqueue(&self, call: Waiting) -> Result<u64, CallError> {
        let mut state = self.state();
        if let Some(reason) = &state.closed {
            return Err(CallError::NotSent(reason.clone()));
        }
        let full = state.waiting.len() >= WAITING_CALLS_MAX
            || state.waiting_bytes + call.body.len() > WAITING_BYTES_MAX
            || state.sent.len() + state.waiting.len() >= UNANSWERED_CALLS_MAX;
        if full {
            return Err(CallError::NotSent("too many calls wait for this connection".to_owned()));
        }
        let id = state.next_id;
        state.next_id += 1;
        state.waiting_bytes += call.body.len();
        state.waiting.insert(id, call);
        drop(state);
        self.wake.notify_one();
        Ok(id)
    }

    fn forget(&self, id: u64) -> Option<Forgotten> {
        let mut state = self.state();
        if let Some(call) = state.waiting.remove(&id) {
            state.waiting_bytes -= call.body.len();
            return Some(Forgotten::Waiting);
        }
        state.sent.remove(&id).map(|_| Forgotten::Sent)
    }

    /// The peer's word about a call. One that nobody waits for any longer, or that was never sent, is passed over.
    pub fn settle(&self, id: u64, outcome: Outcome) {
        let sender = self.state().sent.remove(&id);
        if let Some(sender) = sender {
            // The caller may have gone at this instant; then nobody wants to know.
            let _ = sender.send(outcome);
        }
    }

    /// The connection is over: what waited was not sent, what was sent is lost. The first reason stays.
    pub fn close(&self, reason: &str) {
        let mut state = self.state();
        if state.closed.is_some() {
            return;
        }
        state.closed = Some(reason.to_owned());
        let waiting = std::mem::take(&mut state.waiting);
        let sent = std::mem::take(&mut state.sent);
        state.waiting_bytes = 0;
        drop(state);
        self.wake.notify_one();
        for call in waiting.into_values() {
            let _ = call.outcome.send(Err(CallError::NotSent(reason.to_owned())));
        }
        for outcome in sent.into_values() {
            let _ = outcome.send(Err(CallError::Lost(reason.to_owned())));
        }
    }

    pub fn is_open(&self) -> bool {
        self.state().closed.is_none()
    }

    /// How many calls there were so far.
    pub fn count(&self) -> u64 {
        self.state().next_id
    }

    /// Closes it unless a call waits or is unanswered; says whether it did.
    pub fn close_if_idle(&self, reason: &str) -> bool {
        let mut state = self.state();
        let idle = state.waiting.is_empty() && state.sent.is_empty();
        if idle && state.closed.is_none() {
            state.closed = Some(reason.to_owned());
            self.wake.notify_one();
        }
        idle
    }

    #[cfg(test)]
    fn slots(&self) -> (usize, usize, usize) {
        let state = self.state();
        (state.waiting.len(), state.waiting_bytes, state.sent.len())
    }
}

impl Outbox for Calls {
    fn drain(&self, round: &mut Vec<Frame>) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        let mut bytes = 0;
        while bytes < WRITE_ROUND_BYTES
            && let Some((id, call)) = state.waiting.pop_first()
        {
            state.waiting_bytes -= call.body.len();
            let left = call.deadline.saturating_duration_since(now);
            if left.is_zero() {
                let late = "its time was over before the connection could take it".to_owned();
                let _ = call.outcome.send(Err(CallError::NotSent(late)));
                continue;
            }
            bytes += call.body.len();
            state.sent.insert(id, call.outcome);
            // Rounded up, so that the peer doesn't give up before the caller does.
            let timeout_ms = u32::try_from(left.as_millis() + 1).unwrap_or(u32::MAX);
            let (method, shard, body) = (call.method, call.shard, call.body);
            round.push(Frame::Request { id, method, shard, timeout_ms, body });
        }
        state.closed.is_none()
    }

    fn wake(&self) -> &Notify {
        &self.wake
    }
}

enum Forgotten {
    Waiting,
    Sent,
}

/// A call's place in the state: given up when its future is dropped.
struct Slot<'a> {
    calls: &'a Calls,
    id: u64,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.calls.forget(self.id);
    }
}

/// The answers of a connection that this node serves.
#[derive(Default)]
pub(crate) struct Answers {
    state: Mutex<AnswersState>,
    wake: Notify,
    /// Told when a writer took frames away.
    room: Notify,
}

#[derive(Default)]
struct AnswersState {
    /// Each with the share of the bounds that is free again once a writer takes it, hence before the peer can know.
    waiting: VecDeque<(Frame, Option<Held>)>,
    waiting_bytes: usize,
    closed: bool,
    overflowed: bool,
}

impl Answers {
    fn state(&self) -> MutexGuard<'_, AnswersState> {
        // As in `Calls`.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, frame: Frame, held: Option<Held>) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        if state.waiting_bytes + frame.body().len() > WAITING_ANSWER_BYTES_MAX {
            // An answer can't be taken back as a refusal: the connection has to go, and the caller knows nothing.
            state.overflowed = true;
            state.closed = true;
            state.waiting.clear();
        } else {
            state.waiting_bytes += frame.body().len();
            state.waiting.push_back((frame, held));
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Waits until fewer than [`WAITING_ANSWERS_MAX`] frames wait. Only the connection's reader may wait here.
    pub async fn room(&self) {
        while self.is_full() {
            self.room.notified().await;
        }
    }

    fn is_full(&self) -> bool {
        let state = self.state();
        state.waiting.len() >= WAITING_ANSWERS_MAX && !state.closed
    }

    /// Nothing more is taken; what waits may still be written.
    pub fn close(&self) {
        self.state().closed = true;
        self.wake.notify_one();
    }

    pub fn overflowed(&self) -> bool {
        self.state().overflowed
    }
}

impl Outbox for Answers {
    fn drain(&self, round: &mut Vec<Frame>) -> bool {
        let mut state = self.state();
        let mut bytes = 0;
        while bytes < WRITE_ROUND_BYTES
            && let Some((frame, _held)) = state.waiting.pop_front()
        {
            bytes += frame.body().len();
            round.push(frame);
        }
        state.waiting_bytes -= bytes;
        let open = !state.closed || !round.is_empty();
        drop(state);
        self.room.notify_one();
        open
    }

    fn wake(&self) -> &Notify {
        &self.wake
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
