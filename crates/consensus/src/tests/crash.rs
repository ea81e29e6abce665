//! Power cuts at any moment: nothing acknowledged is lost, and every member starts again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use onceward_core::cluster::ShardId;
use onceward_storage::{MemoryStore, ShardState};
use tokio::time::sleep;

use super::{Cluster, policy, put, write};
use crate::{applied::Applied, log::positions_on_disk};

/// Rounds of load with a power cut each.
const ROUNDS: u64 = 30;

/// A small reproducible stream of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// The state on a disk must not be ahead of the log on it.
fn assert_state_behind_log(disk: &MemoryStore) {
    let last = positions_on_disk(disk, ShardId::SYSTEM).unwrap().last;
    let state = ShardState::open(Arc::new(disk.clone()), ShardId::SYSTEM).unwrap();
    let applied = state.applied().map(|applied| Applied::decode(&bytes::Bytes::copy_from_slice(applied)).unwrap());
    let applied = applied.and_then(|applied| applied.log_id);
    assert!(applied <= last, "the state is at {applied:?}, the log ends at {last:?}");
}

/// What the clients of a cluster were told.
#[derive(Default)]
struct Told {
    /// Every write that is acknowledged has a revision of its own. One that is lost gives its revision to another.
    revisions: BTreeSet<u64>,
    /// What each client's policy was set to last.
    last: BTreeMap<String, u64>,
}

async fn survive(nodes: u16, seed: u64, tune: fn(&mut crate::GroupConfig)) {
    let mut dice = Dice(seed);
    let mut cluster = Cluster::found(nodes, tune).await;
    // A snapshot that was just installed is ahead of the log, until that is purged to it.
    let snapshots = cluster.members[&1].config.snapshot_every_bytes < 1 << 20;
    let told: Arc<Mutex<Told>> = Arc::default();
    for round in 0..ROUNDS {
        cluster.leader().await;
        let stop = Arc::new(AtomicBool::new(false));
        let load = (0..4).map(|client| {
            let (groups, stop, told) = (cluster.groups(), Arc::clone(&stop), Arc::clone(&told));
            tokio::spawn(async move {
                load(&groups, &format!("policy-{client}"), round * 1_000_000 + 1, &stop, &told).await
            })
        });
        let load: Vec<_> = load.collect();
        sleep(Duration::from_millis(dice.roll(80))).await;
        // Sometimes one member, sometimes all at once.
        let victims = match dice.roll(3) {
            0 => (1..=nodes).collect(),
            _ => vec![1 + dice.roll(u64::from(nodes)) as u16],
        };
        let mut disks = Vec::new();
        for victim in victims {
            disks.push(cluster.kill(victim, dice.roll(u64::MAX)).await);
        }
        stop.store(true, Ordering::Relaxed);
        for client in load {
            client.await.unwrap();
        }
        for (me, disk) in disks {
            if !snapshots {
                assert_state_behind_log(&disk);
            }
            cluster.start(me, disk).await;
        }
    }
    assert!(write(&cluster.groups(), "the-end").await);
    cluster.agree().await;
    let told = told.lock().unwrap();
    assert!(told.revisions.len() > ROUNDS as usize, "only {} writes in all rounds", told.revisions.len());
    for group in cluster.groups() {
        for (name, burst) in &told.last {
            let policy = policy(&group, name).unwrap_or_else(|| panic!("{name} is lost on {}", group.me()));
            assert!(policy.spec.burst >= *burst, "{name} is at {} and was acknowledged at {burst}", policy.spec.burst);
        }
        assert!(policy(&group, "the-end").unwrap().revision > *told.revisions.last().unwrap());
    }
}

/// Writes ever greater values until told to stop or until an outcome is unknown.
async fn load(groups: &[crate::Group], name: &str, from: u64, stop: &AtomicBool, told: &Mutex<Told>) {
    for burst in from.. {
        let over = async {
            while !stop.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let revision = tokio::select! {
            revision = put(groups, name, burst) => revision,
            () = over => None,
        };
        let Some(revision) = revision else { return };
        let mut told = told.lock().unwrap();
        assert!(told.revisions.insert(revision), "revision {revision} was acknowledged twice: a write is lost");
        told.last.insert(name.to_owned(), burst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_lose_nothing_acknowledged_however_often_their_power_is_cut() {
    survive(3, 1, |config| config.flush_rows = 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_while_they_snapshot_and_purge_all_the_time() {
    survive(3, 2, |config| {
        config.snapshot_every_bytes = 8 << 10;
        config.keep_bytes = 2 << 10;
        config.flush_rows = 4;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_does_a_member_alone() {
    survive(1, 3, |config| config.flush_rows = 1).await;
}
