//! What is done to the cluster, one thing after the other by several hands at once, all of it drawn from the seed. Each
//! undoes what it did.

use std::time::Duration;

use onceward_checkers::history::{Effect, Nemesis, Record};
use onceward_core::cluster::NodeId;
use onceward_tests::draw::Draw;
use tokio::time::{sleep, sleep_until};

use crate::{
    cluster::{Controls, Order},
    net::Way,
};

/// How far wall clocks jump: an hour.
const JUMP_MS: i64 = 3_600_000;
/// One step in a hundred: the drift of monotonic clocks that is assumed.
const DRIFT_EVERY: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    PowerLoss,
    PowerLossOfLeader,
    PowerLossOfAll,
    Kill,
    Isolated,
    LeaderIsolated,
    OneWay,
    SlowLinks,
    Frozen,
    WallClock,
    Drift,
    SlowSync,
}

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::PowerLoss,
        Kind::PowerLossOfLeader,
        Kind::PowerLossOfAll,
        Kind::Kill,
        Kind::Isolated,
        Kind::LeaderIsolated,
        Kind::OneWay,
        Kind::SlowLinks,
        Kind::Frozen,
        Kind::WallClock,
        Kind::Drift,
        Kind::SlowSync,
    ];

    const fn name(self) -> &'static str {
        match self {
            Kind::PowerLoss => "power-loss",
            Kind::PowerLossOfLeader => "power-loss-of-leader",
            Kind::PowerLossOfAll => "power-loss-of-all",
            Kind::Kill => "kill-one",
            Kind::Isolated => "isolated",
            Kind::LeaderIsolated => "leader-isolated",
            Kind::OneWay => "one-way",
            Kind::SlowLinks => "slow-links",
            Kind::Frozen => "frozen",
            Kind::WallClock => "wall-clock",
            Kind::Drift => "drift",
            Kind::SlowSync => "slow-sync",
        }
    }
}

/// A hand that does one thing after the other until `until`.
pub async fn torment(controls: Controls, mut draw: Draw, until: tokio::time::Instant) {
    loop {
        sleep(Duration::from_millis(draw.between(50, 2_000))).await;
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        if left.is_zero() {
            return;
        }
        let kind = *draw.pick(&Kind::ALL);
        let lasts = Duration::from_millis(length_ms(&mut draw)).min(left);
        let (from_us, changes, held) = (controls.world.now_us(), controls.leader_changes(), controls.net.held_up());
        let target = inflict(&controls, kind, lasts, &mut draw).await;
        let effect = |name: &str, count| Effect { name: name.to_owned(), count };
        controls.recorder.record(Record::Nemesis(Nemesis {
            from_us,
            until_us: controls.world.now_us(),
            name: kind.name().to_owned(),
            target,
            effects: vec![
                effect("leaders_changed", controls.leader_changes() - changes),
                effect("packets_held_up", controls.net.held_up() - held),
            ],
        }));
    }
}

/// Mostly about as long as an election takes, sometimes so long that connections die of it.
fn length_ms(draw: &mut Draw) -> u64 {
    match draw.below(10) {
        0..5 => draw.between(50, 1_500),
        5..9 => draw.between(1_000, 5_000),
        _ => draw.between(8_000, 14_000),
    }
}

/// Undoes everything: all machines run, all ways are whole.
pub fn heal(controls: &Controls) {
    controls.net.mend_all();
    for node in &controls.nodes {
        controls.order(*node, Order::Thaw);
        controls.order(*node, Order::Drift { every: 0 });
        controls.order(*node, Order::SyncSpike { ms: 0 });
        controls.order(*node, Order::Start);
    }
}

async fn inflict(controls: &Controls, kind: Kind, lasts: Duration, draw: &mut Draw) -> String {
    let any = *draw.pick(&controls.nodes);
    let leaders = controls.leaders();
    let leader = if leaders.is_empty() { any } else { *draw.pick(&leaders) };
    let over = tokio::time::Instant::now() + lasts;
    let of = |node: NodeId| format!("node {node}");
    match kind {
        Kind::PowerLoss | Kind::Kill => {
            crash(controls, &[any], kind == Kind::PowerLoss, over).await;
            of(any)
        }
        Kind::PowerLossOfLeader => {
            crash(controls, &[leader], true, over).await;
            of(leader)
        }
        Kind::PowerLossOfAll => {
            crash(controls, &controls.nodes, true, over).await;
            "all nodes".to_owned()
        }
        Kind::Isolated | Kind::LeaderIsolated => {
            let node = if kind == Kind::Isolated { any } else { leader };
            cut(controls, around(controls, node), over).await;
            of(node)
        }
        Kind::OneWay => {
            let mut ways = around(controls, any);
            let outwards = draw.chance(50);
            ways.retain(|(from, _)| (*from == any) == outwards);
            cut(controls, ways, over).await;
            format!("{} node {any}", if outwards { "from" } else { "to" })
        }
        Kind::SlowLinks => {
            let ms = draw.between(10, 400);
            around(controls, any).into_iter().for_each(|way| controls.net.slow(way, ms));
            sleep_until(over).await;
            around(controls, any).into_iter().for_each(|way| controls.net.slow(way, 0));
            format!("up to {ms} ms around node {any}")
        }
        Kind::Frozen => {
            controls.order(leader, Order::Freeze);
            sleep_until(over).await;
            controls.order(leader, Order::Thaw);
            of(leader)
        }
        Kind::WallClock => {
            let ms = if draw.chance(50) { JUMP_MS } else { -JUMP_MS };
            controls.order(any, Order::WallOffset { ms });
            sleep_until(over).await;
            // It may as well stay wrong.
            if draw.chance(50) {
                controls.order(any, Order::WallOffset { ms: 0 });
            }
            format!("node {any} by {ms} ms")
        }
        Kind::Drift => {
            let every = i64::try_from(DRIFT_EVERY).expect("a small number") * if draw.chance(50) { 1 } else { -1 };
            controls.order(any, Order::Drift { every });
            sleep_until(over).await;
            controls.order(any, Order::Drift { every: 0 });
            format!("node {any}, one in {every} milliseconds")
        }
        Kind::SlowSync => {
            let ms = draw.between(20, 500);
            controls.order(any, Order::SyncSpike { ms });
            sleep_until(over).await;
            controls.order(any, Order::SyncSpike { ms: 0 });
            format!("up to {ms} ms on node {any}")
        }
    }
}

async fn crash(controls: &Controls, nodes: &[NodeId], power_loss: bool, over: tokio::time::Instant) {
    nodes.iter().for_each(|node| controls.order(*node, Order::Crash { power_loss }));
    sleep_until(over).await;
    nodes.iter().for_each(|node| controls.order(*node, Order::Start));
}

async fn cut(controls: &Controls, ways: Vec<Way>, over: tokio::time::Instant) {
    controls.net.cut(ways.clone());
    sleep_until(over).await;
    controls.net.mend(ways);
}

/// All ways from and to a node.
fn around(controls: &Controls, node: NodeId) -> Vec<Way> {
    let others = controls.nodes.iter().copied().filter(|other| *other != node);
    others.flat_map(|other| [(node, other), (other, node)]).collect()
}
