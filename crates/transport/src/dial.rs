//! The connections that this node dials for its own calls: one task for each peer and lane keeps one up.
//!
//! In go calls and a peer's address, out come outcomes. A connection that ends is dialled again after a growing pause;
//! the snapshot lane is dialled only when a call asks for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use onceward_core::cluster::NodeId;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::frame::{Frame, body_bytes_max};
use crate::handshake::{self, HandshakeError, Proofs};
use crate::limits::CALL_TIMEOUT_MAX;
use crate::links::{CallError, Hello, Lane, Refusal, Request};
use crate::notices::{Subject, clean};
use crate::outbox::Calls;
use crate::security::{Security, certificate_name};
use crate::stream::{FrameReader, FrameWriter, ReadHalf, WriteHalf};
use crate::tcp::Shared;

/// A peer as this node dials it.
pub(crate) struct PeerLinks {
    node: NodeId,
    address: Mutex<String>,
    lanes: [LaneLink; 3],
    /// What it said when it last refused this node; none once it admitted it.
    refusal: Mutex<Option<String>>,
}

struct LaneLink {
    lane: Lane,
    state: watch::Sender<LinkState>,
    /// Told by calls that find the snapshot lane down.
    wanted: Notify,
}

#[derive(Clone)]
enum LinkState {
    Down { reason: Arc<str>, failures: u64 },
    Up { peer: Hello, calls: Arc<Calls> },
}

impl PeerLinks {
    pub fn new(node: NodeId, address: String) -> PeerLinks {
        let lanes = Lane::ALL.map(|lane| {
            let reason = format!("not yet connected to node {node}").into();
            LaneLink { lane, state: watch::Sender::new(LinkState::Down { reason, failures: 0 }), wanted: Notify::new() }
        });
        PeerLinks { node, address: Mutex::new(address), lanes, refusal: Mutex::new(None) }
    }

    fn link(&self, lane: Lane) -> &LaneLink {
        let [data, control, snapshot] = &self.lanes;
        match lane {
            Lane::Data => data,
            Lane::Control => control,
            Lane::Snapshot => snapshot,
        }
    }

    pub fn is_up(&self, lane: Lane) -> bool {
        self.link(lane).calls().is_ok_and(|calls| calls.is_open())
    }

    pub fn hello(&self) -> Option<Hello> {
        match &*self.link(Lane::Data).state.borrow() {
            LinkState::Up { peer, .. } => Some(*peer),
            LinkState::Down { .. } => None,
        }
    }

    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_refusal(&self, text: Option<String>) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Dials another address from now on.
    pub fn set_address(&self, address: String) {
        let before = std::mem::replace(&mut *self.address.lock().unwrap_or_else(PoisonError::into_inner), address);
        if before != self.address() {
            self.close("its address changed");
        }
    }

    /// Ends the connections that are up; they are dialled again.
    pub fn close(&self, reason: &str) {
        for link in &self.lanes {
            if let Ok(calls) = link.calls() {
                calls.close(reason);
            }
        }
    }

    pub async fn call(self: Arc<Self>, request: Request) -> Result<Bytes, CallError> {
        let deadline = Instant::now() + request.timeout.min(CALL_TIMEOUT_MAX);
        let Request { lane, method, shard, body, .. } = request;
        let max = body_bytes_max(lane);
        if body.len() > max {
            let text = format!("a body of {} bytes is over the {max} of the {lane} lane", body.len());
            return Err(CallError::NotSent(text));
        }
        let calls = match lane {
            Lane::Data | Lane::Control => self.link(lane).calls(),
            Lane::Snapshot => self.link(lane).calls_on_demand(deadline).await,
        };
        let calls = calls.map_err(|reason| CallError::NotSent(reason.to_string()))?;
        calls.call(method, shard, body, deadline).await
    }
}

impl LaneLink {
    fn calls(&self) -> Result<Arc<Calls>, Arc<str>> {
        match &*self.state.borrow() {
            LinkState::Up { calls, .. } => Ok(calls.clone()),
            LinkState::Down { reason, .. } => Err(reason.clone()),
        }
    }

    /// Has the lane dialled if it is down, and waits for that attempt.
    async fn calls_on_demand(&self, deadline: Instant) -> Result<Arc<Calls>, Arc<str>> {
        let mut state = self.state.subscribe();
        let failures_before = match &*state.borrow_and_update() {
            LinkState::Up { calls, .. } if calls.is_open() => return Ok(calls.clone()),
            // It is about to come down, and then begins to count anew.
            LinkState::Up { .. } => 0,
            LinkState::Down { failures, .. } => *failures,
        };
        self.wanted.notify_one();
        let settled = state.wait_for(|state| match state {
            LinkState::Up { calls, .. } => calls.is_open(),
            LinkState::Down { failures, .. } => *failures > failures_before,
        });
        let late = || Arc::from("the snapshot lane did not come up in time");
        let settled = timeout_at(deadline, settled).await.map_err(|_| late())?;
        match &*settled.map_err(|_| late())? {
            LinkState::Up { calls, .. } => Ok(calls.clone()),
            LinkState::Down { reason, .. } => Err(reason.clone()),
        }
    }

    fn down(&self, reason: &str, failed: bool) {
        self.state.send_modify(|state| {
            let failures = match state {
                LinkState::Down { failures, .. } => *failures,
                LinkState::Up { .. } => 0,
            };
            *state = LinkState::Down { reason: reason.into(), failures: failures + u64::from(failed) };
        });
    }
}

/// Keeps one lane to a peer up for as long as it is polled.
pub(crate) async fn keep(shared: Arc<Shared>, peer: Arc<PeerLinks>, lane: Lane) {
    let link = peer.link(lane);
    let timing = shared.timing;
    let mut backoff = timing.backoff_min;
    loop {
        if lane == Lane::Snapshot {
            link.wanted.notified().await;
        }
        let began = Instant::now();
        let own = shared.doorkeeper.hello();
        match connect(&shared, &peer, lane).await {
            Ok((hello, reader, writer)) => {
                peer.set_refusal(None);
                let reason = run(&shared, link, &own, hello, reader, writer).await;
                tracing::debug!(node = %peer.node, %lane, "connection over: {reason}");
            }
            Err(error) => failed(&shared, &peer, link, &error),
        }
        // A connection that held starts the pauses over; one that ends at once is treated as a failure.
        if began.elapsed() > timing.backoff_max + timing.handshake {
            backoff = timing.backoff_min;
        }
        sleep(backoff - jitter(backoff / 4)).await;
        backoff = (backoff * 2).min(timing.backoff_max);
    }
}

fn failed(shared: &Shared, peer: &PeerLinks, link: &LaneLink, error: &HandshakeError) {
    let (node, address) = (peer.node, peer.address());
    link.down(&format!("no connection to node {node}: {}", clean(&error.to_string())), true);
    match error {
        HandshakeError::Io(_) | HandshakeError::TimedOut => {
            if shared.notices.may_tell(Subject::Unreachable(node)) {
                tracing::info!(%node, peer = %address, "cannot reach peer: {error}");
            }
            return;
        }
        HandshakeError::RefusedByPeer(text) => peer.set_refusal(Some(text.clone())),
        HandshakeError::Foreign(_) | HandshakeError::Unproven(_) | HandshakeError::RefusedHere { .. } => {}
    }
    if shared.notices.may_tell(Subject::Refused(node)) {
        tracing::warn!(%node, peer = %address, "no connection with peer: {error}");
    }
}

async fn connect(
    shared: &Shared,
    peer: &PeerLinks,
    lane: Lane,
) -> Result<(Hello, FrameReader, WriteHalf), HandshakeError> {
    let attempt = async {
        let mut stream = TcpStream::connect(peer.address()).await?;
        stream.set_nodelay(true)?;
        handshake::preamble_dialling(&mut stream, &shared.security).await?;
        let doorkeeper = &*shared.doorkeeper;
        match &shared.security {
            Security::Hmac { secret } => {
                let proofs = Proofs::Secret(secret);
                let hello = handshake::dial(&mut stream, &proofs, doorkeeper, peer.node, lane).await?;
                let (read, write) = stream.into_split();
                Ok((hello, Box::new(read) as ReadHalf, Box::new(write) as WriteHalf))
            }
            Security::Mtls(tls) => {
                let mut stream = tls.connector.connect(certificate_name(peer.node), stream).await?;
                let certificate = handshake::certificate(stream.get_ref().1.peer_certificates())?;
                let proofs = Proofs::Certificate(certificate);
                let hello = handshake::dial(&mut stream, &proofs, doorkeeper, peer.node, lane).await?;
                let (read, write) = tokio::io::split(stream);
                Ok((hello, Box::new(read) as ReadHalf, Box::new(write) as WriteHalf))
            }
        }
    };
    let (hello, read, write) =
        timeout(shared.timing.handshake, attempt).await.unwrap_or(Err(HandshakeError::TimedOut))?;
    Ok((hello, FrameReader::new(read, lane, shared.timing.dead_after), write))
}

/// Carries calls until the connection ends; says why it did.
async fn run(
    shared: &Shared,
    link: &LaneLink,
    own: &Hello,
    peer: Hello,
    reader: FrameReader,
    half: WriteHalf,
) -> String {
    let calls = Arc::new(Calls::default());
    let timing = shared.timing;
    let writer =
        FrameWriter { half, outbox: calls.clone(), ping_every: Some(timing.ping_every), dead_after: timing.dead_after };
    let mut writer = shared.tasks.spawn(writer.run());
    // Also when this future is dropped, nobody may go on waiting.
    let up = Up { link, calls: &calls };
    link.state.send_replace(LinkState::Up { peer, calls: calls.clone() });
    if !shared.still_holds(own, &peer) {
        calls.close("overtaken by a change of this node");
    }
    let idle = match link.lane {
        Lane::Snapshot => Some(timing.snapshot_idle),
        Lane::Data | Lane::Control => None,
    };
    let reason = tokio::select! {
        reason = read(reader, &calls) => reason,
        ended = &mut writer => match ended {
            Ok(Ok(())) => "closed by this node".to_owned(),
            Ok(Err(reason)) => reason,
            Err(panicked) => panicked.to_string(),
        },
        () = idle_for(idle, &calls) => "idle".to_owned(),
    };
    let reason = format!("the connection to node {} ended: {reason}", peer.node);
    calls.close(&reason);
    link.down(&reason, false);
    drop(up);
    reason
}

struct Up<'a> {
    link: &'a LaneLink,
    calls: &'a Calls,
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        const STOPPED: &str = "this node's links are stopped";
        self.calls.close(STOPPED);
        if self.link.calls().is_ok() {
            self.link.down(STOPPED, true);
        }
    }
}

/// Hands out what the peer answers, until the connection ends; says why it did.
async fn read(mut reader: FrameReader, calls: &Calls) -> String {
    loop {
        match reader.next().await {
            Ok(Frame::Answer { id, body }) => calls.settle(id, Ok(body)),
            Ok(Frame::Refused { id, code, message }) => {
                let Refusal { code, message } = Refusal { code, message: text(&message) };
                calls.settle(id, Err(CallError::Refused { code, message }));
            }
            Ok(Frame::Lost { id, message }) => calls.settle(id, Err(CallError::Lost(text(&message)))),
            Ok(Frame::Pong) => {}
            Ok(Frame::Request { .. } | Frame::Ping) => {
                return "it called back on a connection that it serves".to_owned();
            }
            Err(reason) => return reason,
        }
    }
}

fn text(message: &[u8]) -> String {
    clean(&String::from_utf8_lossy(message))
}

/// Ends once there was no call for this long; never without a limit.
async fn idle_for(limit: Option<Duration>, calls: &Calls) {
    let Some(limit) = limit else { return std::future::pending().await };
    let mut count = calls.count();
    loop {
        sleep(limit).await;
        let now = calls.count();
        if now == count && calls.close_if_idle("idle") {
            return;
        }
        count = now;
    }
}

/// A random part of `most`, so that peers that lost each other don't dial in step.
fn jitter(most: Duration) -> Duration {
    // Without randomness the pauses are only less even.
    let random = getrandom::u32().unwrap_or_default();
    most.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
#[path = "dial_tests.rs"]
mod tests;
