//! Userspace TCP proxies, one listener for each route. A dialler that is told the proxy's port reaches the target
//! through it, as long as the flows there and back let it.
//!
//! A held flow loses no bytes, as TCP would lose none: they wait, in bounded memory, and neither an end nor a reset of a
//! connection passes either. What is read is queued with the time at which it is due, so that a delay costs no
//! throughput.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{Condition, Flow, Party, Passage};
use crate::{draw::Draw, ports::free_port};

const CHUNK_BYTES: usize = 16 << 10;
/// With [`CHUNK_BYTES`], a MiB for each direction of a connection: what kernels buffer.
const QUEUED_CHUNKS_MAX: usize = 64;
/// A throttled flow is written in pieces of this long, so that it notices soon that it is healed.
const PACE: Duration = Duration::from_millis(50);
/// How often a connection that may not be made yet looks whether its dialler still waits.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// An aborted task lets go of its socket at once, when it is its turn.
const FREE_MAX: Duration = Duration::from_secs(10);
/// Targets are on this machine: they answer at once or not at all.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Who dials whom, and where the target listens.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    pub flow: Flow,
    pub target: SocketAddr,
}

/// Proxies of all routes; dropping them ends all connections through them.
pub struct Proxies {
    ways: BTreeMap<Flow, Arc<Way>>,
    listeners: BTreeMap<Flow, Listener>,
    counters: Arc<Counters>,
}

struct Listener {
    port: u16,
    target: SocketAddr,
    /// None while the target is down: whoever dials it is to be refused, as if there were no proxy.
    task: Option<JoinHandle<()>>,
}

/// One direction between two parties, of all connections between them.
struct Way {
    state: watch::Sender<State>,
    counters: Arc<Counters>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    condition: Condition,
    /// How often connections were reset, or half closed, by command.
    resets: u64,
    half_closes: u64,
}

#[derive(Default)]
struct Counters {
    connections: AtomicU64,
    bytes: AtomicU64,
    /// Bytes that arrived at a flow that was held, and connections that had to wait.
    bytes_held: AtomicU64,
    connections_held: AtomicU64,
    connections_reset: AtomicU64,
    half_closed: AtomicU64,
    /// Bytes that were delayed or throttled.
    bytes_slowed: AtomicU64,
    bytes_corrupted: AtomicU64,
}

fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

impl Proxies {
    /// Listens for every route. Needs a tokio runtime.
    pub fn start(routes: &[Route]) -> Proxies {
        let mut proxies = Proxies { ways: BTreeMap::new(), listeners: BTreeMap::new(), counters: Arc::default() };
        for Route { flow, target } in routes {
            proxies.listeners.insert(*flow, Listener { port: free_port(), target: *target, task: None });
            proxies.listen(*flow);
        }
        proxies
    }

    fn listen(&mut self, flow: Flow) {
        let (there, back) = (self.way(flow), self.way(flow.back()));
        let listener = self.listeners.get_mut(&flow).expect("a route of this network");
        let (port, target) = (listener.port, listener.target);
        let bound = bind(port);
        listener.task = Some(tokio::spawn(async move {
            let listener = match bound {
                Ok(listener) => listener,
                Err(_) => bind_when_free(port).await,
            };
            listen(listener, target, there, back).await;
        }));
    }

    /// Whoever dials this party is refused, as its process is down.
    pub fn down(&mut self, to: Party) {
        for (_, listener) in self.listeners.iter_mut().filter(|(flow, _)| flow.to == to) {
            if let Some(task) = listener.task.take() {
                task.abort();
            }
        }
    }

    /// The opposite of [`Proxies::down`].
    pub fn up(&mut self, to: Party) {
        let down = |(flow, listener): (&Flow, &Listener)| (flow.to == to && listener.task.is_none()).then_some(*flow);
        for flow in self.listeners.iter().filter_map(down).collect::<Vec<_>>() {
            self.listen(flow);
        }
    }

    fn way(&mut self, flow: Flow) -> Arc<Way> {
        let counters = &self.counters;
        let fresh = || Arc::new(Way { state: watch::Sender::default(), counters: counters.clone() });
        self.ways.entry(flow).or_insert_with(fresh).clone()
    }

    /// The loopback port on which `flow.from` finds `flow.to`.
    pub fn port(&self, flow: Flow) -> u16 {
        self.listeners[&flow].port
    }

    fn change(&self, flow: Flow, change: impl FnOnce(&mut State)) {
        self.ways.get(&flow).expect("a flow of this network").state.send_modify(change);
    }

    pub fn set(&self, flow: Flow, condition: Condition) {
        self.change(flow, |state| state.condition = condition);
    }

    pub fn reset(&self, flow: Flow) {
        self.change(flow, |state| state.resets += 1);
    }

    pub fn half_close(&self, flow: Flow) {
        self.change(flow, |state| state.half_closes += 1);
    }

    pub fn heal(&self) {
        self.ways.values().for_each(|way| way.state.send_modify(|state| state.condition = Condition::default()));
    }

    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let Counters {
            connections,
            bytes,
            bytes_held,
            connections_held,
            connections_reset,
            half_closed,
            bytes_slowed,
            bytes_corrupted,
        } = &*self.counters;
        let named = [
            ("connections", connections),
            ("bytes", bytes),
            ("bytes_held", bytes_held),
            ("connections_held", connections_held),
            ("connections_reset", connections_reset),
            ("half_closed", half_closed),
            ("bytes_slowed", bytes_slowed),
            ("bytes_corrupted", bytes_corrupted),
        ];
        named.into_iter().map(|(name, counter)| (name, counter.load(Ordering::Relaxed))).collect()
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        self.listeners.values().filter_map(|listener| listener.task.as_ref()).for_each(JoinHandle::abort);
    }
}

fn bind(port: u16) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// The listener that had the port before may not be gone yet.
async fn bind_when_free(port: u16) -> TcpListener {
    let free = async {
        loop {
            match bind(port) {
                Ok(listener) => return listener,
                Err(_) => sleep(LOOK_EVERY).await,
            }
        }
    };
    timeout(FREE_MAX, free).await.expect("nobody else takes the port of a proxy")
}

/// Its connections end with it.
async fn listen(listener: TcpListener, target: SocketAddr, there: Arc<Way>, back: Arc<Way>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((dialler, _)) => {
                    connections.spawn(carry(dialler, target, there.clone(), back.clone()));
                }
                // Out of file descriptors: those that wait may find some later.
                Err(_) => sleep(LOOK_EVERY).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn carry(mut dialler: TcpStream, target: SocketAddr, there: Arc<Way>, back: Arc<Way>) {
    count(&there.counters.connections, 1);
    let mut reset = pin!(wait_for_reset(&there, &back));
    let connected = tokio::select! {
        connected = connect(&dialler, target, &there, &back) => connected,
        () = &mut reset => None,
    };
    let Some(mut acceptor) = connected else {
        return end_abruptly(&there.counters, [dialler]);
    };
    let ended = {
        let (dialler_reads, dialler_writes) = dialler.split();
        let (acceptor_reads, acceptor_writes) = acceptor.split();
        let both = async {
            tokio::join!(pump(dialler_reads, acceptor_writes, &there), pump(acceptor_reads, dialler_writes, &back))
        };
        let broken = async {
            let (there_ended, back_ended) = both.await;
            there_ended.and(back_ended)
        };
        tokio::select! {
            ended = broken => ended,
            () = &mut reset => Err(io::ErrorKind::ConnectionReset.into()),
        }
    };
    if ended.is_err() {
        end_abruptly(&there.counters, [dialler, acceptor]);
    }
}

/// Both ends see a reset.
fn end_abruptly<const N: usize>(counters: &Counters, streams: [TcpStream; N]) {
    count(&counters.connections_reset, 1);
    for stream in streams {
        // Whoever is gone already needs no reset.
        let _ = stream.set_zero_linger();
    }
}

/// Until the connections that there are now are to be reset.
async fn wait_for_reset(there: &Way, back: &Way) {
    let one = async |way: &Way| {
        let mut state = way.state.subscribe();
        let resets = state.borrow().resets;
        let _ = state.wait_for(|state| state.resets != resets || state.condition.passage == Passage::Reset).await;
    };
    tokio::select! {
        () = one(there) => {}
        () = one(back) => {}
    }
}

/// Dials the target as soon as packets pass both ways; none when the dialler is gone or nobody answers.
async fn connect(dialler: &TcpStream, target: SocketAddr, there: &Way, back: &Way) -> Option<TcpStream> {
    let passes = |way: &Way| way.state.borrow().condition.passage == Passage::Open;
    if !(passes(there) && passes(back)) {
        count(&there.counters.connections_held, 1);
    }
    while !(passes(there) && passes(back)) {
        sleep(LOOK_EVERY).await;
        let gone = timeout(Duration::ZERO, dialler.ready(Interest::READABLE)).await;
        if gone.is_ok_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed())) {
            return None;
        }
    }
    let acceptor = timeout(CONNECT_MAX, TcpStream::connect(target)).await.ok()?.ok()?;
    acceptor.set_nodelay(true).ok()?;
    dialler.set_nodelay(true).ok()?;
    Some(acceptor)
}

enum Piece {
    Bytes(Vec<u8>),
    End,
    /// The sender is gone without an orderly end.
    Broken,
}

/// Carries one direction of one connection; an error when its sender broke off.
async fn pump(from: ReadHalf<'_>, to: WriteHalf<'_>, way: &Way) -> io::Result<()> {
    let (queue, queued) = mpsc::channel(QUEUED_CHUNKS_MAX);
    let ((), written) = tokio::join!(read(from, queue, way), write(queued, to, way));
    written
}

async fn read(mut from: ReadHalf<'_>, queue: mpsc::Sender<(Instant, Piece)>, way: &Way) {
    // Not of the run's seed: which bytes pass when is not either.
    let mut draw = Draw::new(way.counters.connections.load(Ordering::Relaxed), "read");
    let mut last_due = Instant::now();
    loop {
        let mut bytes = vec![0; CHUNK_BYTES];
        let piece = match from.read(&mut bytes).await {
            Ok(0) => Piece::End,
            Ok(length) => {
                bytes.truncate(length);
                Piece::Bytes(bytes)
            }
            Err(_) => Piece::Broken,
        };
        let condition = way.state.borrow().condition;
        let jitter = condition.jitter.mul_f64(draw.below(1000) as f64 / 1000.0);
        // Never before what came before it: TCP keeps the order.
        last_due = last_due.max(Instant::now() + condition.delay + jitter);
        let last = !matches!(piece, Piece::Bytes(_));
        if let Piece::Bytes(bytes) = &piece {
            way.count_read(&condition, bytes.len());
        }
        if queue.send((last_due, piece)).await.is_err() || last {
            return;
        }
    }
}

async fn write(mut queued: mpsc::Receiver<(Instant, Piece)>, mut to: WriteHalf<'_>, way: &Way) -> io::Result<()> {
    let mut state = way.state.subscribe();
    let half_closes = state.borrow().half_closes;
    let mut draw = Draw::new(way.counters.connections.load(Ordering::Relaxed), "write");
    let mut half_closed = way.state.subscribe();
    let carrying = async {
        while let Some((due, piece)) = queued.recv().await {
            sleep_until(due).await;
            if state.wait_for(|state| state.condition.passage == Passage::Open).await.is_err() {
                return Ok(());
            }
            match piece {
                Piece::Bytes(mut bytes) => {
                    way.corrupt(&mut bytes, &mut draw);
                    if write_paced(&mut to, &bytes, way).await.is_err() {
                        // The receiver is gone: the sender learns it from the other direction.
                        return Ok(());
                    }
                }
                Piece::End => return Ok(()),
                Piece::Broken => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
        Ok(())
    };
    let ended = tokio::select! {
        ended = carrying => ended,
        _ = half_closed.wait_for(|state| state.half_closes != half_closes) => {
            count(&way.counters.half_closed, 1);
            Ok(())
        }
    };
    if ended.is_ok() {
        // It fails when the receiver is gone.
        let _ = to.shutdown().await;
    }
    ended
}

/// As fast as the flow lets it now, and from one piece to the next.
async fn write_paced(to: &mut WriteHalf<'_>, bytes: &[u8], way: &Way) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let bytes_per_s = way.state.borrow().condition.bytes_per_s;
        let Some(bytes_per_s) = bytes_per_s else {
            return to.write_all(rest).await;
        };
        let piece_max = (f64::from(bytes_per_s) * PACE.as_secs_f64()).max(1.0);
        let (piece, after) = rest.split_at(rest.len().min(piece_max as usize));
        to.write_all(piece).await?;
        sleep(PACE.mul_f64(piece.len() as f64 / piece_max)).await;
        rest = after;
    }
    Ok(())
}

impl Way {
    fn count_read(&self, condition: &Condition, bytes: usize) {
        count(&self.counters.bytes, bytes);
        if condition.passage == Passage::Hold {
            count(&self.counters.bytes_held, bytes);
        }
        if condition.bytes_per_s.is_some() || !condition.delay.is_zero() {
            count(&self.counters.bytes_slowed, bytes);
        }
    }

    fn corrupt(&self, bytes: &mut [u8], draw: &mut Draw) {
        if draw.below(1000) < u64::from(self.state.borrow().condition.corrupt_per_1000) {
            let at = draw.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << draw.below(8);
            count(&self.counters.bytes_corrupted, 1);
        }
    }
}
