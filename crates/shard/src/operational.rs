//! Operational endpoints: written on the system shard like other endpoints on theirs, then copied into every data
//! shard, so that what is told of a delivery commits with what happened to it.

use onceward_core::{
    cluster::ShardId,
    command::{Command, Reply},
    query::{self, Answer, Query},
    webhooks::{CopyOperational, WebhookAnswer, WebhookQuery},
};
use tokio::time::Instant;

use crate::{
    copies::{self, Copied},
    node::Surroundings,
    outcome::Outcome,
    router::Router,
    shard_actor::Shard,
};

pub(crate) struct OperationalEndpoints;

/// Brings every data shard what the system shard has now. One that can't be told by `deadline` follows later.
pub(crate) async fn copy_to_all(router: &Router, surroundings: &Surroundings, deadline: Instant) {
    if let Some(revision) = revision_of(router, ShardId::SYSTEM, deadline).await {
        copies::copy_to_all::<OperationalEndpoints>(router, surroundings, revision, deadline).await;
    }
}

impl Copied for OperationalEndpoints {
    fn head(system: &Shard) -> Option<u64> {
        let query = Query::Webhook(WebhookQuery::OperationalRevision);
        revision_in(system.group.read(|rows| query::answer(ShardId::SYSTEM, rows, &query)).ok()?)
    }

    async fn copy(router: &Router, shard: ShardId, revision: u64, deadline: Instant) -> Option<u64> {
        let mut reached = revision_of(router, shard, deadline).await?;
        while reached < revision {
            let Some(copy) = all(router, deadline).await else { break };
            match router.submit_until_known(shard, &Command::CopyOperational(copy), deadline).await {
                (Outcome::Applied(Reply::CopyOperational { revision }), _) if revision > reached => reached = revision,
                _ => break,
            }
        }
        Some(reached)
    }
}

async fn revision_of(router: &Router, shard: ShardId, deadline: Instant) -> Option<u64> {
    match router.query(shard, Query::Webhook(WebhookQuery::OperationalRevision), deadline).await {
        Outcome::Applied(answer) => revision_in(answer),
        _ => None,
    }
}

fn revision_in(answer: Answer) -> Option<u64> {
    match answer {
        Answer::Webhook(WebhookAnswer::OperationalRevision(revision)) => Some(revision),
        _ => None,
    }
}

async fn all(router: &Router, deadline: Instant) -> Option<CopyOperational> {
    match router.query(ShardId::SYSTEM, Query::Webhook(WebhookQuery::Operational), deadline).await {
        Outcome::Applied(Answer::Webhook(WebhookAnswer::Operational(copy))) => Some(copy),
        _ => None,
    }
}
