//! G10: it comes back. After healing every shard serves through every node within seconds, and the loss of a leader costs
//! little.

use std::collections::BTreeMap;

use crate::{
    bounds::{HEALING_MAX_US, LEADER_LOSS_MAX_US, LEADER_LOSS_MEDIAN_MAX_US},
    history::{History, Recovery, RecoveryFrom},
    time::seconds,
    verdict::{Checker, Verdict},
};

pub struct Recoveries;

impl Checker for Recoveries {
    fn promise(&self) -> &'static str {
        "G10"
    }

    fn check(&self, history: &History) -> Verdict {
        let mut verdict = Verdict::new(self.promise());
        for (after, what, max_us) in [
            (RecoveryFrom::Healing, "healing", HEALING_MAX_US),
            (RecoveryFrom::LeaderLoss, "loss of a leader", LEADER_LOSS_MAX_US),
        ] {
            let recoveries = || history.recoveries.iter().filter(|recovery| recovery.after == after);
            verdict.judged(&format!("recoveries from {what}"), recoveries().count());
            for Recovery { from_us, took_us, nemesis, .. } in recoveries().filter(|recovery| recovery.took_us > max_us)
            {
                let (from, took, max) = (seconds(*from_us), seconds(*took_us), seconds(max_us));
                verdict.violated(format!("{nemesis}: {what} at {from} took {took}, more than {max}"));
            }
            let mut by_nemesis: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            for recovery in recoveries() {
                by_nemesis.entry(&recovery.nemesis).or_default().push(recovery.took_us);
            }
            for (nemesis, times) in by_nemesis {
                verdict.measured(format!("{what}, {nemesis}"), summary(times));
            }
            let all: Vec<u64> = recoveries().map(|recovery| recovery.took_us).collect();
            if all.is_empty() {
                continue;
            }
            let median_us = median(all.clone());
            if after == RecoveryFrom::LeaderLoss && median_us > LEADER_LOSS_MEDIAN_MAX_US {
                let (median, max) = (seconds(median_us), seconds(LEADER_LOSS_MEDIAN_MAX_US));
                verdict.violated(format!("the median {what} took {median}, more than {max}"));
            }
            verdict.measured(what, summary(all));
        }
        verdict.told_briefly()
    }
}

fn summary(times: Vec<u64>) -> String {
    let (count, max_us) = (times.len(), times.iter().copied().max().unwrap_or(0));
    format!("median {}, at most {}, of {count}", seconds(median(times)), seconds(max_us))
}

/// Of an even number the lower one.
fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}
