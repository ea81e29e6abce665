//! Permits: how many attempts the node has in flight, over all of its shards, and how many of them to endpoints that
//! aren't known to answer.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is known of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It answers.
    Proven,
    /// It fails, or nobody knows yet.
    Suspect,
}

impl Standing {
    pub(crate) const BOTH: [Standing; 2] = [Standing::Proven, Standing::Suspect];
}

pub(crate) struct Permits {
    all: Arc<Semaphore>,
    suspect: Arc<Semaphore>,
}

/// The right to one attempt, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _any: OwnedSemaphorePermit,
    _suspect: Option<OwnedSemaphorePermit>,
}

impl Permits {
    pub(crate) fn new(in_flight_max: usize) -> Permits {
        let all = in_flight_max.clamp(2, Semaphore::MAX_PERMITS);
        Permits { all: Arc::new(Semaphore::new(all)), suspect: Arc::new(Semaphore::new(all / 2)) }
    }

    pub(crate) fn free(&self) -> usize {
        self.all.available_permits()
    }

    pub(crate) fn try_take(&self, standing: Standing) -> Option<Permit> {
        let suspect = match standing {
            Standing::Proven => None,
            Standing::Suspect => Some(self.suspect.clone().try_acquire_owned().ok()?),
        };
        Some(Permit { _any: self.all.clone().try_acquire_owned().ok()?, _suspect: suspect })
    }

    /// Waits for its turn.
    pub(crate) async fn take(&self, standing: Standing) -> Permit {
        const OPEN: &str = "the semaphores are never closed";
        let suspect = match standing {
            Standing::Proven => None,
            Standing::Suspect => Some(self.suspect.clone().acquire_owned().await.expect(OPEN)),
        };
        Permit { _any: self.all.clone().acquire_owned().await.expect(OPEN), _suspect: suspect }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_have_half_of_it_at_most_and_what_is_dropped_is_free_again() {
        let permits = Permits::new(4);
        let suspects: Vec<Permit> = std::iter::from_fn(|| permits.try_take(Standing::Suspect)).collect();
        assert_eq!((suspects.len(), permits.free()), (2, 2));
        let proven: Vec<Permit> = std::iter::from_fn(|| permits.try_take(Standing::Proven)).collect();
        assert_eq!((proven.len(), permits.free()), (2, 0));
        drop(proven);
        assert!(permits.try_take(Standing::Suspect).is_none());
        drop(suspects);
        assert!(permits.try_take(Standing::Suspect).is_some());
    }
}
