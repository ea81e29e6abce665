//! The contract of the HTTP API over a scripted service: statuses, bodies, headers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::Request;
use onceward_core::{
    cluster::ShardId,
    limits::{ItemResult, RefundReply, Refusal, ResetReply},
};
use onceward_server::{
    api::{App, Operations, openapi},
    auth::Right,
    settings::{ResetFormat, Role, Secret, Settings, TokenSettings},
};
use onceward_shard::{CheckError, Degraded, ServiceError};
use serde_json::{Value, json};
use support::{allowed, answer, api, api_with, denied};

const ONE: &str = r#"{"checks": [{"policy": "api", "key": "key_123"}]}"#;
const TWO: &str = r#"{"checks": [{"policy": "api", "key": "k"}, {"policy": "ip", "key": "192.0.2.1"}]}"#;

fn unavailable() -> ServiceError {
    ServiceError::Unavailable { reason: "no quorum".to_owned(), retry_after_ms: 1_001 }
}

#[tokio::test]
async fn an_allowed_check_is_200_with_results_and_headers() {
    let api = api();
    let answer = api.check(ONE).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let expected = json!({"allowed": true, "results": [{"policy": "api", "key": "key_123", "allowed": true, "limit": 20,
        "remaining": 19, "retry_after_ms": 0, "reset_after_ms": 500, "degraded": null}]});
    assert_eq!(answer.json(), expected);
    assert_eq!(answer.header("ratelimit-limit"), Some("20"));
    assert_eq!(answer.header("ratelimit-remaining"), Some("19"));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""api";q=20;w=10"#));
    assert_eq!(answer.header("ratelimit"), Some(r#""api";r=19;t=1"#));
    assert_eq!(answer.header("retry-after"), None);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let reset: u64 = answer.header("ratelimit-reset").unwrap().parse().unwrap();
    assert!((now..=now + 2).contains(&reset), "{reset} at {now}");
    assert_eq!(api.fake.asked(), [r#"check Enforce [CheckItem { policy: "api", key: "key_123", cost: 1 }] None"#]);
    assert!((1_900..=2_000).contains(&api.fake.patience_ms()));
}

#[tokio::test]
async fn a_denied_check_is_429_with_the_same_members_and_the_problems() {
    let api = api();
    api.fake.set(|script| script.check = Ok(answer(vec![denied()])));
    let answer = api.check(ONE).await;
    answer.assert_problem(429, "rate_limited");
    // Waits are rounded up: to milliseconds in the body, to seconds in the header.
    assert_eq!(answer.json()["results"][0]["retry_after_ms"], 1_235);
    assert_eq!(answer.json()["results"][0]["reset_after_ms"], 9_001);
    assert_eq!(answer.json()["allowed"], false);
    assert_eq!(answer.json()["retry_after_ms"], 1_235);
    assert_eq!(answer.header("retry-after"), Some("2"));
    assert_eq!(answer.header("ratelimit"), Some(r#""api";r=0;t=10"#));
}

#[tokio::test]
async fn retry_after_is_at_least_one_second_and_absent_when_no_wait_helps() {
    let api = api();
    api.fake.set(|script| script.check = Ok(answer(vec![ItemResult { retry_after_us: Some(1), ..denied() }])));
    assert_eq!(api.check(ONE).await.header("retry-after"), Some("1"));
    let blocked = ItemResult { retry_after_us: None, limit: 0, window_us: 0, reset_after_us: 0, ..denied() };
    api.fake.set(|script| script.check = Ok(answer(vec![denied(), blocked])));
    let answer = api.check(TWO).await;
    answer.assert_problem(429, "rate_limited");
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(answer.json()["results"][1]["retry_after_ms"], Value::Null);
    assert_eq!(answer.header("ratelimit-limit"), Some("0"));
}

#[tokio::test]
async fn shadow_is_always_200_and_says_what_it_would_have_been() {
    let api = api();
    let body = r#"{"checks": [{"policy": "api", "key": "k"}], "mode": "shadow"}"#;
    for check in [Ok(answer(vec![denied()])), Err(CheckError::DeniedUnavailable(answer(vec![denied()])))] {
        api.fake.set(|script| script.check = check);
        let answer = api.check(body).await;
        assert_eq!((answer.status, &answer.json()["allowed"]), (200, &json!(false)));
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.json()["code"], Value::Null);
    }
}

#[tokio::test]
async fn headers_tell_of_the_policy_nearest_to_its_limit_and_list_each_policy_once() {
    let api = api();
    let nearer = ItemResult { limit: 1_000, remaining: 100, ..allowed() };
    let nearest =
        ItemResult { limit: 1_000_000_000_000, remaining: 1_000, window_us: 1, reset_after_us: u64::MAX, ..allowed() };
    api.fake.set(|script| script.check = Ok(answer(vec![allowed(), nearer, nearest])));
    let body = r#"{"checks": [{"policy": "a", "key": "1"}, {"policy": "a", "key": "2"}, {"policy": "b", "key": "3"}]}"#;
    let answer = api.check(body).await;
    assert_eq!(answer.header("ratelimit-limit"), Some("1000000000000"));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""a";q=1000;w=10, "b";q=1000000000000;w=1"#));
    // A time beyond all microseconds, and a number of more than 15 digits, is cut to what a structured field can say.
    assert_eq!(answer.header("ratelimit"), Some(r#""a";r=100;t=1, "b";r=1000;t=999999999999999"#));
}

#[tokio::test]
async fn reset_in_delta_format_is_seconds_from_now() {
    let mut settings = Settings::default();
    settings.http.reset_format = ResetFormat::Delta;
    assert_eq!(api_with(&settings).check(ONE).await.header("ratelimit-reset"), Some("1"));
}

#[tokio::test]
async fn degraded_answers_say_who_answered() {
    let api = api();
    let mut local = answer(vec![allowed(), allowed()]);
    local.degraded = vec![Some(Degraded::Local), Some(Degraded::Allowed)];
    api.fake.set(|script| script.check = Ok(local));
    let body = api.check(TWO).await.json();
    assert_eq!(
        (&body["results"][0]["degraded"], &body["results"][1]["degraded"]),
        (&json!("local"), &json!("allowed"))
    );

    let mut refused = answer(vec![denied()]);
    refused.degraded = vec![Some(Degraded::Denied)];
    api.fake.set(|script| script.check = Err(CheckError::DeniedUnavailable(refused)));
    let answer = api.check(ONE).await;
    answer.assert_problem(503, "unavailable");
    assert_eq!(answer.json()["results"][0]["degraded"], "denied");
    assert_eq!(answer.header("retry-after"), Some("1"));

    let metrics = api.call("GET", "/metrics", "").await;
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    for line in [
        r#"onceward_checks_degraded_total{degraded="local"} 1"#,
        r#"onceward_checks_degraded_total{degraded="denied"} 1"#,
        r#"onceward_checks_total{outcome="allowed"} 1"#,
        r#"onceward_http_requests_total{method="POST",path="/v1/limits/check",class="5xx"} 1"#,
        "onceward_log_fsyncs_total 0",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
}

#[tokio::test]
async fn refused_checks_have_their_codes() {
    let api = api();
    let (policy, key) = ("api".to_owned(), "k".to_owned());
    for (refusal, status, code, names) in [
        (Refusal::PolicyNotFound { policy: policy.clone() }, 404, "not_found", "\"api\""),
        (
            Refusal::CostExceedsBurst { policy: policy.clone(), key: key.clone(), cost: 21, burst: 20 },
            400,
            "cost_exceeds_burst",
            "20",
        ),
        (Refusal::RequestIdReused { policy, key, admitted_cost: 3 }, 422, "fingerprint_mismatch", "3"),
    ] {
        api.fake.set(|script| script.check = Err(CheckError::Refused(refusal)));
        let answer = api.check(ONE).await;
        answer.assert_problem(status, code);
        assert!(answer.detail().contains(names), "{}", answer.detail());
    }
}

#[tokio::test]
async fn a_definite_no_is_503_and_an_unknown_outcome_504_on_every_operation() {
    let api = api();
    for (error, status, code) in [(unavailable(), 503, "unavailable"), (ServiceError::Unknown, 504, "outcome_unknown")]
    {
        api.fake.set(|script| {
            script.check = Err(CheckError::Service(error.clone()));
            script.refund = Err(error.clone());
            script.reset = Err(error.clone());
            script.policies = Err(error.clone());
        });
        for (method, target, body) in [
            ("POST", "/v1/limits/check", ONE),
            ("POST", "/v1/limits/refund", r#"{"policy": "api", "key": "k", "cost": 1, "request_id": "r"}"#),
            ("DELETE", "/v1/limits/api/k", ""),
            ("PUT", "/v1/policies/api", r#"{"rate": "2/s"}"#),
            ("GET", "/v1/policies/api", ""),
            ("GET", "/v1/policies", ""),
            ("DELETE", "/v1/policies/api", ""),
            ("POST", "/v1/cluster/nodes/2/replace", ""),
        ] {
            let answer = api.call(method, target, body.to_owned()).await;
            answer.assert_problem(status, code);
            let wait = (status == 503).then_some("2");
            assert_eq!(answer.header("retry-after"), wait, "{method} {target}");
        }
    }
}

#[tokio::test]
async fn policies_are_created_replaced_read_and_deleted() {
    let api = api();
    let body = r#"{"rate": "2/s", "burst": 20, "overrides": {"vip": {"rate": "5000/15min"}, "bad": "deny"}}"#;
    let created = api.call("PUT", "/v1/policies/api", body).await;
    assert_eq!(created.status, 201);
    let expected = json!({"name": "api", "revision": 7, "algorithm": "token_bucket", "rate": "2/s", "burst": 20,
        "on_unavailable": "local", "timeout_ms": 250, "exempt": [], "escrow": "auto",
        "overrides": {"vip": {"rate": "5000/15min", "burst": 5000}, "bad": "deny"}});
    assert_eq!(created.json(), expected);
    api.fake.set(|script| script.created = false);
    assert_eq!(api.call("PUT", "/v1/policies/api", body).await.status, 200);
    api.fake.set(|script| script.pending_shards = vec![ShardId(3), ShardId(5)]);
    let stored = api.call("PUT", "/v1/policies/api", body).await;
    assert_eq!((stored.status, &stored.json()["pending_shards"]), (202, &json!([3, 5])));
    let deleted = api.call("DELETE", "/v1/policies/api", "").await;
    assert_eq!((deleted.status, &deleted.json()["pending_shards"]), (202, &json!([3, 5])));
    api.fake.set(|script| script.pending_shards.clear());
    assert_eq!(api.call("DELETE", "/v1/policies/api", "").await.status, 204);

    let read = api.call("GET", "/v1/policies/api", "").await;
    assert_eq!((read.status, &read.json()["exempt"]), (200, &json!(["health", "internal-*"])));
    let list = api.call("GET", "/v1/policies", "").await;
    assert_eq!(list.json()["policies"].as_array().map(Vec::len), Some(2));
    api.fake.set(|script| (script.exists, script.limit_reached) = (false, true));
    api.call("GET", "/v1/policies/api", "").await.assert_problem(404, "not_found");
    api.call("DELETE", "/v1/policies/api", "").await.assert_problem(404, "not_found");
    api.call("PUT", "/v1/policies/api", body).await.assert_problem(413, "too_large");
}

#[tokio::test]
async fn a_sliding_window_has_no_burst() {
    let stored = api().call("PUT", "/v1/policies/api", r#"{"rate": "2/s", "algorithm": "sliding_window"}"#).await;
    assert_eq!((stored.status, stored.json().get("burst")), (201, None));
}

#[tokio::test]
async fn refunds_and_resets_answer_as_the_contract_says() {
    let api = api();
    let refund = r#"{"policy": "api", "key": "k", "cost": 1, "request_id": "r"}"#;
    let answer = api.call("POST", "/v1/limits/refund", refund).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"credited": 1, "limit": 20, "remaining": 20})));
    for (reply, status, code) in [
        (RefundReply::Forgotten, 404, "not_found"),
        (RefundReply::PolicyNotFound { policy: "api".to_owned() }, 404, "not_found"),
        (RefundReply::CostMismatch { admitted_cost: 2 }, 422, "fingerprint_mismatch"),
    ] {
        api.fake.set(|script| script.refund = Ok(reply));
        api.call("POST", "/v1/limits/refund", refund).await.assert_problem(status, code);
    }
    api.fake.asked();
    assert_eq!(api.call("DELETE", "/v1/limits/api/a%2Fb%20%C3%A4%00", "").await.status, 204);
    assert_eq!(api.fake.asked(), [r#"ResetCommand { policy: "api", key: "a/b ä\0" }"#]);
    api.fake.set(|script| script.reset = Ok(ResetReply::PolicyNotFound { policy: "api".to_owned() }));
    api.call("DELETE", "/v1/limits/api/k", "").await.assert_problem(404, "not_found");
}

#[tokio::test]
async fn the_cluster_is_described_with_hashes_when_asked() {
    let api = api();
    let body = api.call("GET", "/v1/cluster", "").await.json();
    assert_eq!((&body["cluster_id"], &body["node_id"]), (&json!(format!("{:032x}", 0xabc)), &json!(1)));
    let node = json!({"id": 1, "http_address": "127.0.0.1:4001", "peer_address": "127.0.0.1:4101", "reachable": true,
        "wall_clock_offset_ms": 0});
    assert_eq!(body["nodes"], json!([node]));
    let shard = json!({"id": 0, "leader": 1, "term": 3, "last_log_index": 10, "applied_index": 9, "members": [1]});
    assert_eq!(body["shards"], json!([shard]));
    let body = api.call("GET", "/v1/cluster?state_hash=true", "").await.json();
    assert_eq!(body["shards"][0]["state_hash"], json!({"applied_index": 9, "hash": "00ff"}));
    api.call("GET", "/v1/cluster?state_hash=maybe", "").await.assert_problem(400, "invalid_request");

    let replaced = api.call("POST", "/v1/cluster/nodes/2/replace", "").await;
    assert_eq!((replaced.status, replaced.json()), (200, json!({"id": 2, "state": "awaited", "generation": 2})));
    api.fake.set(|script| script.exists = false);
    api.call("POST", "/v1/cluster/nodes/9/replace", "").await.assert_problem(404, "not_found");
    for id in ["0", "x", "-1", "+2", "65536", "%32%20"] {
        let target = format!("/v1/cluster/nodes/{id}/replace");
        api.call("POST", &target, "").await.assert_problem(400, "invalid_request");
    }
}

#[tokio::test]
async fn health_follows_the_node() {
    let api = api();
    assert_eq!(api.call("GET", "/livez", "").await.status, 200);
    assert_eq!(api.call("GET", "/readyz", "").await.status, 200);
    api.fake.set(|script| script.ready = false);
    let answer = api.call("GET", "/readyz", "").await;
    answer.assert_problem(503, "unavailable");
    assert_eq!(answer.json()["waiting_shards"], json!([2]));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(api.call("GET", "/livez", "").await.status, 200);
}

#[tokio::test]
async fn a_stopping_node_is_not_ready() {
    let api = api();
    api.edge.app().stopping.cancel();
    let answer = api.call("GET", "/readyz", "").await;
    answer.assert_problem(503, "unavailable");
    assert!(answer.detail().contains("stopping"));
    assert_eq!(api.check(ONE).await.status, 200);
}

#[tokio::test]
async fn every_answer_has_a_request_id_and_passes_the_trace_on() {
    let api = api();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for target in ["/livez", "/nowhere", "/v1/cluster?x", "/v1/policies/api"] {
        let request = Request::get(target).header("x-request-id", "req-7").header("traceparent", trace);
        let answer = api.send(request.body("").unwrap()).await;
        assert_eq!(
            (answer.header("x-request-id"), answer.header("traceparent")),
            (Some("req-7"), Some(trace)),
            "{target}"
        );
        let answer = api.call("GET", target, "").await;
        assert_eq!(answer.header("x-request-id").map(str::len), Some(32), "{target}");
        assert_eq!(answer.header("traceparent"), None);
    }
}

#[tokio::test]
async fn the_callers_timeout_lowers_the_deadline_and_nothing_else() {
    let api = api();
    let with = |value: &str| {
        let request = Request::post("/v1/limits/check").header("content-type", "application/json");
        request.header("onceward-timeout-ms", value).body(ONE).unwrap()
    };
    assert_eq!(api.send(with("50")).await.status, 200);
    assert!(api.fake.patience_ms() <= 50);
    assert_eq!(api.send(with("2000")).await.status, 200);
    for value in ["0", "2001", "-1", "+5", "1.5", "", "x", "99999999999999999999"] {
        api.send(with(value)).await.assert_problem(400, "invalid_request");
    }
}

#[tokio::test]
async fn tokens_are_asked_for_where_the_contract_says() {
    let mut settings = Settings::default();
    let token = |name: &str, role, account: Option<&str>| TokenSettings {
        name: name.to_owned(),
        secret: Some(Secret::new(format!("{name}-secret"))),
        role: Some(role),
        account: account.map(str::to_owned),
        ..TokenSettings::default()
    };
    settings.auth.tokens = vec![
        token("admin", Role::Admin, None),
        token("service", Role::Service, None),
        token("tenant", Role::Service, Some("t")),
        token("metrics", Role::Metrics, None),
    ];
    let api = api_with(&settings);
    let refund = r#"{"policy": "api", "key": "k", "cost": 1, "request_id": "r"}"#;
    // Who is allowed, of: nobody in particular, admin, service, service with account, metrics.
    for (method, target, body, allowed) in [
        ("GET", "/livez", "", [true, true, true, true, true]),
        ("GET", "/readyz", "", [true, true, true, true, true]),
        ("GET", "/metrics", "", [false, true, false, false, true]),
        ("GET", "/openapi.json", "", [false, true, true, true, false]),
        ("GET", "/v1/cluster", "", [false, true, true, true, false]),
        ("POST", "/v1/cluster/nodes/2/replace", "", [false, true, false, false, false]),
        ("GET", "/v1/policies", "", [false, true, true, false, false]),
        ("GET", "/v1/policies/api", "", [false, true, true, false, false]),
        ("PUT", "/v1/policies/api", r#"{"rate": "2/s"}"#, [false, true, false, false, false]),
        ("DELETE", "/v1/policies/api", "", [false, true, false, false, false]),
        ("POST", "/v1/limits/check", ONE, [false, true, true, true, false]),
        ("POST", "/v1/limits/refund", refund, [false, true, true, true, false]),
        ("DELETE", "/v1/limits/api/k", "", [false, true, true, false, false]),
    ] {
        for (name, allowed) in ["", "admin", "service", "tenant", "metrics"].into_iter().zip(allowed) {
            let mut request = Request::builder().method(method).uri(target).header("content-type", "application/json");
            if !name.is_empty() {
                request = request.header("authorization", format!("Bearer {name}-secret"));
            }
            let answer = api.send(request.body(body).unwrap()).await;
            match (allowed, name) {
                (true, _) => assert!(answer.status < 300, "{method} {target} as {name:?}: {}", answer.status),
                (false, "") => {
                    answer.assert_problem(401, "unauthorized");
                    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
                }
                (false, _) => answer.assert_problem(403, "forbidden"),
            }
        }
    }
}

#[tokio::test]
async fn requests_over_the_bound_in_flight_are_503_but_health_is_not() {
    let mut settings = Settings::default();
    settings.http.max_in_flight = 0;
    let api = api_with(&settings);
    let answer = api.check(ONE).await;
    answer.assert_problem(503, "unavailable");
    assert_eq!(answer.header("retry-after"), Some("1"));
    for method in ["GET", "HEAD"] {
        assert_eq!(api.call(method, "/livez", "").await.status, 200);
    }
    assert!(api.fake.asked().is_empty());
}

#[tokio::test]
async fn openapi_describes_every_operation_and_no_other() {
    let api = api();
    let served = api.call("GET", "/openapi.json", "").await;
    assert_eq!(served.body, openapi::document());
    let document = served.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let app: App = api.edge.app().clone();
    let operations = Operations::new(app).list;
    for operation in &operations {
        let what = format!("{} {}", operation.method, operation.path);
        let described = &document["paths"][operation.path][operation.method.to_lowercase()];
        let responses = described["responses"].as_object().expect(&what);
        let open = operation.right == Right::Open;
        // An empty requirement: no token is needed.
        assert_eq!(described["security"] == json!([{}]), open, "{what}");
        assert_eq!(responses.contains_key("401") && responses.contains_key("403"), !open, "{what}");
        assert_eq!(described["requestBody"].is_object(), responses.contains_key("415"), "{what}");
        for (status, response) in responses {
            let media: Vec<&String> =
                response["content"].as_object().map(|content| content.keys().collect()).unwrap_or_default();
            let is_webhooks = operation.path.starts_with("/api/v1/");
            let of_errors = if is_webhooks { "application/json" } else { "application/problem+json" };
            let is_error = status.starts_with(['4', '5']);
            assert!(!is_error || media == [of_errors], "{what} {status}: {media:?}");
            assert!(is_error || media != ["application/problem+json"], "{what} {status}: {media:?}");
        }
    }
    let check = &document["paths"]["/v1/limits/check"]["post"]["responses"];
    for status in ["200", "429", "503"] {
        assert!(
            check[status]["headers"]["RateLimit"].is_object()
                && check[status]["headers"]["RateLimit-Reset"].is_object()
        );
    }
    let patch = &document["paths"]["/api/v1/app/{app_id}"]["patch"]["requestBody"]["content"]["application/json"];
    assert_eq!(patch["schema"]["$ref"], "#/components/schemas/ApplicationPatch");
    assert_eq!(document["components"]["schemas"]["ApplicationPatch"].get("required"), None);
    assert_eq!(document["components"]["schemas"]["ApplicationIn"]["required"], json!(["name"]));
    let described: usize =
        document["paths"].as_object().unwrap().values().map(|path| path.as_object().unwrap().len()).sum();
    assert_eq!(described, operations.len());
    assert_references_resolve(&document, &document);
}

fn assert_references_resolve(value: &Value, document: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
            members.values().for_each(|value| assert_references_resolve(value, document));
        }
        Value::Array(values) => values.iter().for_each(|value| assert_references_resolve(value, document)),
        _ => {}
    }
}
