//! The rows that changed since the last flush, in memory and ordered.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use onceward_core::rows::Table;

use super::scan::Span;

/// Changed rows by key; `None` is a deletion.
type Rows = BTreeMap<Bytes, Option<Bytes>>;

#[derive(Clone, Default)]
pub(super) struct Overlay {
    state: Rows,
    expiry: Rows,
    bytes: usize,
}

impl Overlay {
    /// What the overlay says of a row: nothing, deleted, or its value.
    pub(super) fn get(&self, table: Table, key: &[u8]) -> Option<Option<&Bytes>> {
        self.rows(table).get(key).map(Option::as_ref)
    }

    pub(super) fn set(&mut self, table: Table, key: Bytes, value: Option<Bytes>) {
        let size = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        let (key_bytes, value_bytes) = (key.len(), size(&value));
        match self.rows_mut(table).insert(key, value) {
            Some(replaced) => self.bytes = self.bytes - size(&replaced) + value_bytes,
            None => self.bytes += key_bytes + value_bytes,
        }
    }

    /// Changed rows of a table in a span, which isn't empty.
    pub(super) fn within(
        &self,
        table: Table,
        span: Span<'_>,
    ) -> impl DoubleEndedIterator<Item = (&Bytes, Option<&Bytes>)> {
        let to = span.to.map_or(Bound::Unbounded, Bound::Excluded);
        self.rows(table).range::<[u8], _>((Bound::Included(span.from), to)).map(|(key, value)| (key, value.as_ref()))
    }

    pub(super) fn rows_changed(&self) -> usize {
        self.state.len() + self.expiry.len()
    }

    /// Keys and values; what the maps need beside them is not counted.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn rows(&self, table: Table) -> &Rows {
        match table {
            Table::State => &self.state,
            Table::Expiry => &self.expiry,
        }
    }

    fn rows_mut(&mut self, table: Table) -> &mut Rows {
        match table {
            Table::State => &mut self.state,
            Table::Expiry => &mut self.expiry,
        }
    }
}
