//! Query: what is read from a shard's rows without changing them, behind ReadIndex on its leader.
//!
//! In goes a question and the rows, out comes the answer. When it may be asked is not known here.

use serde::{Deserialize, Serialize};

use crate::{
    cluster::ShardId,
    idempotency::{self, Account, Key, RecordPage, RecordState, RecordView, Replay},
    limits::{self, Policy, PolicyChange},
    rows::{ReadRows, RowsError},
    system::{self, NodeRecord},
    time::ShardTime,
    webhooks::{self, WebhookAnswer, WebhookQuery},
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// System shard: one policy.
    Policy {
        name: String,
    },
    /// System shard: policies by name, those greater than `after`, at most `limit` of them.
    Policies {
        after: Option<String>,
        limit: u32,
    },
    /// System shard: what changed after revision `since`, ascending, about `bytes_max` bytes of it (but one change at
    /// least, so that asking again always gets further).
    PolicyChanges {
        since: u64,
        bytes_max: u32,
    },
    /// Data shard: the revision up to which it has every policy.
    SyncedRevision,
    /// System shard: the node registry.
    Nodes,
    /// Any shard.
    Clock,
    /// Data shard: one idempotency record.
    Record {
        account: Account,
        key: Key,
    },
    /// Data shard: the outcome of a completed record that was begun with this fingerprint.
    Replay {
        account: Account,
        key: Key,
        fingerprint: String,
    },
    /// Data shard: whether the attempt with `token` no longer holds the key.
    HasMovedOn {
        account: Account,
        key: Key,
        token: u64,
    },
    /// Data shard: records of an account behind the key `after`, at most `limit`, in one state or in all.
    Records {
        account: Account,
        state: Option<RecordState>,
        after: Option<Key>,
        limit: u32,
    },
    Webhook(WebhookQuery),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Policy(Option<Policy>),
    /// `more`: there are policies behind the last one.
    Policies {
        policies: Vec<Policy>,
        more: bool,
    },
    /// Every change in (`from`, `to`]; `head` is the newest revision.
    PolicyChanges {
        from: u64,
        to: u64,
        changes: Vec<PolicyChange>,
        head: u64,
    },
    SyncedRevision(u64),
    /// By ascending id.
    Nodes(Vec<NodeRecord>),
    /// The stamp that the state has reached, and when its first row is due.
    Clock {
        clock: ShardTime,
        next_due: Option<ShardTime>,
    },
    /// The query belongs on the other kind of shard: a bug of the sender.
    Misrouted,
    Record(Option<RecordView>),
    Replay(Option<Replay>),
    HasMovedOn(bool),
    Records(RecordPage),
    Webhook(WebhookAnswer),
}

/// Answers a query from a shard's rows.
pub fn answer(shard: ShardId, rows: &dyn ReadRows, query: &Query) -> Result<Answer, RowsError> {
    Ok(match (query, shard.is_system()) {
        (Query::Clock, _) => {
            Answer::Clock { clock: crate::machine::clock(rows)?, next_due: crate::machine::next_due(rows)? }
        }
        (Query::SyncedRevision, false) => Answer::SyncedRevision(limits::synced_revision(rows)?),
        (Query::Policy { name }, true) => Answer::Policy(system::policy(rows, name)?),
        (Query::Policies { after, limit }, true) => {
            let (policies, more) = system::policies(rows, after.as_deref(), *limit)?;
            Answer::Policies { policies, more }
        }
        (Query::PolicyChanges { since, bytes_max }, true) => {
            let (to, changes, head) = system::policy_changes(rows, *since, *bytes_max)?;
            Answer::PolicyChanges { from: *since, to, changes, head }
        }
        (Query::Nodes, true) => Answer::Nodes(system::nodes(rows)?),
        (Query::Record { account, key }, false) => Answer::Record(idempotency::read_record(rows, account, key)?),
        (Query::Replay { account, key, fingerprint }, false) => {
            Answer::Replay(idempotency::replay(rows, account, key, fingerprint)?)
        }
        (Query::HasMovedOn { account, key, token }, false) => {
            Answer::HasMovedOn(idempotency::has_moved_on(rows, account, key, *token)?)
        }
        (Query::Records { account, state, after, limit }, false) => {
            Answer::Records(idempotency::list(rows, account, *state, after.as_ref(), *limit)?)
        }
        (Query::Webhook(query), is_system) => {
            webhooks::answer(rows, is_system, query)?.map_or(Answer::Misrouted, Answer::Webhook)
        }
        _ => Answer::Misrouted,
    })
}
