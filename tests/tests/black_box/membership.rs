//! Who may take part: lost disks, strangers, wrong secrets, noise.

use std::time::Duration;

use onceward_tests::{
    client::{Api, Outcome},
    cluster::Cluster,
    load::Load,
    node::Node,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{fixed, plenty};

/// Until a refusal is in a log: the two nodes have to dial each other.
const REFUSED_WITHIN: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_refused_by_name_of_the_remedy_replaced_while_the_cluster_serves_and_counts_again() {
    let mut cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("p", fixed(10)).await.expect_status(201);
    cluster.api(1).put_policy("wide", plenty()).await.expect_status(201);
    let keys = cluster.key_on_every_shard("p");
    for key in &keys {
        cluster.api(1).check("p", key).await.expect_status(200);
    }
    let load = Load::start(&[cluster.api(1), cluster.api(3)], "wide", &keys, 16);

    cluster.node(2).kill();
    cluster.node(2).wipe();
    let told = cluster.node(2).log().len();
    cluster.node(2).start();
    cluster.node(2).wait_log(told, "onceward replace 2", REFUSED_WITHIN).await;
    assert!(!cluster.api(2).is_ready().await, "an empty directory is not the node it was");

    let url = cluster.api(1).url;
    let replaced = Node::run(&["replace", "2", "--url", &url]);
    assert!(replaced.status.success(), "{replaced:?}");
    if !cluster.node(2).is_running() {
        cluster.node(2).start();
    }
    cluster.wait_ready(2).await;

    // The new node votes: with another one dead it is half of every majority.
    let tally = load.stop().await;
    tally.assert_only_expected_statuses();
    wait_voting(&cluster.api(1), 2).await;
    cluster.assert_equal_state().await;
    cluster.node(3).kill();
    cluster.wait_serving("wide").await;
    for key in &keys {
        assert_eq!(cluster.api(2).check("p", key).await.expect_status(200).result().remaining, 8, "{key}");
    }
    cluster.node(3).start();
    cluster.wait_ready(3).await;
    cluster.assert_equal_state().await;

    // And it is an ordinary node from now on.
    cluster.node(2).kill();
    cluster.node(2).start();
    cluster.wait_ready(2).await;
}

/// Waits until the node is a member of every shard.
async fn wait_voting(api: &Api, node: u16) {
    for _ in 0..300 {
        if api.cluster().await.shards.iter().all(|shard| shard.members.contains(&node)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("node {node} does not become a member of every shard: {:#?}", api.cluster().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_wrong_secret_is_refused_and_both_sides_say_so() {
    let mut cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("p", fixed(10)).await.expect_status(201);
    cluster.node(3).kill();
    cluster.set(3, "peers.secret", "another secret than that of the others");
    let (told, told_3) = (cluster.node(1).log().len(), cluster.node(3).log().len());
    cluster.node(3).start();
    cluster.node(1).wait_log(told, "secret", REFUSED_WITHIN).await;
    cluster.node(3).wait_log(told_3, "secret", REFUSED_WITHIN).await;
    assert!(!cluster.api(3).is_ready().await);
    cluster.wait_serving_through(&[1, 2], "p").await;

    cluster.node(3).kill();
    cluster.set(3, "peers.secret", onceward_tests::config::SECRET);
    cluster.node(3).start();
    cluster.wait_ready(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_is_refused_and_both_sides_say_so() {
    let stray = tempfile::tempdir().unwrap();
    let strange_id = {
        let mut other = Cluster::builder().start().await;
        let id = other.api(3).cluster().await.cluster_id.expect("a founded cluster has an id");
        other.stop_all().await;
        std::fs::rename(&other.node(3).data_dir, stray.path().join("data")).unwrap();
        id
    };
    let mut cluster = Cluster::builder().start().await;
    let id = cluster.api(1).cluster().await.cluster_id.expect("a founded cluster has an id");
    assert_ne!(id, strange_id);
    cluster.api(1).put_policy("p", fixed(10)).await.expect_status(201);
    cluster.node(3).kill();
    let own = cluster.node(3).data_dir.clone();
    std::fs::rename(&own, stray.path().join("own")).unwrap();
    std::fs::rename(stray.path().join("data"), &own).unwrap();
    let (told, told_3) = (cluster.node(1).log().len(), cluster.node(3).log().len());
    cluster.node(3).start();
    cluster.node(1).wait_log(told, &format!("cluster {id}, node 3 to {strange_id}"), REFUSED_WITHIN).await;
    // In its own words or in those of the peer that refused it, whichever comes first.
    cluster.node(3).wait_log(told_3, "belongs to cluster", REFUSED_WITHIN).await;
    assert!(!cluster.api(3).is_ready().await);
    cluster.wait_serving_through(&[1, 2], "p").await;

    cluster.node(3).kill();
    std::fs::remove_dir_all(&own).unwrap();
    std::fs::rename(stray.path().join("own"), &own).unwrap();
    cluster.node(3).start();
    cluster.wait_ready(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_on_the_peer_port_is_refused_without_harm() {
    const CONNECTIONS: usize = 200;
    let mut cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("p", plenty()).await.expect_status(201);
    let keys = cluster.key_on_every_shard("p");
    let pids = cluster.pids();
    let load = Load::start(&cluster.apis(), "p", &keys, 8);
    let terms = |status: onceward_tests::client::ClusterStatus| -> Vec<Option<u64>> {
        status.shards.iter().map(|shard| shard.term).collect()
    };
    let before = terms(cluster.api(1).cluster().await);

    let mut noise: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        vec![0xff; 1 << 20],
        vec![0; 64],
        b"\x7f\xff\xff\xff".to_vec(),
        b"\x00\x00\x00\x08\x93\xc1\xc1\xc1\xc1\xc1\xc1\xc1".to_vec(),
        Vec::new(),
    ];
    noise.extend((0..64u32).map(|n| (0..4096u32).map(|i| ((i ^ n).wrapping_mul(2_654_435_761) >> 13) as u8).collect()));
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..CONNECTIONS {
        let port = cluster.node((n % 3 + 1) as u16).peer_port;
        let bytes = noise[n % noise.len()].clone();
        clients.spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            // The node may hang up on us in the middle of it.
            let _ = timeout(Duration::from_secs(10), stream.write_all(&bytes)).await;
            let mut answer = Vec::new();
            timeout(Duration::from_secs(15), stream.read_to_end(&mut answer)).await.is_ok()
        });
    }
    assert!(clients.join_all().await.into_iter().all(|hung_up| hung_up), "nobody is kept on the line");

    let tally = load.stop().await;
    tally.assert_only_expected_statuses();
    assert_eq!(tally.count(&Outcome::Unknown), 0);
    assert_eq!(cluster.pids(), pids);
    assert_eq!(terms(cluster.api(1).cluster().await), before, "no leader was disturbed");
    for id in cluster.ids() {
        let mebibytes = onceward_tests::process_stats::resident_bytes(cluster.node(id).pid()) >> 20;
        assert!(mebibytes < 300, "node {id} takes {mebibytes} MiB");
    }
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_founded_once() {
    let mut cluster = Cluster::builder().start().await;
    let config = cluster.node(1).config_file.clone();
    let again = Node::run(&["init", "--config", config.to_str().unwrap()]);
    assert!(!again.status.success(), "a directory that holds a node is not founded anew");
    let answer = cluster.api(2).try_json("POST", "/v1/cluster/nodes/9/replace", &json!({})).await.unwrap();
    assert_eq!(answer.expect_status(404).json()["code"], "not_found");
    let id = cluster.api(1).cluster().await.cluster_id;
    cluster.kill_all();
    cluster.start_all();
    cluster.wait_all_ready().await;
    assert!(id.is_some());
    assert_eq!(cluster.api(3).cluster().await.cluster_id, id);
}
