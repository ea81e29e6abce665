//! Policies: what a limit allows, checked once when it comes in.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A policy as stored: the specification and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub name: PolicyName,
    /// Of the system shard, increasing over all policies.
    pub revision: u64,
    /// The revision that created it; a policy deleted and made again starts with full buckets.
    pub created_revision: u64,
    pub spec: PolicySpec,
}

/// `[a-z0-9][a-z0-9_.-]{0,62}`
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyName(String);

/// A checked specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySpec {
    pub algorithm: Algorithm,
    pub rate: Rate,
    /// Capacity in tokens; for a sliding window equal to the rate's amount.
    pub burst: u64,
    pub on_unavailable: OnUnavailable,
    pub timeout_ms: u32,
    /// Keys, or prefixes ending in `*`, sorted.
    pub exempt: Vec<String>,
    pub overrides: BTreeMap<String, Override>,
    pub escrow: Escrow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    TokenBucket,
    SlidingWindow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnUnavailable {
    Local,
    Allow,
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Escrow {
    Auto,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Override {
    Deny,
    Limit { rate: Rate, burst: u64 },
}

/// `amount` per `every` units, as written: `5000/15min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub amount: u64,
    pub every: u32,
    pub unit: RateUnit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RateUnit {
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
}

/// What is wrong with a field and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    pub field: String,
    pub message: String,
}

impl Rate {
    /// The window in µs.
    pub const fn window_us(self) -> u64 {
        let unit_us = match self.unit {
            RateUnit::Millisecond => 1_000,
            RateUnit::Second => 1_000_000,
            RateUnit::Minute => 60_000_000,
            RateUnit::Hour => 3_600_000_000,
            RateUnit::Day => 86_400_000_000,
        };
        self.every as u64 * unit_us
    }
}
