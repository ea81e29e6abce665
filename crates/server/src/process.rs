//! The process: composes node and API, and ends in order on SIGTERM and SIGINT, at once on what is fatal.

use std::{io, sync::Arc, time::Duration};

use onceward_dispatch::{Sender, SystemResolver};
use onceward_shard::Node;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    task::JoinHandle,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    api::App,
    dispatch::Deliveries,
    http::{Edge, Listener},
    node,
    settings::{self, Settings, Sources},
};

/// Why the process ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Start(String),
    /// Storage or consensus cannot go on; a restart reads what is on disk.
    #[error("fatal: {0}")]
    Fatal(String),
}

impl Failure {
    pub const fn exit_code(&self) -> u8 {
        match self {
            Failure::Start(_) => 3,
            Failure::Fatal(_) => 4,
        }
    }
}

fn at_start(error: impl std::fmt::Display) -> Failure {
    Failure::Start(error.to_string())
}

/// Runs a node until it is told to stop.
pub async fn run(sources: Sources, settings: Settings) -> Result<(), Failure> {
    let mut stop_signals = StopSignals::new().map_err(at_start)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(at_start)?;
    raise_descriptor_limit();
    let listener = Listener::bind(&settings.http).await.map_err(at_start)?;
    let (fatal, mut died) = mpsc::unbounded_channel();
    let on_fatal: Arc<dyn Fn(String) + Send + Sync> = Arc::new(move |what| {
        // Nobody listens any more only when the process is already ending.
        let _ = fatal.send(what);
    });
    let starting = async {
        let config = node::config(&settings, on_fatal.clone()).await.map_err(Failure::Start)?;
        Node::start(config).await.map_err(at_start)
    };
    let node = tokio::select! {
        node = starting => node?,
        Some(what) = died.recv() => return Err(Failure::Fatal(what)),
        () = stop_signals.next() => return Ok(()),
    };

    let dispatch = settings.webhooks.dispatch();
    let resolver = Box::new(SystemResolver);
    let sender = Sender::new(dispatch.guard, dispatch.timeout, &dispatch.authorities, resolver, node::clock());
    let app = App::new(&settings, Arc::new(node.clone()), Arc::new(sender.map_err(at_start)?));
    let deliveries = Deliveries::begin(node.clone(), settings.webhooks.dispatch(), on_fatal);
    // Nobody else sets it.
    let _ = app.metrics.deliveries.set(deliveries.clone());
    let address = listener.address().map_err(at_start)?;
    let stop = CancellationToken::new();
    let serving = tokio::spawn(listener.serve(Edge::new(app.clone()), stop.clone()));
    info!(node = settings.node.id, http = %address, peers = %settings.peers.listen, version = env!("CARGO_PKG_VERSION"), "the node has started");

    loop {
        tokio::select! {
            Some(what) = died.recv() => {
                error!(what, "fatal: the process ends");
                return Err(Failure::Fatal(what));
            }
            () = stop_signals.next() => break,
            _ = hangup.recv() => reload(&sources, &app),
        }
    }
    tokio::select! {
        () = end(&app, &node, &deliveries, stop, serving) => Ok(()),
        Some(what) = died.recv() => Err(Failure::Fatal(what)),
        () = stop_signals.next() => Err(Failure::Fatal("told to stop twice: ending without an orderly stop".to_owned())),
    }
}

/// Turns load balancers away, answers and delivers what is in flight, hands leaderships over.
async fn end(app: &App, node: &Node, deliveries: &Deliveries, stop: CancellationToken, serving: JoinHandle<()>) {
    info!("stopping");
    app.stopping.cancel();
    node.stop_waiting();
    sleep(Duration::from_millis(u64::from(app.http.drain_ms))).await;
    stop.cancel();
    if let Err(error) = serving.await {
        error!(%error, "the listener ended badly");
    }
    deliveries.stop().await;
    node.stop().await;
}

/// Reads the tokens again; what is wrong leaves the old ones in force.
fn reload(sources: &Sources, app: &App) {
    match settings::load(sources) {
        Ok(settings) if app.doorkeeper.reload(&settings.auth) => {
            info!(tokens = settings.auth.tokens.len(), "tokens reloaded; other settings take a restart");
        }
        Ok(_) => warn!("tokens not reloaded: there are none; to serve without tokens takes a restart"),
        Err(error) => warn!(%error, "tokens not reloaded"),
    }
}

/// The signals that end a node in order.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> io::Result<StopSignals> {
        Ok(StopSignals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Connections and table files take descriptors: the soft limit is raised to what the system allows.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        warn!(%error, "cannot raise the limit of open files");
    }
}
