//! The listening socket: accepts connections within their bound, serves each in a task of its own, and at the end
//! waits for what is in flight.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::response::IntoResponse;
use http_body_util::{BodyExt, Collected};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use super::{
    edge::Edge,
    request_id::{self, REQUEST_ID},
    stall::WriteTimeout,
    tls,
};
use crate::{
    api::problem::Problem,
    bounds::{HEAD_BYTES_HARD_MAX, HEADERS_HARD_MAX, SHUTDOWN_TIMEOUT, TLS_HANDSHAKE_TIMEOUT},
    settings::HttpSettings,
};

/// Out of file descriptors, accepting again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Clients that are told at once that there is no place; more are just closed.
const FAREWELLS_MAX: usize = 64;
const FAREWELL_TIMEOUT: Duration = Duration::from_millis(200);

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("{0}")]
    Tls(String),
}

/// The bound socket, not yet accepting.
pub struct Listener {
    socket: TcpListener,
    tls: Option<TlsAcceptor>,
    places: Arc<Semaphore>,
    idle_timeout: Duration,
}

impl Listener {
    pub async fn bind(settings: &HttpSettings) -> Result<Listener, ServeError> {
        let tls = tls::acceptor(&settings.tls).map_err(ServeError::Tls)?;
        let address = settings.listen;
        let socket = TcpListener::bind(address).await.map_err(|error| ServeError::Listen { address, error })?;
        Ok(Listener {
            socket,
            tls,
            places: Arc::new(Semaphore::new(settings.max_connections as usize)),
            idle_timeout: Duration::from_millis(u64::from(settings.idle_timeout_ms)),
        })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `stop`, then answers what is in flight, and no longer than [`SHUTDOWN_TIMEOUT`].
    pub async fn serve(self, edge: Edge, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let farewells = Arc::new(Semaphore::new(FAREWELLS_MAX));
        let refused_connections = edge.app().metrics.refused_connections.clone();
        let server =
            Server { edge, http: self.http(), tls: self.tls, idle_timeout: self.idle_timeout, stop: stop.clone() };
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.socket.accept() => accepted,
            };
            let (stream, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match self.places.clone().try_acquire_owned() {
                Ok(place) => drop(connections.spawn(server.clone().connection(stream, client, place))),
                Err(_) => {
                    refused_connections.inc();
                    if server.tls.is_none()
                        && let Ok(farewell) = farewells.clone().try_acquire_owned()
                    {
                        connections.spawn(turn_away(stream, farewell));
                    }
                }
            }
        }
        drop(self.socket);
        connections.close();
        if timeout(SHUTDOWN_TIMEOUT, connections.wait()).await.is_err() {
            warn!(connections = connections.len(), "requests in flight were not answered in time");
        }
    }

    fn http(&self) -> http1::Builder {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.idle_timeout)
            .max_buf_size(HEAD_BYTES_HARD_MAX)
            .max_headers(HEADERS_HARD_MAX);
        http
    }
}

/// Tells a client that there is no place for it. What it sends meanwhile is read and dropped, as a socket that is
/// closed with unread bytes is reset, and the answer lost.
async fn turn_away(mut stream: TcpStream, _farewell: OwnedSemaphorePermit) {
    let saying = async {
        stream.write_all(&farewell().await).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    // Whichever way it ends, the connection is closed.
    let _ = timeout(FAREWELL_TIMEOUT, saying).await;
}

/// The answer to a request that isn't read.
async fn farewell() -> Vec<u8> {
    let problem = Problem::unavailable("not applied: too many connections to this node are open");
    let mut response = problem.into_response();
    response.headers_mut().insert(REQUEST_ID, request_id::fresh());
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {}\r\nconnection: close\r\ncontent-length: {}\r\n", parts.status, body.len());
    for (name, value) in &parts.headers {
        bytes.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap_or_default()));
    }
    bytes.push_str("\r\n");
    [bytes.as_bytes(), &body].concat()
}

/// What each connection's task has.
#[derive(Clone)]
struct Server {
    edge: Edge,
    http: http1::Builder,
    tls: Option<TlsAcceptor>,
    idle_timeout: Duration,
    stop: CancellationToken,
}

impl Server {
    async fn connection(self, stream: TcpStream, client: SocketAddr, _place: OwnedSemaphorePermit) {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%client, %error, "cannot set TCP_NODELAY");
        }
        let stream = WriteTimeout::new(stream, self.idle_timeout);
        let Some(tls) = &self.tls else { return self.requests(stream, client).await };
        match timeout(TLS_HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.requests(stream, client).await,
            Ok(Err(error)) => debug!(%client, %error, "the TLS handshake failed"),
            Err(_) => debug!(%client, "the TLS handshake took too long"),
        }
    }

    async fn requests<S: AsyncRead + AsyncWrite + Unpin>(&self, mut stream: S, client: SocketAddr) {
        let answer = |request: hyper::Request<Incoming>| async move {
            Ok::<_, Infallible>(self.edge.answer(client.ip(), request).await)
        };
        let serving = self.http.serve_connection(TokioIo::new(&mut stream), service_fn(answer));
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = self.stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        // Clients that break off, or don't speak HTTP, are no fault of this node.
        if let Err(error) = ended {
            debug!(%client, %error, "the connection ended early");
        }
        let _ = stream.shutdown().await;
    }
}
