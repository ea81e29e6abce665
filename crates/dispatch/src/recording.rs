//! A report on its way into the log, repeated until that is certain or the term is over.

use std::{sync::Arc, time::Duration};

use onceward_core::webhooks::{Outcome, RecordOutcomes};
use ractor::ActorRef;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    attempt::Node,
    bounds::{RECORD_AGAIN_MAX, RECORD_AGAIN_MIN, RECORD_TIMEOUT},
    dispatcher::Message,
    feed::{Feed, Recorded},
};

/// However it ends, the dispatcher is told.
pub(crate) struct Recording {
    actor: ActorRef<Message>,
    applied: bool,
}

impl Recording {
    pub(crate) fn new(actor: ActorRef<Message>) -> Recording {
        Recording { actor, applied: false }
    }

    pub(crate) async fn run(
        mut self,
        node: Arc<Node>,
        feed: Arc<dyn Feed>,
        term: u64,
        terms: watch::Receiver<Option<u64>>,
        outcomes: Vec<Outcome>,
    ) {
        let count = outcomes.len() as u64;
        let report = RecordOutcomes {
            outcomes,
            disable_after_us: micros(node.config.disable_after),
            retention_us: micros(node.config.retention),
            wall_ms: node.clock.wall_ms(),
        };
        let mut pause = RECORD_AGAIN_MIN;
        while *terms.borrow() == Some(term) {
            match feed.record(report.clone(), Instant::now() + RECORD_TIMEOUT).await {
                Recorded::Applied => {
                    node.stats.reports.add(1);
                    node.stats.outcomes_recorded.add(count);
                    self.applied = true;
                    return;
                }
                // What was recorded already changes nothing when it comes again.
                Recorded::NotApplied | Recorded::Unknown => sleep(pause).await,
            }
            pause = (pause * 2).min(RECORD_AGAIN_MAX);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.actor.cast(Message::Recorded { applied: self.applied });
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
