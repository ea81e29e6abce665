//! A bucket's row: its fill, and the grants outstanding on it.
//!
//! A grant is an amount already debited for somebody to spend. While it is outstanding the bucket refills only to
//! capacity − outstanding, and one that ends unsettled counts as spent: whoever it was given to, and whatever became
//! of them, the bucket never admits more than it may.

use serde::{Deserialize, Serialize};

use super::{Allowance, Fill, HoldId, ItemResult, Terms, bounds::GRANTS_MAX, chain::PolicyChain};
use crate::{
    faults::{self, Fault},
    time::ShardTime,
};

/// An absent row is a full bucket of epoch 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Of the policy: under one made anew the row counts as absent.
    pub(super) created_revision: u64,
    /// Of the policy, that `fill` is in the terms of.
    revision: u64,
    /// Begins anew with each reset; what was admitted in another epoch can't be given back to this one.
    pub(super) epoch: u64,
    /// When the row was brought up to date.
    pub(super) as_of: ShardTime,
    fill: Fill,
    /// By ascending end.
    grants: Vec<Grant>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub(super) id: HoldId,
    /// Who may settle it: the hold's attempt.
    pub(super) holder: u128,
    pub(super) epoch: u64,
    pub(super) granted: u64,
    /// How much of it is known to be spent.
    pub(super) spent_total: u64,
    pub(super) ends_at: ShardTime,
}

impl Grant {
    fn outstanding(&self) -> u64 {
        self.granted.saturating_sub(self.spent_total)
    }
}

impl Bucket {
    pub(super) fn full(chain: &PolicyChain, now: ShardTime) -> Bucket {
        Bucket {
            created_revision: chain.created_revision,
            revision: chain.newest().revision,
            epoch: 0,
            as_of: now,
            fill: Fill::Full,
            grants: Vec::new(),
        }
    }

    /// Brings the bucket to `now` and to the newest revision, piece by piece over the revisions and grants' ends between.
    pub(super) fn advance(&mut self, chain: &PolicyChain, key: &str, now: ShardTime) {
        let newest = chain.newest();
        if self.revision != newest.revision {
            match chain.links_from(self.revision) {
                Some(links) => self.follow(links, key),
                None => {
                    self.leave_past(chain, key);
                    self.follow(chain.links(), key);
                }
            }
            self.revision = newest.revision;
        }
        self.pass(newest.counted(key), now);
    }

    /// From the revision before all links into the first. It isn't known which of several it was, so that nothing counts
    /// as full that isn't so under every policy.
    fn leave_past(&mut self, chain: &PolicyChain, key: &str) {
        let first = chain.links().next().expect("the newest link is always there");
        match chain.past(key) {
            Some(Allowance::Limit(terms)) if terms.is_frozen() => {
                let reserved = self.outstanding();
                self.fill.freeze(terms.burst(), self.as_of, first.stamp, reserved);
                self.pass(Allowance::Deny, first.stamp);
            }
            Some(past) => {
                self.change(past);
                self.pass(past, first.stamp);
            }
            None => {}
        }
        self.change(first.counted(key));
    }

    /// From the first of `links`, which the fill is in the terms of, into the last.
    fn follow<'a>(&mut self, links: impl Iterator<Item = &'a super::chain::Link>, key: &str) {
        let mut before: Option<Allowance> = None;
        for link in links {
            let counted = link.counted(key);
            if let Some(before) = before {
                self.pass(before, link.stamp);
                if let Allowance::Limit(terms) = before
                    && self.grants.is_empty()
                {
                    self.fill.note_if_full(&terms, self.as_of);
                }
                self.change(counted);
            }
            before = Some(counted);
        }
    }

    /// Time passes under one allowance, piecewise over the grants that end meanwhile.
    fn pass(&mut self, allowance: Allowance, until: ShardTime) {
        loop {
            let next = self.grants.first().map_or(until, |grant| grant.ends_at.min(until)).max(self.as_of);
            if let Allowance::Limit(terms) = allowance {
                self.fill.refill(&terms, next.since_us(self.as_of), self.outstanding());
            }
            self.as_of = next;
            let ended = self.grants.iter().take_while(|grant| grant.ends_at <= next).count();
            for grant in self.grants.drain(..ended) {
                self.fill.spend_aside(next, grant.outstanding());
            }
            if next >= until {
                return;
            }
        }
    }

    fn change(&mut self, to: Allowance) {
        if let Allowance::Limit(terms) = to {
            let reserved = self.outstanding();
            self.fill.change(&terms, self.as_of, reserved);
        }
    }

    fn outstanding(&self) -> u64 {
        self.grants.iter().fold(0, |sum, grant| sum.saturating_add(grant.outstanding()))
    }

    pub(super) fn left(&self, terms: &Terms) -> u64 {
        self.fill.left(terms, self.as_of, self.outstanding()).min(terms.burst())
    }

    pub(super) fn take(&mut self, terms: &Terms, cost: u64) {
        self.fill.take(terms, self.as_of, cost);
    }

    /// Takes `cost` for somebody to spend until the grant ends.
    pub(super) fn grant(&mut self, terms: &Terms, id: HoldId, holder: u128, cost: u64, ends_at: ShardTime) {
        self.fill.set_aside(terms, self.as_of, cost);
        if self.grants.len() >= GRANTS_MAX {
            let soonest = self.grants.remove(0);
            self.fill.spend_aside(self.as_of, soonest.outstanding());
        }
        self.insert(Grant { id, holder, epoch: self.epoch, granted: cost, spent_total: 0, ends_at });
    }

    /// Another attempt of the same hold takes the grant over.
    pub(super) fn pass_on(&mut self, id: HoldId, holder: u128, ends_at: ShardTime) {
        if let Some(at) = self.grants.iter().position(|grant| grant.id == id) {
            let grant = self.grants.remove(at);
            self.insert(Grant { holder, ends_at, ..grant });
        }
    }

    fn insert(&mut self, grant: Grant) {
        let at = self.grants.partition_point(|other| other.ends_at <= grant.ends_at);
        self.grants.insert(at, grant);
    }

    /// Ends a grant: spent, or given back as far as its epoch lasts. A grant that isn't there was spent.
    pub(super) fn settle(&mut self, allowance: Allowance, id: HoldId, holder: u128, spent: bool) {
        let Some(at) = self.grants.iter().position(|grant| grant.id == id && grant.holder == holder) else { return };
        let grant = self.grants.remove(at);
        if spent {
            self.fill.spend_aside(self.as_of, grant.outstanding());
        } else if grant.epoch == self.epoch {
            let terms = if let Allowance::Limit(terms) = allowance { Some(terms) } else { None };
            let reserved = self.outstanding();
            let times = if faults::active(Fault::AbortTwice) { 2 } else { 1 };
            self.fill.put_back(terms.as_ref(), grant.outstanding() * times, reserved);
        }
    }

    /// Gives back what was taken at `taken_at` in `epoch`, and returns how much of it arrived.
    pub(super) fn refund(&mut self, terms: &Terms, epoch: u64, taken_at: ShardTime, cost: u64) -> u64 {
        if epoch != self.epoch {
            return 0;
        }
        let reserved = self.outstanding();
        self.fill.refund(terms, self.as_of, taken_at, cost, reserved)
    }

    pub(super) fn reset(&mut self, terms: Terms) {
        self.epoch = self.epoch.saturating_add(1);
        self.fill = Fill::brimful(&terms, self.as_of, self.outstanding());
    }

    /// µs until `tokens` can be taken if nobody else asks; `None` when never.
    pub(super) fn wait_us(&self, terms: &Terms, tokens: u64) -> Option<u64> {
        let lapses = self.grants.iter().map(|grant| (grant.ends_at, grant.outstanding()));
        self.fill.wait_us(terms, self.as_of, tokens, self.outstanding(), lapses)
    }

    /// µs until the bucket is at capacity again; `u64::MAX` when it doesn't refill.
    pub(super) fn full_after_us(&self, terms: &Terms) -> u64 {
        self.wait_us(terms, terms.burst()).unwrap_or(u64::MAX)
    }

    /// Full under every policy, with nothing to come: the row says no more than an absent one.
    pub(super) fn is_full(&self, allowance: Allowance) -> bool {
        self.grants.is_empty()
            && match allowance {
                Allowance::Limit(terms) => self.full_after_us(&terms) == 0,
                _ => self.fill == Fill::Full,
            }
    }

    /// What is told about the bucket as it stands; `cost` is what was asked for and, if not `allowed`, not taken.
    pub(super) fn report(&self, terms: &Terms, cost: u64, allowed: bool) -> ItemResult {
        ItemResult {
            allowed,
            exempt: false,
            limit: terms.burst(),
            remaining: self.left(terms),
            retry_after_us: if allowed { Some(0) } else { self.wait_us(terms, cost) },
            reset_after_us: self.full_after_us(terms),
            window_us: terms.fill_us(),
        }
    }
}
