//! What every request goes through: bounds on its head, a place among those in flight, an id; and what every answer
//! gets: that id, the trace context, a line in the metrics.

use std::{
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, HttpBody},
    http::{Method, Request, StatusCode},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use tower::ServiceExt;
use tracing::{Instrument, debug, error_span, field::Empty};

use super::{
    large::{self, LargeAnswers},
    request_id::{self, REQUEST_ID, TRACEPARENT},
};
use crate::{
    api::{App, Operations, call::Context, idempotency::begin::REPLAYED, problem::Problem, webhooks},
    bounds::{DEADLINE_MS_MAX, TARGET_BYTES_MAX},
};

/// Answers requests, whatever connection they come on.
#[derive(Clone)]
pub struct Edge {
    app: App,
    router: Router,
    in_flight: Arc<AtomicU32>,
    large: LargeAnswers,
}

impl Edge {
    pub fn new(app: App) -> Edge {
        let router = Operations::new(app.clone()).router();
        let large = LargeAnswers::new(&app);
        Edge { app, router, in_flight: Arc::default(), large }
    }

    pub fn app(&self) -> &App {
        &self.app
    }

    /// Answers one request. It never fails: whatever is wrong becomes an answer.
    pub async fn answer<B>(&self, client: IpAddr, request: Request<B>) -> Response
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let started = Instant::now();
        let request_id = request_id::of_request(request.headers());
        let traceparent = request_id::traceparent(request.headers());
        // At the level of errors, so that every line about the request has its id.
        let span = error_span!("request", request_id = request_id.to_str().unwrap_or_default(), token = Empty);
        debug!(parent: &span, method = %request.method(), path = request.uri().path(), "came in");
        let context = Arc::new(Context {
            client,
            operation: OnceLock::new(),
            bound_to: OnceLock::new(),
            deadline: OnceLock::new(),
        });

        let is_webhooks = webhooks::is_webhooks(request.uri().path());
        let mut response = self.route(request, &context).instrument(span.clone()).await;
        if is_webhooks {
            response = webhooks::rewrite(response);
        }

        let (status, micros) = (response.status().as_u16(), started.elapsed().as_micros() as u64);
        debug!(parent: &span, status, micros, "answered");
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, request_id);
        if let Some(traceparent) = traceparent {
            headers.insert(TRACEPARENT, traceparent);
        }
        self.app.metrics.answered(context.operation.get(), response.status(), started.elapsed());
        response
    }

    async fn route<B>(&self, request: Request<B>, context: &Arc<Context>) -> Response
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        if let Err(problem) = self.check_head(&request) {
            return problem.into_response();
        }
        // An orchestrator must not take an overloaded node for a dead one.
        let always = matches!(*request.method(), Method::GET | Method::HEAD)
            && matches!(request.uri().path(), "/livez" | "/readyz" | "/metrics");
        let max = if always { u32::MAX } else { self.app.http.max_in_flight };
        let Some(_place) = Place::take(&self.in_flight, max) else {
            self.app.metrics.refused_in_flight.inc();
            return Problem::unavailable("not applied: too many requests are in flight on this node").into_response();
        };
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(context.clone());
        let request = Request::from_parts(parts, Body::new(body));
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        match large::is_large(&response) {
            true => self.count(response, context).await,
            false => response,
        }
    }

    /// A large answer within the budget of them.
    async fn count(&self, response: Response, context: &Context) -> Response {
        let reads = context.operation.get().is_some_and(|operation| operation.method == "GET");
        if !reads && !response.headers().contains_key(REPLAYED) {
            // What was done is told.
            return self.large.count_if_room(response).await;
        }
        let default = || tokio::time::Instant::now() + Duration::from_millis(DEADLINE_MS_MAX);
        let until = context.deadline.get().copied().unwrap_or_else(default);
        match self.large.count_until(response, until).await {
            Some(response) => response,
            None => {
                self.app.metrics.refused_bodies.inc();
                Problem::unavailable("not applied: too many large answers are being sent by this node").into_response()
            }
        }
    }

    fn check_head<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        if target.len() > TARGET_BYTES_MAX {
            let detail = format!("the request target has {} bytes, {TARGET_BYTES_MAX} are allowed", target.len());
            return Err(Problem::invalid(detail).with_status(StatusCode::URI_TOO_LONG));
        }
        let headers = request.headers();
        let (count, count_max) = (headers.len(), self.app.http.max_headers as usize);
        // As on the wire: name, colon, space, value, line end.
        let bytes =
            headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() + target.len();
        let bytes_max = self.app.http.max_header_bytes as usize;
        if count > count_max || bytes > bytes_max {
            let detail =
                format!("the head has {count} headers and {bytes} bytes; {count_max} and {bytes_max} are allowed");
            return Err(Problem::invalid(detail).with_status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        }
        if !is_percent_encoded(request.uri().path().as_bytes()) {
            return Err(Problem::invalid("the path has a % that is not followed by two hex digits"));
        }
        Ok(())
    }
}

fn is_percent_encoded(path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'%');
    parts.next();
    parts.all(|part| part.get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)))
}

/// A place among the requests in flight, given back when dropped.
struct Place<'a>(&'a AtomicU32);

impl<'a> Place<'a> {
    fn take(in_flight: &'a AtomicU32, max: u32) -> Option<Place<'a>> {
        let place = Place(in_flight);
        (in_flight.fetch_add(1, Ordering::Relaxed) < max).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
