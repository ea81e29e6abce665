//! Bad input: every field of every request wrong in every way is a 4xx with a code and a detail that helps, and
//! reaches no service. Arbitrary bytes never make a 5xx or a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use axum::http::{HeaderValue, Request};
use proptest::prelude::*;
use support::{Api, api};

/// Bodies of `POST /v1/limits/check`, and what the detail must say.
const CHECKS: &[(&str, &[&str])] = &[
    ("", &["empty"]),
    ("{", &["not valid JSON", "line 1 column 1"]),
    (r#"{"checks": [{"policy": "api", "key": "k"}]"#, &["not valid JSON", "line 1 column"]),
    (r#"{"checks": [{"policy": "api", "key": "k"}]} x"#, &["trailing characters"]),
    ("null", &["must be a JSON object, not null"]),
    ("[]", &["must be a JSON object, not a list"]),
    (r#"[[{"policy": "api", "key": "k"}], "enforce"]"#, &["must be a JSON object, not a list"]),
    (r#""text""#, &["must be a JSON object, not a string"]),
    ("{}", &["checks is missing", "1 to 16"]),
    (r#"{"checks": []}"#, &["checks must be a list of 1 to 16 checks"]),
    (r#"{"checks": {}}"#, &["checks must be a list", "not an object"]),
    (r#"{"checks": null}"#, &["checks must be a list", "not null"]),
    (r#"{"checks": [1]}"#, &["checks[0] must be an object, not 1"]),
    (r#"{"checks": [["api", "k", 1]]}"#, &["checks[0] must be an object, not a list"]),
    (r#"{"checks": [{}]}"#, &["checks[0].policy is missing", "checks[0].key is missing"]),
    (
        r#"{"checks": [{"policy": 1, "key": true, "cost": "1"}]}"#,
        &[
            "checks[0].policy must be",
            "not 1",
            "checks[0].key must be",
            "not true",
            "checks[0].cost must be",
            "not a string",
        ],
    ),
    (r#"{"checks": [{"policy": "api", "key": "k", "cost": null}]}"#, &["checks[0].cost", "not null"]),
    (
        r#"{"checks": [{"policy": "api", "key": "k", "cost": 0}]}"#,
        &["checks[0].cost", "from 1 to 1000000000000", "not 0"],
    ),
    (r#"{"checks": [{"policy": "api", "key": "k", "cost": -1}]}"#, &["checks[0].cost", "not -1"]),
    (r#"{"checks": [{"policy": "api", "key": "k", "cost": 1.5}]}"#, &["checks[0].cost", "not 1.5"]),
    (r#"{"checks": [{"policy": "api", "key": "k", "cost": 1000000000001}]}"#, &["checks[0].cost", "1000000000000"]),
    (r#"{"checks": [{"policy": "api", "key": "k", "cost": 99999999999999999999}]}"#, &["checks[0].cost"]),
    (r#"{"checks": [{"policy": "api", "key": "k", "cost": 1e999}]}"#, &["number out of range"]),
    (r#"{"checks": [{"policy": "api", "key": "k", "cost": {"a": [1]}}]}"#, &["checks[0].cost", "not an object"]),
    (r#"{"checks": [{"policy": "api", "key": ""}]}"#, &["checks[0].key", "1 to 512 bytes"]),
    (r#"{"checks": [{"policy": "", "key": "k"}]}"#, &["checks[0].policy", "a-z"]),
    (r#"{"checks": [{"policy": "API", "key": "k"}]}"#, &["checks[0].policy", "a-z"]),
    (r#"{"checks": [{"policy": "a\u0000", "key": "k"}]}"#, &["checks[0].policy"]),
    (
        r#"{"checks": [{"policy": "api", "key": "k", "weight": 1}]}"#,
        &["checks[0].weight is unknown", "policy, key, cost"],
    ),
    (r#"{"checks": [{"policy": "api", "key": "k", "key": "l"}]}"#, &["checks[0].key is there twice"]),
    (
        r#"{"checks": [{"policy": "api", "key": "k"}], "Mode": "peek"}"#,
        &["Mode is unknown", "checks, mode, request_id"],
    ),
    (r#"{"checks": [{"policy": "api", "key": "k"}], "checks": []}"#, &["checks is there twice"]),
    (r#"{"checks": [{"policy": "api", "key": "k"}], "mode": "dry"}"#, &["mode must be", "\"shadow\"", "\"dry\""]),
    (r#"{"checks": [{"policy": "api", "key": "k"}], "mode": 1}"#, &["mode must be", "not 1"]),
    (r#"{"checks": [{"policy": "api", "key": "k"}], "request_id": ""}"#, &["request_id", "1 to 64 bytes"]),
    (r#"{"checks": [{"policy": "api", "key": "k"}], "request_id": 5}"#, &["request_id", "not 5"]),
    (r#"{"checks": [{"policy": "api", "key": "\ud800"}]}"#, &["not valid JSON"]),
    (r#"{"checks": [{"policy": "api", "key": 'k'}]}"#, &["not valid JSON"]),
    (r#"{"checks": [{"policy": "api", "key": "k"},]}"#, &["not valid JSON"]),
    ("{\"checks\": [{\"policy\": \"api\", \"key\": \"a\nb\"}]}", &["not valid JSON", "line"]),
];

const REFUNDS: &[(&str, &[&str])] = &[
    ("{}", &["policy is missing", "key is missing", "cost is missing", "request_id is missing"]),
    (r#"{"policy": "api", "key": "k", "cost": 0, "request_id": "r"}"#, &["cost must be", "from 1 to", "not 0"]),
    (r#"{"policy": "api", "key": "k", "cost": -1, "request_id": "r"}"#, &["cost must be", "not -1"]),
    (r#"{"policy": "api", "key": "k", "cost": 1, "request_id": ""}"#, &["request_id must be", "1 to 64"]),
    (r#"{"policy": "api", "key": "", "cost": 1, "request_id": "r"}"#, &["key must be", "1 to 512"]),
    (r#"{"policy": "a b", "key": "k", "cost": 1, "request_id": "r"}"#, &["policy must be"]),
    (
        r#"{"policy": [], "key": {}, "cost": "1", "request_id": null}"#,
        &["policy must be", "key must be", "cost must be", "request_id must be"],
    ),
    (
        r#"{"policy": "api", "key": "k", "cost": 1, "request_id": "r", "mode": "x"}"#,
        &["mode is unknown", "policy, key, cost, request_id"],
    ),
];

const POLICIES: &[(&str, &[&str])] = &[
    ("{}", &["rate", "required"]),
    (r#"{"rate": 5}"#, &["rate must be", "not 5"]),
    (r#"{"rate": "5/month"}"#, &["rate", "5/month"]),
    (r#"{"rate": "0/s"}"#, &["rate"]),
    (r#"{"rate": "1000000001/s"}"#, &["rate"]),
    (r#"{"rate": "1/366d"}"#, &["rate"]),
    (r#"{"rate": "2/s", "burst": 0}"#, &["burst", "deny"]),
    (r#"{"rate": "2/s", "burst": 1000000000001}"#, &["burst", "1000000000000"]),
    (r#"{"rate": "2/s", "burst": "20"}"#, &["burst must be", "not a string"]),
    (r#"{"rate": "2/s", "burst": 1, "algorithm": "sliding_window"}"#, &["burst", "sliding_window"]),
    (r#"{"rate": "2/s", "algorithm": "gcra"}"#, &["algorithm", "token_bucket", "sliding_window"]),
    (r#"{"rate": "2/s", "on_unavailable": "panic"}"#, &["on_unavailable", "local", "allow", "deny"]),
    (r#"{"rate": "2/s", "on_unavailable": false}"#, &["on_unavailable must be", "not false"]),
    (r#"{"rate": "2/s", "timeout_ms": 9}"#, &["timeout_ms", "10", "2000"]),
    (r#"{"rate": "2/s", "timeout_ms": 2001}"#, &["timeout_ms", "10", "2000"]),
    (r#"{"rate": "2/s", "timeout_ms": 10.5}"#, &["timeout_ms must be", "not 10.5"]),
    (r#"{"rate": "2/s", "escrow": "on"}"#, &["escrow", "auto", "off"]),
    (r#"{"rate": "2/s", "exempt": "health"}"#, &["exempt must be", "not a string"]),
    (r#"{"rate": "2/s", "exempt": [""]}"#, &["exempt[0]"]),
    (r#"{"rate": "2/s", "exempt": ["a", 2]}"#, &["exempt[1] must be", "not 2"]),
    (r#"{"rate": "2/s", "overrides": []}"#, &["overrides must be", "not a list"]),
    (r#"{"rate": "2/s", "overrides": {"k": "allow"}}"#, &["overrides[\"k\"]", "deny"]),
    (r#"{"rate": "2/s", "overrides": {"k": 1}}"#, &["overrides[\"k\"] must be", "not 1"]),
    (r#"{"rate": "2/s", "overrides": {"": "deny"}}"#, &["overrides[\"\"]"]),
    (r#"{"rate": "2/s", "overrides": {"k": {}}}"#, &["overrides[\"k\"].rate"]),
    (r#"{"rate": "2/s", "overrides": {"k": {"rate": "1/s", "burst": 0}}}"#, &["overrides[\"k\"].burst"]),
    (r#"{"rate": "2/s", "overrides": {"k": {"rate": 1}}}"#, &["overrides[\"k\"].rate must be", "not 1"]),
    (
        r#"{"rate": "2/s", "overrides": {"k": {"rate": "1/s", "cost": 1}}}"#,
        &["overrides[\"k\"].cost is unknown", "rate, burst"],
    ),
    (r#"{"rate": "2/s", "overrides": {"k": "deny", "k": "deny"}}"#, &["overrides[\"k\"] is there twice"]),
    (r#"{"rate": "2/s", "name": "api"}"#, &["name is unknown"]),
    (r#"{"rate": "2/s", "revision": 1}"#, &["revision is unknown"]),
];

#[tokio::test]
async fn every_wrong_body_is_refused_in_words_that_help() {
    let api = api();
    for (method, target, table) in [
        ("POST", "/v1/limits/check", CHECKS),
        ("POST", "/v1/limits/refund", REFUNDS),
        ("PUT", "/v1/policies/api", POLICIES),
    ] {
        for (body, says) in table {
            let request = Request::builder().method(method).uri(target).header("content-type", "application/json");
            let answer = api.send(request.body(*body).unwrap()).await;
            answer.assert_problem(400, "invalid_request");
            for part in *says {
                assert!(answer.detail().contains(part), "{body}\nshould say: {part}\nsays: {}", answer.detail());
            }
        }
    }
    assert!(api.fake.asked().is_empty());
}

#[tokio::test]
async fn invalid_fields_are_listed_by_their_paths() {
    let answer = api().check(r#"{"checks": [{"policy": "api", "key": ""}, {"policy": "api"}], "mode": 1}"#).await;
    let errors = answer.json()["errors"].clone();
    let fields: Vec<_> = errors.as_array().unwrap().iter().map(|error| error["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["mode", "checks[0].key", "checks[1].key"]);
    let one = |answer: support::Answer| answer.json()["errors"][0]["field"].as_str().unwrap().to_owned();
    assert_eq!(one(api().check(r#"{"surprise": 1, "checks": [{"policy": "api", "key": "k"}]}"#).await), "surprise");
    assert_eq!(one(api().check(r#"{"checks": [{"policy": "api", "key": "k", "a.b": {}}]}"#).await), "checks[0].a.b");
    assert_eq!(one(api().check(r#"{"checks": []}"#).await), "checks");
    assert_eq!(one(api().call("GET", "/v1/policies/A", "").await), "policy");
    assert_eq!(one(api().call("DELETE", "/v1/limits/A/k", "").await), "policy");
}

#[tokio::test]
async fn a_missing_field_is_told_once_and_an_error_lists_no_more_than_a_screenful() {
    let refund = r#"{"key": "k", "cost": 1, "request_id": "r"}"#;
    let answer = api().call("POST", "/v1/limits/refund", refund).await;
    assert_eq!(answer.json()["errors"].as_array().map(Vec::len), Some(1), "{}", answer.detail());
    let members: Vec<String> = (0..2_000).map(|n| format!(r#""{n}": 1"#)).collect();
    let answer = api().check(&format!("{{{}}}", members.join(", "))).await;
    assert_eq!(answer.json()["errors"].as_array().map(Vec::len), Some(16));
}

#[tokio::test]
async fn lengths_are_counted_in_bytes_and_the_longest_is_taken() {
    let api = api();
    let check =
        |key: &str, id: &str| format!(r#"{{"checks": [{{"policy": "api", "key": "{key}"}}], "request_id": "{id}"}}"#);
    assert_eq!(api.check(&check(&"ä".repeat(256), &"i".repeat(64))).await.status, 200);
    api.check(&check(&"ä".repeat(257), "i")).await.assert_problem(400, "invalid_request");
    api.check(&check("k", &"i".repeat(65))).await.assert_problem(400, "invalid_request");
    // Any UTF-8 is a key.
    assert_eq!(api.check(&check("\\u0000\\n\u{1F600} /%:", "i")).await.status, 200);

    let item = r#"{"policy": "api", "key": "k"}"#;
    let many = |count: usize| format!(r#"{{"checks": [{}]}}"#, vec![item; count].join(","));
    assert_eq!(api.check(&many(16)).await.status, 200);
    let answer = api.check(&many(17)).await;
    answer.assert_problem(400, "invalid_request");
    assert!(answer.detail().contains("1 to 16"), "{}", answer.detail());
    let zero = r#"{"checks": [{"policy": "api", "key": "k", "cost": 0}], "mode": "peek"}"#;
    assert_eq!(api.check(zero).await.status, 200);
}

#[tokio::test]
async fn what_an_answer_repeats_of_a_request_is_cut() {
    let answer = api().check(&format!(r#"{{"{}": 1}}"#, "x".repeat(10_000))).await;
    answer.assert_problem(400, "invalid_request");
    assert!(answer.detail().len() < 600 && answer.detail().contains("checks is missing"), "{}", answer.detail());
    let long = format!(r#"{{"rate": "{0}", "algorithm": "{0}"}}"#, "x".repeat(10_000));
    let answer = api().call("PUT", "/v1/policies/api", long).await;
    answer.assert_problem(400, "invalid_request");
    assert!(answer.body.len() < 1_500, "{}", answer.body.len());
}

#[tokio::test]
async fn deep_nesting_is_refused() {
    let api = api();
    for depth in [200, 10_000] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let nested = format!(r#"{{"checks": {}1{}}}"#, open.repeat(depth), close.repeat(depth));
            api.check(&nested).await.assert_problem(400, "invalid_request");
        }
    }
}

#[tokio::test]
async fn bodies_that_are_not_utf8_or_too_large_are_refused() {
    let api = api();
    let answer =
        api.call("POST", "/v1/limits/check", &b"{\"checks\": [{\"policy\": \"api\", \"key\": \"\xff\"}]}"[..]).await;
    answer.assert_problem(400, "invalid_request");
    assert!(answer.detail().contains("UTF-8"), "{}", answer.detail());
    let spaces = |count: usize| " ".repeat(count);
    let answer = api.check(&spaces(64 * 1024 + 1)).await;
    answer.assert_problem(413, "too_large");
    assert!(answer.detail().contains("65536"), "{}", answer.detail());
    api.call("PUT", "/v1/policies/api", spaces((1 << 20) + 1)).await.assert_problem(413, "too_large");
    api.call("PUT", "/v1/policies/api", spaces(1 << 20)).await.assert_problem(400, "invalid_request");
    assert!(api.fake.asked().is_empty());
}

#[tokio::test]
async fn the_content_type_must_be_json() {
    let api = api();
    let body = r#"{"checks": [{"policy": "api", "key": "k"}]}"#;
    let with = |value: &str| Request::post("/v1/limits/check").header("content-type", value).body(body).unwrap();
    for value in ["application/json", "Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\""] {
        assert_eq!(api.send(with(value)).await.status, 200, "{value}");
    }
    for value in
        ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "application/jsonx", ""]
    {
        let answer = api.send(with(value)).await;
        answer.assert_problem(415, "invalid_request");
        assert!(answer.detail().contains("application/json"), "{}", answer.detail());
    }
    let missing = Request::post("/v1/limits/check").body(body).unwrap();
    api.send(missing).await.assert_problem(415, "invalid_request");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_told() {
    let api = api();
    for target in [
        "/",
        "/v1",
        "/v1/",
        "/v2/limits/check",
        "/v1/limits",
        "/v1/limits/api",
        "/v1/limits/check/",
        "/v1/policies/",
        "/v1/limits/api/a/b",
        "/livez/",
        "//livez",
        "/v1/policies/api/x",
        "/%2e%2e/etc",
    ] {
        api.call("GET", target, "").await.assert_problem(404, "not_found");
    }
    for (method, target, allow) in [
        ("GET", "/v1/limits/check", "POST"),
        ("BREW", "/v1/limits/check", "POST"),
        ("DELETE", "/livez", "GET,HEAD"),
        ("PATCH", "/v1/policies/api", "GET,HEAD,PUT,DELETE"),
        ("POST", "/v1/limits/api/k", "DELETE"),
        ("OPTIONS", "/v1/policies", "GET,HEAD"),
    ] {
        let answer = api.call(method, target, "").await;
        answer.assert_problem(405, "method_not_allowed");
        assert_eq!(answer.header("allow"), Some(allow), "{method} {target}");
    }
}

#[tokio::test]
async fn paths_that_cannot_be_decoded_are_refused() {
    let api = api();
    for target in [
        "/v1/limits/api/%zz",
        "/v1/limits/api/%",
        "/v1/limits/api/a%4",
        "/v1/limits/api/%ff",
        "/v1/limits/A/k",
        "/v1/policies/%41",
    ] {
        api.call("DELETE", target, "").await.assert_problem(400, "invalid_request");
    }
    let long = format!("/v1/limits/api/{}", "k".repeat(513));
    api.call("DELETE", &long, "").await.assert_problem(400, "invalid_request");
    let longest = format!("/v1/limits/api/{}", "%00".repeat(512));
    assert_eq!(api.call("DELETE", &longest, "").await.status, 204);
    let longer = format!("/v1/limits/api/{}", "k".repeat(9_000));
    api.call("DELETE", &longer, "").await.assert_problem(414, "invalid_request");
}

#[tokio::test]
async fn huge_heads_are_refused() {
    let api = api();
    let mut request = Request::get("/livez").body("").unwrap();
    request.headers_mut().insert("x-big", HeaderValue::from_str(&"a".repeat(17_000)).unwrap());
    api.send(request).await.assert_problem(431, "invalid_request");
    let mut request = Request::get("/livez").body("").unwrap();
    for _ in 0..65 {
        request.headers_mut().append("x-many", HeaderValue::from_static("1"));
    }
    api.send(request).await.assert_problem(431, "invalid_request");
}

/// Bodies about idempotency keys.
const KEYS: [&str; 4] = [
    r#"{"account": "a", "key": "\"k\"", "fingerprint": "f", "ttl_ms": 1000, "lease_ms": 100, "on_lease_expiry": "hold",
        "attempt_id": "i"}"#,
    r#"{"account": "a", "key": "k", "token": 1, "response": {"status": 200, "headers": {"a": "b", "c": ["d", ""]},
        "body": "AP8=", "body_encoding": "base64"}}"#,
    r#"{"account": "a", "key": "k", "token": 1, "lease_ms": 100}"#,
    r#"{"account": "a", "key": "k", "token": 1, "response": {"status": 200},
        "messages": [{"eventType": "a", "payload": {"b": [1, "\u00e9"]}, "eventId": "c", "channels": ["d"]}]}"#,
];

/// Bodies about webhooks.
const WEBHOOKS: [&str; 6] = [
    r#"{"name": "n", "uid": "a", "throttleRate": 1, "rateLimit": null, "metadata": {"a": "b"}, "other": [1]}"#,
    r#"{"url": "https://example.com/", "uid": "e", "eventTypes": ["a"], "filterTypes": ["a"], "channels": ["b"],
        "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "headers": {"x-a": "b"}, "metadata": {}, "disabled": true}"#,
    r#"{"headers": {"x-a": "b", "x-c": null}, "deleteHeaders": ["x-d"]}"#,
    r#"{"key": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "gracePeriodSeconds": 1}"#,
    r#"{"eventType": "a", "payload": {"b": [1e3, "\u00e9"]}, "eventId": "c", "tags": ["d"], "payloadRetentionHours": 1,
        "application": {"name": "n", "uid": "a"}}"#,
    r#"{"name": "a.b", "description": "", "schemas": {"1": {}}, "featureFlags": ["f"], "groupName": "g"}"#,
];

/// Text near enough to a body to get past the first checks, and bytes that are nowhere near.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let seeds = prop::sample::select(
        CHECKS
            .iter()
            .chain(REFUNDS)
            .chain(POLICIES)
            .map(|(body, _)| *body)
            .chain(KEYS)
            .chain(WEBHOOKS)
            .collect::<Vec<_>>(),
    );
    let mutated = (seeds, any::<prop::sample::Index>(), any::<u8>(), 0..4_usize).prop_map(|(body, at, byte, how)| {
        let mut body = body.as_bytes().to_vec();
        let at = at.index(body.len() + 1);
        match how {
            0 => body.truncate(at),
            1 => body.insert(at, byte),
            2 if at < body.len() => body[at] = byte,
            _ => body.extend_from_within(at..),
        }
        body
    });
    prop_oneof![3 => mutated, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

async fn send_everywhere(api: &Api, body: &[u8], segment: &str) {
    for (method, target) in [
        ("POST", "/v1/limits/check".to_owned()),
        ("POST", "/v1/limits/refund".to_owned()),
        ("PUT", "/v1/policies/api".to_owned()),
        ("PUT", format!("/v1/policies/{segment}")),
        ("DELETE", format!("/v1/limits/api/{segment}")),
        ("POST", format!("/v1/cluster/nodes/{segment}/replace")),
        ("POST", "/v1/idempotency/begin".to_owned()),
        ("POST", "/v1/idempotency/complete".to_owned()),
        ("POST", "/v1/idempotency/abandon".to_owned()),
        ("POST", "/v1/idempotency/extend".to_owned()),
        ("GET", format!("/v1/idempotency/{segment}?iterator={segment}")),
        ("GET", format!("/v1/idempotency/a/{segment}")),
        ("DELETE", format!("/v1/idempotency/{segment}/{segment}")),
        ("GET", format!("/{segment}?{segment}")),
        ("POST", "/api/v1/app".to_owned()),
        ("GET", format!("/api/v1/app?iterator={segment}&limit={segment}")),
        ("PUT", format!("/api/v1/app/{segment}")),
        ("PATCH", format!("/api/v1/app/{segment}")),
        ("POST", format!("/api/v1/app/{segment}/endpoint")),
        ("PUT", format!("/api/v1/app/a/endpoint/{segment}")),
        ("PATCH", format!("/api/v1/app/a/endpoint/{segment}")),
        ("PUT", format!("/api/v1/app/a/endpoint/{segment}/headers")),
        ("PATCH", format!("/api/v1/app/a/endpoint/{segment}/headers")),
        ("POST", format!("/api/v1/app/a/endpoint/{segment}/secret/rotate")),
        ("POST", format!("/api/v1/app/{segment}/msg")),
        ("GET", format!("/api/v1/app/a/msg?{segment}&before={segment}&event_types={segment}")),
        ("GET", format!("/api/v1/app/{segment}/attempt/msg/{segment}?status={segment}")),
        ("GET", format!("/api/v1/app/{segment}/msg/{segment}/attempt/{segment}")),
        ("POST", "/api/v1/event-type".to_owned()),
        ("PUT", format!("/api/v1/event-type/{segment}")),
        ("PATCH", format!("/api/v1/event-type/{segment}")),
        ("POST", "/api/v1/operational-webhook/endpoint".to_owned()),
    ] {
        let request = Request::builder().method(method).uri(&target).header("content-type", "application/json");
        // What is no request target never gets past the parser of heads.
        let Ok(request) = request.body(body.to_vec()) else { continue };
        let answer = api.send(request).await;
        assert!(answer.status < 500, "{method} {target}: {} {:?}", answer.status, answer.body);
        if answer.status >= 400 {
            assert!(!answer.code().is_empty() && !answer.detail().is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_make_a_5xx_or_a_panic(body in bodies(), segment in "[!-~]{0,20}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(send_everywhere(&api(), &body, &segment));
    }
}
