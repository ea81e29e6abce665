//! The bodies of the HTTP API: whatever is accepted is within its documented bounds, whatever is refused is refused in
//! few words. Each input goes to every parser, as it is.

#![no_main]

use std::{collections::BTreeMap, fmt::Debug};

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
    webhooks::{
        Name, NewMessage,
        bounds::{
            COMPLETION_MESSAGES_MAX, COMPLETION_PAYLOAD_BYTES_MAX, DESCRIPTION_BYTES_MAX, ENDPOINT_CHANNELS_MAX,
            FILTER_MAX, GRACE_SECONDS_MAX, HEADER_BYTES_MAX, HEADERS_MAX, MESSAGE_CHANNELS_MAX, METADATA_BYTES_MAX,
            METADATA_MAX, PAYLOAD_BYTES_MAX, SCHEMAS_BYTES_MAX, TAGS_MAX, TITLE_BYTES_MAX, URL_BYTES_MAX,
        },
        check_channel, check_tag,
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
        webhooks::{app, endpoint, event_type, headers, message, secret},
    },
    bounds::FIELD_ERRORS_MAX,
};
use serde::{Serialize, de::DeserializeOwned};

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
        application(body);
        endpoint(body);
        endpoint_headers(body);
        publish(body);
        event_type(body);
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
    let messages = &complete.publishing.messages;
    assert!(messages.len() <= COMPLETION_MESSAGES_MAX);
    assert!(messages.iter().map(|message| message.payload.len()).sum::<usize>() <= COMPLETION_PAYLOAD_BYTES_MAX);
    messages.iter().for_each(assert_message);
}

fn application(body: &[u8]) {
    if let Some((uid, spec)) = accepted(app::parse(body)) {
        assert_uid(uid.as_ref());
        assert!((1..=TITLE_BYTES_MAX).contains(&spec.name.len()));
        assert_metadata(&spec.metadata);
        assert_kept(&spec);
    }
    if let Some(patch) = accepted(app::parse_patch(body)) {
        assert_uid(patch.uid.as_ref().and_then(Option::as_ref));
        assert_kept(&patch);
    }
}

fn endpoint(body: &[u8]) {
    if let Some(described) = accepted(endpoint::parse(body)) {
        let spec = &described.spec;
        assert_uid(described.uid.as_ref());
        assert!((1..=URL_BYTES_MAX).contains(&spec.url.len()) && spec.description.len() <= DESCRIPTION_BYTES_MAX);
        assert!(spec.event_types.as_ref().is_none_or(|types| (1..=FILTER_MAX).contains(&types.len())));
        assert!(spec.channels.as_ref().is_none_or(|channels| {
            (1..=ENDPOINT_CHANNELS_MAX).contains(&channels.len())
                && channels.iter().all(|channel| check_channel(channel).is_ok())
        }));
        assert_metadata(&spec.metadata);
        assert_headers(described.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        assert_kept(spec);
    }
    if let Some(patch) = accepted(endpoint::parse_patch(body)) {
        assert_uid(patch.uid.as_ref().and_then(Option::as_ref));
        assert_kept(&patch);
    }
    if let Some((_, grace_s)) = accepted(secret::parse(body)) {
        assert!(grace_s <= GRACE_SECONDS_MAX);
    }
}

fn endpoint_headers(body: &[u8]) {
    if let Some(headers) = accepted(headers::parse(body)) {
        assert_headers(headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().expect("it is set"))));
    }
    if let Some(headers) = accepted(headers::parse_patch(body)) {
        assert!(headers.len() <= 2 * HEADERS_MAX);
    }
}

fn publish(body: &[u8]) {
    let Some(published) = accepted(message::parse(body, RETENTION_US)) else { return };
    assert_message(&published.message);
    if let Some(create) = published.application {
        assert_uid(create.uid.as_ref());
        assert_kept(&create.spec);
    }
}

fn assert_message(message: &NewMessage) {
    let NewMessage { event_type, event_id, channels, tags, payload, payload_retention_us } = message;
    assert_eq!(Name::parse(event_type.as_str()).as_ref(), Ok(event_type));
    assert!(event_id.as_ref().is_none_or(|id| Name::parse(id.as_str()).as_ref() == Ok(id)));
    assert!(channels.len() <= MESSAGE_CHANNELS_MAX && channels.iter().all(|channel| check_channel(channel).is_ok()));
    assert!(tags.len() <= TAGS_MAX && tags.iter().all(|tag| check_tag(tag).is_ok()));
    assert!(payload.len() <= PAYLOAD_BYTES_MAX && payload.first() == Some(&b'{') && payload.last() == Some(&b'}'));
    assert!(payload_retention_us.is_none_or(|us| us < RETENTION_US));
    assert_kept(message);
}

fn event_type(body: &[u8]) {
    if let Some((name, spec)) = accepted(event_type::parse(body)) {
        assert_eq!(Name::parse(name.as_str()), Ok(name));
        assert!(spec.schemas.as_ref().is_none_or(|schemas| schemas.len() <= SCHEMAS_BYTES_MAX));
        assert_kept(&spec);
    }
    if let Some(spec) = accepted(event_type::parse_put(body)) {
        assert!(spec.description.len() <= DESCRIPTION_BYTES_MAX);
    }
    if let Some(patch) = accepted(event_type::parse_patch(body)) {
        assert_kept(&patch);
    }
}

fn assert_uid(uid: Option<&Name>) {
    assert!(uid.is_none_or(|uid| Name::parse_uid(uid.as_str()).as_ref() == Ok(uid)));
}

fn assert_metadata(metadata: &BTreeMap<String, String>) {
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(metadata.len() <= METADATA_MAX && bytes <= METADATA_BYTES_MAX);
}

/// What is sent with every delivery: nothing in it ends its line.
fn assert_headers<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) {
    let (mut count, mut bytes) = (0, 0);
    for (name, value) in headers {
        (count, bytes) = (count + 1, bytes + name.len() + value.len());
        assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'));
        assert!(value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)));
    }
    assert!(count <= HEADERS_MAX && bytes <= HEADER_BYTES_MAX);
}

/// It goes through the log as it is.
fn assert_kept<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    assert_eq!(codec::decode::<T>(&codec::encode(value)).as_ref(), Ok(value));
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
