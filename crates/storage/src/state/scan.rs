//! Scans: the overlays merged over pages of the engine, in either direction.
//!
//! A span of row keys and an order go in; rows come out as if the overlays had been written. A page never reaches
//! beyond the shard, the table or the generation.

use std::cmp::Ordering;
use std::iter::Rev;

use bytes::Bytes;
use itertools::{Either, EitherOrBoth, Itertools};
use onceward_core::rows::{Row, Table};

use super::ShardState;
use crate::keys::{self, StatePrefix};
use crate::limits::{SCAN_PAGE_BYTES, SCAN_PAGE_ROWS};
use crate::{Family, StorageError};

/// Row keys from `from` (included) to `to` (excluded; `None`: to the end of the table).
#[derive(Debug, Clone, Copy)]
pub(super) struct Span<'k> {
    pub(super) from: &'k [u8],
    pub(super) to: Option<&'k [u8]>,
}

impl Span<'_> {
    pub(super) const ALL: Span<'static> = Span { from: &[], to: None };

    fn is_empty(self) -> bool {
        self.to.is_some_and(|to| to <= self.from)
    }
}

/// Which way a scan goes through its span.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    Ascending,
    Descending,
}

impl Order {
    /// `Less` where `left` comes before `right` on the way.
    fn compare(self, left: &[u8], right: &[u8]) -> Ordering {
        match self {
            Order::Ascending => left.cmp(right),
            Order::Descending => right.cmp(left),
        }
    }

    fn walk<I: DoubleEndedIterator>(self, ascending: I) -> Either<I, Rev<I>> {
        match self {
            Order::Ascending => Either::Left(ascending),
            Order::Descending => Either::Right(ascending.rev()),
        }
    }
}

impl ShardState {
    /// Rows of a span, at most `limit`, the overlays merged over the disk.
    pub(super) fn merge(
        &self,
        table: Table,
        span: Span<'_>,
        order: Order,
        limit: usize,
    ) -> Result<Vec<Row>, StorageError> {
        let mut rows = Vec::new();
        if limit == 0 || span.is_empty() {
            return Ok(rows);
        }
        let mut changed = self.changed(table, span, order).peekable();
        let mut from = self.key(span.from);
        let mut to = match span.to {
            Some(to) => self.key(to),
            None => keys::state_generation(self.shard, self.head.generation).to.to_vec(),
        };
        loop {
            let wanted = (limit - rows.len()).min(SCAN_PAGE_ROWS);
            let family = Family::of(table);
            let page = match order {
                Order::Ascending => self.store.scan(family, &from, &to, wanted, SCAN_PAGE_BYTES)?,
                Order::Descending => self.store.scan_back(family, &from, &to, wanted, SCAN_PAGE_BYTES)?,
            };
            let exhausted = page.len() < wanted && bytes_of(&page) < SCAN_PAGE_BYTES;
            if let Some((last, _)) = page.last() {
                match order {
                    Order::Ascending => from = successor(last),
                    Order::Descending => to = last.to_vec(),
                }
            }
            for (key, value) in page {
                let key = key.slice(size_of::<StatePrefix>()..);
                let sooner = |changed: &[u8]| order.compare(changed, &key).is_lt();
                while let Some((changed_key, changed_value)) = changed.next_if(|(changed, _)| sooner(changed)) {
                    rows.extend(changed_value.map(|value| (changed_key.clone(), value.clone())));
                    if rows.len() == limit {
                        return Ok(rows);
                    }
                }
                match changed.next_if(|(changed, _)| **changed == key) {
                    Some((_, changed_value)) => rows.extend(changed_value.map(|value| (key, value.clone()))),
                    None => rows.push((key, value)),
                }
                if rows.len() == limit {
                    return Ok(rows);
                }
            }
            if exhausted {
                break;
            }
        }
        let rest = changed.filter_map(|(key, value)| Some((key.clone(), value?.clone())));
        rows.extend(rest.take(limit - rows.len()));
        Ok(rows)
    }

    /// A scan of the Expiry table from its front: starts at the floor, and raises it to the first row found.
    pub(super) fn scan_expiry_front(&self, limit: usize) -> Result<Vec<Row>, StorageError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let Some(floor) = self.expiry_floor.borrow().clone() else { return Ok(Vec::new()) };
        let rows = self.merge(Table::Expiry, Span { from: &floor, to: None }, Order::Ascending, limit)?;
        self.expiry_floor.replace(rows.first().map(|(key, _)| key.clone()));
        Ok(rows)
    }

    /// Changed rows of a span, which isn't empty, that may not be on the disk yet.
    fn changed(&self, table: Table, span: Span<'_>, order: Order) -> impl Iterator<Item = (&Bytes, Option<&Bytes>)> {
        let newer = order.walk(self.overlay.within(table, span));
        let flushing = self.flushing.as_deref();
        let older = flushing.map(|flushing| order.walk(flushing.within(table, span))).into_iter().flatten();
        newer.merge_join_by(older, move |(newer, _), (older, _)| order.compare(newer, older)).map(|rows| match rows {
            EitherOrBoth::Left(newer) | EitherOrBoth::Both(newer, _) => newer,
            EitherOrBoth::Right(older) => older,
        })
    }
}

/// The least key greater than a key.
pub(super) fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn bytes_of(rows: &[Row]) -> usize {
    rows.iter().map(|(key, value)| key.len() + value.len()).sum()
}
