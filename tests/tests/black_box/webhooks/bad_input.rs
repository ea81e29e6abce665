//! Everything that can be wrong with a call of the webhooks API: refused in Svix's form, naming what is wrong, and nothing
//! changes.

use std::collections::BTreeMap;

use onceward_tests::{
    client::{Answer, Api},
    cluster::Cluster,
};
use serde_json::{Value, json};

/// One wrong call and what its answer must name.
struct Wrong {
    method: &'static str,
    path: String,
    body: Vec<u8>,
    headers: Vec<(&'static str, String)>,
    status: u16,
    names: String,
}

fn wrong(method: &'static str, path: &str, body: impl Into<Vec<u8>>, status: u16, names: &str) -> Wrong {
    Wrong { method, path: path.to_owned(), body: body.into(), headers: Vec::new(), status, names: names.to_owned() }
}

/// A key of 24 bytes.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Reads as a generated id, of something that is not there.
const NO_APP: &str = "app_000000000000000000000000000";

/// URLs that no endpoint may have, and what the refusal says of them.
const URLS: &[(&str, &str)] = &[
    ("", "url"),
    ("nonsense", "url"),
    ("/relative", "url"),
    ("ftp://example.com/", "http"),
    ("file:///etc/passwd", "http"),
    ("http://", "url"),
    ("https://user:password@example.com/", "url"),
    ("http://example.com:0/", "port"),
    ("http://127.0.0.1/", "loopback"),
    ("http://127.1:8080/", "loopback"),
    ("http://2130706433/", "loopback"),
    ("http://0x7f000001/", "loopback"),
    ("http://0177.0.0.1/", "loopback"),
    ("http://localhost/", "loopback"),
    ("http://inner.localhost:8080/", "loopback"),
    ("http://[::1]/", "loopback"),
    ("http://[::ffff:127.0.0.1]/", "loopback"),
    ("http://10.0.0.1/", "private"),
    ("http://172.16.0.1/", "private"),
    ("http://192.168.1.1:80/", "private"),
    ("http://[::ffff:10.0.0.1]/", "private"),
    ("http://169.254.169.254/latest/meta-data", "169.254.169.254"),
    ("http://100.64.0.1/", "100.64.0.1"),
    ("http://0.0.0.0/", "0.0.0.0"),
    ("http://224.0.0.1/", "224.0.0.1"),
    ("http://255.255.255.255/", "255.255.255.255"),
    ("http://[fe80::1]/", "fe80::1"),
    ("http://[fd00::1]/", "fd00::1"),
    ("http://[64:ff9b::10.0.0.1]/", "64:ff9b"),
];

fn uids() -> Vec<Value> {
    vec![json!(""), json!("a b"), json!("a/b"), json!("ü"), json!("x".repeat(256)), json!(NO_APP), json!(1), json!([])]
}

fn metadata() -> Vec<Value> {
    let many: serde_json::Map<String, Value> = (0..65).map(|n| (format!("k{n}"), json!("v"))).collect();
    vec![json!([]), json!("x"), json!({ "a": 1 }), json!({ "a": null }), many.into(), json!({ "a": "x".repeat(5_000) })]
}

fn rates() -> Vec<Value> {
    vec![json!(0), json!(-1), json!(1.5), json!("1"), json!(1_u64 << 40)]
}

fn lists(one_too_many: usize) -> Vec<Value> {
    let many: Vec<String> = (0..one_too_many).map(|n| format!("t{n}")).collect();
    vec![json!("a"), json!([1]), json!(["a b"]), json!([""]), json!({}), json!(many)]
}

/// Values that are wrong for a field, of a body that is right.
type Fields = Vec<(&'static str, Vec<Value>)>;

fn app_fields() -> Fields {
    vec![
        ("name", vec![json!(null), json!(1), json!(""), json!("x".repeat(257))]),
        ("uid", uids()),
        ("rateLimit", rates()),
        ("throttleRate", rates()),
        ("metadata", metadata()),
    ]
}

fn header_values() -> Vec<Value> {
    let many: serde_json::Map<String, Value> = (0..33).map(|n| (format!("x-{n}"), json!("v"))).collect();
    let mut values = vec![
        json!([]),
        json!({ "a b": "x" }),
        json!({ "": "x" }),
        json!({ "x-a\r\nx-b": "x" }),
        json!({ "x-a": "x\r\nx-b: y" }),
        json!({ "x-a": "x\ny" }),
        json!({ "x-a": "\u{0}" }),
        json!({ "x-a": 1 }),
        json!({ "x-a": "v".repeat(5_000) }),
        many.into(),
    ];
    let reserved = ["Host", "content-length", "Content-Type", "transfer-encoding", "connection", "user-agent"];
    let ours = ["webhook-id", "Webhook-Signature", "webhook-timestamp", "svix-id", "onceward-sequence", "te"];
    values.extend(reserved.into_iter().chain(ours).map(|name| json!({ name: "x" })));
    values
}

fn endpoint_fields() -> Fields {
    let short = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2Lh";
    let long = format!("whsec_{}", "AAAA".repeat(26));
    vec![
        ("url", vec![json!(null), json!(1), json!([]), json!(format!("https://example.com/{}", "x".repeat(2_048)))]),
        ("uid", uids()),
        ("description", vec![json!(1), json!("x".repeat(1_025))]),
        ("rateLimit", rates()),
        ("disabled", vec![json!("yes"), json!(1)]),
        ("eventTypes", lists(101)),
        ("filterTypes", lists(101)),
        ("channels", lists(11)),
        ("metadata", metadata()),
        ("secret", vec![json!(""), json!("whsec_"), json!("whsec_!!!!"), json!(short), json!(long), json!(1)]),
        ("headers", header_values()),
    ]
}

fn message_fields() -> Fields {
    vec![
        ("eventType", vec![json!(null), json!(1), json!(""), json!("a b"), json!("ü"), json!("x".repeat(257))]),
        ("eventId", vec![json!(1), json!(""), json!("a/b"), json!("x".repeat(257))]),
        ("payload", vec![json!(null), json!([]), json!("x"), json!(1), json!(true)]),
        ("channels", lists(6)),
        ("tags", vec![json!("a"), json!([1]), json!(vec!["t"; 9])]),
        ("payloadRetentionPeriod", vec![json!(0), json!(91), json!(-1), json!("5"), json!(5.5)]),
    ]
}

fn event_type_fields() -> Fields {
    vec![
        ("name", vec![json!(null), json!(1), json!(""), json!("a b"), json!("x".repeat(257))]),
        ("description", vec![json!(null), json!(1)]),
        ("archived", vec![json!("yes")]),
        ("schemas", vec![json!("x"), json!([])]),
    ]
}

/// Each field of a right body in turn with each of its wrong values, and left out where it is needed.
fn bodies(method: &'static str, path: &str, right: &Value, fields: Fields, needed: &[&str]) -> Vec<Wrong> {
    let mut rows = Vec::new();
    for body in ["", "[]", "null", "1", "{", "{}x"] {
        rows.push(wrong(method, path, body, 422, ""));
    }
    rows.push(wrong(method, path, b"{\"name\": \"\xff\xfe\"}".to_vec(), 422, ""));
    rows.push(wrong(method, path, format!("{{\"x\": {}", "[".repeat(10_000)), 422, ""));
    for field in needed {
        let mut missing = right.clone();
        missing.as_object_mut().unwrap().remove(*field);
        rows.push(wrong(method, path, missing.to_string(), 422, field));
    }
    for (field, values) in fields {
        for value in values {
            let mut body = right.clone();
            body[field] = value;
            rows.push(wrong(method, path, body.to_string(), 422, field));
        }
    }
    rows
}

fn without(fields: Fields, names: &[&str]) -> Fields {
    fields.into_iter().filter(|(name, _)| !names.contains(name)).collect()
}

fn applications_and_endpoints() -> Vec<Wrong> {
    let app = json!({ "name": "x" });
    let endpoint = json!({ "url": "https://example.com/" });
    let mut rows = bodies("POST", "/app", &app, app_fields(), &["name"]);
    rows.push(wrong("POST", "/app", r#"{"name": "\ud800"}"#, 422, "JSON"));
    rows.extend(bodies("PUT", "/app/shop", &app, app_fields(), &["name"]));
    rows.extend(bodies("PATCH", "/app/shop", &json!({}), app_fields(), &[]));
    for (path, operational) in [("/app/shop/endpoint", false), ("/operational-webhook/endpoint", true)] {
        let left_out: &[&str] = if operational { &["channels"] } else { &[] };
        let one = format!("{path}/ep");
        rows.extend(bodies("POST", path, &endpoint, without(endpoint_fields(), left_out), &["url"]));
        let left_out = [left_out, &["secret", "headers"]].concat();
        rows.extend(bodies("PUT", &one, &endpoint, without(endpoint_fields(), &left_out), &["url"]));
        // `null` removes, in a patch.
        rows.extend(bodies("PATCH", &one, &json!({}), without(endpoint_fields(), &left_out), &[]));
        for (url, names) in URLS {
            let body = json!({ "url": url }).to_string();
            rows.push(wrong("POST", path, body.clone(), 422, names));
            rows.push(wrong("PATCH", &one, body.clone(), 422, names));
            rows.push(wrong("PUT", &one, body, 422, names));
        }
        let keys = ["", "whsec_", "whsec_!!!!", "whsec_AAAA"].map(|key| json!(key));
        let grace = [json!(-1), json!(604_801), json!("1"), json!(1.5)];
        let fields = vec![("key", keys.to_vec()), ("gracePeriodSeconds", grace.to_vec())];
        rows.extend(without_empty(bodies("POST", &format!("{one}/secret/rotate"), &json!({}), fields, &[])));
        let headers = || vec![("headers", header_values())];
        rows.extend(bodies("PUT", &format!("{one}/headers"), &json!({ "headers": {} }), headers(), &["headers"]));
    }
    let patch = vec![("headers", header_values())];
    rows.extend(bodies("PATCH", "/app/shop/endpoint/ep/headers", &json!({ "headers": {} }), patch, &["headers"]));
    rows.push(wrong("POST", "/app/shop/endpoint", both_names().to_string(), 422, "eventTypes"));
    rows
}

/// Where a body may be left out altogether.
fn without_empty(rows: Vec<Wrong>) -> Vec<Wrong> {
    rows.into_iter().filter(|row| !row.body.is_empty()).collect()
}

fn both_names() -> Value {
    json!({ "url": "https://example.com/", "eventTypes": ["a"], "filterTypes": ["b"] })
}

fn messages_and_types() -> Vec<Wrong> {
    let message = json!({ "eventType": "t", "payload": {} });
    let mut rows = bodies("POST", "/app/shop/msg", &message, message_fields(), &["eventType", "payload"]);
    let event_type = json!({ "name": "other", "description": "" });
    rows.extend(bodies("POST", "/event-type", &event_type, event_type_fields(), &["name", "description"]));
    let fields = || without(event_type_fields(), &["name"]);
    rows.extend(bodies("PUT", "/event-type/other", &json!({ "description": "" }), fields(), &["description"]));
    rows.extend(bodies("PATCH", "/event-type/t", &json!({}), without(fields(), &["description"]), &[]));
    let large = json!({ "eventType": "t", "payload": { "x": "x".repeat(256 << 10) } }).to_string();
    rows.push(wrong("POST", "/app/shop/msg", large, 413, ""));
    let schemas = json!({ "name": "other", "description": "", "schemas": { "1": "x".repeat(70_000) } }).to_string();
    rows.push(wrong("POST", "/event-type", schemas, 413, "schemas"));
    rows.push(wrong("POST", "/app/shop/msg", vec![b' '; 8 << 20], 413, ""));
    for key in ["x".repeat(256), String::new()] {
        let mut row = wrong("POST", "/app/shop/msg", message.to_string(), 422, "dempotency-");
        row.headers.push(("idempotency-key", key));
        rows.push(row);
    }
    rows
}

fn queries() -> Vec<Wrong> {
    let lists = [
        "/app",
        "/app/shop/endpoint",
        "/app/shop/msg",
        "/app/shop/attempt/msg/e",
        "/app/shop/attempt/endpoint/ep",
        "/event-type",
        "/operational-webhook/endpoint",
    ];
    let mut rows = Vec::new();
    for list in lists {
        for query in ["limit=0", "limit=251", "limit=x", "limit=-1"] {
            rows.push(wrong("GET", &format!("{list}?{query}"), "", 422, "limit"));
        }
        rows.push(wrong("GET", &format!("{list}?iterator=%00"), "", 422, "iterator"));
    }
    for list in ["/app", "/app/shop/endpoint", "/event-type"] {
        rows.push(wrong("GET", &format!("{list}?order=upwards"), "", 422, "order"));
    }
    for (query, names) in [
        ("status=9", "status"),
        ("status=x", "status"),
        ("status_code_class=7", "status_code_class"),
        ("before=yesterday", "before"),
        ("after=1", "after"),
    ] {
        rows.push(wrong("GET", &format!("/app/shop/attempt/msg/e?{query}"), "", 422, names));
        rows.push(wrong("GET", &format!("/app/shop/attempt/endpoint/ep?{query}"), "", 422, names));
    }
    rows
}

/// What no path takes.
fn elsewhere() -> Vec<Wrong> {
    let mut rows = Vec::new();
    for path in ["", "/nothing", "/app/shop/nothing", "/app/shop/msg/e/nothing"] {
        rows.push(wrong("GET", path, "", 404, ""));
    }
    for (method, path) in [("PUT", "/app"), ("POST", "/app/shop"), ("DELETE", "/app/shop/msg"), ("BREW", "/event-type")]
    {
        rows.push(wrong(method, path, "{}", 405, ""));
    }
    rows
}

/// What is well-formed, and refused for what is there or is not.
fn refused_by_what_is_there() -> Vec<Wrong> {
    let mut rows = Vec::new();
    for (method, body) in [("PUT", json!({ "name": "x", "uid": "other" })), ("PATCH", json!({ "uid": "other" }))] {
        rows.push(wrong(method, "/app/shop", body.to_string(), 422, "uid"));
    }
    rows.push(wrong("POST", "/app", json!({ "name": "x", "uid": "shop" }).to_string(), 409, ""));
    rows.push(wrong("POST", "/event-type", json!({ "name": "t", "description": "" }).to_string(), 409, ""));
    let other = json!({ "eventType": "t", "eventId": "e", "payload": { "other": 1 } });
    rows.push(wrong("POST", "/app/shop/msg", other.to_string(), 409, ""));
    let endpoint = json!({ "url": "https://example.com/" }).to_string();
    let message = json!({ "eventType": "t", "payload": {} }).to_string();
    for app in ["nobody", NO_APP] {
        let not_found = |method, path: &str, body: &str| wrong(method, &format!("/app/{app}{path}"), body, 404, "");
        rows.push(not_found("GET", "", ""));
        rows.push(not_found("PATCH", "", "{}"));
        rows.push(not_found("DELETE", "", ""));
        rows.push(not_found("GET", "/endpoint", ""));
        rows.push(not_found("POST", "/endpoint", &endpoint));
        rows.push(not_found("POST", "/msg", &message));
        rows.push(not_found("GET", "/msg", ""));
        rows.push(not_found("GET", "/msg/e", ""));
        rows.push(not_found("GET", "/attempt/msg/e", ""));
        rows.push(not_found("GET", "/attempt/endpoint/ep", ""));
    }
    for base in ["/app/shop/endpoint", "/operational-webhook/endpoint"] {
        for endpoint in ["nobody", "ep_000000000000000000000000000", NO_APP] {
            let not_found =
                |method, path: &str, body: &str| wrong(method, &format!("{base}/{endpoint}{path}"), body, 404, "");
            rows.push(not_found("GET", "", ""));
            rows.push(not_found("PATCH", "", "{}"));
            rows.push(not_found("DELETE", "", ""));
            rows.push(not_found("GET", "/secret", ""));
            rows.push(not_found("POST", "/secret/rotate", "{}"));
            rows.push(not_found("GET", "/headers", ""));
            rows.push(not_found("PUT", "/headers", r#"{"headers": {}}"#));
        }
    }
    let id = "msg_000000000000000000000000000";
    for path in ["/app/shop/msg/nothing", &format!("/app/shop/msg/{id}"), "/app/shop/attempt/msg/nothing"] {
        rows.push(wrong("GET", path, "", 404, ""));
    }
    rows.push(wrong("GET", "/app/shop/msg/e/attempt/atmpt_000000000000000000000000000", "", 404, ""));
    rows.push(wrong("GET", "/app/shop/attempt/endpoint/nobody", "", 404, ""));
    rows.push(wrong("GET", "/event-type/nothing", "", 404, ""));
    rows.push(wrong("DELETE", "/event-type/nothing", "", 404, ""));
    rows
}

/// Sends each of them; panics with those that were not answered as wanted.
async fn refuse_all(cluster: &Cluster, rows: &[Wrong]) {
    let mut failures = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(row.headers.iter().map(|(name, value)| (*name, value.as_str())));
        let path = format!("/api/v1{}", row.path);
        let answer = cluster.api((n % 3 + 1) as u16).send(row.method, &path, &headers, row.body.clone()).await;
        let complaint = match answer {
            Ok(answer) => complaint(row, &answer),
            Err(error) => Some(format!("{error:?}")),
        };
        if let Some(complaint) = complaint {
            let body = String::from_utf8_lossy(&row.body[..row.body.len().min(150)]).into_owned();
            failures.push(format!("{} {} {body}: {complaint}", row.method, row.path));
        }
    }
    assert!(failures.is_empty(), "{} of {} answers:\n{}", failures.len(), rows.len(), failures.join("\n"));
}

/// The state hashes of the data shards. The system shard also writes down its nodes, some time after it was founded.
async fn data_shards(cluster: &mut Cluster) -> BTreeMap<u16, String> {
    let mut hashes = cluster.assert_equal_state().await;
    hashes.remove(&0);
    hashes
}

/// All that there is, as it is told.
async fn everything(api: &Api) -> Vec<String> {
    let endpoints = ["/app/shop/endpoint", "/operational-webhook/endpoint"];
    let mut paths = vec!["/app".to_owned(), "/app/shop/msg".to_owned(), "/event-type".to_owned()];
    paths.extend(endpoints.map(str::to_owned));
    paths.extend(endpoints.map(|path| format!("{path}/ep/secret")));
    paths.extend(endpoints.map(|path| format!("{path}/ep/headers")));
    let mut told = Vec::new();
    for path in paths {
        told.push(api.webhooks_get(&path).await.expect_status(200).body);
    }
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wrong_call_of_the_webhooks_api_is_told_in_svix_form_and_changes_no_shard() {
    // Without an exception for loopback.
    let mut cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    api.create_app("shop").await;
    let endpoint = json!({ "url": "https://example.com/", "uid": "ep", "disabled": true, "secret": SECRET });
    for path in ["/app/shop/endpoint", "/operational-webhook/endpoint"] {
        api.webhooks("POST", path, &endpoint).await.expect_status(201);
    }
    let message = json!({ "eventType": "t", "eventId": "e", "payload": { "card": "4111-1111-1111-1111" } });
    api.webhooks("POST", "/app/shop/msg", &message).await.expect_status(202);
    api.webhooks("POST", "/event-type", &json!({ "name": "t", "description": "" })).await.expect_status(201);
    let before = data_shards(&mut cluster).await;

    let told = everything(&api).await;
    let rows = [applications_and_endpoints(), messages_and_types(), queries(), elsewhere()];
    refuse_all(&cluster, &rows.into_iter().flatten().collect::<Vec<Wrong>>()).await;
    assert_eq!(data_shards(&mut cluster).await, before, "a refused call changed a shard's state");
    // These have to ask the log, which moves its clock.
    refuse_all(&cluster, &refused_by_what_is_there()).await;
    assert_eq!(everything(&cluster.api(2)).await, told);
    for id in cluster.ids() {
        let log = cluster.node(id).log();
        for secret in [SECRET, &SECRET["whsec_".len()..], "4111-1111"] {
            assert!(!log.contains(secret), "the log of node {id} has {secret}");
        }
    }
}

/// What is wrong with the answer.
fn complaint(row: &Wrong, answer: &Answer) -> Option<String> {
    let Ok(body) = serde_json::from_str::<Value>(&answer.body) else { return Some(format!("{answer:?}")) };
    let told = match body["detail"].as_array() {
        Some(items) => {
            let is_item = |item: &Value| {
                item["loc"].as_array().is_some_and(|loc| loc.iter().all(Value::is_string))
                    && ["msg", "type"].into_iter().all(|field| item[field].is_string())
            };
            answer.status == 422 && !items.is_empty() && items.iter().all(is_item)
        }
        None => answer.status != 422 && body["detail"].as_str().is_some_and(|detail| !detail.is_empty()),
    };
    let right = answer.status == row.status
        && told
        && body["code"].as_str().is_some_and(|code| !code.is_empty())
        && answer.header("content-type").is_some_and(|kind| kind.starts_with("application/json"))
        && answer.body.contains(&row.names)
        && answer.header("x-request-id").is_some();
    (!right).then(|| format!("want {} naming {:?}, got {} {}", row.status, row.names, answer.status, answer.body))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_has_at_most_a_hundred_endpoints_and_the_refusal_says_so() {
    let cluster = super::cluster().start().await;
    let api = cluster.api(1);
    api.create_app("shop").await;
    for n in 0..100 {
        let body = json!({ "url": format!("http://127.0.0.1:9/{n}"), "disabled": true });
        cluster.api(n % 3 + 1).webhooks("POST", "/app/shop/endpoint", &body).await.expect_status(201);
    }
    let body = json!({ "url": "http://127.0.0.1:9/", "disabled": true });
    let refused = api.webhooks("POST", "/app/shop/endpoint", &body).await;
    assert!((400..500).contains(&refused.status) && refused.body.contains("100"), "{refused:?}");
    let listed = api.webhooks_get("/app/shop/endpoint?limit=250").await.expect_status(200).json();
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["done"]), (100, &json!(true)));
}
