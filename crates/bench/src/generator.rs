//! Closed-loop load: every connection sends its next request when the last one is answered.

use std::{
    cell::Cell,
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use crate::connection::Connection;

/// A node that is down is asked again after this.
const RECONNECT: Duration = Duration::from_millis(20);

/// Makes the requests of one connection, each in place of the last.
pub trait Requests: 'static {
    fn next(&mut self) -> &[u8];

    /// Takes the answer to the last request. Whether an operation ends with it: some take several requests.
    fn answered(&mut self, _status: u16, _answer: &[u8]) -> bool {
        true
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    WarmUp,
    Measure,
    Stop,
}

/// Load that runs until it is stopped.
pub struct Load {
    phase: Rc<Cell<Phase>>,
    connections: Vec<JoinHandle<Measured>>,
    local: LocalSet,
}

/// What came back while it was measured.
pub struct Measured {
    /// Of operations that ended in an answer 200, 201 or 429, in microseconds.
    pub latency_us: Histogram<u64>,
    pub statuses: BTreeMap<u16, u64>,
    pub lost: u64,
}

impl Load {
    /// Opens the connections, spread over the addresses, and begins.
    pub fn start<R: Requests>(addresses: &[String], connections: usize, requests: impl Fn(usize) -> R) -> Load {
        let phase = Rc::new(Cell::new(Phase::WarmUp));
        let local = LocalSet::new();
        let entered = local.enter();
        let connections = (0..connections)
            .map(|n| spawn_local(run(addresses[n % addresses.len()].clone(), requests(n), phase.clone())))
            .collect();
        drop(entered);
        Load { phase, connections, local }
    }

    pub fn begin_measuring(&self) {
        self.phase.set(Phase::Measure);
    }

    /// Lets the load run while something else goes on.
    pub async fn during<T>(&self, other: impl Future<Output = T>) -> T {
        self.local.run_until(other).await
    }

    pub async fn stop(self) -> Measured {
        self.phase.set(Phase::Stop);
        let mut total = Measured::new();
        self.local
            .run_until(async {
                for connection in self.connections {
                    total.add(connection.await.expect("connections do not panic"));
                }
            })
            .await;
        total
    }
}

async fn run(address: String, mut requests: impl Requests, phase: Rc<Cell<Phase>>) -> Measured {
    let mut measured = Measured::new();
    let mut connection = None;
    let mut operation_began = None;
    while phase.get() != Phase::Stop {
        let open = match &mut connection {
            Some(open) => open,
            None => match Connection::open(&address).await {
                Ok(opened) => connection.insert(opened),
                Err(_) => {
                    tokio::time::sleep(RECONNECT).await;
                    continue;
                }
            },
        };
        let began = *operation_began.get_or_insert_with(Instant::now);
        let answer = open.call(requests.next()).await;
        let measuring = phase.get() == Phase::Measure;
        match answer {
            Ok(status) => {
                if requests.answered(status, open.answer()) {
                    operation_began = None;
                    if measuring {
                        measured.answered(status, began.elapsed());
                    }
                }
            }
            Err(_) => {
                measured.lost += u64::from(measuring);
                operation_began = None;
                connection = None;
            }
        }
    }
    measured
}

impl Measured {
    fn new() -> Measured {
        let latency_us = Histogram::new_with_bounds(1, 60_000_000, 3).expect("bounds in order");
        Measured { latency_us, statuses: BTreeMap::new(), lost: 0 }
    }

    fn answered(&mut self, status: u16, after: Duration) {
        *self.statuses.entry(status).or_default() += 1;
        if matches!(status, 200 | 201 | 429) {
            self.latency_us.saturating_record(after.as_micros() as u64);
        }
    }

    fn add(&mut self, other: Measured) {
        self.latency_us.add(other.latency_us).expect("the same bounds");
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.lost += other.lost;
    }

    /// Operations that were decided.
    pub fn decided(&self) -> u64 {
        self.latency_us.len()
    }
}
