//! The bodies of the HTTP API: whatever is accepted is within its documented bounds, whatever is refused is refused in
//! few words. Each input goes to every parser, as it is.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onceward_core::{
    codec,
    limits::{
        Algorithm, Allowance, CheckItem, Mode, Override, PolicyName, PolicySpec, Rate, Terms,
        bounds::{
            BURST_MAX, CHECKS_MAX, EXEMPT_MAX, KEY_BYTES_MAX, OVERRIDES_MAX, REQUEST_ID_BYTES_MAX, SPEC_BYTES_MAX,
            TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, TOKENS_PER_US_MAX, WINDOW_US_MAX,
        },
    },
};
use onceward_fuzz::{assert_bounded, memory_bytes_max};
use onceward_server::{
    api::{
        limits::{check, refund, reset},
        policies,
        problem::Problem,
    },
    bounds::FIELD_ERRORS_MAX,
};

/// A field's path and a sentence on it, the caller's own words cut short.
const FIELD_ERROR_BYTES_MAX: usize = 2_048;

fuzz_target!(|body: &[u8]| {
    assert_bounded(memory_bytes_max(body), || {
        check(body);
        refund(body);
        policy(body);
        if let Ok(text) = str::from_utf8(body) {
            reset(text);
            rate(text);
            name(text);
        }
    });
});

fn check(body: &[u8]) {
    let Some(check) = accepted(check::parse(body)) else { return };
    assert!((1..=CHECKS_MAX).contains(&check.items.len()));
    for CheckItem { policy, key, cost } in &check.items {
        assert_bucket(policy, key);
        let least = if check.mode == Mode::Peek { 0 } else { 1 };
        assert!((least..=BURST_MAX).contains(cost));
    }
    if let Some(id) = &check.request_id {
        assert!((1..=REQUEST_ID_BYTES_MAX).contains(&id.len()));
    }
}

fn refund(body: &[u8]) {
    let Some(refund) = accepted(refund::parse(body)) else { return };
    assert_bucket(&refund.policy, &refund.key);
    assert!((1..=BURST_MAX).contains(&refund.cost));
    assert!((1..=REQUEST_ID_BYTES_MAX).contains(&refund.request_id.len()));
}

/// A path `policy/key`, decoded.
fn reset(path: &str) {
    let (policy, key) = path.split_once('/').unwrap_or((path, ""));
    let Some(reset) = accepted(reset::command(policy.to_owned(), key.to_owned())) else { return };
    assert_bucket(&reset.policy, &reset.key);
}

fn policy(body: &[u8]) {
    let Some(spec) = accepted(policies::parse(body)) else { return };
    assert!((TIMEOUT_MS_MIN..=TIMEOUT_MS_MAX).contains(&spec.timeout_ms));
    assert_limit(spec.algorithm, spec.rate, spec.burst);
    assert!(spec.exempt.patterns().len() <= EXEMPT_MAX);
    for pattern in spec.exempt.patterns() {
        assert_key(pattern);
        assert_eq!(spec.resolve(pattern), Allowance::Exempt);
    }
    assert!(spec.overrides.len() <= OVERRIDES_MAX);
    for (key, given) in &spec.overrides {
        assert_key(key);
        if let Override::Limit { rate, burst } = *given {
            assert_limit(spec.algorithm, rate, burst);
        }
    }
    let encoded = codec::encode(&spec);
    assert!(encoded.len() <= SPEC_BYTES_MAX);
    assert_eq!(codec::decode::<PolicySpec>(&encoded), Ok(spec));
}

fn rate(text: &str) {
    if let Ok(rate) = text.parse() {
        assert_rate(rate);
    }
}

fn name(text: &str) {
    if let Ok(name) = PolicyName::parse(text) {
        assert_eq!(name.as_str(), text);
        assert!(text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte)));
    }
}

fn accepted<T>(parsed: Result<T, Problem>) -> Option<T> {
    let problem = match parsed {
        Ok(value) => return Some(value),
        Err(problem) => problem,
    };
    assert_eq!(problem.status.as_u16(), 400);
    assert!(problem.errors.len() <= FIELD_ERRORS_MAX);
    for error in &problem.errors {
        assert!(error.field.len() + error.message.len() <= FIELD_ERROR_BYTES_MAX, "{error:?}");
    }
    assert!(problem.detail.len() <= (FIELD_ERRORS_MAX + 1) * FIELD_ERROR_BYTES_MAX);
    None
}

fn assert_bucket(policy: &str, key: &str) {
    assert!(PolicyName::parse(policy).is_ok());
    assert_key(key);
}

fn assert_key(key: &str) {
    assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
}

fn assert_limit(algorithm: Algorithm, rate: Rate, burst: u64) {
    assert_rate(rate);
    assert!((1..=BURST_MAX).contains(&burst));
    assert!(algorithm == Algorithm::TokenBucket || burst == rate.amount);
    // Terms cut what is out of bounds; of a checked specification nothing is cut.
    let terms = Terms::new(algorithm, rate, burst);
    assert_eq!((terms.amount(), terms.window_us(), terms.burst()), (rate.amount, rate.window_us(), burst));
}

fn assert_rate(rate: Rate) {
    assert!((1..=WINDOW_US_MAX).contains(&rate.window_us()));
    assert!((1..=TOKENS_PER_US_MAX * rate.window_us()).contains(&rate.amount));
    assert_eq!(rate.to_string().parse(), Ok(rate));
}
