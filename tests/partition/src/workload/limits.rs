//! Checks of many buckets and a hot one, under policies that are fast, slow, sliding, local or changing under way; checks of
//! several shards at once; request ids, repeated and refunded; resets.

use std::{collections::VecDeque, sync::Arc};

use onceward_checkers::history::{Algorithm, Call, Item, Mode, Outcome, Reply, Terms};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{set_up, spawn};
use crate::load::{Client, Load, Rotation};

const CLIENTS: u32 = 12;
/// Buckets that are judged exactly: more uses of one make the search long.
const EXACT_USES: u64 = 40;
const HOUR_US: u64 = 3_600_000_000;

fn bucket(amount: u64, window_us: u64, burst: u64) -> Terms {
    let on_unavailable = "deny".to_owned();
    Terms { algorithm: Algorithm::TokenBucket, amount, window_us, burst, on_unavailable }
}

fn window(amount: u64, window_us: u64) -> Terms {
    let on_unavailable = "deny".to_owned();
    Terms { algorithm: Algorithm::SlidingWindow, amount, window_us, burst: amount, on_unavailable }
}

fn policies() -> Vec<(&'static str, Terms)> {
    vec![
        ("fast", bucket(10, 1_000_000, 5)),
        // Refills so slowly that whatever comes back too early shows.
        ("hourly", bucket(20, HOUR_US, 20)),
        ("exact", bucket(1, HOUR_US, 8)),
        ("dry", bucket(1, HOUR_US, 1)),
        ("window-short", window(10, 1_000_000)),
        ("window-long", window(60, 20_000_000)),
        ("local", Terms { on_unavailable: "local".to_owned(), ..bucket(10, 1_000_000, 10) }),
        ("changing", bucket(10, 1_000_000, 10)),
        ("ids", bucket(20, 60_000_000, 40)),
    ]
}

/// What `changing` is changed to, one after the other.
fn changes() -> [Terms; 4] {
    [bucket(2, 1_000_000, 20), bucket(20, 1_000_000, 4), bucket(30, HOUR_US, 30), bucket(10, 1_000_000, 10)]
}

/// What all clients of this workload share.
struct Shared {
    exact: Rotation,
    hourly: Rotation,
    held: Rotation,
    /// Request ids that were used a moment ago.
    ids: Mutex<VecDeque<Used>>,
}

#[derive(Clone)]
struct Used {
    key: String,
    cost: u64,
    request_id: String,
}

pub async fn start(load: &Arc<Load>, rate: f64, clients: &mut JoinSet<()>) {
    let mut first = load.client("limits", 10.0);
    for (policy, terms) in policies() {
        set_up(&mut first, Call::PutPolicy { policy: policy.to_owned(), terms }).await;
    }
    let shared = Arc::new(Shared {
        exact: Rotation::new("e", 4, EXACT_USES),
        hourly: Rotation::new("h", 6, 400),
        held: Rotation::new("m", 3, 150),
        ids: Mutex::default(),
    });
    spawn(load, "limits", CLIENTS, rate, clients, |client| ask(client, shared.clone()));
    clients.spawn(change(load.client("changes of policies", 0.25)));
}

async fn ask(mut client: Client, shared: Arc<Shared>) {
    while client.turn().await {
        match client.draw.below(100) {
            0..20 => single(&mut client, "fast", "hot").await,
            20..30 => {
                let key = format!("k-{}", client.draw.below(60));
                single(&mut client, "fast", &key).await;
            }
            30..48 => {
                let key = shared.exact.take(&mut client.draw, 1);
                single(&mut client, "exact", &key).await;
            }
            48..60 => hourly(&mut client, &shared).await,
            60..66 => {
                let key = format!("k-{}", client.draw.below(3));
                single(&mut client, "window-short", &key).await;
            }
            66..71 => {
                let key = format!("k-{}", client.draw.below(2));
                single(&mut client, "window-long", &key).await;
            }
            71..75 => {
                let key = format!("k-{}", client.draw.below(4));
                single(&mut client, "local", &key).await;
            }
            75..80 => single(&mut client, "changing", "k").await,
            80..92 => several(&mut client, &shared).await,
            _ => with_id(&mut client, &shared).await,
        }
    }
}

fn item(policy: &str, key: &str, cost: u64) -> Item {
    Item { policy: policy.to_owned(), key: key.to_owned(), cost }
}

fn check(items: Vec<Item>, request_id: Option<String>) -> Call {
    Call::Check { items, mode: Mode::Enforce, request_id }
}

/// One bucket; now and then only looked at, or in the shadow.
async fn single(client: &mut Client, policy: &str, key: &str) {
    let mode = match client.draw.below(20) {
        0 => Mode::Peek,
        1 if policy != "exact" => Mode::Shadow,
        _ => Mode::Enforce,
    };
    let cost = client.draw.between(1, 2);
    client.call(Call::Check { items: vec![item(policy, key, cost)], mode, request_id: None }).await;
}

/// Long-lived buckets that are soon empty; a few are reset.
async fn hourly(client: &mut Client, shared: &Shared) {
    let key = shared.hourly.take(&mut client.draw, 1);
    if client.draw.chance(1) {
        client.call(Call::Reset { policy: "hourly".to_owned(), key }).await;
    } else {
        single(client, "hourly", &key).await;
    }
}

/// Buckets on several shards; the dry one denies, so that what the others held goes back.
async fn several(client: &mut Client, shared: &Shared) {
    let held = shared.held.take(&mut client.draw, 1);
    let mut items = vec![item("hourly", &held, 1)];
    match client.draw.below(4) {
        0 => {}
        1 => items.push(item("fast", &format!("k-{}", client.draw.below(60)), 1)),
        _ => items.push(item("dry", &format!("k-{}", client.draw.below(5)), 1)),
    }
    if client.draw.chance(30) {
        items.push(item("fast", "hot", 1));
    }
    let request_id = client.draw.chance(25).then(|| client.unique("r"));
    let call = check(items, request_id.clone());
    if client.call(call.clone()).await == Outcome::Unknown && request_id.is_some() {
        // Under its id it counts once, on every shard.
        client.call(call).await;
    }
}

/// An id that is new, or was used before: with the same cost, another one, or to be given back.
async fn with_id(client: &mut Client, shared: &Shared) {
    const REMEMBERED: usize = 20;
    let known: Vec<Used> = shared.ids.lock().iter().cloned().collect();
    let used = (!known.is_empty() && client.draw.chance(60)).then(|| client.draw.pick(&known).clone());
    let Some(Used { key, cost, request_id }) = used else {
        let used = Used {
            key: format!("k-{}", client.draw.below(4)),
            cost: client.draw.between(1, 3),
            request_id: client.unique("r"),
        };
        let items = vec![item("ids", &used.key, used.cost)];
        let call = check(items, Some(used.request_id.clone()));
        let outcome = client.call(call.clone()).await;
        if outcome == Outcome::Unknown {
            // Whoever does not know asks again under the same id.
            client.call(call).await;
        }
        let mut ids = shared.ids.lock();
        ids.push_back(used);
        if ids.len() > REMEMBERED {
            ids.pop_front();
        }
        return;
    };
    let policy = "ids".to_owned();
    match client.draw.below(10) {
        0..3 => drop(client.call(Call::Refund { policy, key, cost, request_id }).await),
        3 => drop(client.call(check(vec![item("ids", &key, cost + 1)], Some(request_id))).await),
        _ => drop(client.call(check(vec![item("ids", &key, cost)], Some(request_id))).await),
    }
}

/// Gives a policy other terms under way, and reads them through other nodes.
async fn change(mut client: Client) {
    let policy = || "changing".to_owned();
    for terms in changes().into_iter().cycle() {
        if !client.turn().await {
            return;
        }
        let outcome = client.call(Call::PutPolicy { policy: policy(), terms }).await;
        if let Outcome::Answered { reply: Reply::Policy { .. } } = outcome {
            client.call(Call::GetPolicy { policy: policy() }).await;
        }
    }
}
