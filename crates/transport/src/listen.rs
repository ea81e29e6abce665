//! The connections that other nodes dial: their requests go to the handler, its answers back.
//!
//! In come strangers and peers; out goes what the handler says. Everything a peer can make this node hold is bounded:
//! strangers, connections, requests and their bytes, answers that it doesn't read.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use onceward_core::cluster::{NodeId, ShardId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::frame::{Frame, body_bytes_max};
use crate::handshake::{self, HandshakeError, Proofs};
use crate::limits::{CALL_TIMEOUT_MAX, INBOUND_BYTES_MAX, INBOUND_REQUESTS_MAX, UNAUTHENTICATED_MAX};
use crate::links::{Handler, Hello, Inbound, Lane, Peer, Refusal, RefusalCode};
use crate::notices::{Subject, clean};
use crate::outbox::{Answers, Held};
use crate::security::Security;
use crate::stream::{FrameReader, FrameWriter, ReadHalf, WriteHalf};
use crate::tcp::Shared;

/// Pause after the system could not accept a connection (out of file descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The connections that are served: one for each peer and lane, the newest.
#[derive(Default)]
pub(crate) struct Served {
    connections: Mutex<HashMap<(NodeId, Lane), CancellationToken>>,
}

impl Served {
    /// Enters a connection, and ends the one before it: the peer has given that up, though this side may not know yet.
    fn enter(&self, node: NodeId, lane: Lane, token: CancellationToken) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = connections.insert((node, lane), token) {
            before.cancel();
        }
    }

    pub fn close(&self, node: NodeId) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for lane in Lane::ALL {
            if let Some(token) = connections.remove(&(node, lane)) {
                token.cancel();
            }
        }
    }
}

/// Takes connections for as long as it is polled.
pub(crate) async fn listen(shared: Arc<Shared>, listener: TcpListener) {
    let strangers = Arc::new(Semaphore::new(UNAUTHENTICATED_MAX));
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("cannot accept a peer connection: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match strangers.clone().try_acquire_owned() {
            Ok(place) => drop(shared.tasks.spawn(welcome(shared.clone(), stream, address, place))),
            Err(_) if shared.notices.may_tell(Subject::Caller(address.ip())) => {
                tracing::warn!(peer = %address, "connection closed: too many whose peer has not proved who it is");
            }
            Err(_) => {}
        }
    }
}

async fn welcome(shared: Arc<Shared>, stream: TcpStream, address: SocketAddr, place: OwnedSemaphorePermit) {
    let own = shared.doorkeeper.hello();
    let entered = tokio::select! {
        entered = timeout(shared.timing.handshake, enter(&shared, stream)) => entered,
        () = shared.stopped.cancelled() => return,
    };
    drop(place);
    match entered.unwrap_or(Err(HandshakeError::TimedOut)) {
        Ok((hello, lane, read, write)) => {
            let reader = FrameReader::new(read, lane, shared.timing.dead_after);
            let reason = serve(&shared, &own, Peer { hello, address }, lane, reader, write).await;
            tracing::debug!(node = %hello.node, peer = %address, %lane, "connection over: {reason}");
        }
        Err(error) if shared.notices.may_tell(Subject::Caller(address.ip())) => {
            tracing::warn!(peer = %address, "peer connection refused: {error}");
        }
        Err(_) => {}
    }
}

async fn enter(shared: &Shared, mut stream: TcpStream) -> Result<(Hello, Lane, ReadHalf, WriteHalf), HandshakeError> {
    stream.set_nodelay(true)?;
    handshake::preamble_listening(&mut stream, &shared.security).await?;
    let doorkeeper = &*shared.doorkeeper;
    match &shared.security {
        Security::Hmac { secret } => {
            let (hello, lane) = handshake::accept(&mut stream, &Proofs::Secret(secret), doorkeeper).await?;
            let (read, write) = stream.into_split();
            Ok((hello, lane, Box::new(read), Box::new(write)))
        }
        Security::Mtls(tls) => {
            let mut stream = tls.acceptor.accept(stream).await?;
            let certificate = handshake::certificate(stream.get_ref().1.peer_certificates())?;
            let (hello, lane) = handshake::accept(&mut stream, &Proofs::Certificate(certificate), doorkeeper).await?;
            let (read, write) = tokio::io::split(stream);
            Ok((hello, lane, Box::new(read), Box::new(write)))
        }
    }
}

/// Serves a peer until the connection ends; says why it did.
async fn serve(shared: &Shared, own: &Hello, peer: Peer, lane: Lane, reader: FrameReader, half: WriteHalf) -> String {
    let token = shared.stopped.child_token();
    shared.served.enter(peer.hello.node, lane, token.clone());
    if !shared.still_holds(own, &peer.hello) {
        token.cancel();
    }
    let answers = Arc::new(Answers::default());
    let writer = FrameWriter { half, outbox: answers.clone(), ping_every: None, dead_after: shared.timing.dead_after };
    let mut writer = shared.tasks.spawn(writer.run());
    let service = Service {
        peer,
        lane,
        handler: shared.handler.clone(),
        answers: answers.clone(),
        requests: Arc::new(Semaphore::new(INBOUND_REQUESTS_MAX)),
        bytes: Arc::new(Semaphore::new(INBOUND_BYTES_MAX)),
    };
    let reason = tokio::select! {
        reason = service.read(reader) => reason,
        ended = &mut writer => match ended {
            Ok(Ok(())) if answers.overflowed() => "it doesn't read its answers".to_owned(),
            Ok(Ok(())) => "closed".to_owned(),
            Ok(Err(reason)) => reason,
            Err(panicked) => panicked.to_string(),
        },
        () = token.cancelled() => "replaced by a newer one, or closed by this node".to_owned(),
    };
    // What is ready still goes out, within a bound of its own.
    answers.close();
    token.cancel();
    reason
}

struct Service {
    peer: Peer,
    lane: Lane,
    handler: Arc<dyn Handler>,
    answers: Arc<Answers>,
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Service {
    async fn read(&self, mut reader: FrameReader) -> String {
        loop {
            self.answers.room().await;
            match reader.next().await {
                Ok(Frame::Request { id, method, shard, timeout_ms, body }) => {
                    self.take(id, method, shard, timeout_ms, body);
                }
                Ok(Frame::Ping) => self.answers.push(Frame::Pong, None),
                Ok(Frame::Answer { .. } | Frame::Refused { .. } | Frame::Lost { .. } | Frame::Pong) => {
                    return "it answered on a connection that it dialled".to_owned();
                }
                Err(reason) => return reason,
            }
        }
    }

    fn take(&self, id: u64, method: u8, shard: ShardId, timeout_ms: u32, body: Bytes) {
        let Some(held) = self.hold(body.len()) else {
            let message = Bytes::from_static(b"too many requests are being handled");
            self.answers.push(Frame::Refused { id, code: RefusalCode::Overloaded, message }, None);
            return;
        };
        let timeout = Duration::from_millis(timeout_ms.into()).min(CALL_TIMEOUT_MAX);
        let deadline = Instant::now() + timeout;
        let inbound = Inbound { from: self.peer, lane: self.lane, method, shard, body, deadline };
        let reply = Reply { id, lane: self.lane, answers: self.answers.clone(), held: Some(held) };
        tokio::spawn(handle(self.handler.clone(), inbound, reply));
    }

    fn hold(&self, body_bytes: usize) -> Option<Held> {
        let request = self.requests.clone().try_acquire_owned().ok()?;
        let bytes = u32::try_from(body_bytes).ok()?;
        let bytes = self.bytes.clone().try_acquire_many_owned(bytes).ok()?;
        Some(Held { _request: request, _bytes: bytes })
    }
}

async fn handle(handler: Arc<dyn Handler>, inbound: Inbound, reply: Reply) {
    let deadline = inbound.deadline;
    match timeout_at(deadline, handler.handle(inbound)).await {
        Ok(Ok(body)) => reply.answer(body),
        Ok(Err(refusal)) => reply.refuse(refusal),
        Err(_) => reply.forgo(),
    }
}

/// The duty to say something about a request, and its share of the connection's bounds until a writer takes that.
struct Reply {
    id: u64,
    lane: Lane,
    answers: Arc<Answers>,
    /// None once something was said.
    held: Option<Held>,
}

impl Reply {
    fn answer(mut self, body: Bytes) {
        if body.len() > body_bytes_max(self.lane) {
            tracing::error!(lane = %self.lane, "an answer of {} bytes is too long for its lane", body.len());
            self.say(Frame::Lost { id: self.id, message: Bytes::from_static(b"the answer is too long for its lane") });
        } else {
            self.say(Frame::Answer { id: self.id, body });
        }
    }

    fn refuse(mut self, refusal: Refusal) {
        let message = clean(&refusal.message).into();
        self.say(Frame::Refused { id: self.id, code: refusal.code, message });
    }

    /// Says nothing: nobody waits any longer.
    fn forgo(mut self) {
        self.held = None;
    }

    fn say(&mut self, frame: Frame) {
        let held = self.held.take();
        self.answers.push(frame, held);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.say(Frame::Lost { id: self.id, message: Bytes::from_static(b"its handler failed") });
        }
    }
}
