//! The simulation as a test: that a seed decides all of a run, that seeds are clean, and that seeded faults are not.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

/// About a minute on two cores.
const SEEDS: &str = "200";

fn simulate(arguments: &[&str], out: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_simulate"));
    command.args(arguments).arg("--out").arg(out).output().expect("the simulation can be started")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_seed_leaves_the_same_history_every_time() {
    for seed in ["3", "4"] {
        let [first, second] = [(); 2].map(|()| {
            let out = tempfile::tempdir().expect("a directory can be made");
            let output = simulate(&["--alone", "--keep", "--first", seed], out.path());
            assert!(output.status.success(), "{}", text(&output));
            fs::read(out.path().join(format!("seed-{seed}/history.jsonl"))).expect("the history is written")
        });
        assert!(first == second, "seed {seed} left two histories, of {} and {} bytes", first.len(), second.len());
    }
}

#[test]
fn seeds_are_clean() {
    let out = tempfile::tempdir().expect("a directory can be made");
    let output = simulate(&["--seeds", SEEDS], out.path());
    assert!(output.status.success(), "{}", text(&output));
}

/// Each was caught by the first five seeds when this was written; a change of the product makes other runs of them.
#[cfg(feature = "faults")]
#[test]
fn every_seeded_fault_is_caught_within_twenty_seeds() {
    for fault in onceward_core::faults::Fault::ALL.map(onceward_core::faults::Fault::name) {
        let out = tempfile::tempdir().expect("a directory can be made");
        let output = simulate(&["--seeds", "20", "--stop-at-failure", "--fault", fault], out.path());
        assert_eq!(output.status.code(), Some(1), "{fault} is not caught: {}", text(&output));
    }
}
