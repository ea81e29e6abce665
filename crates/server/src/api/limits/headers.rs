//! The rate-limit headers of a check: the three customary ones, of the policy nearest to its limit, and the structured
//! fields of <https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/10/>, one item per policy.

use std::{
    fmt::Write,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use onceward_core::limits::{CheckItem, ItemResult};

use crate::settings::ResetFormat;

/// The greatest integer of a structured field (RFC 9651, section 3.3.1).
const STRUCTURED_INTEGER_MAX: u64 = 999_999_999_999_999;

/// What the headers are, for the API's description.
pub const NUMBERS: [(&str, &str); 3] = [
    ("RateLimit-Limit", "the capacity, of the policy with the smallest remaining/limit"),
    ("RateLimit-Remaining", "whole tokens left, of the same policy"),
    (
        "RateLimit-Reset",
        "Unix seconds at which its bucket is full again (http.reset_format = \"delta\": seconds from now)",
    ),
];
pub const STRUCTURED: [(&str, &str); 2] = [
    ("RateLimit-Policy", "per policy its quota q and window w in seconds: \"api\";q=20;w=10"),
    ("RateLimit", "per policy what remains, r, and the seconds t until it is full: \"api\";r=19;t=1"),
];

const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Adds the headers. `results` stand in the order of `items`.
pub fn write(headers: &mut HeaderMap, items: &[CheckItem], results: &[ItemResult], format: ResetFormat) {
    let per_policy = nearest_per_policy(items, results);
    let Some((_, nearest)) = per_policy.iter().copied().reduce(|a, b| if is_nearer(b.1, a.1) { b } else { a }) else {
        return;
    };
    headers.insert(LIMIT, HeaderValue::from(nearest.limit));
    headers.insert(REMAINING, HeaderValue::from(nearest.remaining));
    headers.insert(RESET, HeaderValue::from(reset(nearest.reset_after_us, format)));
    let mut policies = String::with_capacity(48 * per_policy.len());
    let mut limits = String::with_capacity(48 * per_policy.len());
    for (at, (name, result)) in per_policy.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        // A policy's name has no character that would need an escape in a structured string.
        let (quota, window_s) = (integer(result.limit), integer_seconds(result.window_us));
        let (remaining, reset_s) = (integer(result.remaining), integer_seconds(result.reset_after_us));
        write!(policies, "{comma}\"{name}\";q={quota};w={window_s}").expect("a string takes all that is written");
        write!(limits, "{comma}\"{name}\";r={remaining};t={reset_s}").expect("a string takes all that is written");
    }
    headers.insert(POLICY, header_value(policies));
    headers.insert(RATE_LIMIT, header_value(limits));
}

/// One result per policy, in the order of the items: of several keys under one policy, that nearest to its limit.
fn nearest_per_policy<'a>(items: &'a [CheckItem], results: &'a [ItemResult]) -> Vec<(&'a str, &'a ItemResult)> {
    let mut nearest: Vec<(&str, &ItemResult)> = Vec::with_capacity(items.len());
    for (item, result) in items.iter().zip(results) {
        match nearest.iter_mut().find(|(name, _)| *name == item.policy) {
            Some((_, known)) if is_nearer(result, known) => *known = result,
            Some(_) => {}
            None => nearest.push((&item.policy, result)),
        }
    }
    nearest
}

/// Whether `a` has less left of its limit than `b`, as a fraction, or as much and is full again later; nothing is
/// nearer than a limit of 0 (a `deny` override).
fn is_nearer(a: &ItemResult, b: &ItemResult) -> bool {
    if a.limit == 0 || b.limit == 0 {
        return a.limit < b.limit;
    }
    let a_left = u128::from(a.remaining) * u128::from(b.limit);
    let b_left = u128::from(b.remaining) * u128::from(a.limit);
    a_left < b_left || (a_left == b_left && a.reset_after_us > b.reset_after_us)
}

fn reset(reset_after_us: u64, format: ResetFormat) -> u64 {
    match format {
        ResetFormat::Delta => seconds(reset_after_us),
        ResetFormat::Unix => {
            let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
            seconds(now_us.saturating_add(reset_after_us))
        }
    }
}

fn seconds(us: u64) -> u64 {
    us.div_ceil(1_000_000)
}

fn integer(number: u64) -> u64 {
    number.min(STRUCTURED_INTEGER_MAX)
}

/// Times that microseconds cannot tell come as `u64::MAX`, and are cut like any number that is too large.
fn integer_seconds(us: u64) -> u64 {
    if us == u64::MAX { STRUCTURED_INTEGER_MAX } else { integer(seconds(us)) }
}

fn header_value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("policy names, digits and punctuation are visible ASCII")
}
