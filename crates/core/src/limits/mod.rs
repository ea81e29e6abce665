//! Rate limits: policies, buckets and the commands on them, one file per command.
//!
//! A bucket is a policy and a key. All arithmetic is exact (integers in units of 1/window token), so that the law
//! "at most burst + rate·d in every interval d" holds to the token.

pub mod bounds;
mod bucket;
mod chain;
mod check;
mod copy_policies;
mod decide;
mod draft;
mod exempt;
mod expire;
mod fill;
mod hold;
mod local;
mod policy;
mod refund;
mod reset;
mod settle;
mod terms;
mod turn;

pub use bucket::{Bucket, Grant};
pub use chain::PolicyChain;
pub use check::{CheckCommand, CheckItem, CheckReply, Decision, ItemResult, Mode, Refusal};
pub(crate) use copy_policies::synced_revision;
pub use copy_policies::{CopyPolicies, PolicyChange};
pub use draft::{OverrideDraft, PolicyDraft};
pub use exempt::Exemptions;
pub use fill::Fill;
pub use hold::{HoldCommand, HoldId, HoldReply};
pub use local::LocalBucket;
pub use policy::{
    Algorithm, Escrow, FieldError, OnUnavailable, Override, ParseError, Policy, PolicyName, PolicySpec, Rate, RateUnit,
};
pub use refund::{RefundCommand, RefundReply};
pub use reset::{ResetCommand, ResetReply};
pub use settle::{SettleCommand, SettleReply};
pub use terms::{Allowance, Terms};
pub(crate) use turn::{Chains, Turn};
