//! What each bucket admitted against what it was allowed to.
//!
//! To look at, not to judge: a policy that changed during the run is drawn by the most generous terms it had, and a
//! reset adds a whole capacity. The checker of limits is exact where this is generous.

use std::collections::{BTreeMap, HashMap, HashSet};

use onceward_checkers::bounds::DRIFT_PERCENT;
use onceward_checkers::history::{Algorithm, Call, History, Item, Mode, Operation, Outcome, Reply, Terms};

/// Points of a curve: as many as a small plot has pixels to tell apart.
const CURVE_POINTS_MAX: usize = 240;

pub struct Bucket {
    pub policy: String,
    pub key: String,
    pub terms: Terms,
    pub checks: u64,
    pub denied: u64,
    /// Cost admitted for certain, refunds off.
    pub admitted: u64,
    pub worst: Worst,
    pub curve: Vec<Point>,
}

/// The interval that came nearest to its bound.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Worst {
    /// What was admitted beyond what refilled meanwhile, as a share of the capacity: 1 is the bound.
    pub share: f64,
    pub from_us: u64,
    pub until_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub at_us: u64,
    pub admitted: f64,
    pub allowed: f64,
}

/// Something that happened to a bucket, somewhere between its two times. `cost` below zero gives back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Charge {
    pub invoked_us: u64,
    pub returned_us: u64,
    pub cost: f64,
}

#[derive(Default)]
struct Events<'a> {
    charges: Vec<Charge>,
    admitted_ids: HashSet<&'a str>,
    resets: Vec<u64>,
    checks: u64,
    denied: u64,
}

/// The buckets whose terms the history tells, the busiest first.
pub fn buckets(history: &History) -> Vec<Bucket> {
    let terms = most_generous_terms(history);
    let mut events: BTreeMap<(&str, &str), Events> = BTreeMap::new();
    let mut operations: Vec<&Operation> = history.operations.iter().collect();
    operations.sort_by_key(|operation| operation.invoked_us);
    operations.into_iter().for_each(|operation| note(&mut events, operation));
    let mut buckets: Vec<Bucket> = events
        .into_iter()
        .filter(|(_, events)| events.checks > 0)
        .filter_map(|((policy, key), events)| Some(bucket(policy, key, terms.get(policy)?.clone(), events)))
        .collect();
    buckets.sort_by_key(|bucket| std::cmp::Reverse((bucket.checks, bucket.admitted)));
    buckets
}

fn most_generous_terms(history: &History) -> HashMap<&str, Terms> {
    let mut most: HashMap<&str, Terms> = HashMap::new();
    for operation in &history.operations {
        let Call::PutPolicy { policy, terms } = &operation.call else { continue };
        if operation.outcome == Outcome::Refused {
            continue;
        }
        let known = most.entry(policy).or_insert_with(|| terms.clone());
        known.burst = known.burst.max(terms.burst);
        if rate_per_us(terms) > rate_per_us(known) {
            (known.amount, known.window_us) = (terms.amount, terms.window_us);
        }
    }
    most
}

fn rate_per_us(terms: &Terms) -> f64 {
    terms.amount as f64 / terms.window_us.max(1) as f64
}

fn note<'a>(events: &mut BTreeMap<(&'a str, &'a str), Events<'a>>, operation: &'a Operation) {
    let open_end_us = if operation.outcome == Outcome::Unknown { u64::MAX } else { operation.returned_us };
    match &operation.call {
        Call::Check { items, mode: Mode::Enforce, request_id } => {
            note_check(events, operation, items, request_id.as_deref())
        }
        Call::Refund { policy, key, cost, .. } if operation.outcome != Outcome::Refused => {
            let charge = Charge { invoked_us: operation.invoked_us, returned_us: open_end_us, cost: -(*cost as f64) };
            events.entry((policy, key)).or_default().charges.push(charge);
        }
        Call::Reset { policy, key } if operation.outcome != Outcome::Refused => {
            events.entry((policy, key)).or_default().resets.push(operation.invoked_us);
        }
        _ => {}
    }
}

fn note_check<'a>(
    events: &mut BTreeMap<(&'a str, &'a str), Events<'a>>,
    operation: &'a Operation,
    items: &'a [Item],
    request_id: Option<&'a str>,
) {
    let Outcome::Answered { reply: Reply::Checked { allowed, results } } = &operation.outcome else { return };
    for (item, result) in items.iter().zip(results).filter(|(_, result)| !result.degraded) {
        let events = events.entry((&item.policy, &item.key)).or_default();
        events.checks += 1;
        events.denied += u64::from(!result.allowed);
        let repeated = *allowed && request_id.is_some_and(|id| !events.admitted_ids.insert(id));
        if *allowed && !repeated {
            let (invoked_us, returned_us) = (operation.invoked_us, operation.returned_us);
            events.charges.push(Charge { invoked_us, returned_us, cost: item.cost as f64 });
        }
    }
}

fn bucket(policy: &str, key: &str, terms: Terms, mut events: Events) -> Bucket {
    let capacity = terms.burst as f64;
    events.charges.extend(events.resets.iter().map(|&at_us| Charge {
        invoked_us: at_us,
        returned_us: u64::MAX,
        cost: -capacity,
    }));
    let (charges, gifts): (Vec<Charge>, Vec<Charge>) = events.charges.iter().partition(|charge| charge.cost >= 0.0);
    let refunded: f64 = gifts.iter().filter(|gift| gift.returned_us != u64::MAX).map(|gift| gift.cost).sum();
    let worst = match terms.algorithm {
        Algorithm::TokenBucket => {
            worst_interval(&charges, &gifts, capacity, rate_per_us(&terms) * (1.0 + DRIFT_PERCENT as f64 / 100.0))
        }
        Algorithm::SlidingWindow => worst_window(&charges, &gifts, capacity, terms.window_us),
    };
    Bucket {
        policy: policy.to_owned(),
        key: key.to_owned(),
        checks: events.checks,
        denied: events.denied,
        admitted: (charges.iter().map(|charge| charge.cost).sum::<f64>() + refunded).max(0.0) as u64,
        worst,
        curve: curve(&charges, &gifts, &terms),
        terms,
    }
}

/// Over all intervals: what was charged within, less what was given back meanwhile, less what refilled.
fn worst_interval(charges: &[Charge], gifts: &[Charge], capacity: f64, rate_per_us: f64) -> Worst {
    let mut starts: Vec<u64> = charges.iter().map(|charge| charge.invoked_us).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut ends: Vec<(u64, &Charge)> = charges.iter().map(|charge| (charge.returned_us, charge)).collect();
    ends.extend(gifts.iter().map(|gift| (gift.invoked_us, gift)));
    ends.sort_by(|a, b| (a.0, a.1.cost).partial_cmp(&(b.0, b.1.cost)).expect("costs are numbers"));

    let mut suffixes = Suffixes::new(starts.len());
    let mut worst = Worst::default();
    for (end_us, charge) in ends {
        if charge.cost >= 0.0 {
            let start = starts.partition_point(|&start_us| start_us < charge.invoked_us);
            suffixes.add(start, charge.cost, starts[start] as f64 * rate_per_us);
        } else if let Some(start) = starts.partition_point(|&start_us| start_us <= charge.returned_us).checked_sub(1) {
            suffixes.add(start, charge.cost, f64::NEG_INFINITY);
        }
        let (most, start) = suffixes.most();
        let share = (most - end_us as f64 * rate_per_us) / capacity.max(1.0);
        if share > worst.share {
            worst = Worst { share, from_us: starts[start], until_us: end_us };
        }
    }
    worst
}

/// Over all windows: what was charged within, less what was given back meanwhile.
fn worst_window(charges: &[Charge], gifts: &[Charge], capacity: f64, window_us: u64) -> Worst {
    let mut charges = charges.to_vec();
    charges.sort_by_key(|charge| charge.returned_us);
    let mut worst = Worst::default();
    for (last, charge) in charges.iter().enumerate() {
        let until_us = charge.returned_us;
        let from_us = until_us.saturating_sub(window_us);
        let recent = charges[..=last].iter().rev().take_while(|charge| charge.returned_us >= from_us);
        let charged: f64 = recent.filter(|charge| charge.invoked_us >= from_us).map(|charge| charge.cost).sum();
        let meanwhile = gifts.iter().filter(|gift| gift.invoked_us <= until_us && gift.returned_us >= from_us);
        let share = (charged + meanwhile.map(|gift| gift.cost).sum::<f64>()) / capacity.max(1.0);
        if share > worst.share {
            worst = Worst { share, from_us, until_us };
        }
    }
    worst
}

/// A row of amounts of which the greatest sum from some place to the end, plus that place's own offset, is known at once.
/// A binary tree in an array: the children of `i` are `2i` and `2i + 1`.
struct Suffixes {
    nodes: Vec<Suffix>,
    leaves: usize,
}

#[derive(Clone, Copy)]
struct Suffix {
    sum: f64,
    most: f64,
    from: usize,
}

impl Suffixes {
    fn new(count: usize) -> Suffixes {
        let leaves = count.next_power_of_two();
        let nodes =
            (0..2 * leaves).map(|i| Suffix { sum: 0.0, most: f64::NEG_INFINITY, from: i.saturating_sub(leaves) });
        Suffixes { nodes: nodes.collect(), leaves }
    }

    /// A place counts as a beginning from when an offset is given for it.
    fn add(&mut self, place: usize, amount: f64, offset: f64) {
        let mut i = self.leaves + place;
        let leaf = &mut self.nodes[i];
        leaf.most = (leaf.most + amount).max(leaf.sum + amount + offset);
        leaf.sum += amount;
        while i > 1 {
            i /= 2;
            let (left, right) = (self.nodes[2 * i], self.nodes[2 * i + 1]);
            let through = left.most + right.sum;
            let (most, from) = if through > right.most { (through, left.from) } else { (right.most, right.from) };
            self.nodes[i] = Suffix { sum: left.sum + right.sum, most, from };
        }
    }

    fn most(&self) -> (f64, usize) {
        (self.nodes[1].most, self.nodes[1].from)
    }
}

/// What was admitted, and what was allowed, since the first charge.
fn curve(charges: &[Charge], gifts: &[Charge], terms: &Terms) -> Vec<Point> {
    let times = charges.iter().map(|charge| charge.returned_us);
    let (Some(from_us), Some(until_us)) = (charges.iter().map(|charge| charge.invoked_us).min(), times.max()) else {
        return Vec::new();
    };
    // What lasts for ever, as a reset does, allows more; a refund takes off what was admitted.
    let (resets, refunds): (Vec<Charge>, Vec<Charge>) = gifts.iter().partition(|gift| gift.returned_us == u64::MAX);
    let mut steps: Vec<(u64, f64)> = charges.iter().map(|charge| (charge.returned_us, charge.cost)).collect();
    steps.extend(refunds.iter().map(|refund| (refund.returned_us, refund.cost)));
    steps.sort_by_key(|step| step.0);

    let (mut next, mut admitted) = (0, 0.0);
    let points = CURVE_POINTS_MAX as u64;
    let sample = |i: u64| {
        let at_us = from_us + (until_us - from_us) * i / points;
        while next < steps.len() && steps[next].0 <= at_us {
            admitted += steps[next].1;
            next += 1;
        }
        let refilled = match terms.algorithm {
            Algorithm::TokenBucket => (at_us - from_us) as f64 * rate_per_us(terms),
            Algorithm::SlidingWindow => ((at_us - from_us) / terms.window_us.max(1) * terms.burst) as f64,
        };
        let reset: f64 = resets.iter().filter(|reset| reset.invoked_us <= at_us).map(|reset| -reset.cost).sum();
        Point { at_us, admitted, allowed: terms.burst as f64 + refilled + reset }
    };
    (0..=points).map(sample).collect()
}
