//! What the tests are made with: receivers that behave and misbehave, a resolver that says what it is told, a clock.

mod receiver;

use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use futures::future::BoxFuture;
use onceward_core::seams::Clock;
use onceward_dispatch::{Guard, Resolve, Sender};
use parking_lot::Mutex;
pub use receiver::{Answer, Received, Receiver, ok};

pub struct SystemClock;

impl Clock for SystemClock {
    fn monotonic_us(&self) -> u64 {
        self.wall_ms() * 1_000
    }

    fn wall_ms(&self) -> u64 {
        SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
    }
}

/// Answers each lookup with the next of its answers, and with the last one from then on.
#[derive(Clone, Default)]
pub struct Told {
    answers: Arc<Mutex<VecDeque<Vec<IpAddr>>>>,
    pub lookups: Arc<AtomicUsize>,
}

impl Told {
    pub fn of(answers: &[&[&str]]) -> Told {
        let parse = |answer: &&[&str]| answer.iter().map(|address| address.parse().unwrap()).collect();
        let told = Told::default();
        *told.answers.lock() = answers.iter().map(parse).collect();
        told
    }
}

impl Resolve for Told {
    fn lookup(&self, _: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.lookups.fetch_add(1, Relaxed);
        let mut answers = self.answers.lock();
        let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        Box::pin(async move { answer.ok_or_else(|| io::Error::other("no such name")) })
    }
}

pub fn guard(allow: &[&str]) -> Guard {
    Guard { allow: allow.iter().map(|range| range.parse().unwrap()).collect(), https_only: false }
}

/// A sender that may reach loopback addresses.
pub fn sender(timeout: Duration) -> Sender {
    sender_with(&["127.0.0.0/8"], timeout, Told::default())
}

pub fn sender_with(allow: &[&str], timeout: Duration, resolver: Told) -> Sender {
    Sender::new(guard(allow), timeout, &[], Box::new(resolver), Arc::new(SystemClock)).unwrap()
}
