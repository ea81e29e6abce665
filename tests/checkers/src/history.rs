//! What a run leaves behind: what clients asked and were told, what receivers got, what was done to the cluster, and what
//! observers saw of it. One [`Record`] is one line of `history.jsonl`.
//!
//! Times are microseconds since the start of the run on one monotonic clock, that of the process that records.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    Run(Run),
    Operation(Operation),
    Delivery(Delivery),
    StateHash(StateHash),
    Nemesis(Nemesis),
    Isolation(Isolation),
    Leader(Leader),
    Recovery(Recovery),
}

/// The first record: what was run, so that it can be run again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub seed: u64,
    pub nodes: u16,
    pub data_shards: u16,
    /// As given on the command line, or what stands for it in a simulation.
    pub nemesis: String,
    pub workload: String,
    pub duration_ms: u64,
    /// `git describe`-like, or empty.
    pub version: String,
    /// For people, RFC 3339; empty in a simulation.
    pub started_at: String,
    /// What runs it again.
    #[serde(default)]
    pub command: String,
}

impl Record {
    /// Writes it as a line of `history.jsonl`.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut to, self)?;
        to.write_all(b"\n")
    }
}

/// A call of one client to one node, and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// A logical client: it has one call under way at a time. A call whose outcome is unknown ends it, the next one has
    /// another number.
    pub process: u64,
    /// The node that was asked.
    pub node: u16,
    pub invoked_us: u64,
    /// When the answer was there; for [`Outcome::Unknown`] when the client gave up: the call may take effect later still.
    pub returned_us: u64,
    /// Reads made when everything has healed and nothing else is under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
    pub call: Call,
    pub outcome: Outcome,
}

impl Operation {
    /// The last instant at which it can have taken effect: open where its outcome is unknown.
    pub fn effective_until_us(&self) -> u64 {
        if self.reply().is_some() { self.returned_us } else { u64::MAX }
    }

    /// Whether it can have taken effect at all.
    pub fn may_have_applied(&self) -> bool {
        self.outcome != Outcome::Refused
    }

    pub fn reply(&self) -> Option<&Reply> {
        match &self.outcome {
            Outcome::Answered { reply } => Some(reply),
            Outcome::Refused | Outcome::Unknown | Outcome::Unexpected { .. } => None,
        }
    }
}

/// How a call ended, in the classes of the HTTP contract.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class", rename_all = "snake_case")]
pub enum Outcome {
    /// Answered; a definite statement about the state, be it 200, 404, 409, 422 or 429.
    Answered { reply: Reply },
    /// 503, or never sent: definitely not applied.
    Refused,
    /// 504, or the connection was lost: it may be applied, once, at any time from its invocation on.
    Unknown,
    /// Anything else: a client must never see it.
    Unexpected { status: u16, body: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// Limits.
    Check {
        items: Vec<Item>,
        mode: Mode,
        request_id: Option<String>,
    },
    Refund {
        policy: String,
        key: String,
        cost: u64,
        request_id: String,
    },
    Reset {
        policy: String,
        key: String,
    },
    PutPolicy {
        policy: String,
        terms: Terms,
    },
    GetPolicy {
        policy: String,
    },
    DeletePolicy {
        policy: String,
    },
    /// Idempotency keys.
    Begin {
        account: String,
        key: String,
        fingerprint: String,
        attempt_id: String,
        lease_ms: u64,
        ttl_ms: u64,
        hold: bool,
    },
    /// `body` is unique for each attempt to complete.
    Complete {
        account: String,
        key: String,
        token: u64,
        body: String,
        messages: Vec<Message>,
    },
    Abandon {
        account: String,
        key: String,
        token: u64,
    },
    Extend {
        account: String,
        key: String,
        token: u64,
        lease_ms: u64,
    },
    GetRecord {
        account: String,
        key: String,
    },
    /// Webhooks. Applications, endpoints and messages go by the names that the client gave them.
    CreateApp {
        app: String,
    },
    /// Creates the endpoint or replaces it. `description` is what a register holds.
    PutEndpoint {
        app: String,
        endpoint: String,
        description: String,
        disabled: bool,
    },
    GetEndpoint {
        app: String,
        endpoint: String,
    },
    DeleteEndpoint {
        app: String,
        endpoint: String,
    },
    Publish {
        app: String,
        message: Message,
    },
    GetMessage {
        app: String,
        event_id: String,
    },
    /// What became of a message for one endpoint.
    GetDelivery {
        app: String,
        endpoint: String,
        event_id: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Item {
    pub policy: String,
    pub key: String,
    pub cost: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Enforce,
    Peek,
    Shadow,
}

/// What a policy admits: the amount per window, and the capacity.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Terms {
    pub algorithm: Algorithm,
    /// Tokens refilled, or admitted, per window.
    pub amount: u64,
    pub window_us: u64,
    /// The capacity of a token bucket; of a sliding window, `amount`.
    pub burst: u64,
    /// `local`, `allow` or `deny`.
    pub on_unavailable: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    TokenBucket,
    SlidingWindow,
}

/// A message as published. The payload holds its `event_id`, so that a delivery names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// The application that publishes it; for a completion's messages, the key's account.
    pub app: String,
    pub event_id: String,
    /// Of the payload's bytes, hexadecimal.
    pub digest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    Checked {
        allowed: bool,
        results: Vec<ItemResult>,
    },
    /// 422 of a check or refund with another cost than its id's first.
    Mismatch,
    /// What was asked for, or about, does not exist.
    NotFound,
    Refunded,
    Reset,
    /// `revision` of the policy as stored. `pending`: 202, some shard has not taken it yet.
    Policy {
        terms: Terms,
        revision: u64,
        pending: bool,
    },
    Deleted,
    Started {
        token: u64,
    },
    InProgress,
    Replayed {
        status: u16,
        body: String,
    },
    FingerprintMismatch,
    Indeterminate,
    /// `messages` are the ids of what was published with it, in order.
    Completed {
        messages: Vec<String>,
    },
    AlreadyCompleted,
    Fenced,
    Abandoned,
    Extended,
    /// `state`: `in_progress`, `completed` or `indeterminate`; `body` of a completed one.
    Record {
        state: String,
        body: Option<String>,
    },
    /// A completion refused for one of its messages; nothing was changed.
    MessageRefused {
        code: String,
    },
    AppCreated,
    Endpoint {
        description: String,
        disabled: bool,
    },
    /// Of a publish or a message read. `digest` as read, or none of a publish.
    Message {
        id: String,
        digest: Option<String>,
    },
    /// 409: the event id was used with other content.
    Conflict,
    /// Of one message for one endpoint, as Svix numbers them: 0 success, 1 pending, 2 fail, 3 sending.
    DeliveryStatus {
        status: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ItemResult {
    pub allowed: bool,
    pub limit: u64,
    pub remaining: u64,
    pub retry_after_ms: Option<u64>,
    /// `on_unavailable` answered: outside every promise on limits.
    pub degraded: bool,
}

/// A request that a receiver got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub at_us: u64,
    pub app: String,
    pub endpoint: String,
    /// `webhook-id`.
    pub message_id: String,
    pub event_id: String,
    /// `onceward-sequence`.
    pub sequence: u64,
    pub digest: String,
    /// Whether the signature was right.
    pub signed: bool,
    /// The status that it answered; none when it hung or died.
    pub answered: Option<u16>,
}

/// A replica's state at an index, as `GET /v1/cluster?state_hash=true` tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHash {
    pub at_us: u64,
    pub node: u16,
    pub shard: u16,
    pub applied_index: u64,
    pub hash: String,
}

/// Something done to the cluster, from its beginning to its healing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nemesis {
    pub from_us: u64,
    pub until_us: u64,
    pub name: String,
    /// Which nodes or links, for people.
    pub target: String,
    /// What shows that it bit, counted while it lasted. A run in which one of its nemeses never bit is a failed run.
    pub effects: Vec<Effect>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// Such as `leaders_changed`, `refused`, `in_flight`, `frames_dropped`.
    pub name: String,
    pub count: u64,
}

/// A node that reached no other for so long. Whatever it answers then, it answers without a majority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    pub from_us: u64,
    pub until_us: u64,
    pub node: u16,
}

/// Who leads a shard, whenever an observer sees it change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    pub at_us: u64,
    pub shard: u16,
    pub term: u64,
    pub node: Option<u16>,
}

/// How long the cluster took to come back, by probes of every shard through every node that can be expected to serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// When the leader was lost, or the nemesis was over.
    pub from_us: u64,
    pub took_us: u64,
    pub after: RecoveryFrom,
    pub nemesis: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryFrom {
    /// A leader was lost: until the first success on each of its shards.
    LeaderLoss,
    /// Everything was healed: until every shard serves through every node.
    Healing,
}

/// A whole run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    pub run: Option<Run>,
    pub operations: Vec<Operation>,
    pub deliveries: Vec<Delivery>,
    pub state_hashes: Vec<StateHash>,
    pub nemeses: Vec<Nemesis>,
    pub isolations: Vec<Isolation>,
    pub leaders: Vec<Leader>,
    pub recoveries: Vec<Recovery>,
}

impl History {
    /// Reads `history.jsonl`. A last line without its end was being written when the recorder died, and is left out.
    pub fn read(mut lines: impl BufRead) -> io::Result<History> {
        let (mut history, mut line) = (History::default(), String::new());
        for number in 1.. {
            line.clear();
            if lines.read_line(&mut line)? == 0 {
                break;
            }
            match serde_json::from_str(&line) {
                Ok(record) => history.push(record),
                Err(_) if !line.ends_with('\n') => break,
                Err(error) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, format!("line {number}: {error}")));
                }
            }
        }
        Ok(history)
    }

    pub fn push(&mut self, record: Record) {
        match record {
            Record::Run(run) => self.run = Some(run),
            Record::Operation(operation) => self.operations.push(operation),
            Record::Delivery(delivery) => self.deliveries.push(delivery),
            Record::StateHash(hash) => self.state_hashes.push(hash),
            Record::Nemesis(nemesis) => self.nemeses.push(nemesis),
            Record::Isolation(isolation) => self.isolations.push(isolation),
            Record::Leader(leader) => self.leaders.push(leader),
            Record::Recovery(recovery) => self.recoveries.push(recovery),
        }
    }
}

impl FromIterator<Record> for History {
    fn from_iter<I: IntoIterator<Item = Record>>(records: I) -> History {
        let mut history = History::default();
        records.into_iter().for_each(|record| history.push(record));
        history
    }
}
