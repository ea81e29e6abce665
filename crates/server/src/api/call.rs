//! What every handler needs of its request: until when it may take, the body within its bounds, the path decoded. Each
//! refuses what it cannot read with a problem.

use std::{
    convert::Infallible,
    net::IpAddr,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    body::{Body, HttpBody},
    extract::{FromRequest, FromRequestParts, Path, Request, rejection::PathRejection},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use http_body_util::BodyExt;
use onceward_core::idempotency::Account;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use super::{
    App, Operation,
    problem::{Code, Problem},
};
use crate::bounds::{
    BODY_BYTES_UNCOUNTED, BODY_DISCARD_BYTES_MAX, BODY_DISCARD_TIMEOUT, BODY_READ_TIMEOUT, DEADLINE_MS_MAX,
};

/// What is known of a request before it is routed; lies in its extensions.
#[derive(Debug)]
pub struct Context {
    pub client: IpAddr,
    /// What it was routed to, once it was.
    pub operation: OnceLock<Operation>,
    /// The one account that its token is for, where there is one; set before its handler runs.
    pub bound_to: OnceLock<Account>,
    /// Until when its caller waits, once its handler has asked.
    pub deadline: OnceLock<Instant>,
}

/// Whose data a caller may see and touch.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    bound_to: Option<Account>,
}

impl Caller {
    pub fn new(bound_to: Option<Account>) -> Caller {
        Caller { bound_to }
    }

    /// Whether it may name this account. To be asked before anything else is looked at.
    pub fn check_account(&self, name: &str) -> Result<(), Problem> {
        match &self.bound_to {
            Some(account) if account.as_str() != name => {
                Err(Problem::new(Code::Forbidden, "this token is for another account"))
            }
            _ => Ok(()),
        }
    }

    /// Whether it may see what belongs to all accounts.
    pub fn check_unbound(&self) -> Result<(), Problem> {
        match self.bound_to {
            Some(_) => Err(Problem::new(Code::Forbidden, "this token is for one account alone")),
            None => Ok(()),
        }
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Caller, Infallible> {
        Ok(Caller::new(context(&parts.extensions).bound_to.get().cloned()))
    }
}

/// Until when a caller waits.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(pub Instant);

impl FromRequestParts<App> for Deadline {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Deadline, Problem> {
        let deadline = Instant::now() + patience(&parts.headers)?;
        Ok(Deadline(*context(&parts.extensions).deadline.get_or_init(|| deadline)))
    }
}

pub fn context(extensions: &axum::http::Extensions) -> Arc<Context> {
    extensions.get::<Arc<Context>>().expect("the edge puts it there before it routes").clone()
}

/// How long the caller waits: `Onceward-Timeout-Ms`, or the default, which is the most.
fn patience(headers: &HeaderMap) -> Result<Duration, Problem> {
    let mut values = headers.get_all("onceward-timeout-ms").iter();
    let Some(value) = values.next() else { return Ok(Duration::from_millis(DEADLINE_MS_MAX)) };
    let text = value.to_str().unwrap_or_default();
    // `parse` would take a sign, too.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(ms) if digits && values.next().is_none() && (1..=DEADLINE_MS_MAX).contains(&ms) => {
            Ok(Duration::from_millis(ms))
        }
        _ => Err(Problem::invalid(format!("Onceward-Timeout-Ms must be one whole number from 1 to {DEADLINE_MS_MAX}"))),
    }
}

/// A JSON body, not yet parsed. A large one is counted in the node's budget of them for as long as its bytes live.
pub struct JsonBody(pub Bytes);

impl FromRequest<App> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<JsonBody, Problem> {
        let CountedBody { bytes, room } = CountedBody::from_request(request, app).await?;
        Ok(JsonBody(match room {
            Some(room) => counted(bytes, room),
            None => bytes,
        }))
    }
}

/// As [`JsonBody`], for a handler that lets go of the bytes while what it read from them still takes as much.
pub struct CountedBody {
    pub bytes: Bytes,
    /// To be held as long as anything of the body is in memory.
    pub room: Option<OwnedSemaphorePermit>,
}

impl FromRequest<App> for CountedBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<CountedBody, Problem> {
        require_json(request.headers())?;
        let max =
            context(request.extensions()).operation.get().expect("set when the request was routed").body_bytes_max;
        read(request.into_body(), max, app).await
    }
}

fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let value = headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or_default());
    // The one form that nearly all clients send, without looking closer.
    if value == "application/json" {
        return Ok(());
    }
    let mut parts = value.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|media| media.eq_ignore_ascii_case("application/json"));
    let is_utf8 = parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.eq_ignore_ascii_case("charset") => {
            value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    });
    if is_json && is_utf8 {
        return Ok(());
    }
    let found = if value.is_empty() { "is missing".to_owned() } else { format!("is {value:?}") };
    Err(Problem::invalid(format!("Content-Type {found}; it must be application/json in UTF-8"))
        .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

/// Reads a body of at most `max` bytes.
async fn read(body: Body, max: usize, app: &App) -> Result<CountedBody, Problem> {
    let mut reading = pin!(read_untimed(body, max, app));
    // A small body arrives together with its head: no timer is made for it.
    if let Some(read) = reading.as_mut().now_or_never() {
        return read;
    }
    timeout(BODY_READ_TIMEOUT, reading).await.unwrap_or_else(|_| {
        let detail = format!("the body did not arrive within {} s", BODY_READ_TIMEOUT.as_secs());
        Err(Problem::invalid(detail).with_status(StatusCode::REQUEST_TIMEOUT))
    })
}

async fn read_untimed(mut body: Body, max: usize, app: &App) -> Result<CountedBody, Problem> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut room = None;
    let expected = body.size_hint().exact().map_or(0, |bytes| bytes.min(max as u64) as usize);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::invalid("the body broke off before its end"))?;
        // Trailers are read over.
        let Ok(data) = frame.into_data() else { continue };
        let bytes = first.len() + rest.len() + data.len();
        if bytes > max {
            discard(body).await;
            return Err(Problem::new(Code::TooLarge, format!("the body is over {max} bytes; nothing was done")));
        }
        if !count(&app.buffered, &mut room, bytes) {
            app.metrics.refused_bodies.inc();
            drop((first, rest, room));
            discard(body).await;
            return Err(Problem::unavailable("not applied: too many large bodies are in flight on this node"));
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                // Once, as growing would take twice what is counted.
                rest.reserve(expected);
                rest.extend_from_slice(&first);
                first = Bytes::new();
            }
            rest.extend_from_slice(&data);
        }
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(CountedBody { bytes, room })
}

/// These bytes, counted in the budget of large bodies for as long as they live.
pub fn counted(bytes: Bytes, room: OwnedSemaphorePermit) -> Bytes {
    Bytes::from_owner(Counted { bytes, _room: room })
}

struct Counted {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Counts a body that has grown to `bytes`. False: there is no room for it.
fn count(budget: &Arc<Semaphore>, room: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> bool {
    if bytes <= BODY_BYTES_UNCOUNTED {
        return true;
    }
    let more = bytes - room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let more = u32::try_from(more).expect("settings bound bodies to a few megabytes");
    let Ok(permit) = budget.clone().try_acquire_many_owned(more) else { return false };
    match room {
        Some(room) => room.merge(permit),
        None => *room = Some(permit),
    }
    true
}

/// Reads on over the limit and forgets it, within bounds: a connection closed while the client still sends would be
/// reset, and the answer lost.
async fn discard(mut body: Body) {
    let discarding = async {
        let mut discarded = 0;
        while let Some(Ok(frame)) = body.frame().await {
            discarded += frame.data_ref().map_or(0, Bytes::len);
            if discarded > BODY_DISCARD_BYTES_MAX {
                break;
            }
        }
    };
    // Whichever ends it, the answer is the same.
    let _ = timeout(BODY_DISCARD_TIMEOUT, discarding).await;
}

/// The decoded parameters of the path.
pub struct PathSegments<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for PathSegments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<PathSegments<T>, Problem> {
        match Path::<T>::from_request_parts(parts, app).await {
            Ok(Path(segments)) => Ok(PathSegments(segments)),
            Err(PathRejection::FailedToDeserializePathParams(error)) => Err(Problem::invalid(error.body_text())),
            Err(_) => Err(Problem::invalid("the path cannot be read")),
        }
    }
}
