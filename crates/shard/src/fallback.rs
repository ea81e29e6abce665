//! What stands in for a shard that can't answer: one in-process bucket for each bucket that was asked for meanwhile.
//!
//! It begins empty and is kept across flaps, so that a shard that comes and goes gives nobody a fresh burst.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use onceward_core::{
    limits::{Allowance, CheckItem, ItemResult, LocalBucket, OnUnavailable, Policy},
    seams::Clock,
};
use parking_lot::Mutex;

/// Buckets kept on a node. Beyond it the oldest is forgotten, which costs its key a start from empty and adds nothing.
const LOCAL_BUCKETS_MAX: usize = 100_000;

type BucketKey = (String, String);

pub(crate) struct LocalBuckets {
    nodes: u16,
    clock: Arc<dyn Clock>,
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    by_key: HashMap<BucketKey, LocalBucket>,
    by_age: VecDeque<BucketKey>,
}

impl LocalBuckets {
    pub(crate) fn new(nodes: usize, clock: Arc<dyn Clock>) -> LocalBuckets {
        let nodes = u16::try_from(nodes).expect("a cluster has a handful of nodes");
        LocalBuckets { nodes, clock, buckets: Mutex::default() }
    }

    /// Decides `items`, all or nothing, each by its policy's failure mode. Takes from the buckets only when all are
    /// allowed and `take` says so.
    pub(crate) fn decide(&self, items: &[CheckItem], policies: &[&Arc<Policy>], take: bool) -> Vec<ItemResult> {
        let now_us = self.clock.monotonic_us();
        let mut buckets = self.buckets.lock();
        // Costs on the same bucket add up, so later items see what earlier ones took.
        let mut drafts: HashMap<BucketKey, LocalBucket> = HashMap::new();
        let mut results = Vec::with_capacity(items.len());
        for (item, policy) in items.iter().zip(policies) {
            results.push(match (policy.spec.resolve(&item.key), policy.spec.on_unavailable) {
                (Allowance::Exempt, _) => ItemResult { exempt: true, ..untouched(policy, true) },
                (Allowance::Deny, _) => ItemResult { limit: 0, retry_after_us: None, ..untouched(policy, false) },
                (Allowance::Limit(_), OnUnavailable::Allow) => untouched(policy, true),
                (Allowance::Limit(_), OnUnavailable::Deny) => untouched(policy, false),
                (Allowance::Limit(terms), OnUnavailable::Local) => {
                    let share = terms.share(self.nodes);
                    let key = (item.policy.clone(), item.key.clone());
                    let draft = drafts
                        .entry(key)
                        .or_insert_with_key(|key| buckets.find_or_make(key, || LocalBucket::new(&share, now_us)));
                    draft.take(&share, item.cost, now_us)
                }
            });
        }
        if take && results.iter().all(|result| result.allowed) {
            buckets.by_key.extend(drafts);
        }
        results
    }
}

impl Buckets {
    /// A copy of the bucket. One that is made is kept at once, also when it then denies: it fills from now on.
    fn find_or_make(&mut self, key: &BucketKey, make: impl FnOnce() -> LocalBucket) -> LocalBucket {
        if let Some(bucket) = self.by_key.get(key) {
            return bucket.clone();
        }
        if self.by_age.len() >= LOCAL_BUCKETS_MAX
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.by_key.remove(&oldest);
        }
        let bucket = make();
        self.by_age.push_back(key.clone());
        self.by_key.insert(key.clone(), bucket.clone());
        bucket
    }
}

/// How soon a shard that was lost is worth another try.
const RETRY_AFTER_US: u64 = 1_000_000;

/// A result that no bucket stands behind.
fn untouched(policy: &Policy, allowed: bool) -> ItemResult {
    let terms = policy.spec.terms();
    ItemResult {
        allowed,
        exempt: false,
        limit: terms.burst(),
        remaining: if allowed { terms.burst() } else { 0 },
        retry_after_us: Some(if allowed { 0 } else { RETRY_AFTER_US }),
        reset_after_us: 0,
        window_us: terms.fill_us(),
    }
}
