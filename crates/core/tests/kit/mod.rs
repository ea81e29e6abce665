//! A shard in memory for tests: rows in ordered maps, a machine over them, and short words for commands.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod idempotency;
pub mod webhooks;

use std::{collections::BTreeMap, fmt::Debug, ops::RangeInclusive};

use bytes::Bytes;
use onceward_core::{
    cluster::ShardId,
    codec::{
        self,
        keys::{self, Kind},
    },
    command::{Command, EntryBatch, Reply},
    limits::*,
    machine::Machine,
    rows::{ReadRows, Row, Rows, RowsError, Table},
    time::ShardTime,
};
use serde::{Serialize, de::DeserializeOwned};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryRows {
    pub state: BTreeMap<Bytes, Bytes>,
    pub expiry: BTreeMap<Bytes, Bytes>,
}

impl MemoryRows {
    fn table(&self, table: Table) -> &BTreeMap<Bytes, Bytes> {
        match table {
            Table::State => &self.state,
            Table::Expiry => &self.expiry,
        }
    }

    fn table_mut(&mut self, table: Table) -> &mut BTreeMap<Bytes, Bytes> {
        match table {
            Table::State => &mut self.state,
            Table::Expiry => &mut self.expiry,
        }
    }
}

impl ReadRows for MemoryRows {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        Ok(self.table(table).get(key).cloned())
    }

    fn scan(&self, table: Table, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Row>, RowsError> {
        let from = Bytes::copy_from_slice(after.unwrap_or(prefix).max(prefix));
        let rows = self.table(table).range(from..);
        let wanted = rows.filter(|(key, _)| after.is_none_or(|after| key.as_ref() > after));
        let within = wanted.take_while(|(key, _)| key.starts_with(prefix));
        Ok(within.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn scan_back(
        &self,
        table: Table,
        prefix: &[u8],
        before: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Row>, RowsError> {
        let from = Bytes::copy_from_slice(prefix);
        let rows = self.table(table).range(from..).rev();
        let wanted =
            rows.filter(|(key, _)| key.starts_with(prefix) && before.is_none_or(|before| key.as_ref() < before));
        Ok(wanted.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

impl Rows for MemoryRows {
    fn put(&mut self, table: Table, key: Bytes, value: Bytes) {
        self.table_mut(table).insert(key, value);
    }

    fn delete(&mut self, table: Table, key: Bytes) {
        self.table_mut(table).remove(&key);
    }
}

pub struct Shard {
    pub id: ShardId,
    pub machine: Machine,
    pub rows: MemoryRows,
    pub now: u64,
    pub revision: u64,
}

impl Shard {
    pub fn system() -> Shard {
        Shard { id: ShardId::SYSTEM, machine: Machine::new(ShardId::SYSTEM), ..Shard::data() }
    }

    pub fn data() -> Shard {
        let id = ShardId(1);
        Shard { id, machine: Machine::new(id), rows: MemoryRows::default(), now: 1_000_000, revision: 0 }
    }

    /// A data shard with the policy `api`.
    pub fn with(rate: &str, burst: u64) -> Shard {
        let mut shard = Shard::data();
        shard.policy("api", token_bucket(rate, burst));
        shard
    }

    /// The same rows under a machine that has seen nothing of them.
    pub fn reopened(&self) -> Shard {
        Shard {
            id: self.id,
            machine: Machine::new(self.id),
            rows: self.rows.clone(),
            now: self.now,
            revision: self.revision,
        }
    }

    pub fn apply(&mut self, command: Command) -> Reply {
        self.apply_all(vec![command]).remove(0)
    }

    /// Several commands in one entry.
    pub fn apply_all(&mut self, commands: Vec<Command>) -> Vec<Reply> {
        let batch = as_others_read_it(EntryBatch { stamp: ShardTime(self.now), commands });
        let replies = self.machine.apply(&mut self.rows, &batch).expect("memory rows are sound");
        assert_eq!(replies.len(), batch.commands.len());
        let replies = as_others_read_it(replies);
        self.assert_rows_are_filed();
        self.assert_what_is_pending_is_due();
        replies
    }

    /// Every row of the limits that can expire is filed exactly once. Of the other mechanisms, each that can expire is
    /// filed at least once, idempotency records that are indeterminate excepted; what is filed for one that is gone goes
    /// when it comes up. Nothing else is filed.
    fn assert_rows_are_filed(&self) {
        const AT_LEAST_ONCE: [Kind; 4] = [Kind::Record, Kind::Message, Kind::Request, Kind::Clearing];
        let mut filed: Vec<&[u8]> = self.rows.expiry.keys().map(|key| &key[8..]).collect();
        filed.sort_unstable();
        let of_kinds = |kinds: RangeInclusive<u8>| {
            self.rows.state.keys().map(AsRef::as_ref).filter(move |key: &&[u8]| kinds.contains(&key[0]))
        };
        for row in AT_LEAST_ONCE.into_iter().flat_map(|kind| of_kinds(kind as u8..=kind as u8)) {
            let is_noted = self.rows.state.contains_key(&keys::indeterminate(row));
            assert!(is_noted || filed.binary_search(&row).is_ok(), "{row:?} never comes up");
        }
        filed.retain(|row| !AT_LEAST_ONCE.iter().any(|&kind| Kind::of(row) == Some(kind)));
        assert_eq!(filed, of_kinds(4..=6).collect::<Vec<_>>());
    }

    pub fn copy(&mut self, name: &str, policy: Option<Policy>) {
        let (from, to) = (self.revision, self.revision + 1);
        let changes = vec![PolicyChange { name: name.to_owned(), revision: to, policy }];
        let reply = self.apply(Command::CopyPolicies(CopyPolicies { from, to, changes }));
        assert_eq!(reply, Reply::CopyPolicies { synced_revision: to });
        self.revision = to;
    }

    /// Creates or changes a policy.
    pub fn policy(&mut self, name: &str, spec: PolicySpec) {
        self.policy_of_creation(name, spec, 1);
    }

    pub fn policy_of_creation(&mut self, name: &str, spec: PolicySpec, created_revision: u64) {
        let revision = self.revision + 1;
        self.copy(name, Some(Policy { name: PolicyName::parse(name).unwrap(), revision, created_revision, spec }));
    }

    pub fn check_as(&mut self, mode: Mode, items: &[(&str, &str, u64)], request_id: Option<&str>) -> CheckReply {
        let command = CheckCommand { mode, items: items_of(items), request_id: request_id.map(str::to_owned) };
        match self.apply(Command::Check(command)) {
            Reply::Check(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn checks(&mut self, items: &[(&str, &str, u64)]) -> Decision {
        match self.check_as(Mode::Enforce, items, None) {
            CheckReply::Decided(decision) => decision,
            other => panic!("{other:?}"),
        }
    }

    /// A check of `api`/`k`.
    pub fn check(&mut self, cost: u64) -> ItemResult {
        self.checks(&[("api", "k", cost)]).results.remove(0)
    }

    pub fn check_with_id(&mut self, cost: u64, id: &str) -> CheckReply {
        self.check_as(Mode::Enforce, &[("api", "k", cost)], Some(id))
    }

    pub fn peek(&mut self, cost: u64) -> ItemResult {
        match self.check_as(Mode::Peek, &[("api", "k", cost)], None) {
            CheckReply::Decided(mut decision) => decision.results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub fn refund(&mut self, cost: u64, id: &str) -> RefundReply {
        let command = RefundCommand { policy: "api".into(), key: "k".into(), cost, request_id: id.into() };
        match self.apply(Command::Refund(command)) {
            Reply::Refund(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn reset(&mut self) -> ResetReply {
        match self.apply(Command::Reset(ResetCommand { policy: "api".into(), key: "k".into() })) {
            Reply::Reset(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn hold(&mut self, id: u128, attempt: u128, items: &[(&str, &str, u64)], lease_us: u64) -> HoldReply {
        self.hold_with_id(id, attempt, items, lease_us, None)
    }

    pub fn hold_with_id(
        &mut self,
        id: u128,
        attempt: u128,
        items: &[(&str, &str, u64)],
        lease_us: u64,
        request_id: Option<&str>,
    ) -> HoldReply {
        let request_id = request_id.map(str::to_owned);
        let command = HoldCommand { id: HoldId(id), attempt, items: items_of(items), request_id, lease_us };
        match self.apply(Command::Hold(command)) {
            Reply::Hold(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn settle(&mut self, id: u128, attempt: u128, spent: bool) -> SettleReply {
        match self.apply(Command::Settle(SettleCommand { id: HoldId(id), attempt, spent })) {
            Reply::Settle(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn expire(&mut self) -> u32 {
        match self.apply(Command::Expire { up_to: ShardTime(u64::MAX), limit: u32::MAX }) {
            Reply::Expire { removed } => removed,
            other => panic!("{other:?}"),
        }
    }
}

/// What goes through the log or over the wire is there what it was here.
pub fn as_others_read_it<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T) -> T {
    let read: T = codec::decode(&codec::encode(&value)).expect("what was encoded");
    assert_eq!(read, value);
    read
}

pub fn items_of(items: &[(&str, &str, u64)]) -> Vec<CheckItem> {
    let item = |&(policy, key, cost): &(&str, &str, u64)| CheckItem { policy: policy.into(), key: key.into(), cost };
    items.iter().map(item).collect()
}

pub fn token_bucket(rate: &str, burst: u64) -> PolicySpec {
    PolicyDraft { rate: Some(rate.into()), burst: Some(burst), ..PolicyDraft::default() }.check().expect("valid")
}

pub fn sliding_window(rate: &str) -> PolicySpec {
    let algorithm = Some("sliding_window".into());
    PolicyDraft { algorithm, rate: Some(rate.into()), ..PolicyDraft::default() }.check().expect("valid")
}

/// The policy with a `deny` override for the key.
pub fn denying(mut spec: PolicySpec, key: &str) -> PolicySpec {
    spec.overrides.insert(key.into(), Override::Deny);
    spec
}
