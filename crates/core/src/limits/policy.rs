//! Policies: what a limit allows. A specification is parsed and checked once, when it comes in.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    Allowance, Exemptions, Terms,
    bounds::{POLICY_NAME_BYTES_MAX, QUOTED_CHARS_MAX, TOKENS_PER_US_MAX, WINDOW_US_MAX},
};

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
#[serde(try_from = "String")]
pub struct PolicyName(String);

/// A checked specification: see [`super::PolicyDraft::check`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySpec {
    pub algorithm: Algorithm,
    pub rate: Rate,
    /// Capacity in tokens; for a sliding window equal to the rate's amount.
    pub burst: u64,
    pub on_unavailable: OnUnavailable,
    pub timeout_ms: u32,
    pub exempt: Exemptions,
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

/// Why a text is not a policy name, or not a rate: a sentence for the person who wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

/// The beginning of what somebody wrote, as a message quotes it: the whole may be as long as its request.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(QUOTED_CHARS_MAX).collect::<String>())
}

impl PolicyName {
    pub fn parse(text: &str) -> Result<PolicyName, ParseError> {
        let body = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-');
        let head = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9');
        match text.as_bytes() {
            [first, rest @ ..]
                if head(*first) && rest.len() < POLICY_NAME_BYTES_MAX && rest.iter().copied().all(body) =>
            {
                Ok(PolicyName(text.to_owned()))
            }
            _ => Err(ParseError(format!(
                "must be 1 to {POLICY_NAME_BYTES_MAX} characters a-z, 0-9, '_', '.', '-', the first a letter or digit"
            ))),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PolicyName {
    type Error = ParseError;

    fn try_from(text: String) -> Result<PolicyName, ParseError> {
        PolicyName::parse(&text)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PolicySpec {
    /// What holds for a key. Exemption goes before an override.
    pub fn resolve(&self, key: &str) -> Allowance {
        if self.exempt.contains(key) {
            return Allowance::Exempt;
        }
        match self.overrides.get(key) {
            Some(Override::Deny) => Allowance::Deny,
            Some(&Override::Limit { rate, burst }) => Allowance::Limit(Terms::new(self.algorithm, rate, burst)),
            None => Allowance::Limit(self.terms()),
        }
    }

    /// What holds for a key that no list names.
    pub fn terms(&self) -> Terms {
        Terms::new(self.algorithm, self.rate, self.burst)
    }
}

impl RateUnit {
    const ALL: [RateUnit; 5] =
        [RateUnit::Millisecond, RateUnit::Second, RateUnit::Minute, RateUnit::Hour, RateUnit::Day];

    const fn us(self) -> u64 {
        match self {
            RateUnit::Millisecond => 1_000,
            RateUnit::Second => 1_000_000,
            RateUnit::Minute => 60_000_000,
            RateUnit::Hour => 3_600_000_000,
            RateUnit::Day => 86_400_000_000,
        }
    }

    const fn symbol(self) -> &'static str {
        match self {
            RateUnit::Millisecond => "ms",
            RateUnit::Second => "s",
            RateUnit::Minute => "min",
            RateUnit::Hour => "h",
            RateUnit::Day => "d",
        }
    }
}

impl Rate {
    /// The window in µs.
    pub const fn window_us(self) -> u64 {
        (self.every as u64).saturating_mul(self.unit.us())
    }
}

impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Rate, ParseError> {
        let malformed = || {
            ParseError(format!(
                "{} is not a rate: write N/unit or N/Kunit with whole numbers and a unit of ms, s, min, h, d, such as 2/s or 5000/15min",
                quoted(text)
            ))
        };
        let (amount, window) = text.split_once('/').ok_or_else(malformed)?;
        let unit_at = window.find(|c: char| !c.is_ascii_digit()).ok_or_else(malformed)?;
        let (every, symbol) = window.split_at(unit_at);
        let unit = RateUnit::ALL.into_iter().find(|unit| unit.symbol() == symbol).ok_or_else(malformed)?;
        if amount.is_empty() || !amount.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(malformed());
        }
        let out_of_bounds = || {
            let text = quoted(text);
            ParseError(format!("{text} is out of bounds: a rate is 1/365d to 1000000000/s, its window at most 365d"))
        };
        let amount: u64 = amount.parse().map_err(|_| out_of_bounds())?;
        let every: u32 = if every.is_empty() { 1 } else { every.parse().map_err(|_| out_of_bounds())? };
        let rate = Rate { amount, every, unit };
        // The least of one token in the longest window is the slowest rate there is.
        let window_us = rate.window_us();
        let in_bounds =
            amount > 0 && window_us > 0 && window_us <= WINDOW_US_MAX && amount <= TOKENS_PER_US_MAX * window_us;
        if in_bounds { Ok(rate) } else { Err(out_of_bounds()) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.every {
            1 => write!(f, "{}/{}", self.amount, self.unit.symbol()),
            every => write!(f, "{}/{}{}", self.amount, every, self.unit.symbol()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_unit_has_its_fixed_length() {
        let us = |text: &str| text.parse::<Rate>().expect(text).window_us();
        assert_eq!(us("1/ms"), 1_000);
        assert_eq!(us("1/s"), 1_000_000);
        assert_eq!(us("1/min"), 60_000_000);
        assert_eq!(us("1/h"), 3_600_000_000);
        assert_eq!(us("1/d"), 86_400_000_000);
        assert_eq!(us("5000/15min"), 900_000_000);
        assert_eq!(us("1/365d"), 31_536_000_000_000);
    }

    #[test]
    fn rates_out_of_bounds_or_malformed_are_refused() {
        for text in ["1000000000/s", "1000000/ms", "31536000000000000/365d", "1/365d", "2/s", "01/s"] {
            assert!(text.parse::<Rate>().is_ok(), "{text}");
        }
        for text in [
            "",
            "/",
            "1",
            "1/",
            "/s",
            "1/month",
            "1/m",
            "1/S",
            "0/s",
            "1/0s",
            "-1/s",
            "+1/s",
            "1.5/s",
            "1/ s",
            " 1/s",
            "1/s ",
            "1/1",
            "1//s",
            "1000000001/s",
            "1000001/ms",
            "1/366d",
            "1/8761h",
            "99999999999999999999/s",
            "1/99999999999s",
            "1/4294967295d",
            "١/s",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn policy_names_are_what_the_contract_says() {
        let long = "a".repeat(POLICY_NAME_BYTES_MAX);
        for name in ["a", "0", "api", "a_b.c-d", long.as_str()] {
            assert_eq!(PolicyName::parse(name).expect(name).as_str(), name);
        }
        for name in ["", "_a", ".a", "-a", "A", "a b", "a/b", "ä", "a\0", "aaa\n", &format!("{long}a")] {
            assert!(PolicyName::parse(name).is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn a_rate_reads_as_it_is_written(amount in 1_u64..=1_000_000, every in 1_u32..=365, unit in 0_usize..5) {
            let rate = Rate { amount, every, unit: RateUnit::ALL[unit] };
            prop_assume!(amount <= TOKENS_PER_US_MAX * rate.window_us());
            prop_assert_eq!(rate.to_string().parse::<Rate>(), Ok(rate));
        }

        #[test]
        fn any_text_is_a_rate_or_an_error(text in "\\PC*") {
            let _ = text.parse::<Rate>();
            let _ = PolicyName::parse(&text);
        }
    }
}
