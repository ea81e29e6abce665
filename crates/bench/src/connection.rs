//! One HTTP/1.1 connection with one request under way: writes bytes made beforehand, reads just enough of the answer
//! to know its status and where it ends.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Answers of the check endpoint are below one KiB an item, and stored responses here are small.
const ANSWER_BYTES_MAX: usize = 64 << 10;

pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub async fn open(address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: Vec::with_capacity(4 << 10) })
    }

    /// Sends the request and returns the status of its answer.
    pub async fn call(&mut self, request: &[u8]) -> io::Result<u16> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let (status, length) = loop {
            self.read_more().await?;
            if let Some(head) = head(&self.buffer)? {
                break head;
            }
        };
        while self.buffer.len() < length {
            self.read_more().await?;
        }
        Ok(status)
    }

    /// The last answer, head and body.
    pub fn answer(&self) -> &[u8] {
        &self.buffer
    }

    async fn read_more(&mut self) -> io::Result<()> {
        if self.buffer.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::other("an answer longer than any that is expected"));
        }
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// The status and the length of the whole answer, once its head is there.
fn head(bytes: &[u8]) -> io::Result<Option<(u16, usize)>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let malformed = || io::Error::other("not an HTTP/1.1 answer with a length");
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| malformed())?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.get(9..12)?.parse().ok()).ok_or_else(malformed)?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse::<usize>().ok())
        .ok_or_else(malformed)?;
    Ok(Some((status, end + 4 + length)))
}

/// A POST of JSON, as bytes.
pub fn post(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: onceward\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A check request of the items, as bytes.
pub fn check_request(body: &str) -> Vec<u8> {
    post("/v1/limits/check", body)
}
