//! Settle: ends a hold, spent or not. An abort of an older attempt, or of an unknown hold, changes nothing and leaves
//! a tombstone, so that a hold that arrives after its abort takes nothing.

use serde::{Deserialize, Serialize};

use super::{
    Allowance, CheckItem, HoldId, ItemResult,
    decide::{denied, exempt},
    hold::Held,
    turn::{Found, Turn},
};
use crate::rows::RowsError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleCommand {
    pub id: HoldId,
    pub attempt: u128,
    /// true: the held cost was spent (and a request_id is remembered as admitted); false: it goes back.
    pub spent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleReply {
    /// Whether this command ended the hold; false when it was unknown, lapsed, settled before or owned by a newer attempt.
    pub settled: bool,
    /// The buckets after an abort, in the order of the hold's items; empty otherwise.
    pub results: Vec<ItemResult>,
}

impl SettleCommand {
    pub(crate) fn apply(&self, turn: &mut Turn<'_>) -> Result<SettleReply, RowsError> {
        let not_settled = SettleReply { settled: false, results: Vec::new() };
        let found = turn.hold(self.id)?;
        let mut row = found.value.unwrap_or_default();
        let held = row.held.take_if(|held| held.attempt == self.attempt && held.ends_at > turn.now);
        if held.is_none() && self.spent {
            return Ok(not_settled);
        }
        if !self.spent {
            row.note_aborted(self.attempt, turn.now);
        }
        let due = row.due();
        turn.put_expiring(Found { row: found.row, exists: found.exists, value: row }, due);
        match held {
            Some(held) => Ok(SettleReply { settled: true, results: self.settle(turn, &held)? }),
            None => Ok(not_settled),
        }
    }

    fn settle(&self, turn: &mut Turn<'_>, held: &Held) -> Result<Vec<ItemResult>, RowsError> {
        for (at, item) in held.items.iter().enumerate() {
            if held.items[..at].iter().any(|other| other.is_on_bucket_of(item)) {
                continue;
            }
            let Some(chain) = turn.chain(&item.policy)? else { continue };
            let mut bucket = turn.bucket(&chain, &item.policy, &item.key)?;
            let epoch = bucket.value.epoch;
            // Without a row there is no grant either: it was spent, or the policy is another one by now.
            if bucket.exists {
                let counted = chain.newest().counted(&item.key);
                bucket.value.settle(counted, self.id, self.attempt, self.spent);
                turn.put_bucket(bucket, counted);
            }
            if let Some(request_id) = held.request_id.as_deref().filter(|_| self.spent)
                && let Some(result) = held.decision.results.get(at).filter(|result| !result.exempt)
            {
                let found = turn.admitted_id(&item.policy, &item.key, request_id)?;
                if !found.value.as_ref().is_some_and(|earlier| earlier.is_remembered(&chain, turn.now)) {
                    turn.remember(found, &chain, epoch, held.cost_on_bucket_of(item), result.clone());
                }
            }
        }
        if self.spent { Ok(Vec::new()) } else { self.report(turn, held) }
    }

    /// The buckets after the abort, as if each item were asked for now.
    fn report(&self, turn: &mut Turn<'_>, held: &Held) -> Result<Vec<ItemResult>, RowsError> {
        let report = |item: &CheckItem| {
            // A policy that was deleted meanwhile has no limit left to tell.
            let Some(chain) = turn.chain(&item.policy)? else { return Ok(ItemResult::NOTHING) };
            let spec = &chain.newest().spec;
            Ok(match spec.resolve(&item.key) {
                Allowance::Exempt => exempt(&spec.terms()),
                Allowance::Deny => denied(&spec.terms()),
                Allowance::Limit(terms) => {
                    let bucket = turn.bucket(&chain, &item.policy, &item.key)?.value;
                    let cost = held.cost_on_bucket_of(item);
                    bucket.report(&terms, cost, cost <= bucket.left(&terms))
                }
            })
        };
        held.items.iter().map(report).collect()
    }
}
