//! A call that changes something of webhooks, as it goes through the log, and what it is answered.
//!
//! A call with an `idempotency-key` leaves its answer beside its effects, in the same entry: repeated, it is answered
//! alike and changes nothing.

use serde::{Deserialize, Serialize};

use super::{
    app::{self, AppView, CreateApp, PatchApp, PutApp},
    bounds::REQUEST_TTL_US,
    desk::Desk,
    endpoint::{CreateEndpoint, DeleteEndpoint, EndpointView, PatchEndpoint, PutEndpoint, RotateSecret, SetHeaders},
    event_type::{EventTypeChange, EventTypeView},
    id::Nonce,
    message::{MessageView, Publish},
    names::AppRef,
    rows::RequestRow,
};
use crate::{
    codec::keys,
    idempotency::Key,
    rows::{RowsError, read},
};

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
    /// Who may know the answer, where no application that is there says it: keys of different scopes never meet.
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
    /// Deleted, set or rotated.
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

impl WebhookCommand {
    pub(crate) fn apply(&self, desk: &mut Desk<'_>) -> Result<WebhookReply, RowsError> {
        let Some(request) = &self.request else { return self.act(desk) };
        let row = keys::request(&self.scope(desk, request)?, request.key.as_str());
        if let Some(known) = read::<RequestRow>(desk.rows, &row)?.filter(|known| desk.now < known.expires_at) {
            return Ok(if known.fingerprint == request.fingerprint {
                known.reply
            } else {
                WebhookReply::Refused(Refusal::RequestMismatch)
            });
        }
        let reply = self.act(desk)?;
        // What was refused changed nothing, and may be asked again.
        if !matches!(reply, WebhookReply::Refused(_)) {
            let expires_at = desk.now.plus_us(REQUEST_TTL_US);
            desk.file(&row, expires_at);
            desk.put(row, &RequestRow { fingerprint: request.fingerprint, expires_at, reply: reply.clone() });
        }
        Ok(reply)
    }

    /// Of what is made within an application: the application itself, by whatever name it was called. The answers of one
    /// that was deleted are none for its successor of the same uid.
    fn scope(&self, desk: &Desk<'_>, request: &RequestKey) -> Result<String, RowsError> {
        let within = match &self.action {
            Action::CreateEndpoint(CreateEndpoint { app, .. })
            | Action::RotateSecret(RotateSecret { app, .. })
            | Action::Publish(Publish { app, .. }) => desk.find_app(app)?,
            _ => None,
        };
        Ok(within.map_or_else(|| request.scope.clone(), |app| app.id.to_string()))
    }

    fn act(&self, desk: &mut Desk<'_>) -> Result<WebhookReply, RowsError> {
        let stamp = Stamp { nonce: self.nonce, wall_ms: self.wall_ms };
        let done = match &self.action {
            Action::CreateApp(create) => create.apply(desk, stamp)?,
            Action::PutApp(put) => put.apply(desk, stamp)?,
            Action::PatchApp(patch) => patch.apply(desk, stamp)?,
            Action::DeleteApp { app } => app::delete(desk, app)?,
            Action::CreateEndpoint(create) => create.apply(desk, stamp)?,
            Action::PutEndpoint(put) => put.apply(desk, stamp)?,
            Action::PatchEndpoint(patch) => patch.apply(desk, stamp)?,
            Action::DeleteEndpoint(delete) => delete.apply(desk)?,
            Action::SetHeaders(set) => set.apply(desk, stamp)?,
            Action::RotateSecret(rotate) => rotate.apply(desk, stamp)?,
            Action::Publish(publish) => publish.apply(desk, stamp)?,
            Action::EventType(change) => change.apply(desk, stamp)?,
        };
        Ok(done.unwrap_or_else(WebhookReply::Refused))
    }
}

impl Action {
    /// The application that it is about; `None`: event types, and an application that is yet to be made.
    pub fn app(&self) -> Option<&AppRef> {
        Some(match self {
            Action::CreateApp(_) | Action::EventType(_) => return None,
            Action::PutApp(PutApp { app, .. })
            | Action::PatchApp(PatchApp { app, .. })
            | Action::DeleteApp { app }
            | Action::CreateEndpoint(CreateEndpoint { app, .. })
            | Action::PutEndpoint(PutEndpoint { app, .. })
            | Action::PatchEndpoint(PatchEndpoint { app, .. })
            | Action::DeleteEndpoint(DeleteEndpoint { app, .. })
            | Action::SetHeaders(SetHeaders { app, .. })
            | Action::RotateSecret(RotateSecret { app, .. })
            | Action::Publish(Publish { app, .. }) => app,
        })
    }

    /// Whether it leaves less than there was.
    pub fn is_removal(&self) -> bool {
        matches!(
            self,
            Action::DeleteApp { .. } | Action::DeleteEndpoint(_) | Action::EventType(EventTypeChange::Delete { .. })
        )
    }

    /// Whether it belongs on the system shard.
    pub fn is_of_system(&self) -> bool {
        matches!(self, Action::EventType(_)) || self.app() == Some(&AppRef::Operational)
    }
}

/// What a command brings for the rows that it writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub nonce: Nonce,
    /// Display time.
    pub wall_ms: u64,
}

/// What a change came to, or why there was none.
pub(crate) type Done<T = WebhookReply> = Result<Result<T, Refusal>, RowsError>;
