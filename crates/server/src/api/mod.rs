//! The HTTP API: which operations there are, what each needs of its caller, and how a request gets to its handler.
//!
//! In goes a request whose context the edge has read (see [`crate::http`]); out comes the answer. Nothing is decided
//! here that concerns limits, keys or messages: handlers check and translate, and call the [`Service`].

pub mod call;
pub mod cluster;
pub mod health;
pub mod idempotency;
pub mod instant;
pub mod json;
pub mod limits;
pub mod openapi;
pub mod policies;
pub mod problem;
pub mod webhooks;

use std::{ops::Deref, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    handler::Handler,
    http::{Method, Uri},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodFilter, on},
};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    auth::{Doorkeeper, Right},
    bounds::{
        COMPLETE_BODY_BYTES_MAX, LIMITS_BODY_BYTES_MAX, MESSAGE_BODY_BYTES_MAX, POLICY_BODY_BYTES_MAX,
        WEBHOOKS_BODY_BYTES_MAX,
    },
    metrics::Metrics,
    service::Service,
    settings::{HttpSettings, Settings, WebhookSettings},
};
use problem::{Code, Problem};
use webhooks::UrlGuard;

/// What all handlers share.
#[derive(Clone)]
pub struct App(Arc<Shared>);

pub struct Shared {
    pub service: Arc<dyn Service>,
    pub doorkeeper: Doorkeeper,
    pub metrics: Metrics,
    pub http: HttpSettings,
    pub webhooks: WebhookSettings,
    /// Judges the URLs of endpoints.
    pub url_guard: Arc<dyn UrlGuard>,
    /// How many bytes of large bodies there is still room for.
    pub buffered: Arc<Semaphore>,
    /// The node is on its way out: `/readyz` says so, and nobody waits for the outcome of a key any more.
    pub stopping: CancellationToken,
}

impl App {
    pub fn new(settings: &Settings, service: Arc<dyn Service>, url_guard: Arc<dyn UrlGuard>) -> App {
        App(Arc::new(Shared {
            service,
            doorkeeper: Doorkeeper::new(&settings.auth),
            metrics: Metrics::default(),
            http: settings.http.clone(),
            webhooks: settings.webhooks.clone(),
            url_guard,
            buffered: Arc::new(Semaphore::new(settings.http.max_buffered_bytes as usize)),
            stopping: CancellationToken::new(),
        }))
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// A method on a path, and what is needed to call it.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    pub method: &'static str,
    pub path: &'static str,
    pub right: Right,
    /// A larger body is refused.
    pub body_bytes_max: usize,
}

/// All operations, each stated once: whoever isn't here isn't reachable, and none is here without its right.
pub struct Operations {
    app: App,
    router: Router<App>,
    pub list: Vec<Operation>,
}

impl Operations {
    pub fn new(app: App) -> Operations {
        let small = LIMITS_BODY_BYTES_MAX.min(app.http.max_body_bytes as usize);
        let policy = POLICY_BODY_BYTES_MAX.min(app.http.max_body_bytes as usize);
        let complete = COMPLETE_BODY_BYTES_MAX.min(app.http.max_body_bytes as usize);
        Operations { app, router: Router::new(), list: Vec::new() }
            .add("GET", "/livez", Right::Open, 0, health::livez)
            .add("GET", "/readyz", Right::Open, 0, health::readyz)
            .add("GET", "/metrics", Right::Metrics, 0, health::metrics)
            .add("GET", "/openapi.json", Right::Use, 0, health::openapi)
            .add("GET", "/v1/cluster", Right::Use, 0, cluster::cluster)
            .add("POST", "/v1/cluster/nodes/{id}/replace", Right::Administer, 0, cluster::replace_node)
            .add("GET", "/v1/policies", Right::ReadPolicies, 0, policies::list_policies)
            .add("GET", "/v1/policies/{policy}", Right::ReadPolicies, 0, policies::get_policy)
            .add("PUT", "/v1/policies/{policy}", Right::Administer, policy, policies::put_policy)
            .add("DELETE", "/v1/policies/{policy}", Right::Administer, 0, policies::delete_policy)
            .add("POST", "/v1/limits/check", Right::Use, small, limits::check::check)
            .add("POST", "/v1/limits/refund", Right::Use, small, limits::refund::refund)
            .add("DELETE", "/v1/limits/{policy}/{key}", Right::Reset, 0, limits::reset::reset)
            .add("POST", "/v1/idempotency/begin", Right::Use, small, idempotency::begin::begin)
            .add("POST", "/v1/idempotency/complete", Right::Use, complete, idempotency::complete::complete)
            .add("POST", "/v1/idempotency/abandon", Right::Use, small, idempotency::abandon::abandon)
            .add("POST", "/v1/idempotency/extend", Right::Use, small, idempotency::extend::extend)
            .add("GET", "/v1/idempotency/{account}", Right::Use, 0, idempotency::list::list_keys)
            .add("GET", "/v1/idempotency/{account}/{key}", Right::Use, 0, idempotency::read::read_key)
            .add("DELETE", "/v1/idempotency/{account}/{key}", Right::Administer, 0, idempotency::delete::delete_key)
            .add_webhooks()
    }

    /// What Svix publishes.
    fn add_webhooks(self) -> Self {
        use webhooks::{app, attempt, delivery, event_type, health, message};
        let body = WEBHOOKS_BODY_BYTES_MAX.min(self.app.http.max_body_bytes as usize);
        let message = MESSAGE_BODY_BYTES_MAX.min(self.app.http.max_body_bytes as usize);
        self.add("GET", "/api/v1/health", Right::Open, 0, health::health)
            .add("GET", "/api/v1/app", Right::Use, 0, app::list_apps)
            .add("POST", "/api/v1/app", Right::Use, body, app::create_app)
            .add("GET", "/api/v1/app/{app_id}", Right::Use, 0, app::get_app)
            .add("PUT", "/api/v1/app/{app_id}", Right::Use, body, app::put_app)
            .add("PATCH", "/api/v1/app/{app_id}", Right::Use, body, app::patch_app)
            .add("DELETE", "/api/v1/app/{app_id}", Right::Use, 0, app::delete_app)
            .add_endpoints(Right::Use, &APP_ENDPOINTS)
            .add("GET", "/api/v1/app/{app_id}/msg", Right::Use, 0, message::list_messages)
            .add("POST", "/api/v1/app/{app_id}/msg", Right::Use, message, message::create_message)
            .add("GET", "/api/v1/app/{app_id}/msg/{msg_id}", Right::Use, 0, message::get_message)
            .add("GET", "/api/v1/app/{app_id}/msg/{msg_id}/endpoint", Right::Use, 0, delivery::list_deliveries)
            .add("GET", "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}", Right::Use, 0, attempt::get_attempt)
            .add("GET", "/api/v1/app/{app_id}/attempt/msg/{msg_id}", Right::Use, 0, attempt::list_attempts_of_message)
            .add(
                "GET",
                "/api/v1/app/{app_id}/attempt/endpoint/{endpoint_id}",
                Right::Use,
                0,
                attempt::list_attempts_of_endpoint,
            )
            .add("GET", "/api/v1/event-type", Right::Use, 0, event_type::list_event_types)
            .add("POST", "/api/v1/event-type", Right::Administer, body, event_type::create_event_type)
            .add("GET", "/api/v1/event-type/{event_type_name}", Right::Use, 0, event_type::get_event_type)
            .add("PUT", "/api/v1/event-type/{event_type_name}", Right::Administer, body, event_type::put_event_type)
            .add("PATCH", "/api/v1/event-type/{event_type_name}", Right::Administer, body, event_type::patch_event_type)
            .add("DELETE", "/api/v1/event-type/{event_type_name}", Right::Administer, 0, event_type::delete_event_type)
            .add_endpoints(Right::Administer, &OPERATIONAL_ENDPOINTS)
    }

    /// The operations on endpoints, which are those of an application, or of the cluster.
    fn add_endpoints(self, right: Right, paths: &[&'static str; 5]) -> Self {
        use webhooks::{endpoint, headers, secret};
        let body = WEBHOOKS_BODY_BYTES_MAX.min(self.app.http.max_body_bytes as usize);
        let [all, one, secret, rotate, headers] = *paths;
        self.add("GET", all, right, 0, endpoint::list_endpoints)
            .add("POST", all, right, body, endpoint::create_endpoint)
            .add("GET", one, right, 0, endpoint::get_endpoint)
            .add("PUT", one, right, body, endpoint::put_endpoint)
            .add("PATCH", one, right, body, endpoint::patch_endpoint)
            .add("DELETE", one, right, 0, endpoint::delete_endpoint)
            .add("GET", secret, right, 0, secret::get_secret)
            .add("POST", rotate, right, body, secret::rotate_secret)
            .add("GET", headers, right, 0, headers::get_headers)
            .add("PUT", headers, right, body, headers::put_headers)
            .add("PATCH", headers, right, body, headers::patch_headers)
    }

    fn add<H, T>(
        mut self,
        method: &'static str,
        path: &'static str,
        right: Right,
        body_bytes_max: usize,
        handler: H,
    ) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        let operation = Operation { method, path, right, body_bytes_max };
        let filter = Method::try_from(method).ok().and_then(|method| MethodFilter::try_from(method).ok());
        let filter = filter.expect("operations have methods that the router knows");
        let gate = from_fn_with_state(Gate { app: self.app.clone(), operation }, gate);
        self.router = self.router.route(path, on(filter, handler).route_layer(gate));
        self.list.push(operation);
        self
    }

    pub fn router(self) -> Router {
        self.router.fallback(unknown_path).method_not_allowed_fallback(unknown_method).with_state(self.app)
    }
}

/// All endpoints, one, its secret, its rotation, its headers.
const APP_ENDPOINTS: [&str; 5] = [
    "/api/v1/app/{app_id}/endpoint",
    "/api/v1/app/{app_id}/endpoint/{endpoint_id}",
    "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret",
    "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret/rotate",
    "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers",
];
/// The same of the cluster.
const OPERATIONAL_ENDPOINTS: [&str; 5] = [
    "/api/v1/operational-webhook/endpoint",
    "/api/v1/operational-webhook/endpoint/{endpoint_id}",
    "/api/v1/operational-webhook/endpoint/{endpoint_id}/secret",
    "/api/v1/operational-webhook/endpoint/{endpoint_id}/secret/rotate",
    "/api/v1/operational-webhook/endpoint/{endpoint_id}/headers",
];

/// Stands before an operation's handler.
#[derive(Clone)]
struct Gate {
    app: App,
    operation: Operation,
}

async fn gate(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let context = call::context(request.extensions());
    context.operation.set(gate.operation).expect("a request is routed once");
    match gate.app.doorkeeper.admit(request.headers(), context.client, gate.operation.right) {
        Ok(bound_to) => {
            if let Some(account) = bound_to {
                context.bound_to.set(account).expect("a request is routed once");
            }
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

async fn unknown_path(uri: Uri) -> Problem {
    let shown: String = uri.path().chars().take(128).collect();
    Problem::not_found(format!("there is nothing at {shown}; /openapi.json lists all paths"))
}

/// The router adds `Allow`.
async fn unknown_method(method: Method, uri: Uri) -> Problem {
    let (method, path): (String, String) =
        (method.as_str().chars().take(32).collect(), uri.path().chars().take(128).collect());
    Problem::new(Code::MethodNotAllowed, format!("{method} is not a method of {path}; the Allow header lists them"))
}
