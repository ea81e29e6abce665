//! Decide: the common half of a check and a hold. Finds out what every item comes to before anything is taken.

use std::sync::Arc;

use super::{
    Allowance, Bucket, CheckItem, Decision, ItemResult, Refusal, Terms,
    chain::PolicyChain,
    turn::{AdmittedId, Found, Turn},
};
use crate::rows::RowsError;

/// Why nothing was decided.
pub(super) enum Stop {
    Refused(Refusal),
    Rows(RowsError),
}

impl From<RowsError> for Stop {
    fn from(error: RowsError) -> Stop {
        Stop::Rows(error)
    }
}

impl Stop {
    pub(super) fn refusal(self) -> Result<Refusal, RowsError> {
        match self {
            Stop::Refused(refusal) => Ok(refusal),
            Stop::Rows(error) => Err(error),
        }
    }
}

/// What all items come to. Nothing was written yet.
pub(super) struct Plan<'a> {
    buckets: Vec<Looked<'a>>,
    /// For each item the place of its bucket.
    bucket_of_item: Vec<usize>,
}

/// The items on one bucket, their costs added up.
struct Asked<'a> {
    policy: &'a str,
    key: &'a str,
    cost: u64,
    chain: Arc<PolicyChain>,
}

struct Looked<'a> {
    asked: Asked<'a>,
    standing: Standing,
}

enum Standing {
    /// Exempt, denied, or admitted earlier under the same request_id.
    Settled(ItemResult),
    Counted(Box<Counted>),
}

struct Counted {
    terms: Terms,
    fits: bool,
    bucket: Found<Bucket>,
    /// Where a request_id is remembered, if there is one.
    admitted_id: Option<Found<Option<AdmittedId>>>,
}

/// Looks at every bucket, and refuses what can't be decided at all.
pub(super) fn decide<'a>(
    turn: &mut Turn<'_>,
    items: &'a [CheckItem],
    request_id: Option<&str>,
) -> Result<Plan<'a>, Stop> {
    let (asked, bucket_of_item) = group(turn, items)?;
    let mut buckets = Vec::with_capacity(asked.len());
    for asked in asked {
        let standing = asked.look(turn, request_id)?;
        buckets.push(Looked { asked, standing });
    }
    Ok(Plan { buckets, bucket_of_item })
}

fn group<'a>(turn: &mut Turn<'_>, items: &'a [CheckItem]) -> Result<(Vec<Asked<'a>>, Vec<usize>), Stop> {
    let mut buckets: Vec<Asked<'a>> = Vec::with_capacity(items.len());
    let mut bucket_of_item = Vec::with_capacity(items.len());
    for item in items {
        let at = match buckets.iter().position(|asked| asked.policy == item.policy && asked.key == item.key) {
            Some(at) => at,
            None => {
                let Some(chain) = turn.chain(&item.policy)? else {
                    return Err(Stop::Refused(Refusal::PolicyNotFound { policy: item.policy.clone() }));
                };
                buckets.push(Asked { policy: &item.policy, key: &item.key, cost: 0, chain });
                buckets.len() - 1
            }
        };
        buckets[at].cost = buckets[at].cost.saturating_add(item.cost);
        bucket_of_item.push(at);
    }
    Ok((buckets, bucket_of_item))
}

impl Asked<'_> {
    fn look(&self, turn: &Turn<'_>, request_id: Option<&str>) -> Result<Standing, Stop> {
        let spec = &self.chain.newest().spec;
        let allowance = spec.resolve(self.key);
        if allowance == Allowance::Exempt {
            return Ok(Standing::Settled(exempt(&spec.terms())));
        }
        let admitted_id = request_id.map(|id| turn.admitted_id(self.policy, self.key, id)).transpose()?;
        if let Some(earlier) = admitted_id.as_ref().and_then(|found| found.value.as_ref())
            && earlier.is_remembered(&self.chain, turn.now)
        {
            if earlier.cost == self.cost {
                return Ok(Standing::Settled(earlier.result.clone()));
            }
            let (policy, key) = (self.policy.to_owned(), self.key.to_owned());
            return Err(Stop::Refused(Refusal::RequestIdReused { policy, key, admitted_cost: earlier.cost }));
        }
        let Allowance::Limit(terms) = allowance else { return Ok(Standing::Settled(denied(&spec.terms()))) };
        if self.cost > terms.burst() {
            let (policy, key, burst) = (self.policy.to_owned(), self.key.to_owned(), terms.burst());
            return Err(Stop::Refused(Refusal::CostExceedsBurst { policy, key, cost: self.cost, burst }));
        }
        let bucket = turn.bucket(&self.chain, self.policy, self.key)?;
        let fits = self.cost <= bucket.value.left(&terms);
        Ok(Standing::Counted(Box::new(Counted { terms, fits, bucket, admitted_id })))
    }
}

impl Plan<'_> {
    pub(super) fn allowed(&self) -> bool {
        self.buckets.iter().all(|looked| match &looked.standing {
            Standing::Settled(result) => result.allowed,
            Standing::Counted(counted) => counted.fits,
        })
    }

    /// Changes the buckets that are counted here and now.
    pub(super) fn for_each_counted(&mut self, mut change: impl FnMut(&mut Bucket, &Terms, u64)) {
        for looked in &mut self.buckets {
            if let Standing::Counted(counted) = &mut looked.standing
                && looked.asked.cost > 0
            {
                change(&mut counted.bucket.value, &counted.terms, looked.asked.cost);
            }
        }
    }

    /// One result an item, of the buckets as they are in the plan now.
    pub(super) fn decision(&self) -> Decision {
        let results: Vec<ItemResult> = self.buckets.iter().map(Looked::result).collect();
        let results = self.bucket_of_item.iter().map(|&at| results[at].clone()).collect();
        Decision { allowed: self.allowed(), results }
    }

    /// Writes the changed buckets, and remembers the request_id on each as admitted if `remember` says so.
    pub(super) fn store(self, turn: &mut Turn<'_>, remember: bool) {
        for looked in self.buckets {
            let result = looked.result();
            let Standing::Counted(counted) = looked.standing else { continue };
            if let Some(found) = counted.admitted_id.filter(|_| remember) {
                let epoch = counted.bucket.value.epoch;
                turn.remember(found, &looked.asked.chain, epoch, looked.asked.cost, result);
            }
            if looked.asked.cost > 0 {
                turn.put_bucket(counted.bucket, Allowance::Limit(counted.terms));
            }
        }
    }
}

impl Looked<'_> {
    fn result(&self) -> ItemResult {
        match &self.standing {
            Standing::Settled(result) => result.clone(),
            Standing::Counted(counted) => counted.bucket.value.report(&counted.terms, self.asked.cost, counted.fits),
        }
    }
}

/// The key is exempt: the bucket isn't looked at, and reads as full.
pub(super) fn exempt(terms: &Terms) -> ItemResult {
    ItemResult {
        allowed: true,
        exempt: true,
        limit: terms.burst(),
        remaining: terms.burst(),
        retry_after_us: Some(0),
        reset_after_us: 0,
        window_us: terms.fill_us(),
    }
}

/// The key is denied by name; no wait will help.
pub(super) fn denied(terms: &Terms) -> ItemResult {
    ItemResult {
        allowed: false,
        exempt: false,
        limit: 0,
        remaining: 0,
        retry_after_us: None,
        reset_after_us: 0,
        window_us: terms.fill_us(),
    }
}
