//! The one row that says which generation of rows is a shard's state, and what is applied in it.
//!
//! That both stand in one row is what makes a flip of generations, and rows together with their applied position,
//! impossible to tear.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use onceward_core::cluster::ShardId;

use crate::StorageError;

const VERSION: u8 = 1;
const FIXED_BYTES: usize = 5;
/// Every install of a snapshot takes a generation: one a second for 68 years. What says more is damaged; counting on
/// from less doesn't overflow.
const GENERATION_MAX: u32 = 1 << 31;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Head {
    pub(super) generation: u32,
    /// As consensus wrote it; never empty.
    pub(super) applied: Option<Bytes>,
}

impl Head {
    /// Version u8, generation u32 big-endian, applied position; an empty one is none.
    pub(super) fn encode(&self) -> Bytes {
        let applied = self.applied.as_deref().unwrap_or_default();
        let mut row = BytesMut::with_capacity(FIXED_BYTES + applied.len());
        row.put_u8(VERSION);
        row.put_u32(self.generation);
        row.put_slice(applied);
        row.freeze()
    }

    pub(super) fn decode(shard: ShardId, mut row: Bytes) -> Result<Self, StorageError> {
        let corrupt =
            |detail: String| StorageError::Corrupt { place: format!("the state head of shard {shard}"), detail };
        if row.len() < FIXED_BYTES {
            return Err(corrupt(format!("{} bytes are too few", row.len())));
        }
        let version = row.get_u8();
        if version != VERSION {
            return Err(corrupt(format!("version {version} is unknown, expected {VERSION}")));
        }
        let generation = row.get_u32();
        if generation > GENERATION_MAX {
            return Err(corrupt(format!("generation {generation} is beyond what installs can have come to")));
        }
        Ok(Head { generation, applied: Some(row).filter(|applied| !applied.is_empty()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_on_disk_is_pinned_and_refused_when_damaged() {
        let head = Head { generation: 0x0102_0304, applied: Some(Bytes::from_static(b"at 7")) };
        assert_eq!(&head.encode()[..], b"\x01\x01\x02\x03\x04at 7");
        assert_eq!(Head::decode(ShardId(1), head.encode()).unwrap(), head);
        let empty = Head { generation: 9, applied: None };
        assert_eq!(Head::decode(ShardId(1), empty.encode()).unwrap(), empty);
        for damaged in [&b""[..], b"\x01\0\0\0", b"\x02\0\0\0\0", b"\x01\x80\0\0\x01", b"\x01\xff\xff\xff\xff"] {
            assert!(Head::decode(ShardId(1), Bytes::from_static(damaged)).is_err());
        }
    }
}
