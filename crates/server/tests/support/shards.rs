//! Webhooks as a node serves them, in memory: a system shard and one data shard, each a machine over its rows.

use std::collections::BTreeMap;

use bytes::Bytes;
use onceward_core::{
    cluster::{Manifest, ShardId},
    codec,
    command::{Command, EntryBatch, Reply},
    machine::Machine,
    query::{Answer, Query, answer},
    rows::{ReadRows, Row, Rows, RowsError, Table},
    time::ShardTime,
    webhooks::{
        Action, AppRef, AppView, Missing, Page, PageIn, RecordOutcomes, Refusal, WebhookAnswer, WebhookCommand,
        WebhookQuery, WebhookReply,
    },
};
use onceward_shard::WebhookCall;

use super::WALL_MS;

#[derive(Debug, Default)]
struct MemoryRows {
    state: BTreeMap<Bytes, Bytes>,
    expiry: BTreeMap<Bytes, Bytes>,
}

impl MemoryRows {
    fn table(&mut self, table: Table) -> &mut BTreeMap<Bytes, Bytes> {
        match table {
            Table::State => &mut self.state,
            Table::Expiry => &mut self.expiry,
        }
    }

    fn below(&self, table: Table, prefix: &[u8]) -> impl DoubleEndedIterator<Item = (&Bytes, &Bytes)> {
        let rows = match table {
            Table::State => &self.state,
            Table::Expiry => &self.expiry,
        };
        let prefix = prefix.to_vec();
        rows.iter().filter(move |(key, _)| key.starts_with(&prefix))
    }
}

fn collect<'a>(rows: impl Iterator<Item = (&'a Bytes, &'a Bytes)>, limit: usize) -> Vec<Row> {
    rows.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl ReadRows for MemoryRows {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        Ok(self.below(table, key).find(|(found, _)| found.as_ref() == key).map(|(_, value)| value.clone()))
    }

    fn scan(&self, table: Table, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<Row>, RowsError> {
        let rows = self.below(table, prefix);
        Ok(collect(rows.filter(|(key, _)| after.is_none_or(|after| key.as_ref() > after)), limit))
    }

    fn scan_back(
        &self,
        table: Table,
        prefix: &[u8],
        before: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Row>, RowsError> {
        let rows = self.below(table, prefix).rev();
        Ok(collect(rows.filter(|(key, _)| before.is_none_or(|before| key.as_ref() < before)), limit))
    }
}

impl Rows for MemoryRows {
    fn put(&mut self, table: Table, key: Bytes, value: Bytes) {
        self.table(table).insert(key, value);
    }

    fn delete(&mut self, table: Table, key: Bytes) {
        self.table(table).remove(&key);
    }
}

struct Shard {
    id: ShardId,
    machine: Machine,
    rows: MemoryRows,
}

impl Shard {
    fn new(id: ShardId) -> Shard {
        Shard { id, machine: Machine::new(id), rows: MemoryRows::default() }
    }
}

/// Each call is a second after the one before.
pub struct Shards {
    manifest: Manifest,
    system: Shard,
    data: Shard,
    seconds: u64,
}

impl Default for Shards {
    fn default() -> Shards {
        let manifest = Manifest { cluster_id: 1, data_shards: 1, nodes: Vec::new() };
        Shards { manifest, system: Shard::new(ShardId::SYSTEM), data: Shard::new(ShardId(1)), seconds: 0 }
    }
}

impl Shards {
    /// By way of the bytes that a log keeps.
    fn apply(&mut self, on_system: bool, command: Command) -> Reply {
        self.seconds += 1;
        let shard = if on_system { &mut self.system } else { &mut self.data };
        let batch = EntryBatch { stamp: ShardTime(self.seconds * 1_000_000), commands: vec![command] };
        let batch: EntryBatch = codec::decode(&codec::encode(&batch)).unwrap();
        shard.machine.apply(&mut shard.rows, &batch).unwrap().remove(0)
    }

    pub fn call(&mut self, call: WebhookCall) -> WebhookReply {
        let WebhookCall { action, request } = call;
        let made_nowhere = action.app().is_some_and(|app| self.manifest.app_shard(app).is_none());
        if made_nowhere {
            return WebhookReply::Refused(Refusal::NoApp);
        }
        let on_system = matches!(action, Action::EventType(_)) || action.app() == Some(&AppRef::Operational);
        let (nonce, wall_ms) = ([7; 6], WALL_MS + self.seconds * 1_000);
        let command = WebhookCommand { action, request, nonce, wall_ms };
        match self.apply(on_system, Command::Webhook(Box::new(command))) {
            Reply::Webhook(reply) => *reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn record(&mut self, outcomes: RecordOutcomes) {
        let reply = self.apply(false, Command::RecordOutcomes(outcomes));
        assert!(matches!(reply, Reply::RecordOutcomes { recorded: 1.. }), "{reply:?}");
    }

    pub fn query(&self, query: WebhookQuery) -> WebhookAnswer {
        let shard = match query.app().map(|app| self.manifest.app_shard(app)) {
            Some(None) => return WebhookAnswer::NotFound(Missing::App),
            Some(Some(ShardId::SYSTEM)) | None => &self.system,
            Some(Some(_)) => &self.data,
        };
        ask(shard, query)
    }

    pub fn apps(&self, page: PageIn) -> Page<AppView> {
        match ask(&self.data, WebhookQuery::Apps { page }) {
            WebhookAnswer::Apps(page) => page,
            other => panic!("{other:?}"),
        }
    }
}

fn ask(shard: &Shard, query: WebhookQuery) -> WebhookAnswer {
    match answer(shard.id, &shard.rows, &Query::Webhook(query)).unwrap() {
        Answer::Webhook(answer) => answer,
        other => panic!("{other:?}"),
    }
}
