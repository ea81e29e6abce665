//! The links over TCP, put together: one listener, and for each peer what dials it.
//!
//! In go settings, a doorkeeper and a handler; out comes a [`Links`]. What happens on a connection is not decided here.

use std::collections::BTreeMap;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use onceward_core::cluster::NodeId;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dial::{self, PeerLinks};
use crate::error::TransportError;
use crate::limits;
use crate::links::{CallError, Doorkeeper, Handler, Hello, Lane, Links, Network, NodeLinks, Request};
use crate::listen::{self, Served};
use crate::notices::Notices;
use crate::security::Security;

/// How to reach the other nodes and be reached by them.
#[derive(Clone)]
pub struct TcpConfig {
    /// Port 0 takes a free one: see [`TcpLinks::local_addr`].
    pub listen: SocketAddr,
    /// `host:port` of each node; an entry for this node itself is ignored.
    pub peers: BTreeMap<NodeId, String>,
    pub security: Security,
    pub timing: Timing,
}

/// Times of the links; the defaults are those of [`limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    pub handshake: Duration,
    pub ping_every: Duration,
    pub dead_after: Duration,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    pub snapshot_idle: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            handshake: limits::HANDSHAKE_TIMEOUT,
            ping_every: limits::PING_EVERY,
            dead_after: limits::DEAD_AFTER,
            backoff_min: limits::BACKOFF_MIN,
            backoff_max: limits::BACKOFF_MAX,
            snapshot_idle: limits::SNAPSHOT_IDLE,
        }
    }
}

/// The links of one node. Dropping it stops them, without the courtesy of [`NodeLinks::stop`].
pub struct TcpLinks {
    shared: Arc<Shared>,
    local: SocketAddr,
    own: NodeId,
    peers: RwLock<BTreeMap<NodeId, Arc<PeerLinks>>>,
}

/// What all tasks of the links need.
pub(crate) struct Shared {
    pub security: Security,
    pub timing: Timing,
    pub doorkeeper: Arc<dyn Doorkeeper>,
    pub handler: Arc<dyn Handler>,
    pub notices: Notices,
    pub served: Served,
    pub stopped: CancellationToken,
    pub tasks: TaskTracker,
}

impl TcpLinks {
    /// Listens, and begins to dial every peer. Needs a tokio runtime.
    pub async fn start(
        config: TcpConfig,
        doorkeeper: Arc<dyn Doorkeeper>,
        handler: Arc<dyn Handler>,
    ) -> Result<Arc<TcpLinks>, TransportError> {
        config.security.check()?;
        let cannot_listen = |source| TransportError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(cannot_listen)?;
        let local = listener.local_addr().map_err(cannot_listen)?;
        let own = doorkeeper.hello().node;
        let shared = Arc::new(Shared {
            security: config.security,
            timing: config.timing,
            doorkeeper,
            handler,
            notices: Notices::default(),
            served: Served::default(),
            stopped: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        shared.spawn(listen::listen(shared.clone(), listener));
        let links = Arc::new(TcpLinks { shared, local, own, peers: RwLock::default() });
        for (node, address) in config.peers {
            links.set_peer(node, address);
        }
        Ok(links)
    }

    /// Where peers can reach this node.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Adds a peer, or changes its address (`host:port`): then it is dialled anew. This node itself is ignored.
    pub fn set_peer(&self, node: NodeId, address: String) {
        if node == self.own {
            return;
        }
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = peers.get(&node) {
            peer.set_address(address);
            return;
        }
        let peer = Arc::new(PeerLinks::new(node, address));
        for lane in Lane::ALL {
            self.shared.spawn(dial::keep(self.shared.clone(), peer.clone(), lane));
        }
        peers.insert(node, peer);
    }

    fn peer(&self, node: NodeId) -> Option<Arc<PeerLinks>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).get(&node).cloned()
    }
}

impl Shared {
    /// Whether a connection that has just come up is still as its handshake had it. One that was being made while this
    /// node became another, or changed its mind, was not yet there to be closed by [`NodeLinks::drop_connections_of`].
    pub fn still_holds(&self, own: &Hello, peer: &Hello) -> bool {
        self.doorkeeper.hello() == *own && self.doorkeeper.admit(peer).is_ok()
    }

    /// Runs a task until the links are stopped.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.stopped.clone().run_until_cancelled_owned(task));
    }
}

impl Drop for TcpLinks {
    fn drop(&mut self) {
        self.shared.stopped.cancel();
    }
}

impl Links for TcpLinks {
    fn call(&self, to: NodeId, request: Request) -> BoxFuture<'static, Result<Bytes, CallError>> {
        match self.peer(to) {
            Some(peer) => peer.call(request).boxed(),
            None => ready(Err(CallError::NotSent(format!("node {to} is no peer of this node")))).boxed(),
        }
    }

    fn connected(&self, to: NodeId) -> bool {
        self.peer(to).is_some_and(|peer| peer.is_up(Lane::Data) && peer.is_up(Lane::Control))
    }
}

impl NodeLinks for TcpLinks {
    fn peer_hello(&self, node: NodeId) -> Option<Hello> {
        self.peer(node)?.hello()
    }

    fn last_refusal(&self, node: NodeId) -> Option<String> {
        self.peer(node)?.refusal()
    }

    fn drop_connections_of(&self, node: NodeId) {
        self.shared.served.close(node);
        if let Some(peer) = self.peer(node) {
            peer.close("dropped by this node");
        }
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.shared.stopped.cancel();
            self.shared.tasks.close();
            self.shared.tasks.wait().await;
        })
    }
}

impl Network for TcpConfig {
    fn open(
        &self,
        doorkeeper: Arc<dyn Doorkeeper>,
        handler: Arc<dyn Handler>,
    ) -> BoxFuture<'_, Result<Arc<dyn NodeLinks>, TransportError>> {
        Box::pin(async {
            let links: Arc<dyn NodeLinks> = TcpLinks::start(self.clone(), doorkeeper, handler).await?;
            Ok(links)
        })
    }
}
