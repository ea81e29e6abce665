//! Nemeses of the network: cuts of all shapes, links that are slow, flaky or corrupt, clients that are cut off.

use std::time::Duration;

use onceward_checkers::history::{Isolation, Record};
use onceward_tests::links::{Condition, Flow, Party};
use tokio::time::{Instant, sleep};

use super::turn::{Bite, Turn};

/// So long a leader stays isolated: its lease ends, another one is elected and serves.
const ISOLATED_MS: (u64, u64) = (4_000, 6_000);
/// Between two leaders, so that shards serve again before the next one is lost.
const APART: Duration = Duration::from_secs(2);
/// Each costs a connection, and links are still to carry something.
const CORRUPT_PER_1000: u32 = 5;
/// Names of what counts as held, by kind of network.
const HELD: [&str; 3] = ["bytes_held", "connections_held", "packets_dropped"];

/// The minority side is the leader alone; both sides are asked.
pub async fn leader_isolated(turn: &mut Turn) -> Bite {
    let _cut = turn.arena.take_links().await;
    let before = turn.before().await;
    let (mut refused, mut isolated) = (0, Vec::new());
    while turn.left() > APART {
        let leader = turn.draw_leader().await;
        let others = turn.nodes_but(leader);
        isolated.push(leader.to_string());
        let (condition, time) = (drawn_cut(turn), turn.draw_ms(ISOLATED_MS.0, ISOLATED_MS.1));
        let (led, began) = (turn.arena.led_by(leader), Instant::now());
        turn.arena.lay(turn.layer, &across(&[leader], &others), condition).await;
        let from_us = turn.recorder.now_us();
        let loss = turn.lost(began, &led, &others);
        let shards = turn.arena.shards();
        let asked = turn.last_asking(time, vec![turn.arena.observer_of(leader).clone()], &shards).await;
        refused += asked.refused();
        turn.found_again(loss).await;
        let until_us = turn.recorder.now_us();
        turn.recorder.record(Record::Isolation(Isolation { from_us, until_us, node: leader }));
        turn.arena.lift(turn.layer).await;
        turn.undone().await;
        sleep(APART.min(turn.left())).await;
    }
    let mut effects = turn.since(&before, ["leaders_changed"]).await;
    effects.push(("refused_in_minority", refused));
    Turn::bite(format!("leaders {}", isolated.join(", ")), effects)
}

pub async fn random_halves(turn: &mut Turn) -> Bite {
    let mut nodes = turn.arena.nodes();
    turn.draw.shuffle(&mut nodes);
    let (minority, majority) = nodes.split_at(nodes.len() / 2);
    let _cut = turn.arena.take_links().await;
    let before = turn.before().await;
    let led: Vec<u16> = minority.iter().flat_map(|node| turn.arena.led_by(*node)).collect();
    let (condition, began) = (drawn_cut(turn), Instant::now());
    turn.arena.lay(turn.layer, &across(minority, majority), condition).await;
    let loss = turn.lost(began, &led, majority);
    let asked = minority.iter().map(|node| turn.arena.observer_of(*node).clone()).collect();
    let tally = turn.last_asking(Duration::MAX, asked, &turn.arena.shards()).await;
    turn.found_again(loss).await;
    turn.arena.lift(turn.layer).await;
    turn.undone().await;
    let mut effects = turn.since(&before, ["leaders_changed"]).await;
    effects.push(("refused_in_minority", tally.refused()));
    Turn::bite(format!("{minority:?} from {majority:?}"), effects)
}

/// What a node says to one or all others is lost, or what it is told; the other direction goes on.
pub async fn one_way(turn: &mut Turn) -> Bite {
    let node = turn.draw_leader().await;
    let others = turn.nodes_but(node);
    let one = *turn.draw.pick(&others);
    let said = |to: &[u16]| to.iter().map(|to| Flow::between_nodes(node, *to)).collect::<Vec<Flow>>();
    let (flows, target) = match turn.draw.below(4) {
        0 => (said(&[one]), format!("{node} to {one}")),
        1 => (vec![Flow::between_nodes(one, node)], format!("{one} to {node}")),
        2 => (said(&others), format!("all from {node}")),
        _ => (said(&others).into_iter().map(Flow::back).collect(), format!("all to {node}")),
    };
    let _cut = turn.arena.take_links().await;
    held(turn, &flows, target).await
}

/// Two halves that reach each other only through a node between them.
pub async fn bridge(turn: &mut Turn) -> Bite {
    let mut nodes = turn.arena.nodes();
    turn.draw.shuffle(&mut nodes);
    let (between, halves) = nodes.split_first().expect("clusters have nodes");
    let (left, right) = halves.split_at(halves.len() / 2);
    let _cut = turn.arena.take_links().await;
    held(turn, &across(left, right), format!("{left:?} – {between} – {right:?}")).await
}

async fn held(turn: &Turn, flows: &[Flow], target: String) -> Bite {
    let before = turn.before().await;
    turn.arena.lay(turn.layer, flows, Condition::hold()).await;
    turn.last().await;
    let mut effects = turn.since(&before, HELD).await;
    turn.arena.lift(turn.layer).await;
    turn.undone().await;
    effects.extend(turn.since(&before, ["leaders_changed"]).await);
    Turn::bite(target, effects)
}

/// Tens of milliseconds each way, and half a megabyte a second.
pub async fn slow_links(turn: &mut Turn) -> Bite {
    let condition = Condition {
        delay: turn.draw_ms(10, 40),
        jitter: turn.draw_ms(10, 60),
        bytes_per_s: Some(512 << 10),
        ..Condition::default()
    };
    let before = turn.before().await;
    turn.arena.lay(turn.layer, &all(&turn.arena.nodes()), condition).await;
    turn.last().await;
    let effects = turn.since(&before, ["bytes_slowed"]).await;
    turn.arena.lift(turn.layer).await;
    turn.undone().await;
    Turn::bite(format!("all, by {:?} and up to {:?} more", condition.delay, condition.jitter), effects)
}

/// One link after the other is cut for a moment, reset, half closed or throttled.
pub async fn flaky_links(turn: &mut Turn) -> Bite {
    let before = turn.before().await;
    let mut flows = all(&turn.arena.nodes());
    while !turn.left().is_zero() {
        turn.draw.shuffle(&mut flows);
        let (flow, moment) = (flows[0], turn.draw_ms(100, 1_500));
        match turn.draw.below(4) {
            0 => turn.arena.lay(turn.layer, &[flow], Condition::hold()).await,
            1 => {
                let throttled = Condition { bytes_per_s: Some(20 << 10), ..Condition::default() };
                turn.arena.lay(turn.layer, &[flow, flow.back()], throttled).await;
            }
            2 => turn.arena.reset(flow).await,
            _ => turn.arena.half_close(flow).await,
        }
        turn.last_for(moment).await;
        turn.arena.lift(turn.layer).await;
    }
    turn.undone().await;
    let names = ["connections_reset", "half_closed", "bytes_held", "packets_dropped", "packets_rejected"];
    let effects = turn.since(&before, names).await;
    Turn::bite("one link after the other", effects)
}

pub async fn corrupt(turn: &mut Turn) -> Bite {
    let before = turn.before().await;
    let condition = Condition { corrupt_per_1000: CORRUPT_PER_1000, ..Condition::default() };
    turn.arena.lay(turn.layer, &all(&turn.arena.nodes()), condition).await;
    turn.last().await;
    let effects = turn.since(&before, ["bytes_corrupted", "packets_dropped"]).await;
    turn.arena.lift(turn.layer).await;
    turn.undone().await;
    Turn::bite("all links between nodes", effects)
}

/// Clients cannot reach one node, or are not answered by it, or both.
pub async fn client_links(turn: &mut Turn) -> Bite {
    let node = turn.draw_node();
    let there = Flow::new(Party::Clients, Party::Node(node));
    let (flows, target) = match turn.draw.below(3) {
        0 => (vec![there], format!("clients to {node}")),
        1 => (vec![there.back()], format!("{node} to clients")),
        _ => (vec![there, there.back()], format!("clients and {node}")),
    };
    let condition = drawn_cut(turn);
    turn.arena.lay(turn.layer, &flows, condition).await;
    let client = vec![turn.arena.client_of(node).clone()];
    let tally = turn.last_asking(Duration::MAX, client, &turn.arena.shards()).await;
    turn.arena.lift(turn.layer).await;
    turn.undone().await;
    Turn::bite(target, [("requests_lost", tally.refused())])
}

/// Silent, or by resets: peers find out in other ways.
fn drawn_cut(turn: &mut Turn) -> Condition {
    match turn.draw.below(3) {
        0 => Condition::reset(),
        _ => Condition::hold(),
    }
}

/// Both directions of all links between two sides.
fn across(left: &[u16], right: &[u16]) -> Vec<Flow> {
    let there = left.iter().flat_map(|from| right.iter().map(|to| Flow::between_nodes(*from, *to)));
    there.flat_map(|flow| [flow, flow.back()]).collect()
}

/// Both directions of all links.
fn all(nodes: &[u16]) -> Vec<Flow> {
    let from = |from: &u16| nodes.iter().filter(|to| *to != from).map(|to| Flow::between_nodes(*from, *to)).collect();
    nodes.iter().flat_map(|node| -> Vec<Flow> { from(node) }).collect()
}
