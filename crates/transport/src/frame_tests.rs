use proptest::prelude::*;

use super::*;
use crate::golden::assert_wire;

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut out = BytesMut::new();
    frame.encode_head(&mut out);
    out.extend_from_slice(frame.body());
    out.to_vec()
}

#[test]
fn frames_keep_their_bytes() {
    let (body, message) = (Bytes::from_static(b"body"), Bytes::from_static(b"no"));
    let extremes = (u64::MAX, u8::MAX, ShardId(u16::MAX), u32::MAX);
    let request =
        |(id, method, shard, timeout_ms)| Frame::Request { id, method, shard, timeout_ms, body: body.clone() };
    let golden = [
        ("request", request((7, 3, ShardId(8), 250))),
        ("request_of_extremes", request(extremes)),
        ("answer", Frame::Answer { id: 300, body: Bytes::new() }),
        ("refused", Frame::Refused { id: 1, code: RefusalCode::WrongMember, message: message.clone() }),
        ("lost", Frame::Lost { id: 1, message }),
        ("ping", Frame::Ping),
        ("pong", Frame::Pong),
    ];
    for (name, frame) in golden {
        assert_wire(name, &encoded(&frame));
        let mut received = BytesMut::from(&encoded(&frame)[..]);
        assert_eq!(FrameDecoder::new(Lane::Data).next(&mut received).unwrap(), Some(frame));
    }
}

#[test]
fn the_longest_head_is_within_its_bound() {
    let frame = Frame::Request {
        id: u64::MAX,
        method: 255,
        shard: ShardId(u16::MAX),
        timeout_ms: u32::MAX,
        body: Bytes::new(),
    };
    assert_eq!(encoded(&frame).len(), PREFIX_BYTES + CHECKSUM_BYTES + HEAD_BYTES_MAX);
}

#[test]
fn a_frame_beyond_its_lane_is_refused_before_room_is_made_for_it() {
    for lane in Lane::ALL {
        let length = u32::try_from(CHECKSUM_BYTES + HEAD_BYTES_MAX + body_bytes_max(lane) + 1).unwrap();
        let mut received = BytesMut::from(&length.to_be_bytes()[..]);
        received.put_u32(crc32c::crc32c(&length.to_be_bytes()));
        assert!(matches!(FrameDecoder::new(lane).next(&mut received), Err(FrameError::TooLong { .. })));
        assert!(received.capacity() < 1024);
    }
}

fn frames() -> impl Strategy<Value = Frame> {
    let body = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    prop_oneof![
        (any::<u64>(), any::<u8>(), any::<u16>(), any::<u32>(), body()).prop_map(
            |(id, method, shard, timeout_ms, body)| Frame::Request {
                id,
                method,
                shard: ShardId(shard),
                timeout_ms,
                body
            }
        ),
        (any::<u64>(), body()).prop_map(|(id, body)| Frame::Answer { id, body }),
        (any::<u64>(), 1..=4u8, body()).prop_map(|(id, code, message)| Frame::Refused {
            id,
            code: RefusalCode::from_u8(code).unwrap(),
            message
        }),
        (any::<u64>(), body()).prop_map(|(id, message)| Frame::Lost { id, message }),
        Just(Frame::Ping),
        Just(Frame::Pong),
    ]
}

/// Everything the decoder finds in a stream that arrives in pieces of the given length.
fn decode_in_pieces(stream: &[u8], piece: usize) -> (Vec<Frame>, Option<FrameError>) {
    let decoder = FrameDecoder::new(Lane::Data);
    let mut received = BytesMut::new();
    let mut found = Vec::new();
    for piece in stream.chunks(piece) {
        received.extend_from_slice(piece);
        loop {
            match decoder.next(&mut received) {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

proptest! {
    #[test]
    fn frames_survive_a_stream_however_it_is_cut(sent in proptest::collection::vec(frames(), 1..8), piece in 1..64usize) {
        let stream: Vec<u8> = sent.iter().flat_map(encoded).collect();
        let (found, error) = decode_in_pieces(&stream, piece);
        prop_assert!(error.is_none());
        prop_assert_eq!(found, sent);
    }

    #[test]
    fn garbage_is_an_error_or_frames_within_it_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let body_bytes = |frame: &Frame| frame.body().len();
        if let Ok(frame) = Frame::decode(Bytes::from(bytes.clone())) {
            prop_assert!(body_bytes(&frame) < bytes.len());
        }
        let (found, _) = decode_in_pieces(&bytes, 7);
        prop_assert!(found.iter().map(body_bytes).sum::<usize>() <= bytes.len());
    }

    #[test]
    fn a_flipped_bit_is_noticed_by_the_frame_that_it_is_in(
        sent in proptest::collection::vec(frames(), 1..6), bit in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>(),
    ) {
        let mut stream: Vec<u8> = sent.iter().flat_map(encoded).collect();
        let bit = bit.index(stream.len() * 8);
        stream[bit / 8] ^= 1 << (bit % 8);
        stream.truncate(cut.index(stream.len()) + 1);
        let untouched = (bit / 8).min(stream.len());
        let (found, error) = decode_in_pieces(&stream, stream.len());
        let ends = sent.iter().scan(0, |end, frame| {
            *end += encoded(frame).len();
            Some(*end)
        });
        let ends: Vec<usize> = ends.collect();
        let whole = ends.iter().take_while(|end| **end <= untouched).count();
        prop_assert_eq!(&found, &sent[..whole]);
        // Whoever waits for the end of a frame whose length is wrong may wait for ever.
        let came_whole = ends.get(whole).is_some_and(|end| *end <= stream.len());
        prop_assert!(error.is_some() || !came_whole);
    }
}
