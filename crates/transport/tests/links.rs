//! Whole nodes' links over loopback: what a caller, a handler and a doorkeeper see.

// clippy.toml allows it in test functions only, and here everything serves them.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use onceward_core::cluster::{Generation, NodeId, ShardId};
use onceward_transport::limits::INBOUND_REQUESTS_MAX;
use onceward_transport::{
    CallError, Doorkeeper, Handler, Hello, Inbound, Lane, Links, NodeLinks as _, PROTOCOL_VERSION, Refusal,
    RefusalCode, Request, Security, TcpConfig, TcpLinks, Timing, Tls, TransportError,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::sync::Notify;

const PATIENCE: Duration = Duration::from_secs(30);

/// Admits who has its own cluster id, and whatever `also` says.
struct Door {
    hello: Hello,
    also: Mutex<Result<(), String>>,
}

impl Door {
    fn new(node: u16, cluster: u128, incarnation: u128) -> Arc<Door> {
        let (node, generation) = (NodeId(node), Generation(1));
        let hello = Hello { version: PROTOCOL_VERSION, cluster_id: Some(cluster), node, generation, incarnation };
        Arc::new(Door { hello, also: Mutex::new(Ok(())) })
    }
}

impl Doorkeeper for Door {
    fn hello(&self) -> Hello {
        self.hello
    }

    fn admit(&self, peer: &Hello) -> Result<(), String> {
        if peer.cluster_id != self.hello.cluster_id {
            return Err("it belongs to another cluster".to_owned());
        }
        self.also.lock().unwrap().clone()
    }
}

/// Becomes the next generation while its first handshake is under way.
struct Changing(Mutex<Hello>);

impl Changing {
    fn new(node: u16) -> Arc<Changing> {
        Arc::new(Changing(Mutex::new(Door::new(node, 9, 7).hello)))
    }
}

impl Doorkeeper for Changing {
    fn hello(&self) -> Hello {
        *self.0.lock().unwrap()
    }

    fn admit(&self, _: &Hello) -> Result<(), String> {
        self.0.lock().unwrap().generation = Generation(2);
        Ok(())
    }
}

const ECHO: u8 = 1;
const REFUSE: u8 = 2;
const PANIC: u8 = 3;
const NEVER: u8 = 4;
const HOLD: u8 = 5;

#[derive(Default)]
struct Methods {
    seen: Mutex<Option<Inbound>>,
    held: AtomicUsize,
    release: Notify,
}

struct Answering(Arc<Methods>);

impl Handler for Answering {
    fn handle(&self, request: Inbound) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        let methods = self.0.clone();
        Box::pin(async move {
            *methods.seen.lock().unwrap() = Some(request.clone());
            match request.method {
                ECHO => Ok(request.body),
                REFUSE => Err(Refusal::new(RefusalCode::WrongMember, "moved")),
                PANIC => panic!("asked to"),
                NEVER => std::future::pending().await,
                HOLD => {
                    let released = methods.release.notified();
                    methods.held.fetch_add(1, Ordering::SeqCst);
                    released.await;
                    Ok(request.body)
                }
                other => unreachable!("method {other}"),
            }
        })
    }
}

fn secret(text: &str) -> Security {
    Security::Hmac { secret: text.as_bytes().to_vec() }
}

const SECRET: &str = "a secret of the cluster";

async fn start<D: Doorkeeper>(
    door: &Arc<D>,
    methods: &Arc<Methods>,
    security: Security,
    listen: SocketAddr,
    peers: &[(u16, SocketAddr)],
) -> Arc<TcpLinks> {
    let peers: BTreeMap<_, _> = peers.iter().map(|(node, address)| (NodeId(*node), address.to_string())).collect();
    let config = TcpConfig { listen, peers, security, timing: Timing::default() };
    TcpLinks::start(config, door.clone(), Arc::new(Answering(methods.clone()))).await.unwrap()
}

fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Node 1 dials node 2, which serves.
struct Pair {
    one: Arc<TcpLinks>,
    two: Arc<TcpLinks>,
    door_two: Arc<Door>,
    methods: Arc<Methods>,
}

async fn pair_of(door_one: Arc<Door>, door_two: Arc<Door>, security_one: Security, security_two: Security) -> Pair {
    let methods = Arc::new(Methods::default());
    let two = start(&door_two, &methods, security_two, any_port(), &[]).await;
    let one = start(&door_one, &Arc::default(), security_one, any_port(), &[(2, two.local_addr())]).await;
    Pair { one, two, door_two, methods }
}

async fn connected_pair() -> Pair {
    let pair = pair_of(Door::new(1, 9, 1), Door::new(2, 9, 2), secret(SECRET), secret(SECRET)).await;
    eventually("connected", || pair.one.connected(NodeId(2))).await;
    pair
}

impl Pair {
    async fn call(&self, lane: Lane, method: u8, body: &'static [u8]) -> Result<Bytes, CallError> {
        self.one.call(NodeId(2), request(lane, method, body, PATIENCE)).await
    }

    async fn stop(self) {
        self.one.stop().await;
        self.two.stop().await;
    }
}

fn request(lane: Lane, method: u8, body: &'static [u8], timeout: Duration) -> Request {
    Request { lane, method, shard: ShardId(7), body: Bytes::from_static(body), timeout }
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_answered_on_every_lane_and_the_handler_knows_who_called() {
    let pair = connected_pair().await;
    for lane in Lane::ALL {
        assert_eq!(pair.call(lane, ECHO, b"hi").await, Ok(Bytes::from_static(b"hi")));
        let seen = pair.methods.seen.lock().unwrap().take().unwrap();
        assert_eq!((seen.lane, seen.method, seen.shard), (lane, ECHO, ShardId(7)));
        assert_eq!((seen.from.hello.node, seen.from.hello.incarnation), (NodeId(1), 1));
    }
    assert_eq!(pair.one.peer_hello(NodeId(2)), Some(pair.door_two.hello));
    assert!(matches!(
        pair.one.call(NodeId(5), request(Lane::Data, ECHO, b"", PATIENCE)).await,
        Err(CallError::NotSent(_))
    ));
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_up_to_the_bound_of_their_lane_pass_and_longer_ones_never_leave() {
    use onceward_transport::frame::body_bytes_max;
    let pair = connected_pair().await;
    for lane in Lane::ALL {
        let mut call = request(lane, ECHO, b"", PATIENCE);
        call.body = vec![3; body_bytes_max(lane)].into();
        assert_eq!(pair.one.call(NodeId(2), call.clone()).await, Ok(call.body));
        call.body = vec![3; body_bytes_max(lane) + 1].into();
        assert!(matches!(pair.one.call(NodeId(2), call).await, Err(CallError::NotSent(_))));
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_definite_and_a_dead_handler_is_unknown() {
    let pair = connected_pair().await;
    let refused = CallError::Refused { code: RefusalCode::WrongMember, message: "moved".to_owned() };
    assert_eq!(pair.call(Lane::Data, REFUSE, b"").await, Err(refused));
    assert!(matches!(pair.call(Lane::Data, PANIC, b"").await, Err(CallError::Lost(_))));
    let short = request(Lane::Data, NEVER, b"", Duration::from_millis(200));
    assert_eq!(pair.one.call(NodeId(2), short).await, Err(CallError::TimedOut));
    assert_eq!(pair.call(Lane::Data, ECHO, b"on").await, Ok(Bytes::from_static(b"on")));
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_are_handled_at_once_are_refused_as_overload() {
    let pair = connected_pair().await;
    let held: Vec<_> = (0..INBOUND_REQUESTS_MAX)
        .map(|_| tokio::spawn(pair.one.call(NodeId(2), request(Lane::Data, HOLD, b"", PATIENCE))))
        .collect();
    eventually("all held", || pair.methods.held.load(Ordering::SeqCst) == INBOUND_REQUESTS_MAX).await;
    let refused = pair.call(Lane::Data, ECHO, b"").await;
    assert!(matches!(refused, Err(CallError::Refused { code: RefusalCode::Overloaded, .. })), "{refused:?}");
    assert_eq!(pair.call(Lane::Control, ECHO, b"").await, Ok(Bytes::new()), "each lane has its own bound");
    pair.methods.release.notify_waiters();
    for outcome in join_all(held).await {
        assert_eq!(outcome.unwrap(), Ok(Bytes::new()));
    }
    assert_eq!(pair.call(Lane::Data, ECHO, b"").await, Ok(Bytes::new()));
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_keeps_a_node_out_and_it_is_told_so() {
    let (one, two) = (Door::new(1, 9, 1), Door::new(2, 9, 2));
    let pair = pair_of(one, two, secret(SECRET), secret("a secret of somebody else")).await;
    eventually("refused", || pair.one.last_refusal(NodeId(2)).is_some()).await;
    assert!(pair.one.last_refusal(NodeId(2)).unwrap().contains("secrets of the two nodes differ"));
    assert!(!pair.one.connected(NodeId(2)) && pair.one.peer_hello(NodeId(2)).is_none());
    let not_sent = pair.call(Lane::Snapshot, ECHO, b"").await;
    assert!(matches!(not_sent, Err(CallError::NotSent(text)) if text.contains("secrets")));
    pair.stop().await;
}

#[tokio::test]
async fn a_secret_that_could_be_guessed_is_refused_at_the_start() {
    let (listen, peers, security) = (any_port(), BTreeMap::new(), secret("short"));
    let config = TcpConfig { listen, peers, security, timing: Timing::default() };
    let started = TcpLinks::start(config, Door::new(1, 9, 1), Arc::new(Answering(Arc::default()))).await;
    assert!(matches!(started, Err(TransportError::SecretTooShort { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_cluster_is_told_why_it_is_kept_out() {
    let pair = pair_of(Door::new(1, 8, 1), Door::new(2, 9, 2), secret(SECRET), secret(SECRET)).await;
    let reason = || pair.one.last_refusal(NodeId(2));
    eventually("refused", || reason().is_some()).await;
    assert_eq!(reason().unwrap(), "it belongs to another cluster");
    assert!(!pair.one.connected(NodeId(2)));
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doorkeeper_may_change_its_mind_in_both_directions() {
    let pair = connected_pair().await;
    *pair.door_two.also.lock().unwrap() = Err("replaced".to_owned());
    assert_eq!(pair.call(Lane::Data, ECHO, b"").await, Ok(Bytes::new()), "who is in stays in until dropped");
    pair.two.drop_connections_of(NodeId(1));
    eventually("kept out", || pair.one.last_refusal(NodeId(2)).as_deref() == Some("replaced")).await;
    eventually("all lanes down", || !pair.one.connected(NodeId(2))).await;
    *pair.door_two.also.lock().unwrap() = Ok(());
    eventually("back", || pair.one.connected(NodeId(2))).await;
    assert_eq!(pair.one.last_refusal(NodeId(2)), None);
    assert_eq!(pair.call(Lane::Data, ECHO, b"").await, Ok(Bytes::new()));
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_resume_when_a_peer_restarts_and_when_it_moves() {
    let pair = connected_pair().await;
    let address = pair.two.local_addr();
    pair.two.stop().await;
    // Its data lane: `connected` is already false when only the other one is down.
    eventually("gone", || pair.one.peer_hello(NodeId(2)).is_none()).await;
    let gone = pair.call(Lane::Data, ECHO, b"").await;
    assert!(matches!(gone, Err(CallError::NotSent(_))), "{gone:?}");

    let again = start(&Door::new(2, 9, 22), &Arc::default(), secret(SECRET), address, &[]).await;
    eventually("back", || pair.one.connected(NodeId(2))).await;
    assert_eq!(pair.one.peer_hello(NodeId(2)).unwrap().incarnation, 22);
    assert_eq!(pair.call(Lane::Data, ECHO, b"a").await, Ok(Bytes::from_static(b"a")));

    let elsewhere = start(&Door::new(2, 9, 222), &Arc::default(), secret(SECRET), any_port(), &[]).await;
    pair.one.set_peer(NodeId(2), elsewhere.local_addr().to_string());
    let moved = || pair.one.peer_hello(NodeId(2)).is_some_and(|hello| hello.incarnation == 222);
    eventually("moved", || moved() && pair.one.connected(NodeId(2))).await;
    assert_eq!(pair.call(Lane::Data, ECHO, b"b").await, Ok(Bytes::from_static(b"b")));
    again.stop().await;
    elsewhere.stop().await;
    pair.stop().await;
}

/// An authority for certificates of nodes.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Of a node named in the certificate, trusting `trusted`.
    fn node(&self, node: u16, trusted: &Authority) -> Security {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([format!("node-{node}.onceward")]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = key.serialize_pem();
        Security::Mtls(Tls::from_pem(certificate.pem().as_bytes(), key.as_bytes(), trusted.0.pem().as_bytes()).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_one_authority_connect() {
    let authority = Authority::new("ours");
    let (first, second) = (authority.node(1, &authority), authority.node(2, &authority));
    let pair = pair_of(Door::new(1, 9, 1), Door::new(2, 9, 2), first, second).await;
    eventually("connected", || pair.one.connected(NodeId(2))).await;
    let mut call = request(Lane::Data, ECHO, b"", PATIENCE);
    call.body = vec![3; 4 << 20].into();
    assert_eq!(pair.one.call(NodeId(2), call.clone()).await, Ok(call.body));
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_or_node_keeps_its_bearer_out() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let cases = [
        ("stranger dials", other.node(1, &authority), authority.node(2, &authority), "UnknownCA"),
        ("stranger listens", authority.node(1, &authority), other.node(2, &authority), "UnknownIssuer"),
        ("dials as another", authority.node(3, &authority), authority.node(2, &authority), "not that of node 1"),
        ("listens as another", authority.node(1, &authority), authority.node(3, &authority), "not valid for name"),
        ("secret meets TLS", secret(SECRET), authority.node(2, &authority), "another kind of peer security"),
    ];
    for (case, one, two, reason) in cases {
        let pair = pair_of(Door::new(1, 9, 1), Door::new(2, 9, 2), one, two).await;
        let outcome = pair.call(Lane::Snapshot, ECHO, b"").await;
        let Err(CallError::NotSent(text)) = outcome else { panic!("{case}: {outcome:?}") };
        assert!(text.contains(reason), "{case}: {text}");
        assert!(!pair.one.connected(NodeId(2)), "{case}");
        pair.stop().await;
    }
}

#[tokio::test]
async fn a_node_that_changes_during_a_handshake_is_known_by_what_it_became() {
    for dialler_changes in [true, false] {
        let methods = Arc::new(Methods::default());
        let (changing_one, changing_two) = (Changing::new(1), Changing::new(2));
        let two = if dialler_changes {
            start(&Door::new(2, 9, 7), &methods, secret(SECRET), any_port(), &[]).await
        } else {
            start(&changing_two, &methods, secret(SECRET), any_port(), &[]).await
        };
        let peers = [(2, two.local_addr())];
        let one = if dialler_changes {
            start(&changing_one, &Arc::default(), secret(SECRET), any_port(), &peers).await
        } else {
            start(&Door::new(1, 9, 7), &Arc::default(), secret(SECRET), any_port(), &peers).await
        };
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            assert!(tokio::time::Instant::now() < deadline, "it is taken for what it was, for ever");
            let called = one.call(NodeId(2), request(Lane::Data, ECHO, b"", PATIENCE)).await;
            let known = if dialler_changes {
                called.ok().and(methods.seen.lock().unwrap().as_ref().map(|request| request.from.hello))
            } else {
                called.ok().and(one.peer_hello(NodeId(2)))
            };
            if known.is_some_and(|hello| hello.generation == Generation(2)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        one.stop().await;
        two.stop().await;
    }
}
