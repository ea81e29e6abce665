//! A nemesis at work: its share of the seed, how long it has, what it may take hold of, and what it counts to prove that
//! it bit.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use onceward_checkers::history::{Effect, Record, Recovery, RecoveryFrom};
use onceward_tests::{client::Api, draw::Draw};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use super::Step;
use crate::{
    arena::{Arena, Tally},
    recorder::Recorder,
};

pub struct Turn {
    pub arena: Arena,
    pub recorder: Recorder,
    pub step: Step,
    pub draw: Draw,
    /// Under this number it disturbs the network.
    pub layer: u64,
    /// Nothing else disturbs the cluster, so that what it takes to recover is this nemesis' doing.
    alone: bool,
    ends: Instant,
}

/// What it acted on, for people, and what shows that it did.
pub struct Bite {
    pub target: String,
    pub effects: Vec<Effect>,
}

/// Counters before it bit.
pub struct Before {
    counted: BTreeMap<&'static str, u64>,
}

/// Leaders were lost: how long until their shards serve again is being measured.
pub struct Loss {
    began: Instant,
    shards: Vec<JoinHandle<Duration>>,
}

impl Turn {
    pub fn new(arena: Arena, recorder: Recorder, step: Step, layer: u64, alone: bool) -> Turn {
        let draw = Draw::new(step.seed, step.kind.name());
        Turn { arena, recorder, step, draw, layer, alone, ends: Instant::now() + step.lasts }
    }

    pub fn bite(target: impl Into<String>, effects: impl IntoIterator<Item = (&'static str, u64)>) -> Bite {
        let effects = effects.into_iter().map(|(name, count)| Effect { name: name.to_owned(), count }).collect();
        Bite { target: target.into(), effects }
    }

    /// What is left of its time.
    pub fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    /// Goes on until its time is over.
    pub async fn last(&self) {
        sleep_until(self.ends).await;
    }

    /// Goes on for so long, or until its time is over.
    pub async fn last_for(&self, at_most: Duration) {
        sleep(at_most.min(self.left())).await;
    }

    /// Goes on for so long while shards are asked through some nodes.
    pub async fn last_asking(&self, at_most: Duration, through: Vec<Api>, shards: &[u16]) -> Arc<Tally> {
        self.last_asking_slow(at_most, through, shards, Duration::MAX).await
    }

    /// As [`Turn::last_asking`], where an answer is slow from some time on.
    pub async fn last_asking_slow(
        &self,
        at_most: Duration,
        through: Vec<Api>,
        shards: &[u16],
        slow: Duration,
    ) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        tokio::select! {
            () = self.last_for(at_most) => {}
            () = self.arena.keep_asking(through, shards.to_vec(), slow, tally.clone()) => {}
        }
        tally
    }

    pub fn draw_ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.draw.between(least, most))
    }

    pub fn draw_node(&mut self) -> u16 {
        *self.draw.pick(&self.arena.nodes())
    }

    /// The leader of a shard drawn among all, the system shard included.
    pub async fn draw_leader(&mut self) -> u16 {
        let shard = *self.draw.pick(&self.arena.shards());
        self.arena.leader_of(shard).await
    }

    pub fn nodes_but(&self, node: u16) -> Vec<u16> {
        self.arena.nodes().into_iter().filter(|other| *other != node).collect()
    }

    async fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut counted = self.arena.network_counters().await;
        counted.insert("leaders_changed", self.arena.observed(|observed| observed.leaders_changed));
        counted
    }

    pub async fn before(&self) -> Before {
        Before { counted: self.counters().await }
    }

    /// What was counted since, of these: the first in any case, the others if there is anything.
    pub async fn since<const N: usize>(&self, before: &Before, names: [&'static str; N]) -> Vec<(&'static str, u64)> {
        let now = self.counters().await;
        let of = |counters: &BTreeMap<&'static str, u64>, name| counters.get(name).copied().unwrap_or(0);
        let grown = names.map(|name| (name, of(&now, name).saturating_sub(of(&before.counted, name))));
        grown.into_iter().filter(|(name, count)| *count > 0 || *name == names[0]).collect()
    }

    /// Begins to measure how soon each of these shards, which lost their leader at that instant, serves again through all
    /// of these nodes.
    pub fn lost(&self, began: Instant, shards: &[u16], through: &[u16]) -> Loss {
        let serving = |shard: &u16| {
            let (arena, through, shard) = (self.arena.clone(), through.to_vec(), *shard);
            tokio::spawn(async move {
                arena.wait_serving(&through, &[shard]).await;
                began.elapsed()
            })
        };
        Loss { began, shards: shards.iter().map(serving).collect() }
    }

    /// To be called before what was done is undone: records how long each took, or that it took at least until now.
    pub async fn found_again(&self, loss: Loss) {
        for serving in loss.shards {
            // Of one that is done nothing is lost by it.
            serving.abort();
            let took = serving.await.unwrap_or_else(|_| loss.began.elapsed());
            if self.alone {
                self.record(loss.began, took, RecoveryFrom::LeaderLoss);
            }
        }
    }

    /// To be called as soon as what was done is undone: waits until every shard serves through every node, and records how
    /// long it took. When others disturb the cluster too, there is nothing to measure.
    pub async fn undone(&self) {
        if self.alone {
            let began = Instant::now();
            let took = self.arena.wait_healed().await;
            self.record(began, took, RecoveryFrom::Healing);
        }
    }

    fn record(&self, began: Instant, took: Duration, after: RecoveryFrom) {
        let (from_us, took_us) = (self.recorder.at_us(began.into_std()), took.as_micros() as u64);
        let nemesis = self.step.kind.name().to_owned();
        self.recorder.record(Record::Recovery(Recovery { from_us, took_us, after, nemesis }));
    }
}
