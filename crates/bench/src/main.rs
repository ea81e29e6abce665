//! `onceward-bench`: what a cluster costs and gives. Starts a cluster of its own in a temporary directory, or asks the
//! one behind `--url`, and prints a line for each scenario.
//!
//! The generator shares the machine with the nodes it measures, so it is one thread and does as little as it can.

mod connection;
mod generator;
mod idempotency;
mod keys;
mod receiver;
mod report;
mod scenarios;
mod target;
mod usage;
mod webhooks;

use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

/// Measures speed and memory of Onceward.
#[derive(Debug, Parser)]
#[command(name = "scripts/bench", version)]
pub struct Options {
    /// What to measure [default: many-keys one-key multi-check]
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Open HTTP connections, spread over all nodes; each has one request under way
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// How long each scenario measures, after a second of warming up
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Keys that `many-keys` and `multi-check` draw from
    #[arg(long, default_value_t = 100_000)]
    keys: u32,
    /// Buckets that `buckets` makes
    #[arg(long, default_value_t = 1_000_000)]
    buckets: u32,
    /// Idempotency records that `records` makes
    #[arg(long, default_value_t = 100_000)]
    records: u32,
    /// Endpoints of `webhooks`, each of an application of its own; applications of `webhooks-pending`
    #[arg(long, default_value_t = 16)]
    endpoints: u32,
    /// Deliveries that `webhooks-pending` leaves undone
    #[arg(long, default_value_t = 50_000)]
    pending: u32,
    /// How often `failover` kills a leader
    #[arg(long, default_value_t = 10)]
    rounds: u16,
    /// A node of a running cluster; repeat it for all of them. Else a cluster is started and stopped again
    #[arg(long)]
    url: Vec<String>,
    /// Nodes of the cluster that is started
    #[arg(long, default_value_t = 3)]
    nodes: u16,
    /// Data shards of the cluster that is started
    #[arg(long, default_value_t = 8)]
    data_shards: u16,
    /// A setting of the nodes that are started, as `storage.block_cache_bytes=67108864`
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, toml::Value)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Checks of one bucket each, drawn evenly from --keys
    ManyKeys,
    /// Checks of one and the same bucket
    OneKey,
    /// Checks of two buckets on two shards
    MultiCheck,
    /// No requests at all: CPU and memory of the nodes
    Idle,
    /// Makes --buckets buckets: disk and memory they take
    Buckets,
    /// Kills a leader with -9 under load, --rounds times: how long until every shard serves again
    Failover,
    /// A new idempotency key begun and completed, with a body of 100 bytes
    Pairs,
    /// Begins of completed keys, drawn evenly from a tenth of --keys
    Replays,
    /// Everybody begins the same key and waits for whoever got it; then the next one
    HotKey,
    /// Makes --records completed records: disk and memory they take; then they all expire at once, under load
    Records,
    /// Messages published and delivered to a receiver here: at 40/s, at 200/s and at the sustained maximum
    Webhooks,
    /// Makes --pending deliveries to endpoints that never answer: disk and memory they take
    WebhooksPending,
    /// Every scenario above
    All,
}

/// `name=value`, the value as TOML writes it; what is no TOML is text.
fn setting(text: &str) -> Result<(String, toml::Value), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let table = toml::from_str::<toml::Table>(&format!("value = {value}"));
    let value = table.ok().and_then(|mut table| table.remove("value")).unwrap_or_else(|| value.into());
    Ok((name.to_owned(), value))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mut terminate = signal(SignalKind::terminate())?;
    let scenarios = match options.scenarios.as_slice() {
        [] => vec![Scenario::ManyKeys, Scenario::OneKey, Scenario::MultiCheck],
        chosen if chosen.contains(&Scenario::All) => {
            let all = Scenario::value_variants().iter().copied();
            all.filter(|scenario| *scenario != Scenario::All).collect()
        }
        chosen => chosen.to_vec(),
    };
    let mut target = target::Target::reach(&options).await?;
    let measuring = async {
        for scenario in scenarios {
            measure(scenario, &mut target, &options).await;
        }
    };
    // A signal ends the measuring, and the nodes are stopped all the same.
    let interrupted = tokio::select! {
        () = measuring => false,
        _ = tokio::signal::ctrl_c() => true,
        _ = terminate.recv() => true,
    };
    target.stop().await;
    if interrupted {
        anyhow::bail!("interrupted");
    }
    Ok(())
}

async fn measure(scenario: Scenario, target: &mut target::Target, options: &Options) {
    match scenario {
        Scenario::ManyKeys => scenarios::many_keys(target, options).await,
        Scenario::OneKey => scenarios::one_key(target, options).await,
        Scenario::MultiCheck => scenarios::multi_check(target, options).await,
        Scenario::Idle => scenarios::idle(target, options).await,
        Scenario::Buckets => scenarios::buckets(target, options).await,
        Scenario::Failover => scenarios::failover(target, options).await,
        Scenario::Pairs => idempotency::pairs(target, options).await,
        Scenario::Replays => idempotency::replays(target, options).await,
        Scenario::HotKey => idempotency::hot_key(target, options).await,
        Scenario::Records => idempotency::records(target, options).await,
        Scenario::Webhooks => webhooks::webhooks(target, options).await,
        Scenario::WebhooksPending => webhooks::pending(target, options).await,
        Scenario::All => {}
    }
}
