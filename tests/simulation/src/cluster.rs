//! A cluster of machines, and the loop that lets time pass: first what was to happen now, then every machine, then the
//! scenario, which runs on a machine of its own that never fails. What the scenario does to machines it orders, and it is done
//! between steps.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use onceward_checkers::history::{Leader, Record};
use onceward_core::cluster::NodeId;
use onceward_partition::recorder::Recorder;
use onceward_shard::ClusterStatus;
use parking_lot::Mutex;
use tokio::{runtime::Builder, sync::oneshot, time::sleep};

use crate::{
    machine::{Answered, Machine, Surroundings},
    net::Net,
    receivers::Receivers,
    world::World,
};

/// Whatever takes longer does not come to an end.
const TIME_MS_MAX: u64 = 300_000;
/// How often it is looked who leads.
const LOOK_EVERY_MS: u64 = 20;

/// Something done to a machine.
pub enum Order {
    Start,
    Crash {
        power_loss: bool,
    },
    Freeze,
    Thaw,
    WallOffset {
        ms: i64,
    },
    Drift {
        every: i64,
    },
    SyncSpike {
        ms: u64,
    },
    Ask {
        method: &'static str,
        path: String,
        body: String,
        reply: oneshot::Sender<Option<oneshot::Receiver<Answered>>>,
    },
    Status {
        reply: oneshot::Sender<Option<oneshot::Receiver<ClusterStatus>>>,
    },
}

/// What the scenario has of the cluster. Cheap to clone.
#[derive(Clone)]
pub struct Controls {
    pub world: Arc<World>,
    pub net: Net,
    pub nodes: Vec<NodeId>,
    pub recorder: Recorder,
    pub receivers: Receivers,
    orders: Arc<Mutex<Vec<(NodeId, Order)>>>,
    leaders: Arc<Mutex<Leaders>>,
}

#[derive(Default)]
struct Leaders {
    of_shards: BTreeMap<u16, (u64, NodeId)>,
    changes: u64,
}

impl Controls {
    pub fn order(&self, node: NodeId, order: Order) {
        self.orders.lock().push((node, order));
    }

    /// Who led each data shard when it was last looked.
    pub fn leaders(&self) -> Vec<NodeId> {
        self.leaders.lock().of_shards.values().map(|(_, node)| *node).collect()
    }

    pub fn leader_changes(&self) -> u64 {
        self.leaders.lock().changes
    }

    /// Asks a node's HTTP API, without a network between. `None`: nobody listens; an answer may never come.
    pub async fn ask(
        &self,
        node: NodeId,
        method: &'static str,
        path: String,
        body: String,
    ) -> Option<oneshot::Receiver<Answered>> {
        let (reply, asked) = oneshot::channel();
        self.order(node, Order::Ask { method, path, body, reply });
        asked.await.ok().flatten()
    }

    /// What a node says of its replicas, with their hashes.
    pub async fn status(&self, node: NodeId) -> Option<ClusterStatus> {
        let (reply, asked) = oneshot::channel();
        self.order(node, Order::Status { reply });
        asked.await.ok().flatten()?.await.ok()
    }
}

/// Runs a scenario over a cluster of new machines that have their files in `dir`. An error says what must never happen.
pub fn run<F>(
    options: &Options,
    dir: &Path,
    recorder: impl FnOnce(Arc<World>) -> Recorder,
    scenario: impl FnOnce(Controls) -> F,
) -> Result<(), String>
where
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let world = World::new(options.seed);
    let recorder = recorder(world.clone());
    let failures = Arc::new(Mutex::new(Vec::new()));
    let receivers = Receivers::new(world.clone(), recorder.clone());
    let surroundings = Surroundings {
        seed: options.seed,
        net: Net::new(world.clone()),
        receivers: receivers.clone(),
        world: world.clone(),
        nodes: (1..=options.nodes).map(NodeId).collect(),
        data_shards: options.data_shards,
        on_failure: {
            let failures = failures.clone();
            Arc::new(move |what| failures.lock().push(what))
        },
    };
    let controls = Controls {
        net: surroundings.net.clone(),
        nodes: surroundings.nodes.clone(),
        world: world.clone(),
        recorder,
        receivers,
        orders: Arc::default(),
        leaders: Arc::default(),
    };
    let machines = surroundings.nodes.iter();
    let machines = machines.map(|id| Machine::new(*id, dir.join(format!("node-{id}")), surroundings.clone()));
    let mut cluster = Cluster { machines: machines.collect(), controls: controls.clone() };
    cluster.machines.iter_mut().for_each(Machine::start);

    let own = Builder::new_current_thread().enable_time().start_paused(true).build();
    let own = own.expect("a runtime without threads and sockets can be made");
    let scenario = own.spawn(scenario(controls));
    while !scenario.is_finished() {
        if world.now_ms() > TIME_MS_MAX {
            return Err("it does not come to an end".to_owned());
        }
        world.tick();
        cluster.step();
        own.block_on(async { sleep(Duration::from_millis(1)).await });
        cluster.obey();
        let failure = failures.lock().first().cloned().or_else(|| (options.panics)());
        if let Some(failure) = failure {
            return Err(format!("at {} ms: {failure}", world.now_ms()));
        }
    }
    let ended = own.block_on(scenario).map_err(|error| format!("the scenario failed: {error}"))?;
    // Without power, so that nothing more happens.
    cluster.machines.iter_mut().for_each(|machine| machine.crash(true));
    ended
}

pub struct Options {
    pub seed: u64,
    pub nodes: u16,
    pub data_shards: u16,
    /// The first panic of this process, wherever it was swallowed.
    pub panics: fn() -> Option<String>,
}

struct Cluster {
    machines: Vec<Machine>,
    controls: Controls,
}

impl Cluster {
    fn step(&mut self) {
        self.machines.iter_mut().for_each(Machine::step);
        if self.controls.world.now_ms().is_multiple_of(LOOK_EVERY_MS) {
            self.look_who_leads();
        }
    }

    fn look_who_leads(&self) {
        let mut leaders = self.controls.leaders.lock();
        for machine in &self.machines {
            for port in machine.live().and_then(|live| live.ports.get()).into_iter().flatten() {
                let leadership = *port.leadership().borrow();
                let (shard, term) = (port.shard().0, leadership.term);
                let known = leaders.of_shards.get(&shard).map_or(0, |(term, _)| *term);
                if leadership.am_leader && term > known {
                    leaders.of_shards.insert(shard, (term, machine.id));
                    leaders.changes += 1;
                    let (at_us, node) = (self.controls.world.now_us(), Some(machine.id.0));
                    self.controls.recorder.record(Record::Leader(Leader { at_us, shard, term, node }));
                }
            }
        }
    }

    fn obey(&mut self) {
        let orders = std::mem::take(&mut *self.controls.orders.lock());
        for (node, order) in orders {
            let machine = &mut self.machines[usize::from(node.0) - 1];
            match order {
                Order::Start => machine.start(),
                Order::Crash { power_loss } => machine.crash(power_loss),
                Order::Freeze => machine.freeze(),
                Order::Thaw => machine.thaw(),
                Order::WallOffset { ms } => machine.set_wall_offset(ms),
                Order::Drift { every } => machine.set_drift(every),
                Order::SyncSpike { ms } => machine.set_sync_spike(ms),
                // Whoever gave the order may have gone.
                Order::Ask { method, path, body, reply } => drop(reply.send(machine.ask(method, path, body))),
                Order::Status { reply } => drop(reply.send(machine.status())),
            }
        }
    }
}
