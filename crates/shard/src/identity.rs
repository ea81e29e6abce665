//! Who a data directory is: drawn once, stored synced, checked in every handshake.

use onceward_core::{
    cluster::{Generation, Manifest, NodeId},
    codec,
    seams::Entropy,
};
use onceward_storage::{Family, StorageError, Store, WriteSet, keys};
use serde::{Deserialize, Serialize};

/// A data directory's identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub node: NodeId,
    /// Drawn when the directory was made.
    pub incarnation: u128,
    pub standing: Standing,
}

/// How far the node is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Standing {
    /// An empty directory that waits to be taken in; it never founds or joins anything by itself.
    Empty,
    /// `onceward init` ran here: it founds the cluster once every configured node has answered.
    Founder { cluster_id: u128, data_shards: u16 },
    /// A member. The manifest is the one it was taken in with; it names this node with its generation.
    Member { manifest: Manifest },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the identity record of the data directory is corrupt: {0}")]
    Corrupt(String),
    #[error("the data directory belongs to node {found}, but the configuration says node {configured}")]
    OtherNode { found: NodeId, configured: NodeId },
}

impl Identity {
    pub(crate) fn new(node: NodeId, standing: Standing, entropy: &dyn Entropy) -> Identity {
        Identity { node, incarnation: entropy.nonce(), standing }
    }

    pub(crate) fn load(store: &dyn Store, node: NodeId) -> Result<Option<Identity>, IdentityError> {
        let Some(bytes) = store.get(Family::RaftMeta, &keys::identity())? else { return Ok(None) };
        let identity: Identity = codec::decode(&bytes).map_err(|error| IdentityError::Corrupt(error.to_string()))?;
        if identity.node != node {
            return Err(IdentityError::OtherNode { found: identity.node, configured: node });
        }
        Ok(Some(identity))
    }

    /// Stores the identity and waits until it is on disk.
    pub(crate) fn save(&self, store: &dyn Store) -> Result<(), StorageError> {
        let mut set = WriteSet::new();
        set.put(Family::RaftMeta, keys::identity(), codec::encode(self));
        store.write(&set)?;
        store.sync()
    }

    pub(crate) fn cluster_id(&self) -> Option<u128> {
        match &self.standing {
            Standing::Empty => None,
            Standing::Founder { cluster_id, .. } => Some(*cluster_id),
            Standing::Member { manifest } => Some(manifest.cluster_id),
        }
    }

    /// 0 until the node was replaced for the first time.
    pub(crate) fn generation(&self) -> Generation {
        match &self.standing {
            Standing::Member { manifest } => {
                let own = manifest.nodes.iter().find(|entry| entry.id == self.node);
                own.map_or(Generation(0), |entry| entry.generation)
            }
            _ => Generation(0),
        }
    }
}
