//! Policies as the system shard keeps them: by name, with a revision that increases over all of them, deletions as
//! tombstones until every data shard has seen them.

use serde::{Deserialize, Serialize};

use crate::{
    codec::{self, keys, keys::Kind},
    limits::{Policy, PolicyChange, PolicyName, PolicySpec},
    rows::{ReadRows, Rows, RowsError, Table, read},
};

/// Policies, and as many tombstones again: each is decoded in the memory of every shard.
pub const POLICIES_MAX: u64 = 1_000;
/// Encoded policies in all.
pub const POLICIES_BYTES_MAX: u64 = 16 << 20;
/// Rows read at a time when policies are listed.
const CHUNK_ROWS: usize = 64;
/// Encoded policies of one page of the list, so that an answer fits into a frame between nodes.
const PAGE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyReply {
    /// `created`: there was none of this name. The same specification again keeps its revision.
    Stored {
        policy: Policy,
        created: bool,
    },
    Deleted {
        revision: u64,
    },
    NotFound,
    /// Too many policies, or too many bytes of them in all: the limit is `max`, of `what`.
    LimitReached {
        what: String,
        max: u64,
    },
}

/// A policy by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum PolicyRow {
    Live(Policy),
    Deleted { revision: u64 },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Totals {
    /// The newest revision.
    revision: u64,
    live: u64,
    deleted: u64,
    /// Of the live policies, encoded.
    bytes: u64,
}

impl Totals {
    fn read(rows: &(impl ReadRows + ?Sized)) -> Result<Totals, RowsError> {
        Ok(read(rows, &keys::POLICY_TOTALS)?.unwrap_or_default())
    }

    fn write(self, rows: &mut dyn Rows) {
        rows.put(Table::State, keys::POLICY_TOTALS.clone(), codec::encode(&self));
    }

    /// Takes the row that stood under a name out of the count, and its revision out of the index.
    fn forget(&mut self, rows: &mut dyn Rows, row: &PolicyRow) {
        rows.delete(Table::State, keys::revision(row.revision()));
        match row {
            PolicyRow::Live(policy) => {
                self.live = self.live.saturating_sub(1);
                self.bytes = self.bytes.saturating_sub(size_of_policy(policy));
            }
            PolicyRow::Deleted { .. } => self.deleted = self.deleted.saturating_sub(1),
        }
    }

    /// Stores a row under a name and its revision.
    fn remember(&mut self, rows: &mut dyn Rows, name: &PolicyName, row: &PolicyRow) {
        match row {
            PolicyRow::Live(policy) => {
                self.live = self.live.saturating_add(1);
                self.bytes = self.bytes.saturating_add(size_of_policy(policy));
            }
            PolicyRow::Deleted { .. } => self.deleted = self.deleted.saturating_add(1),
        }
        rows.put(Table::State, keys::policy(name.as_str()), codec::encode(row));
        rows.put(Table::State, keys::revision(row.revision()), codec::encode(name));
    }
}

impl PolicyRow {
    fn revision(&self) -> u64 {
        match self {
            PolicyRow::Live(policy) => policy.revision,
            PolicyRow::Deleted { revision } => *revision,
        }
    }
}

fn size_of_policy(policy: &Policy) -> u64 {
    codec::encode(policy).len() as u64
}

pub(super) fn put(rows: &mut dyn Rows, name: &PolicyName, spec: &PolicySpec) -> Result<PolicyReply, RowsError> {
    let mut totals = Totals::read(rows)?;
    let before: Option<PolicyRow> = read(rows, &keys::policy(name.as_str()))?;
    let revision = totals.revision.saturating_add(1);
    let created_revision = match &before {
        Some(PolicyRow::Live(policy)) if policy.spec == *spec => {
            return Ok(PolicyReply::Stored { policy: policy.clone(), created: false });
        }
        Some(PolicyRow::Live(policy)) => policy.created_revision,
        _ => revision,
    };
    let policy = Policy { name: name.clone(), revision, created_revision, spec: spec.clone() };
    if let Some(limit) = limit_reached(&totals, before.as_ref(), &policy) {
        return Ok(limit);
    }
    if let Some(row) = &before {
        totals.forget(rows, row);
    }
    totals.revision = revision;
    let row = PolicyRow::Live(policy.clone());
    totals.remember(rows, name, &row);
    totals.write(rows);
    Ok(PolicyReply::Stored { policy, created: created_revision == revision })
}

fn limit_reached(totals: &Totals, before: Option<&PolicyRow>, policy: &Policy) -> Option<PolicyReply> {
    let (live, bytes) = match before {
        Some(PolicyRow::Live(old)) => (totals.live, totals.bytes.saturating_sub(size_of_policy(old))),
        _ => (totals.live.saturating_add(1), totals.bytes),
    };
    let reached = |what: &str, max| Some(PolicyReply::LimitReached { what: what.to_owned(), max });
    if live > POLICIES_MAX {
        return reached("policies", POLICIES_MAX);
    }
    if bytes.saturating_add(size_of_policy(policy)) > POLICIES_BYTES_MAX {
        return reached("bytes of policies in all", POLICIES_BYTES_MAX);
    }
    // Each policy made could be deleted in turn while a shard can't take note of it.
    if before.is_none() && totals.deleted >= POLICIES_MAX {
        return reached("deleted policies that some shard has not seen yet", POLICIES_MAX);
    }
    None
}

pub(super) fn delete(rows: &mut dyn Rows, name: &PolicyName) -> Result<PolicyReply, RowsError> {
    let Some(row @ PolicyRow::Live(_)) = read(rows, &keys::policy(name.as_str()))? else {
        return Ok(PolicyReply::NotFound);
    };
    let mut totals = Totals::read(rows)?;
    totals.forget(rows, &row);
    totals.revision = totals.revision.saturating_add(1);
    totals.remember(rows, name, &PolicyRow::Deleted { revision: totals.revision });
    totals.write(rows);
    Ok(PolicyReply::Deleted { revision: totals.revision })
}

/// Drops the tombstones of revisions up to `through`.
pub(super) fn forget_deleted(rows: &mut dyn Rows, through: u64) -> Result<(), RowsError> {
    let mut totals = Totals::read(rows)?;
    if totals.deleted == 0 {
        return Ok(());
    }
    let mut changes = Changes::after(0);
    while let Some((revision, name)) = changes.next(rows)? {
        if revision > through {
            break;
        }
        if let Some(row @ PolicyRow::Deleted { .. }) = read(rows, &keys::policy(name.as_str()))? {
            totals.forget(rows, &row);
            rows.delete(Table::State, keys::policy(name.as_str()));
        }
    }
    totals.write(rows);
    Ok(())
}

/// The index by revision, in order, read a chunk at a time.
struct Changes {
    after: bytes::Bytes,
    chunk: std::vec::IntoIter<crate::rows::Row>,
}

impl Changes {
    fn after(revision: u64) -> Changes {
        Changes { after: keys::revision(revision), chunk: Vec::new().into_iter() }
    }

    fn next(&mut self, rows: &(impl ReadRows + ?Sized)) -> Result<Option<(u64, PolicyName)>, RowsError> {
        if self.chunk.len() == 0 {
            let prefix = Kind::Revision.prefix();
            self.chunk = rows.scan(Table::State, &prefix, Some(&self.after), CHUNK_ROWS)?.into_iter();
        }
        let Some((key, value)) = self.chunk.next() else { return Ok(None) };
        let corrupt = |detail: String| RowsError::Corrupt { table: Table::State, key: key.to_vec(), detail };
        let revision = keys::parse_revision(&key).ok_or_else(|| corrupt("not a revision's key".into()))?;
        let name = codec::decode(&value).map_err(|error| corrupt(error.to_string()))?;
        self.after = key;
        Ok(Some((revision, name)))
    }
}

pub(crate) fn policy(rows: &dyn ReadRows, name: &str) -> Result<Option<Policy>, RowsError> {
    Ok(match read(rows, &keys::policy(name))? {
        Some(PolicyRow::Live(policy)) => Some(policy),
        _ => None,
    })
}

/// Live policies greater than `after` by name, at most `limit` and about [`PAGE_BYTES_MAX`] of them, and whether there
/// are more.
pub(crate) fn policies(rows: &dyn ReadRows, after: Option<&str>, limit: u32) -> Result<(Vec<Policy>, bool), RowsError> {
    let mut policies = Vec::new();
    let mut bytes = 0;
    let mut after = after.map(keys::policy);
    loop {
        let chunk = rows.scan(Table::State, &Kind::Policy.prefix(), after.as_deref(), CHUNK_ROWS)?;
        let last_chunk = chunk.len() < CHUNK_ROWS;
        for (key, value) in chunk {
            let row = codec::decode(&value).map_err(|error| RowsError::Corrupt {
                table: Table::State,
                key: key.to_vec(),
                detail: error.to_string(),
            })?;
            if let PolicyRow::Live(policy) = row {
                bytes += value.len();
                let page_is_full = bytes > PAGE_BYTES_MAX && !policies.is_empty();
                if policies.len() >= limit as usize || page_is_full {
                    return Ok((policies, true));
                }
                policies.push(policy);
            }
            after = Some(key);
        }
        if last_chunk {
            return Ok((policies, false));
        }
    }
}

/// Changes after `since` in order: the revision reached, the changes, the newest revision there is.
pub(crate) fn policy_changes(
    rows: &dyn ReadRows,
    since: u64,
    bytes_max: u32,
) -> Result<(u64, Vec<PolicyChange>, u64), RowsError> {
    let head = Totals::read(rows)?.revision;
    let mut changes: Vec<PolicyChange> = Vec::new();
    let mut bytes = 0;
    let mut index = Changes::after(since);
    while let Some((revision, name)) = index.next(rows)? {
        let name = name.as_str().to_owned();
        let change = PolicyChange { policy: policy(rows, &name)?, name, revision };
        bytes += codec::encode(&change).len();
        if let Some(last) = changes.last()
            && bytes > bytes_max as usize
        {
            return Ok((last.revision, changes, head));
        }
        changes.push(change);
    }
    Ok((head.max(since), changes, head))
}
