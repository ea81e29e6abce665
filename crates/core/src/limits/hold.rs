//! Hold: the first half of a check over several shards. Debits every named bucket of this shard and keeps the debit
//! as a grant until it is settled; a hold that lapses counts as spent.

use serde::{Deserialize, Serialize};

use super::{
    CheckItem, Decision, Refusal,
    bounds::{ABORTED_ATTEMPTS_MAX, TOMBSTONE_US},
    decide::decide,
    turn::{Found, Turn},
};
use crate::{rows::RowsError, time::ShardTime};

/// Names a hold across its retries: the request_id's hash where there is one, else the coordinator's nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HoldId(pub u128);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldCommand {
    pub id: HoldId,
    /// The coordinator's attempt: the newest attempt on an id owns the hold, an abort by an older one changes nothing.
    pub attempt: u128,
    pub items: Vec<CheckItem>,
    pub request_id: Option<String>,
    /// The grant lapses this long after the entry's stamp.
    pub lease_us: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldReply {
    /// `allowed`: held. Otherwise nothing was taken.
    Decided(Decision),
    Refused(Refusal),
    /// This attempt was aborted before its hold arrived; nothing was taken.
    Aborted,
}

/// What is known of a hold's id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HoldRow {
    pub(super) held: Option<Held>,
    /// Attempts that were aborted, the latest last; their hold may still be on its way.
    pub(super) aborted: Vec<u128>,
    /// How long `aborted` is kept.
    pub(super) remembered_until: ShardTime,
}

/// A hold that nobody settled yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) attempt: u128,
    pub(super) items: Vec<CheckItem>,
    pub(super) request_id: Option<String>,
    pub(super) decision: Decision,
    pub(super) ends_at: ShardTime,
}

impl HoldRow {
    pub(super) fn due(&self) -> ShardTime {
        self.held.as_ref().map_or(self.remembered_until, |held| held.ends_at.max(self.remembered_until))
    }

    /// The hold, if it hasn't lapsed.
    pub(super) fn live(&self, now: ShardTime) -> Option<&Held> {
        self.held.as_ref().filter(|held| held.ends_at > now)
    }

    pub(super) fn note_aborted(&mut self, attempt: u128, now: ShardTime) {
        if !self.aborted.contains(&attempt) {
            if self.aborted.len() >= ABORTED_ATTEMPTS_MAX {
                self.aborted.remove(0);
            }
            self.aborted.push(attempt);
        }
        self.remembered_until = now.plus_us(TOMBSTONE_US);
    }
}

impl HoldCommand {
    pub(crate) fn apply(&self, turn: &mut Turn<'_>) -> Result<HoldReply, RowsError> {
        let found = turn.hold(self.id)?;
        let row = found.value.unwrap_or_default();
        if row.aborted.contains(&self.attempt) {
            return Ok(HoldReply::Aborted);
        }
        if let Some(held) = row.live(turn.now) {
            if held.items != self.items || held.request_id != self.request_id {
                return Ok(HoldReply::Refused(held.other_items()));
            }
            let decision = held.decision.clone();
            if held.attempt != self.attempt {
                self.take_over(turn, Found { row: found.row, exists: found.exists, value: row })?;
            }
            return Ok(HoldReply::Decided(decision));
        }
        let mut plan = match decide(turn, &self.items, self.request_id.as_deref()) {
            Ok(plan) => plan,
            Err(stop) => return Ok(HoldReply::Refused(stop.refusal()?)),
        };
        if !plan.allowed() {
            return Ok(HoldReply::Decided(plan.decision()));
        }
        let ends_at = turn.now.plus_us(self.lease_us);
        plan.for_each_counted(|bucket, terms, cost| bucket.grant(terms, self.id, self.attempt, cost, ends_at));
        let decision = plan.decision();
        plan.store(turn, false);
        let held = self.held(decision.clone(), ends_at);
        let value = HoldRow { held: Some(held), ..row };
        let due = value.due();
        turn.put_expiring(Found { row: found.row, exists: found.exists, value }, due);
        Ok(HoldReply::Decided(decision))
    }

    fn held(&self, decision: Decision, ends_at: ShardTime) -> Held {
        Held {
            attempt: self.attempt,
            items: self.items.clone(),
            request_id: self.request_id.clone(),
            decision,
            ends_at,
        }
    }

    /// This attempt owns the hold from now on, with a lease of its own.
    fn take_over(&self, turn: &mut Turn<'_>, mut found: Found<HoldRow>) -> Result<(), RowsError> {
        let ends_at = turn.now.plus_us(self.lease_us);
        for item in &self.items {
            let Some(chain) = turn.chain(&item.policy)? else { continue };
            let mut bucket = turn.bucket(&chain, &item.policy, &item.key)?;
            if bucket.exists {
                bucket.value.pass_on(self.id, self.attempt, ends_at);
                turn.put_bucket(bucket, chain.newest().counted(&item.key));
            }
        }
        if let Some(held) = &mut found.value.held {
            held.attempt = self.attempt;
            held.ends_at = ends_at;
        }
        let due = found.value.due();
        turn.put_expiring(found, due);
        Ok(())
    }
}

impl Held {
    /// What the items on this item's bucket cost together.
    pub(super) fn cost_on_bucket_of(&self, item: &CheckItem) -> u64 {
        let same = self.items.iter().filter(|other| other.is_on_bucket_of(item));
        same.fold(0, |sum, other| sum.saturating_add(other.cost))
    }

    /// The answer to a hold of the same id that names other items: its request_id is taken.
    fn other_items(&self) -> Refusal {
        let (policy, key, admitted_cost) =
            self.items.first().map_or_else(Default::default, |item| (item.policy.clone(), item.key.clone(), item.cost));
        Refusal::RequestIdReused { policy, key, admitted_cost }
    }
}
