//! Expire: works off due rows of the expiry table. A row that moved meanwhile is filed anew, any other is removed.

use super::{
    Bucket,
    bounds::{ADMITTED_ID_US, EXPIRE_CHUNK_ROWS, EXPIRE_ROWS_MAX},
    hold::HoldRow,
    turn::{AdmittedId, Turn},
};
use crate::{
    codec::keys::{self, Kind},
    rows::{RowsError, Table, read},
    time::ShardTime,
};

/// Removes what is due at `up_to`, at most `limit` rows; returns how many were looked at.
pub(crate) fn expire(turn: &mut Turn<'_>, up_to: ShardTime, limit: u32) -> Result<u32, RowsError> {
    let up_to = up_to.min(turn.now);
    let limit = limit.min(EXPIRE_ROWS_MAX);
    let mut done = 0;
    while done < limit {
        let wanted = (limit - done).min(EXPIRE_CHUNK_ROWS) as usize;
        let filed = turn.rows.scan(Table::Expiry, &[], None, wanted)?;
        let last_chunk = filed.len() < wanted;
        for (key, _) in filed {
            let (due, row) = keys::parse_due(&key).ok_or_else(|| corrupt(Table::Expiry, &key, "no due time"))?;
            if due > up_to {
                return Ok(done);
            }
            turn.rows.delete(Table::Expiry, key);
            match turn.kept_until(&row)? {
                Some(until) => turn.rows.put(Table::Expiry, keys::due(until, &row), bytes::Bytes::new()),
                None => turn.rows.delete(Table::State, row),
            }
            done += 1;
        }
        if last_chunk {
            break;
        }
    }
    Ok(done)
}

fn corrupt(table: Table, key: &[u8], detail: &str) -> RowsError {
    RowsError::Corrupt { table, key: key.to_vec(), detail: detail.to_owned() }
}

impl Turn<'_> {
    /// When a row has to be looked at again, later than now; `None` when it is no longer needed.
    fn kept_until(&mut self, row: &[u8]) -> Result<Option<ShardTime>, RowsError> {
        let until = match Kind::of(row) {
            Some(Kind::Bucket) => self.bucket_kept_until(row)?,
            Some(Kind::AdmittedId) => read::<AdmittedId>(self.rows, row)?.map(|admitted| admitted.due()),
            Some(Kind::Hold) => read::<HoldRow>(self.rows, row)?.map(|hold| hold.due()),
            _ => return Err(corrupt(Table::Expiry, row, "filed for a row that doesn't expire")),
        };
        Ok(until.filter(|&until| until > self.now))
    }

    fn bucket_kept_until(&mut self, row: &[u8]) -> Result<Option<ShardTime>, RowsError> {
        let (policy, key) = keys::parse_bucket(row).ok_or_else(|| corrupt(Table::State, row, "not a bucket's key"))?;
        let Some(chain) = self.chain(policy)? else { return Ok(None) };
        let stored: Option<Bucket> = read(self.rows, row)?;
        let Some(mut bucket) = stored.filter(|bucket| bucket.created_revision == chain.created_revision) else {
            return Ok(None);
        };
        let written_at = bucket.as_of;
        bucket.advance(&chain, key, self.now);
        let counted = chain.newest().counted(key);
        if !bucket.is_full(counted) {
            return Ok(Some(self.bucket_due(&bucket, counted)));
        }
        // A request_id admitted before a reset must find the epoch changed for as long as it is remembered.
        Ok((bucket.epoch > 0).then(|| written_at.plus_us(ADMITTED_ID_US)))
    }
}
