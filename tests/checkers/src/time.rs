//! Times as people read them.

/// `12.034567 s`, as precise as the history, so that the line can be found in it.
pub(crate) fn seconds(us: u64) -> String {
    if us == u64::MAX {
        return "the end".to_owned();
    }
    format!("{}.{:06} s", us / 1_000_000, us % 1_000_000)
}
