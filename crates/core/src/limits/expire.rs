//! What the expiry table is told of the rows of the limits: until when each is needed.

use super::{
    Bucket,
    bounds::ADMITTED_ID_US,
    hold::HoldRow,
    turn::{AdmittedId, Turn},
};
use crate::{
    codec::keys::{self, Kind},
    expire::Verdict,
    rows::{RowsError, Table, corrupt, read},
    time::ShardTime,
};

impl Turn<'_> {
    /// A row comes up in the expiry table.
    pub(crate) fn look_again(&mut self, row: &[u8]) -> Result<Verdict, RowsError> {
        let until = match Kind::of(row) {
            Some(Kind::Bucket) => self.bucket_kept_until(row)?,
            Some(Kind::AdmittedId) => read::<AdmittedId>(self.rows, row)?.map(|admitted| admitted.due()),
            Some(Kind::Hold) => read::<HoldRow>(self.rows, row)?.map(|hold| hold.due()),
            _ => return Err(corrupt(Table::Expiry, row, "filed for a row that doesn't expire")),
        };
        Ok(until.filter(|&until| until > self.now).map_or(Verdict::Remove, Verdict::FileAt))
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
