//! Policies: written to the system shard, then copied into every data shard before the write is answered; what could
//! not be copied in time follows as soon as its shard has a leader.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::{ArcSwap, Guard};
use futures::future::join_all;
use onceward_core::{
    cluster::ShardId,
    command::{Command, Reply},
    limits::{CopyPolicies, Policy, PolicyName, PolicySpec},
    query::{self, Answer, Query},
    system::{PolicyReply, SystemCommand, SystemReply},
};
use tokio::time::{Instant, interval};
use tracing::{debug, warn};

use crate::{
    node::Surroundings,
    outcome::{Outcome, ServiceError},
    router::Router,
    shard_actor::Shard,
};

/// Bytes of policies in one copy command, so that it fits into an entry.
const COPY_BYTES_MAX: u32 = 512 << 10;
/// Policies in one answer of a list query.
const LIST_PAGE: u32 = 100;
/// How often the leader of the system shard looks whether a data shard lags; when none does it asks nobody.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(1);
/// One try of the reconciler on one shard.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(2);

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyWrite {
    /// Stored; a check begun after this answer uses it, but on `pending_shards`, which follow once they have a quorum.
    Stored { policy: Policy, created: bool, pending_shards: Vec<ShardId> },
    /// The cluster holds as many policies, or bytes of them, as it may: `max` of `what`.
    LimitReached { what: String, max: u64 },
}

pub(crate) async fn put(
    router: &Router,
    surroundings: &Surroundings,
    name: PolicyName,
    spec: PolicySpec,
    deadline: Instant,
) -> Result<PolicyWrite, ServiceError> {
    match write(router, SystemCommand::PutPolicy { name, spec }, deadline).await? {
        PolicyReply::Stored { policy, created } => {
            let pending_shards = copy_to_all(router, surroundings, policy.revision, deadline).await;
            Ok(PolicyWrite::Stored { policy, created, pending_shards })
        }
        PolicyReply::LimitReached { what, max } => Ok(PolicyWrite::LimitReached { what, max }),
        PolicyReply::Deleted { .. } | PolicyReply::NotFound => Err(ServiceError::Unknown),
    }
}

/// `None`: there was no such policy. Otherwise the shards that still have it.
pub(crate) async fn delete(
    router: &Router,
    surroundings: &Surroundings,
    name: PolicyName,
    deadline: Instant,
) -> Result<Option<Vec<ShardId>>, ServiceError> {
    match write(router, SystemCommand::DeletePolicy { name }, deadline).await? {
        PolicyReply::Deleted { revision } => Ok(Some(copy_to_all(router, surroundings, revision, deadline).await)),
        PolicyReply::NotFound => Ok(None),
        PolicyReply::Stored { .. } | PolicyReply::LimitReached { .. } => Err(ServiceError::Unknown),
    }
}

async fn write(router: &Router, command: SystemCommand, deadline: Instant) -> Result<PolicyReply, ServiceError> {
    let outcome = router.submit(ShardId::SYSTEM, &Command::System(command), deadline).await;
    match outcome.into_result()? {
        Reply::System(SystemReply::Policy(reply)) => Ok(reply),
        other => {
            warn!(?other, "a policy write was answered by another command's reply");
            Err(ServiceError::Unknown)
        }
    }
}

pub(crate) async fn get(router: &Router, name: &str, deadline: Instant) -> Result<Option<Policy>, ServiceError> {
    let query = Query::Policy { name: name.to_owned() };
    match router.query(ShardId::SYSTEM, query, deadline).await.into_result()? {
        Answer::Policy(policy) => Ok(policy),
        other => Err(unexpected(&other)),
    }
}

/// All policies by name.
pub(crate) async fn list(router: &Router, deadline: Instant) -> Result<Vec<Policy>, ServiceError> {
    let mut all: Vec<Policy> = Vec::new();
    loop {
        let after = all.last().map(|policy| policy.name.as_str().to_owned());
        let query = Query::Policies { after, limit: LIST_PAGE };
        match router.query(ShardId::SYSTEM, query, deadline).await.into_result()? {
            Answer::Policies { policies, more } => {
                let came = !policies.is_empty();
                all.extend(policies);
                if !(more && came) {
                    return Ok(all);
                }
            }
            other => return Err(unexpected(&other)),
        }
    }
}

fn unexpected(answer: &Answer) -> ServiceError {
    warn!(?answer, "a query was answered by another query's answer");
    ServiceError::Unavailable { reason: "the answer of the shard makes no sense".to_owned(), retry_after_ms: 1_000 }
}

/// Brings every data shard to `revision` or later; returns those that it could not bring there in time.
async fn copy_to_all(router: &Router, surroundings: &Surroundings, revision: u64, deadline: Instant) -> Vec<ShardId> {
    let shards = surroundings.manifest.shards().filter(|shard| !shard.is_system());
    let copied = join_all(shards.map(|shard| async move {
        let reached = copy(router, shard, revision, deadline).await;
        (shard, reached.is_some_and(|reached| reached >= revision))
    }))
    .await;
    copied.into_iter().filter(|(_, done)| !done).map(|(shard, _)| shard).collect()
}

/// Brings one data shard to `revision` or later. Copies repeat without harm, so an unknown outcome is tried again.
/// Returns the revision it is known to have reached, `None` when nothing is known by `deadline`.
async fn copy(router: &Router, shard: ShardId, revision: u64, deadline: Instant) -> Option<u64> {
    let Outcome::Applied(Answer::SyncedRevision(mut reached)) =
        router.query(shard, Query::SyncedRevision, deadline).await
    else {
        return None;
    };
    while reached < revision {
        let query = Query::PolicyChanges { since: reached, bytes_max: COPY_BYTES_MAX };
        let Outcome::Applied(Answer::PolicyChanges { from, to, changes, .. }) =
            router.query(ShardId::SYSTEM, query, deadline).await
        else {
            return Some(reached);
        };
        let command = Command::CopyPolicies(CopyPolicies { from, to, changes });
        match router.submit(shard, &command, deadline).await {
            Outcome::Applied(Reply::CopyPolicies { synced_revision }) => reached = synced_revision,
            Outcome::Unknown if Instant::now() < deadline => {}
            _ => return Some(reached),
        }
    }
    Some(reached)
}

/// While this node leads the system shard: brings data shards that lag to the newest revision, and drops tombstones
/// that every data shard has seen.
pub(crate) async fn reconcile(router: Arc<Router>, surroundings: Arc<Surroundings>) {
    let Some(system) = router.local(ShardId::SYSTEM).cloned() else { return };
    // Revisions only grow, so what a shard once had needs no asking again.
    let mut reached: BTreeMap<ShardId, u64> = BTreeMap::new();
    let mut forgotten = 0;
    let mut ticks = interval(RECONCILE_INTERVAL);
    loop {
        ticks.tick().await;
        if system.leads().is_err() {
            continue;
        }
        let Some(head) = head_revision(&system) else { continue };
        let lagging: Vec<ShardId> = surroundings
            .manifest
            .shards()
            .filter(|shard| !shard.is_system() && reached.get(shard).is_none_or(|revision| *revision < head))
            .collect();
        let deadline = Instant::now() + RECONCILE_TIMEOUT;
        let copied = join_all(lagging.iter().map(|shard| copy(&router, *shard, head, deadline))).await;
        for (shard, revision) in lagging.iter().zip(copied) {
            if let Some(revision) = revision {
                reached.insert(*shard, revision);
            }
        }
        let all_reached = reached.len() == usize::from(surroundings.manifest.data_shards);
        let through = reached.values().copied().min().unwrap_or(0);
        if all_reached && through > forgotten {
            let command = Command::System(SystemCommand::ForgetDeletedPolicies { through });
            if let Outcome::Applied(_) = router.submit(ShardId::SYSTEM, &command, deadline).await {
                debug!(through, "every data shard has the policies");
                forgotten = through;
            }
        }
    }
}

fn head_revision(system: &Shard) -> Option<u64> {
    let query = Query::PolicyChanges { since: u64::MAX, bytes_max: 0 };
    match system.group.read(|rows| query::answer(ShardId::SYSTEM, rows, &query)) {
        Ok(Answer::PolicyChanges { head, .. }) => Some(head),
        _ => None,
    }
}

/// The policies as this node's replica of the system shard has them: perhaps a little old, so they decide only what
/// happens when the shard itself can't be asked, and how long that takes.
#[derive(Default)]
pub(crate) struct PolicyView(ArcSwap<BTreeMap<String, Arc<Policy>>>);

impl PolicyView {
    pub(crate) fn load(&self) -> Guard<Arc<BTreeMap<String, Arc<Policy>>>> {
        self.0.load()
    }

    /// Follows the replica until the group ends.
    pub(crate) async fn follow(self: Arc<Self>, system: Arc<Shard>) {
        let mut applied = system.group.applied_index();
        let mut seen = None;
        loop {
            let head = head_revision(&system);
            if head != seen {
                match read_all(&system) {
                    Some(policies) => self.0.store(Arc::new(policies)),
                    None => warn!("the policies of this replica can't be read"),
                }
                seen = head;
            }
            if applied.changed().await.is_err() {
                return;
            }
        }
    }
}

fn read_all(system: &Shard) -> Option<BTreeMap<String, Arc<Policy>>> {
    let mut all = BTreeMap::new();
    let mut after: Option<String> = None;
    loop {
        let query = Query::Policies { after, limit: LIST_PAGE };
        let answer = system.group.read(|rows| query::answer(ShardId::SYSTEM, rows, &query)).ok()?;
        let Answer::Policies { policies, more } = answer else { return None };
        after = policies.last().map(|policy| policy.name.as_str().to_owned());
        all.extend(policies.into_iter().map(|policy| (policy.name.as_str().to_owned(), Arc::new(policy))));
        if !more || after.is_none() {
            return Some(all);
        }
    }
}
