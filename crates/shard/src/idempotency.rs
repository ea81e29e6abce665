//! Idempotency keys as the API asks for them: what is a read and what an entry, resending, and waiting.
//!
//! Nothing is decided here: a completed record is read behind ReadIndex, everything else an entry decides. What was
//! handed over and not answered is sent again where the command lands once by its own identity.

use std::{sync::Arc, time::Duration};

use onceward_core::{
    cluster::ShardId,
    codec::keys,
    command::{Command, Reply},
    idempotency::{
        AbandonCommand, AbandonReply, Account, AttemptId, BeginCommand, BeginReply, CompleteCommand, CompleteReply,
        DeleteRecordCommand, DeleteRecordReply, ExtendCommand, ExtendReply, Key, Lease, OnLeaseExpiry, RecordPage,
        RecordState, RecordView, Replay, Response, has_moved_on, is_completed,
    },
    query::{Answer, Query},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};
use tracing::error;

use crate::{
    node::{Surroundings, unexpected},
    outcome::{NotApplied, ServiceError},
    router::Router,
    shard_actor::Shard,
};

/// When a refused caller should ask again: soon, as most work is done in less than its lease.
const ASK_AGAIN_MAX_MS: u64 = 1_000;
/// How long a waiter relies on being woken before it asks again by itself.
const WAIT_SLICE: Duration = Duration::from_secs(5);
/// Calls that wait on this node at once: each keeps one of the places that the HTTP port has for requests (4096 unless it
/// is told otherwise), and those who don't wait need some too. Beyond it nobody is made to wait.
const WAITERS_MAX: usize = 2_048;
/// How often a waiter looks at a shard that has no replica on this node, at first and at last.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(50);
const LOOK_EVERY_MAX: Duration = Duration::from_millis(400);

/// A `begin` as it came in, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeginRequest {
    pub account: Account,
    pub key: Key,
    pub fingerprint: String,
    pub ttl_ms: u64,
    pub lease_ms: u64,
    pub on_lease_expiry: OnLeaseExpiry,
    pub attempt_id: Option<String>,
    /// How long it may wait for another attempt's outcome; adds to the deadline.
    pub wait_ms: u64,
    pub deadline: Instant,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BeginAnswer {
    /// The caller owns the key.
    Started {
        token: u64,
        lease: Lease,
    },
    Completed(Replay),
    /// Another attempt holds the key.
    InProgress {
        retry_after_ms: u64,
    },
    Indeterminate,
    FingerprintMismatch,
}

/// What waiting came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    /// The attempt seems to hold the key no longer.
    MovedOn,
    /// It seems to hold it still.
    ForNow,
    /// Too many wait already.
    InVain,
}

/// What one try came to.
enum Tried {
    Answered(BeginAnswer),
    Held { token: u64, lease_remaining_us: u64 },
}

pub(crate) struct Idempotency {
    router: Arc<Router>,
    surroundings: Arc<Surroundings>,
    /// One permit for each that may wait.
    waiters: Semaphore,
}

impl Idempotency {
    pub(crate) fn new(router: Arc<Router>, surroundings: Arc<Surroundings>) -> Idempotency {
        Idempotency { router, surroundings, waiters: Semaphore::new(WAITERS_MAX) }
    }

    pub(crate) async fn begin(&self, request: BeginRequest) -> Result<BeginAnswer, ServiceError> {
        let now = Instant::now();
        let patience = request.deadline.saturating_duration_since(now);
        let wait_until = now + Duration::from_millis(request.wait_ms);
        let shard = self.shard(&request.account);
        let mut command = BeginCommand {
            account: request.account,
            key: request.key,
            fingerprint: request.fingerprint,
            ttl_us: request.ttl_ms * 1_000,
            lease_us: request.lease_ms * 1_000,
            on_lease_expiry: request.on_lease_expiry,
            attempt: match request.attempt_id {
                Some(id) => AttemptId::Given(id),
                None => AttemptId::Drawn(self.surroundings.entropy.nonce()),
            },
            wall_ms: 0,
        };
        loop {
            command.wall_ms = self.surroundings.clock.wall_ms();
            let (token, lease_remaining_us) = match self.try_begin(shard, &command, Instant::now() + patience).await? {
                Tried::Answered(answer) => return Ok(answer),
                Tried::Held { token, lease_remaining_us } => (token, lease_remaining_us),
            };
            let until = wait_until.min(Instant::now() + WAIT_SLICE);
            let waited = self.wait(shard, &command, token, until).await;
            if waited == Waited::InVain || (waited == Waited::ForNow && Instant::now() >= wait_until) {
                let retry_after_ms = lease_remaining_us.div_ceil(1_000).clamp(1, ASK_AGAIN_MAX_MS);
                return Ok(BeginAnswer::InProgress { retry_after_ms });
            }
        }
    }

    async fn try_begin(
        &self,
        shard: ShardId,
        command: &BeginCommand,
        deadline: Instant,
    ) -> Result<Tried, ServiceError> {
        if self.is_completed_here(shard, command)
            && let Some(replay) = self.replay(shard, command, deadline).await?
        {
            return Ok(Tried::Answered(BeginAnswer::Completed(replay)));
        }
        loop {
            let outcome = self.router.submit_until_known(shard, Command::Begin(command.clone()), deadline).await;
            let answer = match outcome.into_result()? {
                Reply::Begin(BeginReply::Started { token, lease }) => BeginAnswer::Started { token, lease },
                Reply::Begin(BeginReply::InProgress { token, lease_remaining_us }) => {
                    return Ok(Tried::Held { token, lease_remaining_us });
                }
                Reply::Begin(BeginReply::Indeterminate) => BeginAnswer::Indeterminate,
                Reply::Begin(BeginReply::FingerprintMismatch) => BeginAnswer::FingerprintMismatch,
                Reply::Begin(BeginReply::Completed) => match self.replay(shard, command, deadline).await? {
                    Some(replay) => BeginAnswer::Completed(replay),
                    // It expired or was deleted in between, so that the next entry finds none.
                    None if Instant::now() < deadline => continue,
                    None => return Err(NotApplied::DeadlinePassed.into()),
                },
                other => return Err(unexpected(&other)),
            };
            return Ok(Tried::Answered(answer));
        }
    }

    /// Whether this node's replica, which may be behind, has the record as completed.
    fn is_completed_here(&self, shard: ShardId, command: &BeginCommand) -> bool {
        let Some(replica) = self.router.local(shard) else { return false };
        let completed = replica.group.read(|rows| is_completed(rows, &command.account, &command.key));
        completed.unwrap_or_else(|error| {
            error!(%shard, %error, "a record cannot be read");
            false
        })
    }

    async fn replay(
        &self,
        shard: ShardId,
        command: &BeginCommand,
        deadline: Instant,
    ) -> Result<Option<Replay>, ServiceError> {
        let (account, key, fingerprint) = (command.account.clone(), command.key.clone(), command.fingerprint.clone());
        match self.router.query(shard, Query::Replay { account, key, fingerprint }, deadline).await.into_result()? {
            Answer::Replay(replay) => Ok(replay),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until the attempt with `token` seems to hold the key no longer.
    async fn wait(&self, shard: ShardId, command: &BeginCommand, token: u64, until: Instant) -> Waited {
        if Instant::now() >= until {
            return Waited::ForNow;
        }
        let Ok(_permit) = self.waiters.try_acquire() else { return Waited::InVain };
        let moved_on = match self.router.local(shard) {
            Some(replica) => wait_here(replica, command, token, until).await,
            None => self.look_there(shard, command, token, until).await,
        };
        if moved_on { Waited::MovedOn } else { Waited::ForNow }
    }

    async fn look_there(&self, shard: ShardId, command: &BeginCommand, token: u64, until: Instant) -> bool {
        let mut pause = LOOK_EVERY_MIN;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(LOOK_EVERY_MAX);
            let query = Query::HasMovedOn { account: command.account.clone(), key: command.key.clone(), token };
            match self.router.query(shard, query, until).await.into_result() {
                Ok(Answer::HasMovedOn(false)) | Err(_) => {}
                Ok(_) => return true,
            }
        }
    }

    pub(crate) async fn complete(
        &self,
        account: Account,
        key: Key,
        token: u64,
        response: Response,
        deadline: Instant,
    ) -> Result<CompleteReply, ServiceError> {
        let shard = self.shard(&account);
        let wall_ms = self.surroundings.clock.wall_ms();
        let command = Command::Complete(CompleteCommand { account, key, token, response, wall_ms });
        match self.router.submit_until_known(shard, command, deadline).await.into_result()? {
            Reply::Complete(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// Sent once: repeated, it would find no record, and could not tell its own success from another's.
    pub(crate) async fn abandon(
        &self,
        account: Account,
        key: Key,
        token: u64,
        deadline: Instant,
    ) -> Result<AbandonReply, ServiceError> {
        let shard = self.shard(&account);
        let command = Command::Abandon(AbandonCommand { account, key, token });
        match self.router.submit(shard, command, deadline).await.into_result()? {
            Reply::Abandon(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn extend(
        &self,
        account: Account,
        key: Key,
        token: u64,
        lease_ms: u64,
        deadline: Instant,
    ) -> Result<ExtendReply, ServiceError> {
        let shard = self.shard(&account);
        let wall_ms = self.surroundings.clock.wall_ms();
        let command = Command::Extend(ExtendCommand { account, key, token, lease_us: lease_ms * 1_000, wall_ms });
        match self.router.submit_until_known(shard, command, deadline).await.into_result()? {
            Reply::Extend(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// Sent once, for the reason that `abandon` is.
    pub(crate) async fn delete(
        &self,
        account: Account,
        key: Key,
        deadline: Instant,
    ) -> Result<DeleteRecordReply, ServiceError> {
        let shard = self.shard(&account);
        let command = Command::DeleteRecord(DeleteRecordCommand { account, key });
        match self.router.submit(shard, command, deadline).await.into_result()? {
            Reply::DeleteRecord(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn record(
        &self,
        account: Account,
        key: Key,
        deadline: Instant,
    ) -> Result<Option<RecordView>, ServiceError> {
        let shard = self.shard(&account);
        match self.router.query(shard, Query::Record { account, key }, deadline).await.into_result()? {
            Answer::Record(record) => Ok(record),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn records(
        &self,
        account: Account,
        state: Option<RecordState>,
        after: Option<Key>,
        limit: u32,
        deadline: Instant,
    ) -> Result<RecordPage, ServiceError> {
        let shard = self.shard(&account);
        let query = Query::Records { account, state, after, limit };
        match self.router.query(shard, query, deadline).await.into_result()? {
            Answer::Records(page) => Ok(page),
            other => Err(unexpected(&other)),
        }
    }

    fn shard(&self, account: &Account) -> ShardId {
        self.surroundings.manifest.account_shard(account.as_str())
    }
}

/// Waits on this node's replica; being behind the leader's it only notices later.
async fn wait_here(replica: &Shard, command: &BeginCommand, token: u64, until: Instant) -> bool {
    let (account, key) = (&command.account, &command.key);
    let mut place = replica.waiting.join(keys::record(account.as_str(), key.as_str()));
    loop {
        match replica.group.read(|rows| has_moved_on(rows, account, key, token)) {
            Ok(false) => {}
            // What can't be read is told by asking again.
            Ok(true) | Err(_) => return true,
        }
        if timeout_at(until, place.woken()).await.is_err() {
            return false;
        }
    }
}
