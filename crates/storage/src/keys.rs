//! The keys of every family: who needs one calls a function here and never joins bytes itself.
//!
//! All begin with the shard id, big-endian, so that a shard's rows lie together. Numbers are big-endian so that key
//! order is number order.

use onceward_core::cluster::{DATA_SHARDS_MAX, ShardId};

/// A log entry: shard u16, index u64.
pub type LogKey = [u8; 10];
/// A singular row: shard u16 (or [`NODE`]), kind u8.
pub type MetaKey = [u8; 3];
/// What a state row's key starts with: shard u16, generation u32.
pub type StatePrefix = [u8; 6];

/// Stands in a [`MetaKey`] where a row belongs to the node and to no shard.
const NODE: ShardId = ShardId(u16::MAX);

const _: () = assert!(DATA_SHARDS_MAX < NODE.0, "no shard may have the node's own prefix, or be the last of all");
const _: () = assert!(size_of::<LogKey>() == size_of::<u16>() + size_of::<u64>());
const _: () = assert!(size_of::<MetaKey>() == size_of::<u16>() + size_of::<u8>());
const _: () = assert!(size_of::<StatePrefix>() == size_of::<u16>() + size_of::<u32>());

/// Keys from `from` (included) to `to` (excluded).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRange<const N: usize> {
    pub from: [u8; N],
    pub to: [u8; N],
}

/// Kinds of singular rows. The numbers are the disk format: never reuse one.
#[repr(u8)]
enum Kind {
    Vote = 1,
    Committed = 2,
    Purged = 3,
    ClockPair = 4,
    StateHead = 5,
    Identity = 16,
    Manifest = 17,
}

/// The entry of a shard's log at an index.
pub const fn log_entry(shard: ShardId, index: u64) -> LogKey {
    let [s0, s1] = shard.0.to_be_bytes();
    let [i0, i1, i2, i3, i4, i5, i6, i7] = index.to_be_bytes();
    [s0, s1, i0, i1, i2, i3, i4, i5, i6, i7]
}

/// The index of a log entry, or `None` where the key isn't one.
pub fn log_index(key: &[u8]) -> Option<u64> {
    let key: &LogKey = key.try_into().ok()?;
    Some(u64::from_be_bytes(key[2..].try_into().expect("a log key without its shard has eight bytes")))
}

/// A shard's whole log.
pub const fn log(shard: ShardId) -> KeyRange<10> {
    KeyRange { from: log_entry(shard, 0), to: log_entry(next(shard), 0) }
}

/// A shard's entries from `index` on.
pub const fn log_from(shard: ShardId, index: u64) -> KeyRange<10> {
    KeyRange { from: log_entry(shard, index), to: log(shard).to }
}

/// A shard's entries up to and with `index`.
pub const fn log_through(shard: ShardId, index: u64) -> KeyRange<10> {
    KeyRange { from: log_entry(shard, 0), to: after(shard, index) }
}

/// A shard's entries from `first` up to and with `last`.
pub const fn log_between(shard: ShardId, first: u64, last: u64) -> KeyRange<10> {
    KeyRange { from: log_entry(shard, first), to: after(shard, last) }
}

/// The vote that a member of the shard's group gave last.
pub const fn vote(shard: ShardId) -> MetaKey {
    meta(shard, Kind::Vote)
}

/// The last log id known to be committed.
pub const fn committed(shard: ShardId) -> MetaKey {
    meta(shard, Kind::Committed)
}

/// The last log id that was purged.
pub const fn purged(shard: ShardId) -> MetaKey {
    meta(shard, Kind::Purged)
}

/// The shard clock against this node's wall clock, stored now and then.
pub const fn clock_pair(shard: ShardId) -> MetaKey {
    meta(shard, Kind::ClockPair)
}

/// Which generation of rows is the shard's state, and what is applied in it: see [`crate::ShardState`].
pub(crate) const fn state_head(shard: ShardId) -> MetaKey {
    meta(shard, Kind::StateHead)
}

/// Who this data directory is.
pub const fn identity() -> MetaKey {
    meta(NODE, Kind::Identity)
}

/// The founding manifest.
pub const fn manifest() -> MetaKey {
    meta(NODE, Kind::Manifest)
}

/// What the keys of a generation of a shard's state start with.
pub(crate) const fn state_prefix(shard: ShardId, generation: u32) -> StatePrefix {
    let [s0, s1] = shard.0.to_be_bytes();
    let [g0, g1, g2, g3] = generation.to_be_bytes();
    [s0, s1, g0, g1, g2, g3]
}

/// All rows of a generation.
pub(crate) const fn state_generation(shard: ShardId, generation: u32) -> KeyRange<6> {
    let from = state_prefix(shard, generation);
    match generation.checked_add(1) {
        Some(following) => KeyRange { from, to: state_prefix(shard, following) },
        None => KeyRange { from, to: state_prefix(next(shard), 0) },
    }
}

/// All rows of the generations before one.
pub(crate) const fn state_before(shard: ShardId, generation: u32) -> KeyRange<6> {
    KeyRange { from: state_prefix(shard, 0), to: state_prefix(shard, generation) }
}

/// All rows of the generations after one.
pub(crate) const fn state_after(shard: ShardId, generation: u32) -> KeyRange<6> {
    KeyRange { from: state_generation(shard, generation).to, to: state_prefix(next(shard), 0) }
}

/// The least key greater than all that start with `prefix`; `None` where there is none.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

const fn meta(shard: ShardId, kind: Kind) -> MetaKey {
    let [s0, s1] = shard.0.to_be_bytes();
    [s0, s1, kind as u8]
}

const fn after(shard: ShardId, index: u64) -> LogKey {
    match index.checked_add(1) {
        Some(following) => log_entry(shard, following),
        None => log_entry(next(shard), 0),
    }
}

const fn next(shard: ShardId) -> ShardId {
    ShardId(shard.0 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_on_disk_are_pinned() {
        let shard = ShardId(0x0102);
        assert_eq!(log_entry(shard, 0x0a0b_0c0d_0e0f_1011), [1, 2, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11]);
        assert_eq!(vote(shard), [1, 2, 1]);
        assert_eq!(committed(shard), [1, 2, 2]);
        assert_eq!(purged(shard), [1, 2, 3]);
        assert_eq!(clock_pair(shard), [1, 2, 4]);
        assert_eq!(state_head(shard), [1, 2, 5]);
        assert_eq!(identity(), [255, 255, 16]);
        assert_eq!(manifest(), [255, 255, 17]);
        assert_eq!(state_prefix(shard, 0x0304_0506), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn ranges_end_where_the_neighbour_begins_even_at_the_last_number() {
        let (shard, neighbour) = (ShardId(7), ShardId(8));
        assert_eq!(log_through(shard, 9).to, log_entry(shard, 10));
        assert_eq!(log_through(shard, u64::MAX), log(shard));
        assert_eq!(log_between(shard, 3, 9), KeyRange { from: log_entry(shard, 3), to: log_entry(shard, 10) });
        assert_eq!(log_from(shard, 9).to, log_entry(neighbour, 0));
        assert_eq!(state_generation(shard, u32::MAX).to, state_prefix(neighbour, 0));
        assert_eq!(state_before(shard, 4).to, state_generation(shard, 4).from);
        assert_eq!(state_after(shard, 4).from, state_generation(shard, 5).from);
        assert_eq!(log_index(&log_entry(shard, 77)), Some(77));
        assert_eq!(log_index(&vote(shard)), None);
    }

    #[test]
    fn a_prefix_ends_behind_everything_that_starts_with_it() {
        assert_eq!(prefix_end(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(prefix_end(&[1, 255, 255]).as_deref(), Some(&[2][..]));
        assert_eq!(prefix_end(&[255]), None);
        assert_eq!(prefix_end(b""), None);
    }
}
