//! The log: to stderr, as text for people or JSON for machines.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::settings::{LogFormat, LogLevel, LogSettings};

/// Starts logging; once per process.
pub fn start(settings: &LogSettings) {
    let registry = tracing_subscriber::registry().with(filter(settings.level));
    let colours = io::stderr().is_terminal();
    match settings.format {
        LogFormat::Text => registry.with(fmt::layer().with_ansi(colours).with_writer(io::stderr)).init(),
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(io::stderr)).init(),
    }
}

fn filter(level: LogLevel) -> Targets {
    let own = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // Libraries say at `info` what interests their own authors.
    let of_libraries = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Trace => LevelFilter::TRACE,
        _ => LevelFilter::WARN,
    };
    // It warns of every heartbeat that a node which is down doesn't answer, in each shard; the links say so once.
    let of_raft = match level {
        LogLevel::Debug | LogLevel::Trace => of_libraries,
        _ => LevelFilter::ERROR,
    };
    Targets::new().with_default(of_libraries).with_target("openraft", of_raft).with_targets(
        ["server", "shard", "consensus", "transport", "storage", "core"].map(|part| (format!("onceward_{part}"), own)),
    )
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_node_that_is_down_floods_no_log_unless_that_is_asked_for() {
        let says = |level, target, of| filter(level).would_enable(target, &of);
        assert!(!says(LogLevel::Info, "openraft::replication", Level::WARN));
        assert!(says(LogLevel::Info, "openraft::core", Level::ERROR));
        assert!(says(LogLevel::Debug, "openraft::replication", Level::WARN));
        assert!(says(LogLevel::Info, "onceward_transport::dial", Level::INFO));
        assert!(says(LogLevel::Info, "rocksdb", Level::WARN));
    }
}
