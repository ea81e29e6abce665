//! `onceward-payments`: a small payments service whose `POST /payments` may be repeated as often as a client likes.
//!
//! An example, written as a user of Onceward would write it: it knows Onceward by its HTTP API alone and keeps its money
//! in its own SQLite file. Read [`attempt`] first, then `RECIPE.md` beside this crate.

mod api;
mod attempt;
mod demo;
mod event;
mod fingerprint;
mod idempotency_key;
mod ledger;
mod onceward;
mod problem;
mod response;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::{
    attempt::{Service, Terms},
    demo::Rehearsal,
    ledger::Ledger,
    onceward::Onceward,
};

#[derive(Debug, Parser)]
#[command(name = "onceward-payments", version, about = "A payments service that pays once, however often it is asked")]
struct Options {
    /// Where to listen; with port 0 the system chooses one, and the first line of the output says which
    #[arg(long, default_value = "127.0.0.1:4080")]
    listen: SocketAddr,
    /// The SQLite file; made when it does not exist
    #[arg(long, default_value = "payments.sqlite")]
    database: PathBuf,
    /// A node of Onceward; repeat it for every node
    #[arg(long, default_values_t = [4001, 4002, 4003].map(|port| format!("http://127.0.0.1:{port}")))]
    onceward: Vec<String>,
    /// The token that Onceward knows this service by
    #[arg(long, env = "ONCEWARD_TOKEN", hide_env_values = true)]
    onceward_token: Option<String>,
    /// How long one step (limit, begin, complete) asks node after node before it gives up
    #[arg(long, default_value_t = 5_000)]
    deadline_ms: u64,
    /// The rate limit policy that payments are counted by
    #[arg(long, default_value = "payments")]
    policy: String,
    /// After this time an attempt counts as dead and another one may take its key over
    #[arg(long, default_value_t = 30_000)]
    lease_ms: u64,
    /// How long a finished key is remembered
    #[arg(long, default_value_t = 86_400_000)]
    ttl_ms: u64,
    /// Turns on what follows, and the header X-Demo-Pause: STEP=MS. For tests and demonstrations
    #[arg(long)]
    demo: bool,
    /// Makes every attempt slow: it works that long before it pays
    #[arg(long, requires = "demo", default_value_t = 0)]
    work_ms: u64,
    /// Aborts the process when an attempt gets there
    #[arg(long, requires = "demo", value_name = "STEP")]
    crash_at: Option<demo::Step>,
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).init();
    let options = Options::parse();
    let ledger = Ledger::open(&options.database)
        .with_context(|| format!("the database {} cannot be opened", options.database.display()))?;
    let service = Service {
        onceward: Onceward::new(options.onceward, options.onceward_token, Duration::from_millis(options.deadline_ms))?,
        ledger: Arc::new(ledger),
        terms: Terms { policy: options.policy, lease_ms: options.lease_ms, ttl_ms: options.ttl_ms },
        rehearsal: options
            .demo
            .then_some(Rehearsal { crash_at: options.crash_at, work: Duration::from_millis(options.work_ms) }),
    };
    let listener =
        TcpListener::bind(options.listen).await.with_context(|| format!("cannot listen on {}", options.listen))?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, api::routes(Arc::new(service))).with_graceful_shutdown(terminated()).await?;
    Ok(())
}

/// What is in flight is answered before the process ends. Whatever is not, is as if the process had been killed.
async fn terminated() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
