//! The watermark of the disk: what is free is looked at about once a second, and when it is little, this node hands over
//! what it leads to nodes that have room, and refuses what would grow.
//!
//! A disk that is really full ends the process, so some room is kept for what must go on: votes, the log of commands that
//! are decided, outcomes, expiry, deletions, and the engine's own work.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use onceward_consensus::aside;
use onceward_core::{cluster::NodeId, command::Command};
use onceward_storage::{StorageError, Store};
use onceward_transport::Links;
use tokio::time::sleep;
use tracing::{debug, error, info, warn};

use crate::{founding, node::Serving, outcome::NotApplied};

/// At a hundred megabytes a second, which is more than a node writes, a tenth of the standard watermark.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// While the disk is nearly full: what an election brings here is refused until it is handed over.
const LOOK_WHILE_LOW: Duration = Duration::from_millis(200);
/// A node takes writes again once so many fifths of the watermark are free: compactions move what is free up and down.
const ROOM_AGAIN_FIFTHS: u64 = 6;

/// Nobody has looked yet.
const UNKNOWN: u64 = u64::MAX;

/// What is free, and whether it is enough.
#[derive(Debug)]
pub(crate) struct Disk {
    min_free_bytes: u64,
    free_bytes: AtomicU64,
    is_low: AtomicBool,
}

impl Disk {
    pub(crate) fn new(min_free_bytes: u64) -> Disk {
        Disk { min_free_bytes, free_bytes: AtomicU64::new(UNKNOWN), is_low: AtomicBool::new(false) }
    }

    /// Whether the disk has little left, and so this node refuses what would grow.
    pub(crate) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    /// As last looked at; `None` before.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        Some(self.free_bytes.load(Ordering::Relaxed)).filter(|free| *free != UNKNOWN)
    }

    /// Whether the node may take this command into the log of a shard.
    pub(crate) fn admit(&self, command: &Command) -> Result<(), NotApplied> {
        if self.is_low() && command.grows() { Err(NotApplied::DiskLow) } else { Ok(()) }
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "the disk is nearly full: {} bytes are free, and below {} nothing is taken that grows",
            self.free_bytes().unwrap_or_default(),
            self.min_free_bytes
        )
    }

    /// Whether so much is little, where it was so before or not.
    fn judge(&self, free_bytes: u64) -> bool {
        let again = self.min_free_bytes / 5 * ROOM_AGAIN_FIFTHS;
        free_bytes < if self.is_low() { again } else { self.min_free_bytes }
    }
}

/// Looks at the disk until the node stops.
pub(crate) async fn watch(disk: Arc<Disk>, store: Arc<dyn Store>, serving: impl Fn() -> Option<Arc<Serving>>) {
    loop {
        sleep(if disk.is_low() { LOOK_WHILE_LOW } else { LOOK_EVERY }).await;
        let Some(free_bytes) = look(&store).await else { continue };
        disk.free_bytes.store(free_bytes, Ordering::Relaxed);
        let (was_low, is_low) = (disk.is_low(), disk.judge(free_bytes));
        if is_low && let Some(serving) = serving() {
            // Before anything is refused: where others have room, nobody notices.
            hand_over(&serving).await;
        }
        disk.is_low.store(is_low, Ordering::Relaxed);
        match (was_low, is_low) {
            (false, true) => error!(free_bytes, min_free_bytes = disk.min_free_bytes, "the disk is nearly full"),
            (true, false) => info!(free_bytes, "the disk has room again"),
            _ => {}
        }
    }
}

async fn look(store: &Arc<dyn Store>) -> Option<u64> {
    let store = store.clone();
    let looked = aside(move || store.free_bytes()).await;
    match looked {
        Ok(Ok(free_bytes)) => Some(free_bytes),
        Ok(Err(error)) => {
            warn_of(&error);
            None
        }
        // The runtime ends.
        Err(_) => None,
    }
}

fn warn_of(error: &StorageError) {
    warn!(%error, "it isn't known how much of the disk is free");
}

/// Gives what this node leads to those who have room, again and again: an election may bring it back, which is better than
/// no leader.
async fn hand_over(serving: &Serving) {
    let led: Vec<_> = serving.router.local_shards().filter(|shard| shard.leads().is_ok()).collect();
    if led.is_empty() {
        return;
    }
    let roomy = with_room(serving).await;
    join_all(led.into_iter().map(|shard| async {
        match shard.group.handover_to(&roomy).await {
            Ok(()) => {}
            Err(error) => debug!(shard = %shard.id, %error, "no other node takes the shard over"),
        }
    }))
    .await;
}

/// The other nodes that answer and say that their disks have room.
async fn with_room(serving: &Serving) -> BTreeSet<NodeId> {
    let surroundings = &serving.surroundings;
    let links: &dyn Links = surroundings.links.as_ref();
    let others = surroundings.manifest.nodes.iter().map(|node| node.id).filter(|id| *id != surroundings.me.node);
    let asked = others.map(|node| async move { (node, founding::probe(links, node).await) });
    let has_room = |(node, probed): (NodeId, Option<crate::wire::Probed>)| {
        probed.filter(|probed| !probed.disk_is_low).map(|_| node)
    };
    join_all(asked).await.into_iter().filter_map(has_room).collect()
}

#[cfg(test)]
mod tests {
    use onceward_core::{
        idempotency::{AbandonCommand, Account, DeleteRecordCommand, Key},
        limits::{CheckCommand, CheckItem, Mode},
    };

    use super::*;

    fn check(mode: Mode) -> Command {
        let items = vec![CheckItem { policy: "p".to_owned(), key: "k".to_owned(), cost: 1 }];
        Command::Check(CheckCommand { mode, items, request_id: None })
    }

    #[test]
    fn below_the_watermark_only_what_grows_is_refused_and_a_little_above_it_still() {
        let disk = Disk::new(1_000);
        let (account, key) = (Account::parse("a").unwrap(), Key::parse("k").unwrap());
        let delete = Command::DeleteRecord(DeleteRecordCommand { account: account.clone(), key: key.clone() });
        let abandon = Command::Abandon(AbandonCommand { account, key, token: 1 });
        let mut see = |free_bytes| {
            let is_low = disk.judge(free_bytes);
            disk.is_low.store(is_low, Ordering::Relaxed);
            assert!([&delete, &abandon, &check(Mode::Peek)].into_iter().all(|command| disk.admit(command) == Ok(())));
            disk.admit(&check(Mode::Enforce)).is_ok()
        };
        assert_eq!([1_000, 999, 1_000, 1_199, 1_200, 1_000].map(&mut see), [true, false, false, false, true, true]);
    }

    #[test]
    fn without_a_watermark_no_disk_is_too_small() {
        let disk = Disk::new(0);
        assert!(!disk.judge(0));
    }
}
