//! How the log lies on disk: entries, the vote, and the positions up to which it is committed and purged.

use bytes::{BufMut, Bytes};
use onceward_core::cluster::ShardId;
use onceward_storage::{Family, Store, keys};

use crate::{
    encoding::{self, Malformed, Reader, VERSION, put_log_id, put_payload, put_vote},
    error::ConsensusError,
    types::{Entry, LogId, Vote, log_id},
};

/// An entry as it lies on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) term: u64,
    /// Bytes of all entries that were ever appended up to this one: the difference of two is what lies between them.
    pub(crate) bytes_through: u64,
    payload: Bytes,
}

/// Version, term, bytes through, payload.
pub(crate) fn encode_entry(entry: &Entry, bytes_through: u64) -> Vec<u8> {
    let mut value = Vec::with_capacity(17 + encoding::payload_bytes(&entry.payload));
    value.put_u8(VERSION);
    value.put_u64(entry.log_id.leader_id.term);
    value.put_u64(bytes_through);
    put_payload(&mut value, &entry.payload);
    value
}

pub(crate) fn decode_entry(value: Bytes) -> Result<Stored, Malformed> {
    let mut reader = Reader::versioned(value)?;
    Ok(Stored { term: reader.u64("term")?, bytes_through: reader.u64("bytes")?, payload: reader.rest() })
}

impl Stored {
    pub(crate) fn into_entry(self, index: u64) -> Result<Entry, Malformed> {
        Ok(Entry { log_id: log_id(self.term, index), payload: encoding::payload(self.payload)? })
    }
}

/// Version, vote.
pub(crate) fn encode_vote(vote: &Vote) -> Vec<u8> {
    let mut value = vec![VERSION];
    put_vote(&mut value, vote);
    value
}

fn decode_vote(value: Bytes) -> Result<Vote, Malformed> {
    let mut reader = Reader::versioned(value)?;
    let vote = reader.vote()?;
    reader.end("vote")?;
    Ok(vote)
}

/// Version, log id.
pub(crate) fn encode_committed(committed: &LogId) -> Vec<u8> {
    let mut value = vec![VERSION];
    put_log_id(&mut value, committed);
    value
}

fn decode_committed(value: Bytes) -> Result<LogId, Malformed> {
    let mut reader = Reader::versioned(value)?;
    let committed = reader.log_id()?;
    reader.end("committed position")?;
    Ok(committed)
}

/// Version, log id, bytes through it.
pub(crate) fn encode_purged(purged: &LogId, bytes_through: u64) -> Vec<u8> {
    let mut value = vec![VERSION];
    put_log_id(&mut value, purged);
    value.put_u64(bytes_through);
    value
}

fn decode_purged(value: Bytes) -> Result<(LogId, u64), Malformed> {
    let mut reader = Reader::versioned(value)?;
    let purged = (reader.log_id()?, reader.u64("purged position")?);
    reader.end("purged position")?;
    Ok(purged)
}

/// No log comes this far, at a million entries a second in a hundred thousand years. What says so is damaged; counting
/// on from anything less doesn't overflow.
const INDEX_MAX: u64 = 1 << 62;

fn expect_index(index: u64) -> Result<(), Malformed> {
    if index <= INDEX_MAX { Ok(()) } else { Err(Malformed("index")) }
}

/// What a log was when the last process left it.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<LogId>,
    pub(crate) purged: Option<LogId>,
    pub(crate) purged_bytes: u64,
    /// Index of the first entry, or of the next one where there is none.
    pub(crate) first: u64,
    /// Of the last entry; the purged position where there is none.
    pub(crate) last: Option<LogId>,
    pub(crate) last_bytes: u64,
}

/// Reads the positions, and refuses a log that isn't a whole one.
pub(crate) fn read_positions(store: &dyn Store, shard: ShardId) -> Result<Positions, ConsensusError> {
    let corrupt =
        |what: &str, detail: String| ConsensusError::Corrupt { what: format!("{what} of shard {shard}"), detail };
    let meta = |key: &[u8]| store.get(Family::RaftMeta, key);
    let read = |what: &'static str| move |error: Malformed| corrupt(what, error.to_string());

    let vote = meta(&keys::vote(shard))?.map(decode_vote).transpose().map_err(read("the vote"))?;
    let committed = meta(&keys::committed(shard))?.map(decode_committed).transpose();
    let committed = committed.map_err(read("the committed position"))?;
    let purged = meta(&keys::purged(shard))?.map(decode_purged).transpose().map_err(read("the purged position"))?;
    let (purged, purged_bytes) = purged.map_or((None, 0), |(purged, bytes)| (Some(purged), bytes));
    purged.map_or(Ok(()), |purged| expect_index(purged.index)).map_err(read("the purged position"))?;
    let first = purged.map_or(0, |purged| purged.index + 1);
    let mut positions =
        Positions { vote, committed, purged, purged_bytes, first, last: purged, last_bytes: purged_bytes };

    let log = keys::log(shard);
    let index =
        |key: &[u8]| keys::log_index(key).ok_or_else(|| corrupt("the log", format!("a key of {} bytes", key.len())));
    if let Some((key, value)) = store.last(Family::RaftLog, &log.from, &log.to)? {
        let last = index(&key)?;
        let stored = decode_entry(value).map_err(|error| corrupt("the log", format!("{error} in entry {last}")))?;
        let first = store.scan(Family::RaftLog, &log.from, &log.to, 1, usize::MAX)?;
        let first = first.first().map(|(key, _)| index(key)).transpose()?.unwrap_or(last);
        if first != positions.first {
            return Err(corrupt("the log", format!("it begins at entry {first} and should at {}", positions.first)));
        }
        expect_index(last).map_err(read("the log"))?;
        if stored.bytes_through < purged_bytes {
            let (bytes, of) = (stored.bytes_through, purged_bytes);
            return Err(corrupt("the log", format!("its {bytes} bytes are fewer than the {of} that were purged")));
        }
        positions.last = Some(log_id(stored.term, last));
        positions.last_bytes = stored.bytes_through;
    }
    // It may have been noted before an install that the crash prevented; behind the log it could not be applied.
    positions.committed = positions.committed.min(positions.last);
    Ok(positions)
}

#[cfg(test)]
mod tests {
    use onceward_core::time::ShardTime;
    use onceward_storage::{MemoryStore, WriteSet};

    use super::*;
    use crate::types::{Batch, Members, Payload};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn positions_that_no_log_can_be_at_are_refused() {
        const SHARD: ShardId = ShardId(1);
        let blank = |index| Entry { log_id: log_id(1, index), payload: Payload::Blank };
        // The last purged entry with the bytes through it, the entry that follows with those through it.
        let refused = |purged: (u64, u64), entry: Option<(u64, u64)>| {
            let mut set = WriteSet::new();
            set.put(Family::RaftMeta, keys::purged(SHARD), encode_purged(&log_id(1, purged.0), purged.1));
            if let Some((index, bytes)) = entry {
                set.put(Family::RaftLog, keys::log_entry(SHARD, index), encode_entry(&blank(index), bytes));
            }
            let store = MemoryStore::new();
            store.write(&set).unwrap();
            matches!(read_positions(&store, SHARD), Err(ConsensusError::Corrupt { .. }))
        };
        assert!(!refused((4, 9), Some((5, 18))));
        assert!(refused((4, 9), Some((5, 8))), "the log would hold fewer bytes than none");
        assert!(refused((u64::MAX, 9), None), "no entry could follow");
        assert!(refused((INDEX_MAX, 9), Some((INDEX_MAX + 1, 18))), "no log comes so far");
    }

    #[test]
    fn the_log_on_disk_is_pinned() {
        let batch = Batch { stamp: ShardTime(0x0102), encoded: Bytes::from_static(b"batch") };
        let members = Members::new_with_defaults(vec![[1, 2].into(), [2, 3].into()], [9]);
        let golden = [
            (Payload::Blank, "010000000000000007000000000000030000"),
            (Payload::Normal(batch), "01000000000000000700000000000003000100000000000001026261746368"),
            (
                Payload::Membership(members),
                "0100000000000000070000000000000300020000000200000002000000000000000100000000000000020000000200000000000\
                 000020000000000000003000000040000000000000001000000000000000200000000000000030000000000000009",
            ),
        ];
        for (payload, expected) in golden {
            let entry = Entry { log_id: log_id(7, 11), payload };
            let value = encode_entry(&entry, 0x0300);
            assert_eq!(hex(&value), expected);
            let stored = decode_entry(Bytes::from(value.clone())).unwrap();
            assert_eq!((stored.term, stored.bytes_through), (7, 0x0300));
            assert_eq!(stored.into_entry(11).unwrap(), entry);
            // A batch ends where its entry does; nothing else may be followed by anything.
            let longer = decode_entry(Bytes::from([&value[..], &[0]].concat())).unwrap().into_entry(11);
            assert_eq!(longer.is_ok(), matches!(entry.payload, Payload::Normal(_)));
        }
        let vote = Vote::new_committed(5, 0x1_0002);
        assert_eq!(hex(&encode_vote(&vote)), "010000000000000005000000000001000201");
        assert_eq!(decode_vote(Bytes::from(encode_vote(&vote))).unwrap(), vote);
        let id = log_id(3, 4);
        assert_eq!(hex(&encode_committed(&id)), "0100000000000000030000000000000004");
        assert_eq!(decode_committed(Bytes::from(encode_committed(&id))).unwrap(), id);
        assert_eq!(hex(&encode_purged(&id, 9)), "01000000000000000300000000000000040000000000000009");
        assert_eq!(decode_purged(Bytes::from(encode_purged(&id, 9))).unwrap(), (id, 9));
    }
}
