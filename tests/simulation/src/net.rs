//! The network between the machines: connections that behave as TCP's do, over ways that lose nothing silently but may be cut
//! in either direction, or slow.
//!
//! A packet on a way that is cut waits and arrives when the way is whole again, if its connection still lives: that is how
//! calls arrive long after their caller gave them up. A connection over a cut way dies after [`DEAD_AFTER_MS`]; then it is
//! dialled anew, with the handshake's questions to both doorkeepers. What was never sent is told apart from what was.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use onceward_core::cluster::NodeId;
use onceward_transport::{
    CallError, Doorkeeper, Handler, Hello, Inbound, Links, Network, NodeLinks, Peer, Refusal, Request, TransportError,
    limits::{BACKOFF_MAX, BACKOFF_MIN, CALL_TIMEOUT_MAX, DEAD_AFTER},
};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, timeout, timeout_at},
};

use crate::world::World;

/// As the product's keep-alive notices it.
const DEAD_AFTER_MS: u64 = DEAD_AFTER.as_millis() as u64;
const DIAL_MS_MIN: u64 = BACKOFF_MIN.as_millis() as u64;
const DIAL_MS_MAX: u64 = BACKOFF_MAX.as_millis() as u64;
/// Of a packet on a way that is not slow.
const LATENCY_MS_MAX: u64 = 3;

/// From the node that sends to the one that receives.
pub type Way = (NodeId, NodeId);
type Answer = Result<Bytes, CallError>;

/// Cheap to clone: one network.
#[derive(Clone)]
pub struct Net {
    world: Arc<World>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    ports: BTreeMap<NodeId, Port>,
    connections: BTreeMap<Way, Connection>,
    cut: BTreeSet<Way>,
    /// Milliseconds that packets take besides.
    slow: BTreeMap<Way, u64>,
    /// Nodes that take nothing in and send nothing, and haven't closed anything: frozen, or without power.
    silent: BTreeSet<NodeId>,
    held: BTreeMap<Way, Vec<Packet>>,
    epochs: u64,
    calls: u64,
    /// Packets that a cut held up, for whoever wants to know whether it bit.
    held_up: u64,
}

/// A process that listens.
#[derive(Clone)]
struct Port {
    process: u64,
    handler: Arc<dyn Handler>,
    doorkeeper: Arc<dyn Doorkeeper>,
    runtime: Handle,
}

/// A node's connection to another one, for its own calls.
#[derive(Default)]
struct Connection {
    /// Tells it from those before and after it between the same two.
    epoch: u64,
    up: Option<Established>,
    to_be_dialled: bool,
    refusal: Option<String>,
    /// Calls that wait for their answers.
    calls: BTreeMap<u64, oneshot::Sender<Answer>>,
}

#[derive(Clone, Copy)]
struct Established {
    caller: Hello,
    callee: Hello,
}

enum Packet {
    Call { connection: Way, epoch: u64, call: u64, request: Request },
    Answer { connection: Way, epoch: u64, call: u64, answer: Answer },
}

impl Packet {
    fn way(&self) -> Way {
        match self {
            Packet::Call { connection, .. } => *connection,
            Packet::Answer { connection: (caller, callee), .. } => (*callee, *caller),
        }
    }

    fn connection(&self) -> (Way, u64) {
        match self {
            Packet::Call { connection, epoch, .. } | Packet::Answer { connection, epoch, .. } => (*connection, *epoch),
        }
    }
}

impl Net {
    pub fn new(world: Arc<World>) -> Net {
        Net { world, state: Arc::default() }
    }

    /// The network as the process of a machine sees it; `process` is a number that no other process has.
    pub fn of(&self, me: NodeId, process: u64, peers: Vec<NodeId>) -> Arc<MachineNetwork> {
        Arc::new(MachineNetwork { net: self.clone(), me, process, peers })
    }

    pub fn cut(&self, ways: impl IntoIterator<Item = Way>) {
        for way in ways {
            self.state.lock().cut.insert(way);
            self.watch(way);
        }
    }

    pub fn mend(&self, ways: impl IntoIterator<Item = Way>) {
        for way in ways {
            let held = {
                let mut state = self.state.lock();
                state.cut.remove(&way);
                state.held.remove(&way).unwrap_or_default()
            };
            held.into_iter().for_each(|packet| self.send(packet));
        }
    }

    pub fn mend_all(&self) {
        let (cut, held): (Vec<Way>, Vec<Way>) = {
            let mut state = self.state.lock();
            state.slow.clear();
            (state.cut.iter().copied().collect(), state.held.keys().copied().collect())
        };
        self.mend(cut.into_iter().chain(held));
    }

    pub fn slow(&self, way: Way, ms: u64) {
        self.state.lock().slow.insert(way, ms);
    }

    /// The node is frozen or lost its power: nobody is told, connections are found dead in time.
    pub fn silence(&self, node: NodeId) {
        self.state.lock().silent.insert(node);
        for other in self.others(node) {
            self.watch((node, other));
        }
    }

    pub fn unsilence(&self, node: NodeId) {
        self.state.lock().silent.remove(&node);
        for other in self.others(node) {
            for way in [(node, other), (other, node)] {
                let held = self.state.lock().held.remove(&way).unwrap_or_default();
                held.into_iter().for_each(|packet| self.send(packet));
            }
        }
    }

    /// The node's process is gone. Its own connections are too; those of others to it are when its machine says so, at
    /// once, or when they are found dead.
    pub fn close_port(&self, node: NodeId, says_so: bool) {
        self.state.lock().ports.remove(&node);
        for other in self.others(node) {
            self.hang_up((node, other));
            match says_so {
                true => self.hang_up((other, node)),
                false => self.watch((other, node)),
            }
        }
    }

    pub fn held_up(&self) -> u64 {
        self.state.lock().held_up
    }

    fn others(&self, node: NodeId) -> Vec<NodeId> {
        let state = self.state.lock();
        let known: BTreeSet<NodeId> = state.connections.keys().flat_map(|(a, b)| [*a, *b]).collect();
        known.into_iter().filter(|other| *other != node).collect()
    }

    /// Kills the connections between two nodes if nothing passes between them for long.
    fn watch(&self, (a, b): Way) {
        let epochs = {
            let state = self.state.lock();
            [(a, b), (b, a)].map(|way| state.connections.get(&way).map(|connection| connection.epoch))
        };
        let net = self.clone();
        self.world.after(DEAD_AFTER_MS + self.world.between(0, 1_000), move || {
            for (way, epoch) in [(a, b), (b, a)].into_iter().zip(epochs) {
                let dead = {
                    let state = net.state.lock();
                    state.is_blocked(a, b) && state.connections.get(&way).map(|connection| connection.epoch) == epoch
                };
                if dead {
                    net.hang_up(way);
                }
            }
        });
    }

    /// Ends a connection: calls on it are lost, and it is dialled again.
    fn hang_up(&self, way: Way) {
        let calls = {
            let mut state = self.state.lock();
            let State { connections, epochs, .. } = &mut *state;
            let Some(connection) = connections.get_mut(&way) else { return };
            *epochs += 1;
            connection.epoch = *epochs;
            connection.up = None;
            std::mem::take(&mut connection.calls)
        };
        for (_, caller) in calls {
            drop(caller.send(Err(CallError::Lost("the connection is gone".to_owned()))));
        }
        self.dial_later(way);
    }

    fn dial_later(&self, way: Way) {
        {
            let mut state = self.state.lock();
            let Some(connection) = state.connections.get_mut(&way) else { return };
            if std::mem::replace(&mut connection.to_be_dialled, true) {
                return;
            }
        }
        let net = self.clone();
        self.world.after(self.world.between(DIAL_MS_MIN, DIAL_MS_MAX), move || {
            let down = {
                let mut state = net.state.lock();
                let Some(connection) = state.connections.get_mut(&way) else { return };
                connection.to_be_dialled = false;
                connection.up.is_none()
            };
            if down {
                net.dial(way);
            }
        });
    }

    fn dial(&self, way: Way) {
        let (caller, callee, blocked) = {
            let state = self.state.lock();
            (state.ports.get(&way.0).cloned(), state.ports.get(&way.1).cloned(), state.is_blocked(way.0, way.1))
        };
        let Some(caller) = caller else { return };
        // The port of a process that opens one begins to dial by itself.
        let Some(callee) = callee.filter(|_| !blocked) else { return self.dial_later(way) };
        let hellos = Established { caller: caller.doorkeeper.hello(), callee: callee.doorkeeper.hello() };
        let admitted = callee.doorkeeper.admit(&hellos.caller).and_then(|()| caller.doorkeeper.admit(&hellos.callee));
        let up = {
            let mut state = self.state.lock();
            let State { connections, epochs, .. } = &mut *state;
            let connection = connections.entry(way).or_default();
            *epochs += 1;
            connection.epoch = *epochs;
            (connection.up, connection.refusal) = match admitted {
                Ok(()) => (Some(hellos), None),
                Err(why) => (None, Some(why)),
            };
            connection.up.is_some()
        };
        if !up {
            self.dial_later(way);
        }
    }

    fn send(&self, packet: Packet) {
        let way = packet.way();
        let slow = self.state.lock().slow.get(&way).copied().unwrap_or_default();
        let latency = self.world.between(1, LATENCY_MS_MAX) + if slow > 0 { self.world.between(0, slow) } else { 0 };
        let net = self.clone();
        self.world.after(latency, move || net.arrive(packet));
    }

    fn arrive(&self, packet: Packet) {
        let (from, to) = packet.way();
        let mut state = self.state.lock();
        let (way, epoch) = packet.connection();
        if state.connections.get(&way).is_none_or(|connection| connection.epoch != epoch) {
            return;
        }
        if state.cut.contains(&(from, to)) || state.silent.contains(&from) || state.silent.contains(&to) {
            state.held_up += 1;
            state.held.entry((from, to)).or_default().push(packet);
            return;
        }
        match packet {
            Packet::Answer { call, answer, .. } => {
                let caller = state.connections.get_mut(&way).and_then(|connection| connection.calls.remove(&call));
                drop(state);
                // A caller that gave up is gone.
                drop(caller.map(|caller| caller.send(answer)));
            }
            Packet::Call { call, request, .. } => {
                let (port, hello) = (state.ports.get(&to).cloned(), state.connections[&way].up);
                drop(state);
                if let (Some(port), Some(hello)) = (port, hello) {
                    self.handle(&port, way, epoch, call, request, hello.caller);
                }
            }
        }
    }

    /// Lets the process that was called answer.
    fn handle(&self, port: &Port, connection: Way, epoch: u64, call: u64, request: Request, hello: Hello) {
        let (net, handler) = (self.clone(), port.handler.clone());
        port.runtime.spawn(async move {
            let deadline = Instant::now() + request.timeout.min(CALL_TIMEOUT_MAX);
            let Request { lane, method, shard, body, .. } = request;
            let from = Peer { hello, address: address(hello.node) };
            let inbound = Inbound { from, lane, method, shard, body, deadline };
            let Ok(answer) = timeout_at(deadline, handler.handle(inbound)).await else { return };
            let answer = answer.map_err(|Refusal { code, message }| CallError::Refused { code, message });
            net.send(Packet::Answer { connection, epoch, call, answer });
        });
    }

    /// A call's place among those that wait on its connection.
    fn begin(&self, way: Way) -> Result<(u64, u64, oneshot::Receiver<Answer>), CallError> {
        let mut state = self.state.lock();
        let State { connections, calls, .. } = &mut *state;
        let connection = connections.get_mut(&way).filter(|connection| connection.up.is_some());
        let connection = connection.ok_or_else(|| CallError::NotSent("not connected".to_owned()))?;
        *calls += 1;
        let (caller, answer) = oneshot::channel();
        connection.calls.insert(*calls, caller);
        Ok((*calls, connection.epoch, answer))
    }

    fn forget(&self, way: Way, call: u64) {
        if let Some(connection) = self.state.lock().connections.get_mut(&way) {
            connection.calls.remove(&call);
        }
    }
}

impl State {
    fn is_blocked(&self, a: NodeId, b: NodeId) -> bool {
        self.cut.contains(&(a, b))
            || self.cut.contains(&(b, a))
            || self.silent.contains(&a)
            || self.silent.contains(&b)
            || !self.ports.contains_key(&a)
            || !self.ports.contains_key(&b)
    }
}

fn address(node: NodeId) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), node.0)
}

/// What one process opens its links with.
pub struct MachineNetwork {
    net: Net,
    me: NodeId,
    process: u64,
    peers: Vec<NodeId>,
}

impl Network for MachineNetwork {
    fn open(
        &self,
        doorkeeper: Arc<dyn Doorkeeper>,
        handler: Arc<dyn Handler>,
    ) -> BoxFuture<'_, Result<Arc<dyn NodeLinks>, TransportError>> {
        let (net, me, process) = (self.net.clone(), self.me, self.process);
        let port = Port { process, handler, doorkeeper, runtime: Handle::current() };
        net.state.lock().ports.insert(me, port);
        for peer in self.peers.iter().filter(|peer| **peer != me) {
            for way in [(me, *peer), (*peer, me)] {
                net.state.lock().connections.entry(way).or_default();
                // A machine that is up again says that it knows nothing of connections from before.
                net.hang_up(way);
            }
        }
        Box::pin(async move { Ok(Arc::new(MachineLinks { net, me, process }) as Arc<dyn NodeLinks>) })
    }
}

struct MachineLinks {
    net: Net,
    me: NodeId,
    process: u64,
}

/// A call that is given up is waited for no longer.
struct Waiting {
    net: Net,
    way: Way,
    call: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.net.forget(self.way, self.call);
    }
}

impl Links for MachineLinks {
    fn call(&self, to: NodeId, request: Request) -> BoxFuture<'static, Answer> {
        let (net, way) = (self.net.clone(), (self.me, to));
        Box::pin(async move {
            let (call, epoch, answer) = net.begin(way)?;
            let patience: Duration = request.timeout.min(CALL_TIMEOUT_MAX);
            let waiting = Waiting { net: net.clone(), way, call };
            net.send(Packet::Call { connection: way, epoch, call, request });
            let answered = timeout(patience, answer).await;
            drop(waiting);
            match answered {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(CallError::Lost("the connection is gone".to_owned())),
                Err(_) => Err(CallError::TimedOut),
            }
        })
    }

    fn connected(&self, to: NodeId) -> bool {
        self.peer_hello(to).is_some()
    }
}

impl NodeLinks for MachineLinks {
    fn peer_hello(&self, node: NodeId) -> Option<Hello> {
        self.net.state.lock().connections.get(&(self.me, node))?.up.map(|hellos| hellos.callee)
    }

    fn last_refusal(&self, node: NodeId) -> Option<String> {
        self.net.state.lock().connections.get(&(self.me, node))?.refusal.clone()
    }

    fn drop_connections_of(&self, node: NodeId) {
        self.net.hang_up((self.me, node));
        self.net.hang_up((node, self.me));
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        let still_mine = self.net.state.lock().ports.get(&self.me).is_some_and(|port| port.process == self.process);
        if still_mine {
            self.net.close_port(self.me, true);
        }
        Box::pin(std::future::ready(()))
    }
}
