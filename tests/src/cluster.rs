//! A cluster of real processes in a temporary directory, gone without a trace when dropped. When a test panics, the
//! end of every node's log is printed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use onceward_core::cluster::Manifest;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    client::{Api, ClusterStatus, Outcome},
    config::Settings,
    failpoints::{self, Failpoints},
    layout::Layout,
    links::{Network, NetworkKind},
    node::Node,
};

/// Generous: a machine with two cores may be building something beside.
const READY_MAX: Duration = Duration::from_secs(60);
/// Lines of each node's log that a failed test shows.
const LOG_LINES_SHOWN: usize = 60;
/// Clusters are heavy: one at a time in a process, so that what they show depends on nothing else.
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);

pub struct Cluster {
    nodes: Vec<Node>,
    clients: Vec<Api>,
    network: Option<Network>,
    settings: BTreeMap<u16, Settings>,
    data_shards: u16,
    dir: TempDir,
    _turn: SemaphorePermit<'static>,
}

pub struct Builder {
    nodes: u16,
    data_shards: u16,
    settings: Vec<(String, toml::Value)>,
    environment: Vec<(u16, String, String)>,
    network: NetworkKind,
    /// The program to run, if it is one that reads failpoints.
    with_failpoints: Option<PathBuf>,
}

impl Builder {
    pub fn nodes(mut self, count: u16) -> Builder {
        self.nodes = count;
        self
    }

    pub fn data_shards(mut self, count: u16) -> Builder {
        self.data_shards = count;
        self
    }

    /// A setting of every node, by its dotted name.
    pub fn set(mut self, name: &str, value: impl Into<toml::Value>) -> Builder {
        self.settings.push((name.to_owned(), value.into()));
        self
    }

    /// An environment variable of one node.
    pub fn env(mut self, node: u16, name: &str, value: &str) -> Builder {
        self.environment.push((node, name.to_owned(), value.to_owned()));
        self
    }

    /// The network between nodes, and to them.
    pub fn network(mut self, kind: NetworkKind) -> Builder {
        self.network = kind;
        self
    }

    /// Runs a program that reads [`Failpoints`], and gives each node some.
    pub fn with_failpoints(mut self, program: PathBuf) -> Builder {
        self.with_failpoints = Some(program);
        self
    }

    /// Founds the cluster on node 1, starts all nodes and waits until all are ready.
    pub async fn start(self) -> Cluster {
        let turn = ONE_AT_A_TIME.acquire().await.expect("the semaphore is never closed");
        let dir = tempfile::Builder::new().prefix("onceward-test-").tempdir().expect("a temporary directory");
        let layout = Layout::new(self.network, self.nodes);
        let mut nodes = Vec::new();
        let mut settings = BTreeMap::new();
        for address in &layout.addresses {
            let mut node = Node::new(address, layout.observer(address.id), dir.path().join(address.id.to_string()));
            for (_, name, value) in self.environment.iter().filter(|(of, ..)| *of == address.id) {
                node.env(name, value);
            }
            if let Some(program) = &self.with_failpoints {
                node.program(program.clone());
                let file = failpoints_file(dir.path(), address.id);
                Failpoints::default().write(&file);
                node.env(failpoints::VARIABLE, file.to_str().expect("temporary directories have plain names"));
            }
            if let Some(Network::Namespaces(namespaces)) = &layout.network {
                node.run_by(namespaces.prefix(address.id));
            }
            let mut own = Settings::new(address, &layout.as_seen_by(address.id), &node.data_dir, self.data_shards);
            for (name, value) in &self.settings {
                own.set(name, value.clone());
            }
            own.write(&node.config_file);
            settings.insert(address.id, own);
            nodes.push(node);
        }
        let clients = layout.addresses.iter().map(|address| layout.client(address.id)).collect();
        let network = layout.network;
        let mut cluster =
            Cluster { nodes, clients, network, settings, data_shards: self.data_shards, dir, _turn: turn };
        cluster.node(1).init();
        cluster.start_all();
        cluster.wait_all_ready().await;
        cluster
    }
}

impl Cluster {
    pub fn builder() -> Builder {
        Builder {
            nodes: 3,
            data_shards: 8,
            settings: Vec::new(),
            environment: Vec::new(),
            network: NetworkKind::Direct,
            with_failpoints: None,
        }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn ids(&self) -> impl Iterator<Item = u16> + use<> {
        1..=self.nodes.len() as u16
    }

    pub fn node(&mut self, id: u16) -> &mut Node {
        &mut self.nodes[usize::from(id) - 1]
    }

    pub fn api(&self, id: u16) -> Api {
        self.nodes[usize::from(id) - 1].api.clone()
    }

    pub fn apis(&self) -> Vec<Api> {
        self.nodes.iter().map(|node| node.api.clone()).collect()
    }

    /// As [`Cluster::apis`], but by links that the network can make fail.
    pub fn clients(&self) -> Vec<Api> {
        self.clients.clone()
    }

    /// The network that the builder was told to make.
    pub fn network(&mut self) -> &mut Network {
        self.network.as_mut().expect("a cluster with a network that can fail")
    }

    /// What goes wrong on a node with failpoints from now on.
    pub fn set_failpoints(&self, id: u16, failpoints: &Failpoints) {
        failpoints.write(&failpoints_file(self.dir.path(), id));
    }

    pub fn data_shards(&self) -> u16 {
        self.data_shards
    }

    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(Node::pid).collect()
    }

    /// Changes a setting of one node from its next start on.
    pub fn set(&mut self, id: u16, name: &str, value: impl Into<toml::Value>) {
        let file = self.node(id).config_file.clone();
        let settings = self.settings.get_mut(&id).expect("a node of this cluster");
        settings.set(name, value.into());
        settings.write(&file);
    }

    pub fn start(&mut self, id: u16) {
        if let Some(network) = &mut self.network {
            network.up(id);
        }
        self.node(id).start();
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill(&mut self, id: u16) {
        self.node(id).kill();
        self.gone(id);
    }

    /// To be called when a process ended by itself.
    pub fn gone(&mut self, id: u16) {
        if let Some(network) = &mut self.network {
            network.down(id);
        }
    }

    pub fn start_all(&mut self) {
        self.ids().for_each(|id| self.start(id));
    }

    /// SIGKILL to all nodes before any is waited for: as a power cut of the whole rack, but for the page cache.
    pub fn kill_all(&mut self) {
        let all: Vec<u16> = self.ids().collect();
        self.kill_together(&all);
    }

    /// SIGKILL to these nodes before any of them is waited for.
    pub fn kill_together(&mut self, ids: &[u16]) {
        for id in ids {
            if self.node(*id).is_running() {
                self.node(*id).signal(rustix::process::Signal::KILL);
            }
        }
        ids.iter().for_each(|id| self.kill(*id));
    }

    pub async fn wait_ready(&mut self, id: u16) {
        let deadline = Instant::now() + READY_MAX;
        while !self.api(id).is_ready().await {
            assert!(self.node(id).is_running(), "node {id} ended");
            if Instant::now() >= deadline {
                panic!("node {id} is not ready after {READY_MAX:?}: {:?}", self.api(id).try_get("/readyz").await);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn wait_all_ready(&mut self) {
        for id in self.ids() {
            self.wait_ready(id).await;
        }
    }

    /// The data shard (1 …) on which a bucket lives.
    pub fn shard_of(&self, policy: &str, key: &str) -> u16 {
        let placement = Manifest { cluster_id: 0, data_shards: self.data_shards, nodes: Vec::new() };
        placement.bucket_shard(policy, key).0
    }

    /// The data shard (1 …) on which an account lives.
    pub fn shard_of_account(&self, account: &str) -> u16 {
        let placement = Manifest { cluster_id: 0, data_shards: self.data_shards, nodes: Vec::new() };
        placement.account_shard(account).0
    }

    /// A key of this policy whose bucket lives on the shard; another one for every `nth`.
    pub fn key_on(&self, shard: u16, policy: &str, nth: usize) -> String {
        (0..).map(|n| format!("key-{n}")).filter(|key| self.shard_of(policy, key) == shard).nth(nth).expect("endless")
    }

    /// A key for every data shard.
    pub fn key_on_every_shard(&self, policy: &str) -> Vec<String> {
        (1..=self.data_shards).map(|shard| self.key_on(shard, policy, 0)).collect()
    }

    /// The node that leads a bucket's shard, as the first of the running nodes that knows tells.
    pub async fn leader_of(&mut self, policy: &str, key: &str) -> u16 {
        let shard = self.shard_of(policy, key);
        self.leader_of_shard(shard).await
    }

    pub async fn leader_of_shard(&mut self, shard: u16) -> u16 {
        let deadline = Instant::now() + READY_MAX;
        loop {
            for id in self.ids() {
                if !self.node(id).is_running() {
                    continue;
                }
                let status = self.api(id).cluster().await;
                let leader = status.shards.iter().find(|status| status.id == shard).and_then(|status| status.leader);
                // A node that just died is still the leader in the memory of those that did not hear of another yet.
                if let Some(leader) = leader
                    && self.node(leader).is_running()
                {
                    return leader;
                }
            }
            assert!(Instant::now() < deadline, "no node knows a leader of shard {shard}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a check on every data shard succeeds through every running node.
    ///
    /// `policy` must exist and should deny when unavailable, else a degraded answer passes for service.
    pub async fn wait_serving(&mut self, policy: &str) {
        let running: Vec<u16> = self.ids().filter(|id| self.node(*id).is_running()).collect();
        self.wait_serving_through(&running, policy).await;
    }

    pub async fn wait_serving_through(&self, nodes: &[u16], policy: &str) {
        let keys = self.key_on_every_shard(policy);
        let deadline = Instant::now() + READY_MAX;
        for &id in nodes {
            let api = self.api(id);
            for key in &keys {
                let peek = json!({ "checks": [{ "policy": policy, "key": key, "cost": 0 }], "mode": "peek" });
                while Outcome::of(&api.try_check(&peek).await) != Outcome::Done {
                    assert!(Instant::now() < deadline, "node {id} does not serve {policy}/{key} after {READY_MAX:?}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Asks all nodes for the state hashes of their shards until those of one shard stand at the same index, and
    /// panics when equal indices have other hashes. Nothing may be writing.
    pub async fn assert_equal_state(&mut self) -> BTreeMap<u16, String> {
        let deadline = Instant::now() + READY_MAX;
        loop {
            let mut statuses = Vec::new();
            for api in self.apis() {
                statuses.push(api.get("/v1/cluster?state_hash=true").await.expect_status(200).parse::<ClusterStatus>());
            }
            let hashes = compare_hashes(&statuses);
            if hashes.len() > usize::from(self.data_shards) {
                return hashes;
            }
            assert!(Instant::now() < deadline, "the nodes do not come to the same index: {statuses:#?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Gracefully stops whatever still runs.
    pub async fn stop_all(&mut self) {
        for node in &mut self.nodes {
            if node.is_running() {
                node.stop().await;
            }
        }
    }
}

fn failpoints_file(cluster: &Path, node: u16) -> PathBuf {
    cluster.join(format!("failpoints-{node}.toml"))
}

/// The hash of every shard whose holders all stand at the same index; panics where hashes differ at one index.
fn compare_hashes(statuses: &[ClusterStatus]) -> BTreeMap<u16, String> {
    let mut by_shard: BTreeMap<u16, Vec<(u16, String, u64)>> = BTreeMap::new();
    for status in statuses {
        for shard in &status.shards {
            if let Some(state) = &shard.state_hash {
                by_shard.entry(shard.id).or_default().push((status.node_id, state.hash.clone(), state.applied_index));
            }
        }
    }
    let mut agreed = BTreeMap::new();
    for (shard, copies) in by_shard {
        for (node, hash, index) in &copies {
            let (first, first_hash, _) =
                copies.iter().find(|(_, _, other)| other == index).expect("at least this copy itself");
            assert_eq!(hash, first_hash, "shard {shard} at index {index}: node {node} differs from node {first}");
        }
        if copies.iter().all(|(_, _, index)| *index == copies[0].2) {
            agreed.insert(shard, copies[0].1.clone());
        }
    }
    agreed
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for node in &self.nodes {
            let log = node.log();
            // The Raft library repeats itself with every heartbeat while a node is down.
            let lines: Vec<&str> = log.lines().filter(|line| !line.contains(" openraft::")).collect();
            let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
            eprintln!("--- the end of the log of node {} ---\n{}", node.id, shown.join("\n"));
        }
    }
}
