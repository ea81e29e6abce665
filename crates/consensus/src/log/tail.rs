//! The end of a log in memory: what was appended lately, and above all what isn't on disk yet.
//!
//! Followers and `apply` nearly always want what was just appended, so it is kept as it came. Entries in flight to
//! the disk are never dropped; others go, oldest first, once all together are more than a bound of bytes.

use std::collections::VecDeque;

use crate::{
    encoding::payload_bytes,
    types::{Entry, LogId},
};

/// Kept of a group's log in memory beyond what is in flight: enough for members that lag by a few rounds.
const TAIL_BYTES_MAX: usize = 2 << 20;

/// What one entry counts besides its batch: its place here, in the engine's structures and in the key.
const ENTRY_OVERHEAD_BYTES: usize = 64;

/// What an entry counts wherever log bytes are bounded.
pub(crate) fn entry_bytes(entry: &Entry) -> usize {
    payload_bytes(&entry.payload) + ENTRY_OVERHEAD_BYTES
}

#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// Consecutive, up to the log's last entry.
    entries: VecDeque<Kept>,
    bytes: usize,
    /// Appends that are on their way to the disk, in the order in which they become durable.
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
}

#[derive(Debug)]
struct Kept {
    entry: Entry,
    bytes_through: u64,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    first: u64,
    bytes: usize,
}

impl Tail {
    /// An append that begins at `first`, and was pushed, goes to the disk. [`Tail::flushed`] says when it is there.
    pub(crate) fn depart(&mut self, first: u64, bytes: usize) {
        self.in_flight.push_back(InFlight { first, bytes });
        self.in_flight_bytes += bytes;
    }

    pub(crate) fn push(&mut self, entry: Entry, bytes_through: u64) {
        self.bytes += entry_bytes(&entry);
        self.entries.push_back(Kept { entry, bytes_through });
    }

    /// The oldest append in flight is durable.
    pub(crate) fn flushed(&mut self) {
        if let Some(append) = self.in_flight.pop_front() {
            self.in_flight_bytes -= append.bytes;
        }
        let needed_from = self.in_flight.iter().map(|append| append.first).min().unwrap_or(u64::MAX);
        while self.bytes > TAIL_BYTES_MAX
            && let Some(oldest) = self.entries.front()
            && oldest.entry.log_id.index < needed_from
        {
            self.bytes -= entry_bytes(&oldest.entry);
            self.entries.pop_front();
        }
    }

    /// Whether no append that covers this entry is on its way any more. An entry that was cut off and appended anew
    /// has to wait for both.
    pub(crate) fn is_flushed(&self, index: u64) -> bool {
        self.in_flight.iter().all(|append| append.first > index)
    }

    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    /// Drops the entries behind `last`, all without one.
    pub(crate) fn cut_after(&mut self, last: Option<u64>) {
        while self.entries.back().is_some_and(|kept| last.is_none_or(|last| kept.entry.log_id.index > last)) {
            self.bytes -= self.entries.pop_back().map_or(0, |kept| entry_bytes(&kept.entry));
        }
    }

    /// Drops the entries up to and with `index`.
    pub(crate) fn drop_through(&mut self, index: u64) {
        while self.entries.front().is_some_and(|kept| kept.entry.log_id.index <= index) {
            self.bytes -= self.entries.pop_front().map_or(0, |kept| entry_bytes(&kept.entry));
        }
    }

    /// The first entry kept.
    pub(crate) fn first(&self) -> Option<u64> {
        self.entries.front().map(|kept| kept.entry.log_id.index)
    }

    /// Entries of `from..to`, as many as are kept, at least one where that one is, and no further one once
    /// `bytes_max` are gathered.
    pub(crate) fn read(&self, from: u64, to: u64, bytes_max: usize, into: &mut Vec<Entry>) -> usize {
        let Some(skip) = self.first().and_then(|first| from.checked_sub(first)) else { return 0 };
        let mut bytes = 0;
        for kept in self.entries.iter().skip(skip as usize) {
            if kept.entry.log_id.index >= to || bytes >= bytes_max {
                break;
            }
            bytes += entry_bytes(&kept.entry);
            into.push(kept.entry.clone());
        }
        bytes
    }

    /// An entry's id and the log's bytes through it.
    pub(crate) fn find(&self, index: u64) -> Option<(LogId, u64)> {
        let kept = self.entries.get(usize::try_from(index.checked_sub(self.first()?)?).ok()?)?;
        Some((kept.entry.log_id, kept.bytes_through))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use onceward_core::time::ShardTime;

    use super::*;
    use crate::types::{Batch, Payload, log_id};

    fn entry(term: u64, index: u64, bytes: usize) -> Entry {
        let encoded = Bytes::from(vec![0; bytes]);
        Entry { log_id: log_id(term, index), payload: Payload::Normal(Batch { stamp: ShardTime(index), encoded }) }
    }

    fn append(tail: &mut Tail, term: u64, indexes: std::ops::Range<u64>, bytes: usize) {
        let first = indexes.start;
        indexes.for_each(|index| tail.push(entry(term, index, bytes), index));
        tail.depart(first, bytes);
    }

    #[test]
    fn what_is_in_flight_stays_and_the_rest_is_bounded_in_bytes() {
        let mut tail = Tail::default();
        for index in 0..64 {
            append(&mut tail, 1, index..index + 1, 128 << 10);
        }
        assert_eq!(tail.first(), Some(0), "all of it is in flight");
        (0..63).for_each(|_| tail.flushed());
        assert!(tail.bytes <= TAIL_BYTES_MAX);
        assert!(tail.first().unwrap() > 40 && tail.find(63).is_some());
    }

    #[test]
    fn reads_are_bounded_in_bytes_and_make_progress() {
        let mut tail = Tail::default();
        append(&mut tail, 1, 5..9, 1000);
        let read = |from, to, bytes_max| {
            let mut entries = Vec::new();
            tail.read(from, to, bytes_max, &mut entries);
            entries.into_iter().map(|entry| entry.log_id.index).collect::<Vec<_>>()
        };
        assert_eq!(read(5, 9, usize::MAX), [5, 6, 7, 8]);
        assert_eq!(read(6, 8, 1), [6], "one at least");
        assert_eq!(read(6, 9, 1500), [6, 7]);
        assert_eq!(read(4, 9, usize::MAX), [0u64; 0], "what comes before is on disk");
        assert_eq!(read(9, 20, usize::MAX), [0u64; 0]);
    }

    #[test]
    fn an_entry_written_anew_after_a_cut_is_flushed_when_its_own_append_is() {
        let mut tail = Tail::default();
        append(&mut tail, 1, 5..11, 10);
        tail.cut_after(Some(7));
        append(&mut tail, 2, 8..10, 10);
        assert!(tail.is_flushed(4) && !tail.is_flushed(8));
        tail.flushed();
        assert!(tail.is_flushed(7) && !tail.is_flushed(8));
        tail.flushed();
        assert!(tail.is_flushed(9));
        assert_eq!(tail.find(8).unwrap().0, log_id(2, 8));
        assert_eq!(tail.find(10), None);
    }
}
