//! An ordered list of changes that reaches the store as one.
//!
//! The changes lie back to back in one buffer, so that joining the sets of many shards is one copy and a row costs no
//! allocation of its own.

use crate::Family;

/// One change, in the order in which it was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    Put {
        family: Family,
        key: &'a [u8],
        value: &'a [u8],
    },
    Delete {
        family: Family,
        key: &'a [u8],
    },
    /// All keys from `from` (included) to `to` (excluded).
    DeleteRange {
        family: Family,
        from: &'a [u8],
        to: &'a [u8],
    },
}

/// Changes over all families, applied atomically and in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteSet {
    /// Per change: kind, family, two lengths (u32, this machine's order: it never leaves the process), two fields.
    buffer: Vec<u8>,
    len: usize,
}

const PUT: u8 = 0;
const DELETE: u8 = 1;
const DELETE_RANGE: u8 = 2;
const HEAD_BYTES: usize = 10;

impl WriteSet {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with_capacity_bytes(bytes: usize) -> Self {
        WriteSet { buffer: Vec::with_capacity(bytes), len: 0 }
    }

    pub fn put(&mut self, family: Family, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push(PUT, family, key.as_ref(), value.as_ref());
    }

    pub fn delete(&mut self, family: Family, key: impl AsRef<[u8]>) {
        self.push(DELETE, family, key.as_ref(), &[]);
    }

    /// Deletes all keys from `from` (included) to `to` (excluded); nothing if that is empty.
    pub fn delete_range(&mut self, family: Family, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        // The engine treats a range that ends before it starts as an error of the whole batch.
        if from.as_ref() < to.as_ref() {
            self.push(DELETE_RANGE, family, from.as_ref(), to.as_ref());
        }
    }

    /// Adds the changes of another set behind the own ones.
    pub fn append(&mut self, other: &WriteSet) {
        self.buffer.extend_from_slice(&other.buffer);
        self.len += other.len;
    }

    /// Changes in the set.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of keys and values, and ten more for each change.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    pub fn clear(&mut self) {
        self.buffer.clear();
        self.len = 0;
    }

    pub fn iter(&self) -> impl Iterator<Item = Op<'_>> {
        let mut rest = self.buffer.as_slice();
        std::iter::from_fn(move || {
            let (head, tail) = rest.split_at_checked(HEAD_BYTES)?;
            let length = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
            let (first, tail) = tail.split_at(length(2));
            let (second, tail) = tail.split_at(length(6));
            rest = tail;
            let family = Family::ALL[usize::from(head[1])];
            Some(match head[0] {
                PUT => Op::Put { family, key: first, value: second },
                DELETE => Op::Delete { family, key: first },
                _ => Op::DeleteRange { family, from: first, to: second },
            })
        })
    }

    fn push(&mut self, kind: u8, family: Family, first: &[u8], second: &[u8]) {
        let length = |field: &[u8]| u32::try_from(field.len()).expect("keys and values are bounded far below 4 GiB");
        self.buffer.reserve(HEAD_BYTES + first.len() + second.len());
        self.buffer.extend_from_slice(&[kind, family as u8]);
        self.buffer.extend_from_slice(&length(first).to_ne_bytes());
        self.buffer.extend_from_slice(&length(second).to_ne_bytes());
        self.buffer.extend_from_slice(first);
        self.buffer.extend_from_slice(second);
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_in_the_order_in_which_they_were_added_and_joined() {
        let mut first = WriteSet::new();
        first.put(Family::State, b"key", b"value");
        first.delete(Family::Expiry, b"");
        let mut second = WriteSet::new();
        second.delete_range(Family::RaftLog, b"a", b"b");
        second.delete_range(Family::RaftLog, b"b", b"b");
        first.append(&second);
        assert_eq!(
            first.iter().collect::<Vec<_>>(),
            [
                Op::Put { family: Family::State, key: b"key", value: b"value" },
                Op::Delete { family: Family::Expiry, key: b"" },
                Op::DeleteRange { family: Family::RaftLog, from: b"a", to: b"b" },
            ]
        );
        assert_eq!(first.len(), 3);
    }
}
