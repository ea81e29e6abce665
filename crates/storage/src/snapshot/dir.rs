//! A shard's snapshot directory: writing, receiving, and keeping no more than the newest.
//!
//! A file gets its name only when it is complete, verified where it came from another node, and synced. A crash leaves
//! at most a partial file, removed at the next open.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward_core::cluster::ShardId;

use super::file::SnapshotFile;
use super::{RowHasher, format};
use crate::limits::CHUNK_BYTES;
use crate::{FrozenState, StorageError};

const COMPLETE: &str = "snapshot";
const PARTIAL: &str = "partial";

/// The snapshots of one shard; shards may share a directory. All calls block.
pub struct SnapshotDir {
    dir: PathBuf,
    shard: ShardId,
    /// Numbers rise with the begin of a snapshot, so that one which takes long can't displace a newer one.
    next: AtomicU64,
}

impl SnapshotDir {
    /// Opens the directory, making it if need be, removes partial files and all but the newest complete one, and
    /// returns that one, verified. Damage is an error that names the file.
    pub fn open(dir: &Path, shard: ShardId) -> Result<(Arc<Self>, Option<SnapshotFile>), StorageError> {
        fs::create_dir_all(dir).map_err(|error| StorageError::io(dir, "creating the snapshot directory", &error))?;
        let this = Arc::new(SnapshotDir { dir: dir.to_owned(), shard, next: AtomicU64::new(1) });
        for (_, path) in this.list(PARTIAL)? {
            remove(&path)?;
        }
        let Some(number) = this.keep_newest()? else { return Ok((this, None)) };
        this.next.store(number + 1, Ordering::Relaxed);
        let opened = SnapshotFile::open(&this.path(number, COMPLETE)).and_then(|file| {
            file.expect_shard(shard)?;
            Ok(file)
        });
        match opened {
            Ok(file) => Ok((this, Some(file))),
            // It was whole once: its disk has lost something.
            Err(StorageError::Snapshot { path, detail }) => {
                Err(StorageError::Corrupt { place: path.display().to_string(), detail })
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a frozen state as a snapshot, durable when this returns. Older ones are removed.
    pub fn write(&self, frozen: &FrozenState<'_>) -> Result<SnapshotFile, StorageError> {
        assert_eq!(frozen.shard(), self.shard, "a snapshot lies in the directory of its shard");
        let mut partial = Partial::create(self)?;
        partial.append(&format::header(self.shard, frozen.applied()))?;
        let mut hasher = RowHasher::new();
        let mut chunk = format::ChunkBuilder::new();
        frozen.visit(|table, key, value| {
            hasher.row(table, key, value);
            chunk.push(table, key, value);
            if chunk.is_full() {
                let full = std::mem::replace(&mut chunk, format::ChunkBuilder::new());
                partial.append(&full.finish().expect("a full chunk has rows"))?;
            }
            Ok(())
        })?;
        if let Some(rest) = chunk.finish() {
            partial.append(&rest)?;
        }
        partial.append(&format::footer(hasher.rows(), hasher.finish()))?;
        partial.complete(self)
    }

    /// Begins to receive a snapshot of `bytes` bytes from another node.
    pub fn receive(self: &Arc<Self>, bytes: u64) -> Result<SnapshotReceiver, StorageError> {
        Ok(SnapshotReceiver { dir: Arc::clone(self), partial: Partial::create(self)?, bytes_missing: bytes })
    }

    fn path(&self, number: u64, extension: &str) -> PathBuf {
        self.dir.join(format!("shard-{:05}-{number:020}.{extension}", self.shard.0))
    }

    /// This shard's files, by number.
    fn list(&self, extension: &str) -> Result<Vec<(u64, PathBuf)>, StorageError> {
        let unreadable = |error| StorageError::io(&self.dir, "listing", &error);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            let number = name.to_str().and_then(|name| {
                let number = name.strip_prefix(&format!("shard-{:05}-", self.shard.0))?;
                number.strip_suffix(extension)?.strip_suffix('.')?.parse().ok()
            });
            files.extend(number.map(|number| (number, self.dir.join(&name))));
        }
        files.sort();
        Ok(files)
    }

    /// Removes all complete snapshots but the one with the greatest number, which is returned.
    fn keep_newest(&self) -> Result<Option<u64>, StorageError> {
        let mut files = self.list(COMPLETE)?;
        let Some((newest, _)) = files.pop() else { return Ok(None) };
        for (_, path) in files {
            remove(&path)?;
        }
        Ok(Some(newest))
    }
}

/// A snapshot arriving from another node. Dropped unfinished, it leaves nothing.
pub struct SnapshotReceiver {
    dir: Arc<SnapshotDir>,
    partial: Partial,
    bytes_missing: u64,
}

impl SnapshotReceiver {
    /// Takes the next bytes, of any length.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.bytes_missing =
            self.bytes_missing.checked_sub(bytes.len() as u64).ok_or_else(|| StorageError::Snapshot {
                path: self.partial.path.clone(),
                detail: "more came than was announced".to_owned(),
            })?;
        self.partial.append(bytes)
    }

    /// Bytes that were announced and have not come.
    pub fn bytes_missing(&self) -> u64 {
        self.bytes_missing
    }

    /// Verifies what has come and keeps it as the newest snapshot, durable when this returns.
    pub fn finish(self) -> Result<SnapshotFile, StorageError> {
        self.partial.complete(&self.dir)
    }
}

/// A file without its final name. It is removed when it is dropped.
struct Partial {
    number: u64,
    path: PathBuf,
    file: BufWriter<File>,
}

impl Partial {
    fn create(dir: &SnapshotDir) -> Result<Self, StorageError> {
        let number = dir.next.fetch_add(1, Ordering::Relaxed);
        let path = dir.path(number, PARTIAL);
        let file = File::create_new(&path).map_err(|error| StorageError::io(&path, "creating", &error))?;
        Ok(Partial { number, path, file: BufWriter::with_capacity(CHUNK_BYTES, file) })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.file.write_all(bytes).map_err(|error| StorageError::io(&self.path, "writing", &error))
    }

    /// Syncs, verifies by reading it back, and gives the file its name.
    fn complete(mut self, dir: &SnapshotDir) -> Result<SnapshotFile, StorageError> {
        let failed = |action| move |error| StorageError::io(&dir.dir, action, &error);
        self.file.flush().map_err(failed("writing a snapshot"))?;
        self.file.get_ref().sync_all().map_err(failed("syncing a snapshot"))?;
        let file = SnapshotFile::open(&self.path)?;
        file.expect_shard(dir.shard)?;
        let path = dir.path(self.number, COMPLETE);
        fs::rename(&self.path, &path).map_err(failed("renaming a snapshot"))?;
        // The name is only durable with its directory.
        File::open(&dir.dir).and_then(|dir| dir.sync_all()).map_err(failed("syncing the directory"))?;
        dir.keep_newest()?;
        Ok(file.named(path))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename there is nothing of this name; else the next open removes what couldn't be removed here.
        drop(fs::remove_file(&self.path));
    }
}

fn remove(path: &Path) -> Result<(), StorageError> {
    match fs::remove_file(path) {
        // Two snapshots that are completed at once both remove the older ones.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|error| StorageError::io(path, "removing", &error)),
    }
}
