//! What must hold between settings before a node may start, beyond each one's own range.

use std::{collections::BTreeSet, fmt, fs, path::PathBuf};

use onceward_core::{cluster::CLUSTER_SIZES, idempotency::Account};

use super::{
    PeerSecurity, Role, Secret, Settings, TokenSettings,
    schema::Fault,
    webhooks::{RETRIES_MAX, RETRY_PAUSE_MS_MAX},
};

/// Shorter tokens can be guessed.
const TOKEN_BYTES_MIN: usize = 8;
/// Who sees a handshake between nodes can guess at leisure; transport refuses shorter ones too.
const PEER_SECRET_BYTES_MIN: usize = 16;
/// Longer ones are a file that was meant for something else.
const SECRET_BYTES_MAX: usize = 1_024;

/// Why there are no settings to start with.
#[derive(Debug)]
pub enum SettingsError {
    /// The file cannot be read or is not TOML.
    File { path: PathBuf, detail: String },
    /// Settings that don't exist, have the wrong type or range, or don't fit together.
    Faults(Vec<Fault>),
}

impl std::error::Error for SettingsError {}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::File { path, detail } => write!(f, "{}: {detail}", path.display()),
            SettingsError::Faults(faults) => {
                let lines: Vec<&str> = faults.iter().map(|Fault(line)| line.as_str()).collect();
                f.write_str(&lines.join("\n"))
            }
        }
    }
}

/// Checks the settings against each other and replaces every `secret_file` by the secret in it.
pub(super) fn check(settings: &mut Settings, faults: &mut Vec<Fault>) {
    check_nodes(settings, faults);
    check_pair("http.tls", &settings.http.tls.cert, &settings.http.tls.key, faults);
    check_peers(settings, faults);
    check_tokens(settings, faults);
    check_raft(settings, faults);
    check_webhooks(settings, faults);
}

fn check_nodes(settings: &Settings, faults: &mut Vec<Fault>) {
    if settings.node.data_dir.as_os_str().is_empty() {
        faults.push(Fault("node.data_dir is empty".to_owned()));
    }
    let nodes = settings.nodes();
    if !CLUSTER_SIZES.contains(&nodes.len()) {
        faults.push(Fault(format!("cluster.nodes must be 1, 3 or 5 nodes, not {}", nodes.len())));
    }
    let mut ids = BTreeSet::new();
    for (at, node) in nodes.iter().enumerate() {
        if node.id == 0 {
            faults.push(Fault(format!("cluster.nodes[{at}].id is missing")));
        } else if !ids.insert(node.id) {
            faults.push(Fault(format!("cluster.nodes[{at}].id {} stands there twice", node.id)));
        }
        for (name, address) in [("http_address", &node.http_address), ("peer_address", &node.peer_address)] {
            if !is_host_port(address) {
                faults.push(Fault(format!("cluster.nodes[{at}].{name} must be host:port, not \"{address}\"")));
            }
        }
    }
    if !ids.contains(&settings.node.id) {
        faults.push(Fault(format!("node.id {} is not among cluster.nodes", settings.node.id)));
    }
}

fn is_host_port(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let is_v6 = host.starts_with('[') && host.ends_with(']');
    !host.is_empty()
        && (is_v6 || !host.contains(':'))
        && !host.contains(['/', ' '])
        && port.parse::<u16>().is_ok_and(|port| port != 0)
}

fn check_pair(section: &str, cert: &Option<PathBuf>, key: &Option<PathBuf>, faults: &mut Vec<Fault>) {
    if cert.is_some() != key.is_some() {
        faults.push(Fault(format!("{section}.cert and {section}.key go together: set both or none")));
    }
}

fn check_peers(settings: &mut Settings, faults: &mut Vec<Fault>) {
    let alone = settings.nodes().len() == 1;
    let peers = &mut settings.peers;
    take_secret("peers", PEER_SECRET_BYTES_MIN, &mut peers.secret, &mut peers.secret_file, faults);
    match peers.security {
        PeerSecurity::Hmac if peers.secret.is_none() && !alone => {
            faults.push(Fault(
                "peers.secret or peers.secret_file is missing: with peers.security = \"hmac\" all nodes share one"
                    .to_owned(),
            ));
        }
        PeerSecurity::Hmac => {}
        PeerSecurity::Mtls => {
            for (name, file) in [("cert", &peers.cert), ("key", &peers.key), ("ca", &peers.ca)] {
                if file.is_none() {
                    faults.push(Fault(format!("peers.{name} is missing: peers.security = \"mtls\" needs it")));
                }
            }
        }
    }
}

fn check_tokens(settings: &mut Settings, faults: &mut Vec<Fault>) {
    let listen = settings.http.listen;
    let tokens = &mut settings.auth.tokens;
    if tokens.is_empty() && !listen.ip().is_loopback() {
        faults.push(Fault(format!(
            "http.listen is {listen} and auth.tokens is empty: without tokens a node serves loopback only. \
             Add [[auth.tokens]], or listen on 127.0.0.1"
        )));
    }
    let mut names = BTreeSet::new();
    let mut secrets = BTreeSet::new();
    for (at, token) in tokens.iter_mut().enumerate() {
        let path = format!("auth.tokens[{at}]");
        check_token(&path, token, faults);
        if !names.insert(token.name.clone()) {
            faults.push(Fault(format!("{path}.name \"{}\" stands there twice", token.name)));
        }
        if let Some(secret) = &token.secret
            && !secrets.insert(secret.reveal().to_owned())
        {
            faults.push(Fault(format!("{path}.secret is the same as another token's")));
        }
    }
}

fn check_token(path: &str, token: &mut TokenSettings, faults: &mut Vec<Fault>) {
    if token.name.is_empty() {
        faults.push(Fault(format!("{path}.name is missing")));
    }
    if token.role.is_none() {
        faults.push(Fault(format!("{path}.role is missing: \"admin\", \"service\" or \"metrics\"")));
    }
    if let Some(account) = &token.account {
        if token.role != Some(Role::Service) {
            faults.push(Fault(format!("{path}.account goes only with role = \"service\"")));
        }
        if let Err(error) = Account::parse(account) {
            faults.push(Fault(format!("{path}.account {error}")));
        }
    }
    let known_faults = faults.len();
    take_secret(path, TOKEN_BYTES_MIN, &mut token.secret, &mut token.secret_file, faults);
    if token.secret.is_none() && faults.len() == known_faults {
        faults.push(Fault(format!("{path}.secret or {path}.secret_file is missing")));
    }
    if token.secret.as_ref().is_some_and(|secret| !secret.reveal().bytes().all(|byte| byte.is_ascii_graphic())) {
        faults.push(Fault(format!("{path}.secret must be visible ASCII without spaces, as it travels in a header")));
    }
}

/// Reads the secret from its file, where it is in one; a line end at its end doesn't count.
fn take_secret(
    path: &str,
    bytes_min: usize,
    secret: &mut Option<Secret>,
    file: &mut Option<PathBuf>,
    faults: &mut Vec<Fault>,
) {
    if let Some(file) = file.take() {
        if secret.is_some() {
            faults.push(Fault(format!("{path}.secret and {path}.secret_file are both set: choose one")));
            return;
        }
        match fs::read_to_string(&file) {
            Ok(text) => *secret = Some(Secret::new(text.trim_end_matches(['\r', '\n']))),
            Err(error) => faults.push(Fault(format!("{path}.secret_file: {}: {error}", file.display()))),
        }
    }
    if let Some(secret) = secret {
        let length = secret.reveal().len();
        if !(bytes_min..=SECRET_BYTES_MAX).contains(&length) {
            faults.push(Fault(format!(
                "{path}.secret must be {bytes_min} to {SECRET_BYTES_MAX} bytes long, not {length}"
            )));
        }
    }
}

fn check_raft(settings: &Settings, faults: &mut Vec<Fault>) {
    let raft = &settings.raft;
    if raft.election_min_ms < 2 * raft.heartbeat_ms {
        faults.push(Fault(format!(
            "raft.election_min_ms {} must be at least twice raft.heartbeat_ms {}: one lost heartbeat is no reason for an election",
            raft.election_min_ms, raft.heartbeat_ms
        )));
    }
    if raft.election_max_ms <= raft.election_min_ms {
        faults.push(Fault(format!(
            "raft.election_max_ms {} must be greater than raft.election_min_ms {}",
            raft.election_max_ms, raft.election_min_ms
        )));
    }
}

fn check_webhooks(settings: &Settings, faults: &mut Vec<Fault>) {
    let schedule = &settings.webhooks.retry_schedule_ms.0;
    if schedule.len() > RETRIES_MAX {
        faults.push(Fault(format!(
            "webhooks.retry_schedule_ms must be at most {RETRIES_MAX} pauses, not {}",
            schedule.len()
        )));
    }
    for (at, pause_ms) in schedule.iter().enumerate() {
        if !(1..=RETRY_PAUSE_MS_MAX).contains(pause_ms) {
            faults.push(Fault(format!(
                "webhooks.retry_schedule_ms[{at}] must be from 1 to {RETRY_PAUSE_MS_MAX}, not {pause_ms}"
            )));
        }
    }
}
