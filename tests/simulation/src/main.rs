//! `simulate`: many seeds, each in a process of its own, and what came of them.
//!
//! A process each, because some of what runs keeps its state in the process (numbers of actors, of transfers, of runtimes),
//! and a seed has to decide everything.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result};
use clap::Parser;
use onceward_simulation::{
    panics, randomness,
    run::{self, Finished},
};
use parking_lot::Mutex;

/// Simulates clusters, one for each seed, and judges what they did.
#[derive(Parser)]
#[command(name = "simulate")]
struct Options {
    /// How many seeds.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Seeds under way at a time.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// A mistake to make on purpose; needs the feature `faults`.
    #[arg(long, value_name = "NAME")]
    fault: Option<String>,
    /// Stops at the first seed that fails.
    #[arg(long)]
    stop_at_failure: bool,
    /// Where the histories of seeds that fail are written, with a page for each.
    #[arg(long, value_name = "DIR", default_value = "simulation-failures")]
    out: PathBuf,
    /// Writes the histories of all seeds.
    #[arg(long)]
    keep: bool,
    /// Runs the first seed in this process; with what the nodes log, as RUST_LOG says, on stderr.
    #[arg(long)]
    alone: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let clean = if options.alone { alone(&options) } else { many(&options) };
    match clean {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("simulate: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// One seed, here. Whether it is clean.
fn alone(options: &Options) -> Result<bool> {
    randomness::seed(options.first);
    choose_fault(options.fault.as_deref())?;
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).without_time().with_writer(io::stderr).init();
    }
    panics::watch();
    let files = files().context("no place for files")?;
    let finished = run::run(options.first, files.path());
    let clean = finished.is_clean();
    println!("{} operations, {} deliveries", finished.history.operations.len(), finished.history.deliveries.len());
    if let Some(failure) = &finished.failure {
        println!("  {failure}");
    }
    for verdict in &finished.verdicts {
        verdict.violations.iter().for_each(|violation| println!("  {}: {violation}", verdict.promise));
    }
    if !clean || options.keep {
        write(&options.out.join(format!("seed-{}", options.first)), &finished)?;
    }
    Ok(clean)
}

fn write(dir: &Path, finished: &Finished) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let failure: Vec<String> = finished.failure.iter().cloned().collect();
    onceward_report::write(dir, &finished.history, &finished.verdicts, &failure)?;
    onceward_report::write_history(&dir.join("history.jsonl"), &finished.history)?;
    Ok(())
}

/// In memory where there is such a place: simulated disks are what is to be slow.
fn files() -> io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let dir = tempfile::Builder::new().prefix("onceward-simulation-").tempdir_in(memory);
    dir.or_else(|_| tempfile::tempdir())
}

#[cfg(feature = "faults")]
fn choose_fault(name: Option<&str>) -> Result<()> {
    if let Some(name) = name {
        onceward_core::faults::choose(name.parse().map_err(anyhow::Error::msg)?);
    }
    Ok(())
}

#[cfg(not(feature = "faults"))]
fn choose_fault(name: Option<&str>) -> Result<()> {
    match name {
        Some(_) => {
            anyhow::bail!("this program was built without the feature `faults`, and makes no mistakes on purpose")
        }
        None => Ok(()),
    }
}

/// All seeds, a process each. Whether all are clean.
fn many(options: &Options) -> Result<bool> {
    choose_fault(options.fault.as_deref())?;
    let began = Instant::now();
    let (next, done) = (AtomicU64::new(options.first), AtomicU64::new(0));
    let failed = Mutex::new(Vec::new());
    let end = options.first + options.seeds;
    let work = || -> Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end || (options.stop_at_failure && !failed.lock().is_empty()) {
                return Ok(());
            }
            let output = one(options, seed)?;
            done.fetch_add(1, Ordering::Relaxed);
            match output.status.code() {
                Some(0) => {}
                // A process that was killed has failed as well.
                code => {
                    failed.lock().push(seed);
                    tell_failure(options, seed, code, &output);
                }
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let (done, failed) = (done.into_inner(), failed.into_inner());
    let seconds = began.elapsed().as_secs_f64();
    println!("{done} seeds in {seconds:.1} s ({:.1} a second), {} failed", done as f64 / seconds, failed.len());
    Ok(failed.is_empty())
}

fn one(options: &Options, seed: u64) -> Result<Output> {
    let program = std::env::current_exe().context("this program is not found any more")?;
    let mut command = Command::new(program);
    command.arg("--alone").arg("--first").arg(seed.to_string()).arg("--out").arg(&options.out);
    command.args(options.keep.then_some("--keep"));
    if let Some(fault) = &options.fault {
        command.args(["--fault", fault]);
    }
    command.output().context("a seed cannot be started")
}

fn tell_failure(options: &Options, seed: u64, code: Option<i32>, output: &Output) {
    let mut out = io::stdout().lock();
    let fault = options.fault.as_ref().map(|fault| format!(" --fault {fault}")).unwrap_or_default();
    let mut text = format!("seed {seed} failed; again: scripts/simulate --first {seed} --seeds 1{fault}\n");
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    if code != Some(1) {
        text.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    // Nobody reads any more.
    drop(out.write_all(text.as_bytes()));
}
