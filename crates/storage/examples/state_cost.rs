//! What a row costs: time for get and put through a shard's state with its flushes, bytes on disk, memory.
//!
//! `cargo run --release -p onceward-storage --example state_cost -- [ROWS]`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use onceward_core::cluster::ShardId;
use onceward_core::rows::{ReadRows, Rows, Table};
use onceward_storage::{RocksStore, ShardState, Store, StoreOptions};

const FLUSH_ROWS: usize = 2000;

fn key(number: u64) -> Bytes {
    // Spread over the key space as hashed or user-chosen keys are, 30 bytes.
    format!("api/{:016x}/customer", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into()
}

fn value(number: u64) -> Bytes {
    let mut value = [7u8; 60];
    for (at, chunk) in value[..32].chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&number.wrapping_mul(0x2545_f491_4f6c_dd1d + at as u64).to_le_bytes());
    }
    Bytes::copy_from_slice(&value)
}

/// One check of a bucket: read, change, file its due time anew. Returns the time for it without flushes, and with.
fn run(state: &mut ShardState, operations: u64, pick: impl Fn(u64) -> u64, due: bool) -> (Duration, Duration) {
    let mut flushing = Duration::ZERO;
    let started = Instant::now();
    for operation in 0..operations {
        let key = key(pick(operation));
        let old = state.get(Table::State, &key).expect("readable");
        std::hint::black_box(old);
        if due {
            let mut row = operation.to_be_bytes().to_vec();
            row.extend_from_slice(&key);
            state.put(Table::Expiry, row.into(), Bytes::new());
        }
        state.put(Table::State, key, value(operation));
        if state.dirty_rows() >= FLUSH_ROWS {
            let flush = Instant::now();
            state.flush().expect("writable");
            state.store().sync().expect("syncable");
            flushing += flush.elapsed();
        }
    }
    let all = started.elapsed();
    (all - flushing, all)
}

fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn disk_bytes(dir: &Path, extension: &str) -> u64 {
    let files = std::fs::read_dir(dir).expect("readable").flatten();
    let files = files.filter(|entry| entry.path().extension().is_some_and(|e| e == extension));
    files.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn main() {
    let rows: u64 = std::env::args().nth(1).map_or(1_000_000, |rows| rows.parse().expect("a number of rows"));
    let dir = tempfile::tempdir().expect("a directory");
    let store: Arc<dyn Store> = Arc::new(RocksStore::open(dir.path(), &StoreOptions::default()).expect("it opens"));
    let mut state = ShardState::open(Arc::clone(&store), ShardId(1)).expect("it opens");
    let report = |name: &str, operations: u64, (bare, all): (Duration, Duration)| {
        let each = |time: Duration| time.as_nanos() as u64 / operations;
        println!("{name:44} {:6} ns, with flushes {:6} ns, resident {} MB", each(bare), each(all), resident_mb());
    };
    println!("resident at start {} MB", resident_mb());
    report("new rows, each with a due time", rows, run(&mut state, rows, |n| n, true));
    let operations = 200_000;
    report("one of 100 hot rows", operations, run(&mut state, operations, |n| n % 100, false));
    report("one of 4 000 warm rows", operations, run(&mut state, operations, |n| n * 7919 % 4_000, false));
    report("any row", operations, run(&mut state, operations, |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % rows, false));
    report("absent rows", operations, run(&mut state, operations, |n| rows + n, false));

    let read = |name: &str, pick: &dyn Fn(u64) -> u64, state: &ShardState| {
        let started = Instant::now();
        for operation in 0..operations {
            std::hint::black_box(state.get(Table::State, &key(pick(operation))).expect("readable"));
        }
        println!("only reading {name:31} {:6} ns", started.elapsed().as_nanos() as u64 / operations);
    };
    read("one of 4 000 warm rows", &|n| n * 7919 % 4_000, &state);
    read("any row", &|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % rows, &state);
    read("absent rows", &|n| 10 * rows + n, &state);

    // Due rows leave at the front while the machine looks for the next one.
    let started = Instant::now();
    let expiring = rows.min(200_000);
    for _ in 0..expiring / 100 {
        for (key, _) in state.scan(Table::Expiry, &[], None, 100).expect("readable") {
            state.delete(Table::Expiry, key);
        }
        state.scan(Table::Expiry, &[], None, 1).expect("readable");
        if state.dirty_rows() >= FLUSH_ROWS {
            state.flush().expect("writable");
        }
    }
    println!("expiring a row {} ns", started.elapsed().as_nanos() as u64 / expiring);

    let started = Instant::now();
    state.flush().expect("writable");
    let hash = state.freeze(&store).expect("readable").hash().expect("readable");
    println!("hash {hash} in {:?}, resident {} MB", started.elapsed(), resident_mb());
    let stats = store.stats();
    println!("{stats:?}");
    println!("tables {} bytes, logs {} bytes", disk_bytes(dir.path(), "sst"), disk_bytes(dir.path(), "log"));
    drop(state);
    drop(store);
    let started = Instant::now();
    let store = RocksStore::open(dir.path(), &StoreOptions::default()).expect("it opens");
    println!("reopened in {:?}; tables {} bytes", started.elapsed(), disk_bytes(dir.path(), "sst"));
    println!("{:?}", store.stats().families);
}
