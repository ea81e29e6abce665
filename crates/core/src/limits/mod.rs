//! Rate limits: policies, buckets and the commands on them, one file per command.
//!
//! A bucket is a policy and a key. All arithmetic is exact (integers in units of 1/window token), so that the law
//! "at most burst + rate·d in every interval d" holds to the token.

pub mod bounds;
mod check;
mod copy_policies;
mod draft;
mod exempt;
mod hold;
mod local;
mod policy;
mod refund;
mod reset;
mod settle;
mod terms;

pub use check::{CheckCommand, CheckItem, CheckReply, Decision, ItemResult, Mode, Refusal};
pub use copy_policies::{CopyPolicies, PolicyChange};
pub use draft::{OverrideDraft, PolicyDraft};
pub use exempt::Exemptions;
pub use hold::{HoldCommand, HoldId, HoldReply};
pub use local::LocalBucket;
pub use policy::{
    Algorithm, Escrow, FieldError, OnUnavailable, Override, ParseError, Policy, PolicyName, PolicySpec, Rate, RateUnit,
};
pub use refund::{RefundCommand, RefundReply};
pub use reset::{ResetCommand, ResetReply};
pub use settle::{SettleCommand, SettleReply};
pub use terms::{Allowance, Terms};

/// The revision up to which this data shard has every policy.
pub(crate) fn synced_revision(_rows: &dyn crate::rows::ReadRows) -> Result<u64, crate::rows::RowsError> {
    unimplemented!()
}
