//! What is asked of the cluster: a file for each mechanism. A workload sets up what it needs, then makes calls until the run
//! is over, and recalls nothing: what is read at the end follows from the history.

pub mod idempotency;
pub mod limits;
pub mod publishing;
pub mod registers;
pub mod webhooks;

use std::{future::Future, sync::Arc};

use onceward_checkers::history::{Call, Reply};
use tokio::task::JoinSet;

use self::webhooks::GRAVE;
use crate::{
    load::{Client, Load},
    receivers::Receivers,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Workload {
    Limits,
    Idempotency,
    Publishing,
    Webhooks,
    Registers,
}

impl Workload {
    pub const ALL: [Workload; 5] =
        [Workload::Limits, Workload::Idempotency, Workload::Publishing, Workload::Webhooks, Workload::Registers];

    pub const fn name(self) -> &'static str {
        match self {
            Workload::Limits => "limits",
            Workload::Idempotency => "idempotency",
            Workload::Publishing => "publishing",
            Workload::Webhooks => "webhooks",
            Workload::Registers => "registers",
        }
    }

    /// What part of the rate it gets among others.
    const fn share(self) -> f64 {
        match self {
            Workload::Limits => 4.0,
            Workload::Idempotency => 3.0,
            Workload::Publishing | Workload::Webhooks => 1.0,
            Workload::Registers => 2.0,
        }
    }
}

/// Reads `limits,webhooks` or `all`.
pub fn parse(names: &str) -> Result<Vec<Workload>, String> {
    if names == "all" {
        return Ok(Workload::ALL.to_vec());
    }
    names.split(',').map(|name| one(name.trim())).collect()
}

fn one(name: &str) -> Result<Workload, String> {
    let found = Workload::ALL.into_iter().find(|workload| workload.name() == name);
    let all = Workload::ALL.map(Workload::name).join(", ");
    found.ok_or_else(|| format!("there is no workload {name:?}; there are {all}, and all"))
}

/// Sets up, and starts all clients: `rate` calls a second or so in all.
pub async fn start(workloads: &[Workload], rate: f64, load: &Arc<Load>, receivers: &Receivers) -> JoinSet<()> {
    let shares: f64 = workloads.iter().map(|workload| workload.share()).sum();
    let mut clients = JoinSet::new();
    for workload in workloads {
        let rate = rate * workload.share() / shares;
        match workload {
            Workload::Limits => limits::start(load, rate, &mut clients).await,
            Workload::Idempotency => idempotency::start(load, rate, &mut clients),
            Workload::Publishing => publishing::start(load, rate, &mut clients).await,
            Workload::Webhooks => {
                let endpoints = webhooks::start(load, rate, &mut clients).await;
                receivers.bury(GRAVE, GRAVE).await;
                clients.spawn(receivers.clone().misbehave(endpoints, load.seed, load.stop.clone()));
            }
            Workload::Registers => registers::start(load, rate, &mut clients).await,
        }
    }
    clients
}

/// Starts `count` clients of a kind that make `rate` steps a second together.
fn spawn<F>(
    load: &Arc<Load>,
    name: &str,
    count: u32,
    rate: f64,
    clients: &mut JoinSet<()>,
    client: impl Fn(Client) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    for n in 0..count {
        clients.spawn(client(load.client(&format!("{name} {n}"), rate / f64::from(count))));
    }
}

/// Makes a call of the set-up until it is answered.
async fn set_up(client: &mut Client, call: Call) -> Reply {
    /// Before any nemesis: whatever takes longer is broken.
    const TRIES: u64 = 100;
    client.insist(call.clone(), TRIES).await.unwrap_or_else(|| panic!("the set-up is not answered: {call:?}"))
}

async fn create_app(client: &mut Client, app: &str) {
    set_up(client, Call::CreateApp { app: app.to_owned() }).await;
}

async fn create_endpoint(client: &mut Client, app: &str, endpoint: &str) {
    let call = Call::PutEndpoint {
        app: app.to_owned(),
        endpoint: endpoint.to_owned(),
        description: "set up".to_owned(),
        disabled: false,
    };
    set_up(client, call).await;
}
