//! The simulation as a test: that a seed decides all of a run, that seeds are clean, and that seeded faults are not.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

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
    let output = simulate(&["--seeds", "60"], out.path());
    assert!(output.status.success(), "{}", text(&output));
}
