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
        RecordState, RecordView, Replay, completed_bytes, has_moved_on,
    },
    query::{Answer, Query},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::{
    node::{Surroundings, unexpected},
    outcome::{NotApplied, ServiceError},
    router::{Resent, Router},
    shard_actor::Shard,
    webhooks::draw_nonce,
};

/// When a refused caller should ask again: soon, as most work is done in less than its lease.
const ASK_AGAIN_MAX_MS: u64 = 1_000;
/// How long a waiter relies on being woken before it asks again by itself.
const WAIT_SLICE: Duration = Duration::from_secs(5);
/// An answer older than this is not given without asking again.
const STALE_AFTER: Duration = Duration::from_millis(20);
/// An answer with a response of more bytes than this is large.
const LARGE_RESPONSE_BYTES: u32 = 16 << 10;
/// Large answers that this node asks for at once: what a leader has to send to it in one go must not outgrow the link,
/// which carries entries too.
const LARGE_ANSWERS_MAX: usize = 64;
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
    /// Too many wait already, or the node is on its way out.
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
    /// One permit for each large answer that is under way.
    large_answers: Semaphore,
    /// The node is on its way out.
    stopping: CancellationToken,
}

impl Idempotency {
    pub(crate) fn new(router: Arc<Router>, surroundings: Arc<Surroundings>) -> Idempotency {
        Idempotency {
            waiters: Semaphore::new(surroundings.tuning.waiters_max),
            router,
            surroundings,
            large_answers: Semaphore::new(LARGE_ANSWERS_MAX),
            stopping: CancellationToken::new(),
        }
    }

    /// Whoever waits is answered now, and nobody is made to wait any more.
    pub(crate) fn stop_waiting(&self) {
        self.stopping.cancel();
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
        let mut resent = Resent(false);
        match self.begin_or_wait(shard, &mut command, patience, wait_until, &mut resent).await {
            // Another copy may have got the key, or get it yet.
            Err(ServiceError::Unavailable { .. }) if resent.0 => Err(ServiceError::Unknown),
            answer => answer,
        }
    }

    /// Tries again after each wait. `patience`: how long each try may take.
    async fn begin_or_wait(
        &self,
        shard: ShardId,
        command: &mut BeginCommand,
        patience: Duration,
        wait_until: Instant,
        resent: &mut Resent,
    ) -> Result<BeginAnswer, ServiceError> {
        loop {
            command.wall_ms = self.surroundings.clock.wall_ms();
            let (token, lease_remaining_us) =
                match self.try_begin(shard, command, Instant::now() + patience, resent).await? {
                    Tried::Answered(answer) => return Ok(answer),
                    Tried::Held { token, lease_remaining_us } => (token, lease_remaining_us),
                };
            let began = Instant::now();
            let waited = self.wait(shard, command, token, wait_until.min(began + WAIT_SLICE)).await;
            if waited == Waited::MovedOn || (waited == Waited::ForNow && Instant::now() < wait_until) {
                continue;
            }
            // What was said before the wait may not be true any more, nor known here.
            let deadline = Instant::now() + patience;
            if began.elapsed() > STALE_AFTER && self.has_moved_on(shard, command, token, deadline).await? {
                continue;
            }
            let waited_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            let retry_after_ms =
                lease_remaining_us.saturating_sub(waited_us).div_ceil(1_000).clamp(1, ASK_AGAIN_MAX_MS);
            return Ok(BeginAnswer::InProgress { retry_after_ms });
        }
    }

    async fn try_begin(
        &self,
        shard: ShardId,
        command: &BeginCommand,
        deadline: Instant,
        resent: &mut Resent,
    ) -> Result<Tried, ServiceError> {
        let bytes = self.completed_bytes_here(shard, &command.account, &command.key);
        if bytes.is_some()
            && let Some(replay) = self.replay(shard, command, bytes, deadline).await?
        {
            return Ok(Tried::Answered(BeginAnswer::Completed(replay)));
        }
        loop {
            let entry = Command::Begin(command.clone());
            let (outcome, again) = self.router.submit_until_known(shard, &entry, deadline).await;
            resent.0 |= again.0;
            let answer = match outcome.into_result()? {
                Reply::Begin(BeginReply::Started { token, lease }) => BeginAnswer::Started { token, lease },
                Reply::Begin(BeginReply::InProgress { token, lease_remaining_us }) => {
                    return Ok(Tried::Held { token, lease_remaining_us });
                }
                Reply::Begin(BeginReply::Indeterminate) => BeginAnswer::Indeterminate,
                Reply::Begin(BeginReply::FingerprintMismatch) => BeginAnswer::FingerprintMismatch,
                Reply::Begin(BeginReply::Completed) => match self.replay(shard, command, None, deadline).await? {
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

    /// How large the response is, where this node's replica, which may be behind, has the record as completed.
    fn completed_bytes_here(&self, shard: ShardId, account: &Account, key: &Key) -> Option<u32> {
        let replica = self.router.local(shard)?;
        replica.group.read(|rows| completed_bytes(rows, account, key)).unwrap_or_else(|error| {
            error!(%shard, %error, "a record cannot be read");
            None
        })
    }

    /// `bytes`: how large the response is; `None`: that is not known.
    async fn replay(
        &self,
        shard: ShardId,
        command: &BeginCommand,
        bytes: Option<u32>,
        deadline: Instant,
    ) -> Result<Option<Replay>, ServiceError> {
        let (account, key, fingerprint) = (command.account.clone(), command.key.clone(), command.fingerprint.clone());
        let query = Query::Replay { account, key, fingerprint };
        match self.query_response(shard, query, bytes, deadline).await? {
            Answer::Replay(replay) => Ok(replay),
            other => Err(unexpected(&other)),
        }
    }

    async fn query_response(
        &self,
        shard: ShardId,
        query: Query,
        bytes: Option<u32>,
        deadline: Instant,
    ) -> Result<Answer, ServiceError> {
        let _permit = match bytes {
            Some(..=LARGE_RESPONSE_BYTES) => None,
            _ => match timeout_at(deadline, self.large_answers.acquire()).await {
                Ok(permit) => permit.ok(),
                Err(_) => return Err(NotApplied::Overloaded.into()),
            },
        };
        self.router.query(shard, query, deadline).await.into_result()
    }

    /// Waits until the attempt with `token` seems to hold the key no longer.
    async fn wait(&self, shard: ShardId, command: &BeginCommand, token: u64, until: Instant) -> Waited {
        if Instant::now() >= until {
            return Waited::ForNow;
        }
        let Ok(_permit) = self.waiters.try_acquire() else { return Waited::InVain };
        let waiting = async {
            match self.router.local(shard) {
                Some(replica) => wait_here(replica, command, token, until).await,
                None => self.look_there(shard, command, token, until).await,
            }
        };
        tokio::select! {
            moved_on = waiting => if moved_on { Waited::MovedOn } else { Waited::ForNow },
            () = self.stopping.cancelled() => Waited::InVain,
        }
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
            // Whoever can't be asked now is asked again.
            if let Ok(true) = self.has_moved_on(shard, command, token, until).await {
                return true;
            }
        }
    }

    /// Whether the attempt with `token` no longer holds the key, as the leader knows.
    async fn has_moved_on(
        &self,
        shard: ShardId,
        command: &BeginCommand,
        token: u64,
        deadline: Instant,
    ) -> Result<bool, ServiceError> {
        let query = Query::HasMovedOn { account: command.account.clone(), key: command.key.clone(), token };
        match self.router.query(shard, query, deadline).await.into_result()? {
            Answer::HasMovedOn(moved_on) => Ok(moved_on),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn complete(
        &self,
        mut command: CompleteCommand,
        deadline: Instant,
    ) -> Result<CompleteReply, ServiceError> {
        let shard = self.shard(&command.account);
        command.wall_ms = self.surroundings.clock.wall_ms();
        command.publishing.nonce = draw_nonce(&self.surroundings);
        let command = Command::Complete(command);
        let (outcome, resent) = self.router.submit_until_known(shard, &command, deadline).await;
        match outcome.into_result()? {
            // Perhaps it landed and was deleted, or expired, before it came again.
            Reply::Complete(CompleteReply::Fenced) if resent.0 => Err(ServiceError::Unknown),
            Reply::Complete(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// Sent once: repeated, it would find no record, and could not tell its own success from another's.
    pub(crate) async fn abandon(
        &self,
        command: AbandonCommand,
        deadline: Instant,
    ) -> Result<AbandonReply, ServiceError> {
        let shard = self.shard(&command.account);
        match self.router.submit(shard, &Command::Abandon(command), deadline).await.into_result()? {
            Reply::Abandon(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn extend(
        &self,
        mut command: ExtendCommand,
        deadline: Instant,
    ) -> Result<ExtendReply, ServiceError> {
        let shard = self.shard(&command.account);
        command.wall_ms = self.surroundings.clock.wall_ms();
        let command = Command::Extend(command);
        let (outcome, resent) = self.router.submit_until_known(shard, &command, deadline).await;
        match outcome.into_result()? {
            Reply::Extend(ExtendReply::Fenced) if resent.0 => Err(ServiceError::Unknown),
            Reply::Extend(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// Sent once, for the reason that `abandon` is.
    pub(crate) async fn delete(
        &self,
        command: DeleteRecordCommand,
        deadline: Instant,
    ) -> Result<DeleteRecordReply, ServiceError> {
        let shard = self.shard(&command.account);
        match self.router.submit(shard, &Command::DeleteRecord(command), deadline).await.into_result()? {
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
        // What is not completed has none.
        let bytes =
            self.router.local(shard).map(|_| self.completed_bytes_here(shard, &account, &key).unwrap_or_default());
        match self.query_response(shard, Query::Record { account, key }, bytes, deadline).await? {
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
