//! A call that changes something of webhooks, as it goes through the log, and what it is answered.
//!
//! A call with an `idempotency-key` leaves its answer beside its effects, in the same entry: repeated, it is answered
//! alike and changes nothing.

use serde::{Deserialize, Serialize};

use super::{
    app::{AppView, CreateApp, PatchApp, PutApp},
    endpoint::{CreateEndpoint, DeleteEndpoint, EndpointView, PatchEndpoint, PutEndpoint, RotateSecret, SetHeaders},
    event_type::{EventTypeChange, EventTypeView},
    id::Nonce,
    message::{MessageView, Publish},
    names::AppRef,
};
use crate::idempotency::Key;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookCommand {
    pub action: Action,
    /// The call's `idempotency-key`.
    pub request: Option<RequestKey>,
    /// For the id that it makes.
    pub nonce: Nonce,
    /// Display time of the node that received the call.
    pub wall_ms: u64,
}

/// By what a repeated call is known again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestKey {
    /// Who may know the answer: keys of different scopes never meet.
    pub scope: String,
    pub key: Key,
    /// SHA-256 of the call: method, path and body.
    #[serde(with = "serde_bytes")]
    pub fingerprint: [u8; 32],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    CreateApp(CreateApp),
    PutApp(PutApp),
    PatchApp(PatchApp),
    DeleteApp {
        app: AppRef,
    },
    CreateEndpoint(CreateEndpoint),
    PutEndpoint(PutEndpoint),
    PatchEndpoint(PatchEndpoint),
    DeleteEndpoint(DeleteEndpoint),
    SetHeaders(SetHeaders),
    RotateSecret(RotateSecret),
    Publish(Publish),
    /// On the system shard.
    EventType(EventTypeChange),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WebhookReply {
    /// `created`: there was none before.
    App {
        app: AppView,
        created: bool,
    },
    Endpoint {
        endpoint: EndpointView,
        created: bool,
    },
    EventType {
        event_type: EventTypeView,
        created: bool,
    },
    /// Without its payload, which the caller has. `repeated`: it was published before, with the same content.
    Published {
        message: MessageView,
        repeated: bool,
    },
    /// Deleted, set or rotated; of operational endpoints with the revision that data shards are to reach.
    Done,
    Refused(Refusal),
}

/// Why a call changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    NoApp,
    NoEndpoint,
    NoEventType,
    /// Something of this uid, or name, is there already.
    Taken,
    /// An application's uid is fixed when it is made.
    UidFixed,
    /// An application has as many endpoints, or the cluster as many operational endpoints or event types, as it may.
    TooMany {
        max: u64,
    },
    /// So many headers, or bytes of them, are more than an endpoint may have.
    HeadersTooLarge,
    /// The secret was rotated so often that too many former ones are still good.
    TooManySecrets,
    /// The event id was published with other content.
    EventIdTaken,
    /// The `idempotency-key` was used for another call.
    RequestMismatch,
}
