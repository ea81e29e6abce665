//! A shard's rows in memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use onceward_core::rows::{ReadRows, Row, Rows, RowsError, Table};

#[derive(Default)]
pub struct MemoryRows {
    state: BTreeMap<Bytes, Bytes>,
    expiry: BTreeMap<Bytes, Bytes>,
}

impl MemoryRows {
    fn table(&self, table: Table) -> &BTreeMap<Bytes, Bytes> {
        match table {
            Table::State => &self.state,
            Table::Expiry => &self.expiry,
        }
    }

    fn table_mut(&mut self, table: Table) -> &mut BTreeMap<Bytes, Bytes> {
        match table {
            Table::State => &mut self.state,
            Table::Expiry => &mut self.expiry,
        }
    }
}

impl ReadRows for MemoryRows {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        Ok(self.table(table).get(key).cloned())
    }

    fn scan(&self, table: Table, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Row>, RowsError> {
        let from = Bytes::copy_from_slice(after.unwrap_or(prefix).max(prefix));
        let behind = self.table(table).range(from..).filter(|(key, _)| after.is_none_or(|after| key.as_ref() > after));
        let within = behind.take_while(|(key, _)| key.starts_with(prefix));
        Ok(within.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn scan_back(
        &self,
        table: Table,
        prefix: &[u8],
        before: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Row>, RowsError> {
        let rows = self.table(table).range(Bytes::copy_from_slice(prefix)..).rev();
        let before =
            rows.filter(|(key, _)| key.starts_with(prefix) && before.is_none_or(|before| key.as_ref() < before));
        Ok(before.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

impl Rows for MemoryRows {
    fn put(&mut self, table: Table, key: Bytes, value: Bytes) {
        self.table_mut(table).insert(key, value);
    }

    fn delete(&mut self, table: Table, key: Bytes) {
        self.table_mut(table).remove(&key);
    }
}
