//! Who waits for the attempt of an idempotency key to end: by the record's row, on the replica of this node.
//!
//! Being woken is only a hint. Whoever is woken looks at the replica, and then asks the leader again.

use std::collections::HashMap;

use bytes::Bytes;
use onceward_consensus::Moved;
use parking_lot::Mutex;
use tokio::sync::watch;

#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<HashMap<Bytes, watch::Sender<()>>>);

/// A place among those who wait; leaving it is dropping it.
pub(crate) struct Place<'w> {
    waiting: &'w Waiting,
    row: Bytes,
    /// `None` only while it is dropped.
    woken: Option<watch::Receiver<()>>,
}

impl Waiting {
    /// From here on nothing that moves is missed.
    pub(crate) fn join(&self, row: Bytes) -> Place<'_> {
        let woken = self.0.lock().entry(row.clone()).or_insert_with(|| watch::Sender::new(())).subscribe();
        Place { waiting: self, row, woken: Some(woken) }
    }

    pub(crate) fn wake(&self, moved: &Moved) {
        let waiting = self.0.lock();
        match moved {
            _ if waiting.is_empty() => {}
            Moved::Rows(rows) => {
                rows.iter().filter_map(|row| waiting.get(row)).for_each(|sender| sender.send_replace(()));
            }
            Moved::All => waiting.values().for_each(|sender| sender.send_replace(())),
        }
    }
}

impl Place<'_> {
    /// Waits until something moved since this was called last, or since the place was taken.
    pub(crate) async fn woken(&mut self) {
        let woken = self.woken.as_mut().expect("taken only when it is dropped");
        if woken.changed().await.is_err() {
            unreachable!("the sender stays for as long as there are receivers");
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiting.0.lock();
        self.woken = None;
        if waiting.get(&self.row).is_some_and(|sender| sender.receiver_count() == 0) {
            waiting.remove(&self.row);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn everybody_who_waits_for_a_row_is_woken_and_nobody_else_and_nothing_stays_behind() {
        let waiting = Waiting::default();
        let row = |name: &'static str| Bytes::from_static(name.as_bytes());
        let mut first = waiting.join(row("a"));
        let mut second = waiting.join(row("a"));
        let mut other = waiting.join(row("b"));
        waiting.wake(&Moved::Rows(vec![row("a"), row("c")]));
        assert!(first.woken().now_or_never().is_some(), "also when it was not listening at that moment");
        assert!(second.woken().now_or_never().is_some());
        assert!(first.woken().now_or_never().is_none(), "once");
        assert!(other.woken().now_or_never().is_none());
        waiting.wake(&Moved::All);
        assert!(other.woken().now_or_never().is_some());
        drop(first);
        assert_eq!(waiting.0.lock().len(), 2);
        drop((second, other));
        assert!(waiting.0.lock().is_empty());
    }
}
