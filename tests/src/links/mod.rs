//! The network between the nodes of a test, and between them and their clients, as something that can be made to fail:
//! by proxies in this process, which needs no rights, or by network namespaces, which needs root.
//!
//! In go conditions of directed flows, out come counts of what they did. Whoever sets them need not know which of the
//! two networks it is.

pub mod namespaces;
mod proxies;
#[cfg(test)]
mod proxies_tests;

use std::{collections::BTreeMap, time::Duration};

pub use namespaces::Namespaces;
pub use proxies::{Proxies, Route};
use tokio::task::block_in_place;

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    Node(u16),
    /// All clients but the observers, whom nothing disturbs.
    Clients,
}

/// What goes from one party to the other, whichever of the two dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    pub from: Party,
    pub to: Party,
}

/// What a flow suffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Condition {
    pub passage: Passage,
    /// On top of each other: `delay`, and up to `jitter` more.
    pub delay: Duration,
    pub jitter: Duration,
    pub bytes_per_s: Option<u32>,
    /// Of a thousand packets, or of what proxies read at a time, as many arrive with a bit changed. TCP's checksums would
    /// discard the packets, and resend them: so namespaces lose them instead.
    pub corrupt_per_1000: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Passage {
    #[default]
    Open,
    /// Nothing passes and nobody is told: connections hang, and go on afterwards if they still live.
    Hold,
    /// Connections are reset, and so are new ones.
    Reset,
}

impl Condition {
    pub fn hold() -> Condition {
        Condition { passage: Passage::Hold, ..Condition::default() }
    }

    pub fn reset() -> Condition {
        Condition { passage: Passage::Reset, ..Condition::default() }
    }
}

impl Flow {
    pub fn new(from: Party, to: Party) -> Flow {
        Flow { from, to }
    }

    pub fn between_nodes(from: u16, to: u16) -> Flow {
        Flow::new(Party::Node(from), Party::Node(to))
    }

    pub fn back(self) -> Flow {
        Flow { from: self.to, to: self.from }
    }
}

/// The kinds of network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetworkKind {
    /// Nodes and clients reach each other directly; nothing can be done to it.
    #[default]
    Direct,
    Proxies,
    Namespaces,
}

/// A network that can be made to fail. Namespaces block while their commands run, and so need a multi-thread runtime.
pub enum Network {
    Proxies(Proxies),
    Namespaces(Namespaces),
}

impl Network {
    /// From now on, until others are set.
    pub fn set(&mut self, conditions: &[(Flow, Condition)]) {
        match self {
            Network::Proxies(proxies) => conditions.iter().for_each(|(flow, condition)| proxies.set(*flow, *condition)),
            Network::Namespaces(namespaces) => block_in_place(|| namespaces.set(conditions)),
        }
    }

    /// Resets the connections that there are between two parties.
    pub async fn reset(&mut self, flow: Flow) {
        match self {
            Network::Proxies(proxies) => proxies.reset(flow),
            Network::Namespaces(namespaces) => namespaces.reset(flow).await,
        }
    }

    /// Tells the receivers of a flow's connections that no more will come, while the other direction goes on. Namespaces
    /// reset the connections instead: nobody but their ends can half close them.
    pub async fn half_close(&mut self, flow: Flow) {
        match self {
            Network::Proxies(proxies) => proxies.half_close(flow),
            Network::Namespaces(namespaces) => namespaces.reset(flow).await,
        }
    }

    /// To be told when a node's process is gone: who dials it is refused, as on a network without proxies.
    pub fn down(&mut self, node: u16) {
        if let Network::Proxies(proxies) = self {
            proxies.down(Party::Node(node));
        }
    }

    /// To be told before a node's process is started.
    pub fn up(&mut self, node: u16) {
        if let Network::Proxies(proxies) = self {
            proxies.up(Party::Node(node));
        }
    }

    /// All flows as they were at first.
    pub fn heal(&mut self) {
        match self {
            Network::Proxies(proxies) => proxies.heal(),
            Network::Namespaces(namespaces) => block_in_place(|| namespaces.heal()),
        }
    }

    /// What the conditions did so far, by name.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        match self {
            Network::Proxies(proxies) => proxies.counters(),
            Network::Namespaces(namespaces) => block_in_place(|| namespaces.counters()),
        }
    }
}
