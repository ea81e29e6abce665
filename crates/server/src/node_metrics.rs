//! The node's own counters as metrics. A reading is a snapshot, so each scrape builds its registry anew.

use onceward_shard::NodeStats;
use prometheus_client::{
    metrics::{
        counter::ConstCounter,
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::Registry,
};

/// The reading as a registry of `onceward_*` metrics.
pub fn registry(stats: &NodeStats) -> Registry {
    let mut registry = Registry::with_prefix("onceward");
    let (writer, store) = (&stats.log_writer, &stats.store);
    let counters = [
        ("entries_proposed", "Log entries that this node proposed as a leader", stats.entries_proposed),
        ("commands_proposed", "Commands in those entries", stats.commands_proposed),
        ("commands_forwarded", "Commands sent on to another node", stats.commands_forwarded),
        ("commands_refused_overloaded", "Commands refused as a queue was full", stats.refused_overloaded),
        (
            "raft_terms",
            "Sum of the terms of this node's replicas: grows by one with each change of a leader",
            stats.terms,
        ),
        ("log_rounds", "Times that the log writer drained its queue", writer.rounds),
        ("log_fsyncs", "Rounds of the log writer that ended in an fsync", writer.syncs),
        ("log_writes", "Writes that shards submitted to the log writer", writer.writes),
        ("log_bytes", "Bytes of those writes", writer.bytes),
        ("store_writes", "Batches written to the store", store.writes),
        ("store_fsyncs", "Times that the store was synced", store.syncs),
        ("store_bytes", "Bytes of keys and values written to the store", store.bytes_written),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    let disk = [
        ("disk_free_bytes", "What is free on the disk of the data directory", stats.disk_free_bytes.unwrap_or(0)),
        ("disk_refusing", "1 while the disk is nearly full and what grows is refused", u64::from(stats.disk_is_low)),
    ];
    let gauges = [
        ("commands_queued", "Commands that wait for a log entry now", stats.commands_queued),
        ("shards_led", "Shards that this node leads now", stats.shards_led),
        ("store_memtable_bytes", "Memory for rows not yet in table files", store.memtable_bytes),
        ("store_block_cache_bytes", "Memory for blocks read from disk", store.block_cache_bytes),
    ];
    for (name, help, value) in gauges.into_iter().chain(disk) {
        registry.register(name, help, ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)));
    }
    let live_bytes = Family::<[(&str, &str); 1], Gauge>::default();
    for family in onceward_storage::Family::ALL {
        let bytes = store.families[family.index()].live_bytes;
        live_bytes.get_or_create(&[("family", family.name())]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
    registry.register("store_live_bytes", "Estimated bytes of the rows in table files", live_bytes);
    registry
}
