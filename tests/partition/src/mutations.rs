//! Faults that are seeded into the product, each with a short run that must catch it, and the promise by which; and the same
//! runs without the faults, which must be clean. A suite that misses what is known to be wrong would pass what is not known.

use std::{fmt::Write as _, path::Path, time::Duration};

use anyhow::{Result, bail};

use crate::{
    arena::Net,
    nemesis::{self, Order},
    options::{Chosen, Options},
    progress::Progress,
    run::{self, Finished},
    summary::summary,
    workload,
};

const NODES: u16 = 3;

/// A fault, and a run that shows it.
#[derive(Debug, Clone, Copy)]
pub struct Mutation {
    pub fault: &'static str,
    /// What it makes of the product.
    pub what: &'static str,
    pub workload: &'static str,
    pub nemesis: &'static str,
    pub seed: u64,
    pub seconds: u64,
    pub rate: f64,
    /// Of which at least one must be violated.
    pub promises: &'static [&'static str],
}

/// All but the one that only a power cut shows (an fsync left out): that is the simulation's.
pub const MUTATIONS: [Mutation; 9] = [
    Mutation {
        fault: "read-without-read-index",
        what: "reads are answered from the replica at hand",
        workload: "registers",
        nemesis: "leader-isolated",
        seed: 1,
        seconds: 20,
        rate: 150.0,
        promises: &["G7"],
    },
    Mutation {
        fault: "answer-before-apply",
        what: "a write is answered before it is committed and applied",
        workload: "registers,idempotency",
        nemesis: "leader-isolated",
        seed: 1,
        seconds: 20,
        rate: 150.0,
        promises: &["G3", "G7"],
    },
    Mutation {
        fault: "forget-token",
        what: "complete, abandon and extend do not compare tokens",
        workload: "idempotency",
        nemesis: "kill-one",
        seed: 1,
        seconds: 10,
        rate: 100.0,
        promises: &["G2"],
    },
    Mutation {
        fault: "refill-on-leader-change",
        what: "buckets are full again when another node leads",
        workload: "limits",
        nemesis: "kill-leader",
        seed: 1,
        seconds: 20,
        rate: 150.0,
        promises: &["G1"],
    },
    Mutation {
        fault: "apply-forwarded-twice",
        what: "a command that came from another node is applied twice",
        workload: "limits",
        nemesis: "kill-one",
        seed: 1,
        seconds: 10,
        rate: 100.0,
        promises: &["G1"],
    },
    Mutation {
        fault: "drop-due-on-leader-change",
        what: "a new leader forgets which deliveries are due",
        workload: "webhooks",
        nemesis: "kill-leader",
        seed: 1,
        seconds: 20,
        rate: 60.0,
        promises: &["G5"],
    },
    Mutation {
        fault: "refuse-after-hand-over",
        what: "503 instead of 504 when the deadline passes after the hand-over",
        workload: "registers,idempotency",
        nemesis: "leader-isolated",
        seed: 1,
        seconds: 20,
        rate: 150.0,
        promises: &["G9"],
    },
    Mutation {
        fault: "abort-twice",
        what: "a hold that is given back is given back twice",
        workload: "limits",
        nemesis: "kill-one",
        seed: 1,
        seconds: 10,
        rate: 150.0,
        promises: &["G1"],
    },
    Mutation {
        fault: "clock-follows-wall",
        what: "the shard clock follows the leader's wall clock",
        workload: "limits",
        nemesis: "wall-clock",
        seed: 1,
        seconds: 20,
        rate: 150.0,
        promises: &["G1"],
    },
];

impl Mutation {
    /// Its run, with the fault or without.
    pub fn options(&self, out: &Path, with_fault: bool) -> Options {
        let name = if with_fault { self.fault.to_owned() } else { format!("{}-absent", self.fault) };
        Options {
            nemesis: Chosen {
                words: self.nemesis.to_owned(),
                items: nemesis::parse(self.nemesis, NODES).expect("the table names nemeses"),
            },
            order: Order::InTurn,
            time: Duration::from_secs(self.seconds),
            seed: self.seed,
            nodes: NODES,
            workload: Chosen {
                words: self.workload.to_owned(),
                items: workload::parse(self.workload).expect("the table names workloads"),
            },
            rate: self.rate,
            net: Net::Proxy,
            out: out.join(name),
            fault: with_fault.then(|| self.fault.to_owned()),
        }
    }

    /// The promises by which it was caught, of those that it must be caught by.
    pub fn caught(&self, finished: &Finished) -> Vec<String> {
        let violated =
            finished.verdicts.iter().filter(|verdict| !verdict.kept()).map(|verdict| verdict.promise.as_str());
        violated.filter(|promise| self.promises.contains(promise)).map(str::to_owned).collect()
    }
}

/// Runs all cells, or those of one fault, and prints the table; whether each came out as it must.
pub async fn run_all(fault: Option<&str>, out: &Path) -> Result<bool> {
    let chosen: Vec<&Mutation> =
        MUTATIONS.iter().filter(|mutation| fault.is_none_or(|fault| mutation.fault == fault)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = MUTATIONS.iter().map(|mutation| mutation.fault).collect();
        bail!("there is no such fault here; there are {}", names.join(", "));
    }
    let mut table = String::from(
        "| fault | workload | nemesis | seed | time | caught by | without it |\n|---|---|---|---|---|---|---|\n",
    );
    let mut all_well = true;
    for mutation in chosen {
        let Mutation { fault, workload, nemesis, seed, seconds, .. } = mutation;
        eprintln!("-- {fault}: {}", mutation.what);
        let broken = run::run(&mutation.options(out, true), &Progress::new()).await?;
        let caught = mutation.caught(&broken);
        let sound = run::run(&mutation.options(out, false), &Progress::new()).await?;
        all_well &= !caught.is_empty() && sound.is_clean();
        let caught = if caught.is_empty() { "NOT CAUGHT".to_owned() } else { caught.join(", ") };
        if !sound.is_clean() {
            println!("{}", summary(&sound));
        }
        let clean = if sound.is_clean() { "clean" } else { "VIOLATED" };
        writeln!(table, "| `{fault}` | {workload} | {nemesis} | {seed} | {seconds} s | {caught} | {clean} |")?;
    }
    println!("{table}");
    Ok(all_well)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_a_run_of_at_most_a_minute_and_a_promise_that_it_breaks() {
        for mutation in MUTATIONS {
            let options = mutation.options(Path::new("out"), true);
            assert!(options.time <= Duration::from_secs(60) && !mutation.promises.is_empty(), "{mutation:?}");
            assert!(!options.nemesis.items.is_empty() && !options.workload.items.is_empty(), "{mutation:?}");
        }
        let others = MUTATIONS.iter().map(|mutation| mutation.fault).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(others.len(), MUTATIONS.len(), "each fault once");
    }
}
