//! The command line: `start`, `init`, `replace`, `config check`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Parser, Subcommand};
use onceward_core::cluster::NodeId;
use onceward_shard::{OsEntropy, found};
use onceward_storage::RocksStore;

use crate::{
    logging, node,
    process::{self, Failure},
    replace::{self, ReplaceArgs},
    settings::{self, Override, Settings, Sources},
};

/// Rate limits and idempotency keys that hold, on a cluster of equal nodes.
#[derive(Parser)]
#[command(name = "onceward", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a node until SIGTERM.
    Start(SettingsArgs),
    /// Founds a cluster, once, on exactly one of its nodes: makes its data directory and prints the cluster's id.
    Init(SettingsArgs),
    /// Lets a node that lost its disk come back with an empty data directory.
    Replace(ReplaceArgs),
    /// Looks at settings without starting.
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Prints the settings in effect, secrets hidden, or what is wrong with them.
    Check(SettingsArgs),
}

/// Settings come from the file, over it from ONCEWARD_SECTION__NAME variables, over those from here.
#[derive(Args)]
struct SettingsArgs {
    /// TOML; see cluster/onceward.example.toml for all settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One setting, e.g. --set http.max_in_flight=1000; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<Override>,
    /// node.id
    #[arg(long, value_name = "N")]
    node_id: Option<u16>,
    /// node.data_dir
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// http.listen
    #[arg(long, value_name = "ADDRESS")]
    http_listen: Option<SocketAddr>,
    /// peers.listen
    #[arg(long, value_name = "ADDRESS")]
    peer_listen: Option<SocketAddr>,
    /// log.level
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// log.format
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

fn key_value(text: &str) -> Result<Override, String> {
    let (name, value) = text.split_once('=').ok_or("it must be KEY=VALUE, e.g. http.listen=127.0.0.1:4001")?;
    Ok(Override { name: name.trim().to_owned(), value: value.to_owned() })
}

impl SettingsArgs {
    fn sources(self) -> Sources {
        let flags = [
            ("node.id", self.node_id.map(|id| id.to_string())),
            ("node.data_dir", self.data_dir),
            ("http.listen", self.http_listen.map(|address| address.to_string())),
            ("peers.listen", self.peer_listen.map(|address| address.to_string())),
            ("log.level", self.log_level),
            ("log.format", self.log_format),
        ];
        let flags =
            flags.into_iter().filter_map(|(name, value)| Some(Override { name: name.to_owned(), value: value? }));
        let overrides = self.set.into_iter().chain(flags).collect();
        Sources::of_process(self.config, overrides)
    }
}

/// The command line or the settings are wrong; clap ends with the same.
pub const EXIT_USAGE: u8 = 2;

/// How long the end of the process waits for tasks to end and for the store to close. Only a disk that hangs takes long.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs what the command line says. Exit codes: 0 done, 2 wrong usage or settings, 3 cannot start or do it, 4 fatal
/// while running.
pub fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Start(args) => with_settings(args, start),
        Command::Init(args) => with_settings(args, init),
        Command::Config(ConfigCommand::Check(args)) => with_settings(args, |_, settings| {
            print!("{}", settings::effective(&settings));
            Ok(())
        }),
        Command::Replace(args) => {
            runtime().and_then(|runtime| runtime.block_on(replace::run(args)).map_err(Failure::Start))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("onceward: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn with_settings(
    args: SettingsArgs,
    act: impl FnOnce(Sources, Settings) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let sources = args.sources();
    match settings::load(&sources) {
        Ok(settings) => act(sources, settings),
        Err(error) => {
            eprintln!("onceward: settings:\n{error}");
            std::process::exit(i32::from(EXIT_USAGE));
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Failure::Start(format!("no threads: {error}")))
}

fn start(sources: Sources, settings: Settings) -> Result<(), Failure> {
    logging::start(&settings.log);
    let runtime = runtime()?;
    let outcome = runtime.block_on(process::run(sources, settings));
    // The last task to end closes the store, and RocksDB must not be at work when its library's own end begins.
    runtime.shutdown_timeout(CLOSE_TIMEOUT);
    outcome
}

fn init(_sources: Sources, settings: Settings) -> Result<(), Failure> {
    let options = node::store_options(&settings.storage);
    let (dir, data_shards) = (&settings.node.data_dir, settings.cluster.data_shards);
    let store = RocksStore::open(dir, &options).map_err(|error| Failure::Start(error.to_string()))?;
    let cluster_id = found(NodeId(settings.node.id), &store, data_shards, &OsEntropy)
        .map_err(|error| Failure::Start(format!("{}: {error}", dir.display())))?;
    println!("{cluster_id:032x}");
    Ok(())
}
