//! G1: limits never over-admit.
//!
//! For every bucket and every interval: what certainly was admitted in it is at most what the policies that may have been
//! in force allow, and what refunds, resets and changes of the policy may have given back. Small buckets whose level can be
//! known exactly have to be linearizable besides. Answers marked `degraded` and shadow checks are outside.

mod level;
mod most;
mod terms;

use std::collections::{BTreeMap, HashMap};

use crate::{
    history::{Call, History, Item, Mode, Operation, Reply},
    linear::Judgement,
    time::seconds,
    verdict::{Checker, Verdict},
};

use most::{Admission, Gift};
use terms::Policy;

pub struct Limits;

/// A policy and a key.
type BucketName<'a> = (&'a str, &'a str);

/// What a history says of a bucket.
#[derive(Default)]
struct Bucket<'a> {
    admissions: Vec<Admission>,
    gifts: Vec<Gift>,
    /// By request_id and cost: an admitted id counts once, at one of the calls that may have been admitted first. With another
    /// cost it is another check, of which at most one can be admitted.
    identified: HashMap<(&'a str, u64), Admission>,
    refunds: HashMap<&'a str, Gift>,
    /// All that was asked of it.
    operations: Vec<&'a Operation>,
    /// Whether it took part in a check of several buckets, whose holds may deny others and are given back.
    in_company: bool,
}

impl Checker for Limits {
    fn promise(&self) -> &'static str {
        "G1"
    }

    fn check(&self, history: &History) -> Verdict {
        let policies = terms::policies(&history.operations);
        let mut verdict = Verdict::new(self.promise());
        let (mut admitted, mut buckets, mut levels, mut undecided, mut unknown) = (0, 0, 0, 0, 0);
        for ((policy_name, key), bucket) in gather(history) {
            let name = format!("{policy_name}/{key}");
            let Some(policy) = policies.get(policy_name).filter(|policy| policy.has_one_algorithm()) else {
                unknown += 1;
                continue;
            };
            let exact = level::judge(policy, &bucket);
            let (admissions, gifts) = bucket.settled(policy);
            admitted += admissions.len();
            buckets += 1;
            if let Some(excess) = most::excess(policy, admissions, gifts) {
                verdict.violated(format!("bucket {name}: {excess}"));
            }
            match exact {
                None => {}
                Some((Judgement::Linearizable, _)) => levels += 1,
                Some((Judgement::Undecided, _)) => undecided += 1,
                Some((Judgement::Violated(_), at)) => verdict.violated(format!(
                    "bucket {name}: not linearizable, no order of calls explains the answer at {} of {:?}",
                    seconds(at.returned_us),
                    at.outcome
                )),
            }
        }
        verdict.judged("buckets", buckets);
        verdict.judged("admitted checks", admitted);
        verdict.judged("buckets whose level is known exactly", levels);
        verdict.measured("buckets whose exact level was not decided", undecided.to_string());
        verdict.measured("buckets of policies that the history does not define", unknown.to_string());
        verdict.told_briefly()
    }
}

fn gather(history: &History) -> BTreeMap<BucketName<'_>, Bucket<'_>> {
    let mut buckets: BTreeMap<BucketName<'_>, Bucket<'_>> = BTreeMap::new();
    for operation in history.operations.iter().filter(|operation| operation.may_have_applied()) {
        match &operation.call {
            Call::Check { items, mode, request_id } => {
                for (place, item) in items.iter().enumerate() {
                    let bucket = buckets.entry((&item.policy, &item.key)).or_default();
                    bucket.in_company |= items.len() > 1;
                    bucket.operations.push(operation);
                    let same = |other: &&Item| (&other.policy, &other.key) == (&item.policy, &item.key);
                    if items.iter().position(|other| same(&other)) != Some(place) {
                        continue;
                    }
                    // Costs on the same bucket add up.
                    let cost = items.iter().filter(same).map(|item| item.cost).sum();
                    match mode {
                        Mode::Enforce => bucket.check(operation, place, cost, request_id.as_deref()),
                        // What a later check with the same id repeats may have been taken by this one.
                        Mode::Shadow => bucket.may_be_first(operation, cost, request_id.as_deref()),
                        Mode::Peek => {}
                    }
                }
            }
            Call::Refund { policy, key, cost, request_id } => {
                let bucket = buckets.entry((policy, key)).or_default();
                bucket.operations.push(operation);
                bucket.refund(operation, *cost, request_id);
            }
            Call::Reset { policy, key } => {
                let bucket = buckets.entry((policy, key)).or_default();
                bucket.operations.push(operation);
                if !matches!(operation.reply(), Some(Reply::NotFound)) {
                    let until_us = operation.effective_until_us();
                    bucket.gifts.push(Gift { from_us: operation.invoked_us, until_us, amount: u64::MAX });
                }
            }
            _ => {}
        }
    }
    buckets
}

impl<'a> Bucket<'a> {
    fn check(&mut self, operation: &'a Operation, place: usize, cost: u64, request_id: Option<&'a str>) {
        let admitted = match operation.reply() {
            Some(Reply::Checked { allowed, results }) => match results.get(place) {
                Some(result) if result.degraded => None,
                result => Some(*allowed && result.is_some_and(|result| result.allowed)),
            },
            Some(_) => Some(false),
            None => None,
        };
        let admission = Admission { from_us: operation.invoked_us, until_us: operation.returned_us, cost };
        match (request_id, admitted) {
            (None, Some(true)) => self.admissions.push(admission),
            (Some(id), Some(true)) => self.identify(id, admission),
            (_, Some(false)) => {}
            (id, None) => self.may_be_first(operation, cost, id),
        }
    }

    /// A call that may have been admitted may be the one that others with its id repeat.
    fn may_be_first(&mut self, operation: &Operation, cost: u64, request_id: Option<&'a str>) {
        if let Some(id) = request_id {
            self.identify(id, Admission { from_us: operation.invoked_us, until_us: u64::MAX, cost });
        }
    }

    fn identify(&mut self, id: &'a str, admission: Admission) {
        let known = self.identified.entry((id, admission.cost)).or_insert(admission);
        known.from_us = known.from_us.min(admission.from_us);
        known.until_us = known.until_us.min(admission.until_us);
    }

    /// A refund is credited once, whatever it was repeated for, and before its first answer.
    fn refund(&mut self, operation: &Operation, cost: u64, request_id: &'a str) {
        if !matches!(operation.reply(), None | Some(Reply::Refunded)) {
            return;
        }
        let (from_us, until_us) = (operation.invoked_us, operation.effective_until_us());
        let gift = self.refunds.entry(request_id).or_insert(Gift { from_us, until_us, amount: cost });
        gift.from_us = gift.from_us.min(from_us);
        gift.until_us = gift.until_us.min(until_us);
        gift.amount = gift.amount.max(cost);
    }

    fn settled(self, policy: &Policy) -> (Vec<Admission>, Vec<Gift>) {
        let mut admissions = self.admissions;
        admissions.extend(self.identified.into_values().filter(|admission| admission.until_us != u64::MAX));
        let mut gifts = self.gifts;
        for gift in &mut gifts {
            gift.amount = gift.amount.min(policy.capacity_max(gift.from_us, gift.until_us));
        }
        gifts.extend(self.refunds.into_values());
        gifts.extend(policy.gifts());
        (admissions, gifts)
    }
}
