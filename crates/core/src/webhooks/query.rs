//! What is read of webhooks, behind ReadIndex.

use serde::{Deserialize, Serialize};

use super::{
    app::AppView,
    endpoint::{EndpointView, Headers},
    event_type::EventTypeView,
    id::{DeliveryAttemptId, Id},
    message::MessageView,
    names::{AppRef, EndpointRef, MessageRef, Name},
    operational::CopyOperational,
    outcome::{AttemptStatus, AttemptView, DeliveryStatus},
    secret::Secret,
};
use crate::webhooks::id::EndpointId;

/// Where a page of a list begins and how much it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageIn<Cursor = Id> {
    /// Behind this one, or with `backwards` before it; `None`: from the beginning.
    pub cursor: Option<Cursor>,
    /// The page that ends before the cursor, still in the list's own order.
    pub backwards: bool,
    pub descending: bool,
    pub limit: u32,
}

/// `done`: nothing is behind it, in the direction that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub done: bool,
    /// The last row that was looked at, where that is not the last item's: the next page begins behind it.
    pub cursor: Option<Id>,
}

/// Which messages, or attempts of messages, are wanted. Times are display times.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageFilter {
    pub event_types: Option<Vec<Name>>,
    pub channel: Option<String>,
    pub tag: Option<String>,
    pub before_wall_ms: Option<u64>,
    pub after_wall_ms: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptFilter {
    pub message: MessageFilter,
    /// `Failed`: also those of what will be tried again.
    pub status: Option<AttemptStatus>,
    /// 1 … 5; 0: no answer came.
    pub status_code_class: Option<u8>,
    pub endpoint: Option<EndpointRef>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WebhookQuery {
    App {
        app: AppRef,
    },
    /// Of this shard; by age.
    Apps {
        page: PageIn,
    },
    Endpoint {
        app: AppRef,
        endpoint: EndpointRef,
    },
    Endpoints {
        app: AppRef,
        page: PageIn,
    },
    Secret {
        app: AppRef,
        endpoint: EndpointRef,
    },
    Headers {
        app: AppRef,
        endpoint: EndpointRef,
    },
    Message {
        app: AppRef,
        message: MessageRef,
        with_payload: bool,
    },
    Messages {
        app: AppRef,
        filter: MessageFilter,
        with_payload: bool,
        page: PageIn,
    },
    AttemptsOfMessage {
        app: AppRef,
        message: MessageRef,
        filter: AttemptFilter,
        page: PageIn,
    },
    AttemptsOfEndpoint {
        app: AppRef,
        endpoint: EndpointRef,
        filter: AttemptFilter,
        page: PageIn,
    },
    Attempt {
        app: AppRef,
        message: MessageRef,
        attempt: DeliveryAttemptId,
    },
    /// What stands of a message for each endpoint that it matched.
    Deliveries {
        app: AppRef,
        message: MessageRef,
        page: PageIn,
    },
    /// System shard.
    EventType {
        name: Name,
    },
    /// System shard, by name behind or before `cursor`.
    EventTypes {
        cursor: Option<Name>,
        backwards: bool,
        descending: bool,
        include_archived: bool,
        limit: u32,
    },
    /// System shard: all operational endpoints, to be copied.
    Operational,
    /// System shard: its revision of them. Data shard: that of its copy.
    OperationalRevision,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WebhookAnswer {
    App(AppView),
    Apps(Page<AppView>),
    Endpoint(EndpointView),
    Endpoints(Page<EndpointView>),
    Secret(Secret),
    Headers(Headers),
    Message(MessageView),
    Messages(Page<MessageView>),
    Attempt(AttemptView),
    Attempts(Page<AttemptView>),
    Deliveries(Page<DeliveryView>),
    EventType(EventTypeView),
    /// `done`: nothing is behind the last one.
    EventTypes {
        items: Vec<EventTypeView>,
        done: bool,
    },
    Operational(CopyOperational),
    OperationalRevision(u64),
    NotFound(Missing),
}

/// What was not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Missing {
    App,
    Endpoint,
    Message,
    Attempt,
    EventType,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryView {
    /// `None`: it is deleted.
    pub endpoint: Option<EndpointView>,
    pub endpoint_id: EndpointId,
    pub status: DeliveryStatus,
    /// Display time; of one that is pending, unless its endpoint is disabled.
    pub next_attempt_wall_ms: Option<u64>,
}
