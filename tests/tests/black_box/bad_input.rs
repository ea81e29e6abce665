//! Everything that can be wrong with a request: answered 4xx with a code and a detail that helps, and nothing changes.

use std::time::Duration;

use onceward_tests::{client::Answer, cluster::Cluster};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{fixed, item};

const JSON: &str = "application/json";

/// One wrong request and what its answer must name.
struct Wrong {
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Vec<u8>,
    status: u16,
    /// Must occur in the answer: the field, or the value that is wrong.
    names: String,
}

fn wrong(method: &'static str, path: &str, body: impl Into<Vec<u8>>, status: u16, names: &str) -> Wrong {
    Wrong { method, path: path.to_owned(), content_type: JSON, body: body.into(), status, names: names.to_owned() }
}

/// JSON values that are wrong for a field of a policy.
const POLICY_FIELDS: &[(&str, &[&str])] = &[
    (
        "rate",
        &[
            "5",
            "null",
            "[]",
            "{}",
            "true",
            r#""""#,
            r#""1""#,
            r#""/s""#,
            r#""1/""#,
            r#""0/s""#,
            r#""-1/s""#,
            r#""1.5/s""#,
            r#"" 1/s""#,
            r#""1 /s""#,
            r#""1/x""#,
            r#""1/S""#,
            r#""1/0s""#,
            r#""1/-1s""#,
            r#""1/s/s""#,
            r#""1/366d""#,
            r#""1000000001/s""#,
            r#""1000001/ms""#,
            r#""99999999999999999999/s""#,
            r#""1/99999999999999999999d""#,
            r#""１/s""#,
            r#""1/month""#,
        ],
    ),
    ("burst", &["0", "-1", "1.5", "1e300", r#""10""#, "[]", "{}", "true", "1000000000001", "99999999999999999999"]),
    ("algorithm", &[r#""""#, r#""bucket""#, r#""TOKEN_BUCKET""#, "1", "[]"]),
    ("on_unavailable", &[r#""""#, r#""open""#, r#""Local""#, "1", "{}"]),
    ("timeout_ms", &["0", "9", "2001", "-1", "250.5", r#""250""#, "4294967546"]),
    ("escrow", &[r#""""#, r#""on""#, "true"]),
    ("exempt", &[r#""x""#, "{}", "[1]", r#"[""]"#, "[null]", r#"[["a"]]"#]),
    (
        "overrides",
        &[
            "[]",
            r#""deny""#,
            r#"{"k": "allow"}"#,
            r#"{"k": 1}"#,
            r#"{"k": null}"#,
            r#"{"": "deny"}"#,
            r#"{"k": {}}"#,
            r#"{"k": {"burst": 1}}"#,
            r#"{"k": {"rate": "0/s", "burst": 1}}"#,
            r#"{"k": {"rate": "1/s", "burst": 0}}"#,
            r#"{"k": {"rate": "1/s", "burst": -1}}"#,
            r#"{"k": {"rate": "1/366d", "burst": 1}}"#,
        ],
    ),
];

/// A policy that is right but for one field.
fn policies() -> Vec<Wrong> {
    let put = |body: String, names: &str| wrong("PUT", "/v1/policies/bad", body, 400, names);
    let mut rows = Vec::new();
    for body in ["", "[]", "null", "1", "\"x\"", "{\"rate\": \"1/s\"", "{rate: 1}", "{}x"] {
        rows.push(put(body.to_owned(), ""));
    }
    rows.push(put("[".repeat(100_000), ""));
    rows.push(put(format!("{{\"rate\": {}", "{\"a\":".repeat(100_000)), ""));
    rows.push(wrong("PUT", "/v1/policies/bad", b"{\"rate\": \"\xff\xfe/s\"}".to_vec(), 400, ""));
    rows.push(put(r#"{"rate": "1/s", "rate": "2/s"}"#.to_owned(), "rate"));
    rows.push(put(r#"{"burst": 3}"#.to_owned(), "rate"));
    for (field, values) in POLICY_FIELDS {
        // Written as text, as some numbers are none to a JSON library.
        let rate = if *field == "rate" { "" } else { r#""rate": "1/s", "# };
        for value in *values {
            rows.push(put(format!("{{{rate}\"{field}\": {value}}}"), field));
        }
    }
    let long_key = "k".repeat(513);
    rows.push(put(json!({ "rate": "1/s", "exempt": [long_key] }).to_string(), "exempt"));
    rows.push(put(json!({ "rate": "1/s", "overrides": { long_key: "deny" } }).to_string(), "overrides"));
    rows.push(put(json!({ "rate": "1/s", "burts": 3 }).to_string(), "burts"));
    let nested = json!({ "k": { "rate": "1/s", "burst": 1, "burts": 1 } });
    rows.push(put(json!({ "rate": "1/s", "overrides": nested }).to_string(), "burts"));
    rows.push(put(r#"{"rate": "1/s", "burst": 1e400}"#.to_owned(), "out of range"));
    rows.push(put(json!({ "algorithm": "sliding_window", "rate": "1/s", "burst": 3 }).to_string(), "burst"));
    let long = "p".repeat(64);
    for name in ["A", "-a", ".a", "_a", "a%20b", "%C3%A4", "%FF", "a*", long.as_str()] {
        rows.push(wrong("PUT", &format!("/v1/policies/{name}"), r#"{"rate": "1/s"}"#, 400, ""));
    }
    rows
}

fn checks() -> Vec<Wrong> {
    let post = |body: String, names: &str| wrong("POST", "/v1/limits/check", body, 400, names);
    let mut rows = Vec::new();
    for body in ["", "[]", "null", "{\"checks\": [", "{\"checks\": [{\"policy\": \"p\", \"key\": \"\\ud800\"}]}"] {
        rows.push(post(body.to_owned(), ""));
    }
    rows.push(post("{}".to_owned(), "checks"));
    rows.push(post(format!("{{\"checks\": {}", "[".repeat(50_000)), ""));
    for value in [json!(null), json!({}), json!("p"), json!([]), json!([1]), json!([[]])] {
        rows.push(post(json!({ "checks": value }).to_string(), "checks"));
    }
    let one = |item: Value| json!({ "checks": [item] }).to_string();
    rows.push(post(json!({ "checks": vec![json!({ "policy": "p", "key": "k" }); 17] }).to_string(), "checks"));
    rows.push(post(one(json!({ "key": "k" })), "policy"));
    rows.push(post(one(json!({ "policy": "p" })), "key"));
    rows.push(post(one(json!({ "policy": "p", "key": "k", "costs": 1 })), "costs"));
    for value in [json!(1), json!(null), json!([])] {
        rows.push(post(one(json!({ "policy": value, "key": "k" })), "policy"));
        rows.push(post(one(json!({ "policy": "p", "key": value })), "key"));
    }
    for key in [String::new(), "k".repeat(513), "ü".repeat(257)] {
        rows.push(post(one(json!({ "policy": "p", "key": key })), "key"));
    }
    for cost in ["0", "-1", "1.5", "\"1\"", "1e300", "1000000000001", "18446744073709551616", "null", "true"] {
        rows.push(post(format!(r#"{{"checks": [{{"policy": "p", "key": "k", "cost": {cost}}}]}}"#), "cost"));
    }
    let with =
        |field: &str, value: Value| json!({ "checks": [{ "policy": "p", "key": "k" }], field: value }).to_string();
    for mode in [json!(""), json!("force"), json!("Enforce"), json!(1)] {
        rows.push(post(with("mode", mode), "mode"));
    }
    for id in [json!(""), json!("r".repeat(65)), json!(1), json!([])] {
        rows.push(post(with("request_id", id), "request_id"));
    }
    rows.push(post(with("check", json!(1)), "check"));
    rows
}

fn refunds_and_resets() -> Vec<Wrong> {
    let post = |body: Value, names: &str| wrong("POST", "/v1/limits/refund", body.to_string(), 400, names);
    let right = json!({ "policy": "p", "key": "k", "cost": 1, "request_id": "r" });
    let mut rows = vec![post(json!([]), ""), post(json!(null), "")];
    for field in ["policy", "key", "request_id"] {
        let mut missing = right.clone();
        missing.as_object_mut().unwrap().remove(field);
        rows.push(post(missing, field));
    }
    let values: [(&str, &[Value]); 4] = [
        ("policy", &[json!(1)]),
        ("key", &[json!(1), json!("")]),
        ("cost", &[json!(0), json!(-1), json!(1.5), json!("1"), json!(1_000_000_000_001u64)]),
        ("request_id", &[json!(1), json!("")]),
    ];
    for (field, values) in values {
        for value in values {
            let mut body = right.clone();
            body[field] = value.clone();
            rows.push(post(body, field));
        }
    }
    let mut unknown = right;
    unknown["reason"] = json!("x");
    rows.push(post(unknown, "reason"));
    rows.push(wrong("DELETE", "/v1/limits/p/%FF", "", 400, ""));
    rows.push(wrong("DELETE", &format!("/v1/limits/p/{}", "k".repeat(513)), "", 400, "key"));
    rows
}

/// The key `k` of account `a` is held; nothing here may change that.
fn idempotency() -> Vec<Wrong> {
    let long = "x".repeat(256);
    let controls = json!("a\u{0}b");
    let names = [json!(null), json!(1), json!(""), json!([]), json!(long), controls, json!("tab\t")];
    let begin = json!({ "account": "a", "key": "k", "fingerprint": "f" });
    let complete = json!({ "account": "a", "key": "k", "token": 1, "response": { "status": 200 } });
    let abandon = json!({ "account": "a", "key": "k", "token": 1 });
    let extend = json!({ "account": "a", "key": "k", "token": 1, "lease_ms": 1_000 });
    let calls = [("begin", begin), ("complete", complete.clone()), ("abandon", abandon), ("extend", extend)];
    let mut rows = Vec::new();
    for (call, right) in &calls {
        let path = format!("/v1/idempotency/{call}");
        let mut refuse = |body: String, names: &str| rows.push(wrong("POST", &path, body, 400, names));
        for body in ["", "[]", "null", "{", "{\"account\": \"\\ud800\"}"] {
            refuse(body.to_owned(), "");
        }
        refuse(format!("{{\"account\": {}", "[".repeat(10_000)), "");
        let with = |field: &str, value: &Value| {
            let mut body = right.clone();
            body[field] = value.clone();
            body.to_string()
        };
        refuse(with("sponsor", &json!(1)), "sponsor");
        refuse(right.to_string().replacen('{', "{\"key\":\"k\",", 1), "key");
        for field in right.as_object().unwrap().keys() {
            let mut missing = right.clone();
            missing.as_object_mut().unwrap().remove(field);
            refuse(missing.to_string(), field);
        }
        for name in &names {
            refuse(with("account", name), "account");
            if *name != json!(long) {
                refuse(with("key", name), "key");
            }
        }
        for key in ["\"k", "\"k\"x", "\"\"", "\"\\k\""] {
            refuse(with("key", &json!(key)), "key");
        }
        rows.push(wrong("POST", &path, with("key", &json!(long)), 413, "key"));
        let mut refuse = |body: String, names: &str| rows.push(wrong("POST", &path, body, 400, names));
        if right.get("token").is_some() {
            for token in ["0", "-1", "1.5", "\"1\"", "null", "9007199254740992", "18446744073709551616", "1e400"] {
                refuse(right.to_string().replace("\"token\":1", &format!("\"token\":{token}")), "");
            }
        }
    }
    let fields: [(&str, &str, &[Value]); 7] = [
        ("begin", "fingerprint", &[json!(""), json!("f".repeat(129)), json!(1), json!(null)]),
        ("begin", "ttl_ms", &[json!(999), json!(31_536_000_001u64), json!(-1), json!("1s"), json!(null)]),
        ("begin", "lease_ms", &[json!(99), json!(3_600_001), json!(1.5), json!([])]),
        ("begin", "on_lease_expiry", &[json!(""), json!("Hold"), json!("abandon"), json!(1)]),
        ("begin", "attempt_id", &[json!(""), json!("i".repeat(65)), json!(1)]),
        ("begin", "wait_ms", &[json!(30_001), json!(-1), json!("1")]),
        ("extend", "lease_ms", &[json!(99), json!(3_600_001), json!("1"), json!(null)]),
    ];
    for (call, field, values) in fields {
        let (_, right) = calls.iter().find(|(name, _)| *name == call).unwrap();
        for value in values {
            let mut body = right.clone();
            body[field] = value.clone();
            rows.push(wrong("POST", &format!("/v1/idempotency/{call}"), body.to_string(), 400, field));
        }
    }
    let mut refuse = |response: Value, names: &str| {
        let mut body = complete.clone();
        body["response"] = response;
        rows.push(wrong("POST", "/v1/idempotency/complete", body.to_string(), 400, names));
    };
    for response in [json!(null), json!(1), json!([]), json!("ok")] {
        refuse(response, "response");
    }
    refuse(json!({}), "status");
    for status in [json!(99), json!(600), json!("200"), json!(null), json!(200.5)] {
        refuse(json!({ "status": status }), "status");
    }
    for body in [json!(1), json!(null), json!({}), json!(["x"])] {
        refuse(json!({ "status": 200, "body": body }), "body");
    }
    for (body, encoding) in
        [("/w", "base64"), ("/w==x", "base64"), ("_w==", "base64"), ("/x==", "base64"), ("x", "gzip")]
    {
        refuse(json!({ "status": 200, "body": body, "body_encoding": encoding }), "body");
    }
    for headers in [
        json!(null),
        json!([]),
        json!("a: b"),
        json!({ "": "x" }),
        json!({ "a b": "x" }),
        json!({ "a": 1 }),
        json!({ "a": null }),
        json!({ "a": [1] }),
        json!({ "a": "x\r\ny: z" }),
        json!({ "a": "1", "A": "2" }),
    ] {
        refuse(json!({ "status": 200, "headers": headers }), "headers");
    }
    refuse(json!({ "status": 200, "trailers": {} }), "trailers");
    for messages in [json!({}), json!("m"), json!([1]), json!([{}]), json!([{ "eventType": "a b", "payload": {} }])] {
        let mut body = complete.clone();
        body["messages"] = messages;
        rows.push(wrong("POST", "/v1/idempotency/complete", body.to_string(), 400, "messages"));
    }
    let paths = ["/v1/idempotency/%00/k", "/v1/idempotency/a/%FF", "/v1/idempotency/a/%0A", "/v1/idempotency/a/%22k"];
    for path in paths {
        rows.push(wrong("GET", path, "", 400, ""));
        rows.push(wrong("DELETE", path, "", 400, ""));
    }
    rows.push(wrong("GET", &format!("/v1/idempotency/{long}/k"), "", 400, "account"));
    rows.push(wrong("GET", "/v1/idempotency/a/unheard-of", "", 404, "unheard-of"));
    for (query, names) in [
        ("state=held", "state"),
        ("state=", "state"),
        ("limit=0", "limit"),
        ("limit=251", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("iterator=x", "iterator"),
        ("iterator=", "iterator"),
        ("order=asc", "order"),
    ] {
        rows.push(wrong("GET", &format!("/v1/idempotency/a?{query}"), "", 400, names));
    }
    rows
}

fn elsewhere() -> Vec<Wrong> {
    let mut rows = vec![
        wrong("GET", "/", "", 404, ""),
        wrong("GET", "/v1", "", 404, ""),
        wrong("GET", "/v2/policies", "", 404, ""),
        wrong("GET", "/v1/policies/p/q", "", 404, ""),
        wrong("GET", "/v1/policies/unheard-of", "", 404, "unheard-of"),
        wrong("GET", "/v1/limits/check", "", 405, ""),
        wrong("POST", "/v1/policies", "{}", 405, ""),
        wrong("PATCH", "/v1/policies/p", "{}", 405, ""),
        wrong("DELETE", "/v1/cluster", "", 405, ""),
        wrong("BREW", "/v1/cluster", "", 405, ""),
        wrong("POST", "/v1/cluster/nodes/x/replace", "", 400, ""),
        wrong("POST", "/v1/cluster/nodes/99999/replace", "", 400, ""),
    ];
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        rows.push(Wrong {
            method: "POST",
            path: "/v1/limits/check".to_owned(),
            content_type,
            body: br#"{"checks": [{"policy": "p", "key": "k"}]}"#.to_vec(),
            status: 415,
            names: "application/json".to_owned(),
        });
    }
    rows.push(wrong("POST", "/v1/limits/check", vec![b' '; 8 << 20], 413, ""));
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wrong_field_of_every_request_is_told_by_name_and_changes_no_shard() {
    let mut cluster = Cluster::builder().start().await;
    cluster.api(1).put_policy("p", fixed(10)).await.expect_status(201);
    cluster.api(1).check("p", "k").await.expect_status(200);
    let held = json!({ "account": "a", "key": "k", "fingerprint": "f", "lease_ms": 3_600_000 });
    cluster.api(1).try_json("POST", "/v1/idempotency/begin", &held).await.unwrap().expect_status(201);
    let before = cluster.assert_equal_state().await;

    let mut failures = Vec::new();
    let rows: Vec<Wrong> =
        [policies(), checks(), refunds_and_resets(), idempotency(), elsewhere()].into_iter().flatten().collect();
    for (n, row) in rows.iter().enumerate() {
        let api = cluster.api((n % 3 + 1) as u16);
        let answer = api.send(row.method, &row.path, &[("content-type", row.content_type)], row.body.clone()).await;
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
    assert_eq!(cluster.assert_equal_state().await, before, "a refused request changed a shard's state");
    assert_eq!(cluster.api(2).get("/v1/policies").await.json()["policies"].as_array().unwrap().len(), 1);
}

/// What is wrong with the answer.
fn complaint(row: &Wrong, answer: &Answer) -> Option<String> {
    let Ok(body) = serde_json::from_str::<Value>(&answer.body) else { return Some(format!("{answer:?}")) };
    let filled = |field: &str| body[field].as_str().is_some_and(|text| !text.is_empty());
    let right = answer.status == row.status
        && answer.header("content-type") == Some("application/problem+json")
        && body["status"] == answer.status
        && ["type", "title", "detail", "code"].into_iter().all(filled)
        && answer.body.contains(&row.names)
        && answer.header("x-request-id").is_some();
    (!right).then(|| format!("want {} naming {:?}, got {} {}", row.status, row.names, answer.status, answer.body))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_well_formed_and_cannot_be_done_takes_nothing() {
    let cluster = Cluster::builder().start().await;
    let api = cluster.api(1);
    api.put_policy("p", fixed(10)).await.expect_status(201);
    let unknown = api.check("unheard-of", "k").await.expect_status(404);
    assert_eq!(unknown.json()["code"], "not_found");
    assert!(unknown.body.contains("unheard-of"), "{unknown:?}");
    let mixed = api.check_items(&[item("p", "k", 1), item("unheard-of", "k", 1)], "enforce").await;
    mixed.expect_status(404);
    for cost in [11, 1_000_000_000_000] {
        let over = api.check_items(&[item("p", "k", cost)], "enforce").await.expect_status(400);
        assert_eq!(over.json()["code"], "cost_exceeds_burst");
    }
    let refund = json!({ "policy": "p", "key": "k", "cost": 1, "request_id": "never" });
    api.try_json("POST", "/v1/limits/refund", &refund).await.unwrap().expect_status(404);
    api.send("DELETE", "/v1/limits/unheard-of/k", &[], Vec::new()).await.unwrap().expect_status(404);
    api.send("DELETE", "/v1/policies/unheard-of", &[], Vec::new()).await.unwrap().expect_status(404);
    let no_key = api.send("DELETE", "/v1/idempotency/a/unheard-of", &[], Vec::new()).await.unwrap().expect_status(404);
    assert!(no_key.body.contains("unheard-of"), "{no_key:?}");
    assert_eq!(cluster.api(3).remaining("p", "k").await, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_http_is_refused_and_the_node_serves_on() {
    let cluster = Cluster::builder().nodes(1).start().await;
    cluster.api(1).put_policy("p", fixed(10)).await.expect_status(201);
    let address = cluster.api(1).url.strip_prefix("http://").unwrap().to_owned();
    let huge_header = format!("GET /livez HTTP/1.1\r\nhost: x\r\nx-huge: {}\r\n\r\n", "a".repeat(1 << 20));
    let many_headers = format!("GET /livez HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(100_000));
    let check = "POST /v1/limits/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let requests = [
        huge_header,
        many_headers,
        "\u{1}\u{2}\u{3}\r\n\r\n".to_owned(),
        "GET /livez HTTP/9.9\r\n\r\n".to_owned(),
        format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(1 << 20)),
        format!("{check}content-length: -1\r\n\r\n"),
        format!("{check}content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef"),
        format!("{check}content-length: 1000\r\n\r\n{{\"checks\": [{{\"policy\": \"p\", \"key\": \"k\"}}]}}"),
        format!("{check}transfer-encoding: chunked\r\n\r\nzz\r\n"),
        format!("{check}transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
    ];
    for request in requests {
        let shown = &request[..request.len().min(120)];
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let mut answer = Vec::new();
        // The node may answer and hang up before it has read everything: a reset is an answer too.
        let _ = stream.write_all(request.as_bytes()).await;
        let _ = stream.shutdown().await;
        let _ = timeout(Duration::from_secs(40), stream.read_to_end(&mut answer)).await.expect("the node hangs up");
        let status = String::from_utf8_lossy(&answer).split(' ').nth(1).map(str::to_owned);
        assert!(status.as_deref().is_none_or(|status| status.starts_with('4')), "{status:?} for {shown}");
    }
    for timeout_ms in ["", "x", "-1", "1.5", "99999999999999999999"] {
        let answer =
            cluster.api(1).send("GET", "/v1/policies", &[("onceward-timeout-ms", timeout_ms)], Vec::new()).await;
        let answer = answer.unwrap().expect_status(400);
        assert!(answer.body.to_lowercase().contains("onceward-timeout-ms"), "{answer:?}");
    }
    assert_eq!(cluster.api(1).remaining("p", "k").await, 10, "a truncated body counts nothing");
}
