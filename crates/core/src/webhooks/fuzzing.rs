//! What the fuzzer reaches besides the public API: rows of every kind. Compiled by cargo-fuzz, which sets `cfg(fuzzing)`,
//! and with the tests, so that it doesn't fall behind; no part of the crate otherwise.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    id::{AppId, MessageId},
    outcome::DeliveryStatus,
    rows::{
        AppRow, AttemptRow, DeliveryRow, EndpointRow, EndpointState, EventIdRow, EventTypeRow, LastId, MessageRow,
        RequestRow,
    },
};
use crate::{codec, codec::keys::Kind};

/// Reads a row of webhooks and writes it. Returns whether it could be read.
///
/// # Panics
/// If what was written reads as something else, or if a delivery that is given up is still to be made.
pub fn row(kind: Kind, row: &[u8]) -> bool {
    match kind {
        Kind::Ids => survives::<LastId>(row).is_some(),
        Kind::App => survives::<AppRow>(row).is_some(),
        Kind::AppUid => survives::<AppId>(row).is_some(),
        Kind::Endpoint => survives::<EndpointRow>(row).is_some(),
        Kind::EndpointUid | Kind::AttemptOfEndpoint => survives::<MessageId>(row).is_some(),
        Kind::EndpointState => survives::<EndpointState>(row).is_some(),
        Kind::EventId => survives::<EventIdRow>(row).is_some(),
        Kind::Attempt => survives::<AttemptRow>(row).is_some(),
        Kind::Request => survives::<RequestRow>(row).is_some(),
        Kind::EventType => survives::<EventTypeRow>(row).is_some(),
        Kind::Clearing => survives::<()>(row).is_some(),
        Kind::EventTypes | Kind::OperationalRevision => survives::<u64>(row).is_some(),
        Kind::Message => {
            let Some(message) = survives::<MessageRow>(row) else { return false };
            assert!(message.payload_expires_at.is_some() || message.next_expiry() == message.expires_at);
            true
        }
        Kind::Delivery => {
            let Some(delivery) = survives::<DeliveryRow>(row) else { return false };
            let was_due = delivery.due.is_some();
            let given_up = delivery.given_up();
            assert!(given_up.due.is_none() && (!was_due || given_up.status == DeliveryStatus::Failed));
            true
        }
        // Whatever bytes: as they came in, or none.
        Kind::Payload | Kind::Due => true,
        _ => false,
    }
}

fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value = codec::decode::<T>(bytes).ok()?;
    assert_eq!(codec::decode::<T>(&codec::encode(&value)).as_ref(), Ok(&value));
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_rows_survive() {
        let bytes = |hex: &str| -> Vec<u8> {
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
            (0..hex.len()).step_by(2).map(byte).collect()
        };
        let of_data = include_str!("../../tests/golden/webhook_rows.hex");
        let of_system = include_str!("../../tests/golden/webhook_system_rows.hex");
        let mut kinds = std::collections::BTreeSet::new();
        for line in of_data.lines().chain(of_system.lines()) {
            let Some((key, value)) = line.strip_prefix("state ").and_then(|line| line.split_once(' ')) else {
                continue;
            };
            let kind = Kind::of(&bytes(key)).expect("a kind");
            if (Kind::Ids as u8..=Kind::OperationalRevision as u8).contains(&(kind as u8)) {
                assert!(row(kind, &bytes(value)), "{kind:?} {value}");
                kinds.insert(kind as u8);
            }
        }
        assert_eq!(kinds.len(), 18, "every kind of row of webhooks is in the golden files");
    }
}
