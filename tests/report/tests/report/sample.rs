//! A made-up run that looks like a real one, from a seed: calls of all kinds, faults, changes of leaders, deliveries.

use onceward_checkers::history::{
    Algorithm, Call, Delivery, Effect, History, Item, ItemResult, Leader, Message, Mode, Nemesis, Operation, Outcome,
    Recovery, RecoveryFrom, Reply, Run, Terms,
};

const SECOND: u64 = 1_000_000;
const SHARDS: u16 = 4;
const NODES: u16 = 3;
const ROUND: u64 = 16 * SECOND;
const FAULTS: [&str; 7] =
    ["leader-isolated", "random-halves", "one-way", "kill-leader", "pause-leader", "slow-fsync", "wall-clock"];

/// Draws that depend on the seed alone.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// `per_second` calls over `seconds`.
pub fn run(seed: u64, seconds: u64, per_second: u64) -> History {
    let mut draw = Draw(seed);
    let mut history = History { run: Some(about(seed, seconds)), ..History::default() };
    put_policies(&mut history);
    let end = seconds * SECOND;
    for shard in 0..=SHARDS {
        let node = Some(shard % NODES + 1);
        history.leaders.push(Leader { at_us: 300_000, shard, term: 1, node });
    }
    for (round, from_us) in (1..).map(|round| (round, round * ROUND)).take_while(|(_, from_us)| from_us + ROUND < end) {
        fault(&mut history, &mut draw, round, from_us);
    }
    let mut levels = [20_000_000u64; 8];
    for i in 0..seconds * per_second {
        let invoked_us = SECOND / 2 + i * SECOND / per_second + draw.below(4_000);
        call(&mut history, &mut draw, &mut levels, i, invoked_us);
    }
    history
}

fn about(seed: u64, seconds: u64) -> Run {
    Run {
        seed,
        nodes: NODES,
        data_shards: SHARDS,
        nemesis: "all".to_owned(),
        workload: "all".to_owned(),
        duration_ms: seconds * 1000,
        version: "0.1.0-12-gabc1234".to_owned(),
        started_at: "2026-11-30T21:40:00.123456789Z".to_owned(),
        command: format!("scripts/partition --seed {seed}"),
    }
}

fn put_policies(history: &mut History) {
    for (policy, algorithm, burst) in [("small", Algorithm::TokenBucket, 20), ("window", Algorithm::SlidingWindow, 40)]
    {
        let terms = Terms { algorithm, amount: 40, window_us: SECOND, burst, on_unavailable: "deny".to_owned() };
        let call = Call::PutPolicy { policy: policy.to_owned(), terms: terms.clone() };
        let outcome = Outcome::Answered { reply: Reply::Policy { terms, revision: 1, pending: false } };
        let (process, node) = (1_000_000 + burst, 1);
        history.operations.push(Operation {
            process,
            node,
            invoked_us: 1,
            returned_us: 9_000,
            last: false,
            call,
            outcome,
        });
    }
}

fn fault(history: &mut History, draw: &mut Draw, round: u64, from_us: u64) {
    let name = FAULTS[(round as usize - 1) % FAULTS.len()];
    let until_us = from_us + 9 * SECOND + draw.below(2 * SECOND);
    let mut effects = vec![Effect { name: "refused".to_owned(), count: 20 + draw.below(60) }];
    if name != "slow-fsync" && name != "wall-clock" {
        let shard = draw.below(u64::from(SHARDS) + 1) as u16;
        let lost = history.leaders.iter().rev().find(|leader| leader.shard == shard).expect("each shard has a leader");
        let (term, node) = (lost.term + 1, lost.node.map(|node| node % NODES + 1));
        let took_us = 600_000 + draw.below(900_000);
        history.leaders.push(Leader { at_us: from_us + 200_000, shard, term: term - 1, node: None });
        history.leaders.push(Leader { at_us: from_us + took_us, shard, term, node });
        let (after, nemesis) = (RecoveryFrom::LeaderLoss, name.to_owned());
        history.recoveries.push(Recovery { from_us, took_us, after, nemesis });
        effects.push(Effect { name: "leaders_changed".to_owned(), count: 1 });
    }
    let took_us = 200_000 + draw.below(1_800_000);
    let nemesis = name.to_owned();
    history.recoveries.push(Recovery { from_us: until_us, took_us, after: RecoveryFrom::Healing, nemesis });
    let target = format!("node {}", draw.below(u64::from(NODES)) + 1);
    history.nemeses.push(Nemesis { from_us, until_us, name: name.to_owned(), target, effects });
}

fn call(history: &mut History, draw: &mut Draw, levels: &mut [u64; 8], i: u64, invoked_us: u64) {
    let at_work = history.nemeses.iter().find(|nemesis| nemesis.from_us <= invoked_us && invoked_us < nemesis.until_us);
    let fresh = at_work.is_some_and(|nemesis| invoked_us < nemesis.from_us + 1_200_000);
    let slow = if at_work.is_some_and(|nemesis| nemesis.name == "slow-fsync") { 60_000 } else { 0 };
    let took_us = 1_200 + draw.below(1_500) + slow + if draw.below(60) == 0 { draw.below(40_000) } else { 0 };
    let mut returned_us = invoked_us + took_us;
    let chance = draw.below(100);
    let failure = match (fresh, at_work.is_some()) {
        (true, _) if chance < 45 => Some(Outcome::Refused),
        (true, _) if chance < 60 => Some(Outcome::Unknown),
        (_, true) if chance < 3 => Some(Outcome::Refused),
        (_, true) if chance < 4 => Some(Outcome::Unknown),
        _ => None,
    };
    if failure == Some(Outcome::Unknown) {
        returned_us += SECOND;
    }
    let (call, reply) = match i % 4 {
        0 | 1 => check(draw, levels, i, invoked_us),
        2 => begin(i),
        _ => publish(history, i, returned_us, failure.is_none()),
    };
    let outcome = failure.unwrap_or(Outcome::Answered { reply });
    let node = (i % u64::from(NODES)) as u16 + 1;
    history.operations.push(Operation { process: i, node, invoked_us, returned_us, last: false, call, outcome });
}

/// Levels are in millionths of a token; the first bucket is hot.
fn check(draw: &mut Draw, levels: &mut [u64; 8], i: u64, at_us: u64) -> (Call, Reply) {
    let which = if draw.below(2) == 0 { 0 } else { draw.below(8) as usize };
    let last_us = levels[which] >> 32;
    let now_10ms = at_us / 10_000;
    let level = ((levels[which] & 0xffff_ffff) + now_10ms.saturating_sub(last_us) * 400_000).min(20_000_000);
    let allowed = level >= SECOND;
    levels[which] = now_10ms << 32 | if allowed { level - SECOND } else { level };
    let policy = if which == 7 { "window" } else { "small" };
    let item = Item { policy: policy.to_owned(), key: format!("customer-{which}"), cost: 1 };
    let result = ItemResult { allowed, limit: 20, remaining: level / SECOND, retry_after_ms: None, degraded: false };
    let call = Call::Check { items: vec![item], mode: Mode::Enforce, request_id: Some(format!("r{i}")) };
    (call, Reply::Checked { allowed, results: vec![result] })
}

fn begin(i: u64) -> (Call, Reply) {
    let call = Call::Begin {
        account: format!("account-{}", i % 5),
        key: format!("k{i}"),
        fingerprint: "f".to_owned(),
        attempt_id: format!("a{i}"),
        lease_ms: 800,
        ttl_ms: 60_000,
        hold: false,
    };
    (call, Reply::Started { token: i })
}

fn publish(history: &mut History, i: u64, at_us: u64, accepted: bool) -> (Call, Reply) {
    let app = format!("account-{}", i % 5);
    let event_id = format!("e{i}");
    let message_id = format!("msg_{i}");
    let repeats = if i.is_multiple_of(17) { 2 } else { 1 };
    for again in 0..if accepted { repeats } else { 0 } {
        history.deliveries.push(Delivery {
            at_us: at_us + 3_000 + again * SECOND,
            app: app.clone(),
            endpoint: "ep".to_owned(),
            message_id: message_id.clone(),
            event_id: event_id.clone(),
            sequence: i,
            digest: "00".to_owned(),
            signed: true,
            answered: Some(if again + 1 == repeats { 200 } else { 500 }),
        });
    }
    let message = Message { app: app.clone(), event_id, digest: "00".to_owned() };
    (Call::Publish { app, message }, Reply::Message { id: message_id, digest: None })
}
