//! The contract of idempotency keys over HTTP, over a scripted service: answers, bounds, accounts, waiting.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::{Duration, Instant};

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use onceward_core::idempotency::{
    AbandonReply, Body, CompleteReply, DeleteRecordReply, ExtendReply, HeaderValues, Key, RecordPage, RecordState,
    RecordSummary, RecordView, Replay, Response,
};
use onceward_server::{
    bounds::COMPLETE_BODY_BYTES_MAX,
    settings::{Role, Secret, Settings, TokenSettings},
};
use onceward_shard::{BeginAnswer, ServiceError};
use serde_json::{Value, json};
use support::{Answer, Api, WALL_MS, api, api_with, large_replay, read};

const BEGIN: &str = r#"{"account": "acme", "key": "k", "fingerprint": "f"}"#;
const COMPLETE: &str = r#"{"account": "acme", "key": "k", "token": 4711, "response": {"status": 200}}"#;
const ABANDON: &str = r#"{"account": "acme", "key": "k", "token": 4711}"#;
const EXTEND: &str = r#"{"account": "acme", "key": "k", "token": 4711, "lease_ms": 1000}"#;
const AT: &str = "2026-01-02T03:04:05.006Z";

async fn post(api: &Api, operation: &str, body: impl Into<Bytes>) -> Answer {
    api.call("POST", &format!("/v1/idempotency/{operation}"), body).await
}

fn text(answer: &Answer) -> &str {
    std::str::from_utf8(&answer.body).unwrap()
}

#[tokio::test]
async fn a_begin_that_gets_the_key_is_201_with_its_token_and_lease() {
    let api = api();
    let answer = post(&api, "begin", BEGIN).await;
    assert_eq!((answer.status, answer.header("content-type")), (201, Some("application/json")));
    let expected =
        format!(r#"{{"state":"started","token":4711,"lease_expires_at":"{AT}","lease_remaining_ms":29999}}"#);
    assert_eq!(text(&answer), expected);
    assert_eq!(answer.header("idempotent-replayed"), None);
    let all = r#"{"account": "ä b", "key": "\"a\\\"b\"", "fingerprint": "f", "ttl_ms": 1000, "lease_ms": 100,
        "on_lease_expiry": "hold", "attempt_id": "a", "wait_ms": 30000}"#;
    assert_eq!(post(&api, "begin", all).await.status, 201);
    assert_eq!(
        api.fake.asked(),
        [
            r#"begin "acme" "k" "f" ttl 86400000 lease 30000 Takeover None wait 0"#,
            r#"begin "ä b" "a\"b" "f" ttl 1000 lease 100 Hold Some("a") wait 30000"#,
        ]
    );
    // The node adds wait_ms to the deadline by itself.
    assert!((1_900..=2_000).contains(&api.fake.patience_ms()), "{}", api.fake.patience_ms());
}

#[tokio::test]
async fn every_other_answer_of_begin_has_its_status_and_code() {
    let api = api();
    api.fake.set(|script| script.begin = Ok(BeginAnswer::InProgress { retry_after_ms: 1_001 }));
    let answer = post(&api, "begin", BEGIN).await;
    answer.assert_problem(409, "in_progress");
    assert_eq!((&answer.json()["retry_after_ms"], answer.header("retry-after")), (&json!(1_001), Some("2")));

    api.fake.set(|script| script.begin = Ok(BeginAnswer::Indeterminate));
    let answer = post(&api, "begin", BEGIN).await;
    answer.assert_problem(409, "indeterminate");
    assert_eq!((answer.json().get("retry_after_ms"), answer.header("retry-after")), (None, None));

    api.fake.set(|script| script.begin = Ok(BeginAnswer::FingerprintMismatch));
    let answer = post(&api, "begin", BEGIN).await;
    answer.assert_problem(422, "fingerprint_mismatch");
    assert_eq!(answer.header("retry-after"), None);
}

#[tokio::test]
async fn a_replay_is_what_was_stored_byte_for_byte_and_says_so() {
    let api = api();
    let text_response = r#"{"status":201,"headers":{"Z-Last":"1","a-first":["x","","y"],"empty":[],"tab":"a\tü"},"body":"{\"id\": 1}\n\u0000\u2028ü"}"#;
    let binary = r#"{"status":599,"headers":{},"body":"AP+AfwA=","body_encoding":"base64"}"#;
    let empty = r#"{"status":100,"headers":{},"body":""}"#;
    let empty_binary = r#"{"status":100,"headers":{},"body":"","body_encoding":"base64"}"#;
    for response in [text_response, binary, empty, empty_binary] {
        let body = format!(r#"{{"account": "acme", "key": "k", "token": 4711, "response": {response}}}"#);
        assert_eq!(post(&api, "complete", body).await.status, 200, "{response}");
        let stored = api.fake.stored().unwrap();
        let replay = Replay { response: stored, completed_wall_ms: WALL_MS };
        api.fake.set(|script| script.begin = Ok(BeginAnswer::Completed(replay)));
        let answer = post(&api, "begin", BEGIN).await;
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (200, Some("true")));
        assert_eq!(answer.json()["response"], serde_json::from_str::<Value>(response).unwrap());
        // The order of the headers, too, and the shape of each.
        let shown = text(&answer);
        let headers = &response[response.find("\"headers\"").unwrap()..response.find(",\"body\"").unwrap()];
        let headers = headers.replace(r"\u0000", "\0");
        assert!(shown.starts_with(r#"{"state":"completed","response":{"status":"#), "{shown}");
        assert!(shown.contains(&headers), "{shown}");
        assert!(shown.ends_with(&format!(r#","completed_at":"{AT}"}}"#)), "{shown}");
    }
    let left_out = r#"{"account": "acme", "key": "k", "token": 4711, "response": {"status": 204}}"#;
    assert_eq!(post(&api, "complete", left_out).await.status, 200);
    let expected = Response { status: 204, headers: Vec::new(), body: Body::Text(String::new()) };
    assert_eq!(api.fake.stored(), Some(expected));
}

#[tokio::test]
async fn complete_abandon_and_extend_answer_as_the_contract_says() {
    let api = api();
    let answer = post(&api, "complete", COMPLETE).await;
    let expected = format!(
        r#"{{"state":"completed","completed_at":"{AT}","expires_at":"2026-01-03T03:04:05.006Z","messages":[]}}"#
    );
    assert_eq!((answer.status, text(&answer)), (200, expected.as_str()));
    let answer = post(&api, "abandon", ABANDON).await;
    assert_eq!((answer.status, text(&answer)), (200, r#"{"state":"abandoned"}"#));
    let answer = post(&api, "extend", EXTEND).await;
    let expected = format!(r#"{{"lease_expires_at":"{AT}","lease_remaining_ms":29999}}"#);
    assert_eq!((answer.status, text(&answer)), (200, expected.as_str()));
    assert_eq!(
        api.fake.asked(),
        [r#"complete "acme" "k" 4711"#, r#"abandon "acme" "k" 4711"#, r#"extend "acme" "k" 4711 1000"#]
    );

    api.fake.set(|script| {
        script.complete = Ok(CompleteReply::Fenced);
        script.abandon = Ok(AbandonReply::Fenced);
        script.extend = Ok(ExtendReply::Fenced);
    });
    for (operation, body) in [("complete", COMPLETE), ("abandon", ABANDON), ("extend", EXTEND)] {
        let answer = post(&api, operation, body).await;
        answer.assert_problem(409, "fenced");
        assert_eq!(answer.header("retry-after"), None);
    }
    api.fake.set(|script| {
        script.complete = Ok(CompleteReply::AlreadyCompleted);
        script.abandon = Ok(AbandonReply::AlreadyCompleted);
        script.extend = Ok(ExtendReply::AlreadyCompleted);
    });
    for (operation, body) in [("complete", COMPLETE), ("abandon", ABANDON), ("extend", EXTEND)] {
        post(&api, operation, body).await.assert_problem(409, "already_completed");
    }
}

#[tokio::test]
async fn large_answers_share_a_budget_and_wait_for_room_in_it() {
    const BUDGET: usize = 700_000;
    let mut settings = Settings::default();
    settings.http.max_buffered_bytes = BUDGET as u32;
    let api = api_with(&settings);
    let budget = &api.edge.app().buffered;
    // 300 kB each: there is room for two, and one may wait.
    api.fake.set(|script| script.begin = Ok(large_replay(50_000)));
    let ask = async |timeout_ms: &str| {
        api.unread("POST", "/v1/idempotency/begin", BEGIN, &[("onceward-timeout-ms", timeout_ms)]).await
    };
    let (first, second) = (ask("2000").await, ask("2000").await);
    let left = budget.available_permits();
    assert!(first.status() == 200 && second.status() == 200 && left < 100_000, "{left}");
    let asked = Instant::now();
    let refused = read(ask("100").await).await;
    refused.assert_problem(503, "unavailable");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!((100..1_000).contains(&asked.elapsed().as_millis()), "{:?}", asked.elapsed());
    // So is every other answer of that size that changed nothing; small ones pass.
    api.fake.set(|script| {
        let mut large = view(RecordState::Completed);
        large.response.as_mut().unwrap().body = Body::Text("\u{1}".repeat(50_000));
        script.record = Ok(Some(large));
    });
    let path = "/v1/idempotency/acme/k";
    let reading = api.unread("GET", path, "", &[("onceward-timeout-ms", "50")]).await;
    read(reading).await.assert_problem(503, "unavailable");
    assert_eq!(post(&api, "complete", COMPLETE).await.status, 200);
    // What was done is told, however large.
    let overrides: Vec<String> = (0..1_000).map(|n| format!(r#""key-{n:040}":{{"rate":"1/s"}}"#)).collect();
    let policy = format!(r#"{{"rate":"1/s","overrides":{{{}}}}}"#, overrides.join(","));
    let stored = api.call("PUT", "/v1/policies/p", policy.clone()).await;
    let (sent, told) = (policy.len(), stored.body.len());
    assert!(sent < 64 << 10 && told > 64 << 10, "{sent} and {told}: {:.200?}", stored.body);
    assert_eq!((stored.status, budget.available_permits()), (201, left - told), "and counted where there is room");
    drop(stored);

    let leave = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        // One waits already.
        read(ask("2000").await).await.assert_problem(503, "unavailable");
        drop(first);
    };
    let (waited, ()) = tokio::join!(ask("2000"), leave);
    assert_eq!((waited.status(), budget.available_permits()), (StatusCode::OK, left));
    let waited = read(waited).await;
    assert_eq!(waited.json()["response"]["body"], "\u{1}".repeat(50_000));
    assert!(budget.available_permits() < BUDGET / 2, "its bytes are still there");
    drop((second, waited));
    assert_eq!(budget.available_permits(), BUDGET);
    // One that is larger than the whole budget goes alone.
    api.fake.set(|script| script.begin = Ok(large_replay(200_000)));
    assert_eq!(read(ask("100").await).await.status, 200);
}

fn view(state: RecordState) -> RecordView {
    let completed = state == RecordState::Completed;
    let response = Response {
        status: 201,
        headers: vec![("A".to_owned(), HeaderValues::Many(vec!["b".to_owned()]))],
        body: Body::Binary(Bytes::from_static(b"\xff")),
    };
    RecordView {
        state,
        created_wall_ms: WALL_MS,
        lease_expires_wall_ms: (!completed).then_some(u64::MAX),
        completed_wall_ms: completed.then_some(WALL_MS),
        expires_wall_ms: completed.then_some(0),
        response: completed.then_some(response),
    }
}

#[tokio::test]
async fn a_key_is_read_by_either_form_and_its_token_never_shown() {
    let api = api();
    for (state, rest) in [
        (
            RecordState::InProgress,
            format!(r#""state":"in_progress","created_at":"{AT}","lease_expires_at":"9999-12-31T23:59:59.999Z""#),
        ),
        (
            RecordState::Indeterminate,
            format!(r#""state":"indeterminate","created_at":"{AT}","lease_expires_at":"9999-12-31T23:59:59.999Z""#),
        ),
        (
            RecordState::Completed,
            format!(
                r#""state":"completed","created_at":"{AT}","completed_at":"{AT}","expires_at":"1970-01-01T00:00:00.000Z","response":{{"status":201,"headers":{{"A":["b"]}},"body":"/w==","body_encoding":"base64"}}"#
            ),
        ),
    ] {
        api.fake.set(|script| script.record = Ok(Some(view(state))));
        let answer = api.call("GET", "/v1/idempotency/acme/k%2F1", "").await;
        assert_eq!(
            (answer.status, text(&answer)),
            (200, format!(r#"{{"account":"acme","key":"k/1",{rest}}}"#).as_str())
        );
    }
    api.fake.asked();
    // Percent-encoded, quoted, with awkward characters; what is shown names the same key again.
    for (segment, bare, shown) in [
        ("k", "k", "k"),
        ("%22k%22", "k", "k"),
        ("%20", " ", " "),
        ("%2e%2e", "..", ".."),
        ("+", "+", "+"),
        ("%C3%BC%252F%3F%23", "ü%2F?#", "ü%2F?#"),
        ("%22%5C%22k%5C%22%22", "\"k\"", "\"\\\"k\\\"\""),
    ] {
        let answer = api.call("GET", &format!("/v1/idempotency/a%2Fc/{segment}"), "").await;
        assert_eq!((answer.status, &answer.json()["key"]), (200, &json!(shown)), "{segment}");
        assert_eq!(answer.json()["account"], "a/c");
        assert_eq!(api.fake.asked(), [format!("read \"a/c\" {bare:?}")]);
    }
    api.fake.set(|script| script.record = Ok(None));
    let answer = api.call("GET", "/v1/idempotency/acme/k", "").await;
    answer.assert_problem(404, "not_found");
    assert!(answer.detail().contains("\"acme\"") && answer.detail().contains("\"k\""), "{}", answer.detail());
}

#[tokio::test]
async fn a_key_is_deleted_once() {
    let api = api();
    let answer = api.call("DELETE", "/v1/idempotency/acme/%22k%22", "").await;
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    assert_eq!(api.fake.asked(), [r#"delete "acme" "k""#]);
    api.fake.set(|script| script.delete_record = Ok(DeleteRecordReply::NotFound));
    api.call("DELETE", "/v1/idempotency/acme/k", "").await.assert_problem(404, "not_found");
}

fn summary(key: &str, state: RecordState) -> RecordSummary {
    let RecordView { created_wall_ms, lease_expires_wall_ms, completed_wall_ms, expires_wall_ms, .. } = view(state);
    let key = Key::parse(key).unwrap();
    RecordSummary { key, state, created_wall_ms, lease_expires_wall_ms, completed_wall_ms, expires_wall_ms }
}

#[tokio::test]
async fn a_list_goes_on_from_page_to_page_behind_any_key() {
    let api = api();
    let list = "/v1/idempotency/acme";
    let answer = api.call("GET", list, "").await;
    assert_eq!((answer.status, text(&answer)), (200, r#"{"data":[],"iterator":null,"done":true}"#));
    assert_eq!(api.fake.asked(), [r#"list "acme" None None 50"#]);
    let long = "ü".repeat(127);
    for quoted in ["k", r#""\"k\"""#, "ü / ?&=+%", &long] {
        let next = Key::parse(quoted).unwrap();
        let records = vec![summary("a", RecordState::InProgress), summary(quoted, RecordState::Completed)];
        let page = RecordPage { records, next: Some(next.clone()) };
        api.fake.set(|script| script.records = Ok(page));
        let answer = api.call("GET", &format!("{list}?limit=2&state=completed"), "").await.json();
        let far = "9999-12-31T23:59:59.999Z";
        let first = json!({"key": "a", "state": "in_progress", "created_at": AT, "lease_expires_at": far});
        let second = json!({"key": quoted, "state": "completed", "created_at": AT, "completed_at": AT,
            "expires_at": "1970-01-01T00:00:00.000Z"});
        assert_eq!((&answer["data"], &answer["done"]), (&json!([first, second]), &json!(false)));
        let iterator = answer["iterator"].as_str().unwrap();
        assert!(iterator.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{iterator}");
        api.fake.asked();
        // An empty page, and yet not the last.
        api.fake.set(|script| script.records = Ok(RecordPage { records: Vec::new(), next: Some(next.clone()) }));
        let answer = api.call("GET", &format!("{list}?iterator={iterator}&limit=250"), "").await.json();
        assert_eq!(answer, json!({"data": [], "iterator": iterator, "done": false}));
        assert_eq!(api.fake.asked(), [format!("list \"acme\" None Some({:?}) 250", next.as_str())]);
    }
    for (state, asked) in
        [("in_progress", "InProgress"), ("completed", "Completed"), ("indeterminate", "Indeterminate")]
    {
        assert_eq!(api.call("GET", &format!("{list}?state={state}"), "").await.status, 200);
        assert_eq!(api.fake.asked(), [format!("list \"acme\" Some({asked}) None 50")]);
    }
    // Named like an operation.
    assert_eq!(api.call("GET", "/v1/idempotency/%62egin", "").await.status, 200);
    assert_eq!(api.fake.asked(), [r#"list "begin" None None 50"#]);
}

#[tokio::test]
async fn wrong_queries_of_a_list_are_refused_by_name() {
    let api = api();
    for (query, says) in [
        ("limit=0", "limit must be a whole number from 1 to 250, not \"0\""),
        ("limit=251", "limit must be"),
        ("limit=%2B5", "limit must be"),
        ("limit=-1", "limit must be"),
        ("limit=1.0", "limit must be"),
        ("limit=", "limit must be"),
        ("limit=99999999999999999999", "limit must be"),
        ("limit=5&limit=5", "limit is there twice"),
        ("state=", "state must be \"in_progress\", \"completed\" or \"indeterminate\", not \"\""),
        ("state=started", "state must be"),
        ("state=Completed", "state must be"),
        ("state=completed&state=completed", "state is there twice"),
        ("Limit=5", "Limit is unknown; known are state, limit, iterator"),
        ("x", "x is unknown"),
        ("=", "is unknown"),
        ("iterator=", "iterator must be"),
        ("iterator=k", "iterator must be"),
        ("iterator=AQ", "iterator must be"),
        ("iterator=AWs%3D", "iterator must be"),
        ("iterator=AWs=", "iterator must be"),
        ("iterator=AWt", "iterator must be"),
        ("iterator=Ams", "iterator must be"),
        ("iterator=Af8", "iterator must be"),
        ("iterator=AQA", "iterator must be"),
        ("iterator=AWs&iterator=AWs", "iterator is there twice"),
        ("iterator=%ff", "iterator must be"),
    ] {
        let answer = api.call("GET", &format!("/v1/idempotency/acme?{query}"), "").await;
        answer.assert_problem(400, "invalid_request");
        assert!(answer.detail().contains(says), "{query}: {}", answer.detail());
    }
    let long = format!("/v1/idempotency/acme?iterator={}", "A".repeat(5_000));
    api.call("GET", &long, "").await.assert_problem(400, "invalid_request");
    assert!(api.fake.asked().is_empty());
}

/// Bodies of each operation, and what the detail must say.
const REFUSED: &[(&str, &str, &[&str])] = &[
    ("begin", "", &["empty"]),
    ("begin", "[]", &["must be a JSON object, not a list"]),
    ("begin", "{}", &["account is missing", "key is missing", "fingerprint is missing"]),
    (
        "begin",
        r#"{"account": 1, "key": null, "fingerprint": ["f"]}"#,
        &["account must be", "not 1", "key must be", "not null", "fingerprint must be", "not a list"],
    ),
    (
        "begin",
        r#"{"account": "", "key": "", "fingerprint": ""}"#,
        &[
            "account must be 1 to 255 bytes long, not 0",
            "key must be 1 to 255 bytes long, not 0",
            "fingerprint must be a string of 1 to 128 bytes, not 0",
        ],
    ),
    (
        "begin",
        r#"{"account": "a\u0000", "key": "k\n", "fingerprint": "f"}"#,
        &["account must not contain control", "key must not contain control"],
    ),
    ("begin", r#"{"account": "a", "key": "\u0085", "fingerprint": "f"}"#, &["key must not contain control"]),
    ("begin", r#"{"account": "a", "key": "\"k", "fingerprint": "f"}"#, &["key begins with a quote", "RFC 8941"]),
    ("begin", r#"{"account": "a", "key": "\"\"", "fingerprint": "f"}"#, &["key must be 1 to 255 bytes long, not 0"]),
    ("begin", r#"{"account": "a", "key": "k", "key": "k", "fingerprint": "f"}"#, &["key is there twice"]),
    ("begin", r#"{"account": "a", "key": "k", "fingerprint": "f", "ttl": 5}"#, &["ttl is unknown", "ttl_ms"]),
    (
        "begin",
        r#"{"account": "a", "key": "k", "fingerprint": "f", "ttl_ms": 999}"#,
        &["ttl_ms must be a whole number from 1000 to 31536000000, not 999"],
    ),
    ("begin", r#"{"account": "a", "key": "k", "fingerprint": "f", "ttl_ms": 31536000001}"#, &["ttl_ms must be"]),
    ("begin", r#"{"account": "a", "key": "k", "fingerprint": "f", "ttl_ms": null}"#, &["ttl_ms must be", "not null"]),
    (
        "begin",
        r#"{"account": "a", "key": "k", "fingerprint": "f", "lease_ms": 99}"#,
        &["lease_ms must be a whole number from 100 to 3600000, not 99"],
    ),
    ("begin", r#"{"account": "a", "key": "k", "fingerprint": "f", "lease_ms": 3600001}"#, &["lease_ms must be"]),
    (
        "begin",
        r#"{"account": "a", "key": "k", "fingerprint": "f", "lease_ms": 1e3}"#,
        &["lease_ms must be", "not 1000.0"],
    ),
    ("begin", r#"{"account": "a", "key": "k", "fingerprint": "f", "lease_ms": -1}"#, &["lease_ms must be", "not -1"]),
    (
        "begin",
        r#"{"account": "a", "key": "k", "fingerprint": "f", "lease_ms": 18446744073709551616}"#,
        &["lease_ms must be"],
    ),
    (
        "begin",
        r#"{"account": "a", "key": "k", "fingerprint": "f", "wait_ms": 30001}"#,
        &["wait_ms must be a whole number from 0 to 30000, not 30001"],
    ),
    (
        "begin",
        r#"{"account": "a", "key": "k", "fingerprint": "f", "wait_ms": "1"}"#,
        &["wait_ms must be", "not a string"],
    ),
    (
        "begin",
        r#"{"account": "a", "key": "k", "fingerprint": "f", "on_lease_expiry": "steal"}"#,
        &["on_lease_expiry must be \"takeover\" or \"hold\", not \"steal\""],
    ),
    (
        "begin",
        r#"{"account": "a", "key": "k", "fingerprint": "f", "on_lease_expiry": true}"#,
        &["on_lease_expiry must be", "not true"],
    ),
    (
        "begin",
        r#"{"account": "a", "key": "k", "fingerprint": "f", "attempt_id": ""}"#,
        &["attempt_id must be a string of 1 to 64 bytes, not 0"],
    ),
    (
        "begin",
        r#"{"account": "a", "key": "k", "fingerprint": "f", "attempt_id": {}}"#,
        &["attempt_id must be", "not an object"],
    ),
    ("abandon", "{}", &["account is missing", "key is missing", "token is missing"]),
    (
        "abandon",
        r#"{"account": "a", "key": "k", "token": 0}"#,
        &["token must be the whole number that begin gave", "not 0"],
    ),
    (
        "abandon",
        r#"{"account": "a", "key": "k", "token": 9007199254740992}"#,
        &["token must be", "below 2^53", "not 9007199254740992"],
    ),
    ("abandon", r#"{"account": "a", "key": "k", "token": "1"}"#, &["token must be", "not a string"]),
    ("abandon", r#"{"account": "a", "key": "k", "token": 1.0}"#, &["token must be", "not 1.0"]),
    (
        "abandon",
        r#"{"account": "a", "key": "k", "token": 1, "lease_ms": 100}"#,
        &["lease_ms is unknown", "account, key, token"],
    ),
    ("extend", r#"{"account": "a", "key": "k", "token": 1}"#, &["lease_ms is missing"]),
    (
        "extend",
        r#"{"account": "a", "key": "k", "token": -1, "lease_ms": 99}"#,
        &["token must be", "not -1", "lease_ms must be", "not 99"],
    ),
    ("complete", "{}", &["account is missing", "key is missing", "token is missing", "response is missing"]),
    (
        "complete",
        r#"{"account": "a", "key": "k", "token": 1, "response": "ok"}"#,
        &["response must be an object", "not a string"],
    ),
    ("complete", r#"{"account": "a", "key": "k", "token": 1, "response": {}}"#, &["response.status is missing"]),
    (
        "complete",
        r#"{"account": "a", "key": "k", "token": 1, "response": {"status": 200}, "messages": null}"#,
        &["messages must be a list of at most 16 messages", "not null"],
    ),
    (
        "complete",
        r#"{"account": "a", "key": "k", "token": 1, "response": {"status": 200}, "messages": "x"}"#,
        &["messages must be a list", "not a string"],
    ),
    (
        "complete",
        r#"{"account": "a", "key": "k", "token": 1, "response": {"status": 200}, "messages": [1, {}]}"#,
        &[
            "messages[0] must be an object with eventType and payload, not 1",
            "messages[1].eventType is missing",
            "messages[1].payload is missing",
        ],
    ),
    (
        "complete",
        r#"{"account": "a b", "key": "k", "token": 1, "response": {"status": 200},
            "messages": [{"eventType": "a", "payload": {}}]}"#,
        &["account must be an application's uid", "may have letters"],
    ),
    (
        "complete",
        r#"{"account": "a", "key": "k", "token": 1, "response": {"status": 200},
            "messages": [{"eventType": "a b", "payload": [], "eventId": "", "channels": [], "tags": ["é"]}]}"#,
        &[
            "messages[0].eventType may have letters",
            "messages[0].payload must be a JSON object, not a list",
            "messages[0].eventId must be 1 to 256",
            "messages[0].channels must be a list of 1 to 5",
            "messages[0].tags[0] may have letters",
        ],
    ),
    (
        "complete",
        r#"{"account": "a", "key": "k", "token": 1, "response": {"status": 200},
            "messages": [{"eventType": "a", "payload": {}, "deliverAt": "2027-01-01T00:00:00Z"}]}"#,
        &["messages[0].deliverAt cannot be given"],
    ),
];

/// Members of a response, and what the detail must say.
const RESPONSES: &[(&str, &[&str])] = &[
    (r#""status": 99"#, &["response.status must be a whole number from 100 to 599, not 99"]),
    (r#""status": 600"#, &["response.status must be"]),
    (r#""status": 65736"#, &["response.status must be", "not 65736"]),
    (r#""status": "200""#, &["response.status must be", "not a string"]),
    (r#""status": 200.5"#, &["response.status must be", "not 200.5"]),
    (r#""status": 200, "code": 1"#, &["response.code is unknown", "status, headers, body, body_encoding"]),
    (r#""status": 200, "status": 201"#, &["response.status is there twice"]),
    (r#""status": 200, "body": null"#, &["response.body must be a string, not null"]),
    (r#""status": 200, "body": {"a": 1}"#, &["response.body must be a string, not an object"]),
    (
        r#""status": 200, "body": "", "body_encoding": "gzip""#,
        &["response.body_encoding must be \"base64\"", "not \"gzip\""],
    ),
    (r#""status": 200, "body": "", "body_encoding": null"#, &["response.body_encoding must be", "not null"]),
    (r#""status": 200, "body": "AA", "body_encoding": "base64""#, &["response.body must be base64", "padding"]),
    (r#""status": 200, "body": "AB==", "body_encoding": "base64""#, &["response.body must be base64"]),
    (r#""status": 200, "body": "AA==\n", "body_encoding": "base64""#, &["response.body must be base64"]),
    (
        r#""status": 200, "body": "_-8=", "body_encoding": "base64""#,
        &["response.body must be base64", "standard alphabet"],
    ),
    (r#""status": 200, "body": "ü", "body_encoding": "base64""#, &["response.body must be base64"]),
    (r#""status": 200, "headers": []"#, &["response.headers must be an object", "not a list"]),
    (r#""status": 200, "headers": null"#, &["response.headers must be an object", "not null"]),
    (
        r#""status": 200, "headers": {"a": 1}"#,
        &["response.headers[\"a\"] must be a string or a list of strings, not 1"],
    ),
    (r#""status": 200, "headers": {"a": null}"#, &["response.headers[\"a\"] must be", "not null"]),
    (r#""status": 200, "headers": {"a": {}}"#, &["response.headers[\"a\"] must be", "not an object"]),
    (r#""status": 200, "headers": {"a": ["b", 2]}"#, &["response.headers[\"a\"][1] must be a string, not 2"]),
    (r#""status": 200, "headers": {"": "x"}"#, &["response.headers has \"\", which is not the name"]),
    (r#""status": 200, "headers": {"a b": "x"}"#, &["response.headers has \"a b\", which is not the name"]),
    (r#""status": 200, "headers": {"ü": "x"}"#, &["response.headers has"]),
    (r#""status": 200, "headers": {"a": "x", "A": "y"}"#, &["response.headers names \"A\" twice"]),
    (r#""status": 200, "headers": {"a": "x", "a": "x"}"#, &["response.headers names \"a\" twice"]),
    (r#""status": 200, "headers": {"a": "x\r\ny"}"#, &["response.headers", "\"a\" has a control character"]),
    (r#""status": 200, "headers": {"a": ["ok", "\u0000"]}"#, &["response.headers", "control character"]),
];

#[tokio::test]
async fn every_wrong_body_is_refused_in_words_that_help_and_reaches_nobody() {
    let api = api();
    let completes = RESPONSES.iter().map(|(response, says)| {
        let body = format!(r#"{{"account": "a", "key": "k", "token": 1, "response": {{{response}}}}}"#);
        ("complete", body, *says)
    });
    let refused = REFUSED.iter().map(|(operation, body, says)| (*operation, (*body).to_owned(), *says));
    for (operation, body, says) in refused.chain(completes) {
        let request = Request::post(format!("/v1/idempotency/{operation}")).header("content-type", "application/json");
        let answer = api.send(request.body(body.clone()).unwrap()).await;
        answer.assert_problem(400, "invalid_request");
        for part in says {
            assert!(answer.detail().contains(part), "{body}\nshould say: {part}\nsays: {}", answer.detail());
        }
    }
    for operation in ["begin", "complete", "abandon", "extend"] {
        let target = format!("/v1/idempotency/{operation}");
        for nested in ["[".repeat(10_000), format!(r#"{{"account": {}"#, r#"{"a":"#.repeat(200))] {
            api.call("POST", &target, nested).await.assert_problem(400, "invalid_request");
        }
        let untyped = Request::post(&target).header("content-type", "text/plain").body(BEGIN).unwrap();
        api.send(untyped).await.assert_problem(415, "invalid_request");
        let answer = api.call("GET", &target, "").await;
        answer.assert_problem(405, "method_not_allowed");
        let late = Request::post(&target).header("content-type", "application/json").header("onceward-timeout-ms", "0");
        api.send(late.body(ABANDON).unwrap()).await.assert_problem(400, "invalid_request");
    }
    for (target, status) in [
        ("/v1/idempotency", 404),
        ("/v1/idempotency/", 404),
        ("/v1/idempotency/a/b/c", 404),
        ("/v1/idempotency/%ff", 400),
        ("/v1/idempotency/a/%ff", 400),
        ("/v1/idempotency/a/%zz", 400),
        ("/v1/idempotency/a/%00", 400),
        ("/v1/idempotency/%0a/k", 400),
        ("/v1/idempotency/%0a", 400),
        ("/v1/idempotency/a/%22k", 400),
    ] {
        assert_eq!(api.call("GET", target, "").await.status, status, "{target}");
    }
    assert!(api.fake.asked().is_empty());
}

#[tokio::test]
async fn names_are_taken_up_to_their_bounds_and_not_a_byte_more() {
    let api = api();
    let begin = |account: &str, key: &str, fingerprint: &str, attempt: &str| {
        json!({"account": account, "key": key, "fingerprint": fingerprint, "attempt_id": attempt}).to_string()
    };
    let (a, f, i) = ("ü".repeat(127), "f".repeat(128), "i".repeat(64));
    let key = format!("\"{}\"", "\\\"".repeat(255));
    assert_eq!(post(&api, "begin", begin(&a, &key, &f, &i)).await.status, 201);
    let control_free = |code: u16| (code, "invalid_request");
    for (body, (status, code), field) in [
        (begin(&"a".repeat(256), "k", "f", "i"), control_free(400), "account"),
        (begin("a", "k", &"ü".repeat(65), "i"), control_free(400), "fingerprint"),
        (begin("a", "k", "f", &"i".repeat(65)), control_free(400), "attempt_id"),
        (begin("a", &"k".repeat(256), "f", "i"), (413, "too_large"), "key"),
        (begin("a", &format!("\"{}\"", "k".repeat(256)), "f", "i"), (413, "too_large"), "key"),
        // What is wrong besides decides.
        (begin("a", &"k".repeat(256), "", "i"), control_free(400), "fingerprint"),
    ] {
        let answer = post(&api, "begin", body).await;
        answer.assert_problem(status, code);
        assert_eq!(answer.json()["errors"][0]["field"], field);
    }
    let long = "k".repeat(256);
    api.call("GET", &format!("/v1/idempotency/a/{long}"), "").await.assert_problem(413, "too_large");
    api.call("DELETE", &format!("/v1/idempotency/a/{long}"), "").await.assert_problem(413, "too_large");
    api.call("GET", &format!("/v1/idempotency/{long}"), "").await.assert_problem(400, "invalid_request");
    assert_eq!(api.fake.asked().len(), 1);
}

fn complete(response: &str) -> String {
    format!(r#"{{"account": "acme", "key": "k", "token": 4711, "response": {response}}}"#)
}

#[tokio::test]
async fn the_largest_response_is_taken_however_it_is_written_and_a_byte_more_is_413() {
    const MAX: usize = 256 << 10;
    let api = api();
    // One value of a byte each: as many quotes and commas as there can be.
    let names: Vec<String> = (0..32).map(|n| format!("h{n:02}")).collect();
    let values = 8 * 1_024 - 3 * 32;
    let headers = |values: usize| {
        let list = |count: usize| vec![r#""\u0041""#; count].join(",");
        let each = names.iter().enumerate().map(|(n, name)| {
            let name: String = name.chars().map(|char| format!("\\u{:04x}", char as u32)).collect();
            format!(r#""{name}":[{}]"#, list(values / 32 + usize::from(n < values % 32)))
        });
        format!("{{{}}}", each.collect::<Vec<_>>().join(","))
    };
    let escaped = |count: usize, values: usize| {
        complete(&format!(
            r#"{{"status": 200, "headers": {}, "body": "{}"}}"#,
            headers(values),
            "\\u0001".repeat(count)
        ))
    };
    let base64 = |text: String| complete(&format!(r#"{{"status": 200, "body": "{text}", "body_encoding": "base64"}}"#));
    // 262144 bytes leave one over a multiple of three; 262145 two.
    let (of_max, of_more) = (format!("{}AA==", "AAAA".repeat(MAX / 3)), format!("{}AAA=", "AAAA".repeat(MAX / 3)));

    assert_eq!(post(&api, "complete", escaped(MAX, values)).await.status, 200);
    let stored = api.fake.stored().unwrap();
    assert_eq!((stored.body.bytes().len(), stored.headers.len()), (MAX, 32));
    assert_eq!(
        post(&api, "complete", complete(&format!(r#"{{"status": 200, "body": "{}"}}"#, "ü".repeat(MAX / 2))))
            .await
            .status,
        200
    );
    assert_eq!(post(&api, "complete", base64(of_max.clone())).await.status, 200);
    assert_eq!(api.fake.stored().unwrap().body.bytes().len(), MAX);
    // Base64, too, may come in escapes.
    let escapes = of_max.bytes().map(|byte| format!("\\u{byte:04x}")).collect::<String>();
    assert_eq!(post(&api, "complete", base64(escapes)).await.status, 200);
    assert_eq!(api.fake.stored().unwrap().body.bytes().len(), MAX);
    api.fake.asked();

    let many = |count: usize| {
        let members: Vec<String> = (0..count).map(|n| format!(r#""h{n}": "x""#)).collect();
        complete(&format!(r#"{{"status": 200, "headers": {{{}}}}}"#, members.join(",")))
    };
    let empties = format!(r#"{{"status": 200, "headers": {{"a": [{}]}}}}"#, vec![r#""""#; 400_000].join(","));
    for (body, field, says) in [
        (escaped(MAX + 1, values), "response.body", "262145"),
        (escaped(1, values + 1), "response.headers", "8193"),
        (complete(&format!(r#"{{"status": 200, "body": "{}"}}"#, "a".repeat(MAX + 1))), "response.body", "262145"),
        (base64(of_more), "response.body", "262145"),
        (many(33), "response.headers", "33 headers"),
        (many(50_000), "response.headers", "50000 headers"),
        (complete(&empties), "response.headers", "400000 values"),
        (
            complete(&format!(r#"{{"status": 200, "headers": {{"a": "{}"}}}}"#, "v".repeat(8_192))),
            "response.headers",
            "8193",
        ),
        (
            complete(&format!(r#"{{"status": 200, "headers": {{"{}": "v"}}}}"#, "n".repeat(8_192))),
            "response.headers",
            "8193",
        ),
    ] {
        let answer = post(&api, "complete", body).await;
        answer.assert_problem(413, "too_large");
        assert!(answer.detail().contains(says) && answer.detail().contains("stays held"), "{}", answer.detail());
        assert_eq!(answer.json()["errors"][0]["field"], field);
        assert!(answer.body.len() < 1_000);
    }
    assert_eq!(post(&api, "complete", many(32)).await.status, 200);
    post(&api, "complete", " ".repeat(COMPLETE_BODY_BYTES_MAX + 1)).await.assert_problem(413, "too_large");
    post(&api, "begin", " ".repeat((64 << 10) + 1)).await.assert_problem(413, "too_large");
    assert_eq!(api.fake.asked().len(), 1);
}

fn tokens() -> Settings {
    let token = |name: &str, role, account: Option<&str>| TokenSettings {
        name: name.to_owned(),
        secret: Some(Secret::new(format!("{name}-secret"))),
        role: Some(role),
        account: account.map(str::to_owned),
        ..TokenSettings::default()
    };
    let mut settings = Settings::default();
    settings.auth.tokens = vec![
        token("admin", Role::Admin, None),
        token("service", Role::Service, None),
        token("acme", Role::Service, Some("acme")),
        token("metrics", Role::Metrics, None),
    ];
    settings
}

async fn call_as(api: &Api, name: &str, method: &str, target: &str, body: &str) -> Answer {
    let mut request = Request::builder().method(method).uri(target).header("content-type", "application/json");
    if !name.is_empty() {
        request = request.header("authorization", format!("Bearer {name}-secret"));
    }
    api.send(request.body(body.to_owned()).unwrap()).await
}

/// Every operation, on the account `acme`.
const OPERATIONS: [(&str, &str, &str); 7] = [
    ("POST", "/v1/idempotency/begin", BEGIN),
    ("POST", "/v1/idempotency/complete", COMPLETE),
    ("POST", "/v1/idempotency/abandon", ABANDON),
    ("POST", "/v1/idempotency/extend", EXTEND),
    ("GET", "/v1/idempotency/acme/k", ""),
    ("GET", "/v1/idempotency/acme", ""),
    ("DELETE", "/v1/idempotency/acme/k", ""),
];

#[tokio::test]
async fn tokens_reach_what_the_contract_says() {
    let api = api_with(&tokens());
    api.fake.set(|script| script.record = Ok(Some(view(RecordState::Completed))));
    for (method, target, body) in OPERATIONS {
        let deletes = method == "DELETE";
        for (name, allowed) in
            [("admin", true), ("service", !deletes), ("acme", !deletes), ("metrics", false), ("", false)]
        {
            let answer = call_as(&api, name, method, target, body).await;
            match (allowed, name) {
                (true, _) => assert!(answer.status < 300, "{method} {target} as {name}: {}", answer.status),
                (false, "") => answer.assert_problem(401, "unauthorized"),
                (false, _) => answer.assert_problem(403, "forbidden"),
            }
        }
    }
}

#[tokio::test]
async fn a_token_for_one_account_learns_nothing_of_any_other() {
    let api = api_with(&tokens());
    for (method, target, body) in OPERATIONS {
        // The account is compared as it stands, and before anything else is looked at.
        for other in ["acm", "acmeacme", "ACME", "other", " acme", "\\u0000", ""] {
            let (target, body) = match body {
                "" if other.is_empty() || other.contains('\\') => continue,
                "" => (target.replace("acme", &other.replace(' ', "%20")), String::new()),
                _ => (target.to_owned(), body.replace("acme", other)),
            };
            let mut answers = Vec::new();
            for exists in [true, false] {
                api.fake.set(|script| script.record = Ok(exists.then(|| view(RecordState::Completed))));
                let answer = call_as(&api, "acme", method, &target, &body).await;
                answer.assert_problem(403, "forbidden");
                answers.push(answer.body);
            }
            assert_eq!(answers[0], answers[1], "{method} {target}");
        }
    }
    // Also when something else is wrong.
    for body in [
        r#"{"account": "other"}"#,
        r#"{"account": "other", "key": "", "surprise": 1}"#,
        r#"{"account": "other", "account": "acme", "key": "k", "fingerprint": "f"}"#,
    ] {
        for operation in ["begin", "complete", "abandon", "extend"] {
            let target = format!("/v1/idempotency/{operation}");
            call_as(&api, "acme", "POST", &target, body).await.assert_problem(403, "forbidden");
        }
    }
    for target in ["/v1/idempotency/other?limit=x", "/v1/idempotency/other/%00", "/v1/idempotency/other/%22"] {
        call_as(&api, "acme", "GET", target, "").await.assert_problem(403, "forbidden");
    }
    // Smuggling its own account in behind another one's doesn't help, nor the other way round.
    let twice = r#"{"account": "acme", "account": "other", "key": "k", "fingerprint": "f"}"#;
    call_as(&api, "acme", "POST", "/v1/idempotency/begin", twice).await.assert_problem(400, "invalid_request");
    assert!(api.fake.asked().is_empty());
    for target in ["/v1/idempotency/%61cme/k", "/v1/idempotency/acme"] {
        let status = call_as(&api, "acme", "GET", target, "").await.status;
        assert!(status == 404 || status == 200, "{target}: {status}");
    }
    assert_eq!(api.fake.asked().len(), 2);
}

#[tokio::test]
async fn a_definite_no_is_503_and_an_unknown_outcome_504() {
    let api = api();
    let unavailable = ServiceError::Unavailable { reason: "no quorum".to_owned(), retry_after_ms: 1_001 };
    for (error, status, code) in [(unavailable, 503, "unavailable"), (ServiceError::Unknown, 504, "outcome_unknown")] {
        api.fake.set(|script| {
            script.begin = Err(error.clone());
            script.complete = Err(error.clone());
            script.abandon = Err(error.clone());
            script.extend = Err(error.clone());
            script.record = Err(error.clone());
            script.records = Err(error.clone());
            script.delete_record = Err(error.clone());
        });
        for (method, target, body) in OPERATIONS {
            let answer = api.call(method, target, body).await;
            answer.assert_problem(status, code);
            assert_eq!(answer.header("retry-after"), (status == 503).then_some("2"), "{method} {target}");
        }
    }
}

#[tokio::test]
async fn outcomes_are_counted() {
    let api = api();
    post(&api, "begin", BEGIN).await;
    post(&api, "complete", COMPLETE).await;
    for begin in
        [BeginAnswer::InProgress { retry_after_ms: 1 }, BeginAnswer::Indeterminate, BeginAnswer::FingerprintMismatch]
    {
        api.fake.set(|script| script.begin = Ok(begin));
        post(&api, "begin", BEGIN).await;
    }
    let stored = api.fake.stored().unwrap();
    let replay = Replay { response: stored, completed_wall_ms: 0 };
    api.fake.set(|script| script.begin = Ok(BeginAnswer::Completed(replay)));
    post(&api, "begin", BEGIN).await;
    for complete in [CompleteReply::Fenced, CompleteReply::AlreadyCompleted] {
        api.fake.set(|script| script.complete = Ok(complete));
        post(&api, "complete", COMPLETE).await;
    }
    let metrics = api.call("GET", "/metrics", "").await;
    let text = text(&metrics);
    for outcome in ["started", "completed", "in_progress", "indeterminate", "fingerprint_mismatch"] {
        let line = format!("onceward_idempotency_begins_total{{outcome=\"{outcome}\"}} 1\n");
        assert!(text.contains(&line), "{line} is missing in\n{text}");
    }
    for outcome in ["completed", "fenced", "already_completed"] {
        let line = format!("onceward_idempotency_completions_total{{outcome=\"{outcome}\"}} 1\n");
        assert!(text.contains(&line), "{line} is missing in\n{text}");
    }
}
