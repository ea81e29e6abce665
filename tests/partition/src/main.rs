//! The command line of the partition suite. Exit status 0: all promises kept, and the run showed it; 1: not so; 2: it cannot be
//! run.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use onceward_partition::{
    arena::Net,
    mutations,
    nemesis::{self, Kind, Order},
    options::{Chosen, Options, duration},
    progress::Progress,
    run::{self, Finished},
    summary::summary,
    workload::{self, Workload},
};
use time::{OffsetDateTime, macros::format_description};
use tokio::signal::unix::{SignalKind, signal};

/// Does to a cluster of real processes what networks, kernels and operators do, and checks that it keeps its promises.
///
/// Without arguments: all nemeses in turn, about ten minutes.
#[derive(Parser)]
#[command(name = "scripts/partition", bin_name = "scripts/partition")]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// What is done to the cluster: names with commas between them, or all.
    #[arg(long, default_value = "all", value_parser = |words: &str| Ok::<_, String>(words.to_owned()))]
    nemesis: String,
    /// One nemesis after the other, or several at once.
    #[arg(long, value_enum, default_value_t = OrderWord::InTurn)]
    order: OrderWord,
    /// For how long, such as 90s, 10m or 2h.
    #[arg(long, default_value = "10m", value_parser = duration)]
    time: Duration,
    /// Decides all that a run draws; a random one when not given.
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, default_value_t = 3, value_parser = nodes)]
    nodes: u16,
    /// What is asked of the cluster: names with commas between them, or all.
    #[arg(long, default_value = "all", value_parser = workloads)]
    workload: Chosen<Workload>,
    /// Calls a second of all clients together.
    #[arg(long, default_value_t = 150.0, value_parser = rate)]
    rate: f64,
    /// How links are broken: by proxies, or by network namespaces (Linux, as root).
    #[arg(long, value_enum, default_value_t = NetWord::Proxy)]
    net: NetWord,
    /// Where history and report go; partition-runs/<time>-<seed> when not given.
    #[arg(long)]
    out: Option<PathBuf>,
    /// A fault of the product that the run is to catch.
    #[arg(long)]
    fault: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Judges the history of a former run again.
    Check { dir: PathBuf },
    /// Shows that seeded faults of the product are caught, and that the same runs without them are clean.
    Mutations {
        /// One fault only.
        #[arg(long)]
        fault: Option<String>,
        /// Where histories and reports go.
        #[arg(long, default_value = "partition-runs/mutations")]
        out: PathBuf,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum OrderWord {
    InTurn,
    Combined,
}

#[derive(Clone, Copy, ValueEnum)]
enum NetWord {
    Proxy,
    Netns,
}

/// A run that cannot be made, by a mistake in the command line or in the machine.
const CANNOT_RUN: u8 = 2;
/// As shells have it for what SIGINT ended.
const INTERRUPTED: u8 = 130;

fn nodes(text: &str) -> Result<u16, String> {
    match text {
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err("there are clusters of 3 and of 5".to_owned()),
    }
}

fn workloads(words: &str) -> Result<Chosen<Workload>, String> {
    Ok(Chosen { words: words.to_owned(), items: workload::parse(words)? })
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (1.0..=10_000.0).contains(&rate) => Ok(rate),
        _ => Err("a rate is a number from 1 to 10000".to_owned()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Whatever is left undone then is dropped, and with it every process that was started.
    tokio::select! {
        status = obey(arguments) => status,
        () = interrupted() => ExitCode::from(INTERRUPTED),
    }
}

async fn obey(arguments: Arguments) -> ExitCode {
    let passed = match &arguments.command {
        Some(Command::Check { dir }) => run::check(dir).map(|finished| tell(&finished, dir)),
        Some(Command::Mutations { fault, out }) => mutations::run_all(fault.as_deref(), out).await,
        None => match options(arguments) {
            Ok(options) => test(&options).await,
            Err(error) => Err(anyhow::Error::msg(error)),
        },
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scripts/partition: {error:#}");
            ExitCode::from(CANNOT_RUN)
        }
    }
}

/// Ctrl-C, or SIGTERM.
async fn interrupted() {
    let mut terminated = signal(SignalKind::terminate()).expect("a process may handle SIGTERM");
    tokio::select! {
        result = tokio::signal::ctrl_c() => result.expect("a process may handle SIGINT"),
        _ = terminated.recv() => {}
    }
}

async fn test(options: &Options) -> Result<bool> {
    println!("seed {}; again: {}", options.seed, options.again());
    let finished = run::run(options, &Progress::new()).await?;
    let passed = tell(&finished, &options.out);
    if !passed {
        println!("\nAgain: {}", options.again());
    }
    Ok(passed)
}

fn tell(finished: &Finished, dir: &Path) -> bool {
    println!("\n{}", summary(finished));
    let passed = finished.passed();
    println!("{}. Report: {}", if passed { "Passed" } else { "FAILED" }, dir.join("index.html").display());
    passed
}

fn options(arguments: Arguments) -> Result<Options, String> {
    let Arguments { command: _, nemesis, order, time, seed, nodes, workload, rate, net, out, fault } = arguments;
    let kinds: Vec<Kind> = nemesis::parse(&nemesis, nodes)?;
    let seed = seed.unwrap_or_else(|| getrandom::u32().map(u64::from).unwrap_or_default());
    Ok(Options {
        nemesis: Chosen { words: nemesis, items: kinds },
        order: match order {
            OrderWord::InTurn => Order::InTurn,
            OrderWord::Combined => Order::Combined,
        },
        time,
        seed,
        nodes,
        workload,
        rate,
        net: match net {
            NetWord::Proxy => Net::Proxy,
            NetWord::Netns => Net::Netns,
        },
        out: out.unwrap_or_else(|| PathBuf::from("partition-runs").join(format!("{}-{seed}", now()))),
        fault,
    })
}

fn now() -> String {
    let format = format_description!("[year][month][day]T[hour][minute][second]");
    OffsetDateTime::from(SystemTime::now()).format(format).expect("this century has a notation")
}
