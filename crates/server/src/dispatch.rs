//! From shards to their dispatchers: the one place that knows both.

use std::sync::{Arc, OnceLock};

use futures::{
    future::BoxFuture,
    stream::{self, BoxStream, StreamExt},
};
use onceward_core::{
    cluster::ShardId,
    rows::{ReadRows, RowsError},
    time::ShardTime,
    webhooks::RecordOutcomes,
};
use onceward_dispatch::{Dispatch, DispatchConfig, DispatchStats, Feed, Recorded, StartError, SystemResolver, Touched};
use onceward_shard::{Node, OsEntropy, ShardPort};
use tokio::{task::AbortHandle, time::Instant};

use crate::node;

/// The deliveries of this node. They begin once it serves.
#[derive(Clone)]
pub struct Deliveries {
    dispatch: Arc<OnceLock<Dispatch>>,
    beginning: AbortHandle,
}

impl Deliveries {
    /// `on_fatal` is told when they cannot begin.
    pub fn begin(node: Node, config: DispatchConfig, on_fatal: Arc<dyn Fn(String) + Send + Sync>) -> Deliveries {
        let dispatch = Arc::<OnceLock<Dispatch>>::default();
        let begun = dispatch.clone();
        let beginning = tokio::spawn(async move {
            match dispatch_over(node.shard_ports().await, config).await {
                // Only this task sets it, once.
                Ok(dispatch) => drop(begun.set(dispatch)),
                Err(error) => on_fatal(error.to_string()),
            }
        });
        Deliveries { dispatch, beginning: beginning.abort_handle() }
    }

    /// All zero before they begin.
    pub fn stats(&self) -> DispatchStats {
        self.dispatch.get().map(Dispatch::stats).unwrap_or_default()
    }

    /// Before the node stops, so that what is under way is still recorded.
    pub async fn stop(&self) {
        self.beginning.abort();
        if let Some(dispatch) = self.dispatch.get() {
            dispatch.stop().await;
        }
    }
}

/// The shards of a node as its dispatch sees them.
pub fn feeds(ports: Vec<ShardPort>) -> Vec<Arc<dyn Feed>> {
    ports.into_iter().map(|port| Arc::new(ShardFeed(port)) as Arc<dyn Feed>).collect()
}

async fn dispatch_over(ports: Vec<ShardPort>, config: DispatchConfig) -> Result<Dispatch, StartError> {
    let feeds = feeds(ports);
    Dispatch::start(config, feeds, Box::new(SystemResolver), node::clock(), Arc::new(OsEntropy)).await
}

/// A shard's replica on this node.
struct ShardFeed(ShardPort);

impl Feed for ShardFeed {
    fn shard(&self) -> ShardId {
        self.0.shard()
    }

    fn terms(&self) -> BoxStream<'static, Option<u64>> {
        let mut leadership = self.0.leadership();
        leadership.mark_changed();
        let changes = stream::unfold(leadership, |mut leadership| async move {
            // An error means that the group has ended.
            leadership.changed().await.ok()?;
            let now = *leadership.borrow_and_update();
            Some((now.am_leader.then_some(now.term), leadership))
        });
        changes.boxed()
    }

    fn catch_up(&self) -> BoxFuture<'_, bool> {
        Box::pin(self.0.catch_up())
    }

    fn leads(&self) -> bool {
        self.0.leads()
    }

    fn now(&self) -> Option<ShardTime> {
        self.0.now()
    }

    fn touched(&self) -> BoxFuture<'_, Touched> {
        Box::pin(async {
            match self.0.touched().await {
                onceward_shard::Touched::Endpoints(endpoints) => Touched::Endpoints(endpoints),
                onceward_shard::Touched::All => Touched::All,
            }
        })
    }

    fn read(&self, read: &mut dyn FnMut(&dyn ReadRows) -> Result<(), RowsError>) -> Result<(), RowsError> {
        self.0.read(read)
    }

    fn record(&self, report: RecordOutcomes, deadline: Instant) -> BoxFuture<'_, Recorded> {
        Box::pin(async move {
            match self.0.record(report, deadline).await {
                onceward_shard::Recorded::Applied { .. } => Recorded::Applied,
                onceward_shard::Recorded::NotApplied => Recorded::NotApplied,
                onceward_shard::Recorded::Unknown => Recorded::Unknown,
            }
        })
    }
}
