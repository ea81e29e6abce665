//! Ports for the nodes of a test. They stay a node's own while it is down, so they lie below the range from which the
//! system draws the local ports of outgoing connections: a peer that dials a dead node must not occupy its port.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU32, Ordering},
};

const FIRST: u16 = 20_000;
/// Linux begins its ephemeral range at 32768 by default.
const COUNT: u32 = 12_000;
/// Takes processes that begin one after the other, as runs beside each other do, far apart. (2^32 over the golden ratio.)
const SPREAD: u32 = 2_654_435_769;

/// A loopback port that nobody listens on. Each call gives another one; where the search begins depends on the
/// process, so that test runs beside each other rarely meet.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(SPREAD);
    for _ in 0..COUNT {
        let port = FIRST + (start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} to {}", u32::from(FIRST) + COUNT - 1);
}
