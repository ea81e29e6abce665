//! Looking up the addresses of names: the seam through which a resolver is reached, and the bound on what it may cost.
//!
//! Attempts that need the same name at the same time share one lookup. Nothing is remembered beyond that: an answer is
//! used by those who waited for it, once each.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    sync::{Arc, Weak},
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::bounds::{LOOKUPS_MAX, LOOKUPS_WAITING_MAX};

/// Whoever knows the addresses of names.
pub trait Resolve: Send + Sync + 'static {
    fn lookup(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system, with what `/etc/hosts` and its like say.
#[derive(Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn lookup(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let name = name.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect()) })
    }
}

/// What a lookup came to; `None`: the name doesn't resolve.
type Found = Option<Arc<[IpAddr]>>;

/// The lookups of a node.
pub(crate) struct Names {
    resolver: Box<dyn Resolve>,
    slots: Semaphore,
    under_way: Mutex<HashMap<Arc<str>, watch::Receiver<Found>>>,
}

impl Names {
    pub(crate) fn new(resolver: Box<dyn Resolve>) -> Arc<Names> {
        Arc::new(Names { resolver, slots: Semaphore::new(LOOKUPS_MAX), under_way: Mutex::default() })
    }

    /// The addresses of `name`, none if it doesn't resolve. Whoever stops waiting doesn't end the lookup for others.
    pub(crate) async fn lookup(self: &Arc<Names>, name: &str) -> Found {
        let mut found = self.join(name)?;
        // The sender goes away without an answer when the name doesn't resolve.
        found.wait_for(Option::is_some).await.ok()?.clone()
    }

    fn join(self: &Arc<Names>, name: &str) -> Option<watch::Receiver<Found>> {
        let mut under_way = self.under_way.lock();
        if let Some(found) = under_way.get(name) {
            return Some(found.clone());
        }
        if under_way.len() >= LOOKUPS_WAITING_MAX {
            return None;
        }
        let (answer, found) = watch::channel(None);
        let name = Arc::<str>::from(name);
        under_way.insert(name.clone(), found.clone());
        let listed = Listed { names: Arc::downgrade(self), name };
        let names = self.clone();
        tokio::spawn(async move {
            // Held to the end: the thread behind it is busy that long, whoever still waits.
            let _slot = names.slots.acquire().await;
            let addresses = names.resolver.lookup(&listed.name).await;
            drop(listed);
            if let Ok(addresses) = addresses {
                answer.send_replace(Some(addresses.into()));
            }
        });
        Some(found)
    }
}

/// A lookup's place in the list, left also when its task is gone.
struct Listed {
    names: Weak<Names>,
    name: Arc<str>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(names) = self.names.upgrade() {
            names.under_way.lock().remove(&self.name);
        }
    }
}
