//! Ledger: one command's access to the records of a shard, at the clock of its entry. The rule of the expiry table is
//! kept here: a record that is due by itself is filed there, at that time or before.

use bytes::Bytes;

use super::{
    Account, Key,
    bounds::TOKEN_MAX,
    record::{Record, Standing, State},
    response::Response,
};
use crate::{
    cluster::ShardId,
    codec::{self, keys},
    expire::Verdict,
    rows::{Rows, RowsError, Table, corrupt, decode, read},
    time::ShardTime,
    webhooks::{Desk, Subscribers},
};

pub(crate) struct Ledger<'a> {
    pub(super) rows: &'a mut dyn Rows,
    pub(super) now: ShardTime,
    /// The rows of the records whose attempt ended, in whatever way.
    moved: &'a mut Vec<Bytes>,
}

/// A record as it was found.
pub(super) struct Found {
    row: Bytes,
    /// Also one that is gone by now, and only not removed yet.
    stored: Option<Record>,
    now: ShardTime,
}

impl Found {
    /// The record, unless it is to be taken for absent.
    pub(super) fn present(&self) -> Option<(&Record, Standing)> {
        let record = self.stored.as_ref()?;
        match record.standing(self.now) {
            Standing::Gone => None,
            standing => Some((record, standing)),
        }
    }
}

impl<'a> Ledger<'a> {
    pub(crate) fn new(rows: &'a mut dyn Rows, now: ShardTime, moved: &'a mut Vec<Bytes>) -> Ledger<'a> {
        Ledger { rows, now, moved }
    }

    /// The webhooks of the same shard, in the same entry.
    pub(super) fn desk<'b>(&'b mut self, shard: ShardId, subscribers: &'b mut Subscribers) -> Desk<'b> {
        Desk::new(self.rows, self.now, shard, self.moved, subscribers)
    }

    pub(super) fn find(&self, account: &Account, key: &Key) -> Result<Found, RowsError> {
        let row = keys::record(account.as_str(), key.as_str());
        Ok(Found { stored: read(self.rows, &row)?, row, now: self.now })
    }

    /// A token greater than all that this shard gave out before.
    pub(super) fn next_token(&mut self) -> Result<u64, RowsError> {
        let newest = read::<u64>(self.rows, &keys::TOKENS)?.unwrap_or_default();
        let next = newest.checked_add(1).filter(|&token| token <= TOKEN_MAX);
        let token = next.ok_or_else(|| corrupt(Table::State, &keys::TOKENS, "no greater token is left"))?;
        self.rows.put(Table::State, keys::TOKENS.clone(), codec::encode(&token));
        Ok(token)
    }

    /// Writes a completed record, and its response beside it.
    pub(super) fn put_completed(&mut self, found: Found, record: &Record, response: &Response) {
        self.rows.put(Table::State, keys::response(&found.row), codec::encode(response));
        self.put(found, record);
    }

    /// Writes what has become of a record. It is filed as due unless it is filed already, at that time or before.
    pub(super) fn put(&mut self, found: Found, record: &Record) {
        let filed_until = found.stored.as_ref().and_then(|stored| stored.due(self.now));
        if let Some(due) = record.due(self.now)
            && filed_until.is_none_or(|filed| due < filed)
        {
            self.file(&found.row, due);
        }
        self.note_indeterminate(&found, record);
        if record.completion().is_none() {
            self.remove_response(&found);
        }
        // Extended, the attempt goes on.
        let goes_on = |stored: &Record| stored.token == record.token && matches!(record.state, State::InProgress(_));
        if found.stored.as_ref().is_some_and(|stored| stored.attempt().is_some() && !goes_on(stored)) {
            self.moved.push(found.row.clone());
        }
        self.rows.put(Table::State, found.row, codec::encode(record));
    }

    /// Removes a record. What is filed for it is removed when it comes up.
    pub(super) fn remove(&mut self, found: Found) {
        if matches!(found.stored, Some(Record { state: State::Indeterminate(_), .. })) {
            self.rows.delete(Table::State, keys::indeterminate(&found.row));
        }
        self.remove_response(&found);
        if found.stored.is_some_and(|stored| stored.attempt().is_some()) {
            self.moved.push(found.row.clone());
        }
        self.rows.delete(Table::State, found.row);
    }

    fn remove_response(&mut self, found: &Found) {
        if found.stored.as_ref().is_some_and(|stored| stored.completion().is_some()) {
            self.rows.delete(Table::State, keys::response(&found.row));
        }
    }

    /// Keeps the list of indeterminate records, so that they are found among millions of others.
    fn note_indeterminate(&mut self, found: &Found, record: &Record) {
        let is = |record: &Record| matches!(record.state, State::Indeterminate(_));
        match (found.stored.as_ref().is_some_and(is), is(record)) {
            (false, true) => self.rows.put(Table::State, keys::indeterminate(&found.row), Bytes::new()),
            (true, false) => self.rows.delete(Table::State, keys::indeterminate(&found.row)),
            _ => {}
        }
    }

    /// Strictly behind the clock: an `Expire` would find it again and again.
    fn file(&mut self, row: &Bytes, due: ShardTime) {
        self.rows.put(Table::Expiry, keys::due(due.max(self.now.plus_us(1)), row), Bytes::new());
    }

    /// A record comes up in the expiry table.
    pub(crate) fn look_again(&mut self, row: &Bytes) -> Result<Verdict, RowsError> {
        // Abandoned or deleted meanwhile.
        let Some(bytes) = self.rows.get(Table::State, row)? else { return Ok(Verdict::Leave) };
        let stored: Record = decode(row, &bytes)?;
        let found = Found { row: row.clone(), stored: Some(stored), now: self.now };
        let record = found.stored.as_ref().expect("just put there");
        let verdict = match (record.standing(self.now), &record.state) {
            (Standing::Gone, _) => {
                self.remove(found);
                Verdict::Leave
            }
            (Standing::Indeterminate, State::InProgress(attempt)) => {
                let record = Record { state: State::Indeterminate(attempt.clone()), ..record.clone() };
                self.put(found, &record);
                Verdict::Leave
            }
            (Standing::Lapsed, _) => {
                self.moved.push(row.clone());
                record.due(self.now).map_or(Verdict::Leave, Verdict::FileAt)
            }
            _ => record.due(self.now).map_or(Verdict::Leave, Verdict::FileAt),
        };
        Ok(verdict)
    }
}
