//! What all clients of a run share, and a client: one call under way at a time, at a pace, through any node, every call
//! recorded with its outcome.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use onceward_checkers::history::{Call, Operation, Outcome, Record, Reply};
use onceward_tests::draw::Draw;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    recorder::Recorder,
    wire::{Gate, Targets},
};

/// A client that is further behind its pace skips what it missed: an outage is not to be followed by a burst.
const BEHIND_MAX: Duration = Duration::from_secs(1);

/// What all clients of a run share.
pub struct Load {
    pub seed: u64,
    pub recorder: Recorder,
    pub targets: Targets,
    /// Cancelled: every client ends after the call that it has under way.
    pub stop: CancellationToken,
    /// By links that may be cut.
    nodes: Vec<Arc<dyn Gate>>,
    processes: Arc<AtomicU64>,
}

pub struct Client {
    pub draw: Draw,
    load: Arc<Load>,
    process: u64,
    every: Duration,
    next: Instant,
}

impl Load {
    pub fn new(seed: u64, nodes: Vec<Arc<dyn Gate>>, targets: Targets, recorder: Recorder) -> Arc<Load> {
        let stop = CancellationToken::new();
        Arc::new(Load { seed, recorder, targets, stop, nodes, processes: Arc::default() })
    }

    /// More clients of the same run, by other links to the same nodes; to be stopped by themselves.
    pub fn by(&self, nodes: Vec<Arc<dyn Gate>>) -> Arc<Load> {
        let Load { seed, recorder, targets, processes, .. } = self;
        let (recorder, targets, processes) = (recorder.clone(), targets.clone(), processes.clone());
        Arc::new(Load { seed: *seed, recorder, targets, stop: CancellationToken::new(), nodes, processes })
    }

    /// A client that makes `rate` steps a second, and decides by the seed and its name.
    pub fn client(self: &Arc<Load>, name: &str, rate: f64) -> Client {
        let mut draw = Draw::new(self.seed, name);
        let every = Duration::from_secs_f64(1.0 / rate);
        // Not all at once.
        let next = Instant::now() + every.mul_f64(draw.below(1_000) as f64 / 1e3);
        Client { draw, process: self.new_process(), load: self.clone(), every, next }
    }

    fn new_process(&self) -> u64 {
        self.processes.fetch_add(1, Ordering::Relaxed)
    }

    /// The node of this number, cyclically.
    pub fn node(&self, at: u64) -> (u16, &dyn Gate) {
        let index = usize::try_from(at).expect("64 bits") % self.nodes.len();
        (u16::try_from(index + 1).expect("few nodes"), self.nodes[index].as_ref())
    }
}

impl Client {
    /// Waits for the client's next turn; false: the run is over.
    pub async fn turn(&mut self) -> bool {
        let now = Instant::now();
        if self.next + BEHIND_MAX < now {
            self.next = now;
        }
        let due = self.next;
        self.next += self.every.mul_f64(0.5 + self.draw.below(1_000) as f64 / 1e3);
        tokio::select! {
            () = self.load.stop.cancelled() => false,
            () = tokio::time::sleep_until(due) => !self.load.stop.is_cancelled(),
        }
    }

    /// Sleeps, but not beyond the end of the run; false: it is over.
    pub async fn sleep(&self, pause: Duration) -> bool {
        tokio::select! {
            () = self.load.stop.cancelled() => false,
            () = tokio::time::sleep(pause) => true,
        }
    }

    pub async fn sleep_ms(&mut self, least: u64, most: u64) -> bool {
        let pause = Duration::from_millis(self.draw.between(least, most));
        self.sleep(pause).await
    }

    /// A name that no other call of the run uses.
    pub fn unique(&mut self, prefix: &str) -> String {
        format!("{prefix}-{}-{:08x}", self.process, self.draw.draw() as u32)
    }

    /// Through a random node.
    pub async fn call(&mut self, call: Call) -> Outcome {
        let at = self.draw.draw() >> 1;
        self.call_at(at, call, false).await
    }

    /// As a final read.
    pub async fn last(&mut self, call: Call) -> Outcome {
        let at = self.draw.draw() >> 1;
        self.call_at(at, call, true).await
    }

    /// Again and again, through one node after the other, until it is answered or was tried so often. For calls that land
    /// once however often they are made.
    pub async fn insist(&mut self, call: Call, tries: u64) -> Option<Reply> {
        let first = self.draw.draw() >> 1;
        for at in 0..tries {
            match self.call_at(first + at, call.clone(), false).await {
                Outcome::Answered { reply } => return Some(reply),
                Outcome::Unexpected { .. } => return None,
                Outcome::Refused | Outcome::Unknown => {}
            }
            if !self.sleep_ms(20, 200).await {
                return None;
            }
        }
        None
    }

    async fn call_at(&mut self, at: u64, call: Call, last: bool) -> Outcome {
        let load = self.load.clone();
        let (node, gate) = load.node(at);
        let invoked_us = load.recorder.now_us();
        let outcome = gate.perform(&load.targets, &call).await;
        let returned_us = load.recorder.now_us();
        let operation =
            Operation { process: self.process, node, invoked_us, returned_us, last, call, outcome: outcome.clone() };
        load.recorder.record(Record::Operation(operation));
        if outcome == Outcome::Unknown {
            self.process = load.new_process();
        }
        outcome
    }
}

/// Names that are used for a while and then replaced, so that what is known of each stays small enough to be judged
/// exactly.
pub struct Rotation {
    prefix: &'static str,
    uses_max: u64,
    slots: Mutex<Slots>,
}

struct Slots {
    /// How often the name in each slot was used, and its number.
    slots: Vec<(u64, u64)>,
    next: u64,
}

impl Rotation {
    /// `width` names at any time, each used at most `uses_max` times.
    pub fn new(prefix: &'static str, width: u64, uses_max: u64) -> Rotation {
        let slots = (0..width).map(|number| (0, number)).collect();
        Rotation { prefix, uses_max, slots: Mutex::new(Slots { slots, next: width }) }
    }

    /// A name to use so many times.
    pub fn take(&self, draw: &mut Draw, uses: u64) -> String {
        format!("{}-{}", self.prefix, self.number(draw, uses))
    }

    /// Brings the end of a name nearer: there is less to see of it from now on.
    pub fn spend(&self, number: u64, uses: u64) {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.slots.iter_mut().find(|slot| slot.1 == number) {
            slot.0 += uses;
        }
    }

    /// The number of a name to use so many times.
    pub fn number(&self, draw: &mut Draw, uses: u64) -> u64 {
        let mut slots = self.slots.lock();
        let at = usize::try_from(draw.below(slots.slots.len() as u64)).expect("an index fits");
        if slots.slots[at].0 + uses > self.uses_max {
            slots.slots[at] = (0, slots.next);
            slots.next += 1;
        }
        slots.slots[at].0 += uses;
        slots.slots[at].1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_name_is_used_more_often_than_it_may_be() {
        let (rotation, mut draw) = (Rotation::new("k", 3, 10), Draw::new(1, "rotation"));
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        for _ in 0..1_000 {
            *used.entry(rotation.number(&mut draw, 3)).or_default() += 3;
        }
        assert_eq!(used.values().max(), Some(&9));
        let spent = *used.keys().last().unwrap();
        rotation.spend(spent, 10);
        assert!((0..100).all(|_| rotation.number(&mut draw, 1) != spent));
    }
}
