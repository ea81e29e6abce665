//! The shard clock of a leader that restarted: it has received no entry yet, so it asks the other replicas.

use std::{iter, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use onceward_consensus::Group;
use onceward_core::{cluster::ShardId, time::ShardTime};
use onceward_transport::{Lane, Request};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::{
    node::Surroundings,
    wire::{self, ClockReading, Method},
};

const ASK_TIMEOUT: Duration = Duration::from_millis(300);
/// Without a majority the leader loses its lease soon; until then it asks again after this pause.
const ASK_PAUSE: Duration = Duration::from_millis(100);

/// Gives the group's clock a value once a majority of the shard's voters, this one included, said what it believes.
/// Returns without one when there is no majority; the next flush tries again.
pub(crate) async fn recover(group: &Group, shard: ShardId, surroundings: &Surroundings) {
    let voters = surroundings.manifest.voters(shard);
    let own = reading(group);
    let mut others = Vec::new();
    let mut asked: FuturesUnordered<_> = voters
        .iter()
        .filter(|node| **node != surroundings.me.node)
        .map(|node| {
            let request = Request {
                lane: Lane::Control,
                method: Method::Clock.code(),
                shard,
                body: Bytes::new(),
                timeout: ASK_TIMEOUT,
            };
            surroundings.links.call(*node, request)
        })
        .collect();
    while let Some(answer) = asked.next().await {
        if let Some(reading) = answer.ok().and_then(|body| wire::decode::<ClockReading>(&body).ok()) {
            others.push(reading);
        }
    }
    match agree(own, &others, voters.len()) {
        Some(stamp) => {
            info!(%shard, stamp_us = stamp.0, replicas = others.len() + 1, "recovered the shard clock");
            group.adopt_clock(stamp);
        }
        None => {
            warn!(%shard, "no majority to recover the shard clock from");
            sleep(ASK_PAUSE).await;
        }
    }
}

/// What this replica believes.
pub(crate) fn reading(group: &Group) -> ClockReading {
    // The term first: then the clocks know of its last entry at least.
    let log_term = group.last_log_term();
    ClockReading { log_term, living: group.shard_clock(), guess: group.clock_guess() }
}

/// The stamp to go on from. Only replicas count whose logs have come into the leader's own term, and hence hold all of
/// its log: one that lags may have a clock that never heard that the shard ran slow meanwhile. Of those that count,
/// clocks that live never run fast, so they beat every guess; within a kind the least counts.
fn agree(leader: ClockReading, others: &[ClockReading], voters: usize) -> Option<ShardTime> {
    let readings = || iter::once(&leader).chain(others).filter(|reading| reading.log_term == leader.log_term);
    if readings().count() <= voters / 2 {
        return None;
    }
    let least_living = readings().filter_map(|reading| reading.living).min();
    least_living.or_else(|| readings().map(|reading| reading.guess).min())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(us: u64) -> ClockReading {
        ClockReading { log_term: Some(7), living: None, guess: ShardTime(us) }
    }

    fn living(us: u64) -> ClockReading {
        ClockReading { living: Some(ShardTime(us)), ..guess(0) }
    }

    #[test]
    fn a_wall_clock_set_forward_does_not_lead_the_majority() {
        assert_eq!(agree(guess(3_600_000_000), &[guess(5)], 3), Some(ShardTime(5)));
    }

    #[test]
    fn a_living_clock_beats_every_guess() {
        assert_eq!(agree(guess(5), &[living(70)], 3), Some(ShardTime(70)));
    }

    #[test]
    fn one_that_lags_behind_the_leaders_log_does_not_count() {
        let lagging = ClockReading { log_term: Some(6), ..living(3_600_000_000) };
        assert_eq!(agree(guess(5), &[lagging], 3), None);
        assert_eq!(agree(guess(5), &[lagging, guess(6)], 3), Some(ShardTime(5)));
    }

    #[test]
    fn alone_is_a_majority_only_of_one() {
        assert_eq!(agree(guess(5), &[], 1), Some(ShardTime(5)));
        assert_eq!(agree(guess(5), &[], 3), None);
    }
}
