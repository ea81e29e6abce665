//! The scenarios of idempotency keys.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use onceward_tests::client::metric;

use crate::{
    Options,
    connection::post,
    generator::{Load, Measured, Requests},
    keys::Draw,
    report,
    scenarios::{Drawn, SETTLE, WARM_UP, measure},
    target::Target,
    usage::{Usage, resident_mib},
};

/// Enough for all shards to have many.
const ACCOUNTS: u32 = 1_000;
/// As a SHA-256 in hexadecimal.
const FINGERPRINT_BYTES: usize = 64;
const BODY_BYTES: usize = 100;
/// Records that are made at once while they are the means and not what is measured.
const MAKERS: usize = 128;

/// Keys of this run alone, so that a cluster can be measured twice.
pub(crate) fn run_id() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn names(run: u64, number: u32) -> String {
    format!("\"account\":\"account-{}\",\"key\":\"{run:x}-{number:09}\"", number % ACCOUNTS)
}

/// Text of the key that no compression makes much of, the same each time.
pub(crate) fn noise(number: u32, bytes: usize, alphabet: &[u8]) -> String {
    let mut draw = Draw::new(u64::from(number) + 1);
    (0..bytes).map(|_| char::from(alphabet[draw.below(alphabet.len() as u32) as usize])).collect()
}

fn begin(run: u64, number: u32, more: &str) -> Vec<u8> {
    let fingerprint = noise(number, FINGERPRINT_BYTES, b"0123456789abcdef");
    let names = names(run, number);
    post("/v1/idempotency/begin", &format!("{{{names},\"fingerprint\":\"{fingerprint}\"{more}}}"))
}

fn complete(run: u64, number: u32, token: u64) -> Vec<u8> {
    let body = noise(number, BODY_BYTES, b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ:, ");
    let response =
        format!("{{\"status\":201,\"headers\":{{\"content-type\":\"application/json\"}},\"body\":\"{body}\"}}");
    let names = names(run, number);
    post("/v1/idempotency/complete", &format!("{{{names},\"token\":{token},\"response\":{response}}}"))
}

/// The token in the answer to a `begin` that got the key.
fn token(answer: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(answer).ok()?;
    let digits = text.split_once("\"token\":")?.1;
    digits.split(|char: char| !char.is_ascii_digit()).next()?.parse().ok()
}

/// Begins a key, completes it, takes the next.
struct Pairs<F> {
    run: u64,
    request: Vec<u8>,
    number: u32,
    /// The next key, and what its `begin` has besides; `None`: there are no more, the last one is asked for again.
    next: F,
    token: Option<u64>,
}

impl<F: FnMut() -> Option<(u32, String)> + 'static> Pairs<F> {
    fn new(run: u64, next: F) -> Pairs<F> {
        Pairs { run, request: Vec::new(), number: 0, next, token: None }
    }
}

impl<F: FnMut() -> Option<(u32, String)> + 'static> Requests for Pairs<F> {
    fn next(&mut self) -> &[u8] {
        self.request = match self.token {
            Some(token) => complete(self.run, self.number, token),
            None => {
                let more = match (self.next)() {
                    Some((number, more)) => {
                        self.number = number;
                        more
                    }
                    None => String::new(),
                };
                begin(self.run, self.number, &more)
            }
        };
        &self.request
    }

    fn answered(&mut self, status: u16, answer: &[u8]) -> bool {
        self.token = match status {
            201 => token(answer),
            _ => None,
        };
        self.token.is_none()
    }
}

/// Numbers that no other connection takes.
fn counter() -> Rc<Cell<u32>> {
    Rc::default()
}

fn take(counter: &Cell<u32>) -> u32 {
    counter.replace(counter.get() + 1)
}

pub async fn pairs(target: &Target, options: &Options) {
    report::heading("pairs", &format!("begin and complete of new keys, {} connections", options.connections));
    let (run, counter) = (run_id(), counter());
    measure(target, options, "pair", |_| {
        let counter = counter.clone();
        Pairs::new(run, move || Some((take(&counter), String::new())))
    })
    .await;
}

pub async fn replays(target: &Target, options: &Options) {
    let keys = (options.keys / 10).max(1);
    report::heading("replays", &format!("{keys} completed keys, {} connections", options.connections));
    let run = run_id();
    make(target, run, keys, |_| String::new()).await;
    measure(target, options, "replay", |n| {
        let mut draw = Draw::new(n as u64 + 1);
        Pairs::new(run, move || Some((draw.below(keys), String::new())))
    })
    .await;
}

pub async fn hot_key(target: &Target, options: &Options) {
    report::heading("hot-key", &format!("one key at a time for all of {} connections", options.connections));
    let run = run_id();
    measure(target, options, "outcome", |_| {
        let counter = counter();
        Pairs::new(run, move || Some((take(&counter), ",\"wait_ms\":10000".to_owned())))
    })
    .await;
}

/// Makes `count` completed records; `more`: what the `begin` of each has besides.
async fn make(target: &Target, run: u64, count: u32, more: impl Fn(u32) -> String + Clone + 'static) {
    let counter = counter();
    let load = Load::start(&target.addresses, MAKERS, |_| {
        let (counter, more) = (counter.clone(), more.clone());
        Pairs::new(run, move || {
            let number = take(&counter);
            (number < count).then(|| (number, more(number)))
        })
    });
    load.during(async {
        while counter.get() < count + MAKERS as u32 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    load.stop().await;
}

/// Bytes of live rows, without the log, over all nodes.
async fn live_bytes(target: &Target) -> f64 {
    let mut sum = 0.0;
    for api in &target.apis {
        let text = api.get("/metrics").await.expect_status(200).body;
        let of = |family: &str| metric(&text, &format!("onceward_store_live_bytes{{family=\"{family}\"}}"));
        sum += of("state") + of("expiry");
    }
    sum
}

pub async fn records(target: &Target, options: &Options) {
    let count = options.records;
    report::heading("records", &format!("{count} completed records with bodies of {BODY_BYTES} bytes"));
    let before = live_bytes(target).await;
    report::resident(resident_mib(target));
    let (run, began) = (run_id(), Instant::now());
    // Longer than making them takes: all of them are there before the first expires.
    let lifetime = Duration::from_secs(60) + Duration::from_micros(250) * count;
    make(target, run, count, move |_| {
        format!(",\"ttl_ms\":{}", (lifetime.saturating_sub(began.elapsed())).as_millis().max(1_000))
    })
    .await;
    report::line("made in", format!("{:.1} s", began.elapsed().as_secs_f64()));
    tokio::time::sleep(SETTLE).await;
    let bytes = (live_bytes(target).await - before) / target.apis.len() as f64;
    report::line("disk a record and node, log excluded", format!("{:.0} bytes", bytes / f64::from(count)));
    report::resident(resident_mib(target));

    let calm = lifetime.saturating_sub(began.elapsed()).saturating_sub(Duration::from_secs(options.seconds + 4));
    tokio::time::sleep(calm).await;
    let quiet = under_load(target, options, Duration::from_secs(options.seconds)).await;
    tokio::time::sleep(lifetime.saturating_sub(began.elapsed())).await;
    let expiring = under_load(target, options, Duration::from_secs(options.seconds)).await;
    let p99 = |measured: &Measured| measured.latency_us.value_at_quantile(0.99) as f64 / 1000.0;
    report::line("p99 ms of checks, before / while expiring", format!("{:.1} / {:.1}", p99(&quiet), p99(&expiring)));
    report::resident(resident_mib(target));
}

/// A few connections' worth of checks, far from what the cluster can do.
async fn under_load(target: &Target, options: &Options, length: Duration) -> Measured {
    let keys = options.keys;
    let load = Load::start(&target.addresses, 16, |n| {
        let mut draw = Draw::new(n as u64 + 1);
        Drawn::new(1, move |slots| slots[0] = draw.below(keys))
    });
    load.during(tokio::time::sleep(WARM_UP)).await;
    let before = load.during(Usage::look(target)).await;
    load.begin_measuring();
    load.during(tokio::time::sleep(length)).await;
    let after = load.during(Usage::look(target)).await;
    let measured = load.stop().await;
    report::load("check", &measured, &before.until(&after));
    measured
}
