//! Keys that several clients want at once, under short leases: clients that complete, abandon, extend, die, ask again after a
//! lost answer, and wake late as zombies with a token that may be another's by then.

use std::sync::Arc;

use onceward_checkers::history::{Call, Message, Reply};
use tokio::task::JoinSet;

use super::{ms, spawn};
use crate::load::{Client, Load, Rotation};

const CLIENTS: u32 = 16;
/// Calls of a session at most, retries not counted.
const SESSION_CALLS: u64 = 5;
const KEY_USES: u64 = 45;
/// How many keys are contended at a time.
const KEYS: u64 = 8;
const ACCOUNTS: u64 = 8;
/// Tries of a call that lands once however often it is made.
const TRIES: u64 = 3;
pub(super) const TTL_MS: u64 = 86_400_000;

pub fn start(load: &Arc<Load>, rate: f64, clients: &mut JoinSet<()>) {
    let keys = Arc::new(Rotation::new("i", KEYS, KEY_USES));
    // A session makes some three calls.
    spawn(load, "idempotency", CLIENTS, rate / 3.0, clients, |client| use_keys(client, keys.clone()));
}

async fn use_keys(mut client: Client, keys: Arc<Rotation>) {
    while client.turn().await {
        let number = keys.number(&mut client.draw, SESSION_CALLS);
        let session = Session {
            account: format!("acct-{}", number % ACCOUNTS),
            key: format!("i-{number}"),
            lease_ms: *client.draw.pick(&[100, 300, 700, 1_500]),
            hold: number % 4 == 0,
        };
        session.run(&mut client).await;
    }
}

/// One client's work on one key, from its beginning to whatever end.
pub(super) struct Session {
    pub account: String,
    pub key: String,
    pub lease_ms: u64,
    pub hold: bool,
}

impl Session {
    async fn run(&self, client: &mut Client) {
        if client.draw.chance(10) {
            client.call(self.read()).await;
            return;
        }
        let Some(token) = self.begin(client).await else { return };
        match client.draw.below(100) {
            0..15 => return,
            15..35 => {
                // A zombie: its lease is over when it wakes.
                let (least, most) = (self.lease_ms, self.lease_ms + 800);
                if client.sleep_ms(least, most).await {
                    self.complete(client, token, Vec::new()).await;
                }
            }
            35..45 => drop(client.call(self.abandon(token)).await),
            45..60 => {
                client.call(self.extend(token, self.lease_ms)).await;
                if client.sleep(ms(self.lease_ms / 2)).await {
                    self.complete(client, token, Vec::new()).await;
                }
            }
            _ => {
                if client.sleep_ms(0, 100).await {
                    self.complete(client, token, Vec::new()).await;
                }
            }
        }
        if client.draw.chance(50) {
            client.call(self.read()).await;
        }
        if client.draw.chance(30) {
            self.begin(client).await;
        }
    }

    /// Asks for the key; again under the same attempt when the answer was lost.
    pub async fn begin(&self, client: &mut Client) -> Option<u64> {
        let fingerprint = if client.draw.chance(3) { "another request" } else { "the request" };
        let call = Call::Begin {
            account: self.account.clone(),
            key: self.key.clone(),
            fingerprint: fingerprint.to_owned(),
            attempt_id: client.unique("a"),
            lease_ms: self.lease_ms,
            ttl_ms: TTL_MS,
            hold: self.hold,
        };
        match client.insist(call, TRIES).await? {
            Reply::Started { token } => Some(token),
            _ => None,
        }
    }

    pub async fn complete(&self, client: &mut Client, token: u64, messages: Vec<Message>) {
        let body = client.unique("body");
        let call = Call::Complete { account: self.account.clone(), key: self.key.clone(), token, body, messages };
        client.insist(call, TRIES).await;
    }

    fn abandon(&self, token: u64) -> Call {
        Call::Abandon { account: self.account.clone(), key: self.key.clone(), token }
    }

    fn extend(&self, token: u64, lease_ms: u64) -> Call {
        Call::Extend { account: self.account.clone(), key: self.key.clone(), token, lease_ms }
    }

    pub fn read(&self) -> Call {
        Call::GetRecord { account: self.account.clone(), key: self.key.clone() }
    }
}
