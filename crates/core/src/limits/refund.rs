//! Refund: gives back, at most once and never above the capacity, what was admitted under a request_id.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundCommand {
    pub policy: String,
    pub key: String,
    pub cost: u64,
    pub request_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefundReply {
    /// `credited`: tokens that reached the bucket (less than asked at the capacity, 0 after a reset). Repeating the
    /// refund answers the same and credits nothing more.
    Refunded { credited: u64, limit: u64, remaining: u64 },
    PolicyNotFound { policy: String },
    /// Nothing is remembered under this request_id on this bucket (never admitted, or more than 60 s ago).
    Forgotten,
    /// More than was admitted, or another amount than in an earlier refund of this request_id.
    CostMismatch { admitted_cost: u64 },
}
