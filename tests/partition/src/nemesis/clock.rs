//! Nemeses of clocks, by failpoints: a wall clock that jumps or strobes, monotonic clocks that run at other rates.

use std::time::Duration;

use tokio::time::Instant;

use super::turn::{Bite, Turn};
use crate::arena::SLOW_POLICY;

const HOUR_MS: i64 = 3_600_000;
/// Of monotonic clocks a drift of 1 % is assumed, 10 000 millionths; the probe that measures it takes some of the rest.
const RATE_PPM: (u64, u64) = (5_000, 9_000);
/// How often the other nodes are asked how far the clock is off.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// What the probe of the rate spends: the bucket takes hours to forget it.
const SPENT: u64 = 10_000;
/// What asking takes is part of what is measured; rates show in tens of milliseconds.
const MEASURED_MIN_MS: u64 = 15;

/// One node's wall clock is an hour off, either way; with leaders among the nodes that it happens to.
pub async fn wall_clock(turn: &mut Turn) -> Bite {
    let node = turn.draw_node();
    let offset_ms = if turn.draw.below(2) == 0 { HOUR_MS } else { -HOUR_MS };
    turn.arena.fail(node, |failpoints| failpoints.wall_offset_ms = offset_ms).await;
    let mut seen = 0;
    while !turn.left().is_zero() {
        turn.last_for(LOOK_EVERY).await;
        seen += u64::from(is_seen(turn, node, offset_ms));
    }
    turn.arena.fail(node, |failpoints| failpoints.wall_offset_ms = 0).await;
    turn.undone().await;
    Turn::bite(format!("node {node} by {} min", offset_ms / 60_000), [("seen_by_others", seen)])
}

/// Up to an hour to and fro, many times a second.
pub async fn wall_clock_strobe(turn: &mut Turn) -> Bite {
    let node = turn.draw_node();
    let mut seen = 0;
    while !turn.left().is_zero() {
        let size_ms = turn.draw.between(0, HOUR_MS.unsigned_abs()).cast_signed();
        let offset_ms = if turn.draw.below(2) == 0 { size_ms } else { -size_ms };
        turn.arena.fail(node, |failpoints| failpoints.wall_offset_ms = offset_ms).await;
        let moment = turn.draw_ms(60, 200);
        turn.last_for(moment).await;
        // Whichever of its values they saw.
        seen += u64::from(is_seen(turn, node, HOUR_MS / 10) || is_seen(turn, node, -HOUR_MS / 10));
    }
    turn.arena.fail(node, |failpoints| failpoints.wall_offset_ms = 0).await;
    turn.undone().await;
    Turn::bite(format!("node {node} within an hour"), [("seen_by_others", seen)])
}

/// Whether another node sees the clock off in this direction, by half of it or more.
fn is_seen(turn: &Turn, node: u16, offset_ms: i64) -> bool {
    let seen_ms = turn.arena.observed(|observed| observed.wall_clock_offsets_ms.get(&node).copied()).unwrap_or(0);
    seen_ms.signum() == offset_ms.signum() && seen_ms.abs() >= offset_ms.abs() / 2
}

/// Every node's monotonic clock runs at a rate of its own, within the drift that is assumed.
pub async fn clock_rate(turn: &mut Turn) -> Bite {
    let mut rates = Vec::new();
    for node in turn.arena.nodes() {
        let ppm = turn.draw.between(RATE_PPM.0, RATE_PPM.1).cast_signed();
        let ppm = if turn.draw.below(2) == 0 { ppm } else { -ppm };
        rates.push((node, ppm));
        turn.arena.fail(node, |failpoints| failpoints.monotonic_rate_ppm = ppm).await;
    }
    let key = format!("{:x}", turn.step.seed);
    let (first, began) = (spent(turn, &key, SPENT).await, Instant::now());
    turn.last().await;
    let (last, elapsed) = (spent(turn, &key, 0).await, began.elapsed());
    let off_ms = match (first, last) {
        (Some(first), Some(last)) => (first.abs_diff(last)).abs_diff(elapsed.as_millis() as u64),
        _ => 0,
    };
    let off_ms = if off_ms >= MEASURED_MIN_MS { off_ms } else { 0 };
    for node in turn.arena.nodes() {
        turn.arena.fail(node, |failpoints| failpoints.monotonic_rate_ppm = 0).await;
    }
    turn.undone().await;
    let told: Vec<String> = rates.iter().map(|(node, ppm)| format!("node {node} {ppm:+} ppm")).collect();
    Turn::bite(told.join(", "), [("shard_clock_off_ms", off_ms)])
}

/// Until what was spent of a bucket is refilled, by the clock of its shard.
async fn spent(turn: &Turn, key: &str, more: u64) -> Option<u64> {
    turn.arena.reset_after_ms(SLOW_POLICY, key, more).await
}
