//! Permits: how many attempts the node has in flight, over all of its shards, and how many of them to endpoints that
//! aren't known to answer.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
///
/// In this order: what failing ones may have, what unproven ones may have, what all may have.
pub(crate) struct Permits([Arc<Semaphore>; 3]);

/// The right to one attempt, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _parts: Vec<OwnedSemaphorePermit>,
}

impl Permits {
    pub(crate) fn new(in_flight_max: usize) -> Permits {
        let all = in_flight_max.clamp(4, Semaphore::MAX_PERMITS);
        Permits([all / 2, all - all / 4, all].map(|permits| Arc::new(Semaphore::new(permits))))
    }

    pub(crate) fn free(&self) -> usize {
        self.0[2].available_permits()
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

    fn needed(&self, standing: Standing) -> &[Arc<Semaphore>] {
        match standing {
            Standing::Proven => &self.0[2..],
            Standing::Unknown => &self.0[1..],
            Standing::Failing => &self.0[..],
        }
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
}
