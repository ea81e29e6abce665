//! Time: a counter of milliseconds, and what is to happen when. Everything that takes time anywhere, be it a message or a
//! restart, is an event here; whoever decides something draws from the one seeded source.
//!
//! All of it runs on one thread. Locks are there because the product's traits want to be shared between threads; none is
//! held while an event runs.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use onceward_tests::draw::Draw;
use parking_lot::Mutex;

type Event = Box<dyn FnOnce() + Send>;

pub struct World {
    now_ms: AtomicU64,
    agenda: Mutex<Agenda>,
    draw: Mutex<Draw>,
}

#[derive(Default)]
struct Agenda {
    /// By time, and in the order in which they were planned.
    events: BTreeMap<(u64, u64), Event>,
    planned: u64,
}

impl World {
    pub fn new(seed: u64) -> Arc<World> {
        Arc::new(World {
            now_ms: AtomicU64::new(0),
            agenda: Mutex::default(),
            draw: Mutex::new(Draw::new(seed, "world")),
        })
    }

    pub fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    pub fn now_us(&self) -> u64 {
        self.now_ms() * 1_000
    }

    /// Something that happens in `delay_ms`, which is at least 1: an effect is never at the time of its cause.
    pub fn after(&self, delay_ms: u64, event: impl FnOnce() + Send + 'static) {
        let at = self.now_ms() + delay_ms.max(1);
        let mut agenda = self.agenda.lock();
        agenda.planned += 1;
        let place = (at, agenda.planned);
        agenda.events.insert(place, Box::new(event));
    }

    /// Draws a number, both ends included.
    pub fn between(&self, least: u64, most: u64) -> u64 {
        self.draw.lock().between(least, most)
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.draw.lock().chance(percent)
    }

    /// Moves on by a millisecond, and lets happen what is due.
    pub fn tick(&self) {
        let now = self.now_ms.fetch_add(1, Ordering::Relaxed) + 1;
        while let Some(event) = self.next_due(now) {
            event();
        }
    }

    fn next_due(&self, now: u64) -> Option<Event> {
        let mut agenda = self.agenda.lock();
        let first = agenda.events.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
