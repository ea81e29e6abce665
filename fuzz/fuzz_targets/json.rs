//! The bodies of the HTTP API: whatever is accepted is within its documented bounds, whatever is refused is refused in
//! few words. Each input goes to every parser, as it is.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onceward_core::{
    codec,
    idempotency::{
        Account, Key, Response,
        bounds::{
            ATTEMPT_ID_BYTES_MAX, BODY_BYTES_MAX, FINGERPRINT_BYTES_MAX, LEASE_MS_MAX, LEASE_MS_MIN, TOKEN_MAX,
            TTL_MS_MAX, TTL_MS_MIN, WAIT_MS_MAX,
        },
    },
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
        call::Caller,
        idempotency::{abandon, begin, complete, extend},
        limits::{check, refund, reset},
        policies,
        problem::Problem,
    },
    bounds::FIELD_ERRORS_MAX,
};

/// As long as by default.
const RETENTION_US: u64 = 90 * 86_400_000_000;

/// A field's path and a sentence on it, the caller's own words cut short.
const FIELD_ERROR_BYTES_MAX: usize = 2_048;

fuzz_target!(|body: &[u8]| {
    assert_bounded(memory_bytes_max(body), || {
        check(body);
        refund(body);
        policy(body);
        begin(body);
        complete(body);
        abandon(body);
        extend(body);
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

fn begin(body: &[u8]) {
    let deadline = tokio::time::Instant::now();
    let Some(begin) = accepted(begin::parse(body, &Caller::default(), deadline)) else { return };
    assert_record(&begin.account, &begin.key);
    assert!((1..=FINGERPRINT_BYTES_MAX).contains(&begin.fingerprint.len()));
    assert!((TTL_MS_MIN..=TTL_MS_MAX).contains(&begin.ttl_ms));
    assert!((LEASE_MS_MIN..=LEASE_MS_MAX).contains(&begin.lease_ms));
    assert!(begin.wait_ms <= WAIT_MS_MAX);
    if let Some(id) = &begin.attempt_id {
        assert!((1..=ATTEMPT_ID_BYTES_MAX).contains(&id.len()));
    }
}

fn complete(body: &[u8]) {
    let Some(complete) = accepted(complete::parse(body, &Caller::default(), RETENTION_US)) else { return };
    assert_record(&complete.account, &complete.key);
    assert!((1..=TOKEN_MAX).contains(&complete.token));
    let Response { status, headers, body } = &complete.response;
    assert!(Response::check_status(u64::from(*status)).is_ok() && Response::check_headers(headers).is_ok());
    assert!(body.bytes().len() <= BODY_BYTES_MAX);
    let encoded = codec::encode(&complete.response);
    assert_eq!(codec::decode::<Response>(&encoded).as_ref(), Ok(&complete.response));
}

fn abandon(body: &[u8]) {
    let Some(abandon) = accepted(abandon::parse(body, &Caller::default())) else { return };
    assert_record(&abandon.account, &abandon.key);
    assert!((1..=TOKEN_MAX).contains(&abandon.token));
}

fn extend(body: &[u8]) {
    let Some(extend) = accepted(extend::parse(body, &Caller::default())) else { return };
    assert_record(&extend.account, &extend.key);
    assert!((LEASE_MS_MIN..=LEASE_MS_MAX).contains(&(extend.lease_us / 1_000)));
}

fn assert_record(account: &Account, key: &Key) {
    assert_eq!(Account::parse(account.as_str()).as_ref(), Ok(account));
    // What is shown of a key names it again.
    assert_eq!(Key::parse(&key.to_string()).as_ref(), Ok(key));
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
    // 413: a key or a response that is well-formed and too long.
    assert!(matches!(problem.status.as_u16(), 400 | 413));
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
