//! Expire: works off due rows of the expiry table. A row that moved meanwhile is filed anew, any other is removed, or
//! changed as its mechanism says.

use bytes::Bytes;

use crate::{
    codec::keys::{self, Kind},
    idempotency::Ledger,
    limits::{Chains, Turn},
    rows::{Rows, RowsError, Table, corrupt},
    time::ShardTime,
};

/// Rows that one `Expire` works off at the most: its entry must not hold up the ones behind it.
pub const ROWS_MAX: u32 = 4_096;
/// Rows of the expiry table read at a time.
const CHUNK_ROWS: u32 = 256;

/// What is to be done with a row that came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is needed: it comes up again then.
    FileAt(ShardTime),
    Remove,
    /// It is needed, and doesn't come up again by itself.
    Leave,
}

/// Works off what is due at `up_to`, at most `limit` rows; returns how many were looked at.
pub(crate) fn expire(
    rows: &mut dyn Rows,
    chains: &mut Chains,
    moved: &mut Vec<Bytes>,
    now: ShardTime,
    up_to: ShardTime,
    limit: u32,
) -> Result<u32, RowsError> {
    let up_to = up_to.min(now);
    let limit = limit.min(ROWS_MAX);
    let mut done = 0;
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
            let verdict = if Kind::of(&row) == Some(Kind::Record) {
                Ledger::new(rows, now, moved).look_again(&row)?
            } else {
                Turn::new(rows, chains, now).look_again(&row)?
            };
            match verdict {
                Verdict::FileAt(at) => rows.put(Table::Expiry, keys::due(at, &row), Bytes::new()),
                Verdict::Remove => rows.delete(Table::State, row),
                Verdict::Leave => {}
            }
            done += 1;
        }
        if last_chunk {
            break;
        }
    }
    Ok(done)
}
