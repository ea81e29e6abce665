//! What is read when everything has healed and nothing else is under way: all that the history says may be there. And the
//! wait before it, until what is to be delivered was.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use onceward_checkers::history::{Call, History, Message, Operation, Outcome, Reply};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use crate::load::Load;
use onceward_tests::draw::Draw;

/// Longer than the schedule of retries that runs are made with.
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// Deliveries that are asked after between two looks.
const ASKED_MAX: usize = 100;
/// As Svix numbers it.
const SENDING: u8 = 3;
/// Reads under way at a time.
const READERS: u32 = 16;
/// Of a read that is not answered: everything has healed, so it soon is.
const TRIES: u64 = 20;

/// Waits until every delivery of what was accepted succeeded, failed for good or waits for a disabled endpoint, or until
/// that took too long: who is to blame is for the judges to say.
pub async fn settle(load: &Load) {
    let deadline = Instant::now() + SETTLE_MAX;
    let mut over = BTreeSet::new();
    let mut draw = Draw::new(load.seed, "settle");
    while Instant::now() < deadline {
        let mut open = load.recorder.with(undelivered);
        open.retain(|delivery| !over.contains(delivery));
        if open.is_empty() {
            return;
        }
        draw.shuffle(&mut open);
        for delivery in open.into_iter().take(ASKED_MAX) {
            if is_over(load, &delivery).await {
                over.insert(delivery);
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Asks for a delivery, off the record.
async fn is_over(load: &Load, (app, endpoint, event_id): &(String, String, String)) -> bool {
    let (app, endpoint, event_id) = (app.clone(), endpoint.clone(), event_id.clone());
    let (_, node) = load.node(0);
    match node.perform(&load.targets, &Call::GetDelivery { app, endpoint, event_id }).await {
        Outcome::Answered { reply: Reply::DeliveryStatus { status } } => status != SENDING,
        Outcome::Answered { .. } | Outcome::Unexpected { .. } => true,
        Outcome::Refused | Outcome::Unknown => false,
    }
}

/// Reads all, through the nodes of `load`.
pub async fn read_all(load: &Arc<Load>) {
    let calls = load.recorder.with(calls);
    let calls = Arc::new(Mutex::new(calls.into_iter()));
    let mut readers = JoinSet::new();
    for n in 0..READERS {
        let (calls, mut client) = (calls.clone(), load.client(&format!("final reads {n}"), 1.0));
        readers.spawn(async move {
            while let Some(call) = { calls.lock().next() } {
                for _ in 0..TRIES {
                    match client.last(call.clone()).await {
                        Outcome::Answered { .. } | Outcome::Unexpected { .. } => break,
                        Outcome::Refused | Outcome::Unknown => tokio::time::sleep(Duration::from_millis(100)).await,
                    }
                }
            }
        });
    }
    readers.join_all().await;
}

/// Every record, policy, endpoint and message of which a call may have left something, each once; of deliveries only those
/// that were not taken.
fn calls(history: &History) -> Vec<Call> {
    let mut calls = BTreeMap::new();
    let taken = taken(history);
    let endpoints = endpoints(history);
    for operation in &history.operations {
        match operation.call.clone() {
            Call::PutPolicy { policy, .. } | Call::DeletePolicy { policy } => {
                calls.insert(format!("policy {policy}"), Call::GetPolicy { policy });
            }
            Call::Begin { account, key, .. } => {
                calls.insert(format!("record {account} {key}"), Call::GetRecord { account, key });
            }
            Call::PutEndpoint { app, endpoint, .. } | Call::DeleteEndpoint { app, endpoint } => {
                calls.insert(format!("endpoint {app} {endpoint}"), Call::GetEndpoint { app, endpoint });
            }
            _ => {}
        }
        for Message { app, event_id, .. } in messages(&operation.call).iter().cloned() {
            for endpoint in endpoints.get(&app).into_iter().flatten() {
                if !taken.contains(&(app.as_str(), endpoint, &event_id)) {
                    let (app, endpoint, event_id) = (app.clone(), (*endpoint).to_owned(), event_id.clone());
                    let name = format!("delivery {app} {endpoint} {event_id}");
                    calls.insert(name, Call::GetDelivery { app, endpoint, event_id });
                }
            }
            calls.insert(format!("message {app} {event_id}"), Call::GetMessage { app, event_id });
        }
    }
    calls.into_values().collect()
}

fn messages(call: &Call) -> &[Message] {
    match call {
        Call::Complete { messages, .. } => messages,
        Call::Publish { message, .. } => std::slice::from_ref(message),
        _ => &[],
    }
}

/// Endpoints that were put, by application.
fn endpoints(history: &History) -> BTreeMap<&String, BTreeSet<&str>> {
    let mut endpoints: BTreeMap<&String, BTreeSet<&str>> = BTreeMap::new();
    for operation in &history.operations {
        if let Call::PutEndpoint { app, endpoint, .. } = &operation.call {
            endpoints.entry(app).or_default().insert(endpoint);
        }
    }
    endpoints
}

/// (application, endpoint, event id) of what was answered 2xx.
fn taken(history: &History) -> BTreeSet<(&str, &str, &String)> {
    let taken = history.deliveries.iter().filter(|delivery| delivery.answered.is_some_and(|status| status / 100 == 2));
    taken.map(|delivery| (delivery.app.as_str(), delivery.endpoint.as_str(), &delivery.event_id)).collect()
}

/// (application, endpoint, event id) of what was accepted and not answered 2xx.
fn undelivered(history: &History) -> Vec<(String, String, String)> {
    let (taken, endpoints) = (taken(history), endpoints(history));
    let accepted = history.operations.iter().filter(|operation| is_accepted(operation));
    let messages = accepted.flat_map(|operation| messages(&operation.call));
    let deliveries = messages.flat_map(|message| {
        let endpoints = endpoints.get(&message.app).into_iter().flatten();
        endpoints.map(move |endpoint| (message.app.as_str(), *endpoint, &message.event_id))
    });
    let open = deliveries.filter(|delivery| !taken.contains(delivery));
    open.map(|(app, endpoint, event_id)| (app.to_owned(), endpoint.to_owned(), event_id.clone())).collect()
}

fn is_accepted(operation: &Operation) -> bool {
    matches!(
        &operation.outcome,
        Outcome::Answered { reply: Reply::Completed { .. } | Reply::Message { digest: None, .. } }
    )
}
