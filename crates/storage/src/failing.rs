//! A disk that is slow, fails or is full when told to: the store that it wraps, with faults that can be changed while it
//! runs. Only for tests.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use bytes::Bytes;
use onceward_core::rows::Row;

use crate::{Family, StorageError, Store, StoreStats, StoreView, WriteSet};

/// What is wrong with a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// How much longer than the disk takes every sync takes.
    pub sync_delay: Duration,
    pub sync_fails: bool,
    /// What the disk says is free, whatever is.
    pub free_bytes: Option<u64>,
}

/// A store on a disk with faults.
pub struct FailingStore {
    store: Arc<dyn Store>,
    faults: Arc<Mutex<DiskFaults>>,
}

impl FailingStore {
    pub fn new(store: Arc<dyn Store>, faults: Arc<Mutex<DiskFaults>>) -> FailingStore {
        FailingStore { store, faults }
    }

    fn faults(&self) -> DiskFaults {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for FailingStore {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.store.get(family, key)
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Row>, StorageError> {
        self.store.scan(family, from, to, limit, bytes_max)
    }

    fn scan_back(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Row>, StorageError> {
        self.store.scan_back(family, from, to, limit, bytes_max)
    }

    fn write(&self, set: &WriteSet) -> Result<(), StorageError> {
        self.store.write(set)
    }

    fn sync(&self) -> Result<(), StorageError> {
        let DiskFaults { sync_delay, sync_fails, .. } = self.faults();
        thread::sleep(sync_delay);
        if sync_fails {
            let detail = "a sync was told to fail".to_owned();
            return Err(StorageError::Failed { place: "the disk".to_owned(), detail });
        }
        self.store.sync()
    }

    fn view(&self) -> Result<Box<dyn StoreView + '_>, StorageError> {
        self.store.view()
    }

    fn free_bytes(&self) -> Result<u64, StorageError> {
        self.faults().free_bytes.map_or_else(|| self.store.free_bytes(), Ok)
    }

    fn stats(&self) -> StoreStats {
        self.store.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[test]
    fn what_was_not_synced_is_lost_and_what_is_free_is_what_was_told() {
        let (disk, faults) = (MemoryStore::new(), Arc::<Mutex<DiskFaults>>::default());
        let store = FailingStore::new(Arc::new(disk.clone()), faults.clone());
        let mut set = WriteSet::new();
        set.put(Family::State, b"row", b"value");
        store.write(&set).unwrap();
        faults.lock().unwrap().sync_fails = true;
        assert!(store.sync().is_err());
        assert_eq!(disk.crash().get(Family::State, b"row"), Ok(None));
        *faults.lock().unwrap() = DiskFaults { free_bytes: Some(7), ..DiskFaults::default() };
        assert_eq!((store.sync(), store.free_bytes()), (Ok(()), Ok(7)));
        assert_eq!(disk.crash().get(Family::State, b"row").unwrap().as_deref(), Some(&b"value"[..]));
    }
}
