//! `onceward-demo`: what Onceward does, told against a running cluster. Every step says what it asks, shows what came
//! back, and fails unless that is what was promised. Keys are fresh on each run.

mod cluster;
mod story;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "scripts/demo", version, about = "Shows what Onceward does on the running cluster")]
struct Options {
    /// A node's address; may be repeated
    #[arg(long, default_values_t = [4001, 4002, 4003].map(|port| format!("http://127.0.0.1:{port}")))]
    url: Vec<String>,
    /// The script that kills and starts nodes; without it no leader is killed
    #[arg(long)]
    cluster_script: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    match story::tell(&options.url, options.cluster_script).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThis is not what should have happened: {error:#}");
            ExitCode::FAILURE
        }
    }
}
