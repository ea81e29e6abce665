//! A machine: a disk and clocks that outlive its process, and the process, which is the product's own code on a runtime of
//! its own. The runtime is what makes a crash one: dropped, all that ran in it is gone between two polls, and what the
//! disk had not synced is gone too. Its clock stands still until the machine is stepped, so a machine that isn't is frozen.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{body::Body, http::Request};
use futures::future::{BoxFuture, ready};
use http_body_util::BodyExt;
use onceward_core::cluster::NodeId;
use onceward_dispatch::{Dispatch, DispatchConfig};
use onceward_server::{
    api::{App, webhooks::UrlGuard},
    dispatch::feeds,
    http::Edge,
    settings::{self, Settings},
};
use onceward_shard::{ClusterStatus, Node, NodeConfig, PeerConfig, ShardPort, Tuning, found};
use onceward_storage::{LogWriter, MemoryStore, Rounds, Store};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{Notify, oneshot},
    time::{advance, sleep},
};

use crate::{
    clock::{MachineClock, MachineEntropy},
    net::Net,
    receivers::Receivers,
    world::World,
};

/// So small that replicas that lag have to be sent snapshots.
const SNAPSHOT_EVERY_ENTRIES: u64 = 30;
const KEEP_BYTES: u64 = 1 << 10;
/// Short enough to see a delivery given up.
const RETRY_MS: [u64; 6] = [100, 200, 400, 800, 1_500, 2_000];
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(1_000);

/// An HTTP answer: status and body.
pub type Answered = (u16, String);

/// What all machines of a cluster share.
#[derive(Clone)]
pub struct Surroundings {
    pub seed: u64,
    pub world: Arc<World>,
    pub net: Net,
    pub receivers: Receivers,
    pub nodes: Vec<NodeId>,
    pub data_shards: u16,
    /// Told what must never happen.
    pub on_failure: Arc<dyn Fn(String) + Send + Sync>,
}

pub struct Machine {
    pub id: NodeId,
    surroundings: Surroundings,
    dir: PathBuf,
    disk: MemoryStore,
    sync: Arc<SyncTime>,
    clock: Arc<MachineClock>,
    entropy: Arc<MachineEntropy>,
    starts: u64,
    frozen_ms: Option<u64>,
    /// One step in so many is made twice, or left out where it is negative.
    drift_every: i64,
    steps: u64,
    process: Option<Process>,
}

struct Process {
    runtime: Runtime,
    live: Arc<OnceLock<Live>>,
    ended: Arc<AtomicBool>,
}

/// A node that serves, at least with refusals.
pub struct Live {
    pub node: Node,
    edge: Edge,
    /// Once it is a member.
    pub ports: OnceLock<Vec<ShardPort>>,
}

/// How long a sync takes.
#[derive(Default)]
struct SyncTime {
    spike_ms: AtomicU64,
}

impl Machine {
    pub fn new(id: NodeId, dir: PathBuf, surroundings: Surroundings) -> Machine {
        let disk = MemoryStore::new();
        let entropy = MachineEntropy::new(surroundings.seed, id.0);
        if id == surroundings.nodes[0] {
            found(id, &disk, surroundings.data_shards, entropy.as_ref()).expect("an empty disk can be founded on");
            disk.sync().expect("a simulated disk syncs");
        }
        Machine {
            id,
            surroundings,
            dir,
            disk,
            sync: Arc::default(),
            clock: Arc::default(),
            entropy,
            starts: 0,
            frozen_ms: None,
            drift_every: 0,
            steps: 0,
            process: None,
        }
    }

    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    pub fn live(&self) -> Option<&Live> {
        self.process.as_ref()?.live.get()
    }

    pub fn set_wall_offset(&self, ms: i64) {
        self.clock.set_wall_offset(ms);
    }

    pub fn set_drift(&mut self, every: i64) {
        self.drift_every = every;
    }

    pub fn set_sync_spike(&self, ms: u64) {
        self.sync.spike_ms.store(ms, Ordering::Relaxed);
    }

    /// Lets a millisecond pass here.
    pub fn step(&mut self) {
        if let Some(frozen) = &mut self.frozen_ms {
            *frozen += 1;
            return self.clock.advance(1);
        }
        self.steps += 1;
        let drifts = self.drift_every != 0 && self.steps.is_multiple_of(self.drift_every.unsigned_abs());
        let passes = match self.drift_every.signum() {
            _ if !drifts => 1,
            1 => 2,
            _ => 0,
        };
        for _ in 0..passes {
            if let Some(process) = &self.process {
                process.runtime.block_on(async { sleep(Duration::from_millis(1)).await });
            }
            self.clock.advance(1);
        }
    }

    /// SIGSTOP: nothing runs, and nobody is told.
    pub fn freeze(&mut self) {
        self.frozen_ms.get_or_insert(0);
        self.surroundings.net.silence(self.id);
    }

    /// SIGCONT: everything that was due is due at once.
    pub fn thaw(&mut self) {
        let Some(frozen) = self.frozen_ms.take() else { return };
        if let Some(process) = &self.process {
            process.runtime.block_on(advance(Duration::from_millis(frozen)));
        }
        self.surroundings.net.unsilence(self.id);
    }

    /// Ends the process. With the power go unsynced writes, as many as is drawn, and nobody is told; killed, the kernel
    /// keeps them and closes the connections.
    pub fn crash(&mut self, power_loss: bool) {
        let Some(process) = self.process.take() else { return };
        process.ended.store(true, Ordering::Relaxed);
        self.frozen_ms = None;
        let Surroundings { net, world, .. } = &self.surroundings;
        net.close_port(self.id, !power_loss);
        net.unsilence(self.id);
        self.disk = match power_loss {
            true => self.disk.crash_seeded(world.between(0, u64::MAX - 1)),
            false => self.disk.crash_keeping(usize::MAX),
        };
        drop(process);
    }

    /// Starts a process.
    pub fn start(&mut self) {
        if self.process.is_some() {
            return;
        }
        self.starts += 1;
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without threads and sockets can be made");
        let (live, ended) = (Arc::<OnceLock<Live>>::default(), Arc::<AtomicBool>::default());
        let on_fatal: Arc<dyn Fn(String) + Send + Sync> = {
            let (id, ended, on_failure) = (self.id, ended.clone(), self.surroundings.on_failure.clone());
            Arc::new(move |what| {
                if !ended.load(Ordering::Relaxed) {
                    on_failure(format!("node {id} cannot go on: {what}"));
                }
            })
        };
        let store: Arc<dyn Store> = Arc::new(self.disk.clone());
        let log_writer = {
            let on_fatal = on_fatal.clone();
            let queued = Arc::new(Notify::new());
            let on_queued = {
                let queued = queued.clone();
                Box::new(move || queued.notify_one())
            };
            let on_error = Arc::new(move |error| on_fatal(format!("log writer: {error}")));
            let (writer, rounds) = LogWriter::stepwise(store.clone(), on_error, on_queued);
            runtime.spawn(write_log(rounds, queued, self.sync.clone(), self.surroundings.world.clone()));
            writer
        };
        let config = self.node_config(store, log_writer, on_fatal.clone());
        runtime.spawn(serve(config, self.surroundings.clone(), live.clone(), self.clock.clone(), on_fatal));
        self.process = Some(Process { runtime, live, ended });
    }

    fn node_config(
        &self,
        store: Arc<dyn Store>,
        log_writer: LogWriter,
        on_fatal: Arc<dyn Fn(String) + Send + Sync>,
    ) -> NodeConfig {
        let Surroundings { net, nodes, .. } = &self.surroundings;
        let peer = |node: &NodeId| {
            let address = format!("node-{node}:1");
            (*node, PeerConfig { peer_address: address.clone(), http_address: address })
        };
        NodeConfig {
            node: self.id,
            data_dir: self.dir.clone(),
            peers: nodes.iter().map(peer).collect(),
            store,
            log_writer,
            network: net.of(self.id, u64::from(self.id.0) << 32 | self.starts, nodes.clone()),
            tuning: Tuning {
                snapshot_every_entries: SNAPSHOT_EVERY_ENTRIES,
                keep_bytes: KEEP_BYTES,
                ..Tuning::default()
            },
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
            on_fatal,
        }
    }

    /// Asks the node what it says of its replicas.
    pub fn status(&self) -> Option<oneshot::Receiver<ClusterStatus>> {
        let process = self.process.as_ref()?;
        let node = process.live.get()?.node.clone();
        let (sender, status) = oneshot::channel();
        process.runtime.spawn(async move { drop(sender.send(node.cluster(true).await)) });
        Some(status)
    }

    /// Asks the node's HTTP API. The answer never comes where the process ends first; `None`: nobody listens.
    pub fn ask(&self, method: &'static str, path: String, body: String) -> Option<oneshot::Receiver<Answered>> {
        let process = self.process.as_ref()?;
        let edge = process.live.get()?.edge.clone();
        let (sender, answer) = oneshot::channel();
        process.runtime.spawn(async move {
            let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
            let request = request.body(Body::from(body)).expect("a request of the suite is one");
            let response = edge.answer(IpAddr::V4(Ipv4Addr::LOCALHOST), request).await;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            // Whoever asked may have given up.
            drop(sender.send((status, String::from_utf8_lossy(&body).into_owned())));
        });
        Some(answer)
    }
}

/// The log writer's work, at the pace of the simulated disk.
async fn write_log(mut rounds: Rounds, queued: Arc<Notify>, sync: Arc<SyncTime>, world: Arc<World>) {
    loop {
        queued.notified().await;
        while rounds.begin() {
            let spike_ms = sync.spike_ms.load(Ordering::Relaxed);
            sleep(Duration::from_millis(world.between(1, 2 + spike_ms))).await;
            if !rounds.finish() {
                return;
            }
        }
    }
}

/// What the server's composition root does, on simulated ground.
async fn serve(
    config: NodeConfig,
    surroundings: Surroundings,
    live: Arc<OnceLock<Live>>,
    clock: Arc<MachineClock>,
    on_fatal: Arc<dyn Fn(String) + Send + Sync>,
) {
    let (id, entropy) = (config.node, config.entropy.clone());
    let node = match Node::start(config).await {
        Ok(node) => node,
        Err(error) => return on_fatal(format!("it does not start: {error}")),
    };
    let app = App::new(&settings(id, &surroundings), Arc::new(node.clone()), Arc::new(AnyUrl));
    // Only this task sets either of them, once.
    drop(live.set(Live { node: node.clone(), edge: Edge::new(app), ports: OnceLock::new() }));
    let ports = node.shard_ports().await;
    let feeds = feeds(ports.clone());
    if let Some(live) = live.get() {
        drop(live.ports.set(ports));
    }
    let dispatch = DispatchConfig {
        schedule: RETRY_MS.map(Duration::from_millis).to_vec(),
        timeout: ATTEMPT_TIMEOUT,
        ..DispatchConfig::default()
    };
    match Dispatch::over(dispatch, feeds, Arc::new(surroundings.receivers), clock, entropy).await {
        // It goes on until the process ends.
        Ok(_dispatch) => std::future::pending().await,
        Err(error) => on_fatal(error.to_string()),
    }
}

fn settings(id: NodeId, surroundings: &Surroundings) -> Settings {
    let nodes: Vec<String> = surroundings
        .nodes
        .iter()
        .map(|node| format!(r#"{{ id = {node}, peer_address = "node-{node}:1", http_address = "node-{node}:1" }}"#))
        .collect();
    let set = |name: &str, value: String| settings::Override { name: name.to_owned(), value };
    let overrides = vec![
        set("node.id", id.to_string()),
        set("node.data_dir", "unused".to_owned()),
        set("peers.secret", "a secret of the simulation".to_owned()),
        set("cluster.data_shards", surroundings.data_shards.to_string()),
        set("cluster.nodes", format!("[{}]", nodes.join(", "))),
    ];
    let sources = settings::Sources { overrides, ..settings::Sources::default() };
    settings::load(&sources).unwrap_or_else(|error| panic!("the settings of a simulated node: {error}"))
}

/// Receivers are simulated too: every URL leads to one.
struct AnyUrl;

impl UrlGuard for AnyUrl {
    fn vet<'a>(&'a self, _url: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
}
