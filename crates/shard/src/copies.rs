//! What every data shard has to know: written on the system shard under growing revisions, and copied from there. A
//! write is answered once the copies are made; those that could not be made in time follow as soon as their shard has a
//! leader.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use futures::future::join_all;
use onceward_core::cluster::ShardId;
use tokio::time::{Instant, interval};

use crate::{
    node::Surroundings, operational::OperationalEndpoints, policies::Policies, router::Router, shard_actor::Shard,
};

/// How often the leader of the system shard looks whether a data shard lags; when none does it asks nobody.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(1);
/// One try of the reconciler on one shard.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(2);

/// One kind of what is copied.
pub(crate) trait Copied {
    /// The newest revision, as this node's replica of the system shard has it.
    fn head(system: &Shard) -> Option<u64>;

    /// Brings one data shard to `revision` or later. Copies repeat without harm, so an unknown outcome is tried again.
    /// Returns the revision it is known to have reached, `None` when nothing is known by `deadline`.
    fn copy(
        router: &Router,
        shard: ShardId,
        revision: u64,
        deadline: Instant,
    ) -> impl Future<Output = Option<u64>> + Send;
}

/// Brings every data shard to `revision` or later; returns those that it could not bring there in time.
pub(crate) async fn copy_to_all<C: Copied>(
    router: &Router,
    surroundings: &Surroundings,
    revision: u64,
    deadline: Instant,
) -> Vec<ShardId> {
    let copied = join_all(surroundings.manifest.shards().filter(|shard| !shard.is_system()).map(|shard| async move {
        let reached = C::copy(router, shard, revision, deadline).await;
        (shard, reached.is_some_and(|reached| reached >= revision))
    }))
    .await;
    copied.into_iter().filter(|(_, done)| !done).map(|(shard, _)| shard).collect()
}

/// While this node leads the system shard: brings data shards that lag to the newest revisions, and drops tombstones
/// that every data shard has seen.
pub(crate) async fn reconcile(router: Arc<Router>, surroundings: Arc<Surroundings>) {
    let Some(system) = router.local(ShardId::SYSTEM).cloned() else { return };
    let (mut policies, mut operational) = (Reached::default(), Reached::default());
    let mut forgotten = 0;
    let mut ticks = interval(RECONCILE_INTERVAL);
    loop {
        ticks.tick().await;
        if system.leads().is_err() {
            continue;
        }
        let deadline = Instant::now() + RECONCILE_TIMEOUT;
        let (through, _) = tokio::join!(
            policies.bring_up::<Policies>(&router, &surroundings, &system, deadline),
            operational.bring_up::<OperationalEndpoints>(&router, &surroundings, &system, deadline),
        );
        if through > forgotten && Policies::forget_deleted(&router, through, deadline).await {
            forgotten = through;
        }
    }
}

/// What data shards are known to have. Revisions only grow, so what a shard once had needs no asking again.
#[derive(Default)]
struct Reached(BTreeMap<ShardId, u64>);

impl Reached {
    /// Returns the revision that every data shard has.
    async fn bring_up<C: Copied>(
        &mut self,
        router: &Router,
        surroundings: &Surroundings,
        system: &Shard,
        deadline: Instant,
    ) -> u64 {
        if let Some(head) = C::head(system) {
            let shards = surroundings.manifest.shards().filter(|shard| !shard.is_system());
            let lagging: Vec<_> =
                shards.filter(|shard| self.0.get(shard).is_none_or(|revision| *revision < head)).collect();
            let copied = join_all(lagging.iter().map(|shard| C::copy(router, *shard, head, deadline))).await;
            let known = lagging.into_iter().zip(copied).filter_map(|(shard, reached)| Some((shard, reached?)));
            self.0.extend(known);
        }
        let all_known = self.0.len() == usize::from(surroundings.manifest.data_shards);
        self.0.values().copied().min().filter(|_| all_known).unwrap_or(0)
    }
}
