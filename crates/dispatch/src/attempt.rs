//! One attempt of one delivery: what the rows say at this moment goes out, and an outcome comes back.

use std::{sync::Arc, time::Duration};

use onceward_core::{
    rows::RowsError,
    seams::{Clock, Entropy},
    time::ShardTime,
    webhooks::{self, DueItem, EndpointKey, Outcome, PendingDelivery, ReceiverAnswer, Target},
};
use tracing::debug;

use crate::{
    config::DispatchConfig,
    feed::{Feed, read},
    permits::Permits,
    sender::{Answered, Exchange, Post},
    signature::sign,
    stats::Stats,
    verdict::verdict,
};

/// What all shards of a node share.
pub(crate) struct Node {
    pub config: DispatchConfig,
    pub sender: Arc<dyn Exchange>,
    pub permits: Permits,
    pub stats: Stats,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

/// A delivery of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub endpoint: EndpointKey,
    pub item: DueItem,
}

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Made(Box<Outcome>),
    /// This node doesn't lead any more, or may not.
    NotLeading,
    /// The delivery isn't pending any more, or its endpoint takes none.
    NothingToDo,
    /// Not seen through: the rows couldn't be read, or its task ended.
    Crashed,
}

/// What the rows say of a delivery.
struct Found {
    target: Target,
    delivery: PendingDelivery,
}

impl Node {
    pub(crate) async fn attempt(&self, feed: &dyn Feed, delivery: Delivery) -> Ended {
        // In this order: whoever leads after having read has read what a leader may act on.
        let found = match feed.now().map(|now| (now, find(feed, delivery, now))) {
            None => return Ended::NotLeading,
            Some((_, Err(error))) => {
                debug!(shard = %feed.shard(), %error, "a delivery could not be read");
                return Ended::Crashed;
            }
            Some((_, Ok(None))) => return Ended::NothingToDo,
            Some((now, Ok(Some(found)))) => {
                if found.delivery.tries == 0 {
                    self.stats.note_lag(Duration::from_micros(now.since_us(delivery.item.at)));
                }
                found
            }
        };
        if !feed.leads() {
            return Ended::NotLeading;
        }
        Ended::Made(Box::new(self.send(delivery, found).await))
    }

    async fn send(&self, Delivery { endpoint, item }: Delivery, Found { target, delivery }: Found) -> Outcome {
        let _weight = self.permits.weigh(delivery.payload.len());
        let started_wall_ms = self.clock.wall_ms();
        let timestamp_s = started_wall_ms / 1_000;
        let message_id = item.message.to_string();
        let keys = target.secrets.iter().map(|secret| secret.reveal());
        let signature = sign(keys, &message_id, timestamp_s, &delivery.payload);
        let post = Post {
            url: &target.url,
            message_id: &message_id,
            timestamp_s,
            signature: &signature,
            sequence: delivery.sequence,
            headers: target.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            body: delivery.payload,
        };
        let answered = self.sender.post(&post).await;
        self.stats.note_attempt(&answered);
        let nonce = self.entropy.nonce().to_le_bytes();
        let (for_jitter, for_ids) = nonce.split_at(8);
        let jitter = u64::from_le_bytes(for_jitter.try_into().expect("eight bytes"));
        Outcome {
            app: endpoint.app,
            endpoint: endpoint.endpoint,
            message: item.message,
            tries_before: delivery.tries,
            nonce: for_ids[..6].try_into().expect("six of eight bytes"),
            verdict: verdict(&answered, delivery.tries, &self.config.schedule, jitter),
            answer: receiver_answer(answered, started_wall_ms, target.url),
        }
    }
}

fn find(feed: &dyn Feed, delivery: Delivery, now: ShardTime) -> Result<Option<Found>, RowsError> {
    read(feed, |rows| {
        let Some(target) = webhooks::target(rows, delivery.endpoint, now)?.filter(|target| !target.disabled) else {
            return Ok(None);
        };
        let pending = webhooks::pending_delivery(rows, delivery.endpoint, delivery.item.message)?;
        Ok(pending.map(|delivery| Found { target, delivery }))
    })
}

/// What is kept of it; of an answer that was not complete only what went wrong.
fn receiver_answer(answered: Answered, started_wall_ms: u64, url: String) -> ReceiverAnswer {
    let duration_ms = u32::try_from(answered.took.as_millis()).unwrap_or(u32::MAX);
    let (status_code, body, truncated) = match answered.failure {
        Some(failure) => (0, failure.to_string(), false),
        None => (answered.status, answered.body, answered.truncated),
    };
    ReceiverAnswer { status_code, body, truncated, duration_ms, started_wall_ms, url }
}
