//! The scenarios: what is asked, and what is looked at afterwards.

use std::{collections::BTreeMap, time::Duration};

use onceward_tests::{failover as outage, process_stats::disk_bytes};

use crate::{
    Options,
    connection::check_request,
    generator::{Load, Requests},
    keys::{Draw, KEY_BYTES, key, write_key},
    report,
    target::{POLICY, Target},
    usage::{Usage, resident_mib},
};

pub(crate) const WARM_UP: Duration = Duration::from_secs(1);
/// Elections, snapshots and compactions of what was before have come to rest.
pub(crate) const SETTLE: Duration = Duration::from_secs(5);
/// Most items of a check, so that buckets are made with few requests.
const ITEMS_MAX: usize = 16;

/// Writes drawn keys into a request made beforehand.
pub(crate) struct Drawn<F> {
    request: Vec<u8>,
    slots: Vec<usize>,
    draw: F,
}

impl<F: FnMut(&mut [u32]) + 'static> Drawn<F> {
    pub(crate) fn new(items: usize, draw: F) -> Drawn<F> {
        let checks = vec![item("k000000000"); items].join(",");
        let request = check_request(&format!("{{\"checks\":[{checks}]}}"));
        let slots = request.windows(KEY_BYTES).enumerate().filter(|(_, bytes)| *bytes == b"k000000000");
        let slots = slots.map(|(at, _)| at).collect();
        Drawn { request, slots, draw }
    }
}

impl<F: FnMut(&mut [u32]) + 'static> Requests for Drawn<F> {
    fn next(&mut self) -> &[u8] {
        let mut keys = [0; ITEMS_MAX];
        let keys = &mut keys[..self.slots.len()];
        (self.draw)(keys);
        for (slot, key) in self.slots.iter().zip(keys) {
            write_key(*key, &mut self.request[*slot..]);
        }
        &self.request
    }
}

fn item(key: &str) -> String {
    format!("{{\"policy\":\"{POLICY}\",\"key\":\"{key}\"}}")
}

pub async fn many_keys(target: &Target, options: &Options) {
    report::heading("many-keys", &format!("{} keys, {} connections", options.keys, options.connections));
    let keys = options.keys;
    measure(target, options, "check", |n| {
        let mut draw = Draw::new(n as u64 + 1);
        Drawn::new(1, move |slots| slots[0] = draw.below(keys))
    })
    .await;
}

pub async fn one_key(target: &Target, options: &Options) {
    report::heading("one-key", &format!("{} connections", options.connections));
    measure(target, options, "check", |_| Drawn::new(1, |slots| slots[0] = 1)).await;
}

pub async fn multi_check(target: &Target, options: &Options) {
    report::heading("multi-check", &format!("2 buckets on 2 shards, {} connections", options.connections));
    let shards: Vec<u16> = (0..options.keys).map(|number| target.shard_of(&key(number))).collect();
    let shards = std::rc::Rc::new(shards);
    measure(target, options, "check", |n| {
        let shards = shards.clone();
        let mut draw = Draw::new(n as u64 + 1);
        Drawn::new(2, move |slots| {
            let count = shards.len() as u32;
            slots[0] = draw.below(count);
            slots[1] = draw.below(count);
            // With a single shard there is no second one to find.
            for _ in 0..ITEMS_MAX {
                if shards[slots[0] as usize] != shards[slots[1] as usize] {
                    break;
                }
                slots[1] = draw.below(count);
            }
        })
    })
    .await;
}

pub(crate) async fn measure<R: Requests>(
    target: &Target,
    options: &Options,
    what: &str,
    requests: impl Fn(usize) -> R,
) {
    let load = Load::start(&target.addresses, options.connections, requests);
    load.during(tokio::time::sleep(WARM_UP)).await;
    let before = load.during(Usage::look(target)).await;
    load.begin_measuring();
    load.during(tokio::time::sleep(Duration::from_secs(options.seconds))).await;
    let after = load.during(Usage::look(target)).await;
    let measured = load.stop().await;
    report::load(what, &measured, &before.until(&after));
    report::resident(resident_mib(target));
}

pub async fn idle(target: &Target, options: &Options) {
    report::heading("idle", &format!("{} s without requests", options.seconds));
    tokio::time::sleep(SETTLE).await;
    let before = Usage::look(target).await;
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    let spent = before.until(&Usage::look(target).await);
    if let Some(cpu) = spent.cpu {
        let percent = cpu.as_secs_f64() * 100.0 / spent.elapsed.as_secs_f64();
        report::line("% of a core, all nodes", format!("{percent:.1}"));
    }
    report::line("log entries", spent.entries);
    report::line("fsyncs, all nodes", spent.fsyncs);
    report::resident(resident_mib(target));
}

/// Every request makes 16 buckets of one shard: one command.
pub async fn buckets(target: &Target, options: &Options) {
    report::heading("buckets", &format!("{} buckets", options.buckets));
    let Some(cluster) = target.own() else { return report::line("left out", "needs a cluster of its own") };
    let disk = || cluster.ids().map(|id| disk_bytes(&cluster.dir().join(id.to_string()))).collect::<Vec<u64>>();
    let (disk_before, resident_before) = (disk(), resident_mib(target));
    report::resident(resident_before);
    // Above the keys of the other scenarios.
    let batches = batches(target, options.keys..options.keys + options.buckets);
    let total = batches.len();
    let began = std::time::Instant::now();
    let failed = make_buckets(target, batches).await;
    report::line("made in", format!("{:.1} s, {failed} of {total} requests failed", began.elapsed().as_secs_f64()));
    report::resident(resident_mib(target));
    // The log of it is cut and the rows are compacted in the background.
    tokio::time::sleep(SETTLE).await;
    for (id, (before, after)) in disk_before.into_iter().zip(disk()).enumerate() {
        let grown = after.saturating_sub(before);
        let each = grown / u64::from(options.buckets);
        report::line(&format!("disk of node {}", id + 1), format!("{} MiB more, {each} bytes a bucket", grown >> 20));
    }
    report::resident(resident_mib(target));
}

/// The keys in batches of one shard each, the shards mixed as the keys are.
fn batches(target: &Target, numbers: std::ops::Range<u32>) -> Vec<Vec<u32>> {
    let mut open: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
    let mut batches = Vec::new();
    for number in numbers {
        let batch = open.entry(target.shard_of(&key(number))).or_default();
        batch.push(number);
        if batch.len() == ITEMS_MAX {
            batches.push(std::mem::take(batch));
        }
    }
    batches.extend(open.into_values().filter(|batch| !batch.is_empty()));
    batches
}

/// Sends the batches over a few connections; returns how many were not answered 200.
async fn make_buckets(target: &Target, batches: Vec<Vec<u32>>) -> usize {
    const CONNECTIONS: usize = 32;
    let shared = std::sync::Arc::new(std::sync::Mutex::new(batches));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..CONNECTIONS {
        let (shared, address) = (shared.clone(), target.addresses[n % target.addresses.len()].clone());
        tasks.spawn(async move {
            let mut connection = crate::connection::Connection::open(&address).await.expect("the node listens");
            let mut failed = 0;
            loop {
                let Some(batch) = shared.lock().expect("nobody panics with it").pop() else { return failed };
                let checks: Vec<String> = batch.iter().map(|number| item(&key(*number))).collect();
                let request = check_request(&format!("{{\"checks\":[{}]}}", checks.join(",")));
                failed += usize::from(!matches!(connection.call(&request).await, Ok(200)));
            }
        });
    }
    tasks.join_all().await.into_iter().sum()
}

pub async fn failover(target: &mut Target, options: &Options) {
    report::heading("failover", &format!("{} times, {} connections", options.rounds, options.connections));
    let (addresses, keys) = (target.addresses.clone(), options.keys);
    let Some(cluster) = target.own_mut() else { return report::line("left out", "needs a cluster of its own") };
    let data_shards = cluster.key_on_every_shard(POLICY).len() as u16;
    let (mut outages, mut elections, mut shards_led, mut false_elections) = (Vec::new(), 0, 0, 0);
    for round in 0..options.rounds {
        let load = Load::start(&addresses, options.connections, |n| {
            let mut draw = Draw::new(n as u64 + 1);
            Drawn::new(1, move |slots| slots[0] = draw.below(keys))
        });
        let result = load
            .during(async {
                tokio::time::sleep(WARM_UP).await;
                let victim = cluster.leader_of_shard(1 + round % data_shards).await;
                let result = outage::measure(cluster, POLICY, victim).await;
                cluster.node(victim).start();
                cluster.wait_ready(victim).await;
                result
            })
            .await;
        load.stop().await;
        report::line(&format!("round {}", round + 1), format!("{:?}, {} shards led", result.outage, result.shards_led));
        outages.push(result.outage);
        elections += result.elections;
        shards_led += result.shards_led;
        false_elections += result.false_elections;
    }
    let (median, max) = outage::median_and_max(outages);
    report::line("every shard serves after, median", format!("{median:?}"));
    report::line("every shard serves after, max", format!("{max:?}"));
    report::line("elections", format!("{elections} for {shards_led} shards led, {false_elections} false"));
}
