//! The reference: idempotency keys as the contract tells them. Time passes at once for every record, nothing waits to
//! be looked at, and it shares no code with the crate but the types of commands and replies.

use std::collections::BTreeMap;

use onceward_core::idempotency::*;

/// An account and a key.
pub type Name = (String, String);

#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub token: u64,
    fingerprint: String,
    created_wall_ms: u64,
    ttl_us: u64,
    attempt: AttemptId,
    hold: bool,
    pub stage: Stage,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    Working {
        lease_end: u64,
        lease_end_wall_ms: u64,
    },
    /// Of a key to hold, whose lease ended; `noted`: and that surely was committed.
    Indeterminate {
        lease_end_wall_ms: u64,
        noted: bool,
    },
    Done {
        end: u64,
        wall_ms: u64,
        response: Response,
    },
}

#[derive(Debug, Default)]
pub struct Reference {
    pub now: u64,
    pub tokens: u64,
    pub records: BTreeMap<Name, Record>,
}

fn name(account: &Account, key: &Key) -> Name {
    (account.as_str().to_owned(), key.as_str().to_owned())
}

/// Equal but for the order of the headers' names, which is no part of the content.
fn is_same_content(one: &Response, other: &Response) -> bool {
    let sorted = |response: &Response| {
        let mut headers = response.headers.clone();
        headers.sort_by(|a, b| a.0.cmp(&b.0));
        headers
    };
    one.status == other.status && one.body == other.body && sorted(one) == sorted(other)
}

impl Record {
    /// The instants at which something about it changes by itself.
    pub fn edges(&self) -> Vec<u64> {
        match self.stage {
            Stage::Working { lease_end, .. } if self.hold => vec![lease_end],
            Stage::Working { lease_end, .. } => vec![lease_end, lease_end + self.ttl_us],
            Stage::Indeterminate { .. } => vec![],
            Stage::Done { end, .. } => vec![end],
        }
    }

    pub fn is_live(&self, now: u64) -> bool {
        matches!(self.stage, Stage::Working { lease_end, .. } if now < lease_end)
    }

    pub fn state(&self) -> RecordState {
        match self.stage {
            Stage::Working { .. } => RecordState::InProgress,
            Stage::Indeterminate { .. } => RecordState::Indeterminate,
            Stage::Done { .. } => RecordState::Completed,
        }
    }

    pub fn view(&self) -> RecordView {
        let mut view = RecordView {
            state: self.state(),
            created_wall_ms: self.created_wall_ms,
            lease_expires_wall_ms: None,
            completed_wall_ms: None,
            expires_wall_ms: None,
            response: None,
        };
        match &self.stage {
            Stage::Working { lease_end_wall_ms, .. } | Stage::Indeterminate { lease_end_wall_ms, .. } => {
                view.lease_expires_wall_ms = Some(*lease_end_wall_ms);
            }
            Stage::Done { wall_ms, response, .. } => {
                view.completed_wall_ms = Some(*wall_ms);
                view.expires_wall_ms = Some(wall_ms + self.ttl_us / 1_000);
                view.response = Some(response.clone());
            }
        }
        view
    }

    pub fn replay(&self, fingerprint: &str) -> Option<Replay> {
        match &self.stage {
            Stage::Done { wall_ms, response, .. } if self.fingerprint == fingerprint => {
                Some(Replay { response: response.clone(), completed_wall_ms: *wall_ms })
            }
            _ => None,
        }
    }
}

impl Reference {
    /// The clock comes to `stamp`, unless it is there already.
    pub fn pass(&mut self, stamp: u64) {
        self.now = self.now.max(stamp);
        let now = self.now;
        self.records.retain(|_, record| match record.stage {
            Stage::Working { lease_end, .. } if !record.hold => now < lease_end + record.ttl_us,
            Stage::Done { end, .. } => now < end,
            _ => true,
        });
        for record in self.records.values_mut() {
            if let Stage::Working { lease_end, lease_end_wall_ms } = record.stage
                && record.hold
                && lease_end <= now
            {
                record.stage = Stage::Indeterminate { lease_end_wall_ms, noted: false };
            }
        }
    }

    /// Everything that was due was looked at.
    pub fn note_indeterminate(&mut self) {
        for record in self.records.values_mut() {
            if let Stage::Indeterminate { noted, .. } = &mut record.stage {
                *noted = true;
            }
        }
    }

    pub fn begin(&mut self, begin: &BeginCommand) -> BeginReply {
        let now = self.now;
        let name = name(&begin.account, &begin.key);
        let mut created_wall_ms = begin.wall_ms;
        if let Some(record) = self.records.get_mut(&name) {
            if record.fingerprint != begin.fingerprint {
                return BeginReply::FingerprintMismatch;
            }
            created_wall_ms = record.created_wall_ms;
            match &mut record.stage {
                Stage::Done { .. } => return BeginReply::Completed,
                Stage::Indeterminate { noted, .. } => {
                    *noted = true;
                    return BeginReply::Indeterminate;
                }
                Stage::Working { lease_end, lease_end_wall_ms } if now < *lease_end => {
                    let (token, remaining_us) = (record.token, *lease_end - now);
                    return if record.attempt == begin.attempt {
                        let lease = Lease { expires_wall_ms: *lease_end_wall_ms, remaining_us };
                        BeginReply::Started { token, lease }
                    } else {
                        BeginReply::InProgress { token, lease_remaining_us: remaining_us }
                    };
                }
                Stage::Working { .. } => {}
            }
        }
        self.tokens += 1;
        let lease_end_wall_ms = begin.wall_ms + begin.lease_us / 1_000;
        let record = Record {
            token: self.tokens,
            fingerprint: begin.fingerprint.clone(),
            created_wall_ms,
            ttl_us: begin.ttl_us,
            attempt: begin.attempt.clone(),
            hold: begin.on_lease_expiry == OnLeaseExpiry::Hold,
            stage: Stage::Working { lease_end: now + begin.lease_us, lease_end_wall_ms },
        };
        self.records.insert(name, record);
        let lease = Lease { expires_wall_ms: lease_end_wall_ms, remaining_us: begin.lease_us };
        BeginReply::Started { token: self.tokens, lease }
    }

    /// The record, for whoever holds its newest token.
    fn owned(&mut self, account: &Account, key: &Key, token: u64) -> Option<&mut Record> {
        self.records.get_mut(&name(account, key)).filter(|record| record.token == token)
    }

    pub fn complete(&mut self, complete: &CompleteCommand) -> CompleteReply {
        let now = self.now;
        let Some(record) = self.owned(&complete.account, &complete.key, complete.token) else {
            return CompleteReply::Fenced;
        };
        if let Stage::Done { response, .. } = &record.stage {
            if !is_same_content(response, &complete.response) {
                return CompleteReply::AlreadyCompleted;
            }
        } else {
            let (end, wall_ms) = (now + record.ttl_us, complete.wall_ms);
            record.stage = Stage::Done { end, wall_ms, response: complete.response.clone() };
        }
        let Stage::Done { wall_ms, .. } = record.stage else { unreachable!("it is now") };
        CompleteReply::Completed {
            completed_wall_ms: wall_ms,
            expires_wall_ms: wall_ms + record.ttl_us / 1_000,
            messages: Vec::new(),
        }
    }

    pub fn abandon(&mut self, abandon: &AbandonCommand) -> AbandonReply {
        match self.owned(&abandon.account, &abandon.key, abandon.token) {
            None => AbandonReply::Fenced,
            Some(Record { stage: Stage::Done { .. }, .. }) => AbandonReply::AlreadyCompleted,
            Some(_) => {
                self.records.remove(&name(&abandon.account, &abandon.key));
                AbandonReply::Abandoned
            }
        }
    }

    pub fn extend(&mut self, extend: &ExtendCommand) -> ExtendReply {
        let now = self.now;
        let Some(record) = self.owned(&extend.account, &extend.key, extend.token) else { return ExtendReply::Fenced };
        if matches!(record.stage, Stage::Done { .. }) {
            return ExtendReply::AlreadyCompleted;
        }
        let lease_end_wall_ms = extend.wall_ms + extend.lease_us / 1_000;
        record.stage = Stage::Working { lease_end: now + extend.lease_us, lease_end_wall_ms };
        ExtendReply::Extended(Lease { expires_wall_ms: lease_end_wall_ms, remaining_us: extend.lease_us })
    }

    pub fn delete(&mut self, delete: &DeleteRecordCommand) -> DeleteRecordReply {
        match self.records.remove(&name(&delete.account, &delete.key)) {
            Some(_) => DeleteRecordReply::Deleted,
            None => DeleteRecordReply::NotFound,
        }
    }
}
