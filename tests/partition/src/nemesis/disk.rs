//! Nemeses of disks, by failpoints: one that is full, some that are slow, one that fails; and snapshots without end.

use std::{path::Path, time::Duration};

use tokio::time::Instant;

use super::turn::{Bite, Turn};

/// A node that stays alive after its fsync failed would be found by its absence of effect.
const EXIT_MAX: Duration = Duration::from_secs(10);
const SLOW_MS: (u64, u64) = (60, 200);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A leader's disk has nothing free: it refuses what grows, and says so.
pub async fn disk_full(turn: &mut Turn) -> Bite {
    let node = turn.draw_leader().await;
    turn.arena.fail(node, |failpoints| failpoints.free_bytes = Some(0)).await;
    let mut told = 0;
    while !turn.left().is_zero() {
        turn.last_for(LOOK_EVERY).await;
        told += u64::from(turn.arena.says_disk_full(node).await);
    }
    turn.arena.fail(node, |failpoints| failpoints.free_bytes = None).await;
    turn.undone().await;
    Turn::bite(format!("node {node}"), [("told_by_readyz", told)])
}

/// Every fsync takes longer, on all nodes but one: no majority is without a slow disk.
pub async fn slow_fsync(turn: &mut Turn) -> Bite {
    let (spared, delay) = (turn.draw_node(), turn.draw_ms(SLOW_MS.0, SLOW_MS.1));
    let slow = turn.nodes_but(spared);
    for node in &slow {
        turn.arena.fail(*node, |failpoints| failpoints.sync_delay_ms = delay.as_millis() as u64).await;
    }
    let shards: Vec<u16> = turn.arena.shards().into_iter().filter(|shard| *shard > 0).collect();
    let through = vec![turn.arena.observer_of(spared).clone()];
    let tally = turn.last_asking_slow(Duration::MAX, through, &shards, delay).await;
    for node in &slow {
        turn.arena.fail(*node, |failpoints| failpoints.sync_delay_ms = 0).await;
    }
    turn.undone().await;
    Turn::bite(format!("nodes {slow:?} by {delay:?}"), [("slow_answers", tally.slow())])
}

/// The process has to end, as nobody knows what is on its disk; whoever runs it starts it again.
pub async fn fsync_error(turn: &mut Turn) -> Bite {
    let _processes = turn.arena.take_processes().await;
    let node = turn.draw_leader().await;
    let led = turn.arena.led_by(node);
    turn.arena.expect_exit(node);
    turn.arena.fail(node, |failpoints| failpoints.sync_fails = true).await;
    let (other, shard) = (turn.nodes_but(node)[0], turn.arena.data_shards());
    let ended = tokio::select! {
        ended = turn.arena.wait_exit(node, EXIT_MAX) => ended,
        // So that there is something to sync.
        () = turn.arena.press(other, shard) => false,
    };
    let lost = if ended { led } else { Vec::new() };
    let loss = turn.lost(Instant::now(), &lost, &turn.nodes_but(node));
    turn.arena.fail(node, |failpoints| failpoints.sync_fails = false).await;
    turn.last().await;
    turn.found_again(loss).await;
    turn.arena.start_node(node).await;
    turn.undone().await;
    Turn::bite(format!("node {node}"), [("processes_ended", u64::from(ended))])
}

/// Logs are cut behind a snapshot every few entries, by the settings of the whole run; one shard gets more than a few.
pub async fn snapshots(turn: &mut Turn) -> Bite {
    let (node, shard) = (turn.draw_node(), turn.draw.between(1, turn.arena.data_shards().into()) as u16);
    let before = written(turn).await;
    tokio::select! {
        () = turn.last() => {}
        () = turn.arena.press(node, shard) => {}
    }
    let more = written(turn).await.saturating_sub(before);
    Turn::bite(format!("shard {shard} in a hurry"), [("snapshots_written", more)])
}

/// Snapshots are numbered, each shard's on its own; only the newest is kept.
async fn written(turn: &Turn) -> u64 {
    let mut sum = 0;
    for node in turn.arena.nodes() {
        sum += numbers(&turn.arena.data_dir(node).await);
    }
    sum
}

fn numbers(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let number = |path: &Path| path.file_stem()?.to_str()?.rsplit('-').next()?.parse::<u64>().ok();
    let of = |path: &Path| match path.extension() {
        _ if path.is_dir() => numbers(path),
        Some(extension) if extension == "snapshot" => number(path).unwrap_or(0),
        _ => 0,
    };
    entries.flatten().map(|entry| of(&entry.path())).sum()
}
