//! The bytes of a snapshot's parts: encoding, and decoding that trusts nothing.
//!
//! Decoders say what is wrong as text; who knows the file's path makes it an error.

use bytes::{BufMut, Bytes};
use onceward_core::cluster::ShardId;
use onceward_core::rows::Table;

use super::StateHash;
use crate::limits::{APPLIED_BYTES_MAX, CHUNK_BYTES, ROW_BYTES_MAX};

const MAGIC: &[u8; 8] = b"ONCESNAP";
const VERSION: u16 = 1;
const TAG_CHUNK: u8 = 1;
const TAG_FOOTER: u8 = 2;
const CRC_BYTES: usize = size_of::<u32>();
const ROW_HEAD_BYTES: usize = 9;
/// A chunk's body reaches [`CHUNK_BYTES`] only by its last row.
const BODY_BYTES_MAX: usize = CHUNK_BYTES + ROW_HEAD_BYTES + ROW_BYTES_MAX;

/// The header up to the length of the applied position.
pub(super) const HEADER_FIXED_BYTES: usize = 16;
/// The tag and the length of a chunk.
pub(super) const CHUNK_HEAD_BYTES: usize = 5;
pub(super) const FOOTER_BYTES: usize = 1 + 8 + 16 + CRC_BYTES;

/// A row of a chunk, borrowed from it.
pub(crate) type RowRef<'a> = (Table, &'a [u8], &'a [u8]);

pub(super) const fn row_head(table: Table, key: &[u8], value: &[u8]) -> [u8; ROW_HEAD_BYTES] {
    let [k0, k1, k2, k3] = (key.len() as u32).to_be_bytes();
    let [v0, v1, v2, v3] = (value.len() as u32).to_be_bytes();
    let table = match table {
        Table::State => 0,
        Table::Expiry => 1,
    };
    [table, k0, k1, k2, k3, v0, v1, v2, v3]
}

pub(super) fn header(shard: ShardId, applied: Option<&Bytes>) -> Vec<u8> {
    let applied = applied.map_or(&[][..], |applied| applied);
    let mut part = Vec::with_capacity(HEADER_FIXED_BYTES + applied.len() + CRC_BYTES);
    part.put_slice(MAGIC);
    part.put_u16(VERSION);
    part.put_u16(shard.0);
    part.put_u32(u32::try_from(applied.len()).expect("an applied position is at most a megabyte"));
    part.put_slice(applied);
    sealed(part)
}

pub(super) fn footer(rows: u64, hash: StateHash) -> Vec<u8> {
    let mut part = Vec::with_capacity(FOOTER_BYTES);
    part.put_u8(TAG_FOOTER);
    part.put_u64(rows);
    part.put_u128(hash.0);
    sealed(part)
}

/// A chunk being filled.
pub(super) struct ChunkBuilder {
    part: Vec<u8>,
}

impl ChunkBuilder {
    pub(super) fn new() -> Self {
        let mut part = Vec::with_capacity(CHUNK_HEAD_BYTES + CHUNK_BYTES);
        part.put_slice(&[TAG_CHUNK, 0, 0, 0, 0]);
        ChunkBuilder { part }
    }

    pub(super) fn push(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.part.put_slice(&row_head(table, key, value));
        self.part.put_slice(key);
        self.part.put_slice(value);
    }

    pub(super) fn is_full(&self) -> bool {
        self.part.len() >= CHUNK_HEAD_BYTES + CHUNK_BYTES
    }

    /// The finished chunk, or `None` where no row was pushed.
    pub(super) fn finish(mut self) -> Option<Vec<u8>> {
        let body = self.part.len() - CHUNK_HEAD_BYTES;
        if body == 0 {
            return None;
        }
        let length = u32::try_from(body).expect("a chunk's body is bounded by its limits");
        self.part[1..CHUNK_HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
        Some(sealed(self.part))
    }
}

/// How long the header is, from its fixed beginning.
pub(super) fn header_length(fixed: &[u8; HEADER_FIXED_BYTES]) -> Result<usize, String> {
    if &fixed[..8] != MAGIC {
        return Err("it is not a snapshot of Onceward".to_owned());
    }
    let version = u16::from_be_bytes([fixed[8], fixed[9]]);
    if version != VERSION {
        return Err(format!("its format version {version} is unknown, expected {VERSION}"));
    }
    let applied = u32::from_be_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]) as usize;
    if applied > APPLIED_BYTES_MAX {
        return Err(format!("its applied position of {applied} bytes is longer than any"));
    }
    Ok(HEADER_FIXED_BYTES + applied + CRC_BYTES)
}

/// Shard and applied position of a whole header.
pub(super) fn decode_header(part: &Bytes) -> Result<(ShardId, Option<Bytes>), String> {
    check_crc(part, "its header")?;
    let applied = part.slice(HEADER_FIXED_BYTES..part.len() - CRC_BYTES);
    Ok((ShardId(u16::from_be_bytes([part[10], part[11]])), Some(applied).filter(|applied| !applied.is_empty())))
}

/// What follows in a file, from a part's first bytes.
pub(super) enum Part {
    /// With its whole length.
    Chunk(usize),
    Footer,
}

pub(super) fn part(head: &[u8; CHUNK_HEAD_BYTES]) -> Result<Part, String> {
    match head[0] {
        TAG_CHUNK => {
            let body = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            if body > BODY_BYTES_MAX {
                return Err(format!("a chunk of {body} bytes is longer than any"));
            }
            Ok(Part::Chunk(CHUNK_HEAD_BYTES + body + CRC_BYTES))
        }
        TAG_FOOTER => Ok(Part::Footer),
        tag => Err(format!("a part has the unknown tag {tag}")),
    }
}

/// The body of a whole chunk.
pub(super) fn decode_chunk(part: &Bytes) -> Result<Bytes, String> {
    check_crc(part, "a chunk")?;
    Ok(part.slice(CHUNK_HEAD_BYTES..part.len() - CRC_BYTES))
}

/// Number of rows and hash of a footer.
pub(super) fn decode_footer(part: &Bytes) -> Result<(u64, StateHash), String> {
    check_crc(part, "its footer")?;
    let rows = u64::from_be_bytes(part[1..9].try_into().expect("a footer has its fixed length"));
    let hash = u128::from_be_bytes(part[9..25].try_into().expect("a footer has its fixed length"));
    Ok((rows, StateHash(hash)))
}

/// Takes the first row off a chunk's body.
pub(super) fn take_row<'a>(body: &mut &'a [u8]) -> Result<RowRef<'a>, String> {
    let cut = || "a row is cut short".to_owned();
    let (head, rest) = body.split_first_chunk::<ROW_HEAD_BYTES>().ok_or_else(cut)?;
    let table = match head[0] {
        0 => Table::State,
        1 => Table::Expiry,
        table => return Err(format!("a row is of the unknown table {table}")),
    };
    let key_bytes = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let value_bytes = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) as usize;
    let (key, rest) = rest.split_at_checked(key_bytes).ok_or_else(cut)?;
    let (value, rest) = rest.split_at_checked(value_bytes).ok_or_else(cut)?;
    *body = rest;
    Ok((table, key, value))
}

/// A part with its checksum behind it.
fn sealed(mut part: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&part);
    part.put_u32(crc);
    part
}

fn check_crc(part: &[u8], what: &str) -> Result<(), String> {
    match part.split_last_chunk::<CRC_BYTES>() {
        Some((bytes, crc)) if crc32c::crc32c(bytes) == u32::from_be_bytes(*crc) => Ok(()),
        _ => Err(format!("the checksum of {what} is wrong")),
    }
}
