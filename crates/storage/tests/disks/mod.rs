//! The two stores that every promise is tested on.

use std::sync::Arc;

use onceward_storage::{MemoryStore, RocksStore, Store, StoreOptions};
use tempfile::TempDir;

/// A store and what it lies on.
pub struct Disk {
    pub name: &'static str,
    pub store: Arc<dyn Store>,
    _dir: Option<TempDir>,
}

/// A fresh simulated disk, and a fresh engine.
pub fn each() -> [Disk; 2] {
    let dir = tempfile::tempdir().unwrap();
    let rocks = RocksStore::open(&dir.path().join("db"), &StoreOptions::default()).unwrap();
    [
        Disk { name: "memory", store: Arc::new(MemoryStore::new()), _dir: None },
        Disk { name: "rocksdb", store: Arc::new(rocks), _dir: Some(dir) },
    ]
}
