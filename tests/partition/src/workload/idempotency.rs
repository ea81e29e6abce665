//! Keys that several clients want at once, under short leases: clients that complete, abandon, extend, die, ask again after a
//! lost answer, and wake late as zombies with a token that may be another's by then.

use std::sync::Arc;

use onceward_checkers::history::{Call, Message, Reply};
use tokio::task::JoinSet;

use super::spawn;
use crate::load::{Client, Load, Rotation};

const CLIENTS: u32 = 16;
/// Calls of a session at most, retries not counted.
const SESSION_CALLS: u64 = 5;
const KEY_USES: u64 = 45;
/// What a session that saw its key completed counts for: all that follow see the same.
const COMPLETED_USES: u64 = 10;
/// How many keys are contended at a time.
const KEYS: u64 = 5;
const ACCOUNTS: u64 = 8;
/// Tries of a call that lands once however often it is made.
const TRIES: u64 = 3;
/// How long completions are kept: beyond the run, or so shortly that a key has several lives.
pub(super) const TTL_MS: u64 = 86_400_000;
const SHORT_TTL_MS: u64 = 1_500;

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
            ttl_ms: if number % 6 == 1 { SHORT_TTL_MS } else { TTL_MS },
            hold: number.is_multiple_of(4),
        };
        if session.run(&mut client).await == Seen::Completed {
            keys.spend(number, COMPLETED_USES);
        }
    }
}

/// What a session saw of its key.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Open,
    Completed,
}

/// One client's work on one key, from its beginning to whatever end.
pub(super) struct Session {
    pub account: String,
    pub key: String,
    pub lease_ms: u64,
    pub ttl_ms: u64,
    pub hold: bool,
}

impl Session {
    async fn run(&self, client: &mut Client) -> Seen {
        if client.draw.chance(10) {
            client.call(self.read()).await;
            return Seen::Open;
        }
        let token = match self.begin(client).await {
            Some(Reply::Started { token }) => token,
            Some(Reply::Replayed { .. }) => return Seen::Completed,
            _ => return Seen::Open,
        };
        let seen = self.work(client, token).await;
        if client.draw.chance(50) {
            client.call(self.read()).await;
        }
        if client.draw.chance(20) {
            self.begin(client).await;
        }
        seen
    }

    /// Dies, sleeps too long, gives up or completes.
    async fn work(&self, client: &mut Client, token: u64) -> Seen {
        let (abandon, extend) = (self.abandon(token), self.extend(token));
        let (least_ms, most_ms) = match client.draw.below(100) {
            0..15 => return Seen::Open,
            // A zombie: its lease is over when it wakes.
            15..45 => (self.lease_ms, self.lease_ms + 800),
            45..55 => {
                client.call(abandon).await;
                return Seen::Open;
            }
            55..70 => {
                client.call(extend).await;
                (self.lease_ms / 2, self.lease_ms)
            }
            _ => (0, 100),
        };
        if !client.sleep_ms(least_ms, most_ms).await {
            return Seen::Open;
        }
        match self.complete(client, token, Vec::new()).await {
            Some(Reply::Completed { .. } | Reply::AlreadyCompleted) => Seen::Completed,
            _ => Seen::Open,
        }
    }

    /// Asks for the key; again under the same attempt when the answer was lost.
    pub async fn begin(&self, client: &mut Client) -> Option<Reply> {
        let fingerprint = if client.draw.chance(1) { "another request" } else { "the request" };
        let call = Call::Begin {
            account: self.account.clone(),
            key: self.key.clone(),
            fingerprint: fingerprint.to_owned(),
            attempt_id: client.unique("a"),
            lease_ms: self.lease_ms,
            ttl_ms: self.ttl_ms,
            hold: self.hold,
        };
        client.insist(call, TRIES).await
    }

    pub async fn complete(&self, client: &mut Client, token: u64, messages: Vec<Message>) -> Option<Reply> {
        let body = client.unique("body");
        let call = Call::Complete { account: self.account.clone(), key: self.key.clone(), token, body, messages };
        client.insist(call, TRIES).await
    }

    fn abandon(&self, token: u64) -> Call {
        Call::Abandon { account: self.account.clone(), key: self.key.clone(), token }
    }

    fn extend(&self, token: u64) -> Call {
        let lease_ms = self.lease_ms;
        Call::Extend { account: self.account.clone(), key: self.key.clone(), token, lease_ms }
    }

    pub fn read(&self) -> Call {
        Call::GetRecord { account: self.account.clone(), key: self.key.clone() }
    }
}
