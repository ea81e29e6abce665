//! What the fuzzer reaches besides the public API: bodies between nodes and the identity on disk. Compiled by
//! cargo-fuzz, which sets `cfg(fuzzing)`, and with the tests, so that it doesn't fall behind; no part of the crate
//! otherwise.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    identity::Identity,
    wire::{self, Adopt, ClockReading, Forward, Forwarded, Members, Probed, Queried, QueryRequest},
};

/// Reads the body of each request and each answer, and writes what can be read.
///
/// # Panics
/// If what was written reads as something else.
pub fn peer_messages(body: &[u8]) {
    assert_survives::<Forward>(body);
    assert_survives::<Forwarded>(body);
    assert_survives::<QueryRequest>(body);
    assert_survives::<Queried>(body);
    assert_survives::<ClockReading>(body);
    assert_survives::<Probed>(body);
    assert_survives::<Adopt>(body);
    assert_survives::<Members>(body);
}

/// Reads a data directory's identity, and writes it.
///
/// # Panics
/// If what was written reads as something else.
pub fn identity(row: &[u8]) {
    assert_survives::<Identity>(row);
}

fn assert_survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(value) = wire::decode::<T>(bytes) {
        assert_eq!(wire::decode::<T>(&wire::encode(&value)).as_ref(), Ok(&value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_bodies_survive() {
        for line in include_str!("../golden/wire.txt").lines() {
            let (_, hex) = line.split_once(": ").unwrap();
            let bytes: Vec<u8> =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
            peer_messages(&bytes);
        }
    }
}
