//! The hash of a shard's rows, by which replicas are compared.

use std::fmt;

use onceward_core::rows::Table;
use xxhash_rust::xxh3::Xxh3;

/// XXH3-128 over all rows in order. It tells replicas apart that should be equal; it withstands no forger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateHash(pub u128);

impl fmt::Display for StateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Takes rows in order, the State table first.
pub(crate) struct RowHasher {
    hasher: Xxh3,
    rows: u64,
}

impl RowHasher {
    pub(crate) fn new() -> Self {
        RowHasher { hasher: Xxh3::new(), rows: 0 }
    }

    /// Table u8, lengths of key and value (u32 big-endian), key, value: as rows lie in a snapshot.
    pub(crate) fn row(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.hasher.update(&super::format::row_head(table, key, value));
        self.hasher.update(key);
        self.hasher.update(value);
        self.rows += 1;
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    pub(crate) fn finish(&self) -> StateHash {
        StateHash(self.hasher.digest128())
    }
}
