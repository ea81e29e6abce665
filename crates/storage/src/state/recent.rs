//! Rows of the State table as they are on disk, kept for a while after they were read or flushed.
//!
//! A warm bucket is asked for again soon after its flush, and the engine needs microseconds to find it. Bounded, and
//! safe to forget at any time; the overlay is always asked first, so a row changed since may lie here outdated.

use std::collections::HashMap;

use bytes::Bytes;

use crate::limits::{RECENT_BYTES_MAX, RECENT_ROW_BYTES, RECENT_VALUE_BYTES_MAX};

type Rows = HashMap<Box<[u8]>, Bytes>;

/// Two halves: when the younger is full it becomes the older, and what nobody asked for since the last time is gone.
#[derive(Default)]
pub(super) struct Recent {
    young: Rows,
    old: Rows,
    young_bytes: usize,
}

impl Recent {
    pub(super) fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    /// Keeps a row. `value` must have memory of its own: a slice would keep all that it was cut from.
    pub(super) fn put(&mut self, key: &[u8], value: Bytes) {
        if value.len() > RECENT_VALUE_BYTES_MAX {
            return self.remove(key);
        }
        self.old.remove(key);
        self.insert(key.into(), value);
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        self.old.remove(key);
        if let Some((key, value)) = self.young.remove_entry(key) {
            self.young_bytes -= cost(&key, &value);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Recent::default();
    }

    fn insert(&mut self, key: Box<[u8]>, value: Bytes) {
        self.young_bytes += cost(&key, &value);
        if let Some(replaced) = self.young.get(&key) {
            self.young_bytes -= cost(&key, replaced);
        }
        self.young.insert(key, value);
        if self.young_bytes >= RECENT_BYTES_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }
}

fn cost(key: &[u8], value: &Bytes) -> usize {
    key.len() + value.len() + RECENT_ROW_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_row_is_not_kept_and_drives_out_what_was_kept_of_it() {
        let mut recent = Recent::default();
        recent.put(b"row", Bytes::from_static(b"small"));
        recent.put(b"row", Bytes::from(vec![0; RECENT_VALUE_BYTES_MAX + 1]));
        assert_eq!(recent.get(b"row"), None);
        recent.put(b"row", Bytes::from(vec![0; RECENT_VALUE_BYTES_MAX]));
        assert!(recent.get(b"row").is_some());
    }

    #[test]
    fn it_forgets_what_nobody_asks_for_and_keeps_what_is_used() {
        let mut recent = Recent::default();
        let value = Bytes::from(vec![0; 1000]);
        recent.put(b"used", value.clone());
        let rows = 10 * RECENT_BYTES_MAX / cost(&[0; 8], &value);
        for number in 0..rows as u64 {
            recent.put(&number.to_be_bytes(), value.clone());
            assert!(recent.get(b"used").is_some());
        }
        let kept: usize = [&recent.young, &recent.old].into_iter().flatten().map(|(key, value)| cost(key, value)).sum();
        assert!((RECENT_BYTES_MAX / 2..=RECENT_BYTES_MAX).contains(&kept), "{kept} bytes");
        assert!(recent.get(&0u64.to_be_bytes()).is_none());
        recent.remove(b"used");
        assert!(recent.get(b"used").is_none());
    }
}
