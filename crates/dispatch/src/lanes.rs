//! Lanes: the endpoints of a shard with something to do, whose turn it is, and when the others are looked at again.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use onceward_core::webhooks::EndpointKey;
use tokio::time::Instant;

use crate::{attempt::Node, lane::Lane, permits::Standing};

pub(crate) struct Lanes {
    lanes: HashMap<EndpointKey, Lane>,
    timers: BTreeSet<(Instant, EndpointKey)>,
    /// By standing: whose turn it is.
    queues: [VecDeque<EndpointKey>; Standing::ALL.len()],
    node: Arc<Node>,
}

impl Lanes {
    pub(crate) fn new(node: Arc<Node>) -> Lanes {
        Lanes { lanes: HashMap::new(), timers: BTreeSet::new(), queues: Default::default(), node }
    }

    pub(crate) fn get(&mut self, endpoint: EndpointKey) -> Option<&mut Lane> {
        self.lanes.get_mut(&endpoint)
    }

    pub(crate) fn get_or_open(&mut self, endpoint: EndpointKey) -> &mut Lane {
        self.lanes.entry(endpoint).or_insert_with(|| {
            self.node.stats.lanes.add(1);
            Lane::new(Instant::now())
        })
    }

    pub(crate) fn endpoints(&self) -> Vec<EndpointKey> {
        self.lanes.keys().copied().collect()
    }

    /// After anything has changed about a lane: gives it a turn if it may start something, and sets its timer.
    pub(crate) fn settle(&mut self, endpoint: EndpointKey) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        if !lane.queued && lane.may_start(self.node.permits.free()) {
            lane.queued = true;
            self.queues[lane.standing() as usize].push_back(endpoint);
        }
        let next = lane.next_look();
        if next != lane.wake {
            if let Some(former) = std::mem::replace(&mut lane.wake, next) {
                self.timers.remove(&(former, endpoint));
            }
            self.timers.extend(next.map(|at| (at, endpoint)));
        }
    }

    pub(crate) fn is_anyone_waiting(&self, standing: Standing) -> bool {
        !self.queues[standing as usize].is_empty()
    }

    /// Whose turn it is. It is to be settled afterwards.
    pub(crate) fn next_turn(&mut self, standing: Standing) -> Option<EndpointKey> {
        let endpoint = self.queues[standing as usize].pop_front()?;
        if let Some(lane) = self.lanes.get_mut(&endpoint) {
            lane.queued = false;
        }
        Some(endpoint)
    }

    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Looks at the lanes whose time has come; those that are over are forgotten, and returned.
    pub(crate) fn pass_time(&mut self, now: Instant) -> Vec<EndpointKey> {
        let mut over = Vec::new();
        while let Some(&(at, endpoint)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, endpoint));
            let Some(lane) = self.lanes.get_mut(&endpoint) else { continue };
            lane.wake = None;
            lane.pass_time(now);
            if lane.is_over(now) {
                self.forget(endpoint);
                over.push(endpoint);
            } else {
                self.settle(endpoint);
            }
        }
        over
    }

    /// Starts nothing more; lanes of which something runs are kept until it has ended.
    pub(crate) fn stand_down(&mut self) {
        self.timers.clear();
        self.queues.iter_mut().for_each(VecDeque::clear);
        for endpoint in self.endpoints() {
            if let Some(lane) = self.lanes.get_mut(&endpoint) {
                lane.stop();
                (lane.queued, lane.wake) = (false, None);
            }
            self.forget_if_quiet(endpoint);
        }
    }

    /// Of a node that doesn't lead.
    pub(crate) fn forget_if_quiet(&mut self, endpoint: EndpointKey) {
        if self.lanes.get(&endpoint).is_some_and(Lane::is_quiet) {
            self.forget(endpoint);
        }
    }

    fn forget(&mut self, endpoint: EndpointKey) {
        if self.lanes.remove(&endpoint).is_some() {
            self.node.stats.lanes.sub(1);
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.node.stats.lanes.sub(self.lanes.len() as u64);
    }
}
