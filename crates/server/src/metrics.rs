//! Metrics in Prometheus' text format, named `onceward_*`: what the API answered, and the node's own counters.

use std::{fmt, sync::OnceLock, time::Duration};

use axum::http::StatusCode;
use onceward_shard::{CheckAnswer, NodeStats};
use prometheus_client::{
    encoding::{
        EncodeLabelSet, EncodeLabelValue, LabelValueEncoder,
        text::{encode_eof, encode_registry},
    },
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use crate::{
    api::{Operation, limits::check::degraded_name},
    dispatch::Deliveries,
    dispatch_metrics, node_metrics,
};

/// Requests that reached no operation have this path and method.
const NO_OPERATION: &str = "none";

/// Of half-milliseconds on a quiet node up to the default deadline.
const LATENCY_BOUNDS_S: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    method: &'static str,
    path: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    path: &'static str,
    class: Class,
}

/// `2xx`, `4xx`, `5xx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Class(u16);

impl EncodeLabelValue for Class {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), fmt::Error> {
        match self.0 {
            2 => "2xx",
            4 => "4xx",
            5 => "5xx",
            _ => "other",
        }
        .encode(encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DegradedLabels {
    degraded: &'static str,
}

/// What the API counts.
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<OperationLabels, Histogram>,
    checks: Family<OutcomeLabels, Counter>,
    degraded: Family<DegradedLabels, Counter>,
    begins: Family<OutcomeLabels, Counter>,
    completions: Family<OutcomeLabels, Counter>,
    messages: Family<OutcomeLabels, Counter>,
    pub refused_in_flight: Counter,
    pub refused_bodies: Counter,
    pub refused_connections: Counter,
    /// Those of the node behind the API.
    pub deliveries: OnceLock<Deliveries>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("onceward");
        let requests = Family::<RequestLabels, Counter>::default();
        registry.register("http_requests", "Requests answered, by operation and status class", requests.clone());
        let durations = Family::<OperationLabels, Histogram>::new_with_constructor(|| Histogram::new(LATENCY_BOUNDS_S));
        registry.register(
            "http_request_duration_seconds",
            "From a request's head to its answer, by operation",
            durations.clone(),
        );
        let checks = Family::<OutcomeLabels, Counter>::default();
        registry.register("checks", "Decisions on limits, by outcome", checks.clone());
        let degraded = Family::<DegradedLabels, Counter>::default();
        registry.register(
            "checks_degraded",
            "Items of checks that on_unavailable answered, by its answer",
            degraded.clone(),
        );
        let begins = Family::<OutcomeLabels, Counter>::default();
        registry.register("idempotency_begins", "Answers to begin, by outcome", begins.clone());
        let completions = Family::<OutcomeLabels, Counter>::default();
        registry.register("idempotency_completions", "Answers to complete, by outcome", completions.clone());
        let messages = Family::<OutcomeLabels, Counter>::default();
        registry.register(
            "webhook_messages",
            "Answers to publishing a message by itself, by outcome",
            messages.clone(),
        );
        let refused_in_flight = Counter::default();
        registry.register(
            "http_refused_in_flight",
            "Requests refused as too many were in flight",
            refused_in_flight.clone(),
        );
        let refused_bodies = Counter::default();
        registry.register(
            "http_refused_bodies",
            "Requests refused as too many large bodies were in memory",
            refused_bodies.clone(),
        );
        let refused_connections = Counter::default();
        registry.register(
            "http_refused_connections",
            "Connections refused as too many were open",
            refused_connections.clone(),
        );
        Metrics {
            registry,
            requests,
            durations,
            checks,
            degraded,
            begins,
            completions,
            messages,
            refused_in_flight,
            refused_bodies,
            refused_connections,
            deliveries: OnceLock::new(),
        }
    }
}

impl Metrics {
    /// Counts an answered request; `operation` is what it was routed to.
    pub fn answered(&self, operation: Option<&Operation>, status: StatusCode, took: Duration) {
        let (method, path) =
            operation.map_or((NO_OPERATION, NO_OPERATION), |operation| (operation.method, operation.path));
        self.requests.get_or_create(&RequestLabels { method, path, class: Class(status.as_u16() / 100) }).inc();
        self.durations.get_or_create(&OperationLabels { method, path }).observe(took.as_secs_f64());
    }

    /// Counts a decision.
    pub fn checked(&self, answer: &CheckAnswer) {
        let outcome = if answer.decision.allowed { "allowed" } else { "denied" };
        self.checks.get_or_create(&OutcomeLabels { outcome }).inc();
        for degraded in answer.degraded.iter().flatten() {
            self.degraded.get_or_create(&DegradedLabels { degraded: degraded_name(*degraded) }).inc();
        }
    }

    /// Counts an answer to `begin`.
    pub fn begun(&self, outcome: &'static str) {
        self.begins.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// Counts an answer to `complete`.
    pub fn completed(&self, outcome: &'static str) {
        self.completions.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// Counts an answer to publishing a message.
    pub fn published(&self, outcome: &'static str) {
        self.messages.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// Everything, as text.
    pub fn render(&self, node: &NodeStats) -> String {
        let dispatch = self.deliveries.get().map(Deliveries::stats).unwrap_or_default();
        let mut text = String::with_capacity(16 * 1024);
        let written = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &node_metrics::registry(node)))
            .and_then(|()| encode_registry(&mut text, &dispatch_metrics::registry(&dispatch)))
            .and_then(|()| encode_eof(&mut text));
        written.expect("a string takes all that is written");
        text
    }
}
