//! The bodies of Raft requests and answers between members.
//!
//! Every request begins with a version byte and the member that it is meant for: what was sent to a node's former
//! generation must not reach its successor. Batches are copied as they were encoded, never value by value.

use bytes::{BufMut, Bytes};
use onceward_core::cluster::MemberId;
use openraft::raft::TransferLeaderError;

use crate::{
    encoding::{self, Malformed, Reader, VERSION, payload_bytes, put_log_id, put_maybe_log_id, put_payload, put_vote},
    types::{AppendRequest, AppendResponse, Entry, TransferRequest, TransferResponse, Vote, VoteRequest, VoteResponse},
};

/// The method numbers on the links that belong to this crate.
pub const METHODS: std::ops::RangeInclusive<u8> = 1..=31;

/// What a member asks of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Method {
    /// Entries, or none: then it is a heartbeat or tells what is committed.
    Append = 1,
    Vote = 2,
    PreVote = 3,
    /// Take over leadership.
    Transfer = 4,
    /// The next bytes of a snapshot.
    SnapshotPiece = 5,
    /// All pieces were sent: install it.
    SnapshotInstall = 6,
}

impl Method {
    pub(crate) fn from_u8(number: u8) -> Option<Method> {
        use Method::*;
        [Append, Vote, PreVote, Transfer, SnapshotPiece, SnapshotInstall]
            .into_iter()
            .find(|method| *method as u8 == number)
    }
}

/// Some bytes of a snapshot file. The file has checksums of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotPiece {
    pub(crate) transfer: Transfer,
    pub(crate) offset: u64,
    pub(crate) bytes: Bytes,
}

/// One attempt to send a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// Of the leader that sends it.
    pub(crate) vote: Vote,
    /// Chosen by the sender, another one for each attempt.
    pub(crate) number: u64,
    /// Length of the file.
    pub(crate) bytes: u64,
}

/// Takes version and addressee off a request.
pub(crate) fn open(body: Bytes) -> Result<(MemberId, Reader), Malformed> {
    let mut reader = Reader::versioned(body)?;
    let target = MemberId::from_u64(reader.u64("member")?);
    Ok((target, reader))
}

fn request(to: MemberId, capacity: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(9 + capacity);
    body.put_u8(VERSION);
    body.put_u64(to.to_u64());
    body
}

pub(crate) fn append_request(to: MemberId, rpc: &AppendRequest) -> Bytes {
    let entries_bytes: usize = rpc.entries.iter().map(|entry| 20 + payload_bytes(&entry.payload)).sum();
    let mut body = request(to, 64 + entries_bytes);
    put_vote(&mut body, &rpc.vote);
    put_maybe_log_id(&mut body, rpc.prev_log_id.as_ref());
    put_maybe_log_id(&mut body, rpc.leader_commit.as_ref());
    body.put_u32(rpc.entries.len() as u32);
    for entry in &rpc.entries {
        put_log_id(&mut body, &entry.log_id);
        let length_at = body.len();
        body.put_u32(0);
        put_payload(&mut body, &entry.payload);
        let length = (body.len() - length_at - 4) as u32;
        body[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    }
    Bytes::from(body)
}

pub(crate) fn read_append_request(mut reader: Reader) -> Result<AppendRequest, Malformed> {
    let vote = reader.vote()?;
    let prev_log_id = reader.maybe_log_id()?;
    let leader_commit = reader.maybe_log_id()?;
    let count = reader.u32("entries")?;
    // A leader's vote is committed, and its entries follow one another: openraft takes both for granted.
    if !vote.committed {
        return Err(Malformed("vote"));
    }
    let mut entries = Vec::new();
    let mut next = prev_log_id.map_or(0, |id| id.index.saturating_add(1));
    for _ in 0..count {
        let log_id = reader.log_id()?;
        if log_id.index != next {
            return Err(Malformed("entries"));
        }
        next = next.saturating_add(1);
        let length = reader.u32("entry")? as usize;
        entries.push(Entry { log_id, payload: encoding::payload(reader.bytes(length, "entry")?)? });
    }
    reader.end("append request")?;
    Ok(AppendRequest { vote, prev_log_id, entries, leader_commit })
}

pub(crate) fn append_response(response: &AppendResponse) -> Bytes {
    let mut body = vec![VERSION];
    match response {
        AppendResponse::Success => body.put_u8(0),
        AppendResponse::PartialSuccess(through) => {
            body.put_u8(1);
            put_maybe_log_id(&mut body, through.as_ref());
        }
        AppendResponse::Conflict => body.put_u8(2),
        AppendResponse::HigherVote(vote) => {
            body.put_u8(3);
            put_vote(&mut body, vote);
        }
    }
    Bytes::from(body)
}

pub(crate) fn read_append_response(body: Bytes) -> Result<AppendResponse, Malformed> {
    let mut reader = Reader::versioned(body)?;
    let response = match reader.u8("append response")? {
        0 => AppendResponse::Success,
        1 => AppendResponse::PartialSuccess(reader.maybe_log_id()?),
        2 => AppendResponse::Conflict,
        3 => AppendResponse::HigherVote(reader.vote()?),
        _ => return Err(Malformed("append response")),
    };
    reader.end("append response")?;
    Ok(response)
}

pub(crate) fn vote_request(to: MemberId, rpc: &VoteRequest) -> Bytes {
    let mut body = request(to, 64);
    put_vote(&mut body, &rpc.vote);
    put_maybe_log_id(&mut body, rpc.last_log_id.as_ref());
    body.put_u8(u8::from(rpc.leadership_transfer));
    Bytes::from(body)
}

pub(crate) fn read_vote_request(mut reader: Reader) -> Result<VoteRequest, Malformed> {
    let mut rpc = VoteRequest::new(reader.vote()?, reader.maybe_log_id()?);
    rpc.leadership_transfer = reader.flag("vote request")?;
    reader.end("vote request")?;
    Ok(rpc)
}

pub(crate) fn vote_response(response: &VoteResponse) -> Bytes {
    let mut body = vec![VERSION];
    put_vote(&mut body, &response.vote);
    put_maybe_log_id(&mut body, response.last_log_id.as_ref());
    body.put_u8(u8::from(response.vote_granted));
    Bytes::from(body)
}

pub(crate) fn read_vote_response(body: Bytes) -> Result<VoteResponse, Malformed> {
    let mut reader = Reader::versioned(body)?;
    let vote = reader.vote()?;
    let last_log_id = reader.maybe_log_id()?;
    let granted = reader.flag("vote response")?;
    reader.end("vote response")?;
    Ok(VoteResponse::new(vote, last_log_id, granted))
}

pub(crate) fn transfer_request(to: MemberId, rpc: &TransferRequest) -> Bytes {
    let mut body = request(to, 64);
    put_vote(&mut body, rpc.from_leader());
    body.put_u64(*rpc.to_node_id());
    put_maybe_log_id(&mut body, rpc.last_log_id());
    Bytes::from(body)
}

pub(crate) fn read_transfer_request(mut reader: Reader) -> Result<TransferRequest, Malformed> {
    let rpc = TransferRequest::new(reader.vote()?, reader.u64("member")?, reader.maybe_log_id()?);
    reader.end("transfer request")?;
    Ok(rpc)
}

pub(crate) fn transfer_response(response: &TransferResponse) -> Bytes {
    let mut body = vec![VERSION];
    match response {
        Ok(()) => body.put_u8(0),
        Err(TransferLeaderError::VoteChanged { expected, actual }) => {
            body.put_u8(1);
            put_vote(&mut body, expected);
            put_vote(&mut body, actual);
        }
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
            body.put_u8(2);
            put_maybe_log_id(&mut body, expected.as_ref());
            put_maybe_log_id(&mut body, actual.as_ref());
        }
    }
    Bytes::from(body)
}

pub(crate) fn read_transfer_response(body: Bytes) -> Result<TransferResponse, Malformed> {
    let mut reader = Reader::versioned(body)?;
    let response = match reader.u8("transfer response")? {
        0 => Ok(()),
        1 => Err(TransferLeaderError::VoteChanged { expected: reader.vote()?, actual: reader.vote()? }),
        2 => {
            Err(TransferLeaderError::LogNotFlushed { expected: reader.maybe_log_id()?, actual: reader.maybe_log_id()? })
        }
        _ => return Err(Malformed("transfer response")),
    };
    reader.end("transfer response")?;
    Ok(response)
}

fn put_transfer(to: &mut Vec<u8>, transfer: &Transfer) {
    put_vote(to, &transfer.vote);
    to.put_u64(transfer.number);
    to.put_u64(transfer.bytes);
}

fn read_transfer(reader: &mut Reader) -> Result<Transfer, Malformed> {
    Ok(Transfer { vote: reader.vote()?, number: reader.u64("transfer")?, bytes: reader.u64("transfer")? })
}

pub(crate) fn snapshot_piece(to: MemberId, piece: &SnapshotPiece) -> Bytes {
    let mut body = request(to, 48 + piece.bytes.len());
    put_transfer(&mut body, &piece.transfer);
    body.put_u64(piece.offset);
    body.put_slice(&piece.bytes);
    Bytes::from(body)
}

pub(crate) fn read_snapshot_piece(mut reader: Reader) -> Result<SnapshotPiece, Malformed> {
    let transfer = read_transfer(&mut reader)?;
    Ok(SnapshotPiece { transfer, offset: reader.u64("offset")?, bytes: reader.rest() })
}

pub(crate) fn snapshot_install(to: MemberId, transfer: &Transfer) -> Bytes {
    let mut body = request(to, 40);
    put_transfer(&mut body, transfer);
    Bytes::from(body)
}

pub(crate) fn read_snapshot_install(mut reader: Reader) -> Result<Transfer, Malformed> {
    let transfer = read_transfer(&mut reader)?;
    reader.end("install request")?;
    Ok(transfer)
}

/// The answer to an install: the receiver's vote.
pub(crate) fn snapshot_response(vote: &Vote) -> Bytes {
    let mut body = vec![VERSION];
    put_vote(&mut body, vote);
    Bytes::from(body)
}

pub(crate) fn read_snapshot_response(body: Bytes) -> Result<Vote, Malformed> {
    let mut reader = Reader::versioned(body)?;
    let vote = reader.vote()?;
    reader.end("install response")?;
    Ok(vote)
}

#[cfg(test)]
mod tests {
    use onceward_core::{
        cluster::{Generation, NodeId},
        time::ShardTime,
    };

    use super::*;
    use crate::types::{Batch, Members, Payload, log_id};

    const TARGET: MemberId = MemberId::new(NodeId(2), Generation(1));

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn append() -> AppendRequest {
        let batch = Batch { stamp: ShardTime(5), encoded: Bytes::from_static(b"batch") };
        let members = Members::new_with_defaults(vec![[1].into()], []);
        let payloads = [Payload::Blank, Payload::Normal(batch), Payload::Membership(members)];
        AppendRequest {
            vote: Vote::new_committed(4, 1),
            prev_log_id: Some(log_id(3, 7)),
            leader_commit: None,
            entries: (8..).zip(payloads).map(|(index, payload)| Entry { log_id: log_id(4, index), payload }).collect(),
        }
    }

    /// Answers whether a frame could be read.
    type IsReadable = fn(Bytes) -> bool;

    fn frames() -> Vec<(&'static str, Bytes, IsReadable)> {
        let vote = Vote::new(4, 1);
        let transfer = Transfer { vote: Vote::new_committed(4, 1), number: 3, bytes: 9 };
        let piece = SnapshotPiece { transfer, offset: 4, bytes: Bytes::from_static(b"piece") };
        let mut vote_rpc = VoteRequest::new(vote, Some(log_id(3, 7)));
        vote_rpc.leadership_transfer = true;
        let refused = Err(TransferLeaderError::LogNotFlushed { expected: Some(log_id(3, 7)), actual: None });
        vec![
            ("append_request", append_request(TARGET, &append()), |b| {
                open(b).and_then(|(_, reader)| read_append_request(reader)).is_ok()
            }),
            ("append_response", append_response(&AppendResponse::PartialSuccess(Some(log_id(3, 7)))), |b| {
                read_append_response(b).is_ok()
            }),
            ("vote_request", vote_request(TARGET, &vote_rpc), |b| {
                open(b).and_then(|(_, reader)| read_vote_request(reader)).is_ok()
            }),
            ("vote_response", vote_response(&VoteResponse::new(vote, None, true)), |b| read_vote_response(b).is_ok()),
            (
                "transfer_request",
                transfer_request(TARGET, &TransferRequest::new(Vote::new_committed(4, 1), 2, Some(log_id(3, 7)))),
                |b| open(b).and_then(|(_, reader)| read_transfer_request(reader)).is_ok(),
            ),
            ("transfer_response", transfer_response(&refused), |b| read_transfer_response(b).is_ok()),
            ("snapshot_piece", snapshot_piece(TARGET, &piece), |b| {
                open(b).and_then(|(_, reader)| read_snapshot_piece(reader)).is_ok()
            }),
            ("snapshot_install", snapshot_install(TARGET, &transfer), |b| {
                open(b).and_then(|(_, reader)| read_snapshot_install(reader)).is_ok()
            }),
            ("snapshot_response", snapshot_response(&vote), |b| read_snapshot_response(b).is_ok()),
        ]
    }

    #[test]
    fn frames_are_as_the_golden_file_says() {
        let lines: String = frames().iter().map(|(name, frame, _)| format!("{name} {}\n", hex(frame))).collect();
        assert_eq!(lines, include_str!("../golden/frames.txt"));
    }

    #[test]
    fn frames_come_back_as_they_were_sent() {
        let (target, reader) = open(append_request(TARGET, &append())).unwrap();
        let read = read_append_request(reader).unwrap();
        assert_eq!(target, TARGET);
        assert_eq!(read.entries, append().entries);
        assert_eq!((read.vote, read.prev_log_id, read.leader_commit), (append().vote, Some(log_id(3, 7)), None));
        for (name, frame, is_readable) in frames() {
            assert!(is_readable(frame), "{name}");
        }
    }

    #[test]
    fn cut_or_foreign_frames_are_errors_and_no_panic() {
        for (name, frame, is_readable) in frames() {
            // The bytes of a piece have no end of their own: the file's checksums tell.
            let whole = if name == "snapshot_piece" { frame.len() - 5 } else { frame.len() };
            for length in 0..whole {
                assert!(!is_readable(frame.slice(..length)), "{name} cut to {length}");
            }
            for position in 0..frame.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut garbage = frame.to_vec();
                    garbage[position] = value;
                    is_readable(Bytes::from(garbage));
                }
            }
            let mut version = frame.to_vec();
            version[0] = 2;
            assert!(!is_readable(Bytes::from(version)), "{name} of another version");
        }
    }

    #[test]
    fn entries_that_do_not_follow_one_another_are_refused() {
        let mut rpc = append();
        rpc.entries.remove(1);
        let (_, reader) = open(append_request(TARGET, &rpc)).unwrap();
        assert!(read_append_request(reader).is_err());
    }
}
