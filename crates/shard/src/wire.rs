//! What nodes say to each other besides Raft: methods 32–63 of the peer protocol and the shapes of their bodies.
//! Positional MessagePack behind one version byte ([`onceward_core::codec`]); the golden files pin every shape.

use onceward_core::{
    cluster::{Manifest, NodeId, ShardId},
    codec,
    command::{Command, Reply},
    query::{Answer, Query},
    time::ShardTime,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::outcome::{NotApplied, Outcome};

/// Consensus owns the methods below this one.
pub(crate) const METHODS_FROM: u8 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// Commands for shards that the receiver leads: [`Forward`] → [`Forwarded`].
    Forward,
    /// A query answered behind ReadIndex: [`Query`] → [`Queried`].
    Query,
    /// What the receiver's shard clock says: nothing → [`ClockReading`].
    Clock,
    /// Who and how alive the receiver is: nothing → [`Probed`].
    Probe,
    /// The founder, or the leader of the system shard, takes the receiver in: [`Adopt`] → nothing.
    Adopt,
    /// The generations of a shard's voters and learners, as its leader has them: nothing → [`Members`].
    Members,
}

impl Method {
    pub(crate) const fn code(self) -> u8 {
        METHODS_FROM + self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Method> {
        const ALL: [Method; 6] =
            [Method::Forward, Method::Query, Method::Clock, Method::Probe, Method::Adopt, Method::Members];
        ALL.into_iter().find(|method| method.code() == code)
    }
}

/// A batch of commands, each with the time that its caller still has.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forward {
    pub items: Vec<ForwardItem>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForwardItem {
    pub shard: ShardId,
    pub remaining_ms: u32,
    pub command: Command,
}

/// One outcome for each item, in their order.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forwarded {
    pub outcomes: Vec<WireOutcome>,
}

/// [`Outcome`] between nodes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireOutcome {
    Applied(Reply),
    NotLeader { hint: Option<NodeId> },
    NoQuorum,
    Overloaded,
    DeadlinePassed,
    Unknown,
    DiskLow,
}

impl From<Outcome<Reply>> for WireOutcome {
    fn from(outcome: Outcome<Reply>) -> Self {
        match outcome {
            Outcome::Applied(reply) => WireOutcome::Applied(reply),
            Outcome::NotApplied(NotApplied::NotLeader { hint }) => WireOutcome::NotLeader { hint },
            Outcome::NotApplied(NotApplied::NoQuorum) => WireOutcome::NoQuorum,
            Outcome::NotApplied(NotApplied::Overloaded) => WireOutcome::Overloaded,
            Outcome::NotApplied(NotApplied::DeadlinePassed) => WireOutcome::DeadlinePassed,
            Outcome::NotApplied(NotApplied::DiskLow) => WireOutcome::DiskLow,
            Outcome::Unknown => WireOutcome::Unknown,
        }
    }
}

impl From<WireOutcome> for Outcome<Reply> {
    fn from(outcome: WireOutcome) -> Self {
        match outcome {
            WireOutcome::Applied(reply) => Outcome::Applied(reply),
            WireOutcome::NotLeader { hint } => Outcome::NotApplied(NotApplied::NotLeader { hint }),
            WireOutcome::NoQuorum => Outcome::NotApplied(NotApplied::NoQuorum),
            WireOutcome::Overloaded => Outcome::NotApplied(NotApplied::Overloaded),
            WireOutcome::DeadlinePassed => Outcome::NotApplied(NotApplied::DeadlinePassed),
            WireOutcome::DiskLow => Outcome::NotApplied(NotApplied::DiskLow),
            WireOutcome::Unknown => Outcome::Unknown,
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueryRequest {
    pub query: Query,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Queried {
    Answer(Box<Answer>),
    NotLeader { hint: Option<NodeId> },
    NoQuorum,
}

/// A replica's idea of the shard clock: `living` when it received an entry since its process started, else a guess
/// from what it stored and its wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockReading {
    /// The term of the last entry that the clocks know of.
    pub log_term: Option<u64>,
    pub living: Option<ShardTime>,
    pub guess: ShardTime,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Probed {
    pub wall_ms: u64,
    pub incarnation: u128,
    /// `None` while the node stands by with an empty directory.
    pub cluster_id: Option<u128>,
    pub http_address: String,
    pub peer_address: String,
    /// It doesn't want to lead.
    #[serde(default)]
    pub disk_is_low: bool,
}

/// The manifest with the receiver's own entry in it, in the generation that it is to live in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Adopt {
    pub manifest: Manifest,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Members {
    pub led_here: bool,
    /// Packed [`onceward_core::cluster::MemberId`]s.
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
}

pub(crate) fn encode<T: Serialize>(value: &T) -> bytes::Bytes {
    codec::encode(value)
}

pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    codec::decode(body).map_err(|error| format!("malformed body: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use onceward_core::{
        cluster::{Generation, NodeEntry},
        limits::{CheckCommand, CheckItem, Mode},
    };

    use super::*;

    fn manifest() -> Manifest {
        let entry = NodeEntry {
            id: NodeId(1),
            generation: Generation(2),
            incarnation: 3,
            http_address: "h:1".to_owned(),
            peer_address: "p:1".to_owned(),
        };
        Manifest { cluster_id: 7, data_shards: 8, nodes: vec![entry] }
    }

    fn command() -> Command {
        let item = CheckItem { policy: "api".to_owned(), key: "k".to_owned(), cost: 1 };
        Command::Check(CheckCommand { mode: Mode::Enforce, items: vec![item], request_id: None })
    }

    /// One body of each shape, by method code.
    fn bodies() -> Vec<(String, bytes::Bytes)> {
        let name = |method: Method, what: &str| format!("{} {what}", method.code());
        let outcomes = vec![
            WireOutcome::Applied(Reply::Expire { removed: 1 }),
            WireOutcome::NotLeader { hint: Some(NodeId(2)) },
            WireOutcome::NoQuorum,
            WireOutcome::Overloaded,
            WireOutcome::DeadlinePassed,
            WireOutcome::Unknown,
            WireOutcome::DiskLow,
        ];
        let items = vec![ForwardItem { shard: ShardId(1), remaining_ms: 250, command: command() }];
        let probed = Probed {
            wall_ms: 1,
            incarnation: 2,
            cluster_id: Some(3),
            http_address: "h:1".to_owned(),
            peer_address: "p:1".to_owned(),
            disk_is_low: false,
        };
        vec![
            (name(Method::Forward, "request"), encode(&Forward { items })),
            (name(Method::Forward, "answer"), encode(&Forwarded { outcomes })),
            (name(Method::Query, "request"), encode(&QueryRequest { query: Query::Policy { name: "api".to_owned() } })),
            (name(Method::Query, "answer"), encode(&Queried::Answer(Box::new(Answer::SyncedRevision(5))))),
            (name(Method::Query, "not leader"), encode(&Queried::NotLeader { hint: None })),
            (name(Method::Query, "no quorum"), encode(&Queried::NoQuorum)),
            (
                name(Method::Clock, "answer"),
                encode(&ClockReading { log_term: Some(4), living: None, guess: ShardTime(9) }),
            ),
            (name(Method::Probe, "answer"), encode(&probed)),
            (name(Method::Adopt, "request"), encode(&Adopt { manifest: manifest() })),
            (
                name(Method::Members, "answer"),
                encode(&Members { led_here: true, voters: vec![1, 65538], learners: vec![] }),
            ),
        ]
    }

    #[test]
    fn bodies_on_the_wire_are_as_the_golden_file_has_them() {
        let mut now = String::new();
        for (name, body) in bodies() {
            let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(now, "{name}: {hex}").unwrap();
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/wire.txt");
        if std::env::var_os("ONCEWARD_WRITE_GOLDEN").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let golden = std::fs::read_to_string(path).unwrap();
        assert_eq!(now, golden, "nodes of different builds would misunderstand each other");
    }

    #[test]
    fn every_method_is_found_by_its_code() {
        for code in METHODS_FROM..METHODS_FROM + 6 {
            assert_eq!(Method::from_code(code).map(Method::code), Some(code));
        }
        assert_eq!(Method::from_code(METHODS_FROM + 6), None);
    }
}
