//! Reads of single records. Time is that of the rows: whatever depends on something having expired was committed before.

use super::{
    Account, Key,
    record::{Completion, Record, RecordView, Replay, Standing, State},
};
use crate::{
    codec::keys,
    machine,
    rows::{ReadRows, RowsError, read},
};

fn find(rows: &dyn ReadRows, account: &Account, key: &Key) -> Result<Option<Record>, RowsError> {
    read(rows, &keys::record(account.as_str(), key.as_str()))
}

pub(crate) fn read_record(rows: &dyn ReadRows, account: &Account, key: &Key) -> Result<Option<RecordView>, RowsError> {
    let now = machine::clock(rows)?;
    Ok(find(rows, account, key)?.and_then(|record| record.view(now)))
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
    let record = find(rows, account, key)?
        .filter(|record| record.fingerprint == fingerprint && record.standing(now) == Standing::Completed);
    Ok(record.and_then(|record| match record.state {
        State::Completed(Completion { response, completed_wall_ms, .. }) => {
            Some(Replay { response, completed_wall_ms })
        }
        _ => None,
    }))
}

/// Whether these rows, which may be behind the leader's, have the record as completed: a hint that a read will do.
pub fn is_completed(rows: &dyn ReadRows, account: &Account, key: &Key) -> Result<bool, RowsError> {
    let now = machine::clock(rows)?;
    Ok(find(rows, account, key)?.is_some_and(|record| record.standing(now) == Standing::Completed))
}

/// Whether, as far as these rows know, the attempt with `token` no longer holds the key. They may be behind the leader's,
/// also so far that they don't know of the attempt yet.
pub fn has_moved_on(rows: &dyn ReadRows, account: &Account, key: &Key, token: u64) -> Result<bool, RowsError> {
    if read::<u64>(rows, &keys::TOKENS)?.unwrap_or_default() < token {
        return Ok(false);
    }
    let now = machine::clock(rows)?;
    let held = find(rows, account, key)?
        .is_some_and(|record| record.token == token && record.standing(now) == Standing::Leased);
    Ok(!held)
}
