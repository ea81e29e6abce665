//! Permits: how many attempts the node has in flight, over all of its shards, and how many of them to endpoints that
//! aren't known to answer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::bounds::PAYLOAD_BYTES_MAX;

/// What is known of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It answers.
    Proven,
    /// Nobody has tried yet, or not for a while.
    Unknown,
    Failing,
}

impl Standing {
    pub(crate) const ALL: [Standing; 3] = [Standing::Proven, Standing::Unknown, Standing::Failing];
}

/// Failing endpoints have half of the permits at most, those that nobody knows a quarter more: so that each kind finds
/// some that the worse ones can't have.
pub(crate) struct Permits {
    /// In this order: what failing ones may have, what unproven ones may have, what all may have.
    semaphores: [Arc<Semaphore>; 3],
    /// Of the payloads in flight.
    payload_bytes: AtomicUsize,
}

/// The right to one attempt, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _parts: Vec<OwnedSemaphorePermit>,
}

impl Permits {
    pub(crate) fn new(in_flight_max: usize) -> Permits {
        let all = in_flight_max.clamp(4, Semaphore::MAX_PERMITS);
        let semaphores = [all / 2, all - all / 4, all].map(|permits| Arc::new(Semaphore::new(permits)));
        Permits { semaphores, payload_bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn free(&self) -> usize {
        self.semaphores[2].available_permits()
    }

    pub(crate) fn try_take(&self, standing: Standing) -> Option<Permit> {
        let take = |semaphore: &Arc<Semaphore>| semaphore.clone().try_acquire_owned().ok();
        let parts: Option<Vec<_>> = self.needed(standing).iter().map(take).collect();
        parts.map(|parts| Permit { _parts: parts })
    }

    /// Waits for its turn.
    pub(crate) async fn take(&self, standing: Standing) -> Permit {
        let mut parts = Vec::with_capacity(3);
        // Always in the same order, so that two who wait never wait for each other.
        for semaphore in self.needed(standing) {
            parts.push(semaphore.clone().acquire_owned().await.expect("the semaphores are never closed"));
        }
        Permit { _parts: parts }
    }

    /// Whether the payloads in flight leave room for another, by the same parts as permits do.
    pub(crate) fn has_room_for_payload(&self, standing: Standing) -> bool {
        let max = match standing {
            Standing::Proven => PAYLOAD_BYTES_MAX,
            Standing::Unknown => PAYLOAD_BYTES_MAX - PAYLOAD_BYTES_MAX / 4,
            Standing::Failing => PAYLOAD_BYTES_MAX / 2,
        };
        self.payload_bytes.load(Relaxed) < max
    }

    /// A payload is in flight until this is dropped.
    pub(crate) fn weigh(&self, bytes: usize) -> Weight<'_> {
        self.payload_bytes.fetch_add(bytes, Relaxed);
        Weight { permits: self, bytes }
    }

    fn needed(&self, standing: Standing) -> &[Arc<Semaphore>] {
        match standing {
            Standing::Proven => &self.semaphores[2..],
            Standing::Unknown => &self.semaphores[1..],
            Standing::Failing => &self.semaphores[..],
        }
    }
}

pub(crate) struct Weight<'p> {
    permits: &'p Permits,
    bytes: usize,
}

impl Drop for Weight<'_> {
    fn drop(&mut self) {
        self.permits.payload_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_finds_permits_that_the_worse_ones_cannot_have_and_what_is_dropped_is_free_again() {
        let permits = Permits::new(8);
        let all_of = |standing| std::iter::from_fn(|| permits.try_take(standing)).collect::<Vec<Permit>>();
        let failing = all_of(Standing::Failing);
        let unknown = all_of(Standing::Unknown);
        let proven = all_of(Standing::Proven);
        assert_eq!((failing.len(), unknown.len(), proven.len(), permits.free()), (4, 2, 2, 0));
        drop(proven);
        assert!(permits.try_take(Standing::Failing).is_none() && permits.try_take(Standing::Unknown).is_none());
        drop(failing);
        assert_eq!(all_of(Standing::Unknown).len(), 4);
    }

    #[test]
    fn large_payloads_to_failing_endpoints_leave_room_for_others() {
        let permits = Permits::new(8);
        let room = || Standing::ALL.map(|standing| permits.has_room_for_payload(standing));
        let half = permits.weigh(PAYLOAD_BYTES_MAX / 2);
        assert_eq!(room(), [true, true, false]);
        let rest = permits.weigh(PAYLOAD_BYTES_MAX / 2);
        assert_eq!(room(), [false; 3]);
        drop((half, rest));
        assert_eq!(room(), [true; 3]);
    }
}
