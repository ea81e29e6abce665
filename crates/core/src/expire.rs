//! Expire: works off due rows of the expiry table. A row that moved meanwhile is filed anew, any other is removed, or
//! changed as its mechanism says.

use bytes::Bytes;

use crate::{
    codec::keys,
    rows::{Rows, RowsError, Table, corrupt},
    time::ShardTime,
};

/// Rows that one `Expire` works off at the most: its entry must not hold up the ones behind it.
pub const ROWS_MAX: u32 = 4_096;
/// Rows that are changed by what one `Expire` works off, about: a message takes its deliveries and attempts with it, and
/// thousands of messages in one entry would hold up the ones behind it, too.
const CHANGES_MAX: usize = 8_192;
/// Rows of the expiry table read at a time.
const CHUNK_ROWS: u32 = 256;

/// What is to be done with a row that came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is needed: it comes up again then.
    FileAt(ShardTime),
    Remove,
    /// It is needed, and doesn't come up again by itself; or it is not there any more.
    Leave,
}

/// Works off what is due at `up_to`, at most `limit` rows; `look_again` is its mechanism's word on each, with the number of
/// other rows that it changed. Returns how many were looked at.
pub(crate) fn expire(
    rows: &mut dyn Rows,
    up_to: ShardTime,
    limit: u32,
    mut look_again: impl FnMut(&mut dyn Rows, &Bytes) -> Result<(Verdict, usize), RowsError>,
) -> Result<u32, RowsError> {
    let limit = limit.min(ROWS_MAX);
    let (mut done, mut changes) = (0, 0);
    while done < limit {
        let wanted = (limit - done).min(CHUNK_ROWS) as usize;
        let filed = rows.scan(Table::Expiry, &[], None, wanted)?;
        let last_chunk = filed.len() < wanted;
        for (key, _) in filed {
            let (due, row) = keys::parse_due(&key).ok_or_else(|| corrupt(Table::Expiry, &key, "no due time"))?;
            if due > up_to {
                return Ok(done);
            }
            rows.delete(Table::Expiry, key);
            let (verdict, changed) = look_again(rows, &row)?;
            match verdict {
                Verdict::FileAt(at) => rows.put(Table::Expiry, keys::due(at, &row), Bytes::new()),
                Verdict::Remove => rows.delete(Table::State, row),
                Verdict::Leave => {}
            }
            done += 1;
            changes += changed;
            if changes >= CHANGES_MAX {
                return Ok(done);
            }
        }
        if last_chunk {
            break;
        }
    }
    Ok(done)
}
