//! Checks as a client asks for them: over any number of shards, all or nothing, and answered by the policy's failure
//! mode when a shard can't.
//!
//! Every shard but the last holds, the last one decides; then the holds are committed behind the answer. A hold that is
//! neither committed nor aborted lapses and counts as spent, so a coordinator that dies costs admits and never adds one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::{join, join_all};
use onceward_core::{
    cluster::ShardId,
    command::{Command, Reply},
    limits::{
        Allowance, CheckCommand, CheckItem, CheckReply, Decision, HoldCommand, HoldId, HoldReply, ItemResult, Mode,
        OnUnavailable, Refusal, SettleCommand, SettleReply,
    },
};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tracing::{Instrument, error};

use crate::{
    fallback::LocalBuckets,
    node::Surroundings,
    outcome::{NotApplied, Outcome, ServiceError},
    policies::PolicyView,
    router::Router,
};

/// Longer than any request's deadline: a hold in use never lapses under its coordinator.
const HOLD_LEASE: Duration = Duration::from_secs(5);
/// How long a commit or abort is tried. Past it the hold lapses, which is right, only stricter.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// A check as it came in: 1–16 items, validated.
#[derive(Debug, Clone)]
pub struct CheckRequest {
    pub mode: Mode,
    pub items: Vec<CheckItem>,
    pub request_id: Option<String>,
    pub deadline: Instant,
}

/// The decision, and for each item who made it if its shard didn't.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckAnswer {
    pub decision: Decision,
    pub degraded: Vec<Option<Degraded>>,
}

/// An item was answered by its policy's `on_unavailable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Degraded {
    Local,
    Allowed,
    Denied,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckError {
    /// The request can't be decided as it is; nothing was taken.
    Refused(Refusal),
    /// A shard is unavailable and a policy of it says `deny`: definitely not counted.
    DeniedUnavailable(CheckAnswer),
    Service(ServiceError),
}

/// What checks need of the node.
pub(crate) struct Limits {
    pub router: Arc<Router>,
    pub surroundings: Arc<Surroundings>,
    pub policies: Arc<PolicyView>,
    pub local: LocalBuckets,
}

/// The items of one shard, and their places in the request.
#[derive(Clone)]
struct Part {
    shard: ShardId,
    places: Vec<usize>,
    items: Vec<CheckItem>,
}

/// What one shard said about its part.
enum Said {
    Decided(Decision),
    Refused(Refusal),
    /// `may_have_counted`: the command was handed over.
    Silent {
        may_have_counted: bool,
    },
    Overloaded,
}

impl Limits {
    pub(crate) async fn check(self: &Arc<Self>, request: CheckRequest) -> Result<CheckAnswer, CheckError> {
        let parts = self.parts(&request.items);
        let deadline = request.deadline.min(Instant::now() + self.patience(&request.items));
        let run = Run::new(self.clone(), request, deadline);
        match (run.request.mode, parts.len()) {
            (Mode::Peek, _) => run.peek(parts).await,
            (_, 1) => run.enforce(parts).await,
            // Holds must be settled also when the client goes away and its request is dropped.
            _ => match tokio::spawn(run.enforce(parts).in_current_span()).await {
                Ok(answer) => answer,
                Err(panic) => {
                    error!(%panic, "a check crashed");
                    Err(CheckError::Service(ServiceError::Unknown))
                }
            },
        }
    }

    fn parts(&self, items: &[CheckItem]) -> Vec<Part> {
        let mut parts: BTreeMap<ShardId, Part> = BTreeMap::new();
        for (place, item) in items.iter().enumerate() {
            let shard = self.surroundings.manifest.bucket_shard(&item.policy, &item.key);
            let part = parts.entry(shard).or_insert_with(|| Part { shard, places: Vec::new(), items: Vec::new() });
            part.places.push(place);
            part.items.push(item.clone());
        }
        parts.into_values().collect()
    }

    /// How long this check waits for its shards: the least of its policies' timeouts. A policy that this node hasn't
    /// seen yet doesn't limit it.
    fn patience(&self, items: &[CheckItem]) -> Duration {
        let policies = self.policies.load();
        let timeout_ms = items.iter().filter_map(|item| Some(policies.get(&item.policy)?.spec.timeout_ms)).min();
        timeout_ms.map_or(Duration::MAX / 4, |ms| Duration::from_millis(ms.into())).min(Duration::from_secs(60))
    }

    async fn ask(&self, shard: ShardId, command: Command, deadline: Instant) -> Outcome<Reply> {
        if self.router.quorum_is_lost(shard) {
            return Outcome::NotApplied(NotApplied::NoQuorum);
        }
        self.router.submit(shard, &command, deadline).await
    }

    /// `None` when it isn't known to be applied.
    async fn settle(&self, shard: ShardId, id: HoldId, attempt: u128, spent: bool) -> Option<SettleReply> {
        let command = Command::Settle(SettleCommand { id, attempt, spent });
        match self.router.submit(shard, &command, Instant::now() + SETTLE_TIMEOUT).await {
            Outcome::Applied(Reply::Settle(reply)) => Some(reply),
            _ => None,
        }
    }
}

/// One check under way.
struct Run {
    limits: Arc<Limits>,
    request: CheckRequest,
    deadline: Instant,
    hold: HoldId,
    attempt: u128,
    held: Vec<Part>,
    /// Parts whose hold may have been taken or not.
    unsure: Vec<Part>,
    results: Vec<Option<ItemResult>>,
    degraded: Vec<Option<Degraded>>,
}

impl Run {
    fn new(limits: Arc<Limits>, request: CheckRequest, deadline: Instant) -> Run {
        let count = request.items.len();
        let attempt = limits.surroundings.entropy.nonce();
        let hold = hold_id(&request, attempt);
        Run {
            limits,
            request,
            deadline,
            hold,
            attempt,
            held: Vec::new(),
            unsure: Vec::new(),
            results: vec![None; count],
            degraded: vec![None; count],
        }
    }

    /// Asks all shards at once; nothing is taken, so nothing needs to be undone.
    async fn peek(mut self, parts: Vec<Part>) -> Result<CheckAnswer, CheckError> {
        self.look_at(&parts, self.request.request_id.clone()).await?;
        if parts.iter().any(|part| !self.allows(part)) {
            self.untake(&parts);
        }
        let answer = self.answer();
        if answer.degraded.contains(&Some(Degraded::Denied)) {
            return Err(CheckError::DeniedUnavailable(answer));
        }
        Ok(answer)
    }

    async fn enforce(mut self, parts: Vec<Part>) -> Result<CheckAnswer, CheckError> {
        for (number, part) in parts.iter().enumerate() {
            let is_last = number + 1 == parts.len();
            let allowed = match self.ask(part, is_last).await {
                Said::Decided(decision) => {
                    let allowed = decision.allowed;
                    self.record(part, decision.results);
                    if allowed && !is_last {
                        self.held.push(part.clone());
                    }
                    allowed
                }
                Said::Refused(refusal) => {
                    self.abort().await;
                    return Err(CheckError::Refused(refusal));
                }
                Said::Overloaded => {
                    let given_back = self.abort().await;
                    return Err(told(given_back, CheckError::Service(NotApplied::Overloaded.into())));
                }
                Said::Silent { may_have_counted } => {
                    if may_have_counted && !is_last {
                        self.unsure.push(part.clone());
                    }
                    self.decide_without(part, may_have_counted).await?
                }
            };
            if !allowed {
                let given_back = self.abort().await;
                let looked_at = self.look_at_untouched(&parts[number + 1..]).await;
                return looked_at.and_then(|()| self.denied()).map_err(|error| told(given_back, error));
            }
        }
        self.commit();
        Ok(self.answer())
    }

    async fn ask(&self, part: &Part, is_last: bool) -> Said {
        let items = part.items.clone();
        let request_id = self.request.request_id.clone();
        let command = if is_last {
            Command::Check(CheckCommand { mode: self.request.mode, items, request_id })
        } else {
            let lease_us = HOLD_LEASE.as_micros() as u64;
            Command::Hold(HoldCommand { id: self.hold, attempt: self.attempt, items, request_id, lease_us })
        };
        said(self.limits.ask(part.shard, command, self.deadline).await)
    }

    /// The failure mode of the part's policies. `Ok(allowed)`, or the error that ends the check.
    async fn decide_without(&mut self, part: &Part, may_have_counted: bool) -> Result<bool, CheckError> {
        let service_error =
            if may_have_counted { ServiceError::Unknown } else { ServiceError::from(NotApplied::NoQuorum) };
        let results = match self.degrade(part, true, service_error.clone()) {
            Ok(results) => results,
            Err(error) => {
                let given_back = self.abort().await;
                return Err(told(given_back, error));
            }
        };
        let denied_by_mode = part.places.iter().any(|place| self.degraded[*place] == Some(Degraded::Denied));
        let allowed = results.iter().all(|result| result.allowed);
        self.record(part, results);
        if denied_by_mode && may_have_counted && self.request.mode != Mode::Shadow {
            self.abort().await;
            return Err(CheckError::Service(service_error));
        }
        Ok(allowed)
    }

    /// Results for a part whose shard is silent. The error that ends the check when its policies can't decide it either:
    /// one isn't known here, or a cost is more than it ever admits.
    fn degrade(&mut self, part: &Part, take: bool, silent: ServiceError) -> Result<Vec<ItemResult>, CheckError> {
        let policies = self.limits.policies.load();
        let known: Option<Vec<_>> = part.items.iter().map(|item| policies.get(&item.policy)).collect();
        let known = known.ok_or(CheckError::Service(silent))?;
        let mut denied = false;
        for ((place, item), policy) in part.places.iter().zip(&part.items).zip(&known) {
            // Exempt and blocked keys are decided by the policy alone, with or without the shard.
            let Allowance::Limit(terms) = policy.spec.resolve(&item.key) else { continue };
            let (cost, burst) = (cost_on_bucket(&part.items, item), terms.burst());
            if cost > burst {
                let (policy, key) = (item.policy.clone(), item.key.clone());
                return Err(CheckError::Refused(Refusal::CostExceedsBurst { policy, key, cost, burst }));
            }
            denied |= policy.spec.on_unavailable == OnUnavailable::Deny;
            self.degraded[*place] = Some(match policy.spec.on_unavailable {
                OnUnavailable::Local => Degraded::Local,
                OnUnavailable::Allow => Degraded::Allowed,
                OnUnavailable::Deny => Degraded::Denied,
            });
        }
        let take = take && !denied && self.request.mode != Mode::Peek;
        Ok(self.limits.local.decide(&part.items, &known, take))
    }

    fn record(&mut self, part: &Part, results: Vec<ItemResult>) {
        for (place, result) in part.places.iter().zip(results) {
            self.results[*place] = Some(result);
        }
    }

    /// Fills in the results of shards that weren't asked because an earlier one denied. A peek tells what would be left
    /// after taking; nothing will be taken, so that is added again.
    async fn look_at_untouched(&mut self, parts: &[Part]) -> Result<(), CheckError> {
        self.look_at(parts, None).await?;
        self.untake(parts);
        Ok(())
    }

    fn allows(&self, part: &Part) -> bool {
        part.places.iter().all(|place| self.results[*place].as_ref().is_some_and(|result| result.allowed))
    }

    /// Adds the costs that parts would have taken, had another part not denied.
    fn untake(&mut self, parts: &[Part]) {
        for part in parts {
            // A part that denies takes nothing by itself.
            if !self.allows(part) {
                continue;
            }
            for (place, item) in part.places.iter().zip(&part.items) {
                let cost = cost_on_bucket(&part.items, item);
                if let Some(result) = self.results[*place].as_mut().filter(|result| !result.exempt) {
                    result.remaining = result.remaining.saturating_add(cost).min(result.limit);
                }
            }
        }
    }

    /// Peeks at all parts at once.
    async fn look_at(&mut self, parts: &[Part], request_id: Option<String>) -> Result<(), CheckError> {
        let asked = join_all(parts.iter().map(|part| {
            let items = part.items.clone();
            let command = Command::Check(CheckCommand { mode: Mode::Peek, items, request_id: request_id.clone() });
            self.limits.ask(part.shard, command, self.deadline)
        }))
        .await;
        for (part, outcome) in parts.iter().zip(asked) {
            let results = match said(outcome) {
                Said::Decided(decision) => decision.results,
                Said::Refused(refusal) => return Err(CheckError::Refused(refusal)),
                Said::Overloaded => return Err(CheckError::Service(NotApplied::Overloaded.into())),
                Said::Silent { .. } => self.degrade(part, false, NotApplied::NoQuorum.into())?,
            };
            self.record(part, results);
        }
        Ok(())
    }

    /// Gives back what was held, and takes over what the buckets say then. A hold that may still arrive finds that it
    /// was aborted. Returns whether all of that is certain; a hold that lapses instead counts.
    async fn abort(&mut self) -> bool {
        let (held, unsure) = (std::mem::take(&mut self.held), std::mem::take(&mut self.unsure));
        let limits = &self.limits;
        let abort = |part: &Part| limits.settle(part.shard, self.hold, self.attempt, false);
        let (settled, marked) = join(join_all(held.iter().map(abort)), join_all(unsure.iter().map(abort))).await;
        let mut given_back = marked.iter().all(Option::is_some);
        for (part, reply) in held.iter().zip(settled) {
            match reply.filter(|reply| reply.settled) {
                Some(reply) => self.record(part, reply.results),
                None => given_back = false,
            }
        }
        given_back
    }

    /// Commits behind the answer: a hold that lapses instead counts the same.
    fn commit(&mut self) {
        let (held, unsure) = (std::mem::take(&mut self.held), std::mem::take(&mut self.unsure));
        for part in held.into_iter().chain(unsure) {
            let (limits, hold, attempt) = (self.limits.clone(), self.hold, self.attempt);
            tokio::spawn(async move { limits.settle(part.shard, hold, attempt, true).await });
        }
    }

    fn denied(self) -> Result<CheckAnswer, CheckError> {
        let shadow = self.request.mode == Mode::Shadow;
        let answer = self.answer();
        if answer.degraded.contains(&Some(Degraded::Denied)) && !shadow {
            return Err(CheckError::DeniedUnavailable(answer));
        }
        Ok(answer)
    }

    fn answer(self) -> CheckAnswer {
        let results: Vec<ItemResult> =
            self.results.into_iter().map(|result| result.expect("every part recorded its results")).collect();
        let allowed = results.iter().all(|result| result.allowed);
        CheckAnswer { decision: Decision { allowed, results }, degraded: self.degraded }
    }
}

/// What the items together cost on the bucket of one of them.
pub(crate) fn cost_on_bucket(items: &[CheckItem], one: &CheckItem) -> u64 {
    let same = items.iter().filter(|item| item.policy == one.policy && item.key == one.key);
    same.fold(0, |sum: u64, item| sum.saturating_add(item.cost))
}

/// What a check that fails is told: unless everything `given_back` is certain to be, nothing is said to be uncounted.
fn told(given_back: bool, error: CheckError) -> CheckError {
    match error {
        CheckError::Service(_) | CheckError::DeniedUnavailable(_) if !given_back => {
            CheckError::Service(ServiceError::Unknown)
        }
        error => error,
    }
}

/// The hold's name: the same for every retry of a request with a request_id, else of this attempt alone.
fn hold_id(request: &CheckRequest, attempt: u128) -> HoldId {
    let Some(request_id) = &request.request_id else { return HoldId(attempt) };
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(request_id.as_bytes());
    for item in &request.items {
        part(item.policy.as_bytes());
        part(item.key.as_bytes());
        part(&item.cost.to_le_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    HoldId(u128::from_le_bytes(digest[..16].try_into().expect("a digest has 32 bytes")))
}

fn said(outcome: Outcome<Reply>) -> Said {
    match outcome {
        Outcome::Applied(Reply::Check(CheckReply::Decided(decision)))
        | Outcome::Applied(Reply::Hold(HoldReply::Decided(decision))) => Said::Decided(decision),
        Outcome::Applied(Reply::Check(CheckReply::Refused(refusal)))
        | Outcome::Applied(Reply::Hold(HoldReply::Refused(refusal))) => Said::Refused(refusal),
        Outcome::NotApplied(NotApplied::Overloaded) => Said::Overloaded,
        Outcome::NotApplied(_) | Outcome::Applied(Reply::Hold(HoldReply::Aborted)) => {
            Said::Silent { may_have_counted: false }
        }
        Outcome::Applied(reply) => {
            error!(?reply, "a check was answered by another command's reply");
            Said::Silent { may_have_counted: true }
        }
        Outcome::Unknown => Said::Silent { may_have_counted: true },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_may_have_cost_something_is_not_said_to_be_uncounted() {
        let overloaded = || CheckError::Service(NotApplied::Overloaded.into());
        assert_eq!(told(true, overloaded()), overloaded());
        assert_eq!(told(false, overloaded()), CheckError::Service(ServiceError::Unknown));
        let refusal = || CheckError::Refused(Refusal::PolicyNotFound { policy: "p".to_owned() });
        assert_eq!(told(false, refusal()), refusal(), "it can never be decided");
    }
}
