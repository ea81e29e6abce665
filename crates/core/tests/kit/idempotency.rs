//! Short words for idempotency keys: most tests need one key, `k` of the account `acme`.

use bytes::Bytes;
use onceward_core::{
    codec::keys,
    command::{Command, Reply},
    idempotency::*,
    query::{Answer, Query, answer},
};

use super::Shard;

pub const LEASE_US: u64 = 30_000_000;
pub const TTL_US: u64 = 86_400_000_000;
/// Display time at the beginning of a shard's clock.
const WALL_MS: u64 = 1_700_000_000_000;

pub fn account(name: &str) -> Account {
    Account::parse(name).expect("an account")
}

pub fn key(text: &str) -> Key {
    Key::parse(text).expect("a key")
}

pub fn record_row(of: &str, name: &str) -> Bytes {
    keys::record(of, name)
}

pub fn given(attempt: &str) -> AttemptId {
    AttemptId::Given(attempt.to_owned())
}

/// A response that differs by its body alone.
pub fn response(body: &str) -> Response {
    let headers = vec![("content-type".to_owned(), HeaderValues::One("text/plain".to_owned()))];
    Response { status: 201, headers, body: Body::Text(body.to_owned()) }
}

impl Shard {
    pub fn wall_ms(&self) -> u64 {
        WALL_MS.saturating_add(self.now / 1_000)
    }

    /// A `begin` of the one key, with what it defaults to.
    pub fn beginning(&self, attempt: &str) -> BeginCommand {
        BeginCommand {
            account: account("acme"),
            key: key("k"),
            fingerprint: "f".to_owned(),
            ttl_us: TTL_US,
            lease_us: LEASE_US,
            on_lease_expiry: OnLeaseExpiry::Takeover,
            attempt: given(attempt),
            wall_ms: self.wall_ms(),
        }
    }

    pub fn holding(&self, attempt: &str) -> BeginCommand {
        BeginCommand { on_lease_expiry: OnLeaseExpiry::Hold, ..self.beginning(attempt) }
    }

    pub fn begin(&mut self, command: BeginCommand) -> BeginReply {
        match self.apply(Command::Begin(command)) {
            Reply::Begin(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// The token that a `begin` got.
    pub fn start(&mut self, command: BeginCommand) -> u64 {
        match self.begin(command) {
            BeginReply::Started { token, .. } => token,
            other => panic!("{other:?}"),
        }
    }

    pub fn complete(&mut self, token: u64, response: Response) -> CompleteReply {
        let (account, key, wall_ms) = (account("acme"), key("k"), self.wall_ms());
        match self.apply(Command::Complete(CompleteCommand {
            account,
            key,
            token,
            response,
            wall_ms,
            publishing: Default::default(),
        })) {
            Reply::Complete(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// What a completion at this moment answers.
    pub fn completed_now(&self) -> CompleteReply {
        let completed_wall_ms = self.wall_ms();
        CompleteReply::Completed {
            completed_wall_ms,
            expires_wall_ms: completed_wall_ms + TTL_US / 1_000,
            messages: Vec::new(),
        }
    }

    pub fn abandon(&mut self, token: u64) -> AbandonReply {
        match self.apply(Command::Abandon(AbandonCommand { account: account("acme"), key: key("k"), token })) {
            Reply::Abandon(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn extend(&mut self, token: u64, lease_us: u64) -> ExtendReply {
        let (account, key, wall_ms) = (account("acme"), key("k"), self.wall_ms());
        match self.apply(Command::Extend(ExtendCommand { account, key, token, lease_us, wall_ms })) {
            Reply::Extend(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn delete(&mut self) -> DeleteRecordReply {
        match self.apply(Command::DeleteRecord(DeleteRecordCommand { account: account("acme"), key: key("k") })) {
            Reply::DeleteRecord(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn ask(&self, query: Query) -> Answer {
        answer(self.id, &self.rows, &query).expect("memory rows are sound")
    }

    pub fn record(&self) -> Option<RecordView> {
        match self.ask(Query::Record { account: account("acme"), key: key("k") }) {
            Answer::Record(record) => record,
            other => panic!("{other:?}"),
        }
    }

    pub fn state(&self) -> Option<RecordState> {
        self.record().map(|record| record.state)
    }

    pub fn replay(&self, fingerprint: &str) -> Option<Replay> {
        let fingerprint = fingerprint.to_owned();
        match self.ask(Query::Replay { account: account("acme"), key: key("k"), fingerprint }) {
            Answer::Replay(replay) => replay,
            other => panic!("{other:?}"),
        }
    }

    pub fn has_moved_on(&self, token: u64) -> bool {
        has_moved_on(&self.rows, &account("acme"), &key("k"), token).expect("memory rows are sound")
    }

    /// One page: the keys in it, and behind which key it goes on.
    pub fn page(
        &self,
        of: &str,
        state: Option<RecordState>,
        after: Option<&str>,
        limit: u32,
    ) -> (Vec<RecordSummary>, Option<Key>) {
        let query = Query::Records { account: account(of), state, after: after.map(key), limit };
        match self.ask(query) {
            Answer::Records(page) => (page.records, page.next),
            other => panic!("{other:?}"),
        }
    }

    /// All pages of a list.
    pub fn list(&self, of: &str, state: Option<RecordState>, limit: u32) -> Vec<RecordSummary> {
        let (mut all, mut next) = self.page(of, state, None, limit);
        while let Some(after) = next {
            // Behind a key, in the form that callers write.
            let (records, behind) = self.page(of, state, Some(&after.to_string()), limit);
            assert!(records.len() <= limit as usize);
            all.extend(records);
            next = behind;
        }
        all
    }
}
