//! What the tests are made with: receivers that behave and misbehave, a resolver that says what it is told, a clock.

mod receiver;
mod rows;
mod shard;

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
use onceward_core::seams::{Clock, Entropy};
use onceward_dispatch::{Dispatch, DispatchConfig, Feed, Guard, Resolve, Sender};
use parking_lot::Mutex;
pub use receiver::{Answer, Received, Receiver, ok};
pub use shard::{Fault, Shard, acme, secret};
use tokio::time::{Instant, sleep};

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

/// Numbers that differ; a test may make it panic once.
#[derive(Default)]
pub struct Counting {
    count: AtomicUsize,
    pub panics: AtomicUsize,
}

impl Entropy for Counting {
    fn nonce(&self) -> u128 {
        let panics = self.panics.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        assert!(panics.is_err(), "asked to by a test");
        self.count.fetch_add(1, Relaxed) as u128 * 0x9e37_79b9_7f4a_7c15
    }
}

/// Soon enough for tests; the guard lets loopback through.
pub fn config() -> DispatchConfig {
    DispatchConfig {
        schedule: vec![Duration::from_millis(100), Duration::from_millis(200)],
        timeout: Duration::from_millis(400),
        guard: guard(&["127.0.0.0/8"]),
        ..DispatchConfig::default()
    }
}

pub async fn dispatch(shard: &Arc<Shard>, config: DispatchConfig) -> Dispatch {
    dispatch_with(shard, config, Arc::<Counting>::default()).await
}

pub async fn dispatch_with(shard: &Arc<Shard>, config: DispatchConfig, entropy: Arc<Counting>) -> Dispatch {
    dispatch_over(vec![shard.clone()], config, entropy).await
}

pub async fn dispatch_over(shards: Vec<Arc<Shard>>, config: DispatchConfig, entropy: Arc<Counting>) -> Dispatch {
    let feeds = shards.into_iter().map(|shard| shard as Arc<dyn Feed>).collect();
    Dispatch::start(config, feeds, Box::new(Told::default()), Arc::new(SystemClock), entropy).await.unwrap()
}

/// Waits until `done` is true, ten seconds at most.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        sleep(Duration::from_millis(2)).await;
    }
}
