//! One seed: a cluster is founded, worked with, tormented, healed and read; then its history is judged.

use std::{io, path::Path, sync::Arc, time::Duration};

use onceward_checkers::{
    history::{History, Record, Run, StateHash},
    verdict::Verdict,
};
use onceward_partition::{
    final_reads::{read_all, settle},
    load::Load,
    recorder::Recorder,
    wire::Targets,
    workload::{idempotency, limits, publishing, registers, webhooks},
};
use onceward_tests::draw::Draw;
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    cluster::{self, Controls, Options},
    gate::gates,
    nemesis, receivers,
};

/// Virtual time under nemeses.
const TORMENT: Duration = Duration::from_secs(12);
/// Calls a second, in all.
const RATE: f64 = 90.0;
/// Things done to the cluster at a time.
const HANDS: u64 = 2;
/// Within this time after the healing, all nodes serve.
const READY_MAX: Duration = Duration::from_secs(60);
/// Load goes on so long behind the healing.
const CALM: Duration = Duration::from_secs(2);
/// Replicas are level within this time.
const LEVEL_MAX: Duration = Duration::from_secs(20);

pub struct Finished {
    pub history: History,
    pub verdicts: Vec<Verdict>,
    /// What must never happen, whatever a history says.
    pub failure: Option<String>,
}

impl Finished {
    pub fn is_clean(&self) -> bool {
        self.failure.is_none() && self.verdicts.iter().all(Verdict::kept)
    }
}

/// Runs a seed; the machines have their files in `dir`. A process runs one seed: see `randomness`.
pub fn run(seed: u64, dir: &Path) -> Finished {
    let mut draw = Draw::new(seed, "cluster");
    let nodes = if draw.chance(20) { 5 } else { 3 };
    let options = Options {
        seed,
        nodes,
        data_shards: u16::try_from(draw.between(1, 3)).expect("few"),
        panics: crate::panics::first,
    };
    let made = Arc::new(Mutex::new(None));
    let recorder = {
        let made = made.clone();
        move |world: Arc<crate::world::World>| {
            let recorder = Recorder::over(move || world.now_us(), io::sink());
            *made.lock() = Some(recorder.clone());
            recorder
        }
    };
    let description = described(&options);
    let ended = cluster::run(&options, dir, recorder, |controls| scenario(controls, seed, description));
    let recorder = made.lock().take().expect("a run makes its recorder");
    let history = recorder.finish().expect("nothing is written while it runs");
    let verdicts = onceward_checkers::all().iter().map(|checker| checker.check(&history)).collect();
    Finished { history, verdicts, failure: ended.err() }
}

async fn scenario(controls: Controls, seed: u64, description: Run) -> Result<(), String> {
    controls.recorder.record(Record::Run(description));
    all_ready(&controls).await.map_err(|node| format!("node {node} does not come up"))?;
    let load = Load::new(seed, gates(&controls), Targets(vec![receivers::URL.to_owned()]), controls.recorder.clone());
    let mut clients = work(&load, seed).await;

    let until = Instant::now() + TORMENT;
    let mut hands = JoinSet::new();
    for hand in 0..HANDS {
        hands.spawn(nemesis::torment(controls.clone(), Draw::new(seed, &format!("hand {hand}")), until));
    }
    while let Some(ended) = hands.join_next().await {
        ended.map_err(|error| format!("a nemesis failed: {error}"))?;
    }
    nemesis::heal(&controls);
    controls.receivers.get_well();
    sleep(CALM).await;
    all_ready(&controls).await.map_err(|node| format!("node {node} is not ready {READY_MAX:?} after the healing"))?;
    load.stop.cancel();
    while let Some(ended) = clients.join_next().await {
        ended.map_err(|error| format!("a client failed: {error}"))?;
    }
    settle(&load).await;
    read_all(&load.by(gates(&controls))).await;
    level(&controls).await
}

/// Starts the clients, of all kinds or only one.
async fn work(load: &Arc<Load>, seed: u64) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let kinds = Draw::new(seed, "workloads").below(6);
    let share = |kind: u64, part: f64| match kinds {
        0 => Some(RATE * part),
        only => (only == kind).then_some(RATE),
    };
    if let Some(rate) = share(1, 0.35) {
        limits::start(load, rate, &mut clients).await;
    }
    if let Some(rate) = share(2, 0.25) {
        idempotency::start(load, rate, &mut clients);
    }
    if let Some(rate) = share(3, 0.15) {
        publishing::start(load, rate, &mut clients).await;
    }
    if let Some(rate) = share(4, 0.1) {
        webhooks::start(load, rate, &mut clients).await;
    }
    if let Some(rate) = share(5, 0.15) {
        registers::start(load, rate, &mut clients).await;
    }
    clients
}

/// Waits until every node is ready; an error is the first that isn't.
async fn all_ready(controls: &Controls) -> Result<(), onceward_core::cluster::NodeId> {
    let deadline = Instant::now() + READY_MAX;
    for node in &controls.nodes {
        loop {
            let answer = controls.ask(*node, "GET", "/readyz".to_owned(), String::new()).await;
            if let Some(answer) = answer
                && answer.await.is_ok_and(|(status, _)| status == 200)
            {
                break;
            }
            if Instant::now() > deadline {
                return Err(*node);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

/// Records the hash of every replica, once those of a shard are level.
async fn level(controls: &Controls) -> Result<(), String> {
    let deadline = Instant::now() + LEVEL_MAX;
    loop {
        let mut hashes = Vec::new();
        for node in &controls.nodes {
            let Some(status) = controls.status(*node).await else { continue };
            for shard in status.shards {
                let Some(hash) = shard.state_hash else { continue };
                let at_us = controls.world.now_us();
                let (applied_index, hash) = (hash.applied_index, hash.hash);
                hashes.push(StateHash { at_us, node: node.0, shard: shard.id.0, applied_index, hash });
            }
        }
        let is_level = hashes.iter().all(|hash| {
            hashes.iter().all(|other| other.shard != hash.shard || other.applied_index == hash.applied_index)
        });
        if is_level && !hashes.is_empty() {
            hashes.into_iter().for_each(|hash| controls.recorder.record(Record::StateHash(hash)));
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("replicas are not level {LEVEL_MAX:?} after the last call: {hashes:?}"));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn described(options: &Options) -> Run {
    Run {
        seed: options.seed,
        nodes: options.nodes,
        data_shards: options.data_shards,
        nemesis: "drawn from the seed".to_owned(),
        workload: "drawn from the seed".to_owned(),
        duration_ms: u64::try_from(TORMENT.as_millis()).expect("a few seconds"),
        version: String::new(),
        started_at: String::new(),
        command: format!("scripts/simulate --first {} --seeds 1", options.seed),
    }
}
