//! Whether a run did what it was for. A run in which a nemesis never bit, or met nobody, proves nothing and is a failed run.

use std::collections::BTreeMap;

use crate::history::{History, Nemesis, Outcome};

/// What a run was to do and did not; each a sentence.
pub fn exercised(history: &History) -> Vec<String> {
    let mut missing = Vec::new();
    if !history.operations.iter().any(|operation| matches!(operation.outcome, Outcome::Answered { .. })) {
        missing.push("no call was answered".to_owned());
    }
    let mut by_name: BTreeMap<&str, Vec<&Nemesis>> = BTreeMap::new();
    for nemesis in &history.nemeses {
        by_name.entry(&nemesis.name).or_default().push(nemesis);
    }
    for (name, times) in by_name {
        let count = times.len();
        if !times.iter().any(|nemesis| nemesis.effects.iter().any(|effect| effect.count > 0)) {
            missing.push(format!("nemesis {name} never bit (played: {count})"));
        } else if !times.iter().any(|nemesis| met_somebody(nemesis, history)) {
            missing.push(format!("nothing was under way while nemesis {name} lasted (played: {count})"));
        }
    }
    missing
}

fn met_somebody(nemesis: &Nemesis, history: &History) -> bool {
    let mut calls = history.operations.iter().filter(|operation| !operation.last);
    calls.any(|call| call.invoked_us <= nemesis.until_us && call.returned_us >= nemesis.from_us)
}
