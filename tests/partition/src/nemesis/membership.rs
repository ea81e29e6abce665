//! Nemeses of membership: a node loses its disk, and another one takes its place while the cluster serves.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::turn::{Bite, Turn};

/// How long a replacement may take on a busy machine: every shard's state is sent.
const REPLACED_MAX: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Only while all nodes are up and serve, so that what was on the disk is whole on the others.
pub async fn replace_node(turn: &mut Turn) -> Bite {
    let node = turn.draw_node();
    let others = turn.nodes_but(node);
    let _links = turn.arena.take_links().await;
    let _processes = turn.arena.take_processes().await;
    let (nodes, shards) = (turn.arena.nodes(), turn.arena.shards());
    let sound = timeout(REPLACED_MAX, turn.arena.wait_serving(&nodes, &shards)).await.is_ok();
    if !sound {
        return Turn::bite(format!("node {node}: spared, as the others did not serve"), []);
    }
    let (led, began) = (turn.arena.led_by(node), Instant::now());
    turn.arena.kill(&[node]).await;
    let loss = turn.lost(began, &led, &others);
    turn.arena.wipe(node).await;
    turn.last().await;
    turn.found_again(loss).await;
    let asked = ask(turn, node, &others).await;
    turn.arena.start_node(node).await;
    let ready = turn.arena.wait_ready(node).await;
    // How long it took until then depends on how much there is to send.
    turn.undone().await;
    Turn::bite(format!("node {node}"), [("nodes_replaced", u64::from(asked && ready))])
}

/// Has one of the others let an empty node come in.
async fn ask(turn: &Turn, node: u16, others: &[u16]) -> bool {
    let path = format!("/v1/cluster/nodes/{node}/replace");
    let deadline = Instant::now() + REPLACED_MAX;
    while Instant::now() < deadline {
        for other in others {
            let answer = turn.arena.observer_of(*other).try_json("POST", &path, &json!({})).await;
            if answer.is_ok_and(|answer| answer.status == 200) {
                return true;
            }
        }
        sleep(ASK_EVERY).await;
    }
    false
}
