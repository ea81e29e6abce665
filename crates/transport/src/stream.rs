//! The two ends of an established connection: a reader that cuts bytes into frames, a writer that empties an outbox.
//!
//! Both end with a sentence that says why. What the frames mean is not known here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, interval_at, sleep, timeout};

use crate::frame::{Frame, FrameDecoder};
use crate::limits::{COPIED_BODY_BYTES_MAX, LAST_WRITES_TIMEOUT, READ_BYTES, READ_BYTES_MIN};
use crate::links::Lane;
use crate::outbox::Outbox;

pub(crate) type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// Reads frames. A peer that says nothing for `dead_after` is dead.
pub(crate) struct FrameReader {
    half: ReadHalf,
    received: BytesMut,
    decoder: FrameDecoder,
    heard: Instant,
    dead_after: Duration,
    /// Fires at or before `heard + dead_after`; moved only when it fires, so that a frame costs no timer.
    watch: Pin<Box<Sleep>>,
}

impl FrameReader {
    pub fn new(half: ReadHalf, lane: Lane, dead_after: Duration) -> FrameReader {
        FrameReader {
            half,
            received: BytesMut::new(),
            decoder: FrameDecoder::new(lane),
            heard: Instant::now(),
            dead_after,
            watch: Box::pin(sleep(dead_after)),
        }
    }

    /// The next frame, or why there is none any more. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Frame, String> {
        loop {
            if let Some(frame) = self.decoder.next(&mut self.received).map_err(|error| format!("it sent {error}"))? {
                return Ok(frame);
            }
            if self.received.capacity() - self.received.len() < READ_BYTES_MIN {
                self.received.reserve(READ_BYTES);
            }
            tokio::select! {
                biased;
                read = self.half.read_buf(&mut self.received) => match read {
                    Ok(0) => return Err("it closed the connection".to_owned()),
                    Ok(_) => self.heard = Instant::now(),
                    Err(error) => return Err(error.to_string()),
                },
                () = &mut self.watch => {
                    let dead_at = self.heard + self.dead_after;
                    if Instant::now() >= dead_at {
                        return Err(format!("not a word from it in {:?}", self.dead_after));
                    }
                    self.watch.as_mut().reset(dead_at);
                }
            }
        }
    }
}

/// Writes what the outbox holds, until that is closed and empty. Every round ends with one flush.
pub(crate) struct FrameWriter<O> {
    pub half: WriteHalf,
    pub outbox: Arc<O>,
    /// Where this side asks for signs of life: how often.
    pub ping_every: Option<Duration>,
    pub dead_after: Duration,
}

impl<O: Outbox> FrameWriter<O> {
    /// Why it could not go on; `Ok` once the outbox was closed.
    pub async fn run(mut self) -> Result<(), String> {
        let mut ping = self.ping_every.map(|every| {
            let mut ping = interval_at(Instant::now() + every, every);
            ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ping
        });
        let mut round = Vec::new();
        let mut buffer = BytesMut::new();
        loop {
            let open = self.outbox.drain(&mut round);
            if !round.is_empty() {
                let limit = if open { self.dead_after } else { LAST_WRITES_TIMEOUT.min(self.dead_after) };
                match timeout(limit, write(&mut self.half, &mut buffer, &mut round)).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(error)) => return Err(error.to_string()),
                    Err(_) => return Err(format!("it took nothing in {limit:?}")),
                }
            }
            if !open {
                // The peer may be gone already; the connection ends either way.
                let _ = timeout(LAST_WRITES_TIMEOUT, self.half.shutdown()).await;
                return Ok(());
            }
            tokio::select! {
                biased;
                // Whoever else is ready to call goes first, so that a round can take more than one frame. With echoing
                // handlers it cut the CPU time of a call to a third from 16 callers on; a lone one takes 8 µs more.
                () = self.outbox.wake().notified() => tokio::task::yield_now().await,
                () = tick(ping.as_mut()) => round.push(Frame::Ping),
            }
        }
    }
}

async fn tick(interval: Option<&mut Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

/// One round: heads and small bodies side by side in `buffer`, large bodies from where they are; then one flush.
async fn write(half: &mut WriteHalf, buffer: &mut BytesMut, round: &mut Vec<Frame>) -> io::Result<()> {
    for frame in round.iter() {
        frame.encode_head(buffer);
        let body = frame.body();
        if body.len() <= COPIED_BODY_BYTES_MAX {
            buffer.extend_from_slice(body);
        } else {
            half.write_all_buf(buffer).await?;
            half.write_all(body).await?;
        }
    }
    half.write_all_buf(buffer).await?;
    half.flush().await?;
    round.clear();
    buffer.clear();
    Ok(())
}
