//! G8: replicas agree. At the same applied index of a shard all have the same state.

use std::collections::BTreeMap;

use crate::{
    history::{History, StateHash},
    time::seconds,
    verdict::{Checker, Verdict},
};

pub struct Replicas;

impl Checker for Replicas {
    fn promise(&self) -> &'static str {
        "G8"
    }

    fn check(&self, history: &History) -> Verdict {
        let mut verdict = Verdict::new(self.promise());
        let mut states: BTreeMap<(u16, u64), Vec<&StateHash>> = BTreeMap::new();
        for told in &history.state_hashes {
            states.entry((told.shard, told.applied_index)).or_default().push(told);
        }
        let mut compared = 0;
        for ((shard, index), told) in &states {
            compared += usize::from(told.iter().any(|other| other.node != told[0].node));
            if let Some(other) = told.iter().find(|other| other.hash != told[0].hash) {
                verdict.violated(format!(
                    "shard {shard} at index {index}: node {} had {} at {}, node {} had {} at {}",
                    told[0].node,
                    told[0].hash,
                    seconds(told[0].at_us),
                    other.node,
                    other.hash,
                    seconds(other.at_us)
                ));
            }
        }
        verdict.judged("states of several replicas compared", compared);
        verdict.told_briefly()
    }
}
