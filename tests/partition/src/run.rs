//! A run from its options to its verdicts: cluster up, load on, nemeses played, all healed, what is left read, all judged,
//! the report written. Decides nothing about what is right.

use std::{
    fs,
    io::BufReader,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use onceward_checkers::{
    history::{History, Record, Run},
    verdict::Verdict,
};
use onceward_tests::client::Api;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    arena::{Arena, ArenaOptions},
    final_reads::{read_all, settle},
    load::Load,
    nemesis,
    options::Options,
    progress::Progress,
    receivers::Receivers,
    recorder::Recorder,
    wire::{Gate, HttpGate},
    workload,
};

pub const HISTORY_FILE: &str = "history.jsonl";
/// Which processes ended although nobody asked them to, a sentence a line.
const EXITS_FILE: &str = "unexpected-exits.txt";
/// Fewer than by default: each costs processor time that a run of many processes on few cores has none to spare of.
const DATA_SHARDS: u16 = 4;
/// The promise on how long recovery takes.
const RECOVERY: &str = "G10";
/// Load before the first nemesis and after the last, so that something is under way when each of them strikes.
const CALM: Duration = Duration::from_secs(2);
/// A client ends with its call; its patience is less.
const CLIENTS_END_MAX: Duration = Duration::from_secs(15);

/// What came of a run.
pub struct Finished {
    pub history: History,
    pub verdicts: Vec<Verdict>,
    /// Why the run shows nothing, or less than it was meant to: each a sentence.
    pub shortcomings: Vec<String>,
}

impl Finished {
    pub fn violated(&self) -> bool {
        self.verdicts.iter().any(|verdict| !verdict.kept())
    }

    /// Whether nothing is violated, but perhaps for how long recovery takes: short runs have few of them to judge, and on a
    /// starved machine it says more of the machine.
    pub fn is_clean(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.kept() || verdict.promise == RECOVERY)
    }

    pub fn passed(&self) -> bool {
        !self.violated() && self.shortcomings.is_empty()
    }
}

pub async fn run(options: &Options, progress: &Progress) -> Result<Finished> {
    let dir = &options.out;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let recorder = Recorder::create(&dir.join(HISTORY_FILE))?;
    recorder.record(Record::Run(described(options)));
    let shown = CancellationToken::new();
    let display = tokio::spawn(progress.clone().show(recorder.clone(), shown.clone()));
    let exits = play(options, progress, &recorder).await;
    shown.cancel();
    display.await?;
    let exits = exits?;

    let mut finished = judge(recorder.finish()?);
    fs::write(dir.join(EXITS_FILE), exits.join("\n"))?;
    finished.shortcomings.extend(exits);
    onceward_report::write(dir, &finished.history, &finished.verdicts, &finished.shortcomings)?;
    Ok(finished)
}

/// Everything that needs the cluster. Returns which processes ended although nobody asked them to.
async fn play(options: &Options, progress: &Progress, recorder: &Recorder) -> Result<Vec<String>> {
    progress.say("starting the cluster");
    let mut arena = Arena::start(arena_options(options), recorder.clone()).await?;
    let receivers = Receivers::start(arena.host()).await;
    let delivered = CancellationToken::new();
    let deliveries = tokio::spawn(receivers.clone().record(arena.direct(), recorder.clone(), delivered.clone()));
    let load =
        Load::new(options.seed, gates(arena.clients(), HttpGate::hurried), receivers.targets(), recorder.clone());
    progress.say("setting up the workloads");
    let mut clients = workload::start(&options.workload.items, options.rate, &load, &receivers).await;
    tokio::time::sleep(CALM).await;

    let plan = nemesis::plan(&options.nemesis.items, options.order, options.time, options.seed);
    nemesis::play(&mut arena, &plan, recorder, &|doing| progress.say(doing)).await;
    progress.say("healing");
    arena.heal().await;
    tokio::time::sleep(CALM).await;
    load.stop.cancel();
    while let Some(ended) = timeout(CLIENTS_END_MAX, clients.join_next()).await.context("a client does not end")? {
        ended.context("a client failed")?;
    }

    let direct = load.by(gates(arena.direct(), HttpGate::patient));
    progress.say("waiting until everything is delivered");
    settle(&direct).await;
    progress.say("reading all that is left");
    read_all(&direct).await;
    delivered.cancel();
    deliveries.await?;
    arena.record_hashes().await;
    progress.say("judging");
    arena.save_logs(&options.out).await?;
    let exits = arena.unexpected_exits();
    arena.stop().await;
    Ok(exits)
}

/// Judges a history, a recorded one also.
pub fn judge(history: History) -> Finished {
    let verdicts = onceward_checkers::all().iter().map(|checker| checker.check(&history)).collect();
    let shortcomings = onceward_checkers::exercised(&history);
    Finished { history, verdicts, shortcomings }
}

/// Reads and judges the history in a run's directory anew, and writes the report again.
pub fn check(dir: &Path) -> Result<Finished> {
    let path = dir.join(HISTORY_FILE);
    let file = fs::File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut finished = judge(History::read(BufReader::new(file))?);
    // A run that was interrupted left none.
    let exits = fs::read_to_string(dir.join(EXITS_FILE)).unwrap_or_default();
    finished.shortcomings.extend(exits.lines().map(str::to_owned));
    onceward_report::write(dir, &finished.history, &finished.verdicts, &finished.shortcomings)?;
    Ok(finished)
}

fn gates(nodes: Vec<Api>, gate: fn(Api) -> HttpGate) -> Vec<Arc<dyn Gate>> {
    nodes.into_iter().map(|node| Arc::new(gate(node)) as Arc<dyn Gate>).collect()
}

fn arena_options(options: &Options) -> ArenaOptions {
    let list = |values: &[i64]| toml::Value::Array(values.iter().map(|value| (*value).into()).collect());
    // Five seconds in all: longer than a receiver is in trouble, and short enough to see a delivery given up.
    let schedule = list(&[100, 200, 400, 800, 1_500, 2_000]);
    // Whatever addresses a test network has.
    let private = ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"];
    let private = private.iter().map(|range| toml::Value::from(*range)).collect();
    let settings = [
        ("webhooks.retry_schedule_ms", schedule),
        ("webhooks.timeout_ms", 1_000.into()),
        ("webhooks.allow_private", toml::Value::Array(private)),
    ];
    ArenaOptions {
        nodes: options.nodes,
        data_shards: DATA_SHARDS,
        net: options.net,
        fault: options.fault.clone(),
        settings: settings
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .chain(nemesis::settings(&options.nemesis.items))
            .collect(),
    }
}

fn described(options: &Options) -> Run {
    let started_at = OffsetDateTime::from(SystemTime::now()).format(&Rfc3339).expect("this century has a notation");
    Run {
        seed: options.seed,
        nodes: options.nodes,
        data_shards: DATA_SHARDS,
        nemesis: options.nemesis.words.clone(),
        workload: options.workload.words.clone(),
        duration_ms: u64::try_from(options.time.as_millis()).expect("no run lasts for centuries"),
        version: version(),
        started_at,
        command: options.again(),
    }
}

/// Of the sources, where they are at hand.
fn version() -> String {
    let described = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let described = described.ok().filter(|output| output.status.success());
    described.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
