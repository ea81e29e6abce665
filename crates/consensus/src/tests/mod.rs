//! A cluster in one process: members over simulated disks, wired to one another in memory, whose wires can be cut and
//! whose power can be cut.

mod crash;
mod groups;
mod members;
mod storage;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use onceward_core::{
    cluster::{Generation, MemberId, NodeId, ShardId},
    command::{Command, Reply},
    limits::{Algorithm, Escrow, OnUnavailable, Policy, PolicyName, PolicySpec, Rate, RateUnit},
    query::{Answer, Query, answer},
    seams::Clock,
    system::{PolicyReply, SystemCommand, SystemReply},
};
use onceward_storage::{Family, LogWriter, MemoryStore, Op, StorageError, Store, StoreStats, StoreView, WriteSet};
use onceward_transport::{CallError, Lane, Links, RefusalCode, Request};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::{Group, GroupConfig, ProposeError, StateHash, Timing};

/// How long anything may take that is waited for. Far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn member(node: u16, generation: u32) -> MemberId {
    MemberId::new(NodeId(node), Generation(generation))
}

/// Waits until `condition` answers something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut condition: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// A machine's clocks.
pub(crate) struct RealClock(Instant);

impl Clock for RealClock {
    fn monotonic_us(&self) -> u64 {
        self.0.elapsed().as_micros() as u64
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.0.elapsed().as_millis() as u64
    }
}

/// A disk whose syncs take a while, so that power cuts find something in flight.
pub(crate) struct SlowDisk {
    disk: MemoryStore,
    sync: Duration,
    /// Whoever has it to himself stalls the writes of rows.
    pub(crate) rows: Arc<RwLock<()>>,
}

impl SlowDisk {
    pub(crate) fn new(disk: MemoryStore, sync: Duration) -> SlowDisk {
        SlowDisk { disk, sync, rows: Arc::default() }
    }
}

impl Store for SlowDisk {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.disk.get(family, key)
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<onceward_core::rows::Row>, StorageError> {
        self.disk.scan(family, from, to, limit, bytes_max)
    }

    fn scan_back(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<onceward_core::rows::Row>, StorageError> {
        self.disk.scan_back(family, from, to, limit, bytes_max)
    }

    fn write(&self, set: &WriteSet) -> Result<(), StorageError> {
        let of_rows = |op: Op<'_>| matches!(op, Op::Put { family: Family::State, .. });
        let _not_stalled = set.iter().any(of_rows).then(|| self.rows.read().unwrap());
        self.disk.write(set)
    }

    fn sync(&self) -> Result<(), StorageError> {
        std::thread::sleep(self.sync);
        self.disk.sync()
    }

    fn view(&self) -> Result<Box<dyn StoreView + '_>, StorageError> {
        self.disk.view()
    }

    fn stats(&self) -> StoreStats {
        self.disk.stats()
    }
}

/// What connects the members: who answers at which node, and which ways are cut.
#[derive(Default)]
pub(crate) struct Wires {
    nodes: Mutex<BTreeMap<NodeId, Group>>,
    cut: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// Largest body of an append with entries.
    pub(crate) largest_append: AtomicUsize,
}

impl Wires {
    pub(crate) fn isolate(&self, node: u16, others: impl IntoIterator<Item = u16>) {
        let mut cut = self.cut.lock().unwrap();
        for other in others {
            cut.insert((NodeId(node), NodeId(other)));
            cut.insert((NodeId(other), NodeId(node)));
        }
    }

    pub(crate) fn heal(&self) {
        self.cut.lock().unwrap().clear();
    }

    fn answers(&self, from: NodeId, to: NodeId) -> Option<Group> {
        if self.cut.lock().unwrap().contains(&(from, to)) {
            return None;
        }
        self.nodes.lock().unwrap().get(&to).cloned()
    }
}

struct Wire {
    me: MemberId,
    wires: Arc<Wires>,
}

impl Links for Wire {
    fn call(&self, to: NodeId, request: Request) -> BoxFuture<'static, Result<Bytes, CallError>> {
        let (me, wires) = (self.me, Arc::clone(&self.wires));
        Box::pin(async move {
            let group = wires.answers(me.node, to).ok_or_else(|| CallError::NotSent("the wire is cut".to_owned()))?;
            if request.lane == Lane::Data {
                wires.largest_append.fetch_max(request.body.len(), Ordering::Relaxed);
            }
            let answered = timeout(request.timeout, group.handle(me, request.method, request.body)).await;
            // An answer has to find its way back.
            wires.answers(me.node, to).ok_or_else(|| CallError::Lost("the wire is cut".to_owned()))?;
            match answered {
                Ok(Ok(body)) => Ok(body),
                Ok(Err(message)) => Err(CallError::Refused { code: RefusalCode::WrongMember, message }),
                Err(_) => Err(CallError::TimedOut),
            }
        })
    }

    fn connected(&self, to: NodeId) -> bool {
        self.wires.answers(self.me.node, to).is_some()
    }
}

/// Every third disk is so much slower that the others are a majority without it, and its own log lags behind what is
/// committed.
fn sync_time(me: MemberId) -> Duration {
    Duration::from_millis(if me.node.0.is_multiple_of(3) { 20 } else { 2 })
}

pub(crate) fn config(me: MemberId, dir: &TempDir) -> GroupConfig {
    let mut config = GroupConfig::new(ShardId::SYSTEM, me, dir.path().to_owned());
    config.timing = Timing {
        heartbeat: Duration::from_millis(60),
        election_min: Duration::from_millis(250),
        election_max: Duration::from_millis(450),
        ..Timing::default()
    };
    config.flush_after = Duration::from_millis(10);
    config
}

/// One member and everything it stands on.
pub(crate) struct Member {
    pub(crate) me: MemberId,
    pub(crate) group: Group,
    pub(crate) disk: MemoryStore,
    pub(crate) config: GroupConfig,
    pub(crate) fatal: Arc<Mutex<Vec<String>>>,
    pub(crate) dir: TempDir,
}

/// Members of the system shard's group.
pub(crate) struct Cluster {
    pub(crate) wires: Arc<Wires>,
    pub(crate) members: BTreeMap<u16, Member>,
    clock: Arc<RealClock>,
    tune: fn(&mut GroupConfig),
}

impl Cluster {
    /// Founds a group of `nodes` members.
    pub(crate) async fn found(nodes: u16, tune: fn(&mut GroupConfig)) -> Cluster {
        let mut cluster = Cluster {
            wires: Arc::default(),
            members: BTreeMap::new(),
            clock: Arc::new(RealClock(Instant::now())),
            tune,
        };
        for node in 1..=nodes {
            cluster.start(member(node, 0), MemoryStore::new()).await;
        }
        let voters = cluster.members.values().map(|member| member.me).collect();
        cluster.members[&1].group.initialize(voters).await.unwrap();
        cluster
    }

    /// Starts a member on a disk. Its snapshots are lost with every start.
    pub(crate) async fn start(&mut self, me: MemberId, disk: MemoryStore) {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(me, &dir);
        (self.tune)(&mut config);
        let fatal: Arc<Mutex<Vec<String>>> = Arc::default();
        let group = self.open(me, &disk, &config, &fatal).await;
        group.run();
        self.wires.nodes.lock().unwrap().insert(me.node, group.clone());
        self.members.insert(me.node.0, Member { me, group, disk, config, fatal, dir });
    }

    /// A group on a disk, which nobody runs yet.
    pub(crate) async fn open(
        &self,
        me: MemberId,
        disk: &MemoryStore,
        config: &GroupConfig,
        fatal: &Arc<Mutex<Vec<String>>>,
    ) -> Group {
        let store: Arc<dyn Store> = Arc::new(SlowDisk::new(disk.clone(), sync_time(me)));
        let (of_writer, of_group) = (Arc::clone(fatal), Arc::clone(fatal));
        let writer = LogWriter::start(
            Arc::clone(&store),
            Arc::new(move |error: StorageError| of_writer.lock().unwrap().push(error.to_string())),
        );
        let links = Arc::new(Wire { me, wires: Arc::clone(&self.wires) });
        let on_fatal = Arc::new(move |what: String| of_group.lock().unwrap().push(what));
        let opened = Group::open(config.clone(), store, writer, links, self.clock.clone(), on_fatal).await;
        opened.unwrap_or_else(|error| panic!("member {me} doesn't start: {error}"))
    }

    /// Cuts a member's power: what its disk has then. Nothing that it does afterwards is seen by anybody.
    pub(crate) async fn kill(&mut self, node: u16, seed: u64) -> (MemberId, MemoryStore) {
        let member = self.members.remove(&node).unwrap();
        let disk = member.disk.crash_seeded(seed);
        self.wires.nodes.lock().unwrap().remove(&NodeId(node));
        assert_eq!(*member.fatal.lock().unwrap(), [""; 0], "of member {}", member.me);
        member.group.stop().await;
        drop(member.dir);
        (member.me, disk)
    }

    pub(crate) fn groups(&self) -> Vec<Group> {
        self.members.values().map(|member| member.group.clone()).collect()
    }

    /// The member that leads and may serve.
    pub(crate) async fn leader(&self) -> Group {
        let groups = self.groups();
        leader_of(&groups).await
    }

    /// Waits until all members have applied the same, and compares their states.
    pub(crate) async fn agree(&self) -> StateHash {
        let groups = self.groups();
        until("all members at the same index", || async {
            let leader = leader_of(&groups).await;
            let last = leader.status().last_log_index;
            groups.iter().all(|group| group.status().applied_index == last).then_some(())
        })
        .await;
        let mut hashes = Vec::new();
        for group in &groups {
            hashes.push(group.state_hash().await.unwrap());
        }
        assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "states differ: {hashes:?}");
        hashes.remove(0)
    }
}

async fn leader_of(groups: &[Group]) -> Group {
    until("a leader", || async { groups.iter().find(|group| group.leadership().borrow().am_leader).cloned() }).await
}

pub(crate) fn put_policy(name: &str, burst: u64) -> Command {
    let rate = Rate { amount: 100, every: 1, unit: RateUnit::Minute };
    let spec = PolicySpec {
        algorithm: Algorithm::TokenBucket,
        rate,
        burst,
        on_unavailable: OnUnavailable::Deny,
        timeout_ms: 100,
        exempt: Vec::new().into(),
        overrides: BTreeMap::new(),
        escrow: Escrow::Off,
    };
    Command::System(SystemCommand::PutPolicy { name: PolicyName::parse(name).unwrap(), spec })
}

pub(crate) async fn propose(group: &Group, command: Command) -> Result<Vec<Reply>, ProposeError> {
    if group.shard_clock().is_none() {
        group.adopt_clock(group.clock_guess());
    }
    group.propose(vec![command]).await
}

/// Writes a policy somewhere, again after every definite no, and answers its revision. None when the outcome is
/// unknown.
pub(crate) async fn put(groups: &[Group], name: &str, burst: u64) -> Option<u64> {
    until("a leader that takes a write", || async {
        for group in groups {
            match timeout(Duration::from_secs(5), propose(group, put_policy(name, burst))).await {
                Ok(Ok(replies)) => match &replies[..] {
                    [Reply::System(SystemReply::Policy(PolicyReply::Stored { policy, .. }))] => {
                        return Some(Some(policy.revision));
                    }
                    other => panic!("{other:?}"),
                },
                Ok(Err(ProposeError::NotLeader { .. } | ProposeError::NoClock)) => {}
                Ok(Err(ProposeError::TooLarge { bytes })) => panic!("{bytes} bytes are too many"),
                Ok(Err(ProposeError::Unknown(_))) | Err(_) => return Some(None),
            }
        }
        None
    })
    .await
}

/// Writes a new policy; false when the outcome is unknown.
pub(crate) async fn write(groups: &[Group], name: &str) -> bool {
    put(groups, name, 100).await.is_some()
}

pub(crate) fn policy(group: &Group, name: &str) -> Option<Policy> {
    let query = Query::Policy { name: name.to_owned() };
    match group.read(|rows| answer(ShardId::SYSTEM, rows, &query)).unwrap() {
        Answer::Policy(policy) => policy,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn has_policy(group: &Group, name: &str) -> bool {
    policy(group, name).is_some()
}
