//! What the fuzzer reaches besides the public API: the readers of Raft frames and of the log on disk. Compiled by
//! cargo-fuzz, which sets `cfg(fuzzing)`, and with the tests, so that it doesn't fall behind; no part of the crate
//! otherwise.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::executor::block_on;
use onceward_core::{
    cluster::{MemberId, ShardId},
    seams::Clock,
};
use onceward_storage::{LogWriter, MemoryStore, Store};
use openraft::{RaftLogReader, storage::RaftLogStorage};

use crate::{
    applied::Applied,
    clock::GroupClock,
    encoding::{Malformed, Reader},
    frames,
    log::Log,
};

/// The shard whose log [`open_log`] reads.
pub const SHARD: ShardId = ShardId(1);

/// Reads the body of each request and each answer, and writes what can be read.
///
/// # Panics
/// If what was written reads as something else.
pub fn peer_messages(body: &[u8]) {
    let body = Bytes::copy_from_slice(body);
    assert_request_survives(&body, frames::read_append_request, frames::append_request);
    assert_request_survives(&body, frames::read_vote_request, frames::vote_request);
    assert_request_survives(&body, frames::read_transfer_request, frames::transfer_request);
    assert_request_survives(&body, frames::read_snapshot_piece, frames::snapshot_piece);
    assert_request_survives(&body, frames::read_snapshot_install, frames::snapshot_install);
    assert_survives(&body, frames::read_append_response, frames::append_response);
    assert_survives(&body, frames::read_vote_response, frames::vote_response);
    assert_survives(&body, frames::read_transfer_response, frames::transfer_response);
    assert_survives(&body, frames::read_snapshot_response, frames::snapshot_response);
}

/// Reads the applied position that lies beside a shard's rows, and writes it.
///
/// # Panics
/// If what was written reads as something else.
pub fn applied_position(bytes: &[u8]) {
    assert_survives(&Bytes::copy_from_slice(bytes), |bytes| Applied::decode(&bytes), Applied::encode);
}

/// Opens the log of [`SHARD`] as a starting node does, and reads all of it: an error where it makes no sense.
pub fn open_log(store: Arc<dyn Store>) -> Result<(), String> {
    // Nothing is written here: one writer, of an empty store, will do for all.
    static WRITER: OnceLock<LogWriter> = OnceLock::new();
    let writer = WRITER.get_or_init(|| LogWriter::start(Arc::new(MemoryStore::new()), Arc::new(|_| {}))).clone();
    let clock = Arc::new(GroupClock::new(Arc::new(NoTime), None));
    let mut log = Log::open(SHARD, MemberId::from_u64(1), store, writer, clock).map_err(|error| error.to_string())?;
    let entries = block_on(async { log.get_log_reader().await.try_get_log_entries(..).await });
    let text = |error: std::io::Error| error.to_string();
    for entry in entries.map_err(text)? {
        log.bytes_through(Some(entry.log_id.index)).map_err(text)?;
        log.index_before(entry.log_id.index, log.bytes()).map_err(text)?;
    }
    Ok(())
}

fn assert_request_survives<T>(
    body: &Bytes,
    read: impl Fn(Reader) -> Result<T, Malformed>,
    write: impl Fn(MemberId, &T) -> Bytes,
) {
    let read = |body| frames::open(body).and_then(|(target, reader)| Ok((target, read(reader)?)));
    assert_survives(body, read, |(target, request)| write(*target, request));
}

/// Compared as bytes: openraft's types can't all be.
fn assert_survives<T>(bytes: &Bytes, read: impl Fn(Bytes) -> Result<T, Malformed>, write: impl Fn(&T) -> Bytes) {
    if let Ok(value) = read(bytes.clone()) {
        let written = write(&value);
        let again = read(written.clone()).expect("what was written is readable");
        assert_eq!(write(&again), written);
    }
}

struct NoTime;

impl Clock for NoTime {
    fn monotonic_us(&self) -> u64 {
        0
    }

    fn wall_ms(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use onceward_storage::{Family, WriteSet, keys};

    use super::*;

    #[test]
    fn the_golden_frames_survive() {
        for line in include_str!("../golden/frames.txt").lines() {
            let (name, hex) = line.split_once(' ').unwrap();
            let bytes: Vec<u8> =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
            assert!(!bytes.is_empty(), "{name}");
            peer_messages(&bytes);
        }
        applied_position(&Applied::default().encode());
    }

    #[test]
    fn a_log_is_whole_or_refused() {
        let mut set = WriteSet::new();
        set.put(Family::RaftLog, keys::log_entry(SHARD, 0), b"\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x09\0");
        let store = MemoryStore::new();
        store.write(&set).unwrap();
        assert_eq!(open_log(Arc::new(store.clone())), Ok(()));
        set.put(Family::RaftLog, keys::log_entry(SHARD, 2), b"\x01");
        store.write(&set).unwrap();
        assert!(open_log(Arc::new(store)).is_err());
    }
}
