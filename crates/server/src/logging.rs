//! The log: to stderr, as text for people or JSON for machines.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::settings::{LogFormat, LogLevel, LogSettings};

/// Starts logging; once per process.
pub fn start(settings: &LogSettings) {
    let level = match settings.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // Libraries say at `info` what interests their own authors.
    let of_libraries = match settings.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Trace => LevelFilter::TRACE,
        _ => LevelFilter::WARN,
    };
    let filter = Targets::new().with_default(of_libraries).with_targets(
        ["server", "shard", "consensus", "transport", "storage", "core"]
            .map(|part| (format!("onceward_{part}"), level)),
    );
    let registry = tracing_subscriber::registry().with(filter);
    let colours = io::stderr().is_terminal();
    match settings.format {
        LogFormat::Text => registry.with(fmt::layer().with_ansi(colours).with_writer(io::stderr)).init(),
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(io::stderr)).init(),
    }
}
