//! What `apply` sees of storage: a shard's ordered rows in two tables, and nothing else.

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::codec;

/// The tables of a shard's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Rows by key, see [`crate::codec::keys`].
    State,
    /// Due times, ordered: what [`crate::command::Command::Expire`] walks.
    Expiry,
}

/// Why rows could not be read, or did not make sense. Fatal to the process: never skipped, never retried.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    #[error("reading {table:?}: {detail}")]
    Storage { table: Table, detail: String },
    #[error("corrupt row in {table:?} at key {key:02x?}: {detail}")]
    Corrupt { table: Table, key: Vec<u8>, detail: String },
}

/// A key and its value.
pub type Row = (Bytes, Bytes);

/// A shard's rows as they can be read. Keys are without the shard prefix, which storage adds.
pub trait ReadRows {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, RowsError>;

    /// Rows whose key starts with `prefix` and is greater than `after`, in key order, at most `limit`.
    fn scan(&self, table: Table, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Row>, RowsError>;

    /// Rows whose key starts with `prefix` and is less than `before`, in descending key order, at most `limit`.
    fn scan_back(
        &self,
        table: Table,
        prefix: &[u8],
        before: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Row>, RowsError>;
}

/// A shard's rows as `apply` changes them; changes are seen by later reads at once.
pub trait Rows: ReadRows {
    fn put(&mut self, table: Table, key: Bytes, value: Bytes);
    fn delete(&mut self, table: Table, key: Bytes);
}

/// The decoded row at `key` of [`Table::State`].
pub(crate) fn read<T: DeserializeOwned>(rows: &(impl ReadRows + ?Sized), key: &[u8]) -> Result<Option<T>, RowsError> {
    rows.get(Table::State, key)?.map(|bytes| decode(key, &bytes)).transpose()
}

/// A row of [`Table::State`], decoded.
pub(crate) fn decode<T: DeserializeOwned>(key: &[u8], bytes: &[u8]) -> Result<T, RowsError> {
    codec::decode(bytes).map_err(|error| corrupt(Table::State, key, &error.to_string()))
}

pub(crate) fn corrupt(table: Table, key: &[u8], detail: &str) -> RowsError {
    RowsError::Corrupt { table, key: key.to_vec(), detail: detail.to_owned() }
}
