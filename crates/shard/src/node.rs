//! A node as the server sees it: opened from a data directory, standing by until it is a member, then serving.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use futures::future::join_all;
use onceward_consensus::{ConsensusError, Group, GroupConfig, aside};
use onceward_core::{
    cluster::{Generation, Manifest, MemberId, NodeEntry, NodeId, ShardId},
    command::{Command, Reply},
    idempotency::{
        AbandonCommand, AbandonReply, Account, CompleteCommand, CompleteReply, DeleteRecordCommand, DeleteRecordReply,
        ExtendCommand, ExtendReply, Key, RecordPage, RecordState, RecordView,
    },
    limits::{Policy, PolicyName, PolicySpec, RefundCommand, RefundReply, ResetCommand, ResetReply},
    seams::{Clock, Entropy},
    system::NodeReply,
    webhooks::{AppView, Page, PageIn, WebhookAnswer, WebhookQuery, WebhookReply},
};
use onceward_storage::StorageError;
use onceward_transport::{Hello, Links, NodeLinks, TransportError};
use parking_lot::Mutex;
use ractor::{Actor, ActorRef};
use tokio::{
    sync::SetOnce,
    task::{AbortHandle, JoinHandle},
    time::{Instant, timeout},
};
use tracing::{error, info, warn};

use crate::{
    config::{NodeConfig, Tuning},
    copies,
    disk::{self, Disk},
    fallback::LocalBuckets,
    founding,
    idempotency::{BeginAnswer, BeginRequest, Idempotency},
    identity::{Identity, IdentityError, Standing},
    limits::{CheckAnswer, CheckError, CheckRequest, Limits},
    outcome::ServiceError,
    peer_port::PeerPort,
    policies::{self, PolicyView, PolicyWrite},
    replacing,
    router::Router,
    shard_actor::Shard,
    shard_port::ShardPort,
    stats::{NodeStats, Stats},
    status::{self, ClusterStatus, Readiness, Recovery},
    supervisor::{self, Supervisor},
    webhooks::{WebhookCall, Webhooks},
    wire::Probed,
};

/// How long a stopping node tries to hand its leaderships over.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(String),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("{0}")]
    Identity(String),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
    #[error("an actor did not start: {0}")]
    Actor(String),
}

impl From<IdentityError> for StartError {
    fn from(error: IdentityError) -> Self {
        match error {
            IdentityError::Storage(error) => StartError::Storage(error),
            other => StartError::Identity(other.to_string()),
        }
    }
}

/// A handle to the node that runs in this process.
#[derive(Clone)]
pub struct Node {
    shared: Arc<Shared>,
}

/// What exists from the start, whether the node serves yet or not.
pub(crate) struct Shared {
    pub config: NodeConfig,
    pub identity: Mutex<Identity>,
    links: OnceLock<Arc<dyn NodeLinks>>,
    pub serving: ArcSwapOption<Serving>,
    /// Set once the node serves.
    entered: SetOnce<()>,
    stats: Arc<Stats>,
    pub disk: Arc<Disk>,
    stopping: AtomicBool,
    /// Held while the node becomes a member, so that it does so once.
    entering: tokio::sync::Mutex<()>,
    /// Held while all states are read for their hashes: one asks at a time.
    pub hashing: Arc<tokio::sync::Mutex<()>>,
    background: Mutex<Vec<AbortHandle>>,
}

/// What the parts of a serving node share.
pub(crate) struct Surroundings {
    pub me: MemberId,
    /// As the node was taken in; only node ids and shards are read from it, which never change.
    pub manifest: Manifest,
    pub links: Arc<dyn Links>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub stats: Arc<Stats>,
    pub disk: Arc<Disk>,
    pub tuning: Tuning,
}

/// A node that is a member.
pub(crate) struct Serving {
    pub surroundings: Arc<Surroundings>,
    pub router: Arc<Router>,
    limits: Arc<Limits>,
    idempotency: Idempotency,
    webhooks: Webhooks,
    supervisor: (ActorRef<supervisor::Message>, Mutex<Option<JoinHandle<()>>>),
    recovery: Recovery,
}

impl Node {
    /// Reads who the node is and opens its links. The node serves once it is a member, see [`Node::readiness`].
    pub async fn start(config: NodeConfig) -> Result<Node, StartError> {
        founding::check_nodes(&config).map_err(StartError::Config)?;
        let store = config.store.as_ref();
        let identity = match Identity::load(store, config.node)? {
            Some(identity) => identity,
            None => {
                let identity = Identity::new(config.node, Standing::Empty, config.entropy.as_ref());
                identity.save(store)?;
                identity
            }
        };
        let shared = Arc::new(Shared {
            identity: Mutex::new(identity.clone()),
            links: OnceLock::new(),
            serving: ArcSwapOption::empty(),
            entered: SetOnce::new(),
            stats: Arc::default(),
            disk: Arc::new(Disk::new(config.tuning.min_free_bytes)),
            stopping: AtomicBool::new(false),
            entering: tokio::sync::Mutex::default(),
            hashing: Arc::default(),
            background: Mutex::default(),
            config,
        });
        shared.watch_disk();
        shared.open_links().await?;
        match identity.standing {
            Standing::Member { manifest } => shared.enter(manifest).await?,
            Standing::Founder { cluster_id, data_shards } => {
                let founder = shared.clone();
                shared.spawn(async move {
                    let manifest = founding::gather(&founder, cluster_id, data_shards).await;
                    info!(cluster_id = format!("{cluster_id:032x}"), "the cluster is founded");
                    if let Err(error) = founder.enter(manifest).await {
                        (founder.config.on_fatal)(format!("founding the cluster: {error}"));
                    }
                });
            }
            Standing::Empty => info!(
                "the data directory is empty: standing by until a founder (`onceward init` on one node) takes this node in"
            ),
        }
        Ok(Node { shared })
    }

    /// Decides a rate-limit check of 1–16 valid items.
    pub async fn check(&self, request: CheckRequest) -> Result<CheckAnswer, CheckError> {
        let serving = self.serving().map_err(CheckError::Service)?;
        serving.limits.check(request).await
    }

    pub async fn refund(&self, command: RefundCommand, deadline: Instant) -> Result<RefundReply, ServiceError> {
        let serving = self.serving()?;
        let shard = serving.surroundings.manifest.bucket_shard(&command.policy, &command.key);
        match serving.router.submit(shard, &Command::Refund(command), deadline).await.into_result()? {
            Reply::Refund(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    pub async fn reset(&self, command: ResetCommand, deadline: Instant) -> Result<ResetReply, ServiceError> {
        let serving = self.serving()?;
        let shard = serving.surroundings.manifest.bucket_shard(&command.policy, &command.key);
        match serving.router.submit(shard, &Command::Reset(command), deadline).await.into_result()? {
            Reply::Reset(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    pub async fn put_policy(
        &self,
        name: PolicyName,
        spec: PolicySpec,
        deadline: Instant,
    ) -> Result<PolicyWrite, ServiceError> {
        let serving = self.serving()?;
        policies::put(&serving.router, &serving.surroundings, name, spec, deadline).await
    }

    /// `None`: there was no such policy. Otherwise the shards that could not be told yet.
    pub async fn delete_policy(
        &self,
        name: PolicyName,
        deadline: Instant,
    ) -> Result<Option<Vec<ShardId>>, ServiceError> {
        let serving = self.serving()?;
        policies::delete(&serving.router, &serving.surroundings, name, deadline).await
    }

    pub async fn policy(&self, name: &str, deadline: Instant) -> Result<Option<Policy>, ServiceError> {
        policies::get(&self.serving()?.router, name, deadline).await
    }

    /// Gets a key for an attempt, or says who has it or what came of it.
    pub async fn begin(&self, request: BeginRequest) -> Result<BeginAnswer, ServiceError> {
        self.serving()?.idempotency.begin(request).await
    }

    /// The node is about to stop: whoever waits for an attempt of another is answered at once.
    pub fn stop_waiting(&self) {
        if let Some(serving) = self.shared.serving.load().as_ref() {
            serving.idempotency.stop_waiting();
        }
    }

    /// Stores the outcome of a key's work.
    pub async fn complete(&self, command: CompleteCommand, deadline: Instant) -> Result<CompleteReply, ServiceError> {
        self.serving()?.idempotency.complete(command, deadline).await
    }

    pub async fn abandon(&self, command: AbandonCommand, deadline: Instant) -> Result<AbandonReply, ServiceError> {
        self.serving()?.idempotency.abandon(command, deadline).await
    }

    pub async fn extend(&self, command: ExtendCommand, deadline: Instant) -> Result<ExtendReply, ServiceError> {
        self.serving()?.idempotency.extend(command, deadline).await
    }

    pub async fn record(
        &self,
        account: Account,
        key: Key,
        deadline: Instant,
    ) -> Result<Option<RecordView>, ServiceError> {
        self.serving()?.idempotency.record(account, key, deadline).await
    }

    /// A page of an account's records, behind the key `after`.
    pub async fn records(
        &self,
        account: Account,
        state: Option<RecordState>,
        after: Option<Key>,
        limit: u32,
        deadline: Instant,
    ) -> Result<RecordPage, ServiceError> {
        self.serving()?.idempotency.records(account, state, after, limit, deadline).await
    }

    pub async fn delete_record(
        &self,
        command: DeleteRecordCommand,
        deadline: Instant,
    ) -> Result<DeleteRecordReply, ServiceError> {
        self.serving()?.idempotency.delete(command, deadline).await
    }

    /// Changes something of webhooks.
    pub async fn webhook(&self, call: WebhookCall, deadline: Instant) -> Result<WebhookReply, ServiceError> {
        self.serving()?.webhooks.call(call, deadline).await
    }

    pub async fn webhook_query(&self, query: WebhookQuery, deadline: Instant) -> Result<WebhookAnswer, ServiceError> {
        self.serving()?.webhooks.query(query, deadline).await
    }

    /// A page of all applications, by age.
    pub async fn apps(&self, page: PageIn, deadline: Instant) -> Result<Page<AppView>, ServiceError> {
        self.serving()?.webhooks.apps(page, deadline).await
    }

    /// The data shards of which this node has a replica, once it serves. Good until the node stops.
    pub async fn shard_ports(&self) -> Vec<ShardPort> {
        self.shared.entered.wait().await;
        let serving = self.shared.serving.load();
        let shards = serving.iter().flat_map(|serving| serving.router.local_shards());
        shards.filter(|shard| !shard.id.is_system()).cloned().map(ShardPort::new).collect()
    }

    /// All policies, by name.
    pub async fn policies(&self, deadline: Instant) -> Result<Vec<Policy>, ServiceError> {
        policies::list(&self.serving()?.router, deadline).await
    }

    /// The cluster as this node sees it; `state_hash` also hashes the state of every replica here.
    pub async fn cluster(&self, state_hash: bool) -> ClusterStatus {
        status::cluster(&self.shared, self.shared.serving.load_full(), state_hash).await
    }

    /// Says that `node` lost its disk, so that it may come back from an empty directory.
    pub async fn replace(&self, node: NodeId, deadline: Instant) -> Result<NodeReply, ServiceError> {
        let serving = self.serving()?;
        let reply = replacing::begin(&serving, node, deadline).await?;
        // It knocks in vain until it is asked again.
        self.shared.drop_connections_of(node);
        Ok(reply)
    }

    pub fn readiness(&self) -> Readiness {
        if self.shared.stopping.load(Ordering::Acquire) {
            return Readiness::not_ready("the node is stopping");
        }
        match self.shared.serving.load().as_ref() {
            Some(serving) => serving.recovery.readiness(serving),
            None => Readiness::not_ready(self.shared.why_standing_by()),
        }
    }

    pub fn stats(&self) -> NodeStats {
        let mut stats = self.shared.stats.read();
        stats.log_writer = self.shared.config.log_writer.stats();
        stats.store = self.shared.config.store.stats();
        stats.disk_free_bytes = self.shared.disk.free_bytes();
        stats.disk_is_low = self.shared.disk.is_low();
        if let Some(serving) = self.shared.serving.load().as_ref() {
            for shard in serving.router.local_shards() {
                let leadership = *shard.group.leadership().borrow();
                stats.commands_queued += shard.queued() as u64;
                stats.shards_led += u64::from(leadership.am_leader);
                stats.terms += leadership.term;
            }
        }
        stats
    }

    /// Hands leaderships over, then stops everything. The store is let go with the last handle to the node.
    pub async fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        for task in self.shared.background.lock().drain(..) {
            task.abort();
        }
        if let Some(serving) = self.shared.serving.load_full() {
            serving.stop().await;
        }
        if let Some(links) = self.shared.links.get() {
            links.stop().await;
        }
        let writer = self.shared.config.log_writer.clone();
        blocking(move || writer.stop()).await;
        info!("the node has stopped");
    }

    fn serving(&self) -> Result<Arc<Serving>, ServiceError> {
        self.shared
            .serving
            .load_full()
            .ok_or_else(|| ServiceError::Unavailable { reason: self.shared.why_standing_by(), retry_after_ms: 1_000 })
    }
}

pub(crate) fn unexpected(reply: &impl std::fmt::Debug) -> ServiceError {
    error!(?reply, "a command or query was answered by another's reply");
    ServiceError::Unknown
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match aside(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

impl Shared {
    async fn open_links(self: &Arc<Self>) -> Result<(), StartError> {
        let port = Arc::new(PeerPort::new(self));
        let links = self.config.network.open(port.clone(), port).await?;
        // Only this function sets it, once.
        let _ = self.links.set(links);
        Ok(())
    }

    fn watch_disk(self: &Arc<Self>) {
        let node = Arc::downgrade(self);
        let serving = move || node.upgrade()?.serving.load_full();
        self.spawn(disk::watch(self.disk.clone(), self.config.store.clone(), serving));
    }

    pub(crate) fn links(&self) -> &dyn Links {
        self.opened_links().as_ref()
    }

    fn opened_links(&self) -> &Arc<dyn NodeLinks> {
        self.links.get().expect("the links are opened before anything that calls peers")
    }

    pub(crate) fn peer_hello(&self, node: NodeId) -> Option<Hello> {
        self.links.get()?.peer_hello(node)
    }

    pub(crate) fn drop_connections_of(&self, node: NodeId) {
        if let Some(links) = self.links.get() {
            links.drop_connections_of(node);
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.lock().push(tokio::spawn(task).abort_handle());
    }

    /// This node as the manifest of a cluster that it founds names it.
    pub(crate) fn own_entry(&self) -> NodeEntry {
        founding::entry(self.config.node, Generation(0), &self.probed())
    }

    pub(crate) fn probed(&self) -> Probed {
        let identity = self.identity.lock();
        let own = &self.config.peers[&self.config.node];
        Probed {
            wall_ms: self.config.clock.wall_ms(),
            incarnation: identity.incarnation,
            cluster_id: identity.cluster_id(),
            http_address: own.http_address.clone(),
            peer_address: own.peer_address.clone(),
            disk_is_low: self.disk.is_low(),
        }
    }

    fn why_standing_by(&self) -> String {
        let others = self.config.peers.keys().filter(|node| **node != self.config.node);
        let refusal = self.links.get().and_then(|links| others.into_iter().find_map(|node| links.last_refusal(*node)));
        match (refusal, &self.identity.lock().standing) {
            (Some(refusal), _) => refusal,
            (None, Standing::Empty) => {
                "standing by with an empty data directory until a founder takes this node in".to_owned()
            }
            (None, _) => "not yet a serving member: waiting for the other nodes of the cluster".to_owned(),
        }
    }

    /// Becomes a member, and serves. Doing it again changes nothing.
    pub(crate) async fn enter(self: &Arc<Self>, manifest: Manifest) -> Result<(), StartError> {
        let _entering = self.entering.lock().await;
        if self.serving.load().is_some() {
            return Ok(());
        }
        let identity = {
            let mut identity = self.identity.lock();
            identity.standing = Standing::Member { manifest: manifest.clone() };
            identity.clone()
        };
        let (store, saved) = (self.config.store.clone(), identity.clone());
        blocking(move || saved.save(store.as_ref())).await?;
        let serving = Arc::new(Serving::start(self, &identity, manifest).await?);
        self.serving.store(Some(serving.clone()));
        // From now on this node says another hello, and knows which directories the cluster doesn't expect.
        for node in serving.surroundings.manifest.nodes.iter().filter(|entry| entry.id != identity.node) {
            self.drop_connections_of(node.id);
        }
        serving.run(self).await?;
        self.entered.set(()).expect("a node becomes a member once");
        Ok(())
    }
}

impl Serving {
    async fn start(shared: &Arc<Shared>, identity: &Identity, manifest: Manifest) -> Result<Serving, StartError> {
        let me = MemberId::new(identity.node, identity.generation());
        let surroundings = Arc::new(Surroundings {
            me,
            manifest,
            links: shared.opened_links().clone(),
            clock: shared.config.clock.clone(),
            entropy: shared.config.entropy.clone(),
            stats: shared.stats.clone(),
            disk: shared.disk.clone(),
            tuning: shared.config.tuning.clone(),
        });
        let mut shards = BTreeMap::new();
        for id in surroundings.manifest.shards().filter(|id| surroundings.manifest.holders(*id).contains(&me.node)) {
            let group = open_group(shared, &surroundings, id).await?;
            shards.insert(id, Shard::new(id, group, surroundings.clone()));
        }
        let recovery = Recovery::new(shards.values());
        let (supervisor, join) = Actor::spawn(None, Supervisor, shards.values().cloned().collect())
            .await
            .map_err(|error| StartError::Actor(error.to_string()))?;
        let router = Arc::new(Router::new(surroundings.clone(), shards));
        let policies = Arc::new(PolicyView::default());
        let limits = Arc::new(Limits {
            router: router.clone(),
            surroundings: surroundings.clone(),
            local: LocalBuckets::new(surroundings.manifest.nodes.len(), surroundings.clock.clone()),
            policies: policies.clone(),
        });
        if let Some(system) = router.local(ShardId::SYSTEM) {
            shared.spawn(policies.follow(system.clone()));
        }
        shared.spawn(copies::reconcile(router.clone(), surroundings.clone()));
        let idempotency = Idempotency::new(router.clone(), surroundings.clone());
        let webhooks = Webhooks::new(router.clone(), surroundings.clone());
        Ok(Serving {
            surroundings,
            router,
            limits,
            idempotency,
            webhooks,
            supervisor: (supervisor, Mutex::new(Some(join))),
            recovery,
        })
    }

    /// Lets the groups run; those that begin here are initialised.
    async fn run(self: &Arc<Self>, shared: &Arc<Shared>) -> Result<(), StartError> {
        let manifest = &self.surroundings.manifest;
        for shard in self.router.local_shards() {
            shard.group.run();
            let voters = manifest.voters(shard.id);
            // A replacement never founds a group: whatever it should hold exists already, elsewhere.
            if self.surroundings.me.generation == Generation(0) && voters[0] == self.surroundings.me.node {
                let members = voters.iter().map(|node| MemberId::new(*node, Generation(0))).collect();
                shard.group.initialize(members).await?;
            }
        }
        shared.spawn(replacing::take_care(shared.clone(), self.clone()));
        info!(shards = self.router.local_shards().count(), "the node is a member of the cluster");
        Ok(())
    }

    async fn stop(&self) {
        // A single node has nobody to hand anything over to.
        let led =
            self.router.local_shards().filter(|shard| shard.leads().is_ok() && shard.group.status().voters.len() > 1);
        join_all(led.map(|shard| async move {
            match timeout(HANDOVER_TIMEOUT, shard.group.handover()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn!(shard = %shard.id, %error, "leadership was not handed over"),
                Err(_) => warn!(shard = %shard.id, "leadership was not handed over in {HANDOVER_TIMEOUT:?}"),
            }
        }))
        .await;
        self.supervisor.0.stop(None);
        let join = self.supervisor.1.lock().take();
        if let Some(join) = join {
            let _ = timeout(HANDOVER_TIMEOUT, join).await;
        }
        join_all(self.router.local_shards().map(|shard| shard.group.stop())).await;
    }
}

async fn open_group(shared: &Shared, surroundings: &Surroundings, id: ShardId) -> Result<Group, ConsensusError> {
    let tuning = &surroundings.tuning;
    let mut config = GroupConfig::new(id, surroundings.me, shared.config.data_dir.join("snapshots"));
    config.timing = tuning.timing.clone();
    config.snapshot_every_entries = tuning.snapshot_every_entries;
    config.snapshot_every_bytes = tuning.snapshot_every_bytes;
    config.keep_entries = tuning.keep_entries;
    config.keep_bytes = tuning.keep_bytes;
    let on_fatal = shared.config.on_fatal.clone();
    Group::open(
        config,
        shared.config.store.clone(),
        shared.config.log_writer.clone(),
        surroundings.links.clone(),
        surroundings.clock.clone(),
        Arc::new(move |what| on_fatal(format!("shard {id}: {what}"))),
    )
    .await
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
