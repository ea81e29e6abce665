//! Every bound and every default time of the peer links, with its reason.

use std::time::Duration;

/// Largest body of a request or an answer. Batches are at most 1 MiB, snapshot chunks and Raft appends a few: room for
/// them, and a bound on what one frame can make a node allocate.
pub const BODY_BYTES_MAX: usize = 8 << 20;
/// The same on the control lane, where a large body would hold up a heartbeat.
pub const CONTROL_BODY_BYTES_MAX: usize = 64 << 10;
/// Longest encoded frame head: one array marker and five integers of at most 9, 1, 2, 3 and 5 bytes.
pub const HEAD_BYTES_MAX: usize = 21;
/// Largest frame before a peer has proved who it is: room for a Hello and a refusal's text.
pub const HANDSHAKE_FRAME_BYTES_MAX: usize = 4 << 10;
/// Longest text of a refusal, in a log line or a final frame.
pub const REFUSAL_TEXT_BYTES_MAX: usize = 1 << 10;
/// Shortest shared secret: 128 bits, so that a recorded handshake can't be searched for it.
pub const SECRET_BYTES_MIN: usize = 16;

/// Connections whose peer has not yet proved who it is; further ones are closed at once. A cluster of five needs 12.
pub const UNAUTHENTICATED_MAX: usize = 64;

/// Calls that wait for one connection's socket.
pub const WAITING_CALLS_MAX: usize = 4096;
/// Bytes of the calls that wait for one connection's socket.
pub const WAITING_BYTES_MAX: usize = 32 << 20;
/// Calls of one connection that were sent and are not yet answered.
pub const UNANSWERED_CALLS_MAX: usize = 16_384;
/// What is given to the socket in one go. What lies beyond still counts as not sent if the connection breaks.
pub const WRITE_ROUND_BYTES: usize = 256 << 10;
/// Bodies up to this size are copied beside their heads, so that many leave in one system call; larger ones are
/// written from where they are.
pub const COPIED_BODY_BYTES_MAX: usize = 16 << 10;
/// Room made for reading from a socket, once less than [`READ_BYTES_MIN`] is left.
pub const READ_BYTES: usize = 32 << 10;
/// Least room for a read. Bodies keep the room that they were read into, so it isn't left half used.
pub const READ_BYTES_MIN: usize = 4 << 10;

/// Requests of one connection that are being handled, or whose answers wait for the socket; more are refused.
pub const INBOUND_REQUESTS_MAX: usize = 2048;
/// Bytes of the bodies of those requests.
pub const INBOUND_BYTES_MAX: usize = 64 << 20;
/// Answers of one connection that wait for the socket before nothing more is read from it.
pub const WAITING_ANSWERS_MAX: usize = 4096;
/// Bytes of those answers; a peer that lets more pile up is cut off.
pub const WAITING_ANSWER_BYTES_MAX: usize = 64 << 20;

/// Longest timeout of a call.
pub const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// From a TCP connection to an admitted peer; also for the TCP connection itself.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// How often the side that dialled asks for a sign of life. On a busy connection that is one frame among thousands.
pub const PING_EVERY: Duration = Duration::from_secs(5);
/// A connection on which nothing arrived for so long is dead, and so is a write that took so long.
pub const DEAD_AFTER: Duration = Duration::from_secs(10);
/// First pause before dialling again; it doubles with every failure, and a quarter of it is random.
pub const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest pause before dialling again: a restarted node is found within about a second.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The snapshot lane is closed after so long without a call.
pub const SNAPSHOT_IDLE: Duration = Duration::from_secs(30);
/// How long a connection that ends may take to hand its last frames to the socket.
pub const LAST_WRITES_TIMEOUT: Duration = Duration::from_secs(1);

/// Refusals and failures are logged once per peer in this time.
pub const LOG_EVERY: Duration = Duration::from_secs(10);
/// Peers whose last log line is remembered: bounds the memory that many source addresses can take.
pub const LOG_PEERS_MAX: usize = 1024;
