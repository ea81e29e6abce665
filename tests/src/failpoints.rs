//! What a node is told to suffer from its own clocks and disk. A program that was built with the feature `faults` reads
//! it from the file that an environment variable names, again whenever it changes.

use std::{fs, path::Path};

use serde::Serialize;

/// Names the file.
pub const VARIABLE: &str = "ONCEWARD_FAILPOINTS";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Failpoints {
    /// Added to the wall clock.
    pub wall_offset_ms: i64,
    /// How much faster the monotonic clock runs than real time, in millionths, from the moment on at which it is read.
    pub monotonic_rate_ppm: i64,
    /// On top of each fsync.
    pub sync_delay_ms: u64,
    /// The next fsync fails.
    pub sync_fails: bool,
    /// What the disk says is free, instead of the truth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

impl Failpoints {
    /// Replaces the file at once: it is read at any time.
    pub fn write(&self, file: &Path) {
        let next = file.with_extension("next");
        let text = toml::to_string(self).expect("plain numbers");
        fs::write(&next, text).expect("the failpoints can be written");
        fs::rename(&next, file).expect("the failpoints can be replaced");
    }
}
