//! Reading a log: from the tail where it is there, otherwise from disk, always in bounded pieces.

use std::{
    collections::VecDeque,
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use futures::{Stream, stream};
use onceward_storage::{Family, keys};
use openraft::{
    OptionalSend, RaftLogReader,
    errors::LeaderChanged,
    storage::{LeaderBoundedStreamError, LeaderBoundedStreamResult},
};

use super::{Shared, State, tail::entry_bytes, value};
use crate::types::{Entry, LeaderId, LogId, Types, Vote};

/// Bytes of entries that one read gathers, but for the one that reaches it: an append request on the wire, or what
/// `apply` holds at a time.
pub(crate) const READ_BYTES_MAX: usize = 1 << 20;

pub(crate) struct LogReader {
    shared: Arc<Shared>,
}

impl LogReader {
    pub(super) fn new(shared: Arc<Shared>) -> LogReader {
        LogReader { shared }
    }
}

/// Where the next entries are.
enum Place {
    Nowhere,
    Memory,
    Disk { to: u64 },
}

impl Shared {
    /// The entries of `from..to` that the log has; no further one once `bytes_max` are gathered.
    pub(super) fn read(&self, mut from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        loop {
            let place = {
                let state = self.lock();
                if from < state.at.first {
                    // Purged, before or while this reads: a log may lack its beginning, and nothing in between.
                    from = state.at.first;
                    entries.clear();
                    bytes = 0;
                }
                let to = to.min(state.at.last.map_or(0, |last| last.index + 1));
                match state.tail.first() {
                    _ if from >= to || bytes >= bytes_max => Place::Nowhere,
                    Some(kept) if kept <= from => {
                        state.tail.read(from, to, bytes_max - bytes, &mut entries);
                        Place::Memory
                    }
                    kept => Place::Disk { to: kept.unwrap_or(to).min(to) },
                }
            };
            match place {
                Place::Nowhere | Place::Memory => return Ok(entries),
                Place::Disk { to } => match self.read_disk(from, to, bytes_max - bytes)? {
                    Some(found) => {
                        bytes += found.iter().map(entry_bytes).sum::<usize>();
                        from += found.len() as u64;
                        entries.extend(found);
                    }
                    None => self.expect_gone(from)?,
                },
            }
        }
    }

    /// Entries from disk, at least one; `None` where the first isn't there.
    fn read_disk(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Option<Vec<Entry>>> {
        let range = keys::log_between(self.shard, from, to - 1);
        let rows = self.store.scan(Family::RaftLog, &range.from, &range.to, usize::MAX, bytes_max);
        let rows = rows.map_err(super::io_error)?;
        let mut entries = Vec::with_capacity(rows.len());
        for (expected, (key, value)) in (from..).zip(rows) {
            match keys::log_index(&key) {
                Some(index) if index == expected => {}
                Some(_) if expected == from => return Ok(None),
                found => return Err(io::Error::other(format!("entry {found:?} of the log follows {}", expected - 1))),
            }
            let entry = value::decode_entry(value).and_then(|stored| stored.into_entry(expected));
            entries.push(entry.map_err(|error| io::Error::other(format!("entry {expected} of the log: {error}")))?);
        }
        Ok(Some(entries).filter(|entries| !entries.is_empty()))
    }

    /// An entry that wasn't found on disk must have been purged or cut off meanwhile; then reading goes on from there.
    fn expect_gone(&self, index: u64) -> io::Result<()> {
        let state = self.lock();
        let in_memory = state.tail.first().is_some_and(|first| first <= index);
        if (state.at.first..=state.at.last.map_or(0, |last| last.index)).contains(&index) && !in_memory {
            return Err(io::Error::other(format!("entry {index} of shard {} is missing from the log", self.shard)));
        }
        Ok(())
    }

    /// An entry's id and the log's bytes through it; for the last purged entry too.
    pub(super) fn find(&self, index: u64) -> io::Result<Option<(LogId, u64)>> {
        self.find_in(&self.lock(), index)
    }

    pub(super) fn find_in(&self, state: &State, index: u64) -> io::Result<Option<(LogId, u64)>> {
        if let Some(purged) = state.at.purged.filter(|purged| purged.index == index) {
            return Ok(Some((purged, state.at.purged_bytes)));
        }
        if let Some(found) = state.tail.find(index) {
            return Ok(Some(found));
        }
        if state.at.last.is_none_or(|last| last.index < index) {
            return Ok(None);
        }
        let row = self.store.get(Family::RaftLog, &keys::log_entry(self.shard, index)).map_err(super::io_error)?;
        let stored = row.map(value::decode_entry).transpose();
        let stored = stored.map_err(|error| io::Error::other(format!("entry {index} of the log: {error}")))?;
        Ok(stored.map(|stored| (crate::types::log_id(stored.term, index), stored.bytes_through)))
    }

    fn leads(&self, leader: &LeaderId) -> Result<(), LeaderChanged<Types>> {
        let vote = self.lock().at.vote;
        match vote {
            Some(vote) if vote.committed && vote.leader_id == *leader => Ok(()),
            vote => Err(LeaderChanged::new(*leader, vote)),
        }
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(to) => *to,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

/// Pieces of `from..to` on demand, one after another, as single entries.
fn pieces<E>(
    from: u64,
    to: u64,
    mut read: impl FnMut(u64, u64) -> Result<Vec<Entry>, E>,
) -> impl Iterator<Item = Result<Entry, E>> {
    let mut from = from;
    let mut piece = VecDeque::new();
    std::iter::from_fn(move || {
        if piece.is_empty() && from < to {
            match read(from, to) {
                Ok(entries) => piece.extend(entries),
                Err(error) => {
                    from = to;
                    return Some(Err(error));
                }
            }
        }
        let entry: Entry = piece.pop_front()?;
        from = entry.log_id.index + 1;
        Some(Ok(entry))
    })
}

impl RaftLogReader<Types> for LogReader {
    async fn leader_bounded_stream<RB>(
        &mut self,
        leader: LeaderId,
        range: RB,
    ) -> impl Stream<Item = LeaderBoundedStreamResult<Types>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let shared = Arc::clone(&self.shared);
        let (from, to) = bounds(&range);
        stream::iter(pieces(from, to, move |from, to| {
            shared.leads(&leader)?;
            let entries = shared.read(from, to, READ_BYTES_MAX)?;
            shared.leads(&leader)?;
            Ok::<_, LeaderBoundedStreamError<Types>>(entries)
        }))
    }

    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let shared = Arc::clone(&self.shared);
        let (from, to) = bounds(&range);
        stream::iter(pieces(from, to, move |from, to| shared.read(from, to, READ_BYTES_MAX)))
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        self.shared.read(from, to, usize::MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.lock().at.vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.shared.read(start, end, READ_BYTES_MAX)
    }
}
