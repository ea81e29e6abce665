//! A complete, verified snapshot file, and reading it part by part.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use onceward_core::cluster::ShardId;
use onceward_core::rows::Table;

use super::format::{self, CHUNK_HEAD_BYTES, FOOTER_BYTES, HEADER_FIXED_BYTES, Part, RowRef};
use super::{RowHasher, StateHash};
use crate::StorageError;

/// A snapshot that was verified as a whole. It stays readable for as long as a clone of this lives, also when a newer
/// one has taken its place and its name is gone.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    file: Arc<File>,
    path: Arc<PathBuf>,
    shard: ShardId,
    applied: Option<Bytes>,
    rows: u64,
    hash: StateHash,
    bytes: u64,
}

impl SnapshotFile {
    /// Opens a file and reads all of it: header, every chunk, the order of its rows, footer.
    pub(super) fn open(path: &Path) -> Result<Self, StorageError> {
        let file = File::open(path).map_err(|error| StorageError::io(path, "opening", &error))?;
        let bytes = file.metadata().map_err(|error| StorageError::io(path, "reading", &error))?.len();
        let (file, path) = (Arc::new(file), Arc::new(path.to_owned()));
        let mut parts = Parts { file: Arc::clone(&file), path: Arc::clone(&path), offset: 0, bytes };
        let (shard, applied) = parts.header().and_then(|header| parts.says(format::decode_header(&header)))?;
        let (rows, hash) = parts.verify_rows()?;
        Ok(SnapshotFile { file, path, shard, applied, rows, hash, bytes })
    }

    /// The same file after it got another name.
    pub(super) fn named(self, path: PathBuf) -> Self {
        SnapshotFile { path: Arc::new(path), ..self }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// The applied position that its rows add up to.
    pub fn applied(&self) -> Option<&Bytes> {
        self.applied.as_ref()
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The hash of its rows.
    pub fn hash(&self) -> StateHash {
        self.hash
    }

    /// Length of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file cut into pieces to be sent to another node, each verified once more as it is read and shorter than a
    /// peer frame. A [`super::SnapshotReceiver`] takes them in the same order.
    pub fn pieces(&self) -> SnapshotPieces {
        SnapshotPieces { parts: self.parts(), ended: false }
    }

    pub(crate) fn expect_shard(&self, shard: ShardId) -> Result<(), StorageError> {
        if self.shard == shard {
            return Ok(());
        }
        let detail = format!("it is of shard {}, expected shard {shard}", self.shard);
        Err(StorageError::Snapshot { path: self.path.to_path_buf(), detail })
    }

    /// The chunks with the rows, each verified as it is read.
    pub(crate) fn chunks(&self) -> Result<impl Iterator<Item = Result<Chunk, StorageError>>, StorageError> {
        let mut parts = self.parts();
        parts.header()?;
        Ok(std::iter::from_fn(move || match parts.next() {
            Ok(Piece::Chunk { body, .. }) => Some(Ok(Chunk { body, path: Arc::clone(&parts.path) })),
            Ok(Piece::Footer(_)) => None,
            Err(error) => Some(Err(error)),
        }))
    }

    fn parts(&self) -> Parts {
        Parts { file: Arc::clone(&self.file), path: Arc::clone(&self.path), offset: 0, bytes: self.bytes }
    }
}

/// Rows of a snapshot.
pub(crate) struct Chunk {
    body: Bytes,
    path: Arc<PathBuf>,
}

impl Chunk {
    pub(crate) fn rows(&self) -> impl Iterator<Item = Result<RowRef<'_>, StorageError>> {
        let mut rest: &[u8] = &self.body;
        std::iter::from_fn(move || {
            (!rest.is_empty()).then(|| {
                let row = format::take_row(&mut rest);
                row.map_err(|detail| StorageError::Snapshot { path: self.path.to_path_buf(), detail })
            })
        })
    }
}

/// See [`SnapshotFile::pieces`].
pub struct SnapshotPieces {
    parts: Parts,
    ended: bool,
}

impl Iterator for SnapshotPieces {
    type Item = Result<Bytes, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let piece = if self.parts.offset == 0 {
            self.parts.header()
        } else {
            self.parts.next().map(|piece| match piece {
                Piece::Chunk { part, .. } => part,
                Piece::Footer(part) => {
                    self.ended = true;
                    part
                }
            })
        };
        self.ended |= piece.is_err();
        Some(piece)
    }
}

enum Piece {
    Chunk { part: Bytes, body: Bytes },
    Footer(Bytes),
}

/// Reads a file's parts one after the other.
struct Parts {
    file: Arc<File>,
    path: Arc<PathBuf>,
    offset: u64,
    /// Length of the file.
    bytes: u64,
}

impl Parts {
    /// The header, with a right checksum.
    fn header(&mut self) -> Result<Bytes, StorageError> {
        let fixed = self.peek::<HEADER_FIXED_BYTES>()?;
        let length = self.says(format::header_length(&fixed))?;
        let header = self.take(length)?;
        self.says(format::decode_header(&header))?;
        Ok(header)
    }

    /// The next part, with a right checksum.
    fn next(&mut self) -> Result<Piece, StorageError> {
        let head = self.peek::<CHUNK_HEAD_BYTES>()?;
        match self.says(format::part(&head))? {
            Part::Chunk(length) => {
                let part = self.take(length)?;
                let body = self.says(format::decode_chunk(&part))?;
                Ok(Piece::Chunk { part, body })
            }
            Part::Footer => {
                let part = self.take(FOOTER_BYTES)?;
                self.says(format::decode_footer(&part))?;
                Ok(Piece::Footer(part))
            }
        }
    }

    /// Reads everything behind the header and compares it with the footer, which must end the file.
    fn verify_rows(&mut self) -> Result<(u64, StateHash), StorageError> {
        let mut hasher = RowHasher::new();
        let mut last: Option<(Table, Vec<u8>)> = None;
        loop {
            match self.next()? {
                Piece::Chunk { body, .. } => {
                    let chunk = Chunk { body, path: Arc::clone(&self.path) };
                    for row in chunk.rows() {
                        let (table, key, value) = row?;
                        let (last_table, last_key) = last.get_or_insert_with(|| (table, Vec::new()));
                        if hasher.rows() > 0 && (*last_table, last_key.as_slice()) >= (table, key) {
                            return self.says(Err("its rows are not in order".to_owned()));
                        }
                        *last_table = table;
                        last_key.clear();
                        last_key.extend_from_slice(key);
                        hasher.row(table, key, value);
                    }
                }
                Piece::Footer(part) => {
                    let (rows, hash) = self.says(format::decode_footer(&part))?;
                    if self.offset != self.bytes {
                        return self.says(Err("there is something behind its end".to_owned()));
                    }
                    if (rows, hash) != (hasher.rows(), hasher.finish()) {
                        return self.says(Err("its rows are not those that its footer counts".to_owned()));
                    }
                    return Ok((rows, hash));
                }
            }
        }
    }

    /// The next bytes, to be read again.
    fn peek<const N: usize>(&self) -> Result<[u8; N], StorageError> {
        let mut head = [0; N];
        self.read(&mut head)?;
        Ok(head)
    }

    fn take(&mut self, length: usize) -> Result<Bytes, StorageError> {
        let mut part = BytesMut::zeroed(length);
        self.read(&mut part)?;
        self.offset += length as u64;
        Ok(part.freeze())
    }

    fn read(&self, into: &mut [u8]) -> Result<(), StorageError> {
        if self.offset + into.len() as u64 > self.bytes {
            return self.says(Err("it ends too early".to_owned()));
        }
        self.file.read_exact_at(into, self.offset).map_err(|error| StorageError::io(&self.path, "reading", &error))
    }

    fn says<T>(&self, decoded: Result<T, String>) -> Result<T, StorageError> {
        decoded.map_err(|detail| StorageError::Snapshot { path: self.path.to_path_buf(), detail })
    }
}
