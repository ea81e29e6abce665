//! Idle connections, kept for the next delivery to the same receiver. What is in here was judged when it was dialled.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::{
    bounds::{CONNECTION_AGE_MAX, IDLE_MAX, IDLE_PER_ORIGIN_MAX, IDLE_TIMEOUT},
    connection::Connection,
};

const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Scheme, host and port, as a URL's origin is written.
pub(crate) type Origin = Arc<str>;

#[derive(Default)]
pub(crate) struct Pool(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    /// By origin, the one that was used last at the end; never empty.
    connections: HashMap<Origin, Vec<(Instant, Connection)>>,
    count: usize,
    sweeping: bool,
}

impl Pool {
    /// The connection that was used last, if it still stands.
    pub(crate) fn take(&self, origin: &str) -> Option<Connection> {
        let mut idle = self.0.lock();
        loop {
            let of_origin = idle.connections.get_mut(origin)?;
            let found = of_origin.pop();
            if of_origin.is_empty() {
                idle.connections.remove(origin);
            }
            let (since, mut connection) = found?;
            idle.count -= 1;
            if since.elapsed() < IDLE_TIMEOUT && connection.is_reusable() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose last answer was read to its end, if it may be used again and there is room.
    pub(crate) fn put(self: &Arc<Pool>, origin: Origin, mut connection: Connection) {
        if connection.dialled.elapsed() >= CONNECTION_AGE_MAX || !connection.is_reusable() {
            return;
        }
        let mut idle = self.0.lock();
        if idle.count >= IDLE_MAX {
            return;
        }
        let of_origin = idle.connections.entry(origin).or_default();
        if of_origin.len() >= IDLE_PER_ORIGIN_MAX {
            return;
        }
        of_origin.push((Instant::now(), connection));
        idle.count += 1;
        if !std::mem::replace(&mut idle.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes what was idle for too long. Whether nothing is left.
    fn drop_old(&self) -> bool {
        let mut idle = self.0.lock();
        let mut count = 0;
        idle.connections.retain(|_, of_origin| {
            of_origin.retain(|(since, _)| since.elapsed() < IDLE_TIMEOUT);
            count += of_origin.len();
            !of_origin.is_empty()
        });
        idle.count = count;
        idle.sweeping = count > 0;
        count == 0
    }
}

/// Runs while there is something to close.
async fn sweep(pool: Weak<Pool>) {
    loop {
        sleep(SWEEP_EVERY).await;
        if pool.upgrade().is_none_or(|pool| pool.drop_old()) {
            return;
        }
    }
}
