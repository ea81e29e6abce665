//! One attempt at a time: what goes out, what counts as an answer, and what a receiver can't make it do.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use onceward_core::webhooks::bounds::ANSWER_BYTES_MAX;
use onceward_dispatch::{Answered, Failure, Post, Resolve, Sender, UrlError};
use tokio::time::{Instant, sleep};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use crate::kit::{Answer, Receiver, SystemClock, Told, guard, ok, sender, sender_with};

const TIMEOUT: Duration = Duration::from_millis(400);

fn post(url: &str) -> Post<'_> {
    Post {
        url,
        message_id: "msg_1",
        timestamp_s: 1_700_000_000,
        signature: "v1,abc v1,def",
        sequence: Some(7),
        headers: Vec::new(),
        body: Bytes::from_static(b"{\"a\": 1}"),
    }
}

fn http(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status}\r\n{headers}\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

async fn answered_with(answer: Answer) -> Answered {
    let receiver = Receiver::always(answer).await;
    sender(TIMEOUT).post(&post(&receiver.url())).await
}

#[tokio::test]
async fn a_delivery_carries_its_headers_and_its_payload_byte_for_byte_and_nothing_else() {
    let receiver = Receiver::always(ok(200)).await;
    let url = format!("{}?q=%20a#part", receiver.url());
    let headers = vec![
        ("x-own", "1"),
        ("Webhook-Id", "forged"),
        ("ONCEWARD-SEQUENCE", "9"),
        ("user-agent", "forged"),
        ("content-length", "3"),
        ("Transfer-Encoding", "chunked"),
        ("host", "forged"),
        ("x-bad", "a\r\nx-injected: 1"),
        ("bad name", "1"),
    ];
    let body = Bytes::from_static(b"{ \"\xc3\xa9\" :\t1}\n");
    let answered = sender(TIMEOUT).post(&Post { headers: headers.clone(), body: body.clone(), ..post(&url) }).await;
    assert_eq!((answered.status, answered.failure), (200, None));
    let received = receiver.received().remove(0);
    assert_eq!(received.request_line, "POST /hook?q=%20a HTTP/1.1");
    assert_eq!(received.body, body);
    let mut got: Vec<_> = received.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    got.sort_unstable();
    let (host, length) = (receiver.address.to_string(), body.len().to_string());
    let mut expected = [
        ("content-length", length.as_str()),
        ("content-type", "application/json"),
        ("host", &host),
        ("onceward-sequence", "7"),
        ("user-agent", concat!("Onceward/", env!("CARGO_PKG_VERSION"))),
        ("webhook-id", "msg_1"),
        ("webhook-signature", "v1,abc v1,def"),
        ("webhook-timestamp", "1700000000"),
        ("x-own", "1"),
    ];
    expected.sort_unstable();
    assert_eq!(got, expected);
    sender(TIMEOUT).post(&Post { sequence: None, headers, ..post(&url) }).await;
    assert!(!receiver.received()[1].headers.contains_key("onceward-sequence"));
}

/// Receiver that drips its body held a worker for minutes: the timeout covered headers only.
#[tokio::test]
async fn one_deadline_covers_a_body_that_drips_a_head_that_drips_and_a_receiver_that_hangs() {
    let every = Duration::from_millis(20);
    for (answer, failure) in [
        (Answer::Drip(http("200 OK", "content-length: 9000\r\n", b""), every), Failure::Incomplete(TIMEOUT)),
        (Answer::Drip(b"HTTP/1.1 200 OK\r\nx: ".to_vec(), every), Failure::NoAnswer(TIMEOUT)),
        (Answer::Hang, Failure::NoAnswer(TIMEOUT)),
    ] {
        let began = Instant::now();
        let answered = answered_with(answer).await;
        assert_eq!(answered.failure, Some(failure));
        assert!(began.elapsed() >= TIMEOUT && began.elapsed() < TIMEOUT * 3, "{:?}", began.elapsed());
    }
    assert_eq!(Failure::NoAnswer(Duration::from_secs(15)).to_string(), "no answer within 15 s");
}

#[tokio::test]
async fn refusing_resetting_closing_and_talking_nonsense_are_failures_that_say_so() {
    let gone = Receiver::always(ok(200)).await;
    let url = gone.url();
    drop(gone);
    sleep(Duration::from_millis(50)).await;
    let refused = sender(TIMEOUT).post(&post(&url)).await;
    assert_eq!((refused.status, refused.failure.unwrap().to_string().as_str()), (0, "connection refused"));
    for (answer, failure) in [
        (Answer::Reset, Failure::Closed),
        (Answer::Last(Vec::new()), Failure::Closed),
        (Answer::Last(http("200 OK", "content-length: 5\r\n", b"abc")), Failure::Closed),
        (Answer::Last(b"nonsense\r\n\r\n".to_vec()), Failure::Protocol),
        (Answer::Bytes(http("200 OK", &format!("x: {}\r\n", "a".repeat(64 << 10)), b"")), Failure::Protocol),
    ] {
        let answered = answered_with(answer.clone()).await;
        assert_eq!(answered.failure, Some(failure), "{:?}", &format!("{answer:?}")[..20]);
    }
}

/// Redirects followed into the inner network.
#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let inner = Receiver::always(ok(200)).await;
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let head = format!("location: {}\r\ncontent-length: 0\r\n", inner.url());
        let answered = answered_with(Answer::Bytes(http(status, &head, b""))).await;
        assert_eq!(answered.status.to_string(), status[..3]);
    }
    assert_eq!(inner.connections(), 0);
}

/// Body cut inside a UTF-8 character turned the stored text into base64.
#[tokio::test]
async fn a_long_answer_is_cut_between_characters_and_its_connection_closed() {
    let body = format!("a{}", "é".repeat(ANSWER_BYTES_MAX));
    let receiver = Receiver::always(Answer::Bytes(http(
        "200 OK",
        &format!("content-length: {}\r\n", body.len()),
        body.as_bytes(),
    )))
    .await;
    let sender = sender(TIMEOUT);
    let answered = sender.post(&post(&receiver.url())).await;
    assert_eq!((answered.status, answered.failure, answered.truncated), (200, None, true));
    assert_eq!(answered.body, body[..ANSWER_BYTES_MAX - 1]);
    sender.post(&post(&receiver.url())).await;
    assert_eq!(receiver.connections(), 2);

    let exact = "b".repeat(ANSWER_BYTES_MAX);
    let head = format!("content-length: {}\r\n", exact.len());
    let answered = answered_with(Answer::Bytes(http("200 OK", &head, exact.as_bytes()))).await;
    assert_eq!((answered.body, answered.truncated), (exact, false));
    let answered = answered_with(Answer::Bytes(http("200 OK", "content-length: 3\r\n", b"a\xffb"))).await;
    assert_eq!((answered.body.as_str(), answered.truncated), ("a\u{fffd}b", false));
    let binary = vec![0xff; ANSWER_BYTES_MAX];
    let answered = answered_with(Answer::Bytes(http("200 OK", &head, &binary))).await;
    assert!(answered.truncated && answered.body.len() <= ANSWER_BYTES_MAX && answered.body.starts_with('\u{fffd}'));
}

/// A body without an end is read to 16 KiB, and that was the answer.
#[tokio::test]
async fn an_endless_answer_is_read_as_far_as_it_is_kept() {
    let body = vec![b'a'; ANSWER_BYTES_MAX + 1];
    let answered = answered_with(Answer::Drip(http("200 OK", "", &body), Duration::from_millis(10))).await;
    assert_eq!((answered.status, answered.failure, answered.truncated), (200, None, true));
}

#[tokio::test]
async fn retry_after_is_read_in_seconds_and_as_a_date() {
    let at = |seconds: u64| httpdate(Duration::from_secs(seconds));
    for (value, low_s, high_s) in
        [("120".to_owned(), 120, 120), (at(3_600), 3_595, 3_600), ("Sun, 06 Nov 1994 08:49:37 GMT".to_owned(), 0, 0)]
    {
        let head = format!("retry-after: {value}\r\ncontent-length: 0\r\n");
        let answered = answered_with(Answer::Bytes(http("503 Busy", &head, b""))).await;
        let seconds = answered.retry_after.unwrap().as_secs();
        assert!((low_s..=high_s).contains(&seconds), "{value}: {seconds}");
    }
    for value in ["soon", "-1", "", "99999999999999999999999"] {
        let head = format!("retry-after: {value}\r\ncontent-length: 0\r\n");
        let answered = answered_with(Answer::Bytes(http("503 Busy", &head, b""))).await;
        assert_eq!((answered.status, answered.retry_after), (503, None), "{value}");
    }
}

fn httpdate(from_now: Duration) -> String {
    httpdate::fmt_http_date(std::time::SystemTime::now() + from_now)
}

/// Private address reached by DNS that answered differently the second time.
#[tokio::test]
async fn a_name_is_resolved_once_and_exactly_that_address_is_judged_and_dialled() {
    let receiver = Receiver::always(ok(200)).await;
    let url = format!("http://hooks.example:{}/", receiver.address.port());
    // When the endpoint is made the name is public, when it is dialled it isn't.
    let resolver = Told::of(&[&["8.8.8.8"], &["127.0.0.1"]]);
    let sender = sender_with(&[], TIMEOUT, resolver.clone());
    assert!(sender.check_url(&url).await.is_ok());
    let answered = sender.post(&post(&url)).await;
    assert_eq!(answered.failure.unwrap().to_string(), "127.0.0.1 is a loopback address: not allowed");
    assert_eq!(receiver.connections(), 0);
    assert_eq!(resolver.lookups.load(Relaxed), 2, "one when it was made, one for the attempt");

    // What passed is what is dialled: nobody asks again in between.
    let resolver = Told::of(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let sender = sender_with(&["127.0.0.1/32"], TIMEOUT, resolver.clone());
    assert_eq!(sender.post(&post(&url)).await.failure, None);
    assert_eq!((resolver.lookups.load(Relaxed), receiver.connections()), (1, 1));
    assert_eq!(receiver.received()[0].headers["host"], format!("hooks.example:{}", receiver.address.port()));
}

#[tokio::test]
async fn literal_addresses_are_judged_at_connect_and_refused_ones_of_a_name_are_left_out() {
    let receiver = Receiver::always(ok(200)).await;
    let port = receiver.address.port();
    let strict = sender_with(&[], TIMEOUT, Told::of(&[&["10.0.0.1", "127.0.0.1"]]));
    for host in ["127.0.0.1", "2130706433", "[::ffff:127.0.0.1]", "0x7f.1"] {
        let answered = strict.post(&post(&format!("http://{host}:{port}/"))).await;
        assert_eq!(answered.failure.unwrap().to_string(), "127.0.0.1 is a loopback address: not allowed", "{host}");
    }
    assert_eq!(receiver.connections(), 0);
    let url = format!("http://hooks.example:{port}/");
    let lenient = sender_with(&["127.0.0.0/8"], TIMEOUT, Told::of(&[&["10.0.0.1", "::ffff:127.0.0.1"]]));
    assert_eq!(lenient.post(&post(&url)).await.failure, None);
    // An address that doesn't accept is followed by the next.
    let two = sender_with(&["127.0.0.0/8"], TIMEOUT, Told::of(&[&["127.0.0.2", "127.0.0.1"]]));
    assert_eq!(two.post(&post(&url)).await.failure, None);
}

#[tokio::test]
async fn a_name_is_refused_when_made_only_if_it_leads_to_refused_addresses_and_nowhere_else() {
    let check = async |addresses: &[&[&str]]| {
        sender_with(&[], TIMEOUT, Told::of(addresses)).check_url("https://hooks.example/").await
    };
    let error = check(&[&["10.0.0.1", "fd00::1"]]).await.unwrap_err();
    assert!(matches!(error, UrlError::Name { .. }));
    let said =
        "points to hooks.example, whose address webhooks may not reach: 10.0.0.1 is a private address: not allowed";
    assert_eq!(error.to_string(), said);
    assert!(check(&[&["10.0.0.1", "8.8.8.8"]]).await.is_ok());
    assert!(check(&[]).await.is_ok(), "a name that doesn't resolve is judged when it is dialled");
    let unresolved = sender_with(&[], TIMEOUT, Told::default()).post(&post("https://hooks.example/")).await;
    assert_eq!(unresolved.failure.unwrap().to_string(), "the name hooks.example does not resolve");
}

/// Never answers for one name, and takes a while for every other.
struct Slow(Arc<AtomicUsize>);

impl Resolve for Slow {
    fn lookup(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.0.fetch_add(1, Relaxed);
        let hangs = name == "hangs.example";
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            sleep(Duration::from_millis(50)).await;
            Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)])
        })
    }
}

#[tokio::test]
async fn a_name_that_hangs_is_asked_for_once_ends_at_the_deadline_and_holds_up_no_other() {
    let receiver = Receiver::always(ok(200)).await;
    let lookups = Arc::<AtomicUsize>::default();
    let resolver = Box::new(Slow(lookups.clone()));
    let sender = Sender::new(guard(&["127.0.0.0/8"]), TIMEOUT, &[], resolver, Arc::new(SystemClock)).unwrap();
    let url = |name: &str| format!("http://{name}.example:{}/", receiver.address.port());
    let (hangs, answers) = (url("hangs"), url("answers"));
    let (hanging, answering) = (post(&hangs), post(&answers));
    let all = join_all((0..400).map(|number| sender.post(if number % 2 == 0 { &hanging } else { &answering }))).await;
    for (number, answered) in all.into_iter().enumerate() {
        let failure = (number % 2 == 0).then_some(Failure::NoAnswer(TIMEOUT));
        assert_eq!(answered.failure, failure);
    }
    assert_eq!(lookups.load(Relaxed), 2, "those that need a name at the same time share the lookup");
}

#[tokio::test]
async fn connections_are_used_again_and_one_that_the_receiver_closed_costs_no_attempt() {
    let receiver = Receiver::start(|number, _| match number {
        0 | 1 => ok(200),
        2 => match ok(200) {
            Answer::Bytes(bytes) => Answer::ThenClose(bytes, Duration::from_millis(20)),
            other => other,
        },
        // Closed at the moment at which the next request arrives.
        4 => Answer::Reset,
        _ => ok(200),
    })
    .await;
    let (sender, url) = (sender(TIMEOUT), receiver.url());
    for _ in 0..3 {
        assert_eq!(sender.post(&post(&url)).await.status, 200);
    }
    assert_eq!(receiver.connections(), 1);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(sender.post(&post(&url)).await.status, 200);
    assert_eq!(receiver.connections(), 2);
    assert_eq!(sender.post(&post(&url)).await.status, 200, "the reset request was sent again, on another connection");
    assert_eq!((receiver.connections(), receiver.received().len()), (3, 6));
}

#[tokio::test]
async fn idle_connections_are_closed_after_a_while() {
    let receiver = Receiver::always(ok(204)).await;
    let sender = sender(TIMEOUT);
    sender.post(&post(&receiver.url())).await;
    assert_eq!(receiver.open_connections(), 1);
    let began = Instant::now();
    while receiver.open_connections() > 0 {
        assert!(began.elapsed() < Duration::from_secs(8));
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn tls_checks_the_certificate_against_the_name_of_the_url() {
    let made = rcgen::generate_simple_self_signed(vec!["hooks.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let receiver = Receiver::start_with(|_, _| ok(200), Some(TlsAcceptor::from(Arc::new(config)))).await;
    let port = receiver.address.port();
    let with = |authorities: &[_]| {
        let resolver = Box::new(Told::of(&[&["127.0.0.1"]]));
        Sender::new(guard(&["127.0.0.0/8"]), TIMEOUT, authorities, resolver, Arc::new(SystemClock)).unwrap()
    };
    let trusting = with(&[made.cert.der().clone()]);
    let answered = trusting.post(&post(&format!("https://hooks.example:{port}/"))).await;
    assert_eq!((answered.status, answered.failure), (200, None));
    for (sender, name) in [(&trusting, "other.example"), (&with(&[]), "hooks.example")] {
        let failure = sender.post(&post(&format!("https://{name}:{port}/"))).await.failure.unwrap();
        assert!(matches!(failure, Failure::Tls(_)), "{name}: {failure}");
    }
    assert_eq!(receiver.received().len(), 1);
}
