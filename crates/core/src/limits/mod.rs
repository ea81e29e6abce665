//! Rate limits: policies, buckets and the commands on them, one file per command.
//!
//! A bucket is a policy and a key. All arithmetic is exact (integers in units of 1/window token), so that the law
//! "at most burst + rate·d in every interval d" holds to the token.

mod bucket;
mod check;
mod copy_policies;
mod expire;
mod hold;
mod policy;
mod refund;
mod reset;
mod settle;

pub use bucket::{Bucket, Fill, Grant};
pub use check::{CheckCommand, CheckItem, CheckReply, Decision, ItemResult, Mode, Refusal};
pub use copy_policies::{CopyPolicies, PolicyChange};
pub use hold::{HoldCommand, HoldId, HoldReply};
pub use policy::{
    Algorithm, Escrow, FieldError, OnUnavailable, Override, Policy, PolicyName, PolicySpec, Rate, RateUnit,
};
pub use refund::{RefundCommand, RefundReply};
pub use reset::{ResetCommand, ResetReply};
pub use settle::{SettleCommand, SettleReply};
