//! What the fuzzer reaches besides the public API: the row of a record. Compiled by cargo-fuzz, which sets
//! `cfg(fuzzing)`, and with the tests, so that it doesn't fall behind; no part of the crate otherwise.

use super::record::Record;
use crate::{codec, time::ShardTime};

/// Reads a record's row, looks at it at every kind of time, and writes it.
///
/// # Panics
/// If what was written reads as something else, or if a record that is there never changes and never comes up.
pub fn record(row: &[u8]) {
    let Ok(record) = codec::decode::<Record>(row) else { return };
    assert_eq!(codec::decode::<Record>(&codec::encode(&record)).as_ref(), Ok(&record));
    for now in [0, 1, 1 << 40, u64::MAX - 1, u64::MAX].map(ShardTime) {
        let is_shown = record.state_shown(now).is_some();
        assert_eq!(record.view(now).is_some(), is_shown);
        let waits_for_a_person = record.state_shown(now) == Some(super::RecordState::Indeterminate);
        assert!(record.due(now).is_some_and(|due| due > now) || !is_shown || waits_for_a_person);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_rows_survive() {
        for line in include_str!("../../tests/golden/idempotency_rows.hex").lines() {
            let (_, hex) = line.rsplit_once(' ').expect("a key and a value");
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
            let row: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            record(&row);
        }
    }
}
