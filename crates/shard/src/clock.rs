//! The shard clock of a leader that restarted: it has received no entry yet, so it asks the other replicas.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use onceward_consensus::Group;
use onceward_core::{cluster::ShardId, time::ShardTime};
use onceward_transport::{Lane, Request};
use tracing::{info, warn};

use crate::{
    node::Surroundings,
    wire::{self, ClockReading, Method},
};

const ASK_TIMEOUT: Duration = Duration::from_millis(300);

/// Gives the group's clock a value once a majority of the shard's voters, this one included, said what it believes.
/// Returns without one when there is no majority; the next flush tries again.
///
/// Clocks that live never run fast, so they beat every guess; within a kind the least counts.
pub(crate) async fn recover(group: &Group, shard: ShardId, surroundings: &Surroundings) {
    let voters = surroundings.manifest.voters(shard);
    let mut readings = vec![reading(group)];
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
            readings.push(reading);
        }
    }
    if readings.len() <= voters.len() / 2 {
        warn!(%shard, "no majority to recover the shard clock from");
        return;
    }
    let stamp = choose(&readings);
    info!(%shard, stamp_us = stamp.0, replicas = readings.len(), "recovered the shard clock");
    group.adopt_clock(stamp);
}

/// What this replica believes.
pub(crate) fn reading(group: &Group) -> ClockReading {
    ClockReading { living: group.shard_clock(), guess: group.clock_guess() }
}

fn choose(readings: &[ClockReading]) -> ShardTime {
    let least_living = readings.iter().filter_map(|reading| reading.living).min();
    least_living.unwrap_or_else(|| readings.iter().map(|reading| reading.guess).min().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(us: u64) -> ClockReading {
        ClockReading { living: None, guess: ShardTime(us) }
    }

    #[test]
    fn a_wall_clock_set_forward_does_not_lead_the_majority() {
        assert_eq!(choose(&[guess(3_600_000_000), guess(5)]), ShardTime(5));
    }

    #[test]
    fn a_living_clock_beats_every_guess() {
        let living = ClockReading { living: Some(ShardTime(70)), guess: ShardTime(10) };
        assert_eq!(choose(&[guess(5), living]), ShardTime(70));
    }
}
