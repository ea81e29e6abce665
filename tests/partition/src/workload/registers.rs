//! Policies and endpoints as registers: written, read and deleted by many clients through all nodes, every value once.

use std::sync::Arc;

use onceward_checkers::history::{Algorithm, Call, Terms};
use tokio::task::JoinSet;

use super::{create_app, spawn};
use crate::load::{Client, Load, Rotation};

const CLIENTS: u32 = 12;
const USES: u64 = 45;
/// Applications that registers are spread over: endpoints of one are limited in number.
const APPS: u64 = 24;

pub async fn start(load: &Arc<Load>, rate: f64, clients: &mut JoinSet<()>) {
    let mut first = load.client("registers", 10.0);
    for app in 0..APPS {
        create_app(&mut first, &format!("registers-{app}")).await;
    }
    let policies = Arc::new(Rotation::new("register", 2, USES));
    let endpoints = Arc::new(Rotation::new("register", 3, USES));
    spawn(load, "registers", CLIENTS, rate, clients, |client| {
        use_registers(client, policies.clone(), endpoints.clone())
    });
}

async fn use_registers(mut client: Client, policies: Arc<Rotation>, endpoints: Arc<Rotation>) {
    while client.turn().await {
        let call = if client.draw.chance(40) {
            let name = policies.take(&mut client.draw, 1);
            policy(&mut client, name)
        } else {
            let number = endpoints.number(&mut client.draw, 1);
            endpoint(&mut client, format!("registers-{}", number % APPS), format!("register-{number}"))
        };
        client.call(call).await;
    }
}

fn policy(client: &mut Client, policy: String) -> Call {
    match client.draw.below(100) {
        0..3 => Call::DeletePolicy { policy },
        // Every change goes to all shards: dearer than it looks.
        3..30 => Call::PutPolicy { policy, terms: unique_terms(client) },
        _ => Call::GetPolicy { policy },
    }
}

fn unique_terms(client: &mut Client) -> Terms {
    let amount = client.draw.between(1, 1_000_000_000);
    Terms {
        algorithm: Algorithm::TokenBucket,
        amount,
        window_us: 3_600_000_000,
        burst: client.draw.between(1, 1_000_000_000),
        on_unavailable: "deny".to_owned(),
    }
}

fn endpoint(client: &mut Client, app: String, endpoint: String) -> Call {
    match client.draw.below(100) {
        0..3 => Call::DeleteEndpoint { app, endpoint },
        3..45 => {
            let description = client.unique("value");
            Call::PutEndpoint { app, endpoint, description, disabled: false }
        }
        _ => Call::GetEndpoint { app, endpoint },
    }
}
