//! Lists of an account's records, page by page, in the order of their keys.

use serde::{Deserialize, Serialize};

use super::{
    Account, Key,
    bounds::{PAGE_MAX, PAGE_ROWS_READ_MAX},
    record::{Record, RecordState},
};
use crate::{
    codec::keys,
    machine,
    rows::{ReadRows, RowsError, Table, corrupt, decode, read},
    time::ShardTime,
};

/// A record as a list shows it: without its response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordSummary {
    pub key: Key,
    pub state: RecordState,
    pub created_wall_ms: u64,
    /// Not of a completed record.
    pub lease_expires_wall_ms: Option<u64>,
    /// Of a completed record, like the one below.
    pub completed_wall_ms: Option<u64>,
    pub expires_wall_ms: Option<u64>,
}

/// A page may be short, even empty, and yet not be the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordPage {
    pub records: Vec<RecordSummary>,
    /// The list goes on behind this key; `None`: this is its end.
    pub next: Option<Key>,
}

/// Records of `account` behind the key `after`, at most `limit` of them, in the wanted state or in all.
pub(crate) fn list(
    rows: &dyn ReadRows,
    account: &Account,
    state: Option<RecordState>,
    after: Option<&Key>,
    limit: u32,
) -> Result<RecordPage, RowsError> {
    let limit = limit.clamp(1, PAGE_MAX) as usize;
    let mut page = Page { now: machine::clock(rows)?, state, limit, records: Vec::new() };
    let next = if state == Some(RecordState::Indeterminate) {
        indeterminate(rows, account, after, &mut page)?
    } else {
        all(rows, account, after, &mut page)?
    };
    Ok(RecordPage { records: page.records, next })
}

struct Page {
    now: ShardTime,
    state: Option<RecordState>,
    limit: usize,
    records: Vec<RecordSummary>,
}

impl Page {
    fn add(&mut self, key: Key, record: &Record) {
        let shown = record.state_shown(self.now);
        let Some(state) = shown.filter(|state| self.state.is_none_or(|wanted| wanted == *state)) else { return };
        let completion = record.completion();
        self.records.push(RecordSummary {
            key,
            state,
            created_wall_ms: record.created_wall_ms,
            lease_expires_wall_ms: record.attempt().map(|attempt| attempt.lease_ends_wall_ms),
            completed_wall_ms: completion.map(|completion| completion.completed_wall_ms),
            expires_wall_ms: completion.map(|completion| record.expires_wall_ms(completion)),
        });
    }

    fn is_full(&self) -> bool {
        self.records.len() >= self.limit
    }
}

/// Rows read at a time.
const CHUNK_ROWS: usize = 256;

fn all(rows: &dyn ReadRows, account: &Account, after: Option<&Key>, page: &mut Page) -> Result<Option<Key>, RowsError> {
    let prefix = keys::records_of(account.as_str());
    let mut last = after.map(|key| keys::record(account.as_str(), key.as_str()));
    let mut rows_read = 0;
    loop {
        let chunk = rows.scan(Table::State, &prefix, last.as_deref(), CHUNK_ROWS)?;
        let is_end = chunk.len() < CHUNK_ROWS;
        for (row, value) in chunk {
            let key = key_of(&row, prefix.len())?;
            page.add(key.clone(), &decode::<Record>(&row, &value)?);
            rows_read += 1;
            if page.is_full() || rows_read >= PAGE_ROWS_READ_MAX {
                return Ok(Some(key));
            }
            last = Some(row);
        }
        if is_end {
            return Ok(None);
        }
    }
}

fn indeterminate(
    rows: &dyn ReadRows,
    account: &Account,
    after: Option<&Key>,
    page: &mut Page,
) -> Result<Option<Key>, RowsError> {
    let prefix = keys::indeterminate(&keys::records_of(account.as_str()));
    let after = after.map(|key| keys::indeterminate(&keys::record(account.as_str(), key.as_str())));
    let noted = rows.scan(Table::State, &prefix, after.as_deref(), page.limit)?;
    let is_end = noted.len() < page.limit;
    let mut last = None;
    for (row, _) in noted {
        let key = key_of(&row, prefix.len())?;
        if let Some(record) = read::<Record>(rows, &keys::record(account.as_str(), key.as_str()))? {
            page.add(key.clone(), &record);
        }
        last = Some(key);
    }
    Ok(last.filter(|_| !is_end))
}

fn key_of(row: &[u8], prefix_len: usize) -> Result<Key, RowsError> {
    let key = row.get(prefix_len..).and_then(|key| str::from_utf8(key).ok());
    key.map(Key::stored).ok_or_else(|| corrupt(Table::State, row, "not a record's key"))
}
