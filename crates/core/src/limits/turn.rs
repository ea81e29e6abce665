//! Turn: one command's access to the rows of the limits, at the clock of its entry. Typed rows in, typed rows out; the
//! rule that a row which expires is filed once in the expiry table is kept here.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Allowance, Bucket, HoldId, ItemResult,
    bounds::{ADMITTED_ID_US, FROZEN_BUCKET_RECHECK_US, FULL_BUCKET_SLACK_US, POLICY_NAME_BYTES_MAX},
    chain::PolicyChain,
    hold::HoldRow,
};
use crate::{
    codec::{self, keys},
    rows::{Rows, RowsError, Table, read},
    time::ShardTime,
};

/// Decoded policies by name: a copy of the [`keys::Kind::PolicyChain`] rows that were needed so far.
#[derive(Debug, Default)]
pub(crate) struct Chains(BTreeMap<String, Arc<PolicyChain>>);

pub(crate) struct Turn<'a> {
    pub(super) rows: &'a mut dyn Rows,
    pub(super) chains: &'a mut Chains,
    pub(super) now: ShardTime,
}

/// A request_id admitted on a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AdmittedId {
    pub(super) created_revision: u64,
    pub(super) epoch: u64,
    pub(super) admitted_at: ShardTime,
    pub(super) cost: u64,
    pub(super) result: ItemResult,
    pub(super) refund: Option<Refunded>,
}

/// What a refund answered, so that it is answered alike when repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refunded {
    pub(super) cost: u64,
    pub(super) credited: u64,
    pub(super) limit: u64,
    pub(super) remaining: u64,
}

impl AdmittedId {
    /// Whether it is still to be answered alike, expired rows that are not yet removed included.
    pub(super) fn is_remembered(&self, chain: &PolicyChain, now: ShardTime) -> bool {
        self.created_revision == chain.created_revision && now.since_us(self.admitted_at) < ADMITTED_ID_US
    }

    pub(super) fn due(&self) -> ShardTime {
        self.admitted_at.plus_us(ADMITTED_ID_US)
    }
}

/// A row as it was found: its key, and whether it is there, which is to say filed in the expiry table.
#[derive(Debug, Clone)]
pub(super) struct Found<T> {
    pub(super) row: Bytes,
    pub(super) exists: bool,
    pub(super) value: T,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(rows: &'a mut dyn Rows, chains: &'a mut Chains, now: ShardTime) -> Turn<'a> {
        Turn { rows, chains, now }
    }

    pub(super) fn chain(&mut self, policy: &str) -> Result<Option<Arc<PolicyChain>>, RowsError> {
        if let Some(chain) = self.chains.0.get(policy) {
            return Ok(Some(Arc::clone(chain)));
        }
        if policy.len() > POLICY_NAME_BYTES_MAX {
            return Ok(None);
        }
        let Some(chain) = read::<PolicyChain>(self.rows, &keys::policy_chain(policy))? else { return Ok(None) };
        let chain = Arc::new(chain);
        self.chains.0.insert(policy.to_owned(), Arc::clone(&chain));
        Ok(Some(chain))
    }

    pub(super) fn put_chain(&mut self, policy: &str, chain: PolicyChain) {
        self.rows.put(Table::State, keys::policy_chain(policy), codec::encode(&chain));
        self.chains.0.insert(policy.to_owned(), Arc::new(chain));
    }

    pub(super) fn delete_chain(&mut self, policy: &str) {
        self.rows.delete(Table::State, keys::policy_chain(policy));
        self.chains.0.remove(policy);
    }

    /// The bucket as it stands now.
    pub(super) fn bucket(&self, chain: &PolicyChain, policy: &str, key: &str) -> Result<Found<Bucket>, RowsError> {
        let row = keys::bucket(policy, key);
        let stored: Option<Bucket> = read(self.rows, &row)?;
        let exists = stored.is_some();
        let mut value = stored
            .filter(|bucket| bucket.created_revision == chain.created_revision)
            .unwrap_or_else(|| Bucket::full(chain, self.now));
        value.advance(chain, key, self.now);
        Ok(Found { row, exists, value })
    }

    pub(super) fn put_bucket(&mut self, found: Found<Bucket>, allowance: Allowance) {
        let due = if found.exists { self.now } else { self.bucket_due(&found.value, allowance) };
        self.put_expiring(found, due);
    }

    /// When a bucket's row is to be looked at for removal.
    pub(super) fn bucket_due(&self, bucket: &Bucket, allowance: Allowance) -> ShardTime {
        match allowance {
            Allowance::Limit(terms) => self.now.plus_us(bucket.full_after_us(&terms)).plus_us(FULL_BUCKET_SLACK_US),
            _ if bucket.is_full(allowance) => self.now.plus_us(FULL_BUCKET_SLACK_US),
            _ => self.now.plus_us(FROZEN_BUCKET_RECHECK_US),
        }
    }

    pub(super) fn admitted_id(
        &self,
        policy: &str,
        key: &str,
        id: &str,
    ) -> Result<Found<Option<AdmittedId>>, RowsError> {
        self.found(keys::admitted_id(policy, key, id))
    }

    /// Remembers a request_id as admitted now.
    pub(super) fn remember(
        &mut self,
        found: Found<Option<AdmittedId>>,
        chain: &PolicyChain,
        epoch: u64,
        cost: u64,
        result: ItemResult,
    ) {
        let value = AdmittedId {
            created_revision: chain.created_revision,
            epoch,
            admitted_at: self.now,
            cost,
            result,
            refund: None,
        };
        let due = value.due();
        self.put_expiring(Found { row: found.row, exists: found.exists, value }, due);
    }

    pub(super) fn hold(&self, id: HoldId) -> Result<Found<Option<HoldRow>>, RowsError> {
        self.found(keys::hold(id))
    }

    fn found<T: DeserializeOwned>(&self, row: Bytes) -> Result<Found<Option<T>>, RowsError> {
        let value: Option<T> = read(self.rows, &row)?;
        Ok(Found { row, exists: value.is_some(), value })
    }

    /// Writes a row; one that is new is filed as due at `due`. A row written again stays filed where it is: when that
    /// comes up, `Expire` looks at the row and files it anew.
    pub(super) fn put_expiring<T: Serialize>(&mut self, found: Found<T>, due: ShardTime) {
        if !found.exists {
            self.rows.put(Table::Expiry, keys::due(due, &found.row), Bytes::new());
        }
        self.rows.put(Table::State, found.row, codec::encode(&found.value));
    }
}
