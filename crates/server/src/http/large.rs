//! Large answers count in the node's budget of large bodies, from when they are built until their bytes are written or
//! their connection is gone: slow readers cannot make a node hold more of them than it has room for.

use std::sync::Arc;

use axum::{
    body::{Body, HttpBody},
    response::Response,
};
use http_body_util::{BodyExt, Collected};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use crate::{
    api::{App, call::counted},
    bounds::BODY_BYTES_UNCOUNTED,
};

pub fn is_large(response: &Response) -> bool {
    response.body().size_hint().lower() > BODY_BYTES_UNCOUNTED as u64
}

#[derive(Clone)]
pub struct LargeAnswers {
    budget: Arc<Semaphore>,
    bytes_max: u32,
    /// Whoever waits for room holds its answer already.
    waiting: Arc<Semaphore>,
}

impl LargeAnswers {
    pub fn new(app: &App) -> LargeAnswers {
        let bytes_max = app.http.max_buffered_bytes;
        let waiting = Arc::new(Semaphore::new(bytes_max as usize / 2));
        LargeAnswers { budget: app.buffered.clone(), bytes_max, waiting }
    }

    /// The answer, counted as soon as there is room, which may take until then; `None` if there is none.
    pub async fn count_until(&self, response: Response, until: Instant) -> Option<Response> {
        let bytes = self.bytes(&response);
        if let Ok(room) = self.budget.clone().try_acquire_many_owned(bytes) {
            return Some(hold(response, room).await);
        }
        let _place = self.waiting.try_acquire_many(bytes).ok()?;
        let room = timeout_at(until, self.budget.clone().acquire_many_owned(bytes)).await.ok()?.ok()?;
        Some(hold(response, room).await)
    }

    /// The answer, counted if there is room.
    pub async fn count_if_room(&self, response: Response) -> Response {
        match self.budget.clone().try_acquire_many_owned(self.bytes(&response)) {
            Ok(room) => hold(response, room).await,
            Err(_) => response,
        }
    }

    /// What it takes of the budget. One that is larger goes alone.
    fn bytes(&self, response: &Response) -> u32 {
        u32::try_from(response.body().size_hint().lower()).unwrap_or(u32::MAX).min(self.bytes_max)
    }
}

/// Ties the room to the bytes: hyper drops a body as soon as it has its last frame, long before that is written.
async fn hold(response: Response, room: OwnedSemaphorePermit) -> Response {
    let (parts, body) = response.into_parts();
    // It lies in memory as a whole: this neither waits, nor fails, nor copies.
    let bytes = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    Response::from_parts(parts, Body::from(counted(bytes, room)))
}
