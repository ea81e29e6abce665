//! What travels on a connection after the handshake: frames, each a length, a head and a raw body.
//!
//! `length u32 BE | CRC-32C of it u32 BE | CRC-32C u32 BE | head: MessagePack array [id, kind, detail, shard, timeout_ms] |
//! body`, the length counting what follows its checksum, the second checksum taken over head and body: TCP's own sixteen
//! bits let a flipped bit through now and then, and what a replica applied wrong stays wrong. The length has a checksum of
//! its own, as a reader that believes a wrong one waits for a frame that never ends. Both guard against accidents; against
//! people there is mTLS. Decoding is a pure function of bytes that may be anything: an error, never a panic, and no
//! allocation beyond the connection's frame bound. Bodies are slices of what was read, not copies; nothing here knows what
//! is in them.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use onceward_core::cluster::ShardId;
use serde::Deserialize;

use crate::limits::{BODY_BYTES_MAX, CONTROL_BODY_BYTES_MAX, HEAD_BYTES_MAX};
use crate::links::{Lane, RefusalCode};

/// Why bytes are not a frame. The connection that brought them is closed: nothing after them can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame longer than {max} bytes")]
    TooLong { max: usize },
    #[error("a frame that changed on its way: its checksum is wrong")]
    Checksum,
    #[error("a frame without a readable head")]
    Head,
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    #[error("a refusal of unknown code {0}")]
    Refusal(u8),
}

/// One message. `id` names a call among those of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    Request {
        id: u64,
        method: u8,
        shard: ShardId,
        timeout_ms: u32,
        body: Bytes,
    },
    Answer {
        id: u64,
        body: Bytes,
    },
    /// Not carried out; the message is UTF-8 for a log.
    Refused {
        id: u64,
        code: RefusalCode,
        message: Bytes,
    },
    /// Perhaps carried out, but there will be no answer; the message is UTF-8 for a log.
    Lost {
        id: u64,
        message: Bytes,
    },
    /// Asks for a [`Frame::Pong`].
    Ping,
    Pong,
}

const REQUEST: u8 = 1;
const ANSWER: u8 = 2;
const REFUSED: u8 = 3;
const LOST: u8 = 4;
const PING: u8 = 5;
const PONG: u8 = 6;

const LENGTH_BYTES: usize = 4;
const CHECKSUM_BYTES: usize = 4;
/// Length and its checksum: what has to have come before a frame is waited for.
const PREFIX_BYTES: usize = LENGTH_BYTES + CHECKSUM_BYTES;

/// `id, kind, detail, shard, timeout_ms`; `detail` is a request's method or a refusal's code. What a kind doesn't use is 0.
type Head = (u64, u8, u8, u16, u32);

impl Frame {
    pub fn body(&self) -> &[u8] {
        match self {
            Frame::Request { body, .. } | Frame::Answer { body, .. } => body,
            Frame::Refused { message, .. } | Frame::Lost { message, .. } => message,
            Frame::Ping | Frame::Pong => &[],
        }
    }

    fn head(&self) -> Head {
        match *self {
            Frame::Request { id, method, shard, timeout_ms, .. } => (id, REQUEST, method, shard.0, timeout_ms),
            Frame::Answer { id, .. } => (id, ANSWER, 0, 0, 0),
            Frame::Refused { id, code, .. } => (id, REFUSED, code as u8, 0, 0),
            Frame::Lost { id, .. } => (id, LOST, 0, 0, 0),
            Frame::Ping => (0, PING, 0, 0, 0),
            Frame::Pong => (0, PONG, 0, 0, 0),
        }
    }

    /// Writes length, checksums and head; the body is to follow. It must be within the bound of its lane.
    pub fn encode_head(&self, out: &mut BytesMut) {
        let start = out.len();
        out.put_bytes(0, PREFIX_BYTES + CHECKSUM_BYTES);
        rmp_serde::encode::write(&mut out.writer(), &self.head()).expect("integers encode, and memory takes all bytes");
        let length = out.len() - start - PREFIX_BYTES + self.body().len();
        let length = u32::try_from(length).expect("bodies are bounded far below 4 GiB").to_be_bytes();
        let (prefix, rest) = out[start..].split_at_mut(PREFIX_BYTES);
        let (checksum, head) = rest.split_at_mut(CHECKSUM_BYTES);
        prefix[..LENGTH_BYTES].copy_from_slice(&length);
        prefix[LENGTH_BYTES..].copy_from_slice(&crc32c::crc32c(&length).to_be_bytes());
        checksum.copy_from_slice(&crc32c::crc32c_append(crc32c::crc32c(head), self.body()).to_be_bytes());
    }

    /// Reads a frame from head and body.
    pub fn decode(bytes: Bytes) -> Result<Frame, FrameError> {
        let mut rest = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
        let head_room = rest.len();
        let head = Head::deserialize(&mut rmp_serde::Deserializer::new(&mut rest)).map_err(|_| FrameError::Head)?;
        let body = bytes.slice(head_room - rest.len()..);
        let (id, kind, detail, shard, timeout_ms) = head;
        match kind {
            REQUEST => Ok(Frame::Request { id, method: detail, shard: ShardId(shard), timeout_ms, body }),
            ANSWER => Ok(Frame::Answer { id, body }),
            REFUSED => {
                let code = RefusalCode::from_u8(detail).ok_or(FrameError::Refusal(detail))?;
                Ok(Frame::Refused { id, code, message: body })
            }
            LOST => Ok(Frame::Lost { id, message: body }),
            PING => Ok(Frame::Ping),
            PONG => Ok(Frame::Pong),
            unknown => Err(FrameError::Kind(unknown)),
        }
    }
}

/// Largest body on a lane, in bytes.
pub const fn body_bytes_max(lane: Lane) -> usize {
    match lane {
        Lane::Control => CONTROL_BODY_BYTES_MAX,
        Lane::Data | Lane::Snapshot => BODY_BYTES_MAX,
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Debug)]
pub struct FrameDecoder {
    frame_bytes_max: usize,
}

impl FrameDecoder {
    pub fn new(lane: Lane) -> FrameDecoder {
        FrameDecoder { frame_bytes_max: CHECKSUM_BYTES + HEAD_BYTES_MAX + body_bytes_max(lane) }
    }

    /// The next frame, or `None` until more bytes are appended to `received`. After an error the stream is unreadable.
    pub fn next(&self, received: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(mut prefix) = received.get(..PREFIX_BYTES) else { return Ok(None) };
        let computed = crc32c::crc32c(&prefix[..LENGTH_BYTES]);
        let length = prefix.get_u32() as usize;
        check(computed, prefix.get_u32())?;
        if length > self.frame_bytes_max {
            return Err(FrameError::TooLong { max: self.frame_bytes_max });
        }
        let missing = (PREFIX_BYTES + length).saturating_sub(received.len());
        if missing > 0 {
            received.reserve(missing);
            return Ok(None);
        }
        received.advance(PREFIX_BYTES);
        let mut bytes = received.split_to(length).freeze();
        let checksum = bytes.try_get_u32().map_err(|_| FrameError::Checksum)?;
        check(crc32c::crc32c(&bytes), checksum)?;
        Frame::decode(bytes).map(Some)
    }
}

fn check(computed: u32, told: u32) -> Result<(), FrameError> {
    // A fuzzer would get no further than this comparison.
    if cfg!(fuzzing) || computed == told { Ok(()) } else { Err(FrameError::Checksum) }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
