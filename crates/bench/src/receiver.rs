//! Receivers of webhooks that do as little as they can: one notes when the first byte of each delivery came and answers
//! 200, the other accepts connections and never says a word.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::Instant,
};

use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::spawn_local,
};

/// What stands before the number of a message in its payload; the number has nine digits.
pub const NUMBER_MARK: &str = "{\"number\":\"";
const NUMBER_DIGITS: usize = 9;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// What publishers and the receiver know of the messages between them.
pub struct Board {
    /// When each was published, by number.
    published: RefCell<Vec<Option<Instant>>>,
    /// From the beginning of the publish to the first byte of the delivery, while it is measured.
    latency_us: RefCell<Histogram<u64>>,
    measuring: Cell<bool>,
    delivered: Cell<u64>,
    withdrawn: Cell<u64>,
    repeated: Cell<u64>,
    /// Wakes a publisher that waits for room.
    progress: Notify,
}

impl Board {
    pub fn new() -> Board {
        Board {
            published: RefCell::default(),
            latency_us: RefCell::new(Histogram::new_with_bounds(1, 600_000_000, 3).expect("bounds in order")),
            measuring: Cell::new(false),
            delivered: Cell::new(0),
            withdrawn: Cell::new(0),
            repeated: Cell::new(0),
            progress: Notify::new(),
        }
    }

    /// The number of a message whose publish begins now.
    pub fn publish(&self) -> usize {
        let mut published = self.published.borrow_mut();
        published.push(Some(Instant::now()));
        published.len() - 1
    }

    /// A publish that was refused: nothing will come of it.
    pub fn withdraw(&self, number: usize) {
        if self.published.borrow_mut()[number].take().is_some() {
            self.withdrawn.set(self.withdrawn.get() + 1);
            self.progress.notify_one();
        }
    }

    /// Published and not delivered.
    pub fn outstanding(&self) -> usize {
        self.published.borrow().len() - (self.delivered.get() + self.withdrawn.get()) as usize
    }

    pub fn delivered(&self) -> u64 {
        self.delivered.get()
    }

    pub fn repeated(&self) -> u64 {
        self.repeated.get()
    }

    /// Waits until something more was delivered; each delivery ends one wait.
    pub async fn progress(&self) {
        self.progress.notified().await;
    }

    /// Ends all waits.
    pub fn wake_all(&self) {
        self.progress.notify_waiters();
    }

    pub fn measure(&self, measuring: bool) {
        self.measuring.set(measuring);
    }

    /// What was measured so far; begins anew.
    pub fn take_latency_us(&self) -> Histogram<u64> {
        let mut latency_us = self.latency_us.borrow_mut();
        let taken = latency_us.clone();
        latency_us.reset();
        taken
    }

    fn deliver(&self, number: usize, first_byte: Instant) {
        let Some(began) = self.published.borrow_mut().get_mut(number).and_then(Option::take) else {
            return self.repeated.set(self.repeated.get() + 1);
        };
        if self.measuring.get() {
            let micros = first_byte.saturating_duration_since(began).as_micros() as u64;
            self.latency_us.borrow_mut().saturating_record(micros);
        }
        self.delivered.set(self.delivered.get() + 1);
        self.progress.notify_one();
    }
}

/// Listens on loopback within the current `LocalSet`; returns its URL.
pub async fn listen(board: Rc<Board>) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // An error is the node's hanging up.
            spawn_local({
                let board = board.clone();
                async move { drop(receive(stream, &board).await) }
            });
        }
    });
    Ok(url)
}

/// Accepts and is silent.
pub async fn listen_dead() -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            spawn_local(async move {
                let mut ignored = [0; 1024];
                while matches!(stream.read(&mut ignored).await, Ok(1..)) {}
            });
        }
    });
    Ok(url)
}

async fn receive(mut stream: TcpStream, board: &Board) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4 << 10);
    loop {
        let mut first_byte = None;
        let length = loop {
            if let Some(length) = request_length(&buffer)?
                && buffer.len() >= length
            {
                break length;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            first_byte.get_or_insert_with(Instant::now);
        };
        let number = number(&buffer[..length]).ok_or_else(|| io::Error::other("a delivery without a number"))?;
        board.deliver(number, first_byte.unwrap_or_else(Instant::now));
        buffer.drain(..length);
        stream.write_all(ANSWER).await?;
    }
}

/// Head and body, once the head is there.
fn request_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&bytes[..end]).map_err(io::Error::other)?;
    let length = text
        .split("\r\n")
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse::<usize>().ok());
    length.map(|length| Some(end + 4 + length)).ok_or_else(|| io::Error::other("a delivery without a length"))
}

fn number(request: &[u8]) -> Option<usize> {
    let mark = NUMBER_MARK.as_bytes();
    let at = request.windows(mark.len()).position(|window| window == mark)? + mark.len();
    std::str::from_utf8(request.get(at..at + NUMBER_DIGITS)?).ok()?.parse().ok()
}
