//! What the nodes spent, as they and the system tell, between two looks.

use std::time::{Duration, Instant};

use onceward_tests::{client::metric, process_stats};

use crate::target::Target;

pub struct Usage {
    at: Instant,
    /// Of all nodes together, where their processes are ours.
    cpu: Option<Duration>,
    generator_cpu: Duration,
    fsyncs: f64,
    entries: f64,
    log_bytes: f64,
}

/// The difference of two looks.
pub struct Spent {
    pub elapsed: Duration,
    pub cpu: Option<Duration>,
    pub generator_cpu: Duration,
    pub fsyncs: f64,
    /// Counted once, by the leader that proposed them.
    pub entries: f64,
    /// Bytes written to the logs of all nodes.
    pub log_bytes: f64,
}

impl Usage {
    pub async fn look(target: &Target) -> Usage {
        let (mut fsyncs, mut entries, mut log_bytes) = (0.0, 0.0, 0.0);
        for api in &target.apis {
            let text = api.get("/metrics").await.expect_status(200).body;
            fsyncs += metric(&text, "onceward_log_fsyncs_total");
            entries += metric(&text, "onceward_entries_proposed_total");
            log_bytes += metric(&text, "onceward_log_bytes_total");
        }
        let cpu = target.pids().map(|pids| pids.into_iter().map(process_stats::cpu_time).sum());
        let generator_cpu = process_stats::cpu_time(std::process::id());
        Usage { at: Instant::now(), cpu, generator_cpu, fsyncs, entries, log_bytes }
    }

    pub fn until(&self, later: &Usage) -> Spent {
        Spent {
            elapsed: later.at - self.at,
            cpu: later.cpu.zip(self.cpu).map(|(later, earlier)| later - earlier),
            generator_cpu: later.generator_cpu - self.generator_cpu,
            fsyncs: later.fsyncs - self.fsyncs,
            entries: later.entries - self.entries,
            log_bytes: later.log_bytes - self.log_bytes,
        }
    }
}

/// Resident memory of every node in MiB, where the processes are ours.
pub fn resident_mib(target: &Target) -> Option<Vec<u64>> {
    let mib = |pid| process_stats::resident_bytes(pid) >> 20;
    target.pids().map(|pids| pids.into_iter().map(mib).collect())
}
