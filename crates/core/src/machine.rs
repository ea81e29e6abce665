//! The state machine of a shard: dispatches a command to its mechanism and keeps the shard clock.
//!
//! In goes an entry with its stamp, out come the replies and changed rows. It is a pure function of the rows and the
//! entry: what it keeps beside them are decoded copies.

use bytes::Bytes;

use crate::{
    cluster::ShardId,
    codec::{
        self,
        keys::{self, Kind},
    },
    command::{Command, EntryBatch, Reply},
    expire::expire,
    idempotency::Ledger,
    limits::{Chains, Turn},
    rows::{ReadRows, Rows, RowsError, Table, read},
    time::ShardTime,
    webhooks::{Desk, Subscribers},
};

/// One shard's `apply`. Everything in it is derived from the rows: after a snapshot it is dropped and made anew.
#[derive(Debug)]
pub struct Machine {
    shard: ShardId,
    /// Of the state, once it was read.
    clock: Option<ShardTime>,
    chains: Chains,
    subscribers: Subscribers,
    moved: Vec<Bytes>,
}

impl Machine {
    pub fn new(shard: ShardId) -> Machine {
        Machine {
            shard,
            clock: None,
            chains: Chains::default(),
            subscribers: Subscribers::default(),
            moved: Vec::new(),
        }
    }

    /// Applies the commands of one entry in order, at its stamp; one reply each.
    pub fn apply(&mut self, rows: &mut dyn Rows, batch: &EntryBatch) -> Result<Vec<Reply>, RowsError> {
        let before = match self.clock {
            Some(clock) => clock,
            None => clock(rows)?,
        };
        let now = before.max(batch.stamp);
        if now > before {
            rows.put(Table::State, keys::CLOCK.clone(), codec::encode(&now));
        }
        self.clock = Some(now);
        batch.commands.iter().map(|command| self.apply_one(rows, now, command)).collect()
    }

    fn apply_one(&mut self, rows: &mut dyn Rows, now: ShardTime, command: &Command) -> Result<Reply, RowsError> {
        if let Command::System(command) = command {
            return match self.shard.is_system() {
                true => Ok(Reply::System(command.apply(rows)?)),
                false => Ok(Reply::Misrouted),
            };
        }
        if let Command::Expire { up_to, limit } = command {
            let removed = self.expire(rows, now, *up_to, *limit)?;
            return Ok(Reply::Expire { removed });
        }
        if let Command::Webhook(_) | Command::RecordOutcomes(_) | Command::CopyOperational(_) = command {
            return self.apply_webhooks(rows, now, command);
        }
        if self.shard.is_system() {
            return Ok(Reply::Misrouted);
        }
        let mut ledger = Ledger::new(rows, now, &mut self.moved);
        let reply = match command {
            Command::Begin(command) => Reply::Begin(command.apply(&mut ledger)?),
            Command::Complete(command) => {
                Reply::Complete(command.apply(&mut ledger, self.shard, &mut self.subscribers)?)
            }
            Command::Abandon(command) => Reply::Abandon(command.apply(&mut ledger)?),
            Command::Extend(command) => Reply::Extend(command.apply(&mut ledger)?),
            Command::DeleteRecord(command) => Reply::DeleteRecord(command.apply(&mut ledger)?),
            _ => return self.apply_limits(rows, now, command),
        };
        Ok(reply)
    }

    fn expire(&mut self, rows: &mut dyn Rows, now: ShardTime, up_to: ShardTime, limit: u32) -> Result<u32, RowsError> {
        let Machine { shard, chains, subscribers, moved, .. } = self;
        expire(rows, up_to.min(now), limit, |rows, row| match Kind::of(row) {
            Some(Kind::Record) => Ok((Ledger::new(rows, now, moved).look_again(row)?, 0)),
            Some(Kind::Message | Kind::Request | Kind::Clearing) => {
                let mut desk = Desk::new(rows, now, *shard, moved, subscribers);
                Ok((desk.look_again(row)?, desk.changes()))
            }
            _ => Ok((Turn::new(rows, chains, now).look_again(row)?, 0)),
        })
    }

    fn apply_webhooks(&mut self, rows: &mut dyn Rows, now: ShardTime, command: &Command) -> Result<Reply, RowsError> {
        let is_system = self.shard.is_system();
        let mut desk = Desk::new(rows, now, self.shard, &mut self.moved, &mut self.subscribers);
        Ok(match command {
            Command::Webhook(command) if command.action.is_of_system() == is_system => {
                Reply::Webhook(Box::new(command.apply(&mut desk)?))
            }
            Command::RecordOutcomes(command) if !is_system => {
                Reply::RecordOutcomes { recorded: command.apply(&mut desk)? }
            }
            Command::CopyOperational(command) if !is_system => {
                Reply::CopyOperational { revision: command.apply(&mut desk)? }
            }
            _ => Reply::Misrouted,
        })
    }

    fn apply_limits(&mut self, rows: &mut dyn Rows, now: ShardTime, command: &Command) -> Result<Reply, RowsError> {
        let mut turn = Turn::new(rows, &mut self.chains, now);
        Ok(match command {
            Command::Check(command) => Reply::Check(command.apply(&mut turn)?),
            Command::Hold(command) => Reply::Hold(command.apply(&mut turn)?),
            Command::Settle(command) => Reply::Settle(command.apply(&mut turn)?),
            Command::Refund(command) => Reply::Refund(command.apply(&mut turn)?),
            Command::Reset(command) => Reply::Reset(command.apply(&mut turn)?),
            Command::CopyPolicies(command) => Reply::CopyPolicies { synced_revision: command.apply(&mut turn)? },
            _ => Reply::Misrouted,
        })
    }

    /// The rows of the idempotency records whose attempt ended in some way, and of the states of endpoints that have
    /// something else due than before, or another target, since this was asked last.
    pub fn take_moved(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.moved)
    }

    /// The stamp that the state has reached.
    pub fn clock(&self, rows: &dyn ReadRows) -> Result<ShardTime, RowsError> {
        self.clock.map_or_else(|| clock(rows), Ok)
    }

    /// When the first row is due.
    pub fn next_due(&self, rows: &dyn ReadRows) -> Result<Option<ShardTime>, RowsError> {
        next_due(rows)
    }
}

pub(crate) fn clock(rows: &(impl ReadRows + ?Sized)) -> Result<ShardTime, RowsError> {
    Ok(read(rows, &keys::CLOCK)?.unwrap_or_default())
}

pub(crate) fn next_due(rows: &dyn ReadRows) -> Result<Option<ShardTime>, RowsError> {
    let first = rows.scan(Table::Expiry, &[], None, 1)?;
    Ok(first.first().and_then(|(key, _)| keys::parse_due(key)).map(|(due, _)| due))
}
