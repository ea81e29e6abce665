//! What the system says about a process: CPU time, resident memory; and how much a directory takes on disk.

use std::{fs, path::Path, time::Duration};

use rustix::param::{clock_ticks_per_second, page_size};

/// User and system time so far.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    // The second field is the command in parentheses and may hold anything; utime and stime are fields 14 and 15.
    let after_command = &stat[stat.rfind(')').expect("a command in parentheses") + 2..];
    let ticks: u64 =
        after_command.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("a count of ticks")).sum();
    Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
}

/// Resident memory in bytes.
pub fn resident_bytes(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("the process lives");
    let pages: u64 = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("a count of pages");
    pages * page_size() as u64
}

/// Bytes of all files under `dir`, without what is only allocated ahead; files that go away meanwhile count nothing.
pub fn disk_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}
