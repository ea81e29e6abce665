//! The simulated disk: a store in memory that forgets what was not synced, and fails when told to.
//!
//! It keeps the promise of [`Store`] and not a bit more, so that what relies on more breaks in a test.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use onceward_core::rows::Row;
use xxhash_rust::xxh3::xxh3_64;

use crate::{Family, Op, StorageError, Store, StoreStats, StoreView, Visitor, WriteSet};

/// One family's rows; shared with views, copied when it changes while a view lives.
type Rows = Arc<BTreeMap<Bytes, Bytes>>;

#[derive(Clone, Default)]
struct Families([Rows; 4]);

/// A disk in memory. Clones are handles on the same disk.
#[derive(Clone, Default)]
pub struct MemoryStore {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Default)]
struct Disk {
    /// What reads see.
    rows: Families,
    /// What survives any crash.
    durable: Families,
    /// Written since the last sync, in order.
    unsynced: Vec<WriteSet>,
    /// Writes and syncs that still succeed; `None` is no limit.
    operations_left: Option<u64>,
    fail_sync: bool,
    writes: u64,
    syncs: u64,
    bytes_written: u64,
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    /// The disk that a machine finds which lost power now: only what was synced. This one stays as it is.
    pub fn crash(&self) -> MemoryStore {
        self.crash_keeping(0)
    }

    /// Likewise, but the first `kept` of the unsynced writes have also reached the disk.
    pub fn crash_keeping(&self, kept: usize) -> MemoryStore {
        let disk = self.lock();
        let mut rows = disk.durable.clone();
        disk.unsynced.iter().take(kept).for_each(|set| rows.apply(set));
        let survivor = Disk { durable: rows.clone(), rows, ..Disk::default() };
        MemoryStore { disk: Arc::new(Mutex::new(survivor)) }
    }

    /// Likewise, keeping as many of the unsynced writes as the seed says.
    pub fn crash_seeded(&self, seed: u64) -> MemoryStore {
        let choices = self.unsynced() as u64 + 1;
        self.crash_keeping((xxh3_64(&seed.to_be_bytes()) % choices) as usize)
    }

    /// Writes since the last sync.
    pub fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// Makes the next sync fail.
    pub fn fail_next_sync(&self) {
        self.lock().fail_sync = true;
    }

    /// Lets this many more writes and syncs succeed, and every later one fail.
    pub fn fail_after(&self, operations: u64) {
        self.lock().operations_left = Some(operations);
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(self.lock().rows.of(family).get(key).cloned())
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Row>, StorageError> {
        Ok(page(self.lock().rows.range(family, from, to), limit, bytes_max))
    }

    fn scan_back(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Row>, StorageError> {
        Ok(page(self.lock().rows.range(family, from, to).rev(), limit, bytes_max))
    }

    fn write(&self, set: &WriteSet) -> Result<(), StorageError> {
        let mut disk = self.lock();
        disk.operate("write")?;
        disk.rows.apply(set);
        disk.unsynced.push(set.clone());
        disk.writes += 1;
        disk.bytes_written += set.bytes() as u64;
        Ok(())
    }

    fn sync(&self) -> Result<(), StorageError> {
        let mut disk = self.lock();
        disk.operate("sync")?;
        if std::mem::take(&mut disk.fail_sync) {
            return Err(failed("sync"));
        }
        // Rows shared with `rows` would be copied by the next write.
        for set in std::mem::take(&mut disk.unsynced) {
            disk.durable.apply(&set);
        }
        disk.syncs += 1;
        Ok(())
    }

    fn view(&self) -> Result<Box<dyn StoreView + '_>, StorageError> {
        Ok(Box::new(self.lock().rows.clone()))
    }

    fn stats(&self) -> StoreStats {
        let disk = self.lock();
        let mut stats = StoreStats {
            writes: disk.writes,
            syncs: disk.syncs,
            bytes_written: disk.bytes_written,
            ..Default::default()
        };
        for (family, rows) in stats.families.iter_mut().zip(&disk.rows.0) {
            family.rows_estimate = rows.len() as u64;
            family.live_bytes = rows.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
        }
        stats
    }
}

impl StoreView for Families {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(self.of(family).get(key).cloned())
    }

    fn visit(&self, family: Family, from: &[u8], to: &[u8], visit: &mut Visitor<'_>) -> Result<(), StorageError> {
        self.range(family, from, to).try_for_each(|(key, value)| visit(key, value))
    }
}

impl Families {
    fn of(&self, family: Family) -> &BTreeMap<Bytes, Bytes> {
        &self.0[family.index()]
    }

    fn range(&self, family: Family, from: &[u8], to: &[u8]) -> impl DoubleEndedIterator<Item = (&Bytes, &Bytes)> {
        // A map panics at a range that ends before it starts; a store says that it is empty.
        let to = to.max(from);
        self.of(family).range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
    }

    fn apply(&mut self, set: &WriteSet) {
        for op in set.iter() {
            match op {
                Op::Put { family, key, value } => {
                    self.change(family).insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                }
                Op::Delete { family, key } => {
                    self.change(family).remove(key);
                }
                Op::DeleteRange { family, from, to } => {
                    let doomed: Vec<Bytes> = self.range(family, from, to).map(|(key, _)| key.clone()).collect();
                    let rows = self.change(family);
                    doomed.iter().for_each(|key| drop(rows.remove(key)));
                }
            }
        }
    }

    fn change(&mut self, family: Family) -> &mut BTreeMap<Bytes, Bytes> {
        Arc::make_mut(&mut self.0[family.index()])
    }
}

impl Disk {
    fn operate(&mut self, operation: &str) -> Result<(), StorageError> {
        match &mut self.operations_left {
            None => Ok(()),
            Some(0) => Err(failed(operation)),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

fn page<'r>(within: impl Iterator<Item = (&'r Bytes, &'r Bytes)>, limit: usize, bytes_max: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut bytes = 0;
    for (key, value) in within {
        if rows.len() >= limit || (bytes >= bytes_max && !rows.is_empty()) {
            break;
        }
        bytes += key.len() + value.len();
        rows.push((key.clone(), value.clone()));
    }
    rows
}

fn failed(operation: &str) -> StorageError {
    StorageError::Failed { place: "the simulated disk".to_owned(), detail: format!("{operation} was told to fail") }
}
