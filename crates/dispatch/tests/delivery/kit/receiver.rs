//! A receiver of webhooks on a loopback port that answers as a test tells it to.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::{Instant, sleep},
};
use tokio_rustls::TlsAcceptor;

/// What a receiver does with a request.
#[derive(Debug, Clone)]
pub enum Answer {
    /// These bytes, and the connection stays open.
    Bytes(Vec<u8>),
    /// These bytes, and the connection is closed.
    Last(Vec<u8>),
    /// These bytes, then one more every so often for ever.
    Drip(Vec<u8>, Duration),
    /// These bytes so much later.
    Late(Vec<u8>, Duration),
    /// These bytes, and the connection is closed a little later, while it is idle.
    ThenClose(Vec<u8>, Duration),
    Hang,
    Reset,
}

/// An answer without a body.
pub fn ok(status: u16) -> Answer {
    Answer::Bytes(format!("HTTP/1.1 {status} Status\r\ncontent-length: 0\r\n\r\n").into_bytes())
}

#[derive(Debug, Clone)]
pub struct Received {
    pub at: Instant,
    pub request_line: String,
    /// Names in lower case; a repeated one has its values joined by a comma.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

#[derive(Default)]
struct Log {
    received: Mutex<Vec<Received>>,
    connections: AtomicUsize,
    open: AtomicUsize,
}

pub struct Receiver {
    pub address: SocketAddr,
    log: Arc<Log>,
    accepting: AbortHandle,
}

type Behaviour = dyn Fn(usize, &Received) -> Answer + Send + Sync;

impl Receiver {
    /// Answers the n-th request (from 0) as `behaviour` says.
    pub async fn start(behaviour: impl Fn(usize, &Received) -> Answer + Send + Sync + 'static) -> Receiver {
        Receiver::start_with(behaviour, None).await
    }

    pub async fn start_with(
        behaviour: impl Fn(usize, &Received) -> Answer + Send + Sync + 'static,
        tls: Option<TlsAcceptor>,
    ) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::<Log>::default();
        let behaviour: Arc<Behaviour> = Arc::new(behaviour);
        let accepting = tokio::spawn(accept(listener, log.clone(), behaviour, tls)).abort_handle();
        Receiver { address, log, accepting }
    }

    pub async fn always(answer: Answer) -> Receiver {
        Receiver::start(move |_, _| answer.clone()).await
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub fn received(&self) -> Vec<Received> {
        self.log.received.lock().clone()
    }

    pub fn connections(&self) -> usize {
        self.log.connections.load(Relaxed)
    }

    pub fn open_connections(&self) -> usize {
        self.log.open.load(Relaxed)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, log: Arc<Log>, behaviour: Arc<Behaviour>, tls: Option<TlsAcceptor>) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        log.connections.fetch_add(1, Relaxed);
        log.open.fetch_add(1, Relaxed);
        let (log, behaviour, tls) = (log.clone(), behaviour.clone(), tls.clone());
        tokio::spawn(async move {
            // How a connection ends is part of the behaviour.
            let _ = match tls {
                None => serve(stream, &log, &*behaviour).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => serve(stream, &log, &*behaviour).await,
                    Err(error) => Err(error),
                },
            };
            log.open.fetch_sub(1, Relaxed);
        });
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// Makes closing it a reset.
    fn reset_on_close(&self) {}
}

impl Stream for TcpStream {
    fn reset_on_close(&self) {
        self.set_zero_linger().unwrap();
    }
}

impl Stream for tokio_rustls::server::TlsStream<TcpStream> {}

async fn serve(mut stream: impl Stream, log: &Log, behaviour: &Behaviour) -> io::Result<()> {
    loop {
        let received = read_request(&mut stream).await?;
        let number = {
            let mut all = log.received.lock();
            all.push(received.clone());
            all.len() - 1
        };
        match behaviour(number, &received) {
            Answer::Bytes(bytes) => stream.write_all(&bytes).await?,
            Answer::Last(bytes) => {
                stream.write_all(&bytes).await?;
                return stream.shutdown().await;
            }
            Answer::Late(bytes, after) => {
                sleep(after).await;
                stream.write_all(&bytes).await?;
            }
            Answer::ThenClose(bytes, after) => {
                stream.write_all(&bytes).await?;
                sleep(after).await;
                return stream.shutdown().await;
            }
            Answer::Drip(bytes, every) => {
                stream.write_all(&bytes).await?;
                loop {
                    sleep(every).await;
                    stream.write_all(b"x").await?;
                }
            }
            Answer::Hang => {
                // Until the other side has enough.
                while stream.read(&mut [0; 64]).await? > 0 {}
                return Ok(());
            }
            Answer::Reset => {
                stream.reset_on_close();
                return Ok(());
            }
        }
    }
}

async fn read_request(stream: &mut impl Stream) -> io::Result<Received> {
    let mut bytes = Vec::new();
    let head_len = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = str::from_utf8(&bytes[..head_len]).unwrap().to_owned();
    let mut lines = head.trim_end().split("\r\n");
    let request_line = lines.next().unwrap().to_owned();
    let mut headers = HashMap::<String, String>::new();
    for (name, value) in lines.map(|line| line.split_once(": ").unwrap()) {
        let joined = headers.entry(name.to_ascii_lowercase()).or_default();
        joined.push_str(if joined.is_empty() { "" } else { "," });
        joined.push_str(value);
    }
    let body_len: usize = headers["content-length"].parse().unwrap();
    while bytes.len() < head_len + body_len {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Received { at: Instant::now(), request_line, headers, body: bytes.split_off(head_len) })
}
