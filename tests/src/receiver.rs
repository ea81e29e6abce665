//! A receiver of webhooks on loopback: keeps every delivery with the time at which it was read, verifies signatures with
//! the public Standard Webhooks package, and behaves on each path as a test wants it to, badly too.
//!
//! It speaks HTTP/1.1 over plain sockets, as most of what a bad receiver does is nothing that an HTTP library would do.
//! A path that nobody gave a behaviour is answered 200.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use standardwebhooks::Webhook;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use crate::ports::free_port;

/// Between the bytes of one that drips.
const DRIP_PAUSE: Duration = Duration::from_millis(50);
/// Beyond what the product sends: a payload of 256 KiB and its head.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// What a path does with a delivery.
#[derive(Debug, Clone)]
pub enum Behaviour {
    Answer(u16),
    /// An answer with more lines in its head, and this body.
    AnswerWith {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
    /// The status after some time.
    Slow(Duration, u16),
    /// Reads it and says nothing, for ever.
    Hang,
    /// A byte of an answer's head now and then, for ever.
    DripHead,
    /// A complete head, then a byte of the body now and then, for ever.
    DripBody,
    /// Resets the connection.
    Reset,
}

/// One delivery as it was read.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// When its last byte was read.
    pub at: Instant,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// What it is answered; 0: nothing.
    pub status: u16,
}

impl Delivery {
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("no header {name} in {self:?}"));
        value.to_str().unwrap_or_else(|_| panic!("{name} is not ASCII in {self:?}"))
    }

    /// The message's id.
    #[track_caller]
    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }

    #[track_caller]
    pub fn sequence(&self) -> u64 {
        self.header("onceward-sequence").parse().unwrap_or_else(|_| panic!("no number is the sequence of {self:?}"))
    }

    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_else(|_| panic!("not UTF-8: {self:?}"))
    }

    pub fn is_signed_with(&self, secret: &str) -> bool {
        let webhook = Webhook::new(secret).unwrap_or_else(|error| panic!("{error}: no secret"));
        webhook.verify(&self.body, &self.headers).is_ok()
    }

    /// As [`Delivery::is_signed_with`], but for when it was signed: the sender's wall clock may be anywhere.
    pub fn is_signed_at_any_time_with(&self, secret: &str) -> bool {
        let webhook = Webhook::new(secret).unwrap_or_else(|error| panic!("{error}: no secret"));
        let header = |name| self.headers.get(name)?.to_str().ok();
        let signed = || {
            let timestamp = header("webhook-timestamp")?.parse().ok()?;
            let right = webhook.sign(header("webhook-id")?, timestamp, &self.body).ok()?;
            Some(header("webhook-signature")?.split(' ').any(|signature| signature == right))
        };
        signed().unwrap_or(false)
    }
}

/// Listens from [`Receiver::start`] until it is stopped or dropped, always on the same port.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    paths: Mutex<BTreeMap<String, Path>>,
    /// Over all paths.
    received: AtomicU64,
}

#[derive(Default)]
struct Path {
    /// The last one stays.
    script: VecDeque<Behaviour>,
    deliveries: Vec<Delivery>,
    /// Of all messages that came.
    ids: HashSet<HeaderValue>,
}

impl Receiver {
    pub async fn start() -> Receiver {
        Receiver::start_on(Ipv4Addr::LOCALHOST.into()).await
    }

    /// On an address of this machine that nodes elsewhere reach it by.
    pub async fn start_on(host: IpAddr) -> Receiver {
        let address = SocketAddr::from((host, free_port()));
        let mut receiver = Receiver { address, shared: Arc::default(), accepting: None };
        receiver.listen().await;
        receiver
    }

    /// Listens again after [`Receiver::stop`].
    pub async fn listen(&mut self) {
        assert!(self.accepting.is_none(), "it listens already");
        let address = self.address;
        let listener = TcpListener::bind(address).await.unwrap_or_else(|error| panic!("{address}: {error}"));
        self.accepting = Some(tokio::spawn(accept(listener, self.shared.clone())));
    }

    /// Closes the port and every connection: whoever connects is refused.
    pub async fn stop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
            let _ = accepting.await;
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// From now on each delivery to the path gets the next of these; the last one stays.
    pub fn script(&self, path: &str, script: impl IntoIterator<Item = Behaviour>) {
        let script: VecDeque<Behaviour> = script.into_iter().collect();
        self.shared.with(path, |path| path.script = script);
    }

    pub fn behave(&self, path: &str, behaviour: Behaviour) {
        self.script(path, [behaviour]);
    }

    /// What came to the path so far, in order.
    pub fn deliveries(&self, path: &str) -> Vec<Delivery> {
        self.shared.with(path, |path| path.deliveries.clone())
    }

    /// What came to each path beyond the first so many, as `seen` counts them by path; counts them as seen.
    pub fn news(&self, seen: &mut BTreeMap<String, usize>) -> Vec<Delivery> {
        let paths = self.shared.paths.lock().expect("nobody panics with it");
        let mut news = Vec::new();
        for (name, path) in paths.iter() {
            let seen = seen.entry(name.clone()).or_default();
            news.extend_from_slice(&path.deliveries[*seen..]);
            *seen = path.deliveries.len();
        }
        news
    }

    pub fn count(&self, path: &str) -> usize {
        self.shared.with(path, |path| path.deliveries.len())
    }

    /// How many different messages came to the path.
    pub fn distinct(&self, path: &str) -> usize {
        self.shared.with(path, |path| path.ids.len())
    }

    /// What came so far over all paths.
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Waits for that many deliveries to the path; returns all there are then.
    pub async fn wait(&self, path: &str, count: usize, at_most: Duration) -> Vec<Delivery> {
        let deadline = Instant::now() + at_most;
        while self.count(path) < count {
            let found = self.deliveries(path);
            assert!(Instant::now() < deadline, "{} of {count} came to {path} in {at_most:?}: {found:#?}", found.len());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.deliveries(path)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
    }
}

impl Shared {
    fn with<T>(&self, path: &str, change: impl FnOnce(&mut Path) -> T) -> T {
        let mut paths = self.paths.lock().expect("nobody panics with it");
        change(paths.entry(path.to_owned()).or_default())
    }

    /// Keeps a delivery and says what to do with it.
    fn take(&self, path: String, headers: HeaderMap, body: Vec<u8>) -> Behaviour {
        let at = Instant::now();
        self.received.fetch_add(1, Ordering::Relaxed);
        self.with(&path.clone(), |of_path| {
            let behaviour = match of_path.script.len() {
                0 => Behaviour::Answer(200),
                1 => of_path.script[0].clone(),
                _ => of_path.script.pop_front().expect("it has two"),
            };
            let status = behaviour.status();
            of_path.ids.extend(headers.get("webhook-id").cloned());
            of_path.deliveries.push(Delivery { at, path, headers, body, status });
            behaviour
        })
    }
}

impl Behaviour {
    fn status(&self) -> u16 {
        match self {
            Behaviour::Answer(status) | Behaviour::Slow(_, status) | Behaviour::AnswerWith { status, .. } => *status,
            Behaviour::Hang | Behaviour::DripHead | Behaviour::DripBody | Behaviour::Reset => 0,
        }
    }
}

/// Whoever aborts this closes all connections, as they belong to it.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                // An error is the sender's hanging up.
                connections.spawn({ let shared = shared.clone(); async move { drop(serve(stream, &shared).await) } });
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4 << 10);
    while let Some((path, headers, body)) = read_request(&mut stream, &mut buffer).await? {
        match shared.take(path, headers, body) {
            Behaviour::Answer(status) => answer(&mut stream, status, &[], b"").await?,
            Behaviour::AnswerWith { status, headers, body } => answer(&mut stream, status, &headers, &body).await?,
            Behaviour::Slow(wait, status) => {
                tokio::time::sleep(wait).await;
                answer(&mut stream, status, &[], b"").await?;
            }
            Behaviour::Hang => wait_hang_up(&mut stream).await?,
            Behaviour::DripHead => drip(&mut stream, b"HTTP/1.1 200 OK\r\nx-drip: ").await?,
            Behaviour::DripBody => drip(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").await?,
            Behaviour::Reset => return stream.set_zero_linger(),
        }
    }
    Ok(())
}

/// The next request; `None`: the connection ended between two. What came beyond it stays in the buffer.
async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(String, HeaderMap, Vec<u8>)>> {
    let head = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return if buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        if buffer.len() > REQUEST_BYTES_MAX {
            return Err(io::Error::other("no end of a head"));
        }
    };
    let (path, headers) = parse_head(&buffer[..head]);
    let length = headers.get("content-length").and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let length = length.unwrap_or_else(|| panic!("a delivery says how long it is: {headers:?}"));
    assert!(length <= REQUEST_BYTES_MAX, "a delivery of {length} bytes");
    while buffer.len() < head + length {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let rest = buffer.split_off(head + length);
    let body = buffer.split_off(head);
    *buffer = rest;
    Ok(Some((path, headers, body)))
}

fn parse_head(head: &[u8]) -> (String, HeaderMap) {
    let text = std::str::from_utf8(head).unwrap_or_else(|_| panic!("a head that is not UTF-8: {head:?}"));
    let mut lines = text.trim_end().split("\r\n");
    let request = lines.next().unwrap_or_default();
    let mut words = request.split(' ');
    let (method, path, version) = (words.next(), words.next(), words.next());
    assert_eq!((method, version), (Some("POST"), Some("HTTP/1.1")), "{request:?}");
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("no header: {line:?}"));
        let name: HeaderName = name.parse().unwrap_or_else(|_| panic!("no header: {line:?}"));
        let value = HeaderValue::from_str(value.trim()).unwrap_or_else(|_| panic!("no header: {line:?}"));
        headers.append(name, value);
    }
    (path.unwrap_or_default().to_owned(), headers)
}

async fn answer(stream: &mut TcpStream, status: u16, headers: &[(String, String)], body: &[u8]) -> io::Result<()> {
    let mut bytes = format!("HTTP/1.1 {status} \r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    bytes.push_str("\r\n");
    let bytes = [bytes.as_bytes(), body].concat();
    stream.write_all(&bytes).await
}

async fn drip(stream: &mut TcpStream, beginning: &[u8]) -> io::Result<()> {
    stream.write_all(beginning).await?;
    loop {
        tokio::time::sleep(DRIP_PAUSE).await;
        stream.write_all(b"x").await?;
    }
}

async fn wait_hang_up(stream: &mut TcpStream) -> io::Result<()> {
    let mut ignored = [0; 256];
    while stream.read(&mut ignored).await? > 0 {}
    Err(io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn post(receiver: &Receiver, path: &str) -> Result<u16, reqwest::Error> {
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_millis(500)).build().unwrap();
        let response = client.post(receiver.url(path)).header("webhook-id", "msg_1").body("{}").send().await?;
        let status = response.status().as_u16();
        response.bytes().await.map(|_| status)
    }

    #[test]
    fn a_signature_from_long_ago_is_right_but_for_its_time_and_of_other_bytes_it_is_wrong() {
        const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let signature = Webhook::new(SECRET).unwrap().sign("msg_1", 1_000, b"{}").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", "msg_1".parse().unwrap());
        headers.insert("webhook-timestamp", 1_000.into());
        headers.insert("webhook-signature", format!("v1,AAAA {signature}").parse().unwrap());
        let old = Delivery { at: Instant::now(), path: "/".into(), headers, body: "{}".into(), status: 200 };
        assert!(old.is_signed_at_any_time_with(SECRET) && !old.is_signed_with(SECRET));
        let other = Delivery { body: "[]".into(), ..old };
        assert!(!other.is_signed_at_any_time_with(SECRET));
    }

    #[tokio::test]
    async fn it_behaves_as_scripted_keeps_what_came_and_comes_back_on_its_port() {
        let mut receiver = Receiver::start().await;
        receiver.script("/a", [Behaviour::Answer(500), Behaviour::Slow(Duration::from_millis(10), 204)]);
        for status in [500, 204, 204] {
            assert_eq!(post(&receiver, "/a").await.unwrap(), status);
        }
        for bad in [Behaviour::Hang, Behaviour::DripHead, Behaviour::DripBody, Behaviour::Reset] {
            receiver.behave("/bad", bad);
            assert!(post(&receiver, "/bad").await.is_err());
        }
        receiver.stop().await;
        assert!(post(&receiver, "/a").await.unwrap_err().is_connect());
        receiver.listen().await;
        assert_eq!(post(&receiver, "/b").await.unwrap(), 200);
        let deliveries = receiver.wait("/a", 3, Duration::from_secs(1)).await;
        assert_eq!(deliveries.iter().map(|delivery| delivery.status).collect::<Vec<_>>(), [500, 204, 204]);
        assert_eq!((deliveries[0].id(), deliveries[0].text(), receiver.received()), ("msg_1", "{}", 8));
    }
}
