//! The engine: one RocksDB a node, four column families, one write-ahead log that is synced only when told to.
//!
//! Bytes go in and out as the [`Store`] seam says; nothing of RocksDB leaves this module.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use onceward_core::rows::Row;
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    DBRawIterator, DBRecoveryMode, ErrorKind, InfoLogger, LogLevel, Options, ReadOptions, Snapshot, WriteBatch,
    properties,
};

use crate::limits::{BLOCK_CACHE_BYTES_DEFAULT, MEMTABLE_BYTES_DEFAULT, OPEN_FILES_MAX, WAL_BYTES_MAX};
use crate::{Family, FamilyStats, Op, StorageError, Store, StoreStats, StoreView, Visitor, WriteSet};

/// What an operator may want to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOptions {
    /// Cached blocks of table files, with their index and filter blocks.
    pub block_cache_bytes: usize,
    /// All memtables together, before the greatest is flushed.
    pub memtable_bytes: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions { block_cache_bytes: BLOCK_CACHE_BYTES_DEFAULT, memtable_bytes: MEMTABLE_BYTES_DEFAULT }
    }
}

/// A [`Store`] in a directory of its own. Dropping it syncs and closes it.
pub struct RocksStore {
    db: DB,
    dir: PathBuf,
    writes: AtomicU64,
    syncs: AtomicU64,
    bytes_written: AtomicU64,
}

impl RocksStore {
    /// Opens the store in `dir`, which is made if it doesn't exist, and takes its lock: one process at a time.
    ///
    /// A torn end of the write-ahead log is normal after a power loss and is cut off; any other damage is an error.
    pub fn open(dir: &Path, options: &StoreOptions) -> Result<Self, StorageError> {
        fs::create_dir_all(dir).map_err(|error| StorageError::io(dir, "creating the data directory", &error))?;
        refuse_headless(dir)?;
        let cache = Cache::new_lru_cache(options.block_cache_bytes);
        let families = Family::ALL
            .map(|family| ColumnFamilyDescriptor::new(family.name(), family_options(family, &cache, options)));
        let warnings = Arc::default();
        let db = DB::open_cf_descriptors(&database_options(options, &warnings), dir, families)
            .map_err(|error| open_error(dir, &error, &warnings))?;
        Ok(RocksStore {
            db,
            dir: dir.to_owned(),
            writes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        })
    }

    fn family(&self, family: Family) -> &ColumnFamily {
        self.db.cf_handle(family.name()).expect("every family was opened with the store")
    }

    fn error(&self, error: rocksdb::Error) -> StorageError {
        storage_error(&self.dir, &error)
    }

    fn number(&self, family: Family, property: &properties::PropName) -> u64 {
        self.db.property_int_value_cf(self.family(family), property).ok().flatten().unwrap_or(0)
    }
}

impl Store for RocksStore {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let value = self.db.get_pinned_cf(self.family(family), key).map_err(|error| self.error(error))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Row>, StorageError> {
        if limit == 0 || from >= to {
            return Ok(Vec::new());
        }
        let mut iterator = self.db.raw_iterator_cf_opt(self.family(family), range_options(from, to));
        iterator.seek(from);
        page(iterator, DBRawIterator::next, limit, bytes_max).map_err(|error| self.error(error))
    }

    fn scan_back(
        &self,
        family: Family,
        from: &[u8],
        to: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Row>, StorageError> {
        if limit == 0 || from >= to {
            return Ok(Vec::new());
        }
        let mut iterator = self.db.raw_iterator_cf_opt(self.family(family), range_options(from, to));
        iterator.seek_to_last();
        page(iterator, DBRawIterator::prev, limit, bytes_max).map_err(|error| self.error(error))
    }

    fn write(&self, set: &WriteSet) -> Result<(), StorageError> {
        let mut batch = WriteBatch::with_capacity_bytes(set.bytes() + set.len() * 4);
        for op in set.iter() {
            match op {
                Op::Put { family, key, value } => batch.put_cf(self.family(family), key, value),
                Op::Delete { family, key } => batch.delete_cf(self.family(family), key),
                Op::DeleteRange { family, from, to } => batch.delete_range_cf(self.family(family), from, to),
            }
        }
        self.db.write(batch).map_err(|error| self.error(error))?;
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(set.bytes() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&self) -> Result<(), StorageError> {
        // Not a synced write: that would hold up all other writers of the database for the length of the fsync.
        self.db.flush_wal(true).map_err(|error| self.error(error))?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn view(&self) -> Result<Box<dyn StoreView + '_>, StorageError> {
        Ok(Box::new(RocksView { store: self, snapshot: self.db.snapshot() }))
    }

    fn free_bytes(&self) -> Result<u64, StorageError> {
        let system = rustix::fs::statvfs(&self.dir)
            .map_err(|error| StorageError::io(&self.dir, "asking how much is free", &error.into()))?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    fn stats(&self) -> StoreStats {
        let mut stats = StoreStats {
            writes: self.writes.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
            // One cache serves all families, so any of them can say how full it is.
            block_cache_bytes: self.number(Family::State, properties::BLOCK_CACHE_USAGE),
            ..StoreStats::default()
        };
        for family in Family::ALL {
            stats.memtable_bytes += self.number(family, properties::SIZE_ALL_MEM_TABLES);
            stats.families[family.index()] = FamilyStats {
                live_bytes: self.number(family, properties::ESTIMATE_LIVE_DATA_SIZE),
                rows_estimate: self.number(family, properties::ESTIMATE_NUM_KEYS),
            };
        }
        stats
    }
}

impl Drop for RocksStore {
    fn drop(&mut self) {
        if let Err(error) = self.db.flush_wal(true) {
            tracing::error!(dir = %self.dir.display(), %error, "syncing the store at its close failed");
        }
        self.db.cancel_all_background_work(true);
        tracing::info!(dir = %self.dir.display(), "closing the data directory");
    }
}

struct RocksView<'s> {
    store: &'s RocksStore,
    snapshot: Snapshot<'s>,
}

impl StoreView for RocksView<'_> {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let value =
            self.snapshot.get_pinned_cf(self.store.family(family), key).map_err(|error| self.store.error(error))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn visit(&self, family: Family, from: &[u8], to: &[u8], visit: &mut Visitor<'_>) -> Result<(), StorageError> {
        if from >= to {
            return Ok(());
        }
        let mut options = range_options(from, to);
        // A whole shard once through must not drive out the blocks that requests need.
        options.fill_cache(false);
        let mut iterator = self.snapshot.raw_iterator_cf_opt(self.store.family(family), options);
        iterator.seek(from);
        while let Some((key, value)) = iterator.item() {
            visit(key, value)?;
            iterator.next();
        }
        iterator.status().map_err(|error| self.store.error(error))
    }
}

/// Rows from where an iterator stands, as far as [`Store::scan`] says.
fn page<'d>(
    mut iterator: DBRawIterator<'d>,
    step: impl Fn(&mut DBRawIterator<'d>),
    limit: usize,
    bytes_max: usize,
) -> Result<Vec<Row>, rocksdb::Error> {
    let mut rows = Vec::new();
    let mut bytes = 0;
    while let Some((key, value)) = iterator.item() {
        bytes += key.len() + value.len();
        rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        if rows.len() >= limit || bytes >= bytes_max {
            break;
        }
        step(&mut iterator);
    }
    iterator.status()?;
    Ok(rows)
}

fn range_options(from: &[u8], to: &[u8]) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_lower_bound(from);
    options.set_iterate_upper_bound(to);
    options
}

/// The first warnings of the engine since its open began.
type Warnings = Arc<Mutex<Vec<String>>>;

/// An open that fails gives two or three, of which the first names the file.
const WARNINGS_MAX: usize = 4;

/// Passes the engine's warnings on, and remembers the first ones.
fn logger(warnings: &Warnings) -> InfoLogger {
    let warnings = Arc::clone(warnings);
    InfoLogger::new_callback_logger(LogLevel::Warn, move |level, message| {
        let message = message.trim();
        match level {
            LogLevel::Error | LogLevel::Fatal => tracing::error!(target: "rocksdb", "{message}"),
            LogLevel::Warn => tracing::warn!(target: "rocksdb", "{message}"),
            LogLevel::Debug | LogLevel::Info | LogLevel::Header => return,
        }
        let mut warnings = warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.len() < WARNINGS_MAX {
            warnings.push(message.to_owned());
        }
    })
}

fn database_options(sizes: &StoreOptions, warnings: &Warnings) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    // The log is synced by its writer, and everything else rides along.
    options.set_manual_wal_flush(true);
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_track_and_verify_wals_in_manifest(true);
    // In a recycled file old records could pass for the tail of the new ones.
    options.set_recycle_log_file_num(0);
    options.set_max_total_wal_size(WAL_BYTES_MAX);
    options.set_db_write_buffer_size(sizes.memtable_bytes);
    options.set_max_open_files(OPEN_FILES_MAX);
    options.set_max_background_jobs(2);
    // Table files are written evenly instead of in bursts that a sync of the log would wait for.
    options.set_bytes_per_sync(1 << 20);
    // Nothing wakes up an idle node.
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_info_logger(logger(warnings));
    options
}

fn family_options(family: Family, cache: &Cache, sizes: &StoreOptions) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(cache);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_cache_index_and_filter_blocks_with_high_priority(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    // In parts of a block each: the filter of a whole file is too much for a small cache to keep, and with millions of
    // buckets each miss would read and check half a megabyte.
    blocks.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    blocks.set_partition_filters(true);
    blocks.set_metadata_block_size(4 << 10);
    blocks.set_pin_top_level_index_and_filter(true);
    blocks.set_format_version(6);
    let mut options = Options::default();
    if family == Family::State {
        // Most buckets of a limiter are absent: a filter answers that without reading a block.
        blocks.set_bloom_filter(10.0, false);
        options.set_memtable_prefix_bloom_ratio(0.05);
        options.set_memtable_whole_key_filtering(true);
    }
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_level_compaction_dynamic_level_bytes(true);
    // All families share the database's bound; this only keeps one of them from a single huge file.
    options.set_write_buffer_size((sizes.memtable_bytes / 2).max(1 << 20));
    options.set_arena_block_size(256 << 10);
    options.set_target_file_size_base(16 << 20);
    options.set_max_bytes_for_level_base(64 << 20);
    options
}

/// A directory with data and without the file that names the current version would be taken for an empty one, and
/// made anew: a node would forget its votes and all that it acknowledged.
fn refuse_headless(dir: &Path) -> Result<(), StorageError> {
    let current = dir.join("CURRENT");
    if current.exists() {
        return Ok(());
    }
    let entries = fs::read_dir(dir).map_err(|error| StorageError::io(dir, "listing the data directory", &error))?;
    for entry in entries {
        let path = entry.map_err(|error| StorageError::io(dir, "listing the data directory", &error))?.path();
        if path.extension().is_some_and(|extension| extension == "sst" || extension == "log") {
            return Err(StorageError::Corrupt {
                place: current.display().to_string(),
                detail: format!("the file is missing, but there is data: {}", path.display()),
            });
        }
    }
    Ok(())
}

/// Of damage in the write-ahead log RocksDB names the file only in a warning that it gives before the error.
fn open_error(dir: &Path, error: &rocksdb::Error, warnings: &Warnings) -> StorageError {
    let warnings = warnings.lock().unwrap_or_else(PoisonError::into_inner);
    match storage_error(dir, error) {
        StorageError::Corrupt { place, detail } if !warnings.is_empty() => {
            StorageError::Corrupt { place, detail: format!("{detail} ({})", warnings.join("; ")) }
        }
        error => error,
    }
}

/// RocksDB tells what happened only by text.
fn storage_error(dir: &Path, error: &rocksdb::Error) -> StorageError {
    let detail = error.to_string();
    let place = dir.display().to_string();
    match error.kind() {
        ErrorKind::Corruption => StorageError::Corrupt { place, detail },
        ErrorKind::IOError if is_lock_failure(&detail) => StorageError::Locked { dir: dir.to_owned() },
        _ => StorageError::Failed { place, detail },
    }
}

fn is_lock_failure(message: &str) -> bool {
    let lowercase = message.to_lowercase();
    lowercase.contains("while lock file") || lowercase.contains("lock hold by current process")
}
