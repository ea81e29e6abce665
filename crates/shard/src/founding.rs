//! How a cluster begins, once: one node's operator says `init`, that node waits until every configured node answers
//! from an empty directory, writes down who they are, and takes them in.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use onceward_core::{
    cluster::{CLUSTER_SIZES, DATA_SHARDS_MAX, Generation, Manifest, NodeEntry, NodeId, ShardId},
    seams::Entropy,
};
use onceward_storage::{StorageError, Store};
use onceward_transport::{Lane, Links, Request};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::{
    config::NodeConfig,
    identity::{Identity, IdentityError, Standing},
    node::Shared,
    wire::{self, Adopt, Method, Probed},
};

/// Between two rounds of asking nodes that didn't answer yet.
const ASK_PAUSE: Duration = Duration::from_millis(250);
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum FoundError {
    #[error("{0}")]
    Directory(String),
    #[error("data_shards is {0}, allowed are 1 to {DATA_SHARDS_MAX}")]
    DataShards(u16),
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// `onceward init`: makes the store of a data directory the founder's and returns the new cluster's id. Refuses one that
/// already is some node's.
pub fn found(node: NodeId, store: &dyn Store, data_shards: u16, entropy: &dyn Entropy) -> Result<u128, FoundError> {
    if !(1..=DATA_SHARDS_MAX).contains(&data_shards) {
        return Err(FoundError::DataShards(data_shards));
    }
    match Identity::load(store, node) {
        Ok(None) => {}
        Ok(Some(Identity { standing: Standing::Empty, .. })) => {
            return Err(FoundError::Directory(
                "it already stands by to be taken in by a founder: stop it and remove the directory if this node is to \
                 found the cluster"
                    .to_owned(),
            ));
        }
        Ok(Some(identity)) => {
            return Err(FoundError::Directory(format!(
                "it already belongs to cluster {:032x}: a cluster is founded once",
                identity.cluster_id().unwrap_or_default()
            )));
        }
        Err(IdentityError::Storage(error)) => return Err(error.into()),
        Err(error) => return Err(FoundError::Directory(error.to_string())),
    }
    let cluster_id = entropy.nonce();
    Identity::new(node, Standing::Founder { cluster_id, data_shards }, entropy).save(store)?;
    Ok(cluster_id)
}

/// Checks the configured nodes: what a founder refuses before it asks anybody.
pub(crate) fn check_nodes(config: &NodeConfig) -> Result<(), String> {
    let count = config.peers.len();
    if !config.peers.contains_key(&config.node) {
        return Err(format!("node {} is not among the configured nodes of the cluster", config.node));
    }
    if !CLUSTER_SIZES.contains(&count) {
        return Err(format!("a cluster has 1, 3 or 5 nodes; {count} are configured"));
    }
    Ok(())
}

/// The founder's work until it is a member itself: asks every other node, then stores the manifest. The other nodes are
/// taken in by any member that meets them, see [`adopt_known`].
pub(crate) async fn gather(shared: &Arc<Shared>, cluster_id: u128, data_shards: u16) -> Manifest {
    loop {
        let others = shared.config.peers.keys().copied().filter(|node| *node != shared.config.node);
        let asked = join_all(others.map(|node| async move { (node, probe(shared.links(), node).await) })).await;
        let missing: Vec<String> =
            asked.iter().filter(|(_, came)| came.is_none()).map(|(node, _)| node.to_string()).collect();
        if !missing.is_empty() {
            info!(waiting_for = missing.join(", "), "founding the cluster once every node answers");
            sleep(ASK_PAUSE).await;
            continue;
        }
        let mut nodes = vec![shared.own_entry()];
        let mut foreign = Vec::new();
        for (node, probed) in asked.into_iter().filter_map(|(node, probed)| Some((node, probed?))) {
            if probed.cluster_id.is_some() {
                foreign.push(node.to_string());
            }
            nodes.push(entry(node, Generation(0), &probed));
        }
        if foreign.is_empty() {
            nodes.sort_by_key(|entry| entry.id);
            return Manifest { cluster_id, data_shards, nodes };
        }
        warn!(nodes = foreign.join(", "), "already belong to a cluster; this one is not founded with them");
        sleep(ASK_PAUSE * 4).await;
    }
}

pub(crate) fn entry(node: NodeId, generation: Generation, probed: &Probed) -> NodeEntry {
    NodeEntry {
        id: node,
        generation,
        incarnation: probed.incarnation,
        http_address: probed.http_address.clone(),
        peer_address: probed.peer_address.clone(),
    }
}

pub(crate) async fn probe(links: &dyn Links, node: NodeId) -> Option<Probed> {
    let request = Request {
        lane: Lane::Control,
        method: Method::Probe.code(),
        shard: ShardId::SYSTEM,
        body: Bytes::new(),
        timeout: ASK_TIMEOUT,
    };
    wire::decode(&links.call(node, request).await.ok()?).ok()
}

/// A member's duty: takes in every node that stands by with the very directory that the cluster expects of it.
pub(crate) async fn adopt_known(shared: &Shared, manifest: &Manifest) {
    for expected in manifest.nodes.iter().filter(|entry| entry.id != shared.config.node) {
        let Some(hello) = shared.peer_hello(expected.id) else { continue };
        if hello.cluster_id.is_some() || hello.incarnation != expected.incarnation {
            continue;
        }
        let request = Request {
            lane: Lane::Control,
            method: Method::Adopt.code(),
            shard: ShardId::SYSTEM,
            body: wire::encode(&Adopt { manifest: manifest.clone() }),
            timeout: ASK_TIMEOUT,
        };
        match shared.links().call(expected.id, request).await {
            Ok(_) => info!(node = %expected.id, "took the node into the cluster"),
            Err(error) => warn!(node = %expected.id, %error, "could not take the node in"),
        }
        // It says hello anew, as a member now.
        shared.drop_connections_of(expected.id);
    }
}
