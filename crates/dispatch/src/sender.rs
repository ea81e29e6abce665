//! One attempt over HTTP: a POST under one deadline that covers name, connection, TLS, head and body.
//!
//! A name is resolved once, its addresses are judged, and exactly those are dialled. Redirects aren't followed, no proxy
//! takes part. Which deliveries are sent when, and what becomes of them, is not known here.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response, Uri,
    body::Incoming,
    header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use onceward_core::{seams::Clock, webhooks::bounds::ANSWER_BYTES_MAX};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::CertificateDer, pki_types::ServerName},
};
use url::{Host, Position, Url};

use crate::{
    bounds::{CREATE_LOOKUP_TIMEOUT, DIAL_ADDRESSES_MAX, DIAL_NEXT_AFTER},
    connection::{Connection, Outgoing},
    failure::Failure,
    guard::{Guard, UrlError},
    pool::{Origin, Pool},
    resolve::{Names, Resolve},
};

const AGENT: HeaderValue = HeaderValue::from_static(concat!("Onceward/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const SEQUENCE: HeaderName = HeaderName::from_static("onceward-sequence");
/// What frames a request or speaks about the connection: an endpoint's own headers never reach into it.
const OF_THE_CONNECTION: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What is sent.
#[derive(Debug, Clone)]
pub struct Post<'p> {
    pub url: &'p str,
    pub message_id: &'p str,
    /// Wall clock of this attempt.
    pub timestamp_s: u64,
    pub signature: &'p str,
    pub sequence: Option<u64>,
    /// The endpoint's own headers; those whose names are taken aren't sent.
    pub headers: Vec<(&'p str, &'p str)>,
    pub body: Bytes,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answered {
    /// 0: no answer came, or not all of its head.
    pub status: u16,
    /// At most [`ANSWER_BYTES_MAX`] bytes; what isn't UTF-8 is replaced.
    pub body: String,
    /// There was more of it.
    pub truncated: bool,
    pub took: Duration,
    /// How long the receiver asks not to be tried again.
    pub retry_after: Option<Duration>,
    /// `None`: the answer was read to its end, or as far as it is kept.
    pub failure: Option<Failure>,
}

/// What carries posts to receivers: HTTP, or memory in a simulation.
pub trait Exchange: Send + Sync + 'static {
    fn post<'p>(&'p self, post: &'p Post<'_>) -> BoxFuture<'p, Answered>;
}

impl Exchange for Sender {
    fn post<'p>(&'p self, post: &'p Post<'_>) -> BoxFuture<'p, Answered> {
        Box::pin(self.post(post))
    }
}

/// Sends the attempts of a node.
pub struct Sender {
    guard: Guard,
    timeout: Duration,
    names: Arc<Names>,
    pool: Arc<Pool>,
    tls: TlsConnector,
    clock: Arc<dyn Clock>,
}

impl Sender {
    /// `authorities`: certificates that are trusted beside the public ones.
    pub fn new(
        guard: Guard,
        timeout: Duration,
        authorities: &[CertificateDer<'static>],
        resolver: Box<dyn Resolve>,
        clock: Arc<dyn Clock>,
    ) -> Result<Sender, tokio_rustls::rustls::Error> {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        for certificate in authorities {
            roots.add(certificate.clone())?;
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(tls));
        Ok(Sender { guard, timeout, names: Names::new(resolver), pool: Arc::default(), tls, clock })
    }

    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Judges the URL of an endpoint that is being made or changed. A name that doesn't resolve now passes: it is
    /// judged again whenever it is dialled.
    pub async fn check_url(&self, text: &str) -> Result<Url, UrlError> {
        let url = self.guard.check_url(text)?;
        if let Some(Host::Domain(name)) = url.host()
            && let Ok(Some(addresses)) = timeout(CREATE_LOOKUP_TIMEOUT, self.names.lookup(name)).await
        {
            self.guard.check_name(name, &addresses)?;
        }
        Ok(url)
    }

    pub async fn post(&self, post: &Post<'_>) -> Answered {
        let began = Instant::now();
        let mut answered = Answered::default();
        let ended = timeout_at(began + self.timeout, self.exchange(post, &mut answered)).await;
        answered.failure = match ended {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure),
            Err(_) if answered.status == 0 => Some(Failure::NoAnswer(self.timeout)),
            Err(_) => Some(Failure::Incomplete(self.timeout)),
        };
        answered.took = began.elapsed();
        answered
    }

    async fn exchange(&self, post: &Post<'_>, answered: &mut Answered) -> Result<(), Failure> {
        let url = Url::parse(post.url).map_err(|_| Failure::Url)?;
        match url.scheme() {
            "https" => {}
            // It was allowed when the endpoint was made.
            "http" if self.guard.https_only => return Err(Failure::HttpsOnly),
            "http" => {}
            _ => return Err(Failure::Url),
        }
        let origin = Origin::from(&url[..Position::BeforePath]);
        let mut request = request(&url, post)?;
        if let Some(mut connection) = self.pool.take(&origin) {
            match connection.send(request).await {
                Ok(response) => return self.read(origin, connection, response, answered).await,
                // The receiver closed a connection that had been idle. What it got of the request, if anything, has the
                // same id: sending it again is what it must be ready for anyway.
                Err(unanswered) if unanswered.without_answer => {
                    request = unanswered.unsent.map_or_else(|| self::request(&url, post), Ok)?;
                }
                Err(unanswered) => return Err(unanswered.failure),
            }
        }
        let mut connection = self.connect(&url).await?;
        let response = connection.send(request).await.map_err(|unanswered| unanswered.failure)?;
        self.read(origin, connection, response, answered).await
    }

    /// A connection to an address of the URL that may be reached.
    async fn connect(&self, url: &Url) -> Result<Connection, Failure> {
        let addresses: Arc<[IpAddr]> = match url.host().ok_or(Failure::Url)? {
            Host::Ipv4(address) => [IpAddr::V4(address)].into(),
            Host::Ipv6(address) => [IpAddr::V6(address)].into(),
            Host::Domain(name) => self.names.lookup(name).await.ok_or_else(|| Failure::Unresolved(name.to_owned()))?,
        };
        let vetted = self.guard.vet_all(&addresses).map_err(|refused| {
            refused.map_or_else(|| Failure::Unresolved(url.host_str().unwrap_or_default().to_owned()), Failure::Refused)
        })?;
        let port = url.port_or_known_default().ok_or(Failure::Url)?;
        let tls = if url.scheme() == "https" { Some(server_name(url)?) } else { None };
        let mut left = vetted.iter().take(DIAL_ADDRESSES_MAX).peekable();
        let mut failure = Failure::Connect("cannot connect");
        while let Some(address) = left.next() {
            let tls = tls.clone().map(|name| (&self.tls, name));
            let dial = Connection::dial(SocketAddr::new(*address, port), tls);
            // The last one has the whole deadline.
            let dialled = match left.peek() {
                Some(_) => {
                    timeout(DIAL_NEXT_AFTER, dial).await.unwrap_or(Err(Failure::Connect("connection timed out")))
                }
                None => dial.await,
            };
            match dialled {
                Ok(connection) => return Ok(connection),
                Err(why) => failure = why,
            }
        }
        Err(failure)
    }

    async fn read(
        &self,
        origin: Origin,
        mut connection: Connection,
        response: Response<Incoming>,
        answered: &mut Answered,
    ) -> Result<(), Failure> {
        let (head, body) = response.into_parts();
        answered.status = head.status.as_u16();
        answered.retry_after = head.headers.get(RETRY_AFTER).and_then(|value| self.retry_after(value));
        let mut bytes = BytesMut::new();
        let read = connection.read_body(body, &mut bytes).await;
        (answered.body, answered.truncated) = text_of(&bytes);
        read?;
        // A connection that has more to say of this answer is dropped, and so closed.
        if bytes.len() <= ANSWER_BYTES_MAX {
            self.pool.put(origin, connection);
        }
        Ok(())
    }

    /// Seconds, or a date by this node's wall clock.
    fn retry_after(&self, value: &HeaderValue) -> Option<Duration> {
        let text = value.to_str().ok()?.trim();
        if let Ok(seconds) = text.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(self.clock.wall_ms());
        Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default())
    }
}

fn server_name(url: &Url) -> Result<ServerName<'static>, Failure> {
    Ok(match url.host().ok_or(Failure::Url)? {
        Host::Ipv4(address) => ServerName::IpAddress(IpAddr::V4(address).into()),
        Host::Ipv6(address) => ServerName::IpAddress(IpAddr::V6(address).into()),
        Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned()).map_err(|_| Failure::Url)?,
    })
}

fn request(url: &Url, post: &Post<'_>) -> Result<Outgoing, Failure> {
    let target = &url[Position::BeforePath..Position::AfterQuery];
    let mut request = Request::new(Full::new(post.body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = target.parse::<Uri>().map_err(|_| Failure::Url)?;
    *request.headers_mut() = headers(url, post)?;
    Ok(request)
}

fn headers(url: &Url, post: &Post<'_>) -> Result<HeaderMap, Failure> {
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| Failure::Url);
    let mut headers = HeaderMap::with_capacity(8 + post.headers.len());
    headers.insert(HOST, value(&url[Position::BeforeHost..Position::AfterPort])?);
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(USER_AGENT, AGENT);
    headers.insert(ID, value(post.message_id)?);
    headers.insert(TIMESTAMP, HeaderValue::from(post.timestamp_s));
    headers.insert(SIGNATURE, value(post.signature)?);
    if let Some(sequence) = post.sequence {
        headers.insert(SEQUENCE, HeaderValue::from(sequence));
    }
    let own = headers.keys().cloned().chain([SEQUENCE]).collect::<Vec<_>>();
    for (name, text) in &post.headers {
        // They were checked when they were given; one that can't be sent doesn't hold up a delivery.
        let (Ok(name), Ok(text)) = (name.parse::<HeaderName>(), HeaderValue::from_str(text)) else { continue };
        if !own.contains(&name) && !OF_THE_CONNECTION.contains(&name.as_str()) {
            headers.append(name, text);
        }
    }
    Ok(headers)
}

/// The beginning of a body as text, cut between characters; and whether there is more.
fn text_of(bytes: &[u8]) -> (String, bool) {
    let kept = &bytes[..bytes.len().min(ANSWER_BYTES_MAX)];
    let cut = kept.len() < bytes.len();
    let kept = match str::from_utf8(kept) {
        // A character that the cut went through.
        Err(error) if cut && error.error_len().is_none() => &kept[..error.valid_up_to()],
        _ => kept,
    };
    let mut text = String::from_utf8_lossy(kept).into_owned();
    // What replaces a byte is longer than the byte.
    let longer = text.len() > ANSWER_BYTES_MAX;
    if longer {
        let boundary = (0..=ANSWER_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(boundary.unwrap_or_default());
    }
    (text, cut || longer)
}
