//! The scenarios of webhooks.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use onceward_tests::process_stats::disk_bytes;
use serde_json::json;
use tokio::task::{JoinSet, LocalSet};

use crate::{
    Options,
    connection::{Connection, post},
    idempotency::{noise, run_id},
    receiver::{self, Board, NUMBER_MARK},
    report,
    scenarios::{SETTLE, WARM_UP},
    target::Target,
    usage::{Usage, resident_mib},
};

const RATES_PER_S: [u32; 2] = [40, 200];
/// Deliveries that may be outstanding at the sustained maximum: what is published faster than that isn't sustained.
const OUTSTANDING_MAX: usize = 1_000;
/// Of a payload, besides its number.
const PAYLOAD_BYTES: usize = 200;
/// Endpoints that each message of `webhooks-pending` is for.
const DEAD_ENDPOINTS: u32 = 10;

/// Applications that messages go to in turn.
struct Apps {
    run: u64,
    count: u32,
    payload: String,
}

impl Apps {
    fn path(&self, turn: usize) -> String {
        format!("bench-{:x}-{}", self.run, turn as u32 % self.count)
    }

    /// Makes the applications, each with so many endpoints.
    async fn make(target: &Target, count: u32, endpoints: u32, url: &str) -> Apps {
        let apps =
            Apps { run: run_id(), count, payload: noise(1, PAYLOAD_BYTES, b"0123456789abcdefghijklmnopqrstuvwxyz") };
        let api = &target.apis[0];
        for turn in 0..count as usize {
            let app = apps.path(turn);
            api.create_app(&app).await;
            for _ in 0..endpoints {
                let body = json!({ "url": url });
                api.webhooks("POST", &format!("/app/{app}/endpoint"), &body).await.expect_status(201);
            }
        }
        apps
    }

    fn message(&self, number: usize) -> Vec<u8> {
        let payload = format!("{NUMBER_MARK}{number:09}\",\"text\":\"{}\"}}", self.payload);
        let path = format!("/api/v1/app/{}/msg", self.path(number));
        post(&path, &format!("{{\"eventType\":\"bench\",\"payload\":{payload}}}"))
    }
}

pub async fn webhooks(target: &Target, options: &Options) {
    report::heading("webhooks", &format!("{} endpoints, payloads of {PAYLOAD_BYTES} bytes", options.endpoints));
    let local = LocalSet::new();
    local
        .run_until(async {
            let board = Rc::new(Board::new());
            let url = receiver::listen(board.clone()).await.expect("a port on loopback");
            let apps = Rc::new(Apps::make(target, options.endpoints, 1, &url).await);
            for rate in RATES_PER_S {
                at_rate(target, options, &apps, &board, rate).await;
            }
            sustained(target, options, &apps, &board).await;
        })
        .await;
}

/// One message after the other at a steady rate, whatever the answers take.
async fn at_rate(target: &Target, options: &Options, apps: &Rc<Apps>, board: &Rc<Board>, rate: u32) {
    const CONNECTIONS: usize = 32;
    let (ticks, refused) = (Rc::new(Cell::new(0_u32)), Rc::<Cell<u64>>::default());
    let began = Instant::now();
    let length = WARM_UP + Duration::from_secs(options.seconds);
    let mut publishers = JoinSet::new();
    for n in 0..CONNECTIONS {
        let (apps, board, ticks, refused) = (apps.clone(), board.clone(), ticks.clone(), refused.clone());
        let address = target.addresses[n % target.addresses.len()].clone();
        publishers.spawn_local(async move {
            let mut connection = Connection::open(&address).await.expect("the node listens");
            loop {
                let at = Duration::from_secs(1) * ticks.replace(ticks.get() + 1) / rate;
                if at >= length {
                    return;
                }
                tokio::time::sleep(at.saturating_sub(began.elapsed())).await;
                refused.set(refused.get() + u64::from(!publish(&mut connection, &apps, &board).await));
            }
        });
    }
    tokio::time::sleep(WARM_UP).await;
    board.measure(true);
    publishers.join_all().await;
    drain(board).await;
    board.measure(false);
    let latency_us = board.take_latency_us();
    report::latency(&format!("at {rate}/s: p50 / p99 / max ms"), &latency_us);
    if refused.get() > 0 {
        report::line("publishes that were not accepted", refused.get());
    }
}

/// As many as are delivered, and no more.
async fn sustained(target: &Target, options: &Options, apps: &Rc<Apps>, board: &Rc<Board>) {
    let (stop, refused) = (Rc::<Cell<bool>>::default(), Rc::<Cell<u64>>::default());
    let mut publishers = JoinSet::new();
    for n in 0..options.connections {
        let (apps, board, stop, refused) = (apps.clone(), board.clone(), stop.clone(), refused.clone());
        let address = target.addresses[n % target.addresses.len()].clone();
        publishers.spawn_local(async move {
            let mut connection = Connection::open(&address).await.expect("the node listens");
            while !stop.get() {
                if board.outstanding() >= OUTSTANDING_MAX {
                    board.progress().await;
                } else if !publish(&mut connection, &apps, &board).await {
                    refused.set(refused.get() + 1);
                }
            }
        });
    }
    tokio::time::sleep(WARM_UP).await;
    let (before, delivered_before) = (Usage::look(target).await, board.delivered());
    board.measure(true);
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    board.measure(false);
    let (spent, delivered) = (before.until(&Usage::look(target).await), board.delivered() - delivered_before);
    let latency_us = board.take_latency_us();
    stop.set(true);
    board.wake_all();
    publishers.join_all().await;
    drain(board).await;
    report::line(
        "sustained: published and delivered/s",
        format!("{:.0}", delivered as f64 / spent.elapsed.as_secs_f64()),
    );
    report::latency(&format!("with {OUTSTANDING_MAX} outstanding: p50 / p99 / max ms"), &latency_us);
    report::spent("delivery", delivered, &spent);
    report::line("refused, delivered twice", format!("{}, {}", refused.get(), board.repeated()));
    report::resident(resident_mib(target));
}

/// Whether it was accepted.
async fn publish(connection: &mut Connection, apps: &Apps, board: &Board) -> bool {
    let number = board.publish();
    let accepted = matches!(connection.call(&apps.message(number)).await, Ok(202));
    if !accepted {
        board.withdraw(number);
    }
    accepted
}

/// Waits until nothing is outstanding, or nothing more comes.
async fn drain(board: &Board) {
    const SILENCE_MAX: Duration = Duration::from_secs(10);
    while board.outstanding() > 0 {
        if tokio::time::timeout(SILENCE_MAX, board.progress()).await.is_err() {
            return report::line("never delivered", board.outstanding());
        }
    }
}

pub async fn pending(target: &Target, options: &Options) {
    let messages = options.pending.div_ceil(DEAD_ENDPOINTS);
    let deliveries = u64::from(messages) * u64::from(DEAD_ENDPOINTS);
    report::heading("webhooks-pending", &format!("{deliveries} deliveries to endpoints that never answer"));
    let local = LocalSet::new();
    local
        .run_until(async {
            let url = receiver::listen_dead().await.expect("a port on loopback");
            let apps = Rc::new(Apps::make(target, options.endpoints, DEAD_ENDPOINTS, &url).await);
            let (disk_before, board, began) = (disk(target), Rc::new(Board::new()), Instant::now());
            report::resident(resident_mib(target));
            let mut publishers = JoinSet::new();
            for n in 0..options.connections {
                let (apps, board) = (apps.clone(), board.clone());
                let address = target.addresses[n % target.addresses.len()].clone();
                publishers.spawn_local(async move {
                    let mut connection = Connection::open(&address).await.expect("the node listens");
                    while board.outstanding() < messages as usize {
                        publish(&mut connection, &apps, &board).await;
                    }
                });
            }
            publishers.join_all().await;
            let took = began.elapsed().as_secs_f64();
            report::line("made in", format!("{took:.1} s, {:.0} deliveries/s", deliveries as f64 / took));
            report::resident(resident_mib(target));
            tokio::time::sleep(SETTLE).await;
            let disk_each = (disk(target).saturating_sub(disk_before)) as f64 / deliveries as f64;
            report::line("disk a delivery, all nodes, with the log", format!("{disk_each:.0} bytes"));
            report::resident(resident_mib(target));
        })
        .await;
}

fn disk(target: &Target) -> u64 {
    let own = target.own();
    own.map_or(0, |cluster| cluster.ids().map(|id| disk_bytes(&cluster.dir().join(id.to_string()))).sum())
}
