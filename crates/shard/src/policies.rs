//! Policies: written to the system shard, then copied into every data shard before the write is answered.

use std::{collections::BTreeMap, sync::Arc};

use arc_swap::{ArcSwap, Guard};
use onceward_core::{
    cluster::ShardId,
    command::{Command, Reply},
    limits::{CopyPolicies, Policy, PolicyName, PolicySpec},
    query::{self, Answer, Query},
    system::{PolicyReply, SystemCommand, SystemReply},
};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{
    copies::{Copied, copy_to_all},
    node::Surroundings,
    outcome::{Outcome, ServiceError},
    router::Router,
    shard_actor::Shard,
};

/// Bytes of policies in one copy command, so that it fits into an entry.
const COPY_BYTES_MAX: u32 = 512 << 10;
/// Policies in one answer of a list query.
const LIST_PAGE: u32 = 100;

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
            let pending_shards = copy_to_all::<Policies>(router, surroundings, policy.revision, deadline).await;
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
        PolicyReply::Deleted { revision } => {
            Ok(Some(copy_to_all::<Policies>(router, surroundings, revision, deadline).await))
        }
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

pub(crate) struct Policies;

impl Copied for Policies {
    fn head(system: &Shard) -> Option<u64> {
        let query = Query::PolicyChanges { since: u64::MAX, bytes_max: 0 };
        match system.group.read(|rows| query::answer(ShardId::SYSTEM, rows, &query)) {
            Ok(Answer::PolicyChanges { head, .. }) => Some(head),
            _ => None,
        }
    }

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
}

impl Policies {
    /// Drops the tombstones up to `through`, which every data shard has seen. False: not yet.
    pub(crate) async fn forget_deleted(router: &Router, through: u64, deadline: Instant) -> bool {
        let command = Command::System(SystemCommand::ForgetDeletedPolicies { through });
        let done = matches!(router.submit(ShardId::SYSTEM, &command, deadline).await, Outcome::Applied(_));
        if done {
            debug!(through, "every data shard has the policies");
        }
        done
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
            let head = Policies::head(&system);
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
