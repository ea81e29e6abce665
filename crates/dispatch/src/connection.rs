//! One HTTP/1.1 connection to a receiver: dialled at an address that was judged, used for one request at a time.
//!
//! Whoever uses it also drives it, so that a request costs no other task a wake-up. Deadlines are the caller's.

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::{Pin, pin},
};

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::{TrySendError, http1},
};
use hyper_util::rt::TokioIo;
use onceward_core::webhooks::bounds::ANSWER_BYTES_MAX;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::Instant,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::{bounds::HEAD_BYTES_MAX, failure::Failure};

pub(crate) type Outgoing = Request<Full<Bytes>>;

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

pub(crate) struct Connection {
    requests: http1::SendRequest<Full<Bytes>>,
    /// `None` once the connection has ended.
    driver: Option<Driver>,
    pub(crate) dialled: Instant,
}

/// Why a request has no answer.
pub(crate) struct Unanswered {
    pub failure: Failure,
    /// The connection ended before the head of an answer came.
    pub without_answer: bool,
    /// The request, if nothing of it went out.
    pub unsent: Option<Outgoing>,
}

impl Connection {
    /// Dials exactly `address`; `tls` is for the name that the URL has.
    pub(crate) async fn dial(
        address: SocketAddr,
        tls: Option<(&TlsConnector, ServerName<'static>)>,
    ) -> Result<Connection, Failure> {
        let stream = TcpStream::connect(address).await.map_err(|error| Failure::connect(&error))?;
        // Without it small requests would wait for acknowledgements; a socket that refuses it only gets slower.
        let _ = stream.set_nodelay(true);
        match tls {
            None => Connection::over(stream).await,
            Some((connector, name)) => {
                let stream = connector.connect(name, stream).await.map_err(|error| Failure::tls(&error))?;
                Connection::over(stream).await
            }
        }
    }

    async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Connection, Failure> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX);
        let (requests, driver) =
            builder.handshake(TokioIo::new(stream)).await.map_err(|error| Failure::exchange(&error))?;
        Ok(Connection { requests, driver: Some(Box::pin(driver)), dialled: Instant::now() })
    }

    /// Whether another request may be tried on it: also learns whether the receiver has closed it meanwhile.
    pub(crate) fn is_reusable(&mut self) -> bool {
        if self.driver.as_mut().is_some_and(|driver| driver.now_or_never().is_some()) {
            self.driver = None;
        }
        self.driver.is_some() && self.requests.is_ready()
    }

    pub(crate) async fn send(&mut self, request: Outgoing) -> Result<Response<Incoming>, Unanswered> {
        let answer = self.requests.try_send_request(request);
        drive(&mut self.driver, answer).await.map_err(|mut error: TrySendError<Outgoing>| {
            let unsent = error.take_message();
            let error = error.into_error();
            let ended = error.is_canceled() || error.is_closed() || error.is_incomplete_message();
            let reset = std::error::Error::source(&error).is_some_and(|source| source.is::<std::io::Error>());
            Unanswered { failure: Failure::exchange(&error), without_answer: ended || reset, unsent }
        })
    }

    /// Reads an answer's body into `into`, up to [`ANSWER_BYTES_MAX`] and a little more, so that one sees whether it was all.
    pub(crate) async fn read_body(&mut self, mut body: Incoming, into: &mut BytesMut) -> Result<(), Failure> {
        while into.len() <= ANSWER_BYTES_MAX {
            let Some(frame) = drive(&mut self.driver, body.frame()).await else { return Ok(()) };
            let frame = frame.map_err(|_| Failure::Closed)?;
            if let Some(data) = frame.data_ref() {
                let room = ANSWER_BYTES_MAX + 1 - into.len();
                into.extend_from_slice(&data[..data.len().min(room)]);
            }
        }
        Ok(())
    }
}

/// Runs `work` and, beside it, the connection that it depends on.
async fn drive<T>(driver: &mut Option<Driver>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Some(running) = driver
            && running.as_mut().poll(context).is_ready()
        {
            *driver = None;
        }
        work.as_mut().poll(context)
    })
    .await
}
