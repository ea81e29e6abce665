//! Nemeses of processes: killed, frozen, restarted.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::turn::{Bite, Turn};

/// So long a dead leader stays dead: others are elected and serve.
const DEAD_MS: (u64, u64) = (3_000, 5_000);
/// Well past the lease of a leader and the time until another one is elected.
const PAUSED_MS: (u64, u64) = (3_500, 6_000);
/// Between two leaders, so that shards serve again before the next one is lost.
const APART: Duration = Duration::from_secs(2);

pub async fn kill_one(turn: &mut Turn) -> Bite {
    let node = turn.draw_node();
    let _processes = turn.arena.take_processes().await;
    dead_for(turn, node, Duration::MAX).await;
    Turn::bite(format!("node {node}"), [("processes_killed", 1)])
}

pub async fn kill_leader(turn: &mut Turn) -> Bite {
    let _processes = turn.arena.take_processes().await;
    let before = turn.before().await;
    let mut killed = Vec::new();
    while turn.left() > APART {
        let (leader, time) = (turn.draw_leader().await, turn.draw_ms(DEAD_MS.0, DEAD_MS.1));
        dead_for(turn, leader, time).await;
        killed.push(leader.to_string());
        sleep(APART.min(turn.left())).await;
    }
    let effects = turn.since(&before, ["leaders_changed"]).await;
    Turn::bite(format!("leaders {}", killed.join(", ")), effects)
}

/// Kills a node, and starts it again after some time.
async fn dead_for(turn: &Turn, node: u16, time: Duration) {
    let (led, began) = (turn.arena.led_by(node), Instant::now());
    turn.arena.kill(&[node]).await;
    let loss = turn.lost(began, &led, &turn.nodes_but(node));
    turn.last_for(time).await;
    turn.found_again(loss).await;
    turn.arena.start_node(node).await;
    turn.undone().await;
}

/// All at once, as when a rack loses power, but for the page cache.
pub async fn kill_all(turn: &mut Turn) -> Bite {
    let _processes = turn.arena.take_processes().await;
    // What is under way then is in all states that it can be in.
    let (mut rounds, nodes) = (0, turn.arena.nodes());
    while !turn.left().is_zero() {
        turn.arena.kill(&nodes).await;
        sleep(turn.draw_ms(200, 1_500)).await;
        for node in &nodes {
            turn.arena.start_node(*node).await;
        }
        turn.undone().await;
        rounds += 1;
        turn.last_for(APART).await;
    }
    Turn::bite("all nodes", [("processes_killed", rounds * nodes.len() as u64)])
}

/// Frozen past its lease, a leader thaws and knows nothing of its successor.
pub async fn pause_leader(turn: &mut Turn) -> Bite {
    let _processes = turn.arena.take_processes().await;
    let before = turn.before().await;
    let mut paused = Vec::new();
    while turn.left() > APART {
        let (leader, time) = (turn.draw_leader().await, turn.draw_ms(PAUSED_MS.0, PAUSED_MS.1));
        let (led, began) = (turn.arena.led_by(leader), Instant::now());
        turn.arena.pause(leader).await;
        let loss = turn.lost(began, &led, &turn.nodes_but(leader));
        turn.last_for(time).await;
        turn.found_again(loss).await;
        turn.arena.resume(leader).await;
        turn.undone().await;
        paused.push(leader.to_string());
        sleep(APART.min(turn.left())).await;
    }
    let effects = turn.since(&before, ["leaders_changed"]).await;
    Turn::bite(format!("leaders {}", paused.join(", ")), effects)
}

/// As an upgrade would: one node after the other, each waited for.
pub async fn rolling_restart(turn: &mut Turn) -> Bite {
    let _processes = turn.arena.take_processes().await;
    let (mut restarted, mut killed) = (0, 0);
    for node in turn.arena.nodes() {
        if turn.arena.terminate(node).await {
            restarted += 1;
        } else {
            killed += 1;
        }
        turn.arena.start_node(node).await;
        turn.undone().await;
        turn.arena.wait_ready(node).await;
    }
    Turn::bite("all nodes", [("restarted", restarted), ("killed_as_too_slow", killed)])
}
