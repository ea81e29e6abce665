//! The settings of a node: which there are, with type, default and range, and what must hold between them.
//!
//! In go a TOML file, the environment and flags, in this order of precedence; out comes one checked [`Settings`], or
//! every fault by name. `cluster/onceward.example.toml` documents each setting; a test holds the two together.

mod check;
mod load;
mod schema;
mod webhooks;

use std::{net::SocketAddr, path::PathBuf};

pub use check::SettingsError;
pub use load::{Override, Sources, effective, load};
pub use schema::{Declared, Secret, Setting};

use onceward_core::cluster::{DATA_SHARDS_DEFAULT, DATA_SHARDS_MAX};
use schema::{choice, section};
pub use webhooks::WebhookSettings;

section! {
    /// Everything that can be set.
    Settings {
        node: NodeSettings = NodeSettings::default();
        http: HttpSettings = HttpSettings::default();
        peers: PeerSettings = PeerSettings::default();
        cluster: ClusterSettings = ClusterSettings::default();
        auth: AuthSettings = AuthSettings::default();
        webhooks: WebhookSettings = WebhookSettings::default();
        raft: RaftSettings = RaftSettings::default();
        storage: StorageSettings = StorageSettings::default();
        log: LogSettings = LogSettings::default();
    }
}

section! {
    NodeSettings {
        /// This node's number among `cluster.nodes`.
        id: u16 = 1, in 1..=u16::MAX;
        /// Where log and state live.
        data_dir: PathBuf = PathBuf::from("onceward-data");
    }
}

section! {
    HttpSettings {
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 4001));
        tls: TlsSettings = TlsSettings::default();
        /// A larger body is answered 413. The default takes the largest response that `complete` stores, each byte of it
        /// written as a six-byte escape, with the largest messages; less than 2.5 MB does not.
        max_body_bytes: u32 = 5 << 19, in 16_384..=1 << 22;
        /// Bodies and answers of more than 64 KiB that are in memory at once, in bytes over all connections; one more is
        /// answered 503. Answers may wait for room, at most half as much again.
        max_buffered_bytes: u32 = 64 << 20, in 1 << 22..=1 << 30;
        /// Request line and headers together; more is answered 431.
        max_header_bytes: u32 = 16_384, in 1_024..=65_536;
        max_headers: u32 = 64, in 16..=256;
        /// Open connections; one more is answered 503 and closed.
        max_connections: u32 = 4_096, in 1..=1_000_000;
        /// Requests being worked on at once; one more is answered 503.
        max_in_flight: u32 = 4_096, in 1..=1_000_000;
        /// A connection on which no complete request head arrives for this long is closed, and one that takes nothing of
        /// its answers.
        idle_timeout_ms: u32 = 60_000, in 100..=3_600_000;
        /// How long `/readyz` answers 503 before a stopping node accepts no more connections.
        drain_ms: u32 = 200, in 0..=60_000;
        reset_format: ResetFormat = ResetFormat::Unix;
    }
}

section! {
    TlsSettings {
        /// PEM: the certificate and its chain.
        cert: Option<PathBuf> = None;
        /// PEM: its private key.
        key: Option<PathBuf> = None;
    }
}

choice! {
    /// What `RateLimit-Reset` is.
    ResetFormat {
        /// Seconds since the Unix epoch.
        Unix = "unix",
        /// Seconds from now.
        Delta = "delta",
    }
}

section! {
    PeerSettings {
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 4101));
        security: PeerSecurity = PeerSecurity::Hmac;
        /// With `hmac`: the same on all nodes.
        secret: Option<Secret> = None;
        secret_file: Option<PathBuf> = None;
        /// With `mtls`, PEM: this node's certificate, its key, and the authority that signed all nodes' certificates.
        cert: Option<PathBuf> = None;
        key: Option<PathBuf> = None;
        ca: Option<PathBuf> = None;
    }
}

choice! {
    /// How nodes prove to each other who they are.
    PeerSecurity {
        /// A mutual challenge over a shared secret; the traffic itself is in the clear.
        Hmac = "hmac",
        /// TLS with a certificate on both sides.
        Mtls = "mtls",
    }
}

section! {
    ClusterSettings {
        /// Read once, when the cluster is founded.
        data_shards: u16 = DATA_SHARDS_DEFAULT, in 1..=DATA_SHARDS_MAX;
        /// All nodes, this one included; none: a cluster of this node alone.
        nodes: Vec<NodeAddress> = Vec::new();
    }
}

section! {
    /// A node as others reach it.
    NodeAddress {
        id: u16 = 0, in 1..=u16::MAX;
        /// `host:port` of its HTTP API.
        http_address: String = String::new();
        /// `host:port` of its peer port.
        peer_address: String = String::new();
    }
}

section! {
    AuthSettings {
        /// None: everything is allowed, on loopback only.
        tokens: Vec<TokenSettings> = Vec::new();
    }
}

section! {
    TokenSettings {
        /// Appears in logs; the secret never does.
        name: String = String::new();
        secret: Option<Secret> = None;
        secret_file: Option<PathBuf> = None;
        role: Option<Role> = None;
        /// With `service`: restricts the token to this account.
        account: Option<String> = None;
    }
}

choice! {
    /// What a token may do.
    Role {
        /// Everything.
        Admin = "admin",
        /// Checks and reading.
        Service = "service",
        /// `/metrics` alone.
        Metrics = "metrics",
    }
}

section! {
    RaftSettings {
        heartbeat_ms: u32 = 150, in 20..=5_000;
        /// A follower that hears nothing for `election_max_ms` and a random time between the two asks for votes.
        election_min_ms: u32 = 400, in 100..=30_000;
        election_max_ms: u32 = 700, in 150..=60_000;
        /// A shard is snapshotted, and its log cut, after this many entries or bytes of log.
        snapshot_entries: u64 = 100_000, in 100..=100_000_000;
        snapshot_bytes: u64 = 64 << 20, in 1 << 20..=16 << 30;
    }
}

section! {
    StorageSettings {
        /// Memory for blocks read from disk, indexes and filters included.
        block_cache_bytes: u64 = 32 << 20, in 8 << 20..=64 << 30;
        /// Memory for rows not yet written to table files, over all tables.
        memtable_bytes: u64 = 32 << 20, in 8 << 20..=16 << 30;
        /// With less than this free on the disk, the node takes nothing that grows; 0: whatever is free.
        min_free_bytes: u64 = 1 << 30, in 0..=1 << 44;
    }
}

section! {
    LogSettings {
        level: LogLevel = LogLevel::Info;
        format: LogFormat = LogFormat::Text;
    }
}

choice! {
    LogLevel {
        Error = "error",
        Warn = "warn",
        Info = "info",
        Debug = "debug",
        Trace = "trace",
    }
}

choice! {
    LogFormat {
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

impl Settings {
    /// All nodes of the cluster: those that are set, or this one alone.
    pub fn nodes(&self) -> Vec<NodeAddress> {
        if !self.cluster.nodes.is_empty() {
            return self.cluster.nodes.clone();
        }
        vec![NodeAddress {
            id: self.node.id,
            http_address: self.http.listen.to_string(),
            peer_address: self.peers.listen.to_string(),
        }]
    }

    /// The names of all settings.
    pub fn declared() -> Vec<Declared> {
        let mut declared = Vec::new();
        Settings::declare("", &mut declared);
        declared
    }
}
