//! Calls to a peer that authenticates rightly and then behaves as each test says.

use futures::future::BoxFuture;
use onceward_core::cluster::{Generation, ShardId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::limits::UNAUTHENTICATED_MAX;
use crate::links::{Doorkeeper, Handler, Inbound, Links, NodeLinks as _, PROTOCOL_VERSION};
use crate::outbox::Answers;
use crate::tcp::{TcpConfig, TcpLinks, Timing};

const SECRET: &[u8] = b"a secret of the cluster";
const PATIENCE: Duration = Duration::from_secs(30);

struct Door(u16);

impl Doorkeeper for Door {
    fn hello(&self) -> Hello {
        let (node, generation) = (NodeId(self.0), Generation(1));
        Hello { version: PROTOCOL_VERSION, cluster_id: Some(1), node, generation, incarnation: 1 }
    }

    fn admit(&self, _: &Hello) -> Result<(), String> {
        Ok(())
    }
}

/// Answers with the request's body.
struct Echo;

impl Handler for Echo {
    fn handle(&self, request: Inbound) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        Box::pin(async move { Ok(request.body) })
    }
}

async fn node(number: u16, peers: &[(u16, String)], timing: Timing) -> Arc<TcpLinks> {
    let config = TcpConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        peers: peers.iter().map(|(node, address)| (NodeId(*node), address.clone())).collect(),
        security: Security::Hmac { secret: SECRET.to_vec() },
        timing,
    };
    TcpLinks::start(config, Arc::new(Door(number)), Arc::new(Echo)).await.unwrap()
}

/// A peer (node 2) of which only the handshake is real: hands out each lane's connection as it comes up.
async fn fake_peer() -> (String, mpsc::Receiver<(Lane, TcpStream)>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let security = Security::Hmac { secret: SECRET.to_vec() };
        while let Ok((mut stream, _)) = listener.accept().await {
            handshake::preamble_listening(&mut stream, &security).await.unwrap();
            let (_, lane) = handshake::accept(&mut stream, &Proofs::Secret(SECRET), &Door(2)).await.unwrap();
            if sender.send((lane, stream)).await.is_err() {
                return;
            }
        }
    });
    (address, receiver)
}

/// The first connection of each eager lane.
async fn lanes(peer: &mut mpsc::Receiver<(Lane, TcpStream)>) -> (TcpStream, TcpStream) {
    let (first, second) = (peer.recv().await.unwrap(), peer.recv().await.unwrap());
    assert_ne!(first.0, second.0);
    if first.0 == Lane::Data { (first.1, second.1) } else { (second.1, first.1) }
}

/// Serves a connection properly, by echo.
fn echo(stream: TcpStream, lane: Lane) {
    let (read, write) = stream.into_split();
    let outbox = Arc::new(Answers::default());
    let writer = FrameWriter { half: Box::new(write), outbox: outbox.clone(), ping_every: None, dead_after: PATIENCE };
    tokio::spawn(writer.run());
    tokio::spawn(async move {
        let mut reader = FrameReader::new(Box::new(read), lane, PATIENCE);
        while let Ok(frame) = reader.next().await {
            match frame {
                Frame::Request { id, body, .. } => outbox.push(Frame::Answer { id, body }, None),
                Frame::Ping => outbox.push(Frame::Pong, None),
                other => panic!("a peer that dials sent {other:?}"),
            }
        }
    });
}

fn request(lane: Lane, body: Vec<u8>) -> Request {
    Request { lane, method: 1, shard: ShardId(0), body: body.into(), timeout: PATIENCE }
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_lane_passes_a_clogged_data_lane_and_a_break_tells_sent_from_not_sent() {
    let (address, mut peer) = fake_peer().await;
    let links = node(1, &[(2, address)], Timing::default()).await;
    let (clogged, control) = lanes(&mut peer).await;
    echo(control, Lane::Control);
    eventually("connected", || links.connected(NodeId(2))).await;

    // More than the sockets hold, less than the queue does: the first is on its way, the last waits.
    let body = || request(Lane::Data, vec![7; 8 << 20]);
    let mut calls: Vec<_> = (0..4).map(|_| links.call(NodeId(2), body())).collect();
    for call in &mut calls {
        assert!(futures::poll!(call).is_pending());
        tokio::task::yield_now().await;
    }
    // The first byte at the peer's end: the first call was handed to the socket.
    clogged.peek(&mut [0]).await.unwrap();
    for number in 0..100_u8 {
        assert_eq!(links.call(NodeId(2), request(Lane::Control, vec![number])).await, Ok(vec![number].into()));
    }
    drop(clogged);
    let outcomes = futures::future::join_all(calls).await;
    assert!(matches!(outcomes[0], Err(CallError::Lost(_))), "{:?}", outcomes[0]);
    assert!(matches!(outcomes[3], Err(CallError::NotSent(_))), "{:?}", outcomes[3]);
    links.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_falls_silent_is_asked_for_a_sign_of_life_and_then_given_up() {
    let (address, mut peer) = fake_peer().await;
    let brisk = Duration::from_millis(50);
    let timing = Timing { ping_every: brisk, dead_after: 4 * brisk, ..Timing::default() };
    let links = node(1, &[(2, address)], timing).await;
    let (mut data, _control) = lanes(&mut peer).await;
    let mut received = bytes::BytesMut::new();
    Frame::Ping.encode_head(&mut received);
    let mut ping = vec![0; received.len()];
    data.read_exact(&mut ping).await.unwrap();
    assert_eq!(ping, received);
    // Nothing is answered. It dials again, and the old connection is over.
    peer.recv().await.unwrap();
    data.read_to_end(&mut Vec::new()).await.unwrap();
    links.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_snapshot_lane_is_dialled_by_a_call_and_closed_when_idle() {
    let (address, mut peer) = fake_peer().await;
    let timing = Timing { snapshot_idle: Duration::from_millis(50), ..Timing::default() };
    let links = node(1, &[(2, address)], timing).await;
    let (_data, _control) = lanes(&mut peer).await;
    for _ in 0..2 {
        let call = tokio::spawn(links.call(NodeId(2), request(Lane::Snapshot, vec![1])));
        let (lane, mut stream) = peer.recv().await.unwrap();
        assert_eq!(lane, Lane::Snapshot);
        let mut frame = [0; 16];
        let mut received = bytes::BytesMut::new();
        let decoder = crate::frame::FrameDecoder::new(lane);
        let id = loop {
            let read = stream.read(&mut frame).await.unwrap();
            received.extend_from_slice(&frame[..read]);
            if let Some(Frame::Request { id, .. }) = decoder.next(&mut received).unwrap() {
                break id;
            }
        };
        let mut answer = bytes::BytesMut::new();
        Frame::Answer { id, body: Bytes::new() }.encode_head(&mut answer);
        stream.write_all(&answer).await.unwrap();
        assert_eq!(call.await.unwrap(), Ok(Bytes::new()));
        assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap(), 0, "closed without another frame");
    }
    links.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_before_and_after_the_handshake_harms_nobody_else() {
    let one = node(1, &[], Timing::default()).await;
    let address = one.local_addr().to_string();
    let two = node(2, &[(1, address.clone())], Timing::default()).await;
    eventually("connected", || two.connected(NodeId(1))).await;

    for seed in 0..200_u64 {
        let mut noise: Vec<u8> =
            (0..64_u64).map(|at| ((seed * 0x9e37_79b9 + at * at * 0x85eb_ca6b) >> 7) as u8).collect();
        let mut stream = TcpStream::connect(&address).await.unwrap();
        match seed % 4 {
            0 => {}
            1 => noise[..8].copy_from_slice(b"1WRD\0\x01\x01\0"),
            2 => noise[..12].copy_from_slice(b"1WRD\0\x01\x01\0\xff\xff\xff\xff"),
            _ => {
                let security = Security::Hmac { secret: SECRET.to_vec() };
                handshake::preamble_dialling(&mut stream, &security).await.unwrap();
                let proofs = Proofs::Secret(SECRET);
                handshake::dial(&mut stream, &proofs, &Door(3), NodeId(1), Lane::Data).await.unwrap();
            }
        }
        // Either side may be the first to hang up.
        let _ = stream.write_all(&noise).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    assert_eq!(two.call(NodeId(1), request(Lane::Data, vec![5])).await, Ok(vec![5].into()));
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_who_say_nothing_are_bounded_and_cut_off() {
    let timing = Timing { handshake: Duration::from_millis(300), ..Timing::default() };
    let one = node(1, &[], timing).await;
    let address = one.local_addr().to_string();
    let mut silent = Vec::new();
    for _ in 0..UNAUTHENTICATED_MAX + 8 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    for mut stream in silent {
        // Reset or closed: over, either way.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.expect("cut off");
    }
    let two = node(2, &[(1, address)], Timing::default()).await;
    eventually("connected", || two.connected(NodeId(1))).await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_settles_every_call_as_what_it_is() {
    let (address, mut peer) = fake_peer().await;
    let links = node(1, &[(2, address)], Timing::default()).await;
    let (data, _control) = lanes(&mut peer).await;
    eventually("connected", || links.connected(NodeId(2))).await;
    let sent = tokio::spawn(links.call(NodeId(2), request(Lane::Data, vec![1])));
    data.peek(&mut [0]).await.unwrap();
    links.stop().await;
    assert!(matches!(sent.await.unwrap(), Err(CallError::Lost(_))));
    let after = links.call(NodeId(2), request(Lane::Data, vec![1])).await;
    assert!(matches!(after, Err(CallError::NotSent(_))));
}
