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

use crate::limits::cost_on_bucket;

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
        // Costs on the same bucket add up, and its items share one result.
        let mut drafts: HashMap<BucketKey, (LocalBucket, ItemResult)> = HashMap::new();
        let mut results = Vec::with_capacity(items.len());
        for (item, policy) in items.iter().zip(policies) {
            results.push(match (policy.spec.resolve(&item.key), policy.spec.on_unavailable) {
                (Allowance::Exempt, _) => ItemResult { exempt: true, ..untouched(policy, true) },
                (Allowance::Deny, _) => {
                    ItemResult { limit: 0, retry_after_us: None, reset_after_us: 0, ..untouched(policy, false) }
                }
                (Allowance::Limit(_), OnUnavailable::Allow) => untouched(policy, true),
                (Allowance::Limit(_), OnUnavailable::Deny) => untouched(policy, false),
                (Allowance::Limit(terms), OnUnavailable::Local) => {
                    let share = terms.share(self.nodes);
                    let draft = drafts.entry((item.policy.clone(), item.key.clone())).or_insert_with_key(|key| {
                        let mut bucket = buckets.find_or_make(key, || LocalBucket::new(&share, now_us));
                        let result = bucket.take(&share, cost_on_bucket(items, item), now_us);
                        (bucket, result)
                    });
                    draft.1.clone()
                }
            });
        }
        if !results.iter().all(|result| result.allowed) {
            for (item, result) in items.iter().zip(&mut results).filter(|(_, result)| result.allowed && !result.exempt)
            {
                let left = result.remaining.saturating_add(cost_on_bucket(items, item));
                result.remaining = left.min(result.limit);
            }
        } else if take {
            buckets.by_key.extend(drafts.into_iter().map(|(key, (bucket, _))| (key, bucket)));
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
        reset_after_us: if allowed { 0 } else { RETRY_AFTER_US },
        window_us: terms.fill_us(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use onceward_core::limits::{PolicyDraft, PolicyName};

    use super::*;

    #[derive(Default)]
    struct SetClock(AtomicU64);

    impl Clock for SetClock {
        fn monotonic_us(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        fn wall_ms(&self) -> u64 {
            0
        }
    }

    fn policy() -> Arc<Policy> {
        let draft = PolicyDraft { rate: Some("3/s".to_owned()), burst: Some(9), ..PolicyDraft::default() };
        let name = PolicyName::parse("p").unwrap();
        Arc::new(Policy { name, revision: 1, created_revision: 1, spec: draft.check().unwrap() })
    }

    fn item(key: &str, cost: u64) -> CheckItem {
        CheckItem { policy: "p".to_owned(), key: key.to_owned(), cost }
    }

    fn allowed(results: &[ItemResult]) -> Vec<bool> {
        results.iter().map(|result| result.allowed).collect()
    }

    #[test]
    fn a_local_bucket_starts_empty_and_fills_to_the_nodes_share() {
        let clock = Arc::new(SetClock::default());
        let (local, policy) = (LocalBuckets::new(3, clock.clone()), policy());
        assert_eq!(allowed(&local.decide(&[item("k", 1)], &[&policy], true)), [false]);
        clock.0.store(1_000_000, Ordering::Relaxed);
        let result = &local.decide(&[item("k", 1)], &[&policy], true)[0];
        assert_eq!((result.allowed, result.limit, result.remaining), (true, 3, 0));
        clock.0.store(3_600_000_000, Ordering::Relaxed);
        assert_eq!(local.decide(&[item("k", 1)], &[&policy], true)[0].remaining, 2);
    }

    #[test]
    fn a_denied_group_takes_nothing_and_says_what_is_left() {
        let clock = Arc::new(SetClock::default());
        let (local, policy) = (LocalBuckets::new(3, clock.clone()), policy());
        local.decide(&[item("full", 1), item("empty", 1)], &[&policy, &policy], true);
        clock.0.store(2_000_000, Ordering::Relaxed);
        assert_eq!(allowed(&local.decide(&[item("empty", 2)], &[&policy], true)), [true]);
        for _ in 0..2 {
            let results = local.decide(&[item("full", 1), item("empty", 1)], &[&policy, &policy], true);
            assert_eq!(allowed(&results), [true, false]);
            assert_eq!(results[0].remaining, 2, "nothing was taken");
        }
    }
}
