//! Publishing: what is the same message, whom it goes to, and that its bytes arrive as they came in.

use std::collections::BTreeSet;

use onceward_tests::{client::Api, receiver::Receiver, webhooks::judge};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{SOON, cluster, until};

/// A message whose payload is this text.
fn message(event_id: &str, payload: &str) -> String {
    format!(r#"{{ "payload":{payload}, "eventId": "{event_id}", "eventType": "t", "unheardOf": 1 }}"#)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_arrive_byte_for_byte_as_they_were_published() {
    let cluster = cluster().start().await;
    let (receiver, apis) = (Receiver::start().await, cluster.apis());
    let app = apis[0].create_app("shop").await;
    let endpoint = apis[0].create_endpoint("shop", &receiver, "/", json!({})).await;
    let large = format!(r#"{{"x":"{}"}}"#, "x".repeat((256 << 10) - 8));
    let payloads = [
        "{}",
        "{ \"b\" : 1,\n\t\"a\" :\r\n [ 1.0, 1e2, -0, 12345678901234567890123 ] }",
        r#"{"text": "Zo\u00eb \/ \ud83e\udd80 🦀", "": null}"#,
        r#"{"a": {"a": {"a": []}}, "onceward": true}"#,
        large.as_str(),
    ];
    let mut ids = Vec::new();
    for (n, payload) in payloads.into_iter().enumerate() {
        let answer = apis[n % 3].try_publish("shop", &message(&format!("e{n}"), payload)).await.unwrap();
        ids.push(answer.expect_status(202).json()["id"].as_str().unwrap().to_owned());
    }
    for delivery in receiver.wait("/", payloads.len(), SOON).await {
        let n = ids.iter().position(|id| id == delivery.id()).unwrap();
        assert!(delivery.text() == payloads[n], "payload {n} is {}", delivery.text());
        assert!(delivery.is_signed_with(&endpoint.secret), "payload {n}");
    }
    for (n, payload) in payloads.into_iter().enumerate() {
        let read = apis[(n + 1) % 3].webhooks_get(&format!("/app/{app}/msg/e{n}")).await.expect_status(200);
        assert!(read.body.contains(payload), "payload {n} as it is read: {}", read.body);
        let without = apis[n % 3].webhooks_get(&format!("/app/shop/msg/{}?with_content=false", ids[n])).await;
        assert_eq!(without.expect_status(200).json()["payload"], json!({}));
    }
    let too_large = message("too-large", &large.replacen("x\"", "xx\"", 2));
    apis[0].try_publish("shop", &too_large).await.unwrap().expect_status(413);
    apis[0].webhooks_get("/app/shop/msg/too-large").await.expect_status(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_published_at_once_a_hundred_times_under_one_identity_is_one_message() {
    let cluster = cluster().start().await;
    let (receiver, apis) = (Receiver::start().await, cluster.apis());
    apis[0].create_app("shop").await;
    let endpoint = apis[0].create_endpoint("shop", &receiver, "/", json!({})).await;
    let at_once = async |path: &str, key: Option<&str>, body: &str| {
        let mut calls = JoinSet::new();
        for n in 0..100 {
            let (api, path, body) = (apis[n % 3].clone(), format!("/api/v1{path}"), body.as_bytes().to_vec());
            let key = key.map(str::to_owned);
            calls.spawn(async move {
                let mut headers = vec![("content-type", "application/json")];
                headers.extend(key.as_deref().map(|key| ("idempotency-key", key)));
                let answer = api.send("POST", &path, &headers, body).await.unwrap();
                (answer.status, answer.json()["id"].as_str().map(str::to_owned))
            });
        }
        calls.join_all().await.into_iter().collect::<BTreeSet<(u16, Option<String>)>>()
    };
    let by_event_id = at_once("/app/shop/msg", None, &message("e", r#"{"n":1}"#)).await;
    let by_key = at_once("/app/shop/msg", Some("k1"), r#"{"eventType": "t", "payload": {"n":2}}"#).await;
    for answers in [&by_event_id, &by_key] {
        assert_eq!(answers.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [202], "{answers:?}");
    }
    let apps = at_once("/app", Some("k2"), r#"{"name": "unnamed"}"#).await;
    assert_eq!(apps.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [201], "{apps:?}");

    let again = apis[1].try_publish("shop", &message("e", r#"{"n":1}"#)).await.unwrap().expect_status(202);
    assert_eq!(by_event_id, [(202, again.json()["id"].as_str().map(str::to_owned))].into());
    let other = apis[2].try_publish("shop", &message("e", r#"{"n": 1}"#)).await.unwrap().expect_status(409);
    assert!(other.json()["code"].is_string() && other.json()["detail"].is_string(), "{other:?}");
    let headers = [("content-type", "application/json"), ("idempotency-key", "k1")];
    let body = br#"{"eventType": "t", "payload": {"n":3}}"#.to_vec();
    let mismatch = apis[0].send("POST", "/api/v1/app/shop/msg", &headers, body).await.unwrap().expect_status(422);
    assert_eq!(mismatch.json()["code"], "fingerprint_mismatch");

    receiver.wait("/", 2, SOON).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let texts: BTreeSet<String> = receiver.deliveries("/").iter().map(|delivery| delivery.text().to_owned()).collect();
    assert_eq!((receiver.count("/"), texts), (2, [r#"{"n":1}"#.to_owned(), r#"{"n":2}"#.to_owned()].into()));
    assert!(receiver.deliveries("/").iter().all(|delivery| delivery.is_signed_with(&endpoint.secret)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_get_what_they_want_under_both_names_of_the_filter_from_the_moment_of_their_registration() {
    let mut cluster = cluster().start().await;
    let (receiver, apis) = (Receiver::start().await, cluster.apis());
    apis[0].create_app("shop").await;
    apis[0].publish("shop", "a", &json!({ "n": "before" })).await;
    let types = json!(["a", "b"]);
    let subscriptions = [
        ("/all", json!({})),
        ("/new", json!({ "eventTypes": types })),
        ("/old", json!({ "filterTypes": types })),
        ("/channel", json!({ "channels": ["eu"] })),
        ("/none", json!({ "eventTypes": ["z"] })),
    ];
    let mut endpoints = Vec::new();
    for (path, more) in subscriptions {
        endpoints.push(apis[0].create_endpoint("shop", &receiver, path, more).await);
    }
    for endpoint in &endpoints[1..3] {
        let read = apis[1].webhooks_get(&format!("/app/shop/endpoint/{}", endpoint.id)).await.expect_status(200).json();
        assert_eq!((&read["eventTypes"], &read["filterTypes"]), (&types, &types), "{read}");
    }
    let mut accepted = Vec::new();
    for (n, event_type) in ["a", "b", "c", "a"].into_iter().enumerate() {
        accepted.push(apis[n % 3].publish("shop", event_type, &json!({ "n": n })).await);
    }
    let in_channel = json!({ "eventType": "c", "payload": { "n": "eu" }, "channels": ["eu", "us"] }).to_string();
    let in_channel = apis[0].try_publish("shop", &in_channel).await.unwrap().expect_status(202).json();
    until("all arrive", SOON, async || receiver.distinct("/all") == 5 && receiver.distinct("/channel") == 1).await;
    let two: Vec<_> = accepted.into_iter().filter(|message| message.event_type != "c").collect();
    for endpoint in &endpoints[1..3] {
        until("both arrive", SOON, async || receiver.distinct(&endpoint.path) >= two.len()).await;
        judge(&endpoint.path, &receiver.deliveries(&endpoint.path), &two, &endpoint.secret);
    }
    assert_eq!(receiver.deliveries("/channel")[0].id(), in_channel["id"].as_str().unwrap());
    assert_eq!((receiver.count("/none"), receiver.count("/all")), (0, 5));
    for call in ["eventTypes", "filterTypes"] {
        let both = json!({ "url": receiver.url("/x"), "eventTypes": ["a"], "filterTypes": ["b"] });
        let answer = apis[0].webhooks("POST", "/app/shop/endpoint", &both).await.expect_status(422);
        assert!(answer.body.contains(call), "{answer:?}");
    }
    cluster.assert_equal_state().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_an_account_sees_and_touches_its_own_application_alone() {
    let secret = |name: &str| format!("secret-of-{name}-0123456789");
    let tokens = [("admin", "admin", None), ("all", "service", None), ("a", "service", Some("a"))];
    let tokens: Vec<toml::Value> = tokens
        .into_iter()
        .map(|(name, role, account)| {
            let mut token = toml::Table::new();
            token.insert("name".into(), name.into());
            token.insert("secret".into(), secret(name).into());
            token.insert("role".into(), role.into());
            token.extend(account.map(|account: &str| ("account".to_owned(), toml::Value::from(account))));
            token.into()
        })
        .collect();
    let cluster = cluster().set("auth.tokens", tokens).start().await;
    let (receiver, api) = (Receiver::start().await, cluster.api(1));
    let call = async |who: &str, method: &str, path: &str, body: Value| {
        let authorization = format!("Bearer {}", secret(who));
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        let body = if method == "GET" { Vec::new() } else { body.to_string().into_bytes() };
        api.send(method, &format!("/api/v1{path}"), &headers, body).await.unwrap()
    };
    wait_served(&api, &secret("admin")).await;
    let other = call("all", "POST", "/app", json!({ "name": "b", "uid": "b" })).await.expect_status(201).json();
    let other_id = other["id"].as_str().unwrap().to_owned();
    let endpoint = json!({ "url": receiver.url("/b"), "uid": "ep" });
    call("all", "POST", "/app/b/endpoint", endpoint.clone()).await.expect_status(201);
    let message = json!({ "eventType": "t", "eventId": "e", "payload": { "secret": "of b" } });
    call("all", "POST", "/app/b/msg", message.clone()).await.expect_status(202);

    call("a", "POST", "/app", json!({ "name": "c", "uid": "c" })).await.expect_status(403);
    call("a", "POST", "/app", json!({ "name": "nobody's" })).await.expect_status(403);
    let own = call("a", "POST", "/app", json!({ "name": "a", "uid": "a" })).await.expect_status(201).json();
    let own_id = own["id"].as_str().unwrap().to_owned();
    for app in ["a", own_id.as_str()] {
        call("a", "GET", &format!("/app/{app}"), json!({})).await.expect_status(200);
        call("a", "POST", &format!("/app/{app}/msg"), message.clone()).await.expect_status(202);
    }
    for app in ["b", other_id.as_str(), "nobody"] {
        for (method, path) in [
            ("GET", ""),
            ("PUT", ""),
            ("PATCH", ""),
            ("DELETE", ""),
            ("GET", "/endpoint"),
            ("POST", "/endpoint"),
            ("GET", "/endpoint/ep"),
            ("GET", "/endpoint/ep/secret"),
            ("POST", "/endpoint/ep/secret/rotate"),
            ("GET", "/endpoint/ep/headers"),
            ("DELETE", "/endpoint/ep"),
            ("POST", "/msg"),
            ("GET", "/msg"),
            ("GET", "/msg/e"),
            ("GET", "/attempt/msg/e"),
            ("GET", "/attempt/endpoint/ep"),
        ] {
            let answer = call("a", method, &format!("/app/{app}{path}"), json!({})).await;
            assert_eq!(answer.status, 403, "{method} /app/{app}{path}: {answer:?}");
            assert!(!answer.body.contains("of b") && answer.json()["code"] == "forbidden", "{answer:?}");
        }
    }
    for who in ["a", "all"] {
        let event_type = json!({ "name": "t", "description": "" });
        call(who, "POST", "/event-type", event_type).await.expect_status(403);
        let watch = json!({ "url": receiver.url("/ops") });
        call(who, "POST", "/operational-webhook/endpoint", watch).await.expect_status(403);
        call(who, "GET", "/operational-webhook/endpoint", json!({})).await.expect_status(403);
    }
    let nobody = api.webhooks("POST", "/app/a/msg", &message).await.expect_status(401).json();
    assert!(nobody["code"].is_string() && nobody["detail"].is_string(), "{nobody}");
    assert_eq!(call("all", "GET", "/app/b/endpoint/ep", json!({})).await.expect_status(200).json()["uid"], "ep");
}

async fn wait_served(api: &Api, secret: &str) {
    let authorization = format!("Bearer {secret}");
    until("it serves", SOON, async || {
        let answer = api.send("GET", "/api/v1/app", &[("authorization", &authorization)], Vec::new()).await;
        answer.is_ok_and(|answer| answer.status == 200)
    })
    .await;
}
