//! Ids that are made in `apply`: sortable by the shard's clock, unguessable, and naming their shard.
//!
//! A prefix says of what; behind it stand 20 bytes in base62: clock (µs), counter within one clock reading, shard, and a
//! nonce that came with the command.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{cluster::ShardId, time::ShardTime};

const ID_LEN: usize = 20;
/// What 160 bits take in base62.
const TEXT_LEN: usize = 27;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// What the node that received a command draws for the ids that it makes.
pub type Nonce = [u8; 6];

/// The part behind the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Id(#[serde(with = "serde_bytes")] [u8; ID_LEN]);

impl Id {
    pub const LEN: usize = ID_LEN;
    pub(crate) const ZERO: Id = Id([0; ID_LEN]);

    pub(crate) fn new(at: ShardTime, counter: u32, shard: ShardId, nonce: Nonce) -> Id {
        let mut bytes = [0; ID_LEN];
        bytes[..8].copy_from_slice(&at.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&counter.to_be_bytes());
        bytes[12..14].copy_from_slice(&shard.0.to_be_bytes());
        bytes[14..].copy_from_slice(&nonce);
        Id(bytes)
    }

    pub fn shard(&self) -> ShardId {
        ShardId(u16::from_be_bytes([self.0[12], self.0[13]]))
    }

    pub fn bytes(&self) -> &[u8; ID_LEN] {
        &self.0
    }

    pub(crate) fn from_slice(bytes: &[u8]) -> Option<Id> {
        bytes.try_into().ok().map(Id)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut number = self.0;
        let mut text = [0; TEXT_LEN];
        for digit in text.iter_mut().rev() {
            // Long division of the bytes by 62.
            let mut rest = 0_u32;
            for byte in &mut number {
                let value = (rest << 8) | u32::from(*byte);
                *byte = (value / 62) as u8;
                rest = value % 62;
            }
            *digit = DIGITS[rest as usize];
        }
        f.write_str(str::from_utf8(&text).expect("base62 is ASCII"))
    }

    fn parse(text: &str) -> Option<Id> {
        if text.len() != TEXT_LEN {
            return None;
        }
        let mut number = [0_u8; ID_LEN];
        for char in text.bytes() {
            let mut carry = DIGITS.iter().position(|&digit| digit == char)? as u32;
            for byte in number.iter_mut().rev() {
                let value = u32::from(*byte) * 62 + carry;
                *byte = value as u8;
                carry = value >> 8;
            }
            if carry > 0 {
                return None;
            }
        }
        Some(Id(number))
    }
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Id);

        impl $name {
            pub const PREFIX: &str = $prefix;

            /// `None`: this is no such id.
            pub fn parse(text: &str) -> Option<$name> {
                Id::parse(text.strip_prefix($prefix)?).map($name)
            }

            /// Where it was made, and where what it names lives.
            pub fn shard(&self) -> ShardId {
                self.0.shard()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($prefix)?;
                self.0.write(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id_type!(AppId, "app_");
id_type!(EndpointId, "ep_");
id_type!(MessageId, "msg_");
id_type!(
    /// An attempt to deliver; not one of an idempotency key.
    DeliveryAttemptId,
    "atmpt_"
);

impl AppId {
    /// Under which a shard keeps the copies of operational endpoints, and the messages to them.
    pub const OPERATIONAL: AppId = AppId(Id::ZERO);
}

/// Whether a name would be read as an id where both are accepted.
pub(crate) fn is_id(text: &str) -> bool {
    AppId::parse(text).is_some()
        || EndpointId::parse(text).is_some()
        || MessageId::parse(text).is_some()
        || DeliveryAttemptId::parse(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_counter_name_their_shard_and_survive_their_text() {
        let id = |at, counter| AppId(Id::new(ShardTime(at), counter, ShardId(7), [1, 2, 3, 4, 5, 255]));
        let mut last = String::new();
        for (at, counter) in [(0, 0), (0, 1), (1, 0), (255, 9), (256, 0), (u64::MAX, u32::MAX)] {
            let id = id(at, counter);
            let text = id.to_string();
            assert_eq!(text.len(), 4 + 27);
            assert!(text > last, "{text} behind {last}");
            assert_eq!(AppId::parse(&text), Some(id));
            assert_eq!(id.shard(), ShardId(7));
            last = text;
        }
    }

    #[test]
    fn what_only_looks_like_an_id_is_none() {
        let text = AppId(Id::new(ShardTime(5), 0, ShardId(1), [0; 6])).to_string();
        assert!(is_id(&text) && is_id(&text.replace("app_", "msg_")));
        let too_great = format!("app_{}", "z".repeat(27));
        for other in [&text[1..], &text[..30], "app_", &text.replace("app_", "ep-"), too_great.as_str(), "app_üüü"] {
            assert!(!is_id(other), "{other}");
        }
        assert_eq!(EndpointId::parse(&text), None);
    }
}
