//! Reads of single records. Time is that of the rows: whatever depends on something having expired was committed before.

use bytes::Bytes;

use super::{
    Account, Key, Response,
    record::{Completion, Record, RecordView, Replay, Standing},
};
use crate::{
    codec::keys,
    machine,
    rows::{ReadRows, RowsError, Table, corrupt, read},
    time::ShardTime,
};

/// A record and its row's key.
fn find(rows: &dyn ReadRows, account: &Account, key: &Key) -> Result<Option<(Bytes, Record)>, RowsError> {
    let row = keys::record(account.as_str(), key.as_str());
    Ok(read(rows, &row)?.map(|record| (row, record)))
}

/// The response of a completed record.
fn response(rows: &dyn ReadRows, record: &[u8]) -> Result<Response, RowsError> {
    let row = keys::response(record);
    read(rows, &row)?.ok_or_else(|| corrupt(Table::State, &row, "a completed record has no response"))
}

pub(crate) fn read_record(rows: &dyn ReadRows, account: &Account, key: &Key) -> Result<Option<RecordView>, RowsError> {
    let now = machine::clock(rows)?;
    let Some((row, record)) = find(rows, account, key)? else { return Ok(None) };
    let Some(mut view) = record.view(now) else { return Ok(None) };
    if record.completion().is_some() {
        view.response = Some(response(rows, &row)?);
    }
    Ok(Some(view))
}

/// The outcome, where the record is completed and was begun with this fingerprint. Everything else is decided by an
/// entry.
pub(crate) fn replay(
    rows: &dyn ReadRows,
    account: &Account,
    key: &Key,
    fingerprint: &str,
) -> Result<Option<Replay>, RowsError> {
    let now = machine::clock(rows)?;
    let Some((row, record)) = find(rows, account, key)? else { return Ok(None) };
    match completion(&record, now) {
        Some(completion) if record.fingerprint == fingerprint => {
            let completed_wall_ms = completion.completed_wall_ms;
            Ok(Some(Replay { response: response(rows, &row)?, completed_wall_ms }))
        }
        _ => Ok(None),
    }
}

/// How many bytes the response takes, where these rows, which may be behind the leader's, have the record as completed: a
/// hint that a read will do, and how large its answer will be.
pub fn completed_bytes(rows: &dyn ReadRows, account: &Account, key: &Key) -> Result<Option<u32>, RowsError> {
    let Some((_, record)) = find(rows, account, key)? else { return Ok(None) };
    Ok(completion(&record, machine::clock(rows)?).map(|completion| completion.response_bytes))
}

/// Whether, as far as these rows know, the attempt with `token` no longer holds the key. They may be behind the leader's,
/// also so far that they don't know of the attempt yet.
pub fn has_moved_on(rows: &dyn ReadRows, account: &Account, key: &Key, token: u64) -> Result<bool, RowsError> {
    if read::<u64>(rows, &keys::TOKENS)?.unwrap_or_default() < token {
        return Ok(false);
    }
    let now = machine::clock(rows)?;
    let held = find(rows, account, key)?
        .is_some_and(|(_, record)| record.token == token && record.standing(now) == Standing::Leased);
    Ok(!held)
}

/// How the record was completed, unless that has expired.
fn completion(record: &Record, now: ShardTime) -> Option<&Completion> {
    record.completion().filter(|_| record.standing(now) == Standing::Completed)
}
