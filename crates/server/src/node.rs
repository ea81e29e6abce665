//! From settings to a node: the one place that knows both.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use onceward_consensus::Timing;
use onceward_core::{
    cluster::{NodeId, ShardId},
    idempotency::{
        AbandonCommand, AbandonReply, Account, CompleteCommand, CompleteReply, DeleteRecordCommand, DeleteRecordReply,
        ExtendCommand, ExtendReply, Key, RecordPage, RecordState, RecordView,
    },
    limits::{Policy, PolicyName, PolicySpec, RefundCommand, RefundReply, ResetCommand, ResetReply},
    seams::{Clock, Entropy},
    system::NodeReply,
    webhooks::{AppView, Page, PageIn, WebhookAnswer, WebhookQuery, WebhookReply},
};
use onceward_shard::{
    BeginAnswer, BeginRequest, CheckAnswer, CheckError, CheckRequest, ClusterStatus, Node, NodeConfig, NodeStats,
    OsEntropy, PeerConfig, PolicyWrite, Readiness, SystemClock, Tuning, WebhookCall,
};
use onceward_storage::{LogWriter, RocksStore, Store, StoreOptions};
use onceward_transport::{Security, TcpConfig, Tls};
use tokio::{task::spawn_blocking, time::Instant};

use crate::{
    service::{Served, Service},
    settings::{PeerSecurity, PeerSettings, RaftSettings, Settings, StorageSettings},
};

/// Told once when the node can't go on.
type OnFatal = Arc<dyn Fn(String) + Send + Sync>;

/// What a node is started with, on this machine's disk, network and clocks: opens the data directory. Errors name the
/// setting, or the file.
pub async fn config(settings: &Settings, on_fatal: OnFatal) -> Result<NodeConfig, String> {
    let security = security(&settings.peers)?;
    let peers = settings
        .nodes()
        .into_iter()
        .map(|node| (NodeId(node.id), PeerConfig { peer_address: node.peer_address, http_address: node.http_address }));
    let peers: BTreeMap<_, _> = peers.collect();
    let network = TcpConfig {
        listen: settings.peers.listen,
        peers: peers.iter().map(|(node, peer)| (*node, peer.peer_address.clone())).collect(),
        security,
        timing: Default::default(),
    };
    let opened = {
        let (dir, options) = (settings.node.data_dir.clone(), store_options(&settings.storage));
        spawn_blocking(move || RocksStore::open(&dir, &options)).await.map_err(|error| error.to_string())?
    };
    let store = on_its_disk(Arc::new(opened.map_err(|error| error.to_string())?));
    Ok(NodeConfig {
        node: NodeId(settings.node.id),
        data_dir: settings.node.data_dir.clone(),
        peers,
        log_writer: log_writer(store.clone(), on_fatal.clone()),
        store,
        network: Arc::new(network),
        tuning: Tuning {
            waiters_max: settings.http.max_in_flight.div_ceil(2) as usize,
            min_free_bytes: settings.storage.min_free_bytes,
            ..tuning(&settings.raft)
        },
        clock: clock(),
        entropy: Arc::new(OsEntropy),
        on_fatal,
    })
}

/// What everything in this process goes by.
pub fn clock() -> Arc<dyn Clock> {
    #[cfg(feature = "faults")]
    if let Some(clock) = crate::failpoints::clock() {
        return clock;
    }
    Arc::new(SystemClock)
}

/// The store as its disk behaves, where tests have a say in that.
fn on_its_disk(store: Arc<dyn Store>) -> Arc<dyn Store> {
    #[cfg(feature = "faults")]
    let store = crate::failpoints::store(store);
    store
}

fn log_writer(store: Arc<dyn Store>, on_fatal: OnFatal) -> LogWriter {
    LogWriter::start(store, Arc::new(move |error| on_fatal(format!("log writer: {error}"))))
}

pub fn store_options(settings: &StorageSettings) -> StoreOptions {
    StoreOptions {
        block_cache_bytes: settings.block_cache_bytes as usize,
        memtable_bytes: settings.memtable_bytes as usize,
    }
}

fn tuning(settings: &RaftSettings) -> Tuning {
    let ms = |ms: u32| Duration::from_millis(u64::from(ms));
    Tuning {
        // A leader that lives is heard of often enough to keep it, and no follower campaigns before it is over. What a
        // deposed leader takes in meanwhile is never committed, so safety doesn't hang on it.
        leader_lease: ms(settings.election_max_ms) + 2 * ms(settings.heartbeat_ms),
        timing: Timing {
            heartbeat: ms(settings.heartbeat_ms),
            election_min: ms(settings.election_min_ms),
            election_max: ms(settings.election_max_ms),
            ..Timing::default()
        },
        snapshot_every_entries: settings.snapshot_entries,
        snapshot_every_bytes: settings.snapshot_bytes,
        ..Tuning::default()
    }
}

fn security(settings: &PeerSettings) -> Result<Security, String> {
    match settings.security {
        PeerSecurity::Hmac => {
            let secret = match &settings.secret {
                Some(secret) => secret.reveal().as_bytes().to_vec(),
                // Only a node without peers may go without: nobody is to know its secret.
                None => OsEntropy.nonce().to_le_bytes().to_vec(),
            };
            Ok(Security::Hmac { secret })
        }
        PeerSecurity::Mtls => {
            let file = |name: &str, path: &Option<std::path::PathBuf>| {
                let path: &Path = path.as_deref().expect("checked settings have all three files with mtls");
                fs::read(path).map_err(|error| format!("peers.{name}: {}: {error}", path.display()))
            };
            let (cert, key, ca) =
                (file("cert", &settings.cert)?, file("key", &settings.key)?, file("ca", &settings.ca)?);
            Tls::from_pem(&cert, &key, &ca).map(Security::Mtls).map_err(|error| format!("peers: {error}"))
        }
    }
}

impl Service for Node {
    fn check(&self, request: CheckRequest) -> BoxFuture<'_, Result<CheckAnswer, CheckError>> {
        Box::pin(self.check(request))
    }

    fn refund(&self, command: RefundCommand, deadline: Instant) -> Served<'_, RefundReply> {
        Box::pin(self.refund(command, deadline))
    }

    fn reset(&self, command: ResetCommand, deadline: Instant) -> Served<'_, ResetReply> {
        Box::pin(self.reset(command, deadline))
    }

    fn begin(&self, request: BeginRequest) -> Served<'_, BeginAnswer> {
        Box::pin(self.begin(request))
    }

    fn complete(&self, command: CompleteCommand, deadline: Instant) -> Served<'_, CompleteReply> {
        Box::pin(self.complete(command, deadline))
    }

    fn abandon(&self, command: AbandonCommand, deadline: Instant) -> Served<'_, AbandonReply> {
        Box::pin(self.abandon(command, deadline))
    }

    fn extend(&self, command: ExtendCommand, deadline: Instant) -> Served<'_, ExtendReply> {
        Box::pin(self.extend(command, deadline))
    }

    fn record(&self, account: Account, key: Key, deadline: Instant) -> Served<'_, Option<RecordView>> {
        Box::pin(self.record(account, key, deadline))
    }

    fn records(
        &self,
        account: Account,
        state: Option<RecordState>,
        after: Option<Key>,
        limit: u32,
        deadline: Instant,
    ) -> Served<'_, RecordPage> {
        Box::pin(self.records(account, state, after, limit, deadline))
    }

    fn delete_record(&self, command: DeleteRecordCommand, deadline: Instant) -> Served<'_, DeleteRecordReply> {
        Box::pin(self.delete_record(command, deadline))
    }

    fn put_policy(&self, name: PolicyName, spec: PolicySpec, deadline: Instant) -> Served<'_, PolicyWrite> {
        Box::pin(self.put_policy(name, spec, deadline))
    }

    fn delete_policy(&self, name: PolicyName, deadline: Instant) -> Served<'_, Option<Vec<ShardId>>> {
        Box::pin(self.delete_policy(name, deadline))
    }

    fn policy(&self, name: PolicyName, deadline: Instant) -> Served<'_, Option<Policy>> {
        Box::pin(async move { self.policy(name.as_str(), deadline).await })
    }

    fn policies(&self, deadline: Instant) -> Served<'_, Vec<Policy>> {
        Box::pin(self.policies(deadline))
    }

    fn webhook(&self, call: WebhookCall, deadline: Instant) -> Served<'_, WebhookReply> {
        Box::pin(self.webhook(call, deadline))
    }

    fn webhook_query(&self, query: WebhookQuery, deadline: Instant) -> Served<'_, WebhookAnswer> {
        Box::pin(self.webhook_query(query, deadline))
    }

    fn apps(&self, page: PageIn, deadline: Instant) -> Served<'_, Page<AppView>> {
        Box::pin(self.apps(page, deadline))
    }

    fn cluster(&self, state_hash: bool) -> BoxFuture<'_, ClusterStatus> {
        Box::pin(self.cluster(state_hash))
    }

    fn replace(&self, node: NodeId, deadline: Instant) -> Served<'_, NodeReply> {
        Box::pin(self.replace(node, deadline))
    }

    fn readiness(&self) -> Readiness {
        self.readiness()
    }

    fn stats(&self) -> NodeStats {
        self.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_follows_the_raft_timing_that_is_set() {
        let standard = tuning(&RaftSettings::default());
        assert_eq!(standard.leader_lease, Tuning::default().leader_lease);
        let slow = RaftSettings {
            heartbeat_ms: 1_500,
            election_min_ms: 3_000,
            election_max_ms: 4_000,
            ..RaftSettings::default()
        };
        assert_eq!(tuning(&slow).leader_lease, Duration::from_secs(7));
    }
}
