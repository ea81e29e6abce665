//! The peer port: who may connect, and where a call from another node goes.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::future::BoxFuture;
use onceward_core::{
    cluster::{DATA_SHARDS_MAX, Manifest, MemberId},
    system::ReplaceState,
};
use onceward_transport::{Doorkeeper, Handler, Hello, Inbound, PROTOCOL_VERSION, Refusal, RefusalCode};

use crate::{
    clock, forward,
    identity::Identity,
    node::{Serving, Shared},
    outcome::{NotApplied, Outcome},
    replacing, router,
    wire::{self, Adopt, METHODS_FROM, Method, Queried, QueryRequest},
};

/// Between the links, which outlive a node that stops, and the node.
pub(crate) struct PeerPort {
    node: Weak<Shared>,
    /// Said by the links of a node that is gone.
    last_hello: Hello,
}

const STOPPED: &str = "the node has stopped";

impl PeerPort {
    pub(crate) fn new(node: &Arc<Shared>) -> PeerPort {
        PeerPort { node: Arc::downgrade(node), last_hello: hello(&node.identity.lock()) }
    }
}

fn hello(identity: &Identity) -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        cluster_id: identity.cluster_id(),
        node: identity.node,
        generation: identity.generation(),
        incarnation: identity.incarnation,
    }
}

impl Doorkeeper for PeerPort {
    fn hello(&self) -> Hello {
        self.node.upgrade().map_or(self.last_hello, |node| hello(&node.identity.lock()))
    }

    fn admit(&self, peer: &Hello) -> Result<(), String> {
        let Some(node) = self.node.upgrade() else { return Err(STOPPED.to_owned()) };
        if !node.config.peers.contains_key(&peer.node) {
            return Err(format!("node {} is not among the configured nodes of the cluster", peer.node));
        }
        let own = node.identity.lock().cluster_id();
        if let (Some(own), Some(other)) = (own, peer.cluster_id)
            && own != other
        {
            return Err(format!("this node belongs to cluster {own:032x}, node {} to {other:032x}", peer.node));
        }
        match node.serving.load().as_ref() {
            Some(serving) => admit_to_cluster(serving, peer),
            None => Ok(()),
        }
    }
}

/// A member knows which directory is which node.
fn admit_to_cluster(serving: &Serving, peer: &Hello) -> Result<(), String> {
    let records = replacing::registry(serving);
    let manifest = replacing::current_manifest(serving, &records);
    let Some(known) = manifest.nodes.iter().find(|entry| entry.id == peer.node) else {
        return Err(format!("the cluster was founded without node {}", peer.node));
    };
    let node = peer.node;
    if known.incarnation == peer.incarnation {
        return Ok(());
    }
    let awaited = records.iter().any(|record| record.entry.id == node && record.replace == ReplaceState::Awaited);
    match peer.cluster_id {
        None if awaited => Ok(()),
        None => Err(format!(
            "node {node} comes with an empty data directory, but the cluster knows it with another one. If its disk is \
             lost, `onceward replace {node}` (POST /v1/cluster/nodes/{node}/replace) brings it back; otherwise give it \
             its data directory"
        )),
        // This node may not have heard yet that the other one was replaced.
        Some(_) if peer.generation > known.generation => Ok(()),
        Some(_) => Err(format!("node {node} was replaced by another data directory; this one must not come back")),
    }
}

impl Handler for PeerPort {
    fn handle(&self, request: Inbound) -> BoxFuture<'static, Result<Bytes, Refusal>> {
        let node = self.node.upgrade();
        Box::pin(async move {
            let node = node.ok_or_else(|| Refusal::new(RefusalCode::Unavailable, STOPPED))?;
            match Method::from_code(request.method) {
                Some(Method::Probe) => Ok(wire::encode(&node.probed())),
                Some(Method::Adopt) => adopt(&node, request).await,
                method => match node.serving.load_full() {
                    Some(serving) => handle(&serving, request, method).await,
                    None => Err(Refusal::new(RefusalCode::Unavailable, "the node is not a serving member yet")),
                },
            }
        })
    }
}

async fn adopt(node: &Arc<Shared>, request: Inbound) -> Result<Bytes, Refusal> {
    let Adopt { manifest } = wire::decode(&request.body).map_err(|error| Refusal::new(RefusalCode::Invalid, error))?;
    judge_adoption(&node.identity.lock(), &request.from.hello, &manifest)
        .map_err(|why| Refusal::new(RefusalCode::WrongMember, why))?;
    // Entering must not stop half-way when the caller goes away.
    let entering = node.clone();
    let entered = tokio::spawn(async move { entering.enter(manifest).await }).await;
    let failed = match entered {
        Ok(Ok(())) => return Ok(Bytes::new()),
        Ok(Err(error)) => error.to_string(),
        Err(crashed) => crashed.to_string(),
    };
    // It calls itself a member by now, so nobody will take it in again, and it doesn't serve: a restart tries anew.
    (node.config.on_fatal)(format!("entering the cluster: {failed}"));
    Err(Refusal::new(RefusalCode::Unavailable, failed))
}

/// Only a member of the cluster takes a node in, and only the directory that it names.
fn judge_adoption(own: &Identity, from: &Hello, manifest: &Manifest) -> Result<(), &'static str> {
    if from.cluster_id != Some(manifest.cluster_id) {
        return Err("the sender doesn't belong to the cluster it speaks for");
    }
    if own.cluster_id().is_some_and(|id| id != manifest.cluster_id) {
        return Err("this node belongs to another cluster");
    }
    if !(1..=DATA_SHARDS_MAX).contains(&manifest.data_shards) {
        return Err("the manifest names no possible number of shards");
    }
    if !manifest.nodes.iter().any(|entry| entry.id == own.node && entry.incarnation == own.incarnation) {
        return Err("the cluster expects another data directory for this node");
    }
    Ok(())
}

async fn handle(serving: &Serving, request: Inbound, method: Option<Method>) -> Result<Bytes, Refusal> {
    let invalid = |error: String| Refusal::new(RefusalCode::Invalid, error);
    if method == Some(Method::Forward) {
        return forward::execute(&serving.router, request.body).await.map_err(invalid);
    }
    let Some(shard) = serving.router.local(request.shard) else {
        return Err(Refusal::new(RefusalCode::Unavailable, format!("shard {} is not on this node", request.shard)));
    };
    match method {
        None if request.method < METHODS_FROM => {
            let hello = request.from.hello;
            let from = MemberId::new(hello.node, hello.generation);
            let refuse = |why| Refusal::new(RefusalCode::Unavailable, why);
            shard.group.handle(from, request.method, request.body).await.map_err(refuse)
        }
        Some(Method::Query) => {
            let QueryRequest { query } = wire::decode(&request.body).map_err(invalid)?;
            Ok(wire::encode(&match router::answer_here(shard, &query).await {
                Outcome::Applied(answer) => Queried::Answer(Box::new(answer)),
                Outcome::NotApplied(NotApplied::NotLeader { hint }) => Queried::NotLeader { hint },
                Outcome::NotApplied(_) | Outcome::Unknown => Queried::NoQuorum,
            }))
        }
        Some(Method::Clock) => Ok(wire::encode(&clock::reading(&shard.group))),
        Some(Method::Members) => Ok(wire::encode(&replacing::members_here(shard))),
        _ => Err(invalid(format!("method {} is unknown", request.method))),
    }
}
