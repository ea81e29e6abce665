//! Real connections: bounds on heads and connections, keep-alive and pipelining, TLS, and an orderly end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{fs, sync::Arc, time::Duration};

use onceward_server::{
    http::Listener,
    settings::{Settings, TlsSettings},
};
use support::{Api, api_with, large_replay};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};
use tokio_util::sync::CancellationToken;

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    api: Api,
    address: std::net::SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

async fn serve(change: impl FnOnce(&mut Settings)) -> Server {
    let mut settings = Settings::default();
    settings.http.listen = "127.0.0.1:0".parse().unwrap();
    change(&mut settings);
    let api = api_with(&settings);
    let listener = Listener::bind(&settings.http).await.unwrap();
    let address = listener.address().unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(listener.serve(api.edge.clone(), stop.clone()));
    Server { api, address, stop, serving }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes on a connection of their own and reads until the server closes it.
    async fn exchange(&self, bytes: &[u8]) -> String {
        exchange(self.connect().await, bytes).await
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) -> String {
    // The server may answer and close before it has read all.
    let _ = stream.write_all(bytes).await;
    read_to_end(&mut stream).await
}

async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server closes the connection").ok();
    String::from_utf8(answer).unwrap()
}

/// Reads one answer whose head has a content-length.
async fn read_answer(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    loop {
        let mut buffer = [0; 1024];
        let count = timeout(PATIENCE, stream.read(&mut buffer)).await.expect("an answer").unwrap();
        assert_ne!(count, 0, "closed after {answer:?}");
        answer.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        let Some((head, body)) = answer.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() >= length.parse().unwrap() {
            return answer;
        }
    }
}

const CHECK_BODY: &str = r#"{"checks": [{"policy": "api", "key": "k"}]}"#;

fn check(more_headers: &str) -> String {
    format!(
        "POST /v1/limits/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{more_headers}\r\n{CHECK_BODY}",
        CHECK_BODY.len()
    )
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_on_one_connection() {
    let server = serve(|_| {}).await;
    let requests = [
        check("x-request-id: one\r\n"),
        check("x-request-id: two\r\n"),
        check("x-request-id: three\r\nconnection: close\r\n"),
    ];
    let answers = server.exchange(requests.concat().as_bytes()).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3);
    let at = |id: &str| answers.find(&format!("x-request-id: {id}")).unwrap();
    assert!(at("one") < at("two") && at("two") < at("three"));
    assert_eq!(server.api.fake.asked().len(), 3);
}

#[tokio::test]
async fn a_chunked_body_is_read_and_one_over_its_bound_is_413_though_the_client_still_sends() {
    let server = serve(|_| {}).await;
    let head = "POST /v1/limits/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let (first, second) = CHECK_BODY.split_at(20);
    let chunked = format!("{head}{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", first.len(), second.len());
    assert!(server.exchange(chunked.as_bytes()).await.starts_with("HTTP/1.1 200"));
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(0x100000));
    let large = format!("{head}{}0\r\n\r\n", chunk.repeat(4));
    let answer = server.exchange(large.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("too_large"), "{answer}");
}

#[tokio::test]
async fn what_is_not_http_is_a_4xx_and_harms_nobody() {
    let server = serve(|_| {}).await;
    let huge = |size: usize| {
        format!("GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-big: {}\r\n\r\n", "a".repeat(size))
    };
    for (bytes, statuses) in [
        ("\0\u{1}\u{2}garbage\r\n\r\n".to_owned(), &["400"][..]),
        ("GET /livez HTTP/1.1\r\nbad header\r\n\r\n".to_owned(), &["400"]),
        ("GET /livez HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".to_owned(), &["400"]),
        ("GET /\u{1}livez HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), &["400"]),
        (huge(20_000), &["431"]),
        (huge(1_000_000), &["431"]),
    ] {
        let answer = server.exchange(bytes.as_bytes()).await;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        // A connection that is reset while megabytes are still being sent may lose the answer.
        let lost = answer.is_empty() && bytes.len() > 100_000;
        assert!(lost || statuses.contains(&status), "{:?}: {answer}", bytes.chars().take(40).collect::<String>());
    }
    let answer = server.exchange(huge(20_000).as_bytes()).await;
    assert!(answer.contains("\"code\":\"invalid_request\""), "{answer}");
    assert!(server.exchange(check("connection: close\r\n").as_bytes()).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn one_connection_too_many_is_503_and_a_closed_one_makes_room() {
    let server = serve(|settings| settings.http.max_connections = 1).await;
    let mut first = server.connect().await;
    first.write_all(check("").as_bytes()).await.unwrap();
    assert!(read_answer(&mut first).await.starts_with("HTTP/1.1 200"));
    let refused = server.exchange(check("").as_bytes()).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    let (head, body) = refused.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("retry-after: 1") && head.contains(&format!("content-length: {}", body.len())), "{refused}");
    assert!(head.contains("x-request-id: ") && head.contains("content-type: application/problem+json"), "{refused}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["code"], "unavailable");
    drop(first);
    let retried = async {
        while !server.exchange(check("connection: close\r\n").as_bytes()).await.starts_with("HTTP/1.1 200") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, retried).await.expect("the place is free again");
}

#[tokio::test]
async fn a_head_that_drips_is_cut_off() {
    let server = serve(|settings| settings.http.idle_timeout_ms = 100).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.unwrap();
    read_to_end(&mut stream).await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answers_is_cut_off() {
    let server = serve(|settings| settings.http.idle_timeout_ms = 100).await;
    let mut stream = server.connect().await;
    let requests = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1_000);
    // Until the answers fill all buffers, and with them the requests: then nothing moves any more.
    let asking = async { while stream.write_all(requests.as_bytes()).await.is_ok() {} };
    timeout(PATIENCE, asking).await.expect("the server closes the connection");
}

#[tokio::test]
async fn stopping_answers_what_is_in_flight_and_closes_what_is_idle() {
    let server = serve(|_| {}).await;
    let mut idle = server.connect().await;
    idle.write_all(check("").as_bytes()).await.unwrap();
    read_answer(&mut idle).await;
    // Half a request is in flight: its head was read.
    let mut busy = server.connect().await;
    let request = check("expect: 100-continue\r\n");
    let (head, body) = request.split_at(request.len() - CHECK_BODY.len());
    busy.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    timeout(PATIENCE, busy.read_exact(&mut go_on)).await.expect("100 Continue").unwrap();

    server.stop.cancel();
    assert_eq!(read_to_end(&mut idle).await, "");
    busy.write_all(body.as_bytes()).await.unwrap();
    assert!(read_to_end(&mut busy).await.starts_with("HTTP/1.1 200"));
    timeout(PATIENCE, server.serving).await.expect("serving ends").unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn the_api_is_served_over_tls_when_a_certificate_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    fs::write(&cert, certified.cert.pem()).unwrap();
    fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let server = serve(|settings| settings.http.tls = TlsSettings { cert: Some(cert), key: Some(key) }).await;

    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, server.connect().await).await.unwrap();
    assert!(exchange(stream, check("connection: close\r\n").as_bytes()).await.starts_with("HTTP/1.1 200"));
    // Plain text on the TLS port gets nothing and harms nothing.
    assert!(!server.exchange(check("").as_bytes()).await.contains("200 OK"));
}

#[tokio::test]
async fn a_certificate_that_cannot_be_read_is_named() {
    let mut settings = Settings::default();
    settings.http.tls = TlsSettings { cert: Some("/nowhere.pem".into()), key: Some("/nowhere.key".into()) };
    let error = Listener::bind(&settings.http).await.err().expect("refused").to_string();
    assert!(error.contains("http.tls.cert: /nowhere.pem"), "{error}");
}

fn complete(text_bytes: usize) -> String {
    let body = format!(
        r#"{{"account": "a", "key": "k", "token": 1, "response": {{"status": 200, "body": "{}"}}}}"#,
        "x".repeat(text_bytes)
    );
    format!(
        "POST /v1/idempotency/complete HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn large_bodies_beyond_their_budget_are_503_and_small_ones_pass() {
    let server = serve(|settings| settings.http.max_buffered_bytes = 300_000).await;
    let mut slow = server.connect().await;
    let request = complete(200_000);
    let (most, last) = request.split_at(request.len() - 10);
    slow.write_all(most.as_bytes()).await.unwrap();
    let budget = &server.api.edge.app().buffered;
    let buffered = async {
        while budget.available_permits() > 110_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, buffered).await.expect("what came in is counted");

    let refused = server.exchange(complete(200_000).as_bytes()).await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: 1"), "{refused}");
    assert!(refused.contains("\"code\":\"unavailable\"") && refused.contains("not applied"), "{refused}");
    assert!(server.exchange(complete(60_000).as_bytes()).await.starts_with("HTTP/1.1 200"));
    assert!(server.exchange(check("connection: close\r\n").as_bytes()).await.starts_with("HTTP/1.1 200"));

    slow.write_all(last.as_bytes()).await.unwrap();
    assert!(read_to_end(&mut slow).await.starts_with("HTTP/1.1 200"));
    // Given back, also by whoever broke off.
    let mut broken = server.connect().await;
    broken.write_all(most.as_bytes()).await.unwrap();
    drop(broken);
    let free = async {
        while budget.available_permits() < 300_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, free).await.expect("nothing stays counted");
    assert!(server.exchange(complete(200_000).as_bytes()).await.starts_with("HTTP/1.1 200"));
}

fn begin(wait_ms: u64, more_headers: &str) -> String {
    let body = format!(r#"{{"account": "a", "key": "k", "fingerprint": "f", "wait_ms": {wait_ms}}}"#);
    format!(
        "POST /v1/idempotency/begin HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{more_headers}\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn large_answers_count_until_they_are_written_and_one_too_many_is_503() {
    const BUDGET: usize = 4 << 20;
    const TEXT: usize = 256 << 10;
    let server = serve(|settings| settings.http.max_buffered_bytes = BUDGET as u32).await;
    server.api.fake.set(|script| script.begin = Ok(large_replay(TEXT)));
    let budget = &server.api.edge.app().buffered;
    // More than the buffers of the system take of each.
    let requests = begin(0, "onceward-timeout-ms: 50\r\n").repeat(16);
    let mut readers = Vec::new();
    for _ in 0..32 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut reader = socket.connect(server.address).await.unwrap();
        reader.write_all(requests.as_bytes()).await.unwrap();
        readers.push(reader);
    }
    let full = async {
        while budget.available_permits() > 6 * TEXT {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // And it stays so.
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    timeout(PATIENCE, full).await.expect("answers that nobody reads are counted");
    let asked = std::time::Instant::now();
    let refused = server.exchange(begin(0, "connection: close\r\nonceward-timeout-ms: 300\r\n").as_bytes()).await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: 1"), "{refused}");
    assert!(refused.contains("\"code\":\"unavailable\""), "{refused}");
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    assert!(server.exchange(check("connection: close\r\n").as_bytes()).await.starts_with("HTTP/1.1 200"));

    drop(readers);
    let free = async {
        while budget.available_permits() < BUDGET {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, free).await.expect("nothing stays counted");
    let answer = server.exchange(begin(0, "connection: close\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.len() > 6 * TEXT);
    assert_eq!(budget.available_permits(), BUDGET);
}

#[tokio::test]
async fn nothing_cuts_off_who_waits() {
    let server = serve(|settings| settings.http.idle_timeout_ms = 100).await;
    server.api.fake.set(|script| script.waits = true);
    let answer = server.exchange(begin(600, "connection: close\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}
