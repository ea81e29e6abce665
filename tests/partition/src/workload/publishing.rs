//! Keys that are completed with messages: by their owner, by two who both think that they are, and by one whose account
//! publishes nowhere. Then record and messages are read through other nodes.

use std::sync::Arc;

use onceward_checkers::history::{Call, Message, Reply};
use tokio::task::JoinSet;

use super::{
    create_app, create_endpoint,
    idempotency::{Session, TTL_MS},
    spawn,
};
use crate::{
    load::{Client, Load, Rotation},
    message::message,
};

const CLIENTS: u32 = 8;
const APPS: u64 = 3;
const ENDPOINT: &str = "orders";
const SESSION_CALLS: u64 = 8;
const KEY_USES: u64 = 40;

pub async fn start(load: &Arc<Load>, rate: f64, clients: &mut JoinSet<()>) {
    let mut first = load.client("publishing", 10.0);
    for app in 0..APPS {
        create_app(&mut first, &format!("shop-{app}")).await;
        create_endpoint(&mut first, &format!("shop-{app}"), ENDPOINT).await;
    }
    let keys = Arc::new(Rotation::new("p", 6, KEY_USES));
    // A session makes some five calls.
    spawn(load, "publishing", CLIENTS, rate / 5.0, clients, |client| publish(client, keys.clone()));
}

async fn publish(mut client: Client, keys: Arc<Rotation>) {
    while client.turn().await {
        let number = keys.number(&mut client.draw, SESSION_CALLS);
        let account = match number % 16 {
            // No application: whatever it completes with messages is refused whole.
            0 => "nobody".to_owned(),
            _ => format!("shop-{}", number % APPS),
        };
        let lease_ms = *client.draw.pick(&[150, 600, 1_500]);
        let session = Session { account, key: format!("p-{number}"), lease_ms, ttl_ms: TTL_MS, hold: false };
        let token = match session.begin(&mut client).await {
            Some(Reply::Started { token }) => token,
            Some(Reply::Replayed { .. }) => {
                keys.spend(number, KEY_USES / 2);
                continue;
            }
            _ => continue,
        };
        let late = if client.draw.chance(40) { session.lease_ms + 500 } else { 50 };
        if !client.sleep_ms(0, late).await {
            return;
        }
        let messages = messages(&mut client, &session.account);
        session.complete(&mut client, token, messages.clone()).await;
        client.call(session.read()).await;
        for Message { app, event_id, .. } in messages {
            client.call(Call::GetMessage { app, event_id }).await;
        }
    }
}

fn messages(client: &mut Client, app: &str) -> Vec<Message> {
    let count = client.draw.between(1, 3);
    (0..count).map(|_| message(app, &client.unique("done"))).collect()
}
