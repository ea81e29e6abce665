//! Counters of a node, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use onceward_storage::{StoreStats, WriterStats};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Entries and commands that this node proposed as a leader.
    pub entries_proposed: Counter,
    pub commands_proposed: Counter,
    /// Commands sent on to another node.
    pub commands_forwarded: Counter,
    /// Commands refused because a queue was full.
    pub refused_overloaded: Counter,
}

/// A reading of all counters.
#[derive(Debug, Clone, Default)]
pub struct NodeStats {
    pub entries_proposed: u64,
    pub commands_proposed: u64,
    pub commands_forwarded: u64,
    pub refused_overloaded: u64,
    /// Commands that wait for a log entry now, over all shards.
    pub commands_queued: u64,
    /// Shards that this node leads now.
    pub shards_led: u64,
    /// Sum of the terms of this node's replicas: grows by one with each election that was won anywhere.
    pub terms: u64,
    pub log_writer: WriterStats,
    pub store: StoreStats,
    /// As last looked at; `None` before.
    pub disk_free_bytes: Option<u64>,
    /// The disk is nearly full, and what grows is refused.
    pub disk_is_low: bool,
}

impl Stats {
    /// The counters; gauges are filled in by who knows them.
    pub(crate) fn read(&self) -> NodeStats {
        NodeStats {
            entries_proposed: self.entries_proposed.get(),
            commands_proposed: self.commands_proposed.get(),
            commands_forwarded: self.commands_forwarded.get(),
            refused_overloaded: self.refused_overloaded.get(),
            ..NodeStats::default()
        }
    }
}
