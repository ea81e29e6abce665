//! Wrong tokens per client address: a bucket of tries each, in a table that cannot grow past its bound.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::bounds::{AUTH_ADDRESSES_MAX, AUTH_FAILURE_EARNED_EVERY, AUTH_FAILURES_BURST};

/// The failures that count: by when they will all be forgiven, one every [`AUTH_FAILURE_EARNED_EVERY`].
#[derive(Default)]
pub struct Attempts {
    forgiven_at: Mutex<HashMap<IpAddr, Instant>>,
    /// Whether anybody ever failed: while nobody did, no lock is taken.
    any: AtomicBool,
}

impl Attempts {
    /// How long this address must wait until it is heard again; `None`: it need not.
    pub fn blocked(&self, client: IpAddr, now: Instant) -> Option<Duration> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let forgiven_at = *self.table().get(&network(client))?;
        let owed = forgiven_at.saturating_duration_since(now);
        let allowed = AUTH_FAILURE_EARNED_EVERY * (AUTH_FAILURES_BURST - 1);
        owed.checked_sub(allowed).filter(|wait| !wait.is_zero())
    }

    pub fn failed(&self, client: IpAddr, now: Instant) {
        self.any.store(true, Ordering::Relaxed);
        let mut table = self.table();
        let client = network(client);
        if table.len() >= AUTH_ADDRESSES_MAX && !table.contains_key(&client) {
            make_room(&mut table, now);
        }
        let forgiven_at = table.entry(client).or_insert(now);
        *forgiven_at = (*forgiven_at).max(now) + AUTH_FAILURE_EARNED_EVERY;
    }

    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, Instant>> {
        // A map of instants is whole whatever panicked beside it.
        self.forgiven_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops whoever is forgiven; where nobody is, whoever will be first.
fn make_room(table: &mut HashMap<IpAddr, Instant>, now: Instant) {
    table.retain(|_, forgiven_at| *forgiven_at > now);
    if table.len() >= AUTH_ADDRESSES_MAX {
        let first = table.iter().min_by_key(|(_, forgiven_at)| **forgiven_at).map(|(client, _)| *client);
        if let Some(first) = first {
            table.remove(&first);
        }
    }
}

/// Of an IPv6 address the /64: one customer has all of it.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_earned_back_one_by_one() {
        let attempts = Attempts::default();
        let client = IpAddr::from([192, 0, 2, 1]);
        let start = Instant::now();
        for _ in 0..AUTH_FAILURES_BURST {
            assert_eq!(attempts.blocked(client, start), None);
            attempts.failed(client, start);
        }
        assert_eq!(attempts.blocked(client, start), Some(AUTH_FAILURE_EARNED_EVERY));
        let later = start + AUTH_FAILURE_EARNED_EVERY;
        assert_eq!(attempts.blocked(client, later), None);
        attempts.failed(client, later);
        assert!(attempts.blocked(client, later).is_some());
    }

    #[test]
    fn the_table_stays_bounded_and_keeps_the_worst() {
        let attempts = Attempts::default();
        let now = Instant::now();
        let worst = IpAddr::from([192, 0, 2, 1]);
        for _ in 0..AUTH_FAILURES_BURST {
            attempts.failed(worst, now);
        }
        for number in 0..AUTH_ADDRESSES_MAX as u32 + 10 {
            attempts.failed(IpAddr::from(number.to_be_bytes()), now);
        }
        assert_eq!(attempts.table().len(), AUTH_ADDRESSES_MAX);
        assert!(attempts.blocked(worst, now).is_some());
    }

    #[test]
    fn a_v6_network_counts_as_one_client() {
        let attempts = Attempts::default();
        let now = Instant::now();
        for host in 0..AUTH_FAILURES_BURST as u16 {
            attempts.failed(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host]), now);
        }
        assert!(attempts.blocked(IpAddr::from([0x2001, 0xdb8, 0, 0, 9, 9, 9, 9]), now).is_some());
        assert_eq!(attempts.blocked(IpAddr::from([0x2001, 0xdb8, 0, 1, 9, 9, 9, 9]), now), None);
    }
}
