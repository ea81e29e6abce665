//! The applied position of a shard's state: the last entry in it and the members at that point. Storage keeps it
//! beside the rows, as opaque bytes, and snapshots carry it.

use bytes::{BufMut, Bytes};

use crate::{
    encoding::{Malformed, Reader, VERSION, members, put_maybe_log_id, put_members},
    types::{LogId, Members, SnapshotMeta, StoredMembers},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) log_id: Option<LogId>,
    pub(crate) members: StoredMembers,
    /// The members' part of the encoding: they rarely change, and the position does with every entry.
    members_encoded: Vec<u8>,
}

impl Default for Applied {
    /// Nothing is applied.
    fn default() -> Applied {
        Applied::new(None, StoredMembers::default())
    }
}

impl Applied {
    pub(crate) fn new(log_id: Option<LogId>, members: StoredMembers) -> Applied {
        let mut encoded = Vec::new();
        put_maybe_log_id(&mut encoded, members.log_id().as_ref());
        put_members(&mut encoded, members.membership());
        Applied { log_id, members, members_encoded: encoded }
    }

    pub(crate) fn set_members(&mut self, log_id: LogId, members: Members) {
        *self = Applied::new(self.log_id, StoredMembers::new(Some(log_id), members));
    }

    /// Version, log id, log id of the members, members.
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(18 + self.members_encoded.len());
        bytes.put_u8(VERSION);
        put_maybe_log_id(&mut bytes, self.log_id.as_ref());
        bytes.put_slice(&self.members_encoded);
        Bytes::from(bytes)
    }

    pub(crate) fn decode(bytes: &Bytes) -> Result<Applied, Malformed> {
        let mut reader = Reader::versioned(bytes.clone())?;
        let log_id = reader.maybe_log_id()?;
        let members_log_id = reader.maybe_log_id()?;
        let members = members(&mut reader)?;
        reader.end("applied position")?;
        Ok(Applied::new(log_id, StoredMembers::new(members_log_id, members)))
    }

    pub(crate) fn snapshot_meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.log_id, last_membership: self.members.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::log_id;

    #[test]
    fn the_applied_position_on_disk_is_pinned() {
        let members = Members::new_with_defaults(vec![[1, 0x1_0002].into()], []);
        let applied = Applied::new(Some(log_id(3, 9)), StoredMembers::new(Some(log_id(1, 0)), members));
        let expected = [
            &[VERSION, 1][..],
            &3u64.to_be_bytes(),
            &9u64.to_be_bytes(),
            &[1],
            &1u64.to_be_bytes(),
            &0u64.to_be_bytes(),
            &[0, 0, 0, 1, 0, 0, 0, 2],
            &1u64.to_be_bytes(),
            &0x1_0002u64.to_be_bytes(),
            &[0, 0, 0, 2],
            &1u64.to_be_bytes(),
            &0x1_0002u64.to_be_bytes(),
        ];
        assert_eq!(applied.encode(), expected.concat());
        assert_eq!(Applied::decode(&applied.encode()).unwrap(), applied);
        let initial = Applied::default();
        assert_eq!(Applied::decode(&initial.encode()).unwrap(), initial);
        assert!(Applied::decode(&applied.encode().slice(..20)).is_err());
    }
}
