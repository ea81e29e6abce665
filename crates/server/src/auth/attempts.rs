//! Wrong tokens per client address: a bucket of tries each, in a table that cannot grow past its bound. And right ones:
//! an address may stand for many clients, of which one that guesses must not silence those that are known.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::Digest;
use crate::bounds::{AUTH_ADDRESSES_MAX, AUTH_FAILURE_EARNED_EVERY, AUTH_FAILURES_BURST};

#[derive(Default)]
pub struct Attempts {
    /// Of each address with failures that count: by when all will be forgiven, one every [`AUTH_FAILURE_EARNED_EVERY`].
    forgiven_at: Mutex<HashMap<IpAddr, Instant>>,
    /// Whether anybody ever failed: while nobody did, the table isn't looked at.
    any: AtomicBool,
    /// Right tokens and where they came from.
    known: Mutex<HashSet<(IpAddr, Digest)>>,
    /// When somebody was last told of an address that is blocked.
    told_at: Mutex<Option<Instant>>,
}

/// Who guesses from many addresses must not fill the log.
const TELL_EVERY: Duration = Duration::from_secs(10);

impl Attempts {
    /// How long this address must wait until unknown tokens of it are heard again; `None`: it need not.
    pub fn blocked(&self, client: IpAddr, now: Instant) -> Option<Duration> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let forgiven_at = *self.table().get(&network(client))?;
        let owed = forgiven_at.saturating_duration_since(now);
        let allowed = AUTH_FAILURE_EARNED_EVERY * (AUTH_FAILURES_BURST - 1);
        owed.checked_sub(allowed).filter(|wait| !wait.is_zero())
    }

    /// Counts a wrong token. Whether the address is blocked by it, and this is worth telling.
    pub fn failed(&self, client: IpAddr, now: Instant) -> bool {
        self.any.store(true, Ordering::Relaxed);
        self.count(network(client), now);
        let mut told_at = lock(&self.told_at);
        let tell = self.blocked(client, now).is_some()
            && told_at.is_none_or(|told_at| now.saturating_duration_since(told_at) >= TELL_EVERY);
        if tell {
            *told_at = Some(now);
        }
        tell
    }

    fn count(&self, client: IpAddr, now: Instant) {
        let mut table = self.table();
        if table.len() >= AUTH_ADDRESSES_MAX && !table.contains_key(&client) {
            make_room(&mut table, now);
        }
        let forgiven_at = table.entry(client).or_insert(now);
        *forgiven_at = (*forgiven_at).max(now) + AUTH_FAILURE_EARNED_EVERY;
    }

    /// Remembers that a right token came from this address.
    pub fn succeeded(&self, client: IpAddr, token: Digest) {
        let pair = (network(client), token);
        let mut known = lock(&self.known);
        if !known.contains(&pair) {
            // Only who has a right token gets here, so that nobody forces this who couldn't do worse.
            if known.len() >= AUTH_ADDRESSES_MAX {
                known.clear();
            }
            known.insert(pair);
        }
    }

    /// Whether this token, if it is one, was right before and came from this address.
    pub fn is_known(&self, client: IpAddr, token: Digest) -> bool {
        lock(&self.known).contains(&(network(client), token))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, Instant>> {
        lock(&self.forgiven_at)
    }
}

/// These tables are whole whatever panicked beside them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        for tries in 1..=AUTH_FAILURES_BURST {
            assert_eq!(attempts.blocked(client, start), None);
            assert_eq!(attempts.failed(client, start), tries == AUTH_FAILURES_BURST);
        }
        assert_eq!(attempts.blocked(client, start), Some(AUTH_FAILURE_EARNED_EVERY));
        let later = start + AUTH_FAILURE_EARNED_EVERY;
        assert_eq!(attempts.blocked(client, later), None);
        assert!(!attempts.failed(client, later), "it was told a moment ago");
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
    fn known_tokens_stay_bounded() {
        let attempts = Attempts::default();
        for number in 0..=AUTH_ADDRESSES_MAX as u32 {
            attempts.succeeded(IpAddr::from(number.to_be_bytes()), [7; 32]);
        }
        assert!(lock(&attempts.known).len() <= AUTH_ADDRESSES_MAX);
        let last = IpAddr::from((AUTH_ADDRESSES_MAX as u32).to_be_bytes());
        assert!(attempts.is_known(last, [7; 32]) && !attempts.is_known(last, [8; 32]));
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
