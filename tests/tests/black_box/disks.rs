//! Disks that fill up: a small file system for a node's data, and something else that takes the room in it. Mounting
//! takes root; without, these tests only say that they were not run.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use onceward_tests::{
    client::{Answer, Api, Outcome},
    cluster::{Builder, Cluster},
};
use serde_json::{Value, json};

use crate::fixed;

/// A write-ahead log and table files of a young node take some forty.
const SIZE_MIB: u64 = 192;
const WATERMARK_BYTES: u64 = 32 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// A file system of its own under a node's data directory, unmounted when dropped.
struct SmallDisk {
    dir: PathBuf,
}

impl SmallDisk {
    /// Moves a node's data onto a small disk. `None`: this process may not mount.
    async fn under(cluster: &mut Cluster, id: u16) -> Option<SmallDisk> {
        if !rustix::process::geteuid().is_root() {
            println!("not run: mounting a small disk takes root");
            return None;
        }
        cluster.node(id).stop().await;
        let dir = cluster.node(id).data_dir.clone();
        let aside = dir.with_extension("aside");
        fs::rename(&dir, &aside).unwrap();
        fs::create_dir(&dir).unwrap();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={SIZE_MIB}m"), "onceward-test", text(&dir)]);
        let disk = SmallDisk { dir };
        run("cp", &["-a", &format!("{}/.", text(&aside)), text(&disk.dir)]);
        fs::remove_dir_all(&aside).unwrap();
        cluster.node(id).start();
        cluster.wait_ready(id).await;
        Some(disk)
    }

    fn free_bytes(&self) -> u64 {
        let system = rustix::fs::statvfs(&self.dir).unwrap();
        system.f_bavail * system.f_frsize
    }

    /// Takes room until so much is left.
    fn fill_up_to(&self, free_bytes: u64) {
        let mut ballast = File::options().create(true).append(true).open(self.ballast()).unwrap();
        let piece = [0; 4096];
        while self.free_bytes() > free_bytes {
            match ballast.write_all(&piece) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn make_room(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.dir.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, because the node may still have files open; it is gone soon.
        let _ = Command::new("umount").args(["-l", text(&self.dir)]).status();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    assert!(status.as_ref().is_ok_and(|status| status.success()), "{program} {arguments:?}: {status:?}");
}

fn builder() -> Builder {
    Cluster::builder().set("storage.min_free_bytes", WATERMARK_BYTES as i64)
}

async fn post(api: &Api, call: &str, body: &Value) -> Answer {
    api.try_json("POST", &format!("/v1/idempotency/{call}"), body).await.unwrap()
}

async fn begin(api: &Api, key: &str) -> Answer {
    post(api, "begin", &json!({ "account": "a", "key": key, "fingerprint": "f", "lease_ms": 600_000 })).await
}

async fn token(api: &Api, key: &str) -> u64 {
    begin(api, key).await.expect_status(201).json()["token"].as_u64().unwrap()
}

fn complete(key: &str, token: u64, body: &str) -> Value {
    json!({ "account": "a", "key": key, "token": token, "response": { "status": 201, "headers": {}, "body": body } })
}

#[track_caller]
fn expect_nearly_full(answer: &Answer) {
    assert_eq!((answer.status, answer.json()["code"].as_str()), (503, Some("unavailable")), "{answer:?}");
    assert!(answer.body.contains("nearly full"), "{answer:?}");
}

/// Until `/readyz` says so.
async fn wait_nearly_full(api: &Api) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = api.get("/readyz").await;
        if answer.status == 503 {
            return expect_nearly_full(&answer);
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_with_a_nearly_full_disk_refuses_what_grows_takes_what_ends_or_removes_and_serves_once_there_is_room()
 {
    let mut cluster = builder().nodes(1).start().await;
    let Some(disk) = SmallDisk::under(&mut cluster, 1).await else { return };
    let api = cluster.api(1);
    api.put_policy("tight", fixed(5)).await.expect_status(201);
    let (held, given_up) = (token(&api, "held").await, token(&api, "given-up").await);
    let stored = token(&api, "stored").await;
    post(&api, "complete", &complete("stored", stored, "as it was")).await.expect_status(200);

    disk.fill_up_to(WATERMARK_BYTES / 2);
    wait_nearly_full(&api).await;
    assert_eq!(api.metric("onceward_disk_refusing").await, 1.0);
    assert!((1.0..WATERMARK_BYTES as f64).contains(&api.metric("onceward_disk_free_bytes").await));
    expect_nearly_full(&begin(&api, "new").await);
    expect_nearly_full(&api.put_policy("wide", fixed(9)).await);
    api.check("tight", "k").await.expect_status(503);

    assert_eq!(api.remaining("tight", "k").await, 5, "a look takes nothing");
    begin(&api, "stored").await.expect_status(200);
    post(&api, "complete", &complete("held", held, "done")).await.expect_status(200);
    let given_up = json!({ "account": "a", "key": "given-up", "token": given_up });
    post(&api, "abandon", &given_up).await.expect_status(200);
    let deleted = api.send("DELETE", "/v1/idempotency/a/stored", &[], Vec::new()).await.unwrap();
    deleted.expect_status(204);
    assert!(disk.free_bytes() > 0, "the process lives by what is kept free");

    disk.make_room();
    cluster.wait_ready(1).await;
    begin(&api, "new").await.expect_status(201);
    api.check("tight", "k").await.expect_status(200);
    begin(&api, "held").await.expect_status(200);
    assert_eq!(api.metric("onceward_disk_refusing").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_really_full_ends_the_process_and_nothing_acknowledged_is_lost() {
    let mut cluster = builder().nodes(1).start().await;
    let Some(disk) = SmallDisk::under(&mut cluster, 1).await else { return };
    let api = cluster.api(1);
    // Together more than the engine keeps allocated for its log.
    let response = "x".repeat(200_000);
    let mut tokens = Vec::new();
    for n in 0..200 {
        tokens.push((format!("k{n}"), token(&api, &format!("k{n}")).await));
    }
    disk.fill_up_to(0);
    let mut acknowledged = Vec::new();
    for (key, token) in &tokens {
        let answer = api.try_json("POST", "/v1/idempotency/complete", &complete(key, *token, &response)).await;
        match Outcome::of(&answer) {
            Outcome::Done => acknowledged.push(key),
            Outcome::NotApplied | Outcome::Unknown => break,
            other => panic!("{other:?}: {answer:?}"),
        }
    }
    let status = cluster.node(1).wait_exit(PATIENCE).await;
    assert_eq!(status.code(), Some(4), "{status}");
    assert!(cluster.node(1).log().contains("No space left on device"));

    disk.make_room();
    cluster.node(1).start();
    cluster.wait_ready(1).await;
    println!("{} completions before the disk was full", acknowledged.len());
    for key in acknowledged {
        let answer = begin(&api, key).await.expect_status(200);
        assert_eq!(answer.json()["response"]["body"], Value::from(response.as_str()), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn among_others_with_room_a_node_with_a_nearly_full_disk_leads_nothing_and_nobody_is_refused() {
    let mut cluster = builder().start().await;
    let Some(disk) = SmallDisk::under(&mut cluster, 1).await else { return };
    // What the others lead comes to node 1, the last one that is left.
    for id in [2, 3] {
        cluster.node(id).stop().await;
    }
    for id in [2, 3] {
        cluster.node(id).start();
    }
    cluster.wait_all_ready().await;
    let (full, other) = (cluster.api(1), cluster.api(2));
    assert!(full.metric("onceward_shards_led").await > 0.0);
    disk.fill_up_to(WATERMARK_BYTES / 2);
    let deadline = Instant::now() + PATIENCE;
    let mut number = 0;
    while full.metric("onceward_shards_led").await > 0.0 || full.is_ready().await {
        for api in [&full, &other] {
            number += 1;
            begin(api, &format!("k{number}")).await.expect_status(201);
        }
        assert!(Instant::now() < deadline, "node 1 still leads");
    }
    wait_nearly_full(&full).await;
    // It still takes what others lead into its log; what came to it when node 3 stopped it gives away again.
    cluster.node(3).stop().await;
    for api in [&full, &other] {
        number += 1;
        let key = format!("k{number}");
        while begin(api, &key).await.status == 503 {
            assert!(Instant::now() < deadline + PATIENCE, "nobody leads the shard of {key}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    cluster.node(3).start();
    disk.make_room();
    cluster.wait_all_ready().await;
    cluster.assert_equal_state().await;
}
