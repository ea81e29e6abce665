//! The binary layouts that frames and disk values share: votes, log ids, payloads, members.
//!
//! Fixed-width big-endian numbers behind a version byte in each frame or value. Entries dominate both, and this way
//! their batches are copied as they are. Whatever is read may be garbage: reading answers `Malformed`, never panics.

use bytes::{Buf, BufMut, Bytes};
use onceward_core::time::ShardTime;

use crate::types::{Batch, LogId, Members, Payload, Vote, log_id, term_and_index};

/// What was read doesn't follow the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Version of all layouts here; another one is refused.
pub(crate) const VERSION: u8 = 1;

const BLANK: u8 = 0;
const NORMAL: u8 = 1;
const MEMBERS: u8 = 2;

/// Reads a layout front to back.
pub(crate) struct Reader {
    rest: Bytes,
}

impl Reader {
    /// Checks the version byte in front.
    pub(crate) fn versioned(bytes: Bytes) -> Result<Reader, Malformed> {
        let mut reader = Reader { rest: bytes };
        match reader.u8("version")? {
            VERSION => Ok(reader),
            _ => Err(Malformed("version")),
        }
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, Malformed> {
        self.rest.try_get_u8().map_err(|_| Malformed(what))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        self.rest.try_get_u32().map_err(|_| Malformed(what))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        self.rest.try_get_u64().map_err(|_| Malformed(what))
    }

    pub(crate) fn flag(&mut self, what: &'static str) -> Result<bool, Malformed> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed(what)),
        }
    }

    /// The next `len` bytes, sharing memory with what is read from.
    pub(crate) fn bytes(&mut self, len: usize, what: &'static str) -> Result<Bytes, Malformed> {
        if len > self.rest.len() {
            return Err(Malformed(what));
        }
        Ok(self.rest.split_to(len))
    }

    pub(crate) fn rest(self) -> Bytes {
        self.rest
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Nothing may follow.
    pub(crate) fn end(self, what: &'static str) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed(what)) }
    }

    pub(crate) fn vote(&mut self) -> Result<Vote, Malformed> {
        let (term, member) = (self.u64("vote")?, self.u64("vote")?);
        Ok(if self.flag("vote")? { Vote::new_committed(term, member) } else { Vote::new(term, member) })
    }

    pub(crate) fn log_id(&mut self) -> Result<LogId, Malformed> {
        Ok(log_id(self.u64("log id")?, self.u64("log id")?))
    }

    pub(crate) fn maybe_log_id(&mut self) -> Result<Option<LogId>, Malformed> {
        Ok(if self.flag("log id")? { Some(self.log_id()?) } else { None })
    }
}

pub(crate) fn put_vote(to: &mut Vec<u8>, vote: &Vote) {
    to.put_u64(vote.leader_id.term);
    to.put_u64(vote.leader_id.voted_for);
    to.put_u8(u8::from(vote.committed));
}

pub(crate) fn put_log_id(to: &mut Vec<u8>, log_id: &LogId) {
    let (term, index) = term_and_index(log_id);
    to.put_u64(term);
    to.put_u64(index);
}

pub(crate) fn put_maybe_log_id(to: &mut Vec<u8>, log_id: Option<&LogId>) {
    to.put_u8(u8::from(log_id.is_some()));
    if let Some(log_id) = log_id {
        put_log_id(to, log_id);
    }
}

/// Bytes that [`put_payload`] needs, about.
pub(crate) fn payload_bytes(payload: &Payload) -> usize {
    match payload {
        Payload::Blank => 1,
        Payload::Normal(batch) => 9 + batch.encoded.len(),
        Payload::Membership(_) => 256,
    }
}

/// Kind, then the stamp and the encoded batch, or the members.
pub(crate) fn put_payload(to: &mut Vec<u8>, payload: &Payload) {
    match payload {
        Payload::Blank => to.put_u8(BLANK),
        Payload::Normal(batch) => {
            to.put_u8(NORMAL);
            to.put_u64(batch.stamp.0);
            to.put_slice(&batch.encoded);
        }
        Payload::Membership(members) => {
            to.put_u8(MEMBERS);
            put_members(to, members);
        }
    }
}

/// Reads all of `bytes` as a payload.
pub(crate) fn payload(bytes: Bytes) -> Result<Payload, Malformed> {
    let mut reader = Reader { rest: bytes };
    match reader.u8("payload")? {
        BLANK => {
            reader.end("payload")?;
            Ok(Payload::Blank)
        }
        NORMAL => {
            let stamp = ShardTime(reader.u64("payload")?);
            Ok(Payload::Normal(Batch { stamp, encoded: reader.rest() }))
        }
        MEMBERS => {
            let members = members(&mut reader)?;
            reader.end("payload")?;
            Ok(Payload::Membership(members))
        }
        _ => Err(Malformed("payload")),
    }
}

/// Sets of voters (two while a change is under way), then all members, learners included.
pub(crate) fn put_members(to: &mut Vec<u8>, members: &Members) {
    let sets = members.get_joint_config();
    to.put_u32(sets.len() as u32);
    for set in sets {
        to.put_u32(set.len() as u32);
        set.iter().for_each(|id| to.put_u64(*id));
    }
    let nodes: Vec<u64> = members.nodes().map(|(id, _)| *id).collect();
    to.put_u32(nodes.len() as u32);
    nodes.iter().for_each(|id| to.put_u64(*id));
}

pub(crate) fn members(reader: &mut Reader) -> Result<Members, Malformed> {
    let ids = |reader: &mut Reader| -> Result<Vec<u64>, Malformed> {
        let count = reader.u32("members")? as usize;
        // Checked before anything is allocated for them.
        if count * size_of::<u64>() > reader.remaining() {
            return Err(Malformed("members"));
        }
        (0..count).map(|_| reader.u64("members")).collect()
    };
    let sets = reader.u32("members")?;
    if sets as usize * size_of::<u32>() > reader.remaining() {
        return Err(Malformed("members"));
    }
    let mut voters = Vec::new();
    for _ in 0..sets {
        voters.push(ids(reader)?.into_iter().collect());
    }
    let nodes =
        ids(reader)?.into_iter().map(|id| (id, openraft::EmptyNode {})).collect::<std::collections::BTreeMap<_, _>>();
    if voters.is_empty() && nodes.is_empty() {
        return Ok(Members::default());
    }
    Members::new(voters, nodes).map_err(|_| Malformed("members"))
}
