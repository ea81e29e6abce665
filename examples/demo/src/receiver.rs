//! A receiver of webhooks as a customer writes one: verifies each delivery, takes each event once, and knows by the
//! sequence whether it has all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde_json::Value;
use standardwebhooks::Webhook;
use tokio::{net::TcpListener, task::AbortHandle};

pub struct Receiver {
    url: String,
    inbox: Arc<Mutex<Inbox>>,
    serving: AbortHandle,
}

#[derive(Default)]
pub struct Inbox {
    /// Without it nothing can be verified, and nothing is taken.
    webhook: Option<Webhook>,
    down: bool,
    /// Message ids that were taken.
    seen: BTreeSet<String>,
    /// What was taken, by sequence.
    pub events: BTreeMap<u64, Value>,
    /// Deliveries that were answered 500 while it was down.
    pub failed: usize,
    /// Deliveries of messages that it had already.
    pub repeated: usize,
    /// Deliveries that were not signed for it.
    pub forged: usize,
}

impl Receiver {
    pub async fn start() -> Result<Receiver> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/webhooks", listener.local_addr()?);
        let inbox = Arc::<Mutex<Inbox>>::default();
        let routes = Router::new().route("/webhooks", post(receive)).with_state(inbox.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await }).abort_handle();
        Ok(Receiver { url, inbox, serving })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn set_secret(&self, secret: &str) -> Result<()> {
        self.inbox().webhook = Some(Webhook::new(secret)?);
        Ok(())
    }

    /// From now on it answers 500, or works again.
    pub fn set_down(&self, down: bool) {
        self.inbox().down = down;
    }

    pub fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something is true of what came; says how long that took.
    pub async fn wait(&self, at_most: Duration, came: impl Fn(&Inbox) -> bool) -> Result<Duration> {
        let began = Instant::now();
        while !came(&self.inbox()) {
            if began.elapsed() > at_most {
                let inbox = self.inbox();
                bail!("after {at_most:?} it has {} events, and failed {}", inbox.events.len(), inbox.failed);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(began.elapsed())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn receive(State(inbox): State<Arc<Mutex<Inbox>>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let mut inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
    if inbox.down {
        inbox.failed += 1;
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    inbox.take(&headers, &body).unwrap_or_else(|| {
        inbox.forged += 1;
        StatusCode::UNAUTHORIZED
    })
}

impl Inbox {
    /// `None`: it is not what it says it is.
    fn take(&mut self, headers: &HeaderMap, body: &[u8]) -> Option<StatusCode> {
        self.webhook.as_ref()?.verify(body, headers).ok()?;
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let (id, sequence) = (text("webhook-id")?, text("onceward-sequence")?.parse().ok()?);
        if self.seen.insert(id.to_owned()) {
            self.events.insert(sequence, serde_json::from_slice(body).ok()?);
        } else {
            self.repeated += 1;
        }
        Some(StatusCode::NO_CONTENT)
    }
}
