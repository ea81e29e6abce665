//! PolicyChain: a policy on a data shard with its latest changes, so that a bucket nobody touched meanwhile can be
//! brought from the terms it was left under to those in force, each for as long as it was.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    Allowance, Override, Policy, PolicySpec, Terms,
    bounds::{CHAIN_LINKS_MAX, OVERRIDES_MAX},
};
use crate::time::ShardTime;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChain {
    pub(super) created_revision: u64,
    past: Option<Past>,
    newest: Link,
    /// Before `newest`, by ascending revision.
    earlier: Vec<Link>,
}

/// A revision and the instant, of this shard, at which it came into force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) revision: u64,
    pub(super) stamp: ShardTime,
    pub(super) spec: PolicySpec,
}

/// All revisions before the links, as one: for each key the worst of the terms it had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Past {
    terms: Terms,
    /// `None`: denied.
    overrides: BTreeMap<String, Option<Terms>>,
}

impl PolicyChain {
    pub(super) fn new(policy: &Policy, stamp: ShardTime) -> PolicyChain {
        let newest = Link { revision: policy.revision, stamp, spec: policy.spec.clone() };
        PolicyChain { created_revision: policy.created_revision, past: None, newest, earlier: Vec::new() }
    }

    pub(super) fn newest(&self) -> &Link {
        &self.newest
    }

    /// Puts a later revision into force at `stamp`.
    pub(super) fn push(&mut self, policy: &Policy, stamp: ShardTime) {
        let link = Link { revision: policy.revision, stamp, spec: policy.spec.clone() };
        self.earlier.push(std::mem::replace(&mut self.newest, link));
        if usize::from(self.past.is_some()) + self.earlier.len() + 1 > CHAIN_LINKS_MAX {
            let past = self.past.take().unwrap_or_else(|| Past::of(&self.earlier.remove(0).spec));
            self.past = Some(past.merged_with(Past::of(&self.earlier.remove(0).spec)));
        }
    }

    /// The links from `revision` on, `None` when it is older than all of them.
    pub(super) fn links_from(&self, revision: u64) -> Option<impl Iterator<Item = &Link>> {
        let at = self.earlier.iter().position(|link| link.revision == revision)?;
        Some(self.earlier[at..].iter().chain([&self.newest]))
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.earlier.iter().chain([&self.newest])
    }

    /// What held for a key before all links.
    pub(super) fn past(&self, key: &str) -> Option<Allowance> {
        self.past.as_ref().map(|past| past.counted(key).map_or(Allowance::Deny, Allowance::Limit))
    }
}

impl Link {
    /// What holds for a key's bucket: as [`PolicySpec::resolve`], but a bucket goes on refilling while it isn't counted.
    pub(super) fn counted(&self, key: &str) -> Allowance {
        match self.spec.overrides.get(key) {
            Some(Override::Deny) => Allowance::Deny,
            Some(&Override::Limit { rate, burst }) => Allowance::Limit(Terms::new(self.spec.algorithm, rate, burst)),
            None => Allowance::Limit(self.spec.terms()),
        }
    }
}

impl Past {
    fn of(spec: &PolicySpec) -> Past {
        let terms_of = |given: &Override| match *given {
            Override::Deny => None,
            Override::Limit { rate, burst } => Some(Terms::new(spec.algorithm, rate, burst)),
        };
        let overrides = spec.overrides.iter().map(|(key, given)| (key.clone(), terms_of(given))).collect();
        Past { terms: spec.terms(), overrides }
    }

    fn counted(&self, key: &str) -> Option<Terms> {
        self.overrides.get(key).copied().unwrap_or(Some(self.terms))
    }

    fn merged_with(self, other: Past) -> Past {
        // Next to a denial nothing refills, but what the other capacity cut off stays cut off.
        let worse = |a: Option<Terms>, b: Option<Terms>| match (a, b) {
            (Some(a), Some(b)) => Some(Terms::worse_of(a, b)),
            (Some(terms), None) | (None, Some(terms)) => Some(terms.frozen()),
            (None, None) => None,
        };
        let terms = Terms::worse_of(self.terms, other.terms);
        let keys: BTreeSet<&String> = self.overrides.keys().chain(other.overrides.keys()).collect();
        if keys.len() > OVERRIDES_MAX {
            let all = self.overrides.values().chain(other.overrides.values()).flatten().copied();
            let terms = all.fold(terms, Terms::worse_of).frozen();
            return Past { terms, overrides: BTreeMap::new() };
        }
        let merged = |key: &String| (key.clone(), worse(self.counted(key), other.counted(key)));
        let overrides = keys.into_iter().map(merged).collect();
        Past { terms, overrides }
    }
}
