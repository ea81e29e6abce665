//! What the handlers of webhooks need of a request: what its path names, within what its caller may touch, its body, and
//! the identity under which a repeated POST is known again.

use axum::{
    extract::{FromRequest, FromRequestParts, RawPathParams, Request},
    http::{HeaderMap, HeaderName, Method, Uri, request::Parts},
};
use bytes::Bytes;
use onceward_core::{
    idempotency::Key,
    webhooks::{
        Action, AppRef, DeliveryAttemptId, EndpointRef, MessageRef, Missing, Name, RequestKey, WebhookAnswer,
        WebhookQuery, WebhookReply,
    },
};
use onceward_shard::{ServiceError, WebhookCall};
use sha2::{Digest, Sha256};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tracing::error;

use super::{missing, refused, unprocessable};
use crate::api::{
    App,
    call::{Caller, CountedBody, Deadline},
    problem::{Place, Problem},
};

pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Of requests about what belongs to the cluster. They meet no application's, which live on other shards.
const CLUSTER_SCOPE: &str = "operational-webhook";
pub const EVENT_TYPE_SCOPE: &str = "event-type";

/// Whose endpoints or messages a path is about: an application that the caller may touch, or the cluster.
pub struct Owner(pub AppRef);

impl Owner {
    pub const SEGMENT: &str = "app_id";

    /// Within which `idempotency-key`s are told apart.
    pub fn scope(&self) -> String {
        match &self.0 {
            AppRef::Id(id) => id.to_string(),
            AppRef::Uid(uid) => uid.as_str().to_owned(),
            AppRef::Operational => CLUSTER_SCOPE.to_owned(),
        }
    }
}

impl FromRequestParts<App> for Owner {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Owner, Problem> {
        let Some(text) = segment(parts, app, Owner::SEGMENT).await? else { return Ok(Owner(AppRef::Operational)) };
        let parsed = AppRef::parse(&text);
        let Ok(caller) = Caller::from_request_parts(parts, app).await;
        // Named as its account is, or not at all: without a look at the application.
        if caller.check_account(&text).is_err() {
            let Deadline(deadline) = Deadline::from_request_parts(parts, app).await?;
            check_owner(app, &caller, parsed.as_ref().ok(), deadline).await?;
        }
        parsed.map(Owner).map_err(|error| unprocessable(Place::Path, Owner::SEGMENT, error.to_string()))
    }
}

/// Whether an application that a path names by its id is the account that the caller's token is for. Whoever may not
/// touch it isn't told whether it is there.
async fn check_owner(app: &App, caller: &Caller, named: Option<&AppRef>, deadline: Instant) -> Result<(), Problem> {
    let account = match named {
        Some(AppRef::Id(id)) => {
            let query = WebhookQuery::App { app: AppRef::Id(*id) };
            match app.service.webhook_query(query, deadline).await? {
                WebhookAnswer::App(found) => found.account(),
                _ => id.to_string(),
            }
        }
        Some(AppRef::Uid(uid)) => uid.as_str().to_owned(),
        Some(AppRef::Operational) | None => String::new(),
    };
    caller.check_account(&account)
}

/// A name in a path.
pub trait Segment: Sized {
    const NAME: &'static str;

    fn parse(text: &str) -> Result<Self, Problem>;
}

impl Segment for EndpointRef {
    const NAME: &'static str = "endpoint_id";

    fn parse(text: &str) -> Result<EndpointRef, Problem> {
        EndpointRef::parse(text).map_err(|error| unprocessable(Place::Path, Self::NAME, error.to_string()))
    }
}

impl Segment for MessageRef {
    const NAME: &'static str = "msg_id";

    fn parse(text: &str) -> Result<MessageRef, Problem> {
        MessageRef::parse(text).map_err(|error| unprocessable(Place::Path, Self::NAME, error.to_string()))
    }
}

impl Segment for DeliveryAttemptId {
    const NAME: &'static str = "attempt_id";

    fn parse(text: &str) -> Result<DeliveryAttemptId, Problem> {
        DeliveryAttemptId::parse(text).ok_or_else(|| missing(Missing::Attempt))
    }
}

impl Segment for Name {
    const NAME: &'static str = "event_type_name";

    fn parse(text: &str) -> Result<Name, Problem> {
        Name::parse(text).map_err(|error| unprocessable(Place::Path, Self::NAME, error.to_string()))
    }
}

/// What a path names.
pub struct At<T>(pub T);

impl<T: Segment> FromRequestParts<App> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<At<T>, Problem> {
        let text = segment(parts, app, T::NAME).await?.expect("the operation's path has it");
        T::parse(&text).map(At)
    }
}

async fn segment(parts: &mut Parts, app: &App, name: &str) -> Result<Option<String>, Problem> {
    let segments = RawPathParams::from_request_parts(parts, app).await;
    let segments = segments.map_err(|_| Problem::invalid("the path cannot be read").in_place(Place::Path))?;
    Ok(segments.iter().find(|(found, _)| *found == name).map(|(_, text)| text.to_owned()))
}

/// The body of a call that changes something, not yet parsed, and what it is known by.
pub struct Call {
    pub body: Bytes,
    /// Held as long as anything of the body is in memory.
    _room: Option<OwnedSemaphorePermit>,
    key: Option<Key>,
    fingerprint: [u8; 32],
}

impl Call {
    /// By what it is known again: of a POST that has an `idempotency-key`.
    pub fn request(&self, scope: impl Into<String>) -> Option<RequestKey> {
        let key = self.key.clone()?;
        Some(RequestKey { scope: scope.into(), key, fingerprint: self.fingerprint })
    }
}

impl FromRequest<App> for Call {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Call, Problem> {
        let key = match *request.method() {
            Method::POST => idempotency_key(request.headers())?,
            _ => None,
        };
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let CountedBody { bytes: body, room: _room } = CountedBody::from_request(request, app).await?;
        let fingerprint = if key.is_some() { fingerprint(&method, &uri, &body) } else { [0; 32] };
        Ok(Call { body, _room, key, fingerprint })
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<Key>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let wrong = |message: String| unprocessable(Place::Header, IDEMPOTENCY_KEY.as_str(), message);
    if values.next().is_some() {
        return Err(wrong("is there twice".to_owned()));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| wrong("must be UTF-8".to_owned()))?;
    Key::parse(text).map(Some).map_err(|error| wrong(error.to_string()))
}

/// Each part behind its length, so that no two requests are alike.
fn fingerprint(method: &Method, uri: &Uri, body: &[u8]) -> [u8; 32] {
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    let mut digest = Sha256::new();
    for part in [method.as_str().as_bytes(), target.as_bytes(), body] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

/// Makes a change. What was refused is a problem.
pub async fn change(
    app: &App,
    action: Action,
    request: Option<RequestKey>,
    deadline: Instant,
) -> Result<WebhookReply, Problem> {
    match app.service.webhook(WebhookCall { action, request }, deadline).await? {
        WebhookReply::Refused(refusal) => Err(refused(refusal)),
        reply => Ok(reply),
    }
}

/// Asks. What was not found is a problem.
pub async fn ask(app: &App, query: WebhookQuery, deadline: Instant) -> Result<WebhookAnswer, Problem> {
    match app.service.webhook_query(query, deadline).await? {
        WebhookAnswer::NotFound(what) => Err(missing(what)),
        answer => Ok(answer),
    }
}

/// An answer of another kind than was asked for: a bug of the node, after which nobody knows what was done. What it holds
/// is not logged, as it may be a secret.
pub fn unexpected() -> Problem {
    error!("a call of webhooks was answered by another's answer");
    ServiceError::Unknown.into()
}
