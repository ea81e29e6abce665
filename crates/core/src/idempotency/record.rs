//! Record: what a shard keeps of a key, and where it stands at a given time.

use serde::{Deserialize, Serialize};

use super::{
    begin::{AttemptId, OnLeaseExpiry},
    complete::PublishedMessage,
    response::{Digest, Response},
};
use crate::{
    faults::{self, Fault},
    time::ShardTime,
};

/// A row of [`crate::codec::keys::Kind::Record`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The newest one; whoever has it owns the key.
    pub(super) token: u64,
    pub(super) fingerprint: String,
    /// Display time.
    pub(super) created_wall_ms: u64,
    pub(super) ttl_us: u64,
    pub(super) state: State,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    InProgress(Attempt),
    /// The lease of an attempt that must not be repeated is over, and that was committed.
    Indeterminate(Attempt),
    Completed(Completion),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempt {
    pub(super) id: AttemptId,
    pub(super) on_lease_expiry: OnLeaseExpiry,
    pub(super) lease_ends_at: ShardTime,
    /// Display time.
    pub(super) lease_ends_wall_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Completion {
    pub(super) completed_at: ShardTime,
    /// Display time.
    pub(super) completed_wall_ms: u64,
    #[serde(with = "serde_bytes")]
    pub(super) digest: Digest,
    /// What the response, which has a row of its own, takes there.
    pub(super) response_bytes: u32,
    /// Those that were published with it.
    #[serde(default)]
    pub(super) messages: Vec<PublishedMessage>,
}

/// Until when an attempt owns its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Display time.
    pub expires_wall_ms: u64,
    /// From the entry's stamp; 0 when the lease is over.
    pub remaining_us: u64,
}

/// Where a record stands at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its attempt has the lease.
    Leased,
    /// The lease is over: whoever comes next takes over.
    Lapsed,
    Indeterminate,
    Completed,
    /// It is to be taken for absent.
    Gone,
}

impl Record {
    /// Whether the token is the newest, whose attempt alone may change the record.
    pub(super) fn is_of(&self, token: u64) -> bool {
        self.token == token || faults::active(Fault::ForgetToken)
    }

    pub(super) fn standing(&self, now: ShardTime) -> Standing {
        match &self.state {
            State::Completed(completion) if now < completion.completed_at.plus_us(self.ttl_us) => Standing::Completed,
            State::Completed(_) => Standing::Gone,
            State::Indeterminate(_) => Standing::Indeterminate,
            State::InProgress(attempt) if now < attempt.lease_ends_at => Standing::Leased,
            State::InProgress(attempt) => match attempt.on_lease_expiry {
                OnLeaseExpiry::Hold => Standing::Indeterminate,
                OnLeaseExpiry::Takeover if now < attempt.lease_ends_at.plus_us(self.ttl_us) => Standing::Lapsed,
                OnLeaseExpiry::Takeover => Standing::Gone,
            },
        }
    }

    /// When it has to be looked at for the next time; `None`: never by itself.
    pub(super) fn due(&self, now: ShardTime) -> Option<ShardTime> {
        match &self.state {
            State::Completed(completion) => Some(completion.completed_at.plus_us(self.ttl_us)),
            State::Indeterminate(_) => None,
            State::InProgress(attempt) if now < attempt.lease_ends_at => Some(attempt.lease_ends_at),
            State::InProgress(attempt) => match attempt.on_lease_expiry {
                OnLeaseExpiry::Hold => Some(attempt.lease_ends_at),
                OnLeaseExpiry::Takeover => Some(attempt.lease_ends_at.plus_us(self.ttl_us)),
            },
        }
    }

    pub(super) fn attempt(&self) -> Option<&Attempt> {
        match &self.state {
            State::InProgress(attempt) | State::Indeterminate(attempt) => Some(attempt),
            State::Completed(_) => None,
        }
    }

    pub(super) fn completion(&self) -> Option<&Completion> {
        match &self.state {
            State::Completed(completion) => Some(completion),
            State::InProgress(_) | State::Indeterminate(_) => None,
        }
    }

    pub(super) fn expires_wall_ms(&self, completion: &Completion) -> u64 {
        completion.completed_wall_ms.saturating_add(self.ttl_us / 1_000)
    }
}

impl Attempt {
    pub(super) fn lease(&self, now: ShardTime) -> Lease {
        Lease { expires_wall_ms: self.lease_ends_wall_ms, remaining_us: self.lease_ends_at.since_us(now) }
    }
}

/// A state as callers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordState {
    /// Under way, or its lease is over and nobody took over yet.
    InProgress,
    Completed,
    Indeterminate,
}

/// A record as it is read; never with its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordView {
    pub state: RecordState,
    pub created_wall_ms: u64,
    /// Not of a completed record.
    pub lease_expires_wall_ms: Option<u64>,
    /// Of a completed record, like the two below.
    pub completed_wall_ms: Option<u64>,
    pub expires_wall_ms: Option<u64>,
    pub response: Option<Response>,
}

impl Record {
    /// The record as callers see it, its response still to be read; `None` where there is to be none any more.
    pub(super) fn view(&self, now: ShardTime) -> Option<RecordView> {
        let completion = self.completion();
        Some(RecordView {
            state: self.state_shown(now)?,
            created_wall_ms: self.created_wall_ms,
            lease_expires_wall_ms: self.attempt().map(|attempt| attempt.lease_ends_wall_ms),
            completed_wall_ms: completion.map(|completion| completion.completed_wall_ms),
            expires_wall_ms: completion.map(|completion| self.expires_wall_ms(completion)),
            response: None,
        })
    }

    /// `None` where there is to be no record any more.
    pub(super) fn state_shown(&self, now: ShardTime) -> Option<RecordState> {
        match self.standing(now) {
            Standing::Leased | Standing::Lapsed => Some(RecordState::InProgress),
            Standing::Indeterminate => Some(RecordState::Indeterminate),
            Standing::Completed => Some(RecordState::Completed),
            Standing::Gone => None,
        }
    }
}

/// The stored outcome, for a caller who asks for the same again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    pub response: Response,
    /// Display time.
    pub completed_wall_ms: u64,
}
