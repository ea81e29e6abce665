//! The partition suite in short: some combined nemeses over all workloads, and a few seeded faults that must be caught.
//! The long runs are `scripts/partition`'s.

use std::{path::Path, time::Duration};

use onceward_partition::{
    arena::Net,
    mutations::MUTATIONS,
    nemesis::{self, Order},
    options::{Chosen, Options},
    progress::Progress,
    run,
    summary::summary,
    workload,
};

/// Chosen for the variety of what it draws.
const SEED: u64 = 7;
const NODES: u16 = 3;
/// A nemesis may come too late to bite on a machine that is busy: then the run shows too little, and is made again.
const ATTEMPTS: usize = 2;
/// Caught within seconds.
const FAULTS: [&str; 2] = ["forget-token", "abort-twice"];

fn out() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn choose<T>(words: &str, items: Result<Vec<T>, String>) -> Chosen<T> {
    Chosen { words: words.to_owned(), items: items.unwrap() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_combined_nemeses_every_promise_is_kept_and_every_nemesis_bites() {
    let options = Options {
        nemesis: choose("all", nemesis::parse("all", NODES)),
        order: Order::Combined,
        time: Duration::from_secs(45),
        seed: SEED,
        nodes: NODES,
        workload: choose("all", workload::parse("all")),
        rate: 150.0,
        net: Net::Proxy,
        out: out().join("combined"),
        fault: None,
    };
    let mut shortcomings = Vec::new();
    for _ in 0..ATTEMPTS {
        let finished = run::run(&options, &Progress::new()).await.unwrap();
        println!("{}", summary(&finished));
        assert!(finished.is_clean(), "again: {}", options.again());
        shortcomings = finished.shortcomings;
        if shortcomings.is_empty() {
            return;
        }
    }
    panic!("{shortcomings:?}; again: {}", options.again());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeded_faults_are_caught() {
    for mutation in MUTATIONS.iter().filter(|mutation| FAULTS.contains(&mutation.fault)) {
        let options = mutation.options(&out().join("mutations"), true);
        let finished = run::run(&options, &Progress::new()).await.unwrap();
        let caught = mutation.caught(&finished);
        println!("{}: caught by {}\n{}", mutation.fault, caught.join(", "), summary(&finished));
        assert!(!caught.is_empty(), "{} is not caught; again: {}", mutation.fault, options.again());
    }
}
