//! How the clients of a simulation reach the nodes: the calls that the partition suite makes, and what it makes of their
//! answers, over a network between client and node.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use onceward_checkers::history::{Call, Outcome};
use onceward_core::cluster::NodeId;
use onceward_partition::wire::{self, Gate, Targets};
use tokio::time::{sleep, timeout};

use crate::cluster::Controls;

/// More than the product's own deadline of 2 s.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn gates(controls: &Controls) -> Vec<Arc<dyn Gate>> {
    let gate = |node: &NodeId| Arc::new(NodeGate { node: *node, controls: controls.clone() }) as Arc<dyn Gate>;
    controls.nodes.iter().map(gate).collect()
}

struct NodeGate {
    node: NodeId,
    controls: Controls,
}

impl NodeGate {
    async fn ask(&self, targets: &Targets, call: &Call) -> Outcome {
        self.travel().await;
        let (method, path, body) = wire::request(targets, call);
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let Some(answer) = self.controls.ask(self.node, method, path, body).await else { return Outcome::Refused };
        let Ok(Ok((status, body))) = timeout(PATIENCE, answer).await else { return Outcome::Unknown };
        self.travel().await;
        wire::outcome(call, status, &body)
    }

    async fn travel(&self) {
        sleep(Duration::from_millis(self.controls.world.between(0, 2))).await;
    }
}

impl Gate for NodeGate {
    fn perform<'c>(&'c self, targets: &'c Targets, call: &'c Call) -> BoxFuture<'c, Outcome> {
        Box::pin(self.ask(targets, call))
    }
}
