//! Whole nodes over real links and directories, one or several in this process.

use std::collections::BTreeSet;

use onceward_core::{
    limits::{CheckItem, Mode, PolicyDraft},
    query::{self, Answer, Query},
    system::ReplaceState,
    webhooks::{
        self, Action, AppRef, AppSpec, CreateApp, CreateEndpoint, EndpointKey, EndpointSpec, Name, NewMessage, Outcome,
        Publish, ReceiverAnswer, RecordOutcomes, Secret, Verdict,
    },
};
use onceward_storage::{LogWriter, RocksStore, Store, StoreOptions};
use onceward_transport::{Security, TcpConfig};
use tempfile::TempDir;
use tokio::time::sleep;

use super::*;
use crate::{
    config::PeerConfig,
    limits::Degraded,
    shard_actor::Message,
    shard_port::{Recorded, Touched},
    sources::{OsEntropy, SystemClock},
    webhooks::Prepared,
};

/// How long anything may take that is waited for. Far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster founded by node 1.
struct Cluster {
    peers: BTreeMap<NodeId, PeerConfig>,
    dirs: BTreeMap<u16, TempDir>,
    nodes: BTreeMap<u16, Node>,
}

impl Cluster {
    /// Founds a cluster of `count` nodes with two data shards more than that and waits until all are ready.
    async fn start(count: u16) -> Cluster {
        // All at once, so that no port is handed out twice.
        let listeners: Vec<_> = (1..=count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let peers = (1..=count).zip(&listeners).map(|(node, listener)| {
            let address = listener.local_addr().unwrap().to_string();
            (NodeId(node), PeerConfig { peer_address: address.clone(), http_address: address })
        });
        let mut cluster = Cluster { peers: peers.collect(), dirs: BTreeMap::new(), nodes: BTreeMap::new() };
        drop(listeners);
        for node in 1..=count {
            cluster.dirs.insert(node, tempfile::tempdir().unwrap());
        }
        found(cluster.dirs[&1].path(), count + 2).unwrap();
        for node in 1..=count {
            cluster.start_node(node).await;
        }
        cluster.wait_ready().await;
        cluster
    }

    async fn start_node(&mut self, id: u16) {
        let data_dir = self.dirs[&id].path().to_owned();
        let store: Arc<dyn Store> = Arc::new(RocksStore::open(&data_dir, &StoreOptions::default()).unwrap());
        let network = TcpConfig {
            listen: self.peers[&NodeId(id)].peer_address.parse().unwrap(),
            peers: self.peers.iter().map(|(node, peer)| (*node, peer.peer_address.clone())).collect(),
            security: Security::Hmac { secret: vec![7; 32] },
            timing: Default::default(),
        };
        let node = Node::start(NodeConfig {
            node: NodeId(id),
            data_dir,
            peers: self.peers.clone(),
            log_writer: LogWriter::start(store.clone(), Arc::new(|error| panic!("fatal: {error}"))),
            store,
            network: Arc::new(network),
            tuning: Tuning::default(),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(OsEntropy),
            on_fatal: Arc::new(|what| panic!("fatal: {what}")),
        });
        self.nodes.insert(id, node.await.unwrap());
    }

    async fn wait_ready(&self) {
        for (id, node) in &self.nodes {
            until(|| node.readiness().ready).await.unwrap_or_else(|()| panic!("node {id}: {:?}", node.readiness()));
        }
    }

    async fn stop_node(&mut self, id: u16) {
        self.nodes.remove(&id).unwrap().stop().await;
    }

    /// Takes a node's disk away; it starts again from an empty one.
    async fn lose_disk(&mut self, id: u16) {
        self.stop_node(id).await;
        self.dirs.insert(id, tempfile::tempdir().unwrap());
        self.start_node(id).await;
    }

    async fn stop(mut self) {
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.stop_node(node).await;
        }
    }
}

fn found(dir: &std::path::Path, data_shards: u16) -> Result<u128, founding::FoundError> {
    let store = RocksStore::open(dir, &StoreOptions::default())?;
    founding::found(NodeId(1), &store, data_shards, &OsEntropy)
}

async fn until(condition: impl Fn() -> bool) -> Result<(), ()> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if condition() {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    Err(())
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

async fn put_policy(node: &Node) {
    let draft = PolicyDraft { rate: Some("1/h".to_owned()), burst: Some(3), ..PolicyDraft::default() };
    let name = PolicyName::parse("p").unwrap();
    node.put_policy(name, draft.check().unwrap(), deadline()).await.unwrap();
}

async fn check(node: &Node, key: &str) -> CheckAnswer {
    let items = vec![CheckItem { policy: "p".to_owned(), key: key.to_owned(), cost: 1 }];
    let request = CheckRequest { mode: Mode::Enforce, items, request_id: None, deadline: deadline() };
    node.check(request).await.unwrap()
}

/// What is left, decided by the shard itself.
async fn remaining_after_check(node: &Node, key: &str) -> u64 {
    let answer = check(node, key).await;
    assert_eq!(answer.degraded, [None]);
    answer.decision.results[0].remaining
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_shard_actor_is_restarted_and_the_node_goes_on() {
    let cluster = Cluster::start(1).await;
    let node = &cluster.nodes[&1];
    put_policy(node).await;
    assert_eq!(remaining_after_check(node, "k").await, 2);

    let serving = node.serving().unwrap();
    let before: Vec<_> = serving.router.local_shards().map(|shard| shard.actor_id()).collect();
    for shard in serving.router.local_shards() {
        shard.tell(Message::Panic);
    }
    let restarted = || serving.router.local_shards().zip(&before).all(|(shard, before)| shard.actor_id() != *before);
    until(restarted).await.expect("every actor was restarted");

    assert_eq!(remaining_after_check(node, "k").await, 1);
    drop(serving);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_knows_its_buckets_and_a_directory_is_founded_once() {
    let mut cluster = Cluster::start(1).await;
    put_policy(&cluster.nodes[&1]).await;
    assert_eq!(remaining_after_check(&cluster.nodes[&1], "k").await, 2);
    cluster.stop_node(1).await;

    assert!(matches!(found(cluster.dirs[&1].path(), 2), Err(founding::FoundError::Directory(_))));

    cluster.start_node(1).await;
    cluster.wait_ready().await;
    assert_eq!(remaining_after_check(&cluster.nodes[&1], "k").await, 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_nodes_serve_everything_and_one_that_only_follows_the_system_shard_is_replaced() {
    let mut cluster = Cluster::start(5).await;
    put_policy(&cluster.nodes[&4]).await;
    for (id, node) in &cluster.nodes {
        for key in 0..16 {
            assert_eq!(remaining_after_check(node, &format!("{id}-{key}")).await, 2);
        }
    }

    cluster.lose_disk(4).await;
    assert!(!cluster.nodes[&4].readiness().ready);
    cluster.nodes[&2].replace(NodeId(4), deadline()).await.unwrap();
    cluster.wait_ready().await;
    let finished = || {
        cluster.nodes.values().all(|node| {
            let records = replacing::registry(&node.serving().unwrap());
            let record = records.iter().find(|record| record.entry.id == NodeId(4));
            record.is_some_and(|record| (record.replace, record.entry.generation) == (ReplaceState::No, Generation(1)))
        })
    };
    until(finished).await.expect("the replacement is finished, and every node knows it");
    for key in 0..16 {
        assert_eq!(remaining_after_check(&cluster.nodes[&4], &format!("1-{key}")).await, 1);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_replica_notices_that_a_shard_is_back() {
    let mut cluster = Cluster::start(5).await;
    put_policy(&cluster.nodes[&5]).await;
    let shard = ShardId(1);
    let key = {
        let serving = cluster.nodes[&5].serving().unwrap();
        let manifest = &serving.surroundings.manifest;
        assert_eq!(manifest.voters(shard), [2, 3, 4].map(NodeId));
        (0..).map(|n| n.to_string()).find(|key| manifest.bucket_shard("p", key) == shard).unwrap()
    };
    assert_eq!(remaining_after_check(&cluster.nodes[&5], &key).await, 2);

    cluster.stop_node(3).await;
    cluster.stop_node(4).await;
    for _ in 0..10 {
        assert_eq!(check(&cluster.nodes[&5], &key).await.degraded, [Some(Degraded::Local)]);
    }
    let lost = || cluster.nodes[&5].serving().unwrap().router.quorum_is_lost(shard);
    until(lost).await.expect("the shard is given up");

    cluster.start_node(3).await;
    cluster.start_node(4).await;
    let deadline = Instant::now() + PATIENCE;
    while check(&cluster.nodes[&5], &key).await.degraded != [None] {
        assert!(Instant::now() < deadline, "it answers by itself for ever");
        sleep(Duration::from_millis(20)).await;
    }
    cluster.stop().await;
}

fn create_app(uid: Option<&str>) -> WebhookCall {
    let spec = AppSpec { name: "an application".to_owned(), rate_limit: None, metadata: BTreeMap::new() };
    let uid = uid.map(|uid| Name::parse_uid(uid).unwrap());
    let create = CreateApp { uid, spec, get_if_exists: false };
    WebhookCall { action: Action::CreateApp(create), request: None }
}

fn create_endpoint(app: AppRef, url: &str) -> WebhookCall {
    let spec = EndpointSpec {
        url: url.to_owned(),
        description: String::new(),
        rate_limit: None,
        disabled: false,
        event_types: None,
        channels: None,
        metadata: BTreeMap::new(),
    };
    let secret = Secret::new(vec![7; 24].into()).unwrap();
    let create = CreateEndpoint { app, uid: None, spec, headers: BTreeMap::new(), secret };
    WebhookCall { action: Action::CreateEndpoint(create), request: None }
}

fn publish(app: AppRef, event_id: Option<&str>) -> WebhookCall {
    let message = NewMessage {
        event_type: Name::parse("paid").unwrap(),
        event_id: event_id.map(|id| Name::parse(id).unwrap()),
        channels: Vec::new(),
        tags: Vec::new(),
        payload: "{}".into(),
        payload_retention_us: None,
    };
    WebhookCall { action: Action::Publish(Publish { app, message, retention_us: 1_000_000 }), request: None }
}

async fn app(node: &Node, call: WebhookCall) -> AppView {
    match node.webhook(call, deadline()).await.unwrap() {
        WebhookReply::App { app, created: true } => app,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_applications_is_one_over_all_shards_and_its_iterator_outlives_a_restart() {
    let mut cluster = Cluster::start(1).await;
    let mut expected = Vec::new();
    for number in 0..12 {
        let uid = format!("tenant-{number}");
        expected.push(app(&cluster.nodes[&1], create_app(Some(uid.as_str()).filter(|_| number % 2 == 0))).await);
    }
    let shards: BTreeSet<_> = expected.iter().map(|app| app.id.shard()).collect();
    assert_eq!(shards.len(), 3, "every data shard has some: {shards:?}");
    expected.sort_by_key(|app| app.id);

    let mut page = PageIn { cursor: None, backwards: false, descending: false, limit: 5 };
    let first = cluster.nodes[&1].apps(page, deadline()).await.unwrap();
    assert_eq!((first.items.as_slice(), first.done), (&expected[..5], false));
    cluster.stop_node(1).await;
    cluster.start_node(1).await;
    cluster.wait_ready().await;
    page.cursor = Some(expected[4].id.0);
    let second = cluster.nodes[&1].apps(page, deadline()).await.unwrap();
    assert_eq!((second.items.as_slice(), second.done), (&expected[5..10], false));
    page.cursor = Some(expected[9].id.0);
    let third = cluster.nodes[&1].apps(page, deadline()).await.unwrap();
    assert_eq!((third.items.as_slice(), third.done), (&expected[10..], true));

    page.backwards = true;
    let back = cluster.nodes[&1].apps(page, deadline()).await.unwrap();
    assert_eq!((back.items.as_slice(), back.done), (&expected[4..9], false));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operational_endpoints_are_on_every_shard_when_their_change_is_answered_and_otherwise_follow() {
    let cluster = Cluster::start(1).await;
    let serving = cluster.nodes[&1].serving().unwrap();
    let copied = |shard: &Shard| {
        let query = Query::Webhook(WebhookQuery::OperationalRevision);
        shard.group.read(|rows| query::answer(shard.id, rows, &query)).unwrap()
    };
    let all_at = |revision| {
        let expected = Answer::Webhook(WebhookAnswer::OperationalRevision(revision));
        serving.router.local_shards().all(|shard| copied(shard) == expected)
    };
    assert!(all_at(0));
    cluster.nodes[&1].webhook(create_endpoint(AppRef::Operational, "https://ops.example/1"), deadline()).await.unwrap();
    assert!(all_at(1), "with the answer");

    // As if the node that received the call had stopped before it copied anything.
    let Prepared { shard, command, .. } =
        serving.webhooks.prepare(create_endpoint(AppRef::Operational, "https://ops.example/2")).unwrap();
    assert_eq!(shard, ShardId::SYSTEM);
    let command = Command::Webhook(Box::new(command));
    serving.router.submit(shard, &command, deadline()).await.into_result().unwrap();
    until(|| all_at(2)).await.expect("the reconciler brings it to every shard");
    drop(serving);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_sent_again_does_not_undo_what_came_in_between() {
    let cluster = Cluster::start(1).await;
    let node = &cluster.nodes[&1];
    let serving = node.serving().unwrap();
    let first = app(node, create_app(Some("tenant"))).await;
    let named = AppRef::Uid(first.uid.clone().unwrap());

    let call = WebhookCall { action: Action::DeleteApp { app: named.clone() }, request: None };
    let Prepared { shard, command, lands_once } = serving.webhooks.prepare(call).unwrap();
    assert!(lands_once);
    let delete = Command::Webhook(Box::new(command));
    let deleted = serving.router.submit(shard, &delete, deadline()).await.into_result().unwrap();
    assert_eq!(deleted, Reply::Webhook(Box::new(WebhookReply::Done)));
    let second = app(node, create_app(Some("tenant"))).await;
    assert_eq!(serving.router.submit(shard, &delete, deadline()).await.into_result().unwrap(), deleted);
    let found = node.webhook_query(WebhookQuery::App { app: named.clone() }, deadline()).await.unwrap();
    assert_eq!(found, WebhookAnswer::App(second));

    let lands_once = |event_id| serving.webhooks.prepare(publish(named.clone(), event_id)).unwrap().lands_once;
    assert!(lands_once(Some("e1")) && !lands_once(None));
    drop(serving);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_hears_of_what_came_due_on_its_shard_and_reports_what_came_of_it() {
    let cluster = Cluster::start(1).await;
    let node = &cluster.nodes[&1];
    let ports = node.shard_ports().await;
    assert_eq!(ports.iter().map(|port| port.shard().0).collect::<Vec<_>>(), [1, 2, 3]);
    let app = app(node, create_app(None)).await;
    let port = ports.iter().find(|port| port.shard() == app.id.shard()).unwrap();
    let named = AppRef::Id(app.id);
    let call = create_endpoint(named.clone(), "https://receiver.example/");
    let WebhookReply::Endpoint { endpoint, .. } = node.webhook(call, deadline()).await.unwrap() else { panic!() };
    let endpoint = EndpointKey { app: app.id, endpoint: endpoint.id };
    let touched = Touched::Endpoints([endpoint].into());
    assert_eq!(port.touched().await, touched);

    let WebhookReply::Published { message, .. } = node.webhook(publish(named, None), deadline()).await.unwrap() else {
        panic!()
    };
    assert_eq!(port.touched().await, touched);
    assert!(port.leads() && port.leadership().borrow().am_leader && port.catch_up().await);
    let now = port.now().unwrap();
    let (due, _) = port.read(|rows| webhooks::due(rows, endpoint, now, None, 9)).unwrap();
    assert_eq!(due.iter().map(|item| item.message).collect::<Vec<_>>(), [message.id]);

    let answer = ReceiverAnswer {
        status_code: 200,
        body: String::new(),
        truncated: false,
        duration_ms: 1,
        started_wall_ms: 1,
        url: String::new(),
    };
    let outcome = Outcome {
        app: app.id,
        endpoint: endpoint.endpoint,
        message: message.id,
        tries_before: 0,
        nonce: [0; 6],
        answer,
        verdict: Verdict::Succeeded,
    };
    let report = RecordOutcomes { outcomes: vec![outcome], disable_after_us: 1, retention_us: 1, wall_ms: 1 };
    assert_eq!(port.record(report.clone(), deadline()).await, Recorded::Applied { changed: 1 });
    assert_eq!(port.record(report, deadline()).await, Recorded::Applied { changed: 0 }, "repeated");
    cluster.stop().await;
}
