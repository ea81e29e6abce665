//! What is refused, where the answer says that it is wrong, and in which form.

use super::*;

#[tokio::test]
async fn every_error_below_api_v1_is_written_as_svix_writes_it() {
    let mut settings = Settings::default();
    settings.http.max_body_bytes = 16_384;
    let api = api_with(&settings);
    for (method, path, status, code) in [
        ("GET", "/api/v1", 404, "not_found"),
        ("GET", "/api/v1/", 404, "not_found"),
        ("GET", "/api/v1/app/", 404, "not_found"),
        ("GET", "/api/v1/nowhere", 404, "not_found"),
        ("GET", "/api/v1/app/acme/endpoint/one/oauth", 404, "not_found"),
        ("DELETE", "/api/v1/app", 405, "method_not_allowed"),
        ("BREW", "/api/v1/app/acme/msg", 405, "method_not_allowed"),
        ("GET", "/api/v1/app/%zz", 400, "invalid_request"),
        ("GET", "/api/v1/app/%ff", 422, "invalid_request"),
        ("GET", "/api/v1/app/a%20b", 422, "invalid_request"),
        ("GET", "/api/v1/app?limit=%ff", 422, "invalid_request"),
    ] {
        let answer = api.call(method, path, "").await;
        answer.assert_error(status, code);
        assert!(answer.header("x-request-id").is_some());
        assert_eq!(answer.header("allow").is_some(), status == 405, "{method} {path}");
    }
    api.call("POST", "/api/v1/app", " ".repeat(16_385)).await.assert_error(413, "too_large");
    let unread = Request::post("/api/v1/app").header("content-type", "text/plain").body("{}").unwrap();
    api.send(unread).await.assert_error(415, "invalid_request");
    let impatient = Request::get("/api/v1/app/acme").header("onceward-timeout-ms", "0").body("").unwrap();
    api.send(impatient).await.assert_error(400, "invalid_request");
    // Elsewhere they stay what they are.
    api.call("GET", "/v1/nowhere", "").await.assert_problem(404, "not_found");

    settings.http.max_in_flight = 0;
    let full = api_with(&settings);
    let answer = full.call("GET", "/api/v1/app", "").await;
    answer.assert_error(503, "unavailable");
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_definite_no_is_503_and_an_unknown_outcome_504_on_every_operation() {
    let api = with_endpoint().await;
    let unavailable = ServiceError::Unavailable { reason: "no quorum".to_owned(), retry_after_ms: 1_001 };
    for (error, status, code) in [(unavailable, 503, "unavailable"), (ServiceError::Unknown, 504, "outcome_unknown")] {
        api.fake.set(|script| script.webhooks = Err(error));
        let (app, endpoint) = (json!({"name": "x"}), json!({"url": "https://example.com"}));
        for (method, path, body) in [
            ("GET", "/app", Value::Null),
            ("POST", "/app", app.clone()),
            ("GET", "/app/acme", Value::Null),
            ("PUT", "/app/acme", app.clone()),
            ("PATCH", "/app/acme", app),
            ("DELETE", "/app/acme", Value::Null),
            ("GET", "/app/acme/endpoint", Value::Null),
            ("POST", "/app/acme/endpoint", endpoint.clone()),
            ("PUT", "/app/acme/endpoint/one", endpoint.clone()),
            ("PATCH", "/app/acme/endpoint/one", endpoint),
            ("DELETE", "/app/acme/endpoint/one", Value::Null),
            ("GET", "/app/acme/endpoint/one/secret", Value::Null),
            ("POST", "/app/acme/endpoint/one/secret/rotate", json!({})),
            ("PUT", "/app/acme/endpoint/one/headers", json!({"headers": {}})),
            ("GET", "/app/acme/msg", Value::Null),
            ("POST", "/app/acme/msg", json!({"eventType": "a", "payload": {}})),
            ("GET", "/app/acme/msg/x", Value::Null),
            ("GET", "/app/acme/msg/x/endpoint", Value::Null),
            ("GET", "/app/acme/attempt/msg/x", Value::Null),
            ("GET", "/event-type", Value::Null),
            ("PUT", "/event-type/a", json!({"description": ""})),
            ("GET", "/operational-webhook/endpoint", Value::Null),
        ] {
            let answer = call(&api, method, path, body).await;
            answer.assert_error(status, code);
            assert_eq!(answer.header("retry-after"), (status == 503).then_some("2"), "{method} {path}");
        }
    }
}

/// Bodies, by operation, and what the detail must say of each.
const REFUSED: &[(&str, &str, &str, &[&str])] = &[
    ("POST", "/app", "", &["body the body is empty"]),
    ("POST", "/app", "{", &["body the body is not valid JSON", "line 1 column 1"]),
    ("POST", "/app", "[]", &["body the body must be a JSON object, not a list"]),
    ("POST", "/app", "null", &["not null"]),
    ("POST", "/app", "{}", &["body.name is missing"]),
    ("POST", "/app", r#"{"name": "a", "name": "b"}"#, &["body.name is there twice"]),
    ("POST", "/app", r#"{"name": ""}"#, &["body.name must be a string of 1 to 256 bytes, not 0"]),
    ("POST", "/app", r#"{"name": "a\u0000"}"#, &["body.name must not contain control characters"]),
    ("POST", "/app", r#"{"name": null}"#, &["body.name", "not null"]),
    (
        "POST",
        "/app",
        r#"{"name": 1, "uid": "a b", "throttleRate": 0, "rateLimit": 65536, "metadata": {"a": 1}}"#,
        &[
            "body.name must be a string of 1 to 256 bytes, not 1",
            "body.uid may have letters",
            "body.throttleRate must be a whole number from 1 to 65535, not 0",
            "body.rateLimit must be a whole number from 1 to 65535, not 65536",
            "body.metadata.[\"a\"] must be a string, not 1",
        ],
    ),
    ("POST", "/app", r#"{"name": "a", "uid": ""}"#, &["body.uid must be 1 to 255 characters long, not 0"]),
    ("POST", "/app", r#"{"name": "a", "uid": "é"}"#, &["body.uid may have letters"]),
    ("POST", "/app", r#"{"name": "a", "metadata": []}"#, &["body.metadata must be an object of strings by name"]),
    ("POST", "/app?get_if_exists=yes", r#"{"name": "a"}"#, &["query.get_if_exists must be true or false, not \"yes\""]),
    ("PATCH", "/app/acme", r#"{"name": null}"#, &["body.name must be", "not null"]),
    ("PATCH", "/app/acme", r#"{"metadata": null}"#, &["body.metadata must be", "not null"]),
    ("POST", "/app/acme/endpoint", "{}", &["body.url is missing"]),
    ("POST", "/app/acme/endpoint", r#"{"url": 1}"#, &["body.url must be a URL of 1 to 2048 bytes, not 1"]),
    ("POST", "/app/acme/endpoint", r#"{"url": ""}"#, &["body.url must be"]),
    (
        "POST",
        "/app/acme/endpoint",
        r#"{"url": "https://a.example", "eventTypes": [], "channels": [], "disabled": 1, "description": 2, "version": 0}"#,
        &[
            "body.eventTypes must be a list of 1 to 100 strings, or null, not of 0",
            "body.channels must be a list of 1 to 10 strings, or null, not of 0",
            "body.disabled must be true or false, not 1",
            "body.description must be a string of 0 to 1024 bytes, not 2",
            "body.version must be",
        ],
    ),
    (
        "POST",
        "/app/acme/endpoint",
        r#"{"url": "https://a.example", "eventTypes": ["a b", 1, "a"], "channels": ["x y"], "uid": "a/b"}"#,
        &[
            "body.eventTypes.[0] may have letters",
            "body.eventTypes.[1] must be a string, not 1",
            "body.channels.[0] may have letters, digits and any of -_.:+ only",
            "body.uid may have letters",
        ],
    ),
    (
        "POST",
        "/app/acme/endpoint",
        r#"{"url": "https://a.example", "headers": {"host": "b"}}"#,
        &["body.headers.[\"host\"]"],
    ),
    ("PATCH", "/app/acme/endpoint/one", r#"{"url": null}"#, &["body.url must be", "not null"]),
    ("PATCH", "/app/acme/endpoint/one", r#"{"disabled": null}"#, &["body.disabled must be", "not null"]),
    ("PUT", "/app/acme/endpoint/a%2Fb", r#"{"url": "https://a.example"}"#, &["path.endpoint_id may have letters"]),
    (
        "PATCH",
        "/app/acme/endpoint/one/headers",
        r#"{"headers": {}, "deleteHeaders": "x"}"#,
        &["body.deleteHeaders must be a list"],
    ),
    ("POST", "/app/acme/msg", "{}", &["body.eventType is missing", "body.payload is missing"]),
    (
        "POST",
        "/app/acme/msg",
        r#"{"eventType": "a/b", "payload": [1], "eventId": "a b", "channels": ["1","2","3","4","5","6"], "tags": [""]}"#,
        &[
            "body.eventType may have letters",
            "body.payload must be a JSON object, not a list",
            "body.eventId may have letters",
            "body.channels must be a list of 1 to 5 strings, or null, not of 6",
            "body.tags.[0] must be 1 to 128 characters long, not 0",
        ],
    ),
    (
        "POST",
        "/app/acme/msg",
        r#"{"eventType": "a", "payload": null}"#,
        &["body.payload must be a JSON object, not null"],
    ),
    (
        "POST",
        "/app/acme/msg",
        r#"{"eventType": "a", "payload": "{}"}"#,
        &["body.payload must be a JSON object, not a string"],
    ),
    (
        "POST",
        "/app/acme/msg",
        r#"{"eventType": "a", "payload": {}, "payloadRetentionPeriod": 91}"#,
        &["body.payloadRetentionPeriod", "from 1 to 90, not 91"],
    ),
    (
        "POST",
        "/app/acme/msg",
        r#"{"eventType": "a", "payload": {}, "payloadRetentionHours": 0}"#,
        &["body.payloadRetentionHours", "not 0"],
    ),
    (
        "POST",
        "/app/acme/msg",
        r#"{"eventType": "a", "payload": {}, "deliverAt": "2027-01-01T00:00:00Z"}"#,
        &["body.deliverAt cannot be given"],
    ),
    (
        "POST",
        "/app/acme/msg",
        r#"{"eventType": "a", "payload": {}, "transformationsParams": {"rawPayload": "x"}}"#,
        &["body.transformationsParams cannot be given"],
    ),
    (
        "POST",
        "/app/acme/msg",
        r#"{"eventType": "a", "payload": {}, "application": {"uid": 1}}"#,
        &["body.application.name is missing", "body.application.uid must be"],
    ),
    ("POST", "/app/acme/msg", r#"{"eventType": "a", "payload": {"a": nul}}"#, &["not valid JSON"]),
    ("POST", "/app/a%20b/msg", r#"{"eventType": "a", "payload": {}}"#, &["path.app_id may have letters"]),
    ("GET", "/app?limit=0", "", &["query.limit must be a whole number from 1 to 250, not \"0\""]),
    ("GET", "/app?limit=251", "", &["query.limit must be"]),
    ("GET", "/app?limit=+5", "", &["query.limit must be"]),
    ("GET", "/app?order=up", "", &["query.order must be \"ascending\" or \"descending\", not \"up\""]),
    ("GET", "/app?iterator=x", "", &["query.iterator must be what an earlier page"]),
    ("GET", "/app?iterator=--app_0000000000000000000000000Ab", "", &["query.iterator must be"]),
    ("GET", "/app?limit=1&limit=2", "", &["query.limit is there twice"]),
    ("GET", "/app/acme/msg?iterator=ep_0000000000000000000000000Ab", "", &["query.iterator must be"]),
    (
        "GET",
        "/app/acme/msg?before=yesterday&after=2026-13-01T00:00:00Z",
        "",
        &["query.before must be an instant", "query.after must be"],
    ),
    (
        "GET",
        "/app/acme/msg?channel=a%20b&tag=%22&event_types=a,,b",
        "",
        &["query.channel may have", "query.tag may have", "query.event_types must be 1 to 256"],
    ),
    ("GET", "/app/acme/msg?with_content=1", "", &["query.with_content must be true or false"]),
    (
        "GET",
        "/app/acme/attempt/msg/x?status=9&status_code_class=250&endpoint_id=%2F",
        "",
        &["query.status must be", "query.status_code_class must be", "query.endpoint_id must be"],
    ),
    ("GET", "/app/acme/msg/a%20b", "", &["path.msg_id may have letters"]),
    ("POST", "/event-type", "{}", &["body.name is missing", "body.description is missing"]),
    (
        "POST",
        "/event-type",
        r#"{"name": "a b", "description": 1, "schemas": [], "archived": "no", "featureFlags": ["a", "b"]}"#,
        &[
            "body.name may have letters",
            "body.description must be",
            "body.schemas must be a JSON object, or null, not a list",
            "body.archived must be",
            "body.featureFlags must be a list of 1 to 1 strings",
        ],
    ),
    ("PATCH", "/event-type/a", r#"{"description": null}"#, &["body.description must be", "not null"]),
    ("DELETE", "/event-type/a?expunge=2", "", &["query.expunge must be true or false"]),
    ("GET", "/event-type/a%2Fb", "", &["path.event_type_name may have letters"]),
    (
        "POST",
        "/operational-webhook/endpoint",
        r#"{"url": "https://a.example", "eventTypes": "endpoint.disabled"}"#,
        &["body.eventTypes must be a list"],
    ),
];

#[tokio::test]
async fn every_wrong_field_is_422_with_its_place_and_reaches_no_shard() {
    let api = with_endpoint().await;
    api.fake.asked();
    for (method, path, body, says) in REFUSED {
        let request = Request::builder().method(*method).uri(format!("/api/v1{path}"));
        let request = request.header("content-type", "application/json").body(*body).unwrap();
        let answer = api.send(request).await;
        answer.assert_error(422, "invalid_request");
        for part in *says {
            assert!(
                answer.detail().contains(part),
                "{method} {path} {body}\nshould say: {part}\nsays: {}",
                answer.detail()
            );
        }
    }
    assert_eq!(api.fake.asked(), [""; 0]);
}

#[tokio::test]
async fn what_an_error_repeats_of_a_request_is_cut() {
    let api = with_endpoint().await;
    let long = "x".repeat(10_000);
    for (path, body) in [
        ("/app", json!({"name": &long, "uid": &long, "metadata": {&long: 1}})),
        ("/app/acme/endpoint", json!({"url": "https://a.example", "headers": {&long: 1, format!("{long} "): "b"}})),
        ("/app/acme/msg", json!({"eventType": &long, "payload": {}, "channels": vec![&long; 3]})),
    ] {
        let answer = call(&api, "POST", path, body).await;
        answer.assert_error(422, "invalid_request");
        assert!(answer.body.len() < 3_000, "{}", answer.body.len());
    }
    let many = json!({"url": "https://a.example", "metadata": (0..64).map(|n| (n.to_string(), json!(n))).collect::<serde_json::Map<_, _>>()});
    let answer = call(&api, "POST", "/app/acme/endpoint", many).await;
    assert_eq!(answer.json()["detail"].as_array().map(Vec::len), Some(16));
}
