//! Webhooks: messages, whom they go to, and what came of it.
//!
//! Publishing fans a message out, in its entry, to the endpoints that match it at that moment: each gets a delivery that
//! is due, under its next sequence number. The dispatcher of the shard's leader works deliveries off and reports outcomes
//! as commands. An application is an account; the paths name it by id or by uid.

mod app;
pub mod bounds;
mod command;
mod desk;
mod dispatch;
mod endpoint;
mod event_type;
mod expire;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod id;
mod message;
mod names;
mod operational;
mod outcome;
mod query;
mod read;
mod removable;
mod rows;
mod secret;
mod subscribers;

pub use app::{AppPatch, AppSpec, AppView, CreateApp, PatchApp, PutApp};
pub(crate) use command::Stamp;
pub use command::{Action, Refusal, RequestKey, WebhookCommand, WebhookReply};
pub(crate) use desk::Desk;
pub use dispatch::{DueItem, EndpointKey, PendingDelivery, Target, due, pending_delivery, pending_endpoints, target};
pub use endpoint::{
    CreateEndpoint, DeleteEndpoint, EndpointPatch, EndpointSpec, EndpointView, Headers, PatchEndpoint, PutEndpoint,
    RotateSecret, SetHeaders,
};
pub use event_type::{EventTypeChange, EventTypePatch, EventTypeSpec, EventTypeView};
pub use id::{AppId, DeliveryAttemptId, EndpointId, Id, MessageId, Nonce};
pub(crate) use message::Earlier;
pub use message::{MessageView, NewMessage, Publish};
pub use names::{AppRef, EndpointRef, LabelError, MessageRef, Name, NameError, check_channel, check_tag};
pub use operational::{CopyOperational, OperationalEndpoint};
pub use outcome::{AttemptStatus, AttemptView, DeliveryStatus, Outcome, ReceiverAnswer, RecordOutcomes, Verdict};
pub use query::{AttemptFilter, DeliveryView, MessageFilter, Missing, Page, PageIn, WebhookAnswer, WebhookQuery};
pub(crate) use read::answer;
pub use secret::{Secret, SecretLength};
pub(crate) use subscribers::Subscribers;
