//! Steady load in the background that keeps count, per bucket, of what was admitted and what may have been.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::task::JoinSet;

use crate::client::{Api, Outcome};

/// How long a worker rests after a node did not take its request, so that a dead node costs no core.
const REST: Duration = Duration::from_millis(10);

/// Checks of cost 1, one bucket after the other, by several workers through all the nodes in turn.
pub struct Load {
    stop: Arc<AtomicBool>,
    workers: JoinSet<Tally>,
}

/// What came back.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Answers that said 200 and were not degraded, per key.
    pub admitted: BTreeMap<String, u64>,
    /// 504 or lost connection, per key: counted by the product or not.
    pub unknown: BTreeMap<String, u64>,
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Answers that `on_unavailable` gave.
    pub degraded: u64,
}

impl Load {
    pub fn start(apis: &[Api], policy: &str, keys: &[String], workers: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let turn = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for worker in 0..workers {
            let (apis, policy, keys) = (apis.to_vec(), policy.to_owned(), keys.to_vec());
            let (stop, turn) = (stop.clone(), turn.clone());
            tasks.spawn(async move {
                let mut tally = Tally::default();
                for round in worker.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = &keys[turn.fetch_add(1, Ordering::Relaxed) % keys.len()];
                    check(&apis[round % apis.len()], &policy, key, &mut tally).await;
                }
                tally
            });
        }
        Load { stop, workers: tasks }
    }

    pub async fn stop(mut self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut total = Tally::default();
        while let Some(tally) = self.workers.join_next().await {
            total.add(tally.expect("workers do not panic"));
        }
        total
    }
}

async fn check(api: &Api, policy: &str, key: &str, tally: &mut Tally) {
    let answer = api.try_check(&json!({ "checks": [{ "policy": policy, "key": key }] })).await;
    let outcome = Outcome::of(&answer);
    let degraded = match &answer {
        Ok(answer) if matches!(answer.status, 200 | 429) => answer.result().degraded.is_some(),
        _ => false,
    };
    match outcome {
        _ if degraded => tally.degraded += 1,
        Outcome::Done => *tally.admitted.entry(key.to_owned()).or_default() += 1,
        Outcome::Unknown => *tally.unknown.entry(key.to_owned()).or_default() += 1,
        Outcome::NotApplied => tokio::time::sleep(REST).await,
        Outcome::Denied | Outcome::Other(_) => {}
    }
    *tally.outcomes.entry(outcome).or_default() += 1;
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        for (key, count) in other.admitted {
            *self.admitted.entry(key).or_default() += count;
        }
        for (key, count) in other.unknown {
            *self.unknown.entry(key).or_default() += count;
        }
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.degraded += other.degraded;
    }

    pub fn count(&self, outcome: &Outcome) -> u64 {
        self.outcomes.get(outcome).copied().unwrap_or(0)
    }

    /// Panics when anything came back that a client must not see while nodes come and go.
    pub fn assert_only_expected_statuses(&self) {
        let others: Vec<&Outcome> =
            self.outcomes.keys().filter(|outcome| matches!(outcome, Outcome::Other(_))).collect();
        assert!(others.is_empty(), "unexpected statuses {others:?} in {:?}", self.outcomes);
    }
}
