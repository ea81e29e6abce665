//! What webhooks promise, in the fewest words: maps of what is there, and one function a command. When rows go is not
//! said here, only when they may.

use std::collections::{BTreeMap, BTreeSet};

use onceward_core::{
    command::{Command, Reply},
    idempotency::{BeginReply, CompleteCommand, CompleteReply},
    time::ShardTime,
    webhooks::{bounds::REQUEST_TTL_US, *},
};

use crate::kit::webhooks::StoredDelivery;
#[derive(Debug, Clone, Default)]
pub struct Reference {
    pub now: u64,
    pub apps: BTreeMap<AppId, App>,
    /// All that ever were: late outcomes name them.
    pub deliveries_ever: Vec<(EndpointKey, MessageId)>,
    pub tokens: u64,
    requests: BTreeMap<(String, String), Request>,
    newest_id: Option<Id>,
    operational_revision: u64,
    operational: BTreeSet<EndpointId>,
}

#[derive(Debug, Clone)]
pub struct App {
    pub uid: Option<Name>,
    pub endpoints: BTreeMap<EndpointId, Endpoint>,
    pub messages: BTreeMap<MessageId, Message>,
}

#[derive(Debug, Clone)]
pub struct Endpoint {
    pub spec: EndpointSpec,
    pub sequence: u64,
    failing_since: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct Message {
    pub said: NewMessage,
    pub expires_at: u64,
    /// Before the rest.
    pub payload_expires_at: Option<u64>,
    pub has_payload: bool,
    pub deliveries: BTreeMap<EndpointId, StoredDelivery>,
    pub attempts: BTreeMap<EndpointId, usize>,
}

#[derive(Debug, Clone)]
struct Request {
    fingerprint: [u8; 32],
    expires_at: u64,
    reply: WebhookReply,
}

impl Reference {
    pub fn app_of(&self, app: &AppRef) -> Option<AppId> {
        self.apps.iter().find(|(id, found)| *app == AppRef::Id(**id) || found.is(app)).map(|(id, _)| *id)
    }

    /// Checks a reply and does what it says; returns how many messages to operational endpoints there are more.
    pub fn apply(&mut self, command: &Command, reply: &Reply) -> usize {
        match (command, reply) {
            (Command::Webhook(command), Reply::Webhook(reply)) => self.call(command, reply),
            (Command::Complete(complete), Reply::Complete(reply)) => self.complete(complete, reply),
            (Command::RecordOutcomes(record), Reply::RecordOutcomes { recorded }) => {
                let (counted, notices) = self.record(record);
                assert_eq!(*recorded, counted);
                return notices;
            }
            (Command::CopyOperational(copy), Reply::CopyOperational { revision }) => {
                if copy.revision > self.operational_revision {
                    self.operational_revision = copy.revision;
                    self.operational = copy.endpoints.iter().map(|endpoint| endpoint.id).collect();
                }
                assert_eq!(*revision, self.operational_revision);
            }
            (Command::Begin(_), Reply::Begin(BeginReply::Started { token, .. })) => {
                self.tokens += 1;
                assert_eq!(*token, self.tokens);
            }
            (Command::Expire { .. }, Reply::Expire { .. }) => {}
            other => panic!("{other:?}"),
        }
        0
    }

    fn call(&mut self, command: &WebhookCommand, reply: &WebhookReply) {
        let Some(request) = &command.request else { return self.act(&command.action, reply) };
        // Within an application that is there, the application is whom the answer is for, whatever it was called by.
        let within = match &command.action {
            Action::CreateEndpoint(CreateEndpoint { app, .. }) | Action::Publish(Publish { app, .. }) => {
                self.app_of(app)
            }
            _ => None,
        };
        let scope = within.map_or_else(|| request.scope.clone(), |app| app.to_string());
        let name = (scope, request.key.as_str().to_owned());
        if let Some(known) = self.requests.get(&name).filter(|known| self.now < known.expires_at) {
            match known.fingerprint == request.fingerprint {
                true => assert_eq!(*reply, known.reply),
                false => assert_eq!(*reply, WebhookReply::Refused(Refusal::RequestMismatch)),
            }
            return;
        }
        self.act(&command.action, reply);
        if !matches!(reply, WebhookReply::Refused(_)) {
            let expires_at = self.now + REQUEST_TTL_US;
            let (fingerprint, reply) = (request.fingerprint, reply.clone());
            self.requests.insert(name, Request { fingerprint, expires_at, reply });
        }
    }

    fn act(&mut self, action: &Action, reply: &WebhookReply) {
        let app = action.app().map(|app| self.app_of(app));
        if app == Some(None) {
            return assert_eq!(*reply, WebhookReply::Refused(Refusal::NoApp));
        }
        let app = app.flatten();
        match action {
            Action::CreateApp(create) => self.create_app(create, reply),
            Action::DeleteApp { .. } => {
                self.apps.remove(&app.expect("looked up"));
                assert_eq!(*reply, WebhookReply::Done);
            }
            Action::CreateEndpoint(create) => {
                let WebhookReply::Endpoint { endpoint, created: true } = reply else { panic!("{reply:?}") };
                self.see(endpoint.id.0);
                let new = Endpoint { spec: create.spec.clone(), sequence: 0, failing_since: None };
                self.at(app).endpoints.insert(endpoint.id, new);
            }
            Action::PatchEndpoint(PatchEndpoint { endpoint: EndpointRef::Id(id), patch, .. }) => {
                let Some(endpoint) = self.at(app).endpoints.get_mut(id) else {
                    return assert_eq!(*reply, WebhookReply::Refused(Refusal::NoEndpoint));
                };
                let disabled = patch.disabled.expect("nothing else is patched");
                if endpoint.spec.disabled && !disabled {
                    endpoint.failing_since = None;
                }
                endpoint.spec.disabled = disabled;
                assert!(matches!(reply, WebhookReply::Endpoint { endpoint, created: false } if endpoint.id == *id));
            }
            Action::DeleteEndpoint(DeleteEndpoint { endpoint: EndpointRef::Id(id), .. }) => {
                match self.at(app).endpoints.remove(id) {
                    Some(_) => assert_eq!(*reply, WebhookReply::Done),
                    None => assert_eq!(*reply, WebhookReply::Refused(Refusal::NoEndpoint)),
                }
            }
            Action::Publish(publish) => match reply {
                WebhookReply::Published { message, repeated } => {
                    let was_there = self.publish(app, &publish.message, publish.retention_us, message.id);
                    assert_eq!(was_there, *repeated);
                }
                _ => {
                    assert!(self.is_taken(app, &publish.message));
                    assert_eq!(*reply, WebhookReply::Refused(Refusal::EventIdTaken));
                }
            },
            other => panic!("{other:?}"),
        }
    }

    fn create_app(&mut self, create: &CreateApp, reply: &WebhookReply) {
        let found = create.uid.clone().and_then(|uid| self.app_of(&AppRef::Uid(uid)));
        match (found, reply) {
            (Some(_), WebhookReply::Refused(Refusal::Taken)) => assert!(!create.get_if_exists),
            (Some(found), WebhookReply::App { app, created: false }) => {
                assert!(create.get_if_exists && app.id == found);
            }
            (None, WebhookReply::App { app, created: true }) => {
                self.see(app.id.0);
                let new = App { uid: create.uid.clone(), endpoints: BTreeMap::new(), messages: BTreeMap::new() };
                self.apps.insert(app.id, new);
            }
            other => panic!("{other:?}"),
        }
    }

    /// The message that has its event id.
    fn earlier(&self, app: AppId, said: &NewMessage) -> Option<(MessageId, &NewMessage)> {
        let messages = self.apps[&app].messages.iter().map(|(id, message)| (*id, &message.said));
        said.event_id.as_ref()?;
        messages.into_iter().find(|(_, known)| known.event_id == said.event_id)
    }

    fn is_taken(&self, app: Option<AppId>, said: &NewMessage) -> bool {
        let earlier = self.earlier(app.expect("looked up"), said);
        earlier.is_some_and(|(_, known)| content(known) != content(said))
    }

    /// Returns whether it was there before.
    fn publish(&mut self, app: Option<AppId>, said: &NewMessage, retention_us: u64, id: MessageId) -> bool {
        let app_id = app.expect("looked up");
        assert!(!self.is_taken(app, said));
        if let Some((earlier, _)) = self.earlier(app_id, said) {
            assert_eq!(id, earlier);
            return true;
        }
        self.see(id.0);
        let (now, expires_at) = (self.now, self.now + retention_us);
        let mut deliveries = BTreeMap::new();
        for (endpoint, found) in &mut self.at(app).endpoints {
            let listens = |wanted: &BTreeSet<String>| said.channels.iter().any(|channel| wanted.contains(channel));
            let is_wanted = found.spec.event_types.as_ref().is_none_or(|wanted| wanted.contains(&said.event_type))
                && found.spec.channels.as_ref().is_none_or(listens);
            if is_wanted {
                found.sequence += 1;
                let (status, due) = match found.spec.disabled {
                    true => (DeliveryStatus::Withheld, None),
                    false => (DeliveryStatus::Pending, Some(ShardTime(now))),
                };
                deliveries.insert(*endpoint, StoredDelivery { sequence: found.sequence, tries: 0, status, due });
            }
        }
        let ever = deliveries.keys().map(|endpoint| (EndpointKey { app: app_id, endpoint: *endpoint }, id));
        self.deliveries_ever.extend(ever.collect::<Vec<_>>());
        let payload_expires_at = said.payload_retention_us.map(|us| now + us).filter(|at| *at < expires_at);
        let (said, has_payload, attempts) = (said.clone(), true, BTreeMap::new());
        let message = Message { said, expires_at, payload_expires_at, has_payload, deliveries, attempts };
        self.at(app).messages.insert(id, message);
        false
    }

    fn complete(&mut self, complete: &CompleteCommand, reply: &CompleteReply) {
        let said = &complete.publishing.messages;
        let name = AppRef::parse(complete.account.as_str()).expect("a name or an id");
        let Some(app) = self.app_of(&name) else {
            let refused = CompleteReply::MessageRefused { index: 0, refusal: Refusal::NoApp };
            return assert_eq!(*reply, refused);
        };
        let contradicts = |index: usize| {
            let differs =
                |other: &NewMessage| other.event_id == said[index].event_id && content(other) != content(&said[index]);
            said[index].event_id.is_some() && said[..index].iter().any(differs)
        };
        let refused = (0..said.len()).find(|&index| self.is_taken(Some(app), &said[index]) || contradicts(index));
        match (refused, reply) {
            (Some(refused), CompleteReply::MessageRefused { index, refusal: Refusal::EventIdTaken }) => {
                assert_eq!(*index as usize, refused);
            }
            (None, CompleteReply::Completed { messages, .. }) => {
                assert_eq!(messages.len(), said.len());
                for (message, said) in messages.iter().zip(said) {
                    self.publish(Some(app), said, complete.publishing.retention_us, message.id);
                    assert_eq!(message.event_id, said.event_id);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// How many outcomes count, and how many messages about them there are.
    fn record(&mut self, record: &RecordOutcomes) -> (u32, usize) {
        let (now, told) = (self.now, usize::from(!self.operational.is_empty()));
        let (mut counted, mut notices) = (0, 0);
        for outcome in &record.outcomes {
            if outcome.app == AppId::OPERATIONAL {
                // Messages to them are not followed here; those reported are pending.
                counted += 1;
                continue;
            }
            let Some(app) = self.apps.get_mut(&outcome.app) else { continue };
            let Some(endpoint) = app.endpoints.get_mut(&outcome.endpoint) else { continue };
            let Some(message) = app.messages.get_mut(&outcome.message) else { continue };
            let Some(delivery) = message.deliveries.get_mut(&outcome.endpoint) else { continue };
            let is_news = delivery.tries == outcome.tries_before || outcome.verdict == Verdict::Succeeded;
            if delivery.due.is_none() || !is_news {
                continue;
            }
            counted += 1;
            *message.attempts.entry(outcome.endpoint).or_default() += 1;
            (delivery.tries, delivery.due) = (delivery.tries + 1, None);
            delivery.status = match outcome.verdict {
                Verdict::Succeeded => DeliveryStatus::Succeeded,
                Verdict::Exhausted | Verdict::Gone => DeliveryStatus::Failed,
                Verdict::Retry { after_us } => {
                    delivery.due = Some(ShardTime(now + after_us.max(1)));
                    DeliveryStatus::Pending
                }
            };
            if outcome.verdict == Verdict::Succeeded {
                endpoint.failing_since = None;
                continue;
            }
            notices += if outcome.verdict == Verdict::Exhausted { told } else { 0 };
            let since = *endpoint.failing_since.get_or_insert(now);
            let for_too_long = now - since >= record.disable_after_us || outcome.verdict == Verdict::Gone;
            if for_too_long && !endpoint.spec.disabled {
                endpoint.spec.disabled = true;
                notices += told;
            }
        }
        (counted, notices)
    }

    /// A payload that is gone: what was pending of it is given up.
    pub fn lose_payload(&mut self, app: AppId, id: MessageId) {
        let is_over = |at: u64| at <= self.now;
        let found = &self.apps[&app];
        let message = &found.messages[&id];
        assert!(message.payload_expires_at.is_some_and(is_over) || is_over(message.expires_at), "{message:?}");
        assert!(!found.pins(id), "{message:?} is still to be delivered");
        let message = self.at(Some(app)).messages.get_mut(&id).expect("just seen");
        message.has_payload = false;
        for delivery in message.deliveries.values_mut().filter(|delivery| delivery.due.is_some()) {
            (delivery.due, delivery.status) = (None, DeliveryStatus::Failed);
        }
    }

    /// A message that is gone.
    pub fn lose(&mut self, app: AppId, id: MessageId) {
        assert!(self.apps[&app].messages[&id].expires_at <= self.now);
        if self.apps[&app].messages[&id].has_payload {
            self.lose_payload(app, id);
        }
        self.at(Some(app)).messages.remove(&id);
    }

    fn at(&mut self, app: Option<AppId>) -> &mut App {
        self.apps.get_mut(&app.expect("looked up")).expect("there")
    }

    /// Ids only ever grow.
    fn see(&mut self, id: Id) {
        assert!(self.newest_id.is_none_or(|newest| id > newest));
        self.newest_id = Some(id);
    }
}

impl App {
    fn is(&self, app: &AppRef) -> bool {
        matches!((app, &self.uid), (AppRef::Uid(name), Some(uid)) if name == uid)
    }

    /// Whether a delivery of the message is still to be made, to an endpoint that takes any.
    fn pins(&self, message: MessageId) -> bool {
        let takes_any = |endpoint: &EndpointId| self.endpoints.get(endpoint).is_some_and(|found| !found.spec.disabled);
        let deliveries = &self.messages[&message].deliveries;
        deliveries.iter().any(|(endpoint, delivery)| delivery.due.is_some() && takes_any(endpoint))
    }
}

/// What a message says; how long its payload is kept is not part of it.
fn content(said: &NewMessage) -> NewMessage {
    NewMessage { payload_retention_us: None, ..said.clone() }
}
