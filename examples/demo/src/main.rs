//! `onceward-demo`: what Onceward does, told against a running cluster. Every step says what it asks, shows what came
//! back, and fails unless that is what was promised. Keys are fresh on each run.

mod cluster;
mod limits;
mod payments;
mod receiver;
mod shop;
mod story;
mod webhooks;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, Parser)]
#[command(name = "scripts/demo", version, about = "Shows what Onceward does on the running cluster")]
struct Options {
    /// A node's address; may be repeated
    #[arg(long, default_values_t = [4001, 4002, 4003].map(|port| format!("http://127.0.0.1:{port}")))]
    url: Vec<String>,
    /// The script that kills and starts nodes; without it no leader is killed
    #[arg(long)]
    cluster_script: Option<PathBuf>,
    /// The payments service; by default the one beside this program
    #[arg(long)]
    payments: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let told = tokio::select! {
        told = tell(options) => told,
        // Whatever was started for the story ends with it, and a node that was killed for it is started again.
        () = interrupted() => Err(anyhow::anyhow!("it was interrupted")),
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThis is not what should have happened: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn tell(options: Options) -> Result<()> {
    let payments = match options.payments {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("onceward-payments"),
    };
    story::tell(&options.url, options.cluster_script, payments).await
}

async fn interrupted() {
    let (Ok(mut terminate), Ok(mut hang_up)) = (signal(SignalKind::terminate()), signal(SignalKind::hangup())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

fn heading(text: &str) {
    println!("\n{text}");
}
