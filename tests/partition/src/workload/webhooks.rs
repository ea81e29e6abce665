//! Messages to several applications with several endpoints each, whose receivers fail, hang, restart and answer slowly; an
//! endpoint that never works, and one that is disabled and enabled again.

use std::sync::Arc;

use onceward_checkers::history::Call;
use tokio::task::JoinSet;

use super::{create_app, create_endpoint, spawn};
use crate::{
    load::{Client, Load},
    message::message,
};

const CLIENTS: u32 = 8;
const APPS: u64 = 3;
const ENDPOINTS: u64 = 2;
/// Its only endpoint is disabled and enabled.
const TOGGLED: (&str, &str) = ("hook-toggled", "e-0");
/// An application and its only endpoint, whose receiver answers everything with 500: what is published to it ends visibly.
pub const GRAVE: &str = "grave";
/// Tries of a publish, which lands once however often it is made.
const TRIES: u64 = 5;

/// Returns the endpoints, by application and name, that are there to be failed by their receivers now and then.
pub async fn start(load: &Arc<Load>, rate: f64, clients: &mut JoinSet<()>) -> Vec<(String, String)> {
    let mut first = load.client("webhooks", 10.0);
    let mut endpoints = Vec::new();
    for app in (0..APPS).map(|app| format!("hook-{app}")) {
        create_app(&mut first, &app).await;
        for endpoint in (0..ENDPOINTS).map(|endpoint| format!("e-{endpoint}")) {
            create_endpoint(&mut first, &app, &endpoint).await;
            endpoints.push((app.clone(), endpoint));
        }
    }
    for (app, endpoint) in [TOGGLED, (GRAVE, GRAVE)] {
        create_app(&mut first, app).await;
        create_endpoint(&mut first, app, endpoint).await;
    }
    spawn(load, "webhooks", CLIENTS, rate / 1.4, clients, publish);
    clients.spawn(toggle(load.client("toggle", 0.3)));
    endpoints
}

async fn publish(mut client: Client) {
    while client.turn().await {
        let app = match client.draw.below(40) {
            0 => GRAVE.to_owned(),
            1..7 => TOGGLED.0.to_owned(),
            _ => format!("hook-{}", client.draw.below(APPS)),
        };
        let event_id = client.unique("event");
        let call = Call::Publish { app: app.clone(), message: message(&app, &event_id) };
        client.insist(call.clone(), TRIES).await;
        match client.draw.below(10) {
            // A publisher that forgot that it was told.
            0 => drop(client.call(call).await),
            1..4 => drop(client.call(Call::GetMessage { app, event_id }).await),
            _ => {}
        }
    }
}

async fn toggle(mut client: Client) {
    let (app, endpoint) = TOGGLED;
    let mut disabled = false;
    while client.turn().await {
        disabled = !disabled;
        let call = Call::PutEndpoint {
            app: app.to_owned(),
            endpoint: endpoint.to_owned(),
            description: client.unique("toggled"),
            disabled,
        };
        client.insist(call, TRIES).await;
    }
}
