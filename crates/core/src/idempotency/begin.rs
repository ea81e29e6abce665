//! Begin: the one command by which an attempt gets a key.

use serde::{Deserialize, Serialize};

use super::{
    Account, Key, Ledger,
    record::{Attempt, Lease, Record, Standing, State},
};
use crate::rows::RowsError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginCommand {
    pub account: Account,
    pub key: Key,
    /// The caller's hash of its request.
    pub fingerprint: String,
    /// How long a completed record is kept, from its completion.
    pub ttl_us: u64,
    pub lease_us: u64,
    pub on_lease_expiry: OnLeaseExpiry,
    pub attempt: AttemptId,
    /// Display time of the node that received the call.
    pub wall_ms: u64,
}

/// What becomes of a key whose attempt died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnLeaseExpiry {
    /// The next `begin` gets it, with a greater token.
    Takeover,
    /// It waits for a person, or for its late owner.
    Hold,
}

/// By what an attempt knows itself again when its answer was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptId {
    Given(String),
    /// The receiving node gave it one, for its own resends.
    Drawn(u128),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BeginReply {
    /// The caller owns the key.
    Started {
        token: u64,
        lease: Lease,
    },
    /// Another attempt has it; its token is for waiting on this attempt, and not for callers.
    InProgress {
        token: u64,
        lease_remaining_us: u64,
    },
    /// It was completed; the response is read, see [`crate::query::Query::Replay`].
    Completed,
    Indeterminate,
    FingerprintMismatch,
}

impl BeginCommand {
    pub(crate) fn apply(&self, ledger: &mut Ledger<'_>) -> Result<BeginReply, RowsError> {
        let found = ledger.find(&self.account, &self.key)?;
        if let Some((record, standing)) = found.present() {
            if record.fingerprint != self.fingerprint {
                return Ok(BeginReply::FingerprintMismatch);
            }
            match (standing, record.attempt()) {
                (Standing::Leased, Some(attempt)) => {
                    let lease = attempt.lease(ledger.now);
                    return Ok(if attempt.id == self.attempt {
                        BeginReply::Started { token: record.token, lease }
                    } else {
                        BeginReply::InProgress { token: record.token, lease_remaining_us: lease.remaining_us }
                    });
                }
                (Standing::Indeterminate, Some(attempt)) => {
                    if matches!(record.state, State::InProgress(_)) {
                        let record = Record { state: State::Indeterminate(attempt.clone()), ..record.clone() };
                        ledger.put(found, &record);
                    }
                    return Ok(BeginReply::Indeterminate);
                }
                (Standing::Completed, _) => return Ok(BeginReply::Completed),
                // The same attempt_id, too, is a new attempt by now.
                _ => {}
            }
        }
        let created_wall_ms = found.present().map_or(self.wall_ms, |(record, _)| record.created_wall_ms);
        let attempt = Attempt {
            id: self.attempt.clone(),
            on_lease_expiry: self.on_lease_expiry,
            lease_ends_at: ledger.now.plus_us(self.lease_us),
            lease_ends_wall_ms: self.wall_ms.saturating_add(self.lease_us / 1_000),
        };
        let (token, lease) = (ledger.next_token()?, attempt.lease(ledger.now));
        let record = Record {
            token,
            fingerprint: self.fingerprint.clone(),
            created_wall_ms,
            ttl_us: self.ttl_us,
            state: State::InProgress(attempt),
        };
        ledger.put(found, &record);
        Ok(BeginReply::Started { token, lease })
    }
}
