//! A cluster of real processes with everything that can be done to it, and undone: its network, its processes, its clocks
//! and disks. Nemeses act on it side by side, so each change belongs to the one that made it, and flows suffer what all of
//! them ask for. An observer watches who leads and which process ended; probes ask whether shards serve.

mod observer;
mod probes;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use onceward_tests::{
    client::Api,
    cluster::Cluster,
    failpoints::Failpoints,
    links::{Condition, Flow, Network, NetworkKind, Passage},
    node,
};
use parking_lot::Mutex;
use tokio::{
    sync::OwnedMutexGuard,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

pub use self::observer::Observed;
pub use self::probes::{PROBE_POLICY, SLOW_POLICY, Tally};
use crate::recorder::Recorder;

/// How long a node may take to be ready after a start, on a machine that is busy.
pub const READY_MAX: Duration = Duration::from_secs(30);
/// A graceful stop takes the hand-over of leadership and the requests under way; without a majority it waits for both.
const STOP_MAX: Duration = Duration::from_secs(10);
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Longest wait for an answer of one node of whose state nothing is known.
const ANSWER_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Net {
    /// Proxies in this process: needs no rights.
    #[default]
    Proxy,
    /// Network namespaces: needs root.
    Netns,
}

#[derive(Debug, Clone)]
pub struct ArenaOptions {
    pub nodes: u16,
    pub data_shards: u16,
    pub net: Net,
    /// A mistake that the program is to make.
    pub fault: Option<String>,
    /// Settings of all nodes, by their dotted names.
    pub settings: Vec<(String, toml::Value)>,
}

/// Cheap to clone; all clones are the same cluster.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

struct Inner {
    nodes: u16,
    data_shards: u16,
    host: IpAddr,
    clients: Vec<Api>,
    direct: Vec<Api>,
    /// A key of the probes' policy on every data shard.
    probe_keys: Vec<String>,
    recorder: Recorder,
    cluster: tokio::sync::Mutex<Cluster>,
    suffered: Mutex<Suffered>,
    observed: Mutex<Observed>,
    observer: Mutex<Option<JoinHandle<()>>>,
    /// Held by the nemesis that decides which nodes reach each other, and by the one that decides which processes run.
    links: Turns,
    processes: Turns,
}

/// One after the other.
type Turns = Arc<tokio::sync::Mutex<()>>;

/// What is wrong at the moment, by whose doing.
#[derive(Default)]
struct Suffered {
    layers: BTreeMap<u64, BTreeMap<Flow, Condition>>,
    failpoints: BTreeMap<u16, Failpoints>,
    /// Processes whose end is nobody's surprise.
    down: BTreeSet<u16>,
    paused: BTreeSet<u16>,
}

/// The program under test: `$ONCEWARD_BIN`, or the one beside this program that has the feature `faults`.
fn program() -> anyhow::Result<PathBuf> {
    if std::env::var_os("ONCEWARD_BIN").is_some() {
        return Ok(node::binary());
    }
    let own = std::env::current_exe()?;
    let beside = own.ancestors().skip(1).take(2).map(|dir| dir.join("onceward-faults")).find(|path| path.is_file());
    beside.with_context(|| {
        format!("there is no `onceward-faults` near {}: build it first, or name it in ONCEWARD_BIN", own.display())
    })
}

impl Arena {
    /// Founds a cluster and waits until all of it serves.
    pub async fn start(options: ArenaOptions, recorder: Recorder) -> anyhow::Result<Arena> {
        let kind = match options.net {
            Net::Proxy => NetworkKind::Proxies,
            Net::Netns => NetworkKind::Namespaces,
        };
        let mut builder = Cluster::builder()
            .nodes(options.nodes)
            .data_shards(options.data_shards)
            .network(kind)
            .with_failpoints(program()?);
        for (name, value) in options.settings {
            builder = builder.set(&name, value);
        }
        for node in 1..=options.nodes {
            if let Some(fault) = &options.fault {
                builder = builder.env(node, "ONCEWARD_FAULT", fault);
            }
        }
        let mut cluster = builder.start().await;
        let host = match cluster.network() {
            Network::Proxies(_) => Ipv4Addr::LOCALHOST,
            Network::Namespaces(namespaces) => namespaces.clients_address(),
        };
        let inner = Inner {
            nodes: options.nodes,
            data_shards: options.data_shards,
            host: host.into(),
            clients: cluster.clients(),
            direct: cluster.apis(),
            probe_keys: cluster.key_on_every_shard(PROBE_POLICY),
            recorder,
            cluster: tokio::sync::Mutex::new(cluster),
            suffered: Mutex::default(),
            observed: Mutex::default(),
            observer: Mutex::default(),
            links: Turns::default(),
            processes: Turns::default(),
        };
        let arena = Arena { inner: Arc::new(inner) };
        arena.create_policies().await?;
        *arena.inner.observer.lock() = Some(observer::start(&arena));
        arena.wait_leaders().await?;
        Ok(arena)
    }

    /// One client for each node, by links that nemeses can cut.
    pub fn clients(&self) -> Vec<Api> {
        self.inner.clients.clone()
    }

    /// One client for each node that nothing disturbs.
    pub fn direct(&self) -> Vec<Api> {
        self.inner.direct.clone()
    }

    /// Where this process can listen for what nodes send.
    pub fn host(&self) -> IpAddr {
        self.inner.host
    }

    pub fn nodes(&self) -> Vec<u16> {
        (1..=self.inner.nodes).collect()
    }

    pub fn data_shards(&self) -> u16 {
        self.inner.data_shards
    }

    /// The system shard, and all data shards.
    pub fn shards(&self) -> Vec<u16> {
        (0..=self.inner.data_shards).collect()
    }

    /// Processes that ended although nobody asked for it, each a sentence. They were started again.
    pub fn unexpected_exits(&self) -> Vec<String> {
        self.inner.observed.lock().unexpected_exits.clone()
    }

    /// Copies the nodes' logs into a directory, as `node-N.log`.
    pub async fn save_logs(&self, dir: &Path) -> std::io::Result<()> {
        let mut cluster = self.inner.cluster.lock().await;
        for node in self.nodes() {
            std::fs::copy(cluster.node(node).log_file(), dir.join(format!("node-{node}.log")))?;
        }
        Ok(())
    }

    /// Undoes everything: links, clocks, disks, processes. Dead nodes are started and waited for.
    pub async fn heal(&mut self) {
        for node in self.nodes() {
            self.resume(node).await;
        }
        {
            let mut cluster = self.inner.cluster.lock().await;
            cluster.network().heal();
            let mut suffered = self.inner.suffered.lock();
            suffered.layers.clear();
            suffered.failpoints.clear();
            self.nodes().into_iter().for_each(|node| cluster.set_failpoints(node, &Failpoints::default()));
        }
        for node in self.nodes() {
            self.start_node(node).await;
        }
        for node in self.nodes() {
            self.wait_ready(node).await;
        }
    }

    /// All processes end, namespaces and files go.
    pub async fn stop(self) {
        if let Some(observer) = self.inner.observer.lock().take() {
            observer.abort();
        }
        let mut cluster = self.inner.cluster.lock().await;
        self.inner.suffered.lock().down.extend(self.nodes());
        cluster.kill_all();
    }

    /// The node's own client that nothing disturbs.
    pub(crate) fn observer_of(&self, node: u16) -> &Api {
        &self.inner.direct[usize::from(node) - 1]
    }

    pub(crate) fn client_of(&self, node: u16) -> &Api {
        &self.inner.clients[usize::from(node) - 1]
    }

    pub(crate) fn observed<T>(&self, look: impl FnOnce(&Observed) -> T) -> T {
        look(&self.inner.observed.lock())
    }

    /// Waits until a shard has a leader that lives; the first node where there is none for very long.
    pub(crate) async fn leader_of(&self, shard: u16) -> u16 {
        let deadline = Instant::now() + READY_MAX;
        while Instant::now() < deadline {
            let leader = self.observed(|observed| observed.leader(shard));
            if let Some(leader) = leader.filter(|leader| !self.inner.suffered.lock().down.contains(leader)) {
                return leader;
            }
            sleep(ASK_EVERY).await;
        }
        1
    }

    /// The shards that a node leads.
    pub(crate) fn led_by(&self, node: u16) -> Vec<u16> {
        self.observed(|observed| {
            self.shards().into_iter().filter(|shard| observed.leader(*shard) == Some(node)).collect()
        })
    }

    async fn wait_leaders(&self) -> anyhow::Result<()> {
        let all_led = || self.observed(|observed| self.shards().iter().all(|shard| observed.leader(*shard).is_some()));
        let wait = async {
            while !all_led() {
                sleep(ASK_EVERY).await;
            }
        };
        timeout(READY_MAX, wait).await.context("some shard of a new cluster has no leader")
    }
}

/// Networks.
impl Arena {
    /// Waits for whoever cuts links now: a plan keeps them apart, but what takes long to undo outlasts it.
    pub(crate) async fn take_links(&self) -> OwnedMutexGuard<()> {
        self.inner.links.clone().lock_owned().await
    }

    /// Has flows suffer a condition until [`Arena::lift`] of the same layer, on top of what other layers ask for.
    pub(crate) async fn lay(&self, layer: u64, flows: &[Flow], condition: Condition) {
        let mut cluster = self.inner.cluster.lock().await;
        let combined: Vec<(Flow, Condition)> = {
            let mut suffered = self.inner.suffered.lock();
            suffered.layers.entry(layer).or_default().extend(flows.iter().map(|flow| (*flow, condition)));
            flows.iter().map(|flow| (*flow, suffered.condition(*flow))).collect()
        };
        cluster.network().set(&combined);
    }

    pub(crate) async fn lift(&self, layer: u64) {
        let mut cluster = self.inner.cluster.lock().await;
        let left: Vec<(Flow, Condition)> = {
            let mut suffered = self.inner.suffered.lock();
            let flows = suffered.layers.remove(&layer).unwrap_or_default().into_keys();
            flows.map(|flow| (flow, suffered.condition(flow))).collect()
        };
        cluster.network().set(&left);
    }

    pub(crate) async fn reset(&self, flow: Flow) {
        self.inner.cluster.lock().await.network().reset(flow).await;
    }

    pub(crate) async fn half_close(&self, flow: Flow) {
        self.inner.cluster.lock().await.network().half_close(flow).await;
    }

    /// What the network's conditions did so far.
    pub(crate) async fn network_counters(&self) -> BTreeMap<&'static str, u64> {
        self.inner.cluster.lock().await.network().counters()
    }
}

impl Suffered {
    /// What all layers together ask of a flow.
    fn condition(&self, flow: Flow) -> Condition {
        let strictness = |passage| match passage {
            Passage::Open => 0,
            Passage::Reset => 1,
            Passage::Hold => 2,
        };
        let layers = self.layers.values().filter_map(|layer| layer.get(&flow));
        layers.fold(Condition::default(), |sum, next| Condition {
            passage: std::cmp::max_by_key(sum.passage, next.passage, |passage| strictness(*passage)),
            delay: sum.delay + next.delay,
            jitter: sum.jitter + next.jitter,
            bytes_per_s: [sum.bytes_per_s, next.bytes_per_s].into_iter().flatten().min(),
            corrupt_per_1000: sum.corrupt_per_1000 + next.corrupt_per_1000,
        })
    }
}

/// Processes.
impl Arena {
    /// As [`Arena::take_links`], of processes.
    pub(crate) async fn take_processes(&self) -> OwnedMutexGuard<()> {
        self.inner.processes.clone().lock_owned().await
    }

    /// SIGKILL.
    pub(crate) async fn kill(&self, nodes: &[u16]) {
        let mut cluster = self.inner.cluster.lock().await;
        self.inner.suffered.lock().down.extend(nodes);
        cluster.kill_together(nodes);
    }

    /// Starts a node that does not run.
    pub(crate) async fn start_node(&self, node: u16) {
        let mut cluster = self.inner.cluster.lock().await;
        if !cluster.node(node).is_running() {
            cluster.start(node);
        }
        let mut suffered = self.inner.suffered.lock();
        suffered.down.remove(&node);
        suffered.paused.remove(&node);
    }

    /// SIGTERM; whether the process ended by itself, in time and in order. Else it is killed.
    pub(crate) async fn terminate(&self, node: u16) -> bool {
        {
            let mut cluster = self.inner.cluster.lock().await;
            self.inner.suffered.lock().down.insert(node);
            if cluster.node(node).is_running() {
                cluster.node(node).terminate();
            }
        }
        let ended = self.wait_exit(node, STOP_MAX).await;
        self.kill(&[node]).await;
        ended
    }

    /// Whether a process whose end is expected ends in time.
    pub(crate) async fn wait_exit(&self, node: u16, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        while self.inner.cluster.lock().await.node(node).is_running() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(ASK_EVERY).await;
        }
        self.inner.cluster.lock().await.gone(node);
        true
    }

    /// From now on its end is nobody's surprise.
    pub(crate) fn expect_exit(&self, node: u16) {
        self.inner.suffered.lock().down.insert(node);
    }

    /// SIGSTOP.
    pub(crate) async fn pause(&self, node: u16) {
        let mut cluster = self.inner.cluster.lock().await;
        if cluster.node(node).is_running() {
            self.inner.suffered.lock().paused.insert(node);
            cluster.node(node).pause();
        }
    }

    /// SIGCONT, if it was paused.
    pub(crate) async fn resume(&self, node: u16) {
        let mut cluster = self.inner.cluster.lock().await;
        if self.inner.suffered.lock().paused.remove(&node) && cluster.node(node).is_running() {
            cluster.node(node).resume();
        }
    }

    pub(crate) async fn wipe(&self, node: u16) {
        self.inner.cluster.lock().await.node(node).wipe();
    }

    pub(crate) async fn data_dir(&self, node: u16) -> PathBuf {
        self.inner.cluster.lock().await.node(node).data_dir.clone()
    }

    pub(crate) async fn is_ready(&self, node: u16) -> bool {
        timeout(ANSWER_MAX, self.observer_of(node).is_ready()).await.unwrap_or(false)
    }

    /// Whether a node is ready within [`READY_MAX`].
    pub(crate) async fn wait_ready(&self, node: u16) -> bool {
        let wait = async {
            while !self.is_ready(node).await {
                sleep(ASK_EVERY).await;
            }
        };
        timeout(READY_MAX, wait).await.is_ok()
    }
}

/// Clocks and disks.
impl Arena {
    pub(crate) async fn fail(&self, node: u16, change: impl FnOnce(&mut Failpoints)) {
        let cluster = self.inner.cluster.lock().await;
        let mut suffered = self.inner.suffered.lock();
        let failpoints = suffered.failpoints.entry(node).or_default();
        change(failpoints);
        cluster.set_failpoints(node, failpoints);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_suffers_what_all_layers_ask_for_until_each_of_them_is_lifted() {
        let (flow, ms) = (Flow::between_nodes(1, 2), Duration::from_millis);
        let slow = |delay_ms, rate| Condition { delay: ms(delay_ms), bytes_per_s: rate, ..Condition::default() };
        let mut suffered = Suffered::default();
        suffered.layers.insert(0, BTreeMap::from([(flow, slow(10, Some(500)))]));
        suffered.layers.insert(1, BTreeMap::from([(flow, Condition::hold())]));
        suffered.layers.insert(2, BTreeMap::from([(flow, slow(5, Some(200))), (flow.back(), Condition::reset())]));
        assert_eq!(suffered.condition(flow), Condition { passage: Passage::Hold, ..slow(15, Some(200)) });
        suffered.layers.remove(&1);
        assert_eq!(suffered.condition(flow), slow(15, Some(200)));
        suffered.layers.clear();
        assert_eq!(suffered.condition(flow), Condition::default());
    }
}
