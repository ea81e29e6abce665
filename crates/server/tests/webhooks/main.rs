//! The contract of `/api/v1`, over shards in memory: what Svix's clients send and expect, and errors as they read them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod errors;
#[path = "../support/mod.rs"]
mod support;

use axum::http::Request;
use bytes::Bytes;
use onceward_core::{
    idempotency::{CompleteReply, PublishedMessage},
    webhooks::{
        AppId, EndpointId, MessageId, Outcome, ReceiverAnswer, RecordOutcomes, Refusal, Verdict,
        bounds::PAYLOAD_BYTES_MAX,
    },
};
use onceward_server::{
    bounds::PAYLOAD_DEPTH_MAX,
    settings::{Role, Secret, Settings, TokenSettings},
};
use onceward_shard::ServiceError;
use serde_json::{Value, json};
use support::{Answer, Api, WALL_MS, api, api_with, read};

const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

async fn call(api: &Api, method: &str, path: &str, body: Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    api.call(method, &format!("/api/v1{path}"), body).await
}

async fn get(api: &Api, path: &str) -> Answer {
    call(api, "GET", path, Value::Null).await
}

/// What a call that must succeed answers.
#[track_caller]
fn made(answer: Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{:?}", answer.body);
    if answer.body.is_empty() { Value::Null } else { answer.json() }
}

fn id(answer: &Value) -> &str {
    answer["id"].as_str().unwrap()
}

fn ids(page: &Value) -> Vec<&str> {
    page["data"].as_array().unwrap().iter().map(id).collect()
}

/// An API with the application `acme` and its endpoint `one`.
async fn with_endpoint() -> Api {
    let api = api();
    made(call(&api, "POST", "/app", json!({"name": "Acme", "uid": "acme"})).await, 201);
    let endpoint = json!({"url": "https://example.com/hook", "uid": "one"});
    made(call(&api, "POST", "/app/acme/endpoint", endpoint).await, 201);
    api
}

async fn publish(api: &Api, body: Value) -> Value {
    made(call(api, "POST", "/app/acme/msg", body).await, 202)
}

#[tokio::test]
async fn an_application_is_made_once_read_by_id_or_uid_changed_and_deleted() {
    let api = api();
    let body = json!({"name": "Acme", "uid": "acme", "throttleRate": 7, "metadata": {"a": "b"}, "from": {"later": 1}});
    let app = made(call(&api, "POST", "/app", body).await, 201);
    assert!(id(&app).starts_with("app_") && id(&app).len() == 31, "{app}");
    let expected = json!({"id": id(&app), "uid": "acme", "name": "Acme", "throttleRate": 7, "rateLimit": 7,
        "metadata": {"a": "b"}, "createdAt": "2026-01-02T03:04:05.006Z", "updatedAt": "2026-01-02T03:04:05.006Z"});
    assert_eq!(app, expected);

    let again = json!({"name": "Other", "uid": "acme"});
    call(&api, "POST", "/app", again.clone()).await.assert_error(409, "conflict");
    assert_eq!(made(call(&api, "POST", "/app?get_if_exists=true", again).await, 200), app);
    for name in ["acme", id(&app)] {
        assert_eq!(made(get(&api, &format!("/app/{name}")).await, 200), app);
    }

    let patched = made(call(&api, "PATCH", "/app/acme", json!({"throttleRate": null, "uid": "acme"})).await, 200);
    assert_eq!((&patched["throttleRate"], &patched["name"]), (&Value::Null, &json!("Acme")));
    let put = made(call(&api, "PUT", &format!("/app/{}", id(&app)), json!({"name": "New", "rateLimit": 3})).await, 200);
    assert_eq!((&put["throttleRate"], &put["uid"], &put["metadata"]), (&json!(3), &json!("acme"), &json!({})));
    for (method, path) in [("PUT", "/app/acme"), ("PATCH", "/app/acme"), ("PUT", "/app/fresh")] {
        let answer = call(&api, method, path, json!({"name": "x", "uid": "renamed"})).await;
        answer.assert_error(422, "invalid_request");
        assert!(answer.detail().starts_with("body.uid cannot be changed"), "{}", answer.detail());
    }
    assert_eq!(made(call(&api, "PUT", "/app/fresh", json!({"name": "Fresh"})).await, 201)["uid"], "fresh");

    assert_eq!(call(&api, "DELETE", "/app/acme", Value::Null).await.status, 204);
    for (method, path) in [("GET", "/app/acme"), ("DELETE", "/app/acme"), ("PATCH", "/app/acme")] {
        let body = if method == "PATCH" { json!({}) } else { Value::Null };
        call(&api, method, path, body).await.assert_error(404, "not_found");
    }
    call(&api, "PUT", &format!("/app/{}", id(&app)), json!({"name": "x"})).await.assert_error(404, "not_found");
}

#[tokio::test]
async fn an_application_without_a_uid_shows_none_and_its_id_is_not_taken_for_one() {
    let api = api();
    let app = made(call(&api, "POST", "/app", json!({"name": "x", "uid": null})).await, 201);
    assert_eq!(app.get("uid"), None);
    let answer = call(&api, "POST", "/app", json!({"name": "x", "uid": id(&app)})).await;
    answer.assert_error(422, "invalid_request");
    assert!(answer.detail().contains("reads as an id"), "{}", answer.detail());
    let looks_like_one = id(&app).replace("app_", "msg_");
    call(&api, "PUT", &format!("/app/{looks_like_one}"), json!({"name": "x"}))
        .await
        .assert_error(422, "invalid_request");
}

#[tokio::test]
async fn lists_go_on_at_their_iterators_forwards_and_backwards_in_both_orders() {
    let api = api();
    let mut made_in_order = Vec::new();
    for n in 0..5 {
        made_in_order.push(made(call(&api, "POST", "/app", json!({"name": n.to_string()})).await, 201));
    }
    let all: Vec<&str> = made_in_order.iter().map(id).collect();
    for (order, expected) in [("ascending", all.clone()), ("descending", all.iter().rev().copied().collect::<Vec<_>>())]
    {
        let page = |iterator: Value| {
            let iterator = iterator.as_str().map_or(String::new(), |iterator| format!("&iterator={iterator}"));
            format!("/app?limit=2&order={order}{iterator}")
        };
        let first = made(get(&api, &page(Value::Null)).await, 200);
        assert_eq!((ids(&first), &first["done"]), (expected[..2].to_vec(), &json!(false)));
        assert_eq!(first["iterator"], expected[1]);
        assert_eq!(first["prevIterator"], format!("-{}", expected[0]));
        let second = made(get(&api, &page(first["iterator"].clone())).await, 200);
        assert_eq!(ids(&second), expected[2..4]);
        let third = made(get(&api, &page(second["iterator"].clone())).await, 200);
        assert_eq!((ids(&third), &third["done"]), (expected[4..].to_vec(), &json!(true)));
        let back = made(get(&api, &page(third["prevIterator"].clone())).await, 200);
        assert_eq!(ids(&back), expected[2..4]);
        let back = made(get(&api, &page(back["prevIterator"].clone())).await, 200);
        assert_eq!((ids(&back), &back["done"]), (expected[..2].to_vec(), &json!(true)));
        // An iterator survives what it names.
        let gone = made(get(&api, &page(json!(expected[0]))).await, 200);
        assert_eq!(ids(&gone), expected[1..3]);
    }
    let list = made(get(&api, "/app").await, 200);
    assert_eq!((ids(&list), &list["done"]), (all, &json!(true)));
    let members: Vec<&String> = list.as_object().unwrap().keys().collect();
    assert_eq!(members, ["data", "done", "iterator", "prevIterator"]);
    let empty = made(get(&api, "/event-type").await, 200);
    assert_eq!(empty, json!({"data": [], "iterator": null, "prevIterator": null, "done": true}));
}

#[tokio::test]
async fn an_endpoint_has_the_newer_and_the_older_names_of_its_fields() {
    let api = with_endpoint().await;
    let body = json!({"url": "https://example.com/a?b=c", "description": "d", "filterTypes": ["b.c", "a", "a"],
        "rateLimit": 5, "channels": ["x:1", "y+z"], "metadata": {"k": "v"}, "version": 3, "disabled": true});
    let endpoint = made(call(&api, "POST", "/app/acme/endpoint", body).await, 201);
    assert!(id(&endpoint).starts_with("ep_") && id(&endpoint).len() == 30);
    let expected = json!({"id": id(&endpoint), "url": "https://example.com/a?b=c", "description": "d", "uid": null,
        "throttleRate": 5, "rateLimit": 5, "version": 1, "disabled": true, "eventTypes": ["a", "b.c"],
        "filterTypes": ["a", "b.c"], "channels": ["x:1", "y+z"], "metadata": {"k": "v"},
        "createdAt": endpoint["createdAt"], "updatedAt": endpoint["createdAt"]});
    assert_eq!(endpoint, expected);
    assert!(!endpoint.to_string().contains("whsec") && !endpoint.to_string().contains("secret"));

    let path = format!("/app/acme/endpoint/{}", id(&endpoint));
    assert_eq!(made(get(&api, &path).await, 200), expected);
    let patch = json!({"eventTypes": null, "channels": null, "uid": "two", "disabled": false});
    let patched = made(call(&api, "PATCH", &path, patch).await, 200);
    assert_eq!((&patched["filterTypes"], &patched["channels"]), (&Value::Null, &Value::Null));
    assert_eq!((&patched["description"], &patched["throttleRate"]), (&json!("d"), &json!(5)));
    let agreeing = json!({"url": "https://example.com", "eventTypes": ["a", "b"], "filterTypes": ["b", "a"]});
    let put = made(call(&api, "PUT", "/app/acme/endpoint/two", agreeing).await, 200);
    assert_eq!((&put["eventTypes"], &put["description"]), (&json!(["a", "b"]), &json!("")));
    let differing = json!({"url": "https://example.com", "eventTypes": ["a"], "filterTypes": ["b"]});
    let answer = call(&api, "PUT", "/app/acme/endpoint/two", differing).await;
    answer.assert_error(422, "invalid_request");
    assert!(answer.detail().starts_with("body.filterTypes"), "{}", answer.detail());

    let by_put = json!({"url": "https://example.com"});
    assert_eq!(made(call(&api, "PUT", "/app/acme/endpoint/three", by_put).await, 201)["uid"], "three");
    let list = made(get(&api, "/app/acme/endpoint").await, 200);
    let uids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|endpoint| &endpoint["uid"]).collect();
    assert_eq!(uids, ["three", "two", "one"], "the newest first");
    let taken = json!({"url": "https://example.com", "uid": "one"});
    call(&api, "POST", "/app/acme/endpoint", taken).await.assert_error(409, "conflict");
    assert_eq!(call(&api, "DELETE", "/app/acme/endpoint/two", Value::Null).await.status, 204);
    get(&api, "/app/acme/endpoint/two").await.assert_error(404, "not_found");
    get(&api, "/app/nobody/endpoint/two").await.assert_error(404, "not_found");
}

#[tokio::test]
async fn the_hundred_and_first_endpoint_is_refused_with_the_limit() {
    let api = with_endpoint().await;
    for _ in 1..100 {
        made(call(&api, "POST", "/app/acme/endpoint", json!({"url": "https://example.com"})).await, 201);
    }
    let answer = call(&api, "POST", "/app/acme/endpoint", json!({"url": "https://example.com"})).await;
    answer.assert_error(400, "limit_reached");
    assert!(answer.detail().contains("100"), "{}", answer.detail());
}

/// Private address in a literal of any notation: refused when an endpoint is made, and when it is changed.
#[tokio::test]
async fn a_url_that_webhooks_may_not_reach_is_422_and_names_the_reason() {
    let api = with_endpoint().await;
    for (url, reason) in [
        ("http://127.0.0.1/", "loopback"),
        ("http://2130706433/", "loopback"),
        ("http://[::ffff:10.0.0.1]/", "private"),
        ("http://169.254.169.254/latest/meta-data", "link-local"),
        ("http://localhost:4001/", "loopback"),
        ("https://user:pass@example.com/", "user name or a password"),
        ("ftp://example.com/", "https:// or http://"),
        ("example.com", "https:// or http://"),
        ("https://example.com/\r\nx-a: b", "control characters"),
    ] {
        for (method, path) in [
            ("POST", "/app/acme/endpoint"),
            ("PUT", "/app/acme/endpoint/one"),
            ("PATCH", "/app/acme/endpoint/one"),
            ("POST", "/operational-webhook/endpoint"),
        ] {
            let answer = call(&api, method, path, json!({"url": url})).await;
            answer.assert_error(422, "invalid_request");
            let detail = answer.detail();
            assert!(detail.starts_with("body.url ") && detail.contains(reason), "{method} {url}: {detail}");
        }
    }
    let mut settings = Settings::default();
    settings.webhooks.https_only = true;
    settings.webhooks.allow_private.0.push("127.0.0.0/8".parse().unwrap());
    let api = api_with(&settings);
    made(call(&api, "POST", "/app", json!({"name": "Acme", "uid": "acme"})).await, 201);
    let http = json!({"url": "http://127.0.0.1/"});
    call(&api, "POST", "/app/acme/endpoint", http).await.assert_error(422, "invalid_request");
    made(call(&api, "POST", "/app/acme/endpoint", json!({"url": "https://127.0.0.1/"})).await, 201);
}

#[tokio::test]
async fn a_secret_is_told_by_its_own_path_alone_and_rotates() {
    let api = with_endpoint().await;
    let drawn = made(get(&api, "/app/acme/endpoint/one/secret").await, 200)["key"].as_str().unwrap().to_owned();
    assert!(drawn.starts_with("whsec_") && drawn.len() == 6 + 32, "{drawn}");
    let own = json!({"url": "https://example.com", "uid": "own", "secret": WHSEC});
    let answer = call(&api, "POST", "/app/acme/endpoint", own).await;
    assert!(answer.status == 201 && !String::from_utf8_lossy(&answer.body).contains(&WHSEC[6..]));
    assert_eq!(made(get(&api, "/app/acme/endpoint/own/secret").await, 200), json!({"key": WHSEC}));

    let rotate = "/app/acme/endpoint/own/secret/rotate";
    assert_eq!(call(&api, "POST", rotate, json!({})).await.status, 200);
    let rotated = made(get(&api, "/app/acme/endpoint/own/secret").await, 200);
    assert_ne!(rotated["key"], WHSEC);
    // Without its prefix, and at once.
    let bare = json!({"key": WHSEC.strip_prefix("whsec_").unwrap(), "gracePeriodSeconds": 0});
    assert_eq!(call(&api, "POST", rotate, bare).await.status, 200);
    assert_eq!(made(get(&api, "/app/acme/endpoint/own/secret").await, 200)["key"], WHSEC);
    let mut answer = call(&api, "POST", rotate, json!({"key": null})).await;
    for _ in 0..10 {
        assert_eq!(answer.status, 200);
        answer = call(&api, "POST", rotate, json!({"gracePeriodSeconds": null})).await;
        if answer.status != 200 {
            break;
        }
    }
    answer.assert_error(400, "limit_reached");
    assert!(api.fake.asked().iter().all(|asked| !asked.contains(&WHSEC[6..])));
}

#[tokio::test]
async fn a_bad_secret_is_refused_without_being_repeated() {
    let api = with_endpoint().await;
    let long = format!("whsec_{}", "A".repeat(104));
    for secret in [
        json!("whsec_c2hvcnQ="),
        json!("not base64!"),
        json!("whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        json!(""),
        json!(long),
        json!(123_456_789),
        json!(["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]),
    ] {
        for (path, name, body) in [
            ("/app/acme/endpoint", "secret", json!({"url": "https://example.com", "secret": secret})),
            ("/app/acme/endpoint/one/secret/rotate", "key", json!({"key": secret})),
        ] {
            let answer = call(&api, "POST", path, body).await;
            answer.assert_error(422, "invalid_request");
            let detail = answer.detail();
            assert!(detail.starts_with(&format!("body.{name} must be")), "{secret}: {detail}");
            assert!(!detail.contains("123") && !detail.contains("c2hvcnQ") && !detail.contains("MfKQ"), "{detail}");
        }
    }
    let answer =
        call(&api, "POST", "/app/acme/endpoint/one/secret/rotate", json!({"gracePeriodSeconds": 604_801})).await;
    answer.assert_error(422, "invalid_request");
}

#[tokio::test]
async fn headers_are_set_changed_and_told_but_for_sensitive_values() {
    let api = with_endpoint().await;
    let path = "/app/acme/endpoint/one/headers";
    assert_eq!(made(get(&api, path).await, 200), json!({"headers": {}, "sensitive": []}));
    let headers = json!({"headers": {"X-A": "1", "Authorization": "Bearer x", "x-b": "2"}});
    assert_eq!(call(&api, "PUT", path, headers).await.status, 204);
    let expected = json!({"headers": {"X-A": "1", "x-b": "2"}, "sensitive": ["Authorization"]});
    assert_eq!(made(get(&api, path).await, 200), expected);
    let patch = json!({"headers": {"x-a": null, "X-C": "3"}, "deleteHeaders": ["AUTHORIZATION"]});
    assert_eq!(call(&api, "PATCH", path, patch).await.status, 204);
    assert_eq!(made(get(&api, path).await, 200), json!({"headers": {"X-C": "3", "x-b": "2"}, "sensitive": []}));
    let made_with = json!({"url": "https://example.com", "uid": "two", "headers": {"x-d": "4"}});
    made(call(&api, "POST", "/app/acme/endpoint", made_with).await, 201);
    assert_eq!(made(get(&api, "/app/acme/endpoint/two/headers").await, 200)["headers"], json!({"x-d": "4"}));

    let many: Value = (0..33).map(|n| (format!("x-{n}"), json!("1"))).collect::<serde_json::Map<_, _>>().into();
    for (headers, says) in [
        (json!({"Host": "a"}), "choose another name"),
        (json!({"webhook-id": "a"}), "choose another name"),
        (json!({"svix-id": "a"}), "choose another name"),
        (json!({"Content-Length": "0"}), "choose another name"),
        (json!({"x-a": "b\r\nhost: c"}), "line ends"),
        (json!({"x-a\r\nb": "c"}), "not a header's name"),
        (json!({"x a": "c"}), "not a header's name"),
        (json!({"": "c"}), "not a header's name"),
        (json!({"x-a": 1}), "must be a string, not 1"),
        (json!({"x-a": "1", "X-A": "2"}), "twice"),
        (json!({"x-a": "v".repeat(4_094)}), "4097 bytes"),
        (many, "at most 32 headers, not 33"),
        (json!([]), "an object of strings by name"),
        (Value::Null, "an object of strings by name"),
    ] {
        for method in ["PUT", "PATCH"] {
            let answer = call(&api, method, path, json!({"headers": headers})).await;
            answer.assert_error(422, "invalid_request");
            assert!(answer.detail().contains(says), "{method} {headers}: {}", answer.detail());
        }
    }
    let too_large = json!({"headers": {"x-long": "v".repeat(4_090)}});
    let answer = call(&api, "PATCH", path, too_large).await;
    answer.assert_error(422, "invalid_request");
    assert!(answer.detail().starts_with("body.headers"), "{}", answer.detail());
}

#[tokio::test]
async fn a_payload_stays_as_it_came_in_byte_for_byte() {
    let api = with_endpoint().await;
    let payload = "{ \"b\":1.50,\"a\" : [1e2,\"\\u00e9\\/é\", -0, {}],\n\t\"b\": 12345678901234567890123 }";
    let body = format!(r#"{{"eventType": "a.b", "payload": {payload}  , "eventId": "e-1", "tags": ["t/1"]}}"#);
    let answer = api.call("POST", "/api/v1/app/acme/msg", body).await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(answer.status == 202 && text.contains(&format!("\"payload\":{payload},")), "{text}");
    for path in ["/app/acme/msg/e-1", "/app/acme/msg"] {
        let text = String::from_utf8(get(&api, path).await.body.to_vec()).unwrap();
        assert!(text.contains(&format!("\"payload\":{payload},")), "{text}");
        let without = get(&api, &format!("{path}?with_content=false")).await;
        assert!(String::from_utf8_lossy(&without.body).contains(r#""payload":{},"#));
    }
    let message = made(get(&api, "/app/acme/msg/e-1?with_content=false").await, 200);
    let expected = json!({"id": id(&message), "eventId": "e-1", "eventType": "a.b", "payload": {}, "channels": null,
        "tags": ["t/1"], "timestamp": message["timestamp"]});
    assert_eq!(message, expected);
    let asked = api.fake.asked();
    let published = asked.iter().find(|asked| asked.starts_with("Publish(")).unwrap();
    assert!(published.contains("retention_us: 7776000000000"), "{published}");
}

/// Message stored, answer lost: the retry gets the first message, and other content a conflict.
#[tokio::test]
async fn publishing_an_event_id_again_answers_the_first_message_or_409() {
    let api = with_endpoint().await;
    let body = json!({"eventType": "a", "eventId": "e", "payload": {"n": 1}, "channels": ["y", "x"]});
    let first = publish(&api, body).await;
    let again = json!({"eventType": "a", "eventId": "e", "payload": {"n": 1}, "channels": ["x", "y", "x"]});
    assert_eq!(publish(&api, again).await, first);
    let other = json!({"eventType": "a", "eventId": "e", "payload": {"n": 2}, "channels": ["y", "x"]});
    call(&api, "POST", "/app/acme/msg", other).await.assert_error(409, "conflict");
    assert_eq!(ids(&made(get(&api, "/app/acme/msg").await, 200)), [id(&first)]);
}

#[tokio::test]
async fn a_payload_over_its_limit_is_413_and_one_too_deep_422() {
    let api = with_endpoint().await;
    let of = |bytes: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes - 8));
    let send = async |payload: String| {
        let body = format!(r#"{{"eventType": "a", "payload": {payload}}}"#);
        api.call("POST", "/api/v1/app/acme/msg?with_content=false", body).await
    };
    assert_eq!(send(of(PAYLOAD_BYTES_MAX)).await.status, 202);
    let answer = send(of(PAYLOAD_BYTES_MAX + 1)).await;
    answer.assert_error(413, "too_large");
    assert!(answer.detail().contains("payload has 262145 bytes"), "{}", answer.detail());
    send(of(2 * PAYLOAD_BYTES_MAX)).await.assert_error(413, "too_large");
    let deep = |levels: usize| format!("{}1{}", r#"{"a["#.repeat(0) + &r#"{"[":"#.repeat(levels), "}".repeat(levels));
    assert_eq!(send(deep(PAYLOAD_DEPTH_MAX)).await.status, 202);
    for levels in [PAYLOAD_DEPTH_MAX + 1, 20_000] {
        let answer = send(deep(levels)).await;
        answer.assert_error(422, "invalid_request");
        assert!(answer.detail().contains("at most 128 levels deep"), "{}", answer.detail());
    }
}

#[tokio::test]
async fn a_message_may_bring_its_application_along() {
    let api = api();
    let body = json!({"eventType": "a", "payload": {}, "application": {"name": "Acme", "uid": "acme"}});
    call(&api, "POST", "/app/other/msg", body.clone()).await.assert_error(404, "not_found");
    publish(&api, body.clone()).await;
    publish(&api, body).await;
    assert_eq!(made(get(&api, "/app/acme").await, 200)["name"], "Acme");
}

#[tokio::test]
async fn messages_are_listed_newest_first_and_by_what_they_are() {
    let api = with_endpoint().await;
    let mut published = Vec::new();
    for (event_type, channel, tag) in [("a", "x", "t"), ("b", "x", "u"), ("c", "y", "t")] {
        let body = json!({"eventType": event_type, "payload": {}, "channels": [channel], "tags": [tag]});
        published.push(publish(&api, body).await);
    }
    let (a, b, c) = (id(&published[0]), id(&published[1]), id(&published[2]));
    let at = |message: usize| published[message]["timestamp"].as_str().unwrap().to_owned();
    for (query, expected) in [
        ("", vec![c, b, a]),
        ("limit=2", vec![c, b]),
        ("event_types=a,c", vec![c, a]),
        ("event_types=a&event_types=b", vec![b, a]),
        ("event_types[]=a&event_types[1]=b&unknown=1", vec![b, a]),
        ("channel=x", vec![b, a]),
        ("tag=t", vec![c, a]),
        ("tag=t&channel=y", vec![c]),
        (&format!("before={}", at(2)), vec![b, a]),
        (&format!("after={}", at(0)), vec![c, b]),
        (&format!("after={}&before={}", at(0), at(2).replace('Z', "%2B00:00")), vec![b]),
        (&format!("iterator={c}"), vec![b, a]),
        (&format!("iterator=-{a}"), vec![c, b]),
    ] {
        let list = made(get(&api, &format!("/app/acme/msg?{query}")).await, 200);
        assert_eq!(ids(&list), expected, "{query}");
    }
    get(&api, "/app/acme/msg/nothing").await.assert_error(404, "not_found");
    get(&api, "/app/nobody/msg").await.assert_error(404, "not_found");
}

/// Lets a delivery of `message` to the endpoint `one` come to something.
async fn record(api: &Api, message: &str, tries_before: u16, status_code: u16, verdict: Verdict) {
    let app = made(get(api, "/app/acme").await, 200);
    let endpoint = made(get(api, "/app/acme/endpoint/one").await, 200);
    let outcome = Outcome {
        app: AppId::parse(id(&app)).unwrap(),
        endpoint: EndpointId::parse(id(&endpoint)).unwrap(),
        message: MessageId::parse(message).unwrap(),
        tries_before,
        nonce: [9; 6],
        answer: ReceiverAnswer {
            status_code,
            body: "said".to_owned(),
            truncated: false,
            duration_ms: 12,
            started_wall_ms: WALL_MS + u64::from(tries_before),
            url: "https://example.com/hook".to_owned(),
        },
        verdict,
    };
    let (disable_after_us, retention_us, wall_ms) = (1_000_000_000, 1_000_000_000, WALL_MS);
    api.fake.record(RecordOutcomes { outcomes: vec![outcome], disable_after_us, retention_us, wall_ms });
}

#[tokio::test]
async fn attempts_are_listed_as_svix_numbers_them_and_a_delivery_says_when_it_goes_on() {
    let api = with_endpoint().await;
    let message = publish(&api, json!({"eventType": "a", "eventId": "e", "payload": {}})).await;
    let due = made(get(&api, "/app/acme/msg/e/endpoint").await, 200);
    let delivery = &due["data"][0];
    assert_eq!((&delivery["status"], &delivery["statusText"]), (&json!(3), &json!("sending")));
    assert!(delivery["nextAttempt"].is_string() && delivery["uid"] == "one" && delivery["version"] == 1, "{delivery}");

    record(&api, id(&message), 0, 500, Verdict::Retry { after_us: 5_000_000 }).await;
    record(&api, id(&message), 1, 200, Verdict::Succeeded).await;
    let list = made(get(&api, "/app/acme/attempt/msg/e").await, 200);
    assert_eq!(list["data"].as_array().unwrap().len(), 2);
    let endpoint = made(get(&api, "/app/acme/endpoint/one").await, 200);
    let failed = &list["data"][1];
    assert!(id(failed).starts_with("atmpt_") && id(failed).len() == 33);
    let expected = json!({"id": id(failed), "endpointId": id(&endpoint), "msgId": id(&message), "status": 2,
        "url": "https://example.com/hook", "response": "said", "responseStatusCode": 500, "responseDurationMs": 12,
        "statusText": "fail", "triggerType": 0, "timestamp": "2026-01-02T03:04:05.006Z"});
    assert_eq!(failed, &expected);
    let one = format!("/app/acme/msg/{}/attempt/{}", id(&message), id(failed));
    assert_eq!(&made(get(&api, &one).await, 200), failed);
    let (success, fail) = (id(&list["data"][0]), id(failed));
    for (query, expected) in [
        ("", vec![success, fail]),
        ("status=0", vec![success]),
        ("status=2", vec![fail]),
        ("status=1", vec![]),
        ("status=3", vec![]),
        ("status_code_class=500", vec![fail]),
        ("status_code_class=0", vec![]),
        ("event_types=a&limit=1", vec![success]),
        ("event_types=b", vec![]),
        ("expanded_statuses=true", vec![success, fail]),
    ] {
        for path in ["/app/acme/attempt/msg/e", "/app/acme/attempt/endpoint/one"] {
            let list = made(get(&api, &format!("{path}?{query}")).await, 200);
            assert_eq!(ids(&list), expected, "{path} {query}");
        }
    }
    let without = made(get(&api, "/app/acme/attempt/msg/e?with_content=false&endpoint_id=one").await, 200);
    assert_eq!(without["data"][0]["response"], "{}");
    let done = made(get(&api, "/app/acme/msg/e/endpoint").await, 200);
    assert_eq!((&done["data"][0]["status"], &done["data"][0]["nextAttempt"]), (&json!(0), &Value::Null));
    for path in [
        "/app/acme/attempt/msg/nothing",
        "/app/acme/attempt/endpoint/nothing",
        "/app/acme/attempt/msg/e?endpoint_id=nothing",
        "/app/acme/msg/e/attempt/nothing",
        "/app/acme/msg/nothing/endpoint",
    ] {
        get(&api, path).await.assert_error(404, "not_found");
    }
}

/// Events of a disabled endpoint are kept and listed.
#[tokio::test]
async fn what_came_while_an_endpoint_was_disabled_is_listed_as_failed() {
    let api = with_endpoint().await;
    made(call(&api, "PATCH", "/app/acme/endpoint/one", json!({"disabled": true})).await, 200);
    publish(&api, json!({"eventType": "a", "eventId": "e", "payload": {}})).await;
    let list = made(get(&api, "/app/acme/msg/e/endpoint").await, 200);
    let delivery = &list["data"][0];
    assert_eq!((&delivery["status"], &delivery["nextAttempt"]), (&json!(2), &Value::Null));
    made(call(&api, "DELETE", "/app/acme/endpoint/one", Value::Null).await, 204);
    assert_eq!(made(get(&api, "/app/acme/msg/e/endpoint").await, 200)["data"], json!([]));
}

#[tokio::test]
async fn event_types_are_made_archived_and_expunged() {
    let api = api();
    let body = json!({"name": "user.signup", "description": "d", "schemas": {"1": {"b": 1, "a": 2}}, "groupName": "user",
        "featureFlags": ["beta"]});
    let made_type = made(call(&api, "POST", "/event-type", body.clone()).await, 201);
    let at = &made_type["createdAt"];
    let expected = json!({"name": "user.signup", "description": "d", "archived": false, "deprecated": false,
        "schemas": {"1": {"b": 1, "a": 2}}, "groupName": "user", "featureFlag": "beta", "featureFlags": ["beta"],
        "createdAt": at, "updatedAt": at});
    assert_eq!(made_type, expected);
    call(&api, "POST", "/event-type", body.clone()).await.assert_error(409, "event_type_exists");
    assert_eq!(made(get(&api, "/event-type/user.signup").await, 200), expected);

    assert_eq!(made(call(&api, "PUT", "/event-type/a", json!({"description": ""})).await, 201)["name"], "a");
    let put = made(call(&api, "PUT", "/event-type/a", json!({"description": "x", "featureFlag": "f"})).await, 200);
    assert_eq!((&put["description"], &put["featureFlags"]), (&json!("x"), &json!(["f"])));
    let patch = json!({"schemas": null, "deprecated": true});
    let patched = made(call(&api, "PATCH", "/event-type/user.signup", patch).await, 200);
    assert_eq!(
        (&patched["schemas"], &patched["deprecated"], &patched["groupName"]),
        (&Value::Null, &json!(true), &json!("user"))
    );

    let names =
        |list: Value| list["data"].as_array().unwrap().iter().map(|found| found["name"].clone()).collect::<Vec<_>>();
    let list = made(get(&api, "/event-type?limit=1").await, 200);
    assert_eq!((&list["iterator"], &list["prevIterator"], &list["done"]), (&json!("a"), &json!("-a"), &json!(false)));
    assert_eq!(names(made(get(&api, "/event-type?limit=1&iterator=a").await, 200)), ["user.signup"]);
    assert_eq!(made(call(&api, "DELETE", "/event-type/a", Value::Null).await, 204), Value::Null);
    assert_eq!(names(made(get(&api, "/event-type").await, 200)), ["user.signup"]);
    assert_eq!(names(made(get(&api, "/event-type?include_archived=true").await, 200)), ["a", "user.signup"]);
    assert_eq!(made(get(&api, "/event-type/a").await, 200)["archived"], true);
    let again = json!({"name": "a", "description": "again"});
    assert_eq!(made(call(&api, "POST", "/event-type", again).await, 201)["archived"], false);
    assert_eq!(call(&api, "DELETE", "/event-type/a?expunge=true", Value::Null).await.status, 204);
    for method in ["GET", "DELETE"] {
        call(&api, method, "/event-type/a", Value::Null).await.assert_error(404, "not_found");
    }
    let large = json!({"name": "large", "description": "", "schemas": {"1": "x".repeat(65_536)}});
    call(&api, "POST", "/event-type", large).await.assert_error(413, "too_large");
}

#[tokio::test]
async fn event_types_whose_names_begin_as_iterators_backwards_do_are_listed_once_each() {
    let api = api();
    let names = ["-", "--a", "-b", "c"];
    for name in names {
        made(call(&api, "POST", "/event-type", json!({"name": name, "description": "d"})).await, 201);
    }
    let (mut seen, mut path) = (Vec::new(), "/event-type?limit=1".to_owned());
    while seen.len() <= names.len() {
        let page = made(get(&api, &path).await, 200);
        seen.extend(page["data"].as_array().unwrap().iter().map(|found| found["name"].as_str().unwrap().to_owned()));
        if page["done"] == true {
            break;
        }
        path = format!("/event-type?limit=1&iterator={}", page["iterator"].as_str().unwrap());
    }
    assert_eq!(seen, names);
    let before = made(get(&api, "/event-type?iterator=--b").await, 200);
    assert_eq!(before["data"].as_array().unwrap().len(), 2, "those before the name behind the first hyphen");
}

#[tokio::test]
async fn operational_endpoints_are_endpoints_of_the_cluster() {
    let api = api();
    let path = "/operational-webhook/endpoint";
    let body = json!({"url": "https://example.com/ops", "uid": "ops", "filterTypes": ["endpoint.disabled"],
        "channels": ["x"], "secret": WHSEC});
    let endpoint = made(call(&api, "POST", path, body).await, 201);
    assert_eq!((&endpoint["eventTypes"], &endpoint["channels"]), (&json!(["endpoint.disabled"]), &Value::Null));
    assert_eq!(made(get(&api, &format!("{path}/{}", id(&endpoint))).await, 200), endpoint);
    assert_eq!(ids(&made(get(&api, path).await, 200)), [id(&endpoint)]);
    assert_eq!(made(get(&api, &format!("{path}/ops/secret")).await, 200)["key"], WHSEC);
    assert_eq!(call(&api, "POST", &format!("{path}/ops/secret/rotate"), json!({})).await.status, 200);
    let headers = json!({"headers": {"x-a": "b"}});
    assert_eq!(call(&api, "PUT", &format!("{path}/ops/headers"), headers.clone()).await.status, 204);
    assert_eq!(made(get(&api, &format!("{path}/ops/headers")).await, 200)["headers"], headers["headers"]);
    made(call(&api, "PATCH", &format!("{path}/ops"), json!({"disabled": true})).await, 200);
    made(call(&api, "PUT", &format!("{path}/ops"), json!({"url": "https://example.com"})).await, 200);
    made(call(&api, "DELETE", &format!("{path}/ops"), Value::Null).await, 204);
    get(&api, &format!("{path}/ops")).await.assert_error(404, "not_found");
    for n in 0..10 {
        let body = json!({"url": "https://example.com", "uid": n.to_string()});
        made(call(&api, "POST", path, body).await, 201);
    }
    let answer = call(&api, "POST", path, json!({"url": "https://example.com"})).await;
    answer.assert_error(400, "limit_reached");
}

#[tokio::test]
async fn a_post_repeated_with_its_idempotency_key_is_answered_alike_and_done_once() {
    let api = with_endpoint().await;
    let send = async |path: &str, key: &str, body: &Value| {
        let request = Request::post(format!("/api/v1{path}")).header("content-type", "application/json");
        api.send(request.header("idempotency-key", key).body(body.to_string()).unwrap()).await
    };
    let other = json!({"name": "another", "eventType": "x", "description": "x", "payload": {"other": 1}, "url": "https://example.com/x", "gracePeriodSeconds": 7});
    for (path, body) in [
        ("/app", json!({"name": "x"})),
        ("/app/acme/endpoint", json!({"url": "https://example.com"})),
        ("/app/acme/msg", json!({"eventType": "a", "payload": {"n": 1}})),
        ("/app/acme/endpoint/one/secret/rotate", json!({})),
        ("/event-type", json!({"name": "a", "description": "b"})),
        ("/operational-webhook/endpoint", json!({"url": "https://example.com"})),
    ] {
        let key = format!("auto_{}", path.len());
        let first = send(path, &key, &body).await;
        assert!(matches!(first.status, 200 | 201 | 202 | 204), "{path}: {:?}", first.body);
        let again = send(path, &key, &body).await;
        assert_eq!((again.status, &again.body), (first.status, &first.body), "{path}");
        let mismatch = send(path, &key, &other).await;
        mismatch.assert_error(422, "fingerprint_mismatch");
        assert!(mismatch.detail().starts_with("header.idempotency-key"), "{}", mismatch.detail());
    }
    assert_eq!(ids(&made(get(&api, "/app/acme/msg").await, 200)).len(), 1);
    assert_eq!(ids(&made(get(&api, "/app/acme/endpoint").await, 200)).len(), 2);
    // An application's key meets no other's.
    made(call(&api, "POST", "/app", json!({"name": "Two", "uid": "two"})).await, 201);
    assert_eq!(send("/app/two/msg", "auto_13", &json!({"eventType": "b", "payload": {}})).await.status, 202);
    for key in ["", &"k".repeat(256), "\"a"] {
        let answer = send("/app/acme/msg", key, &json!({"eventType": "a", "payload": {}})).await;
        answer.assert_error(422, "invalid_request");
        assert!(answer.detail().starts_with("header.idempotency-key"), "{}", answer.detail());
    }
}

fn with_tokens() -> Settings {
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
        token("tenant", Role::Service, Some("acme")),
        token("metrics", Role::Metrics, None),
    ];
    settings
}

async fn send_as(api: &Api, name: &str, method: &str, path: &str, body: Value) -> Answer {
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let token = format!("Bearer {name}-secret");
    let headers = if name.is_empty() { vec![] } else { vec![("authorization", token.as_str())] };
    read(api.unread(method, &format!("/api/v1{path}"), body, &headers).await).await
}

#[tokio::test]
async fn each_token_may_do_what_its_role_says_and_a_tenant_what_is_its_own() {
    let api = api_with(&with_tokens());
    let (app, endpoint) = (json!({"name": "Acme", "uid": "acme"}), json!({"url": "https://example.com", "uid": "one"}));
    let message = json!({"eventType": "a", "payload": {}});
    let event_type = json!({"name": "a", "description": ""});
    // Who is allowed, of: nobody in particular, admin, service, the tenant acme, metrics.
    for (method, path, body, allowed) in [
        ("GET", "/health", Value::Null, [true, true, true, true, true]),
        ("POST", "/app?get_if_exists=true", app.clone(), [false, true, true, true, false]),
        ("POST", "/app", json!({"name": "Other"}), [false, true, true, false, false]),
        (
            "POST",
            "/app?get_if_exists=true",
            json!({"name": "Other", "uid": "other"}),
            [false, true, true, false, false],
        ),
        ("GET", "/app", Value::Null, [false, true, true, false, false]),
        ("GET", "/app/acme", Value::Null, [false, true, true, true, false]),
        ("GET", "/app/other", Value::Null, [false, true, true, false, false]),
        ("PUT", "/app/other", json!({"name": "Other"}), [false, true, true, false, false]),
        ("PUT", "/app/acme/endpoint/one", endpoint, [false, true, true, true, false]),
        ("GET", "/app/acme/endpoint/one/secret", Value::Null, [false, true, true, true, false]),
        ("POST", "/app/acme/msg", message.clone(), [false, true, true, true, false]),
        ("POST", "/app/other/msg", message, [false, true, true, false, false]),
        ("GET", "/app/acme/attempt/endpoint/one", Value::Null, [false, true, true, true, false]),
        ("GET", "/event-type", Value::Null, [false, true, true, true, false]),
        ("PUT", "/event-type/a", event_type, [false, true, false, false, false]),
        ("GET", "/operational-webhook/endpoint", Value::Null, [false, true, false, false, false]),
        ("GET", "/operational-webhook/endpoint/x/secret", Value::Null, [false, true, false, false, false]),
    ] {
        for (name, allowed) in ["", "admin", "service", "tenant", "metrics"].into_iter().zip(allowed) {
            let answer = send_as(&api, name, method, path, body.clone()).await;
            match (allowed, name) {
                (true, _) => assert!(
                    answer.status < 300 || answer.status == 404,
                    "{method} {path} as {name:?}: {:?}",
                    answer.body
                ),
                (false, "") => {
                    answer.assert_error(401, "unauthorized");
                    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
                }
                (false, _) => answer.assert_error(403, "forbidden"),
            }
        }
    }
    let of = async |uid: &str| {
        id(&made(send_as(&api, "admin", "GET", &format!("/app/{uid}"), Value::Null).await, 200)).to_owned()
    };
    let (own, others) = (of("acme").await, of("other").await);
    assert_eq!(send_as(&api, "tenant", "GET", &format!("/app/{own}"), Value::Null).await.status, 200);
    // Whether there is another application isn't told.
    let nobodys = own.replace(&own[10..12], "00");
    for name in [others.as_str(), &nobodys, "nobody", "%20", "a%00"] {
        for (method, path) in [("GET", ""), ("DELETE", ""), ("GET", "/endpoint"), ("GET", "/msg/x")] {
            let path = format!("/app/{name}{path}");
            send_as(&api, "tenant", method, &path, Value::Null).await.assert_error(403, "forbidden");
        }
    }
}

#[tokio::test]
async fn complete_takes_messages_and_answers_what_became_of_them() {
    let api = api();
    let complete = async |account: &str, messages: &str| {
        let body = format!(
            r#"{{"account": "{account}", "key": "k", "token": 1, "response": {{"status": 200}}, "messages": {messages}}}"#
        );
        api.call("POST", "/v1/idempotency/complete", body).await
    };
    let id = MessageId::parse("msg_0000000000000000000000000Ab").unwrap();
    let event_id = onceward_core::webhooks::Name::parse("e").ok();
    let messages = vec![PublishedMessage { id, event_id }, PublishedMessage { id, event_id: None }];
    api.fake.set(|script| {
        script.complete =
            Ok(CompleteReply::Completed { completed_wall_ms: WALL_MS, expires_wall_ms: WALL_MS, messages });
    });
    let two = r#"[{"eventType": "a", "payload": { "x" : 1.0 }, "eventId": "e", "later": 1}, {"eventType": "b", "payload": {}}]"#;
    let answer = complete("acme", two).await;
    let expected = json!([{"id": id.to_string(), "eventId": "e"}, {"id": id.to_string(), "eventId": null}]);
    assert_eq!((answer.status, &answer.json()["messages"]), (200, &expected));
    let publishing = api.fake.completed().unwrap().publishing;
    assert_eq!(publishing.messages[0].payload, Bytes::from_static(b"{ \"x\" : 1.0 }"));
    assert_eq!((publishing.messages.len(), publishing.retention_us), (2, 90 * 86_400_000_000));
    // By its application's id, where it has no uid.
    assert_eq!(complete("app_0000000000000000000000000Ab", two).await.status, 200);
    assert_eq!(complete("a b", "[]").await.status, 200, "who publishes nothing needs no application");

    for (refusal, status, code) in [(Refusal::NoApp, 404, "not_found"), (Refusal::EventIdTaken, 409, "conflict")] {
        api.fake.set(|script| script.complete = Ok(CompleteReply::MessageRefused { index: 1, refusal }));
        let answer = complete("acme", two).await;
        answer.assert_problem(status, code);
        assert!(
            answer.detail().starts_with("messages[1]") && answer.detail().contains("stays held"),
            "{}",
            answer.detail()
        );
    }
    api.fake.completed();
    let with = |payload: usize| format!(r#"{{"eventType": "a", "payload": {{"a":"{}"}}}}"#, "x".repeat(payload - 8));
    let list = |messages: &[String]| format!("[{}]", messages.join(","));
    api.fake.set(|script| script.complete = Ok(CompleteReply::Fenced));
    assert_eq!(complete("acme", &list(&[with(PAYLOAD_BYTES_MAX), with(PAYLOAD_BYTES_MAX)])).await.status, 409);
    for messages in
        [list(&[with(PAYLOAD_BYTES_MAX), with(PAYLOAD_BYTES_MAX), with(9)]), list(&[with(PAYLOAD_BYTES_MAX + 1)])]
    {
        let answer = complete("acme", &messages).await;
        answer.assert_problem(413, "too_large");
        assert!(answer.detail().contains("messages"), "{}", answer.detail());
    }
    assert_eq!(complete("acme", &list(&vec![with(9); 16])).await.status, 409);
    let answer = complete("acme", &list(&vec![with(9); 17])).await;
    answer.assert_problem(400, "invalid_request");
    assert!(answer.detail().contains("at most 16 messages, not of 17"), "{}", answer.detail());
}
