//! What peers send: frames on each lane, handshakes, and the bodies of every method. Never a panic, no more memory than
//! the lane's bound, and whatever can be read survives being written and read again.

#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use onceward_fuzz::{assert_bounded, dispatch, memory_bytes_max};
use onceward_transport::{
    Lane,
    frame::{Frame, FrameDecoder, FrameError, body_bytes_max},
    fuzzing as transport,
    limits::HEAD_BYTES_MAX,
};

const READERS: &[fn(&[u8])] = &[
    |stream| lane(Lane::Data, stream),
    |stream| lane(Lane::Control, stream),
    |stream| lane(Lane::Snapshot, stream),
    frame,
    |said| bounded(said, transport::stranger_dials),
    |said| bounded(said, transport::stranger_answers),
    |bytes| bounded(bytes, transport::handshake_messages),
    |body| bounded(body, onceward_consensus::fuzzing::peer_messages),
    |body| bounded(body, onceward_shard::fuzzing::peer_messages),
];

fuzz_target!(|input: &[u8]| dispatch(READERS, input));

fn bounded(bytes: &[u8], read: fn(&[u8])) {
    assert_bounded(memory_bytes_max(bytes), || read(bytes));
}

/// A stream of frames that arrives in pieces, as long as its first byte says.
fn lane(lane: Lane, input: &[u8]) {
    let Some((&piece_bytes, stream)) = input.split_first() else { return };
    // A length may reserve room for its frame, beside what has come.
    let received_bytes_max = body_bytes_max(lane) + HEAD_BYTES_MAX + memory_bytes_max(stream);
    assert_bounded(received_bytes_max, || {
        let whole = frames(lane, stream, stream.len());
        assert_eq!(frames(lane, stream, usize::from(piece_bytes)), whole, "where a stream is cut makes no difference");
        for frame in whole.0 {
            assert_survives(lane, &frame);
        }
    });
}

/// The frames of a stream, and whether something unreadable ended it.
fn frames(lane: Lane, stream: &[u8], piece_bytes: usize) -> (Vec<Frame>, bool) {
    let (decoder, mut received) = (FrameDecoder::new(lane), BytesMut::new());
    let mut frames = Vec::new();
    for piece in stream.chunks(piece_bytes.max(1)) {
        received.extend_from_slice(piece);
        loop {
            match decoder.next(&mut received) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}

fn frame(bytes: &[u8]) {
    if let Ok(frame) = Frame::decode(Bytes::copy_from_slice(bytes)) {
        assert!(frame.body().len() <= bytes.len());
        assert_survives(Lane::Data, &frame);
    }
}

fn assert_survives(lane: Lane, frame: &Frame) {
    let mut written = BytesMut::new();
    frame.encode_head(&mut written);
    written.extend_from_slice(frame.body());
    let read: Result<Option<Frame>, FrameError> = FrameDecoder::new(lane).next(&mut written);
    assert_eq!(read.expect("what was written is readable").as_ref(), Some(frame));
    assert!(written.is_empty());
}
