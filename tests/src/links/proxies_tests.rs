use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};

use super::{Condition, Flow, Proxies, Route};

const THERE: Flow = Flow { from: super::Party::Node(1), to: super::Party::Node(2) };
/// Long enough that a loaded machine carries a few bytes over loopback, and not waited for when it does.
const PATIENCE: Duration = Duration::from_secs(20);
/// So long nothing arrives where nothing may.
const SILENCE: Duration = Duration::from_millis(300);

struct Pair {
    proxies: Proxies,
    listener: TcpListener,
    dialler: TcpStream,
    acceptor: TcpStream,
}

/// A connection through a proxy.
async fn pair() -> Pair {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxies = Proxies::start(&[Route { flow: THERE, target: listener.local_addr().unwrap() }]);
    let mut dialler = TcpStream::connect(("127.0.0.1", proxies.port(THERE))).await.unwrap();
    let (mut acceptor, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    // Until then the proxy may still be dialling.
    dialler.write_all(b"!").await.unwrap();
    arrives(&mut acceptor, b"!").await;
    Pair { proxies, listener, dialler, acceptor }
}

async fn arrives(at: &mut TcpStream, bytes: &[u8]) {
    let mut received = vec![0; bytes.len()];
    timeout(PATIENCE, at.read_exact(&mut received)).await.expect("it arrives").unwrap();
    assert_eq!(received, bytes);
}

async fn is_silent(at: &mut TcpStream) {
    assert!(timeout(SILENCE, at.read_u8()).await.is_err(), "nothing arrives, not even an end");
}

#[tokio::test]
async fn a_held_flow_delivers_nothing_and_everything_once_it_is_healed_while_the_other_direction_goes_on() {
    let mut pair = pair().await;
    pair.proxies.set(THERE, Condition::hold());
    pair.dialler.write_all(b"there").await.unwrap();
    pair.acceptor.write_all(b"back").await.unwrap();
    arrives(&mut pair.dialler, b"back").await;
    is_silent(&mut pair.acceptor).await;
    assert_eq!(pair.proxies.counters()["bytes_held"], 5);
    pair.proxies.heal();
    arrives(&mut pair.acceptor, b"there").await;
}

#[tokio::test]
async fn the_end_of_a_connection_passes_no_held_flow_either() {
    let mut pair = pair().await;
    pair.proxies.set(THERE, Condition::hold());
    drop(pair.dialler);
    is_silent(&mut pair.acceptor).await;
    pair.proxies.heal();
    assert_eq!(timeout(PATIENCE, pair.acceptor.read(&mut [0])).await.expect("it is told now").unwrap_or(0), 0);
}

#[tokio::test]
async fn a_connection_through_a_held_flow_is_made_when_it_is_healed_unless_its_dialler_gave_up() {
    let pair = pair().await;
    pair.proxies.set(THERE.back(), Condition::hold());
    let mut patient = TcpStream::connect(("127.0.0.1", pair.proxies.port(THERE))).await.unwrap();
    let mut hasty = TcpStream::connect(("127.0.0.1", pair.proxies.port(THERE))).await.unwrap();
    patient.write_all(b"patient").await.unwrap();
    hasty.write_all(b"hasty").await.unwrap();
    drop(hasty);
    assert!(timeout(SILENCE, pair.listener.accept()).await.is_err());
    pair.proxies.heal();
    let (mut acceptor, _) = timeout(PATIENCE, pair.listener.accept()).await.unwrap().unwrap();
    arrives(&mut acceptor, b"patient").await;
    assert!(timeout(SILENCE, pair.listener.accept()).await.is_err());
}

#[tokio::test]
async fn a_reset_is_seen_as_one_by_both_ends() {
    let mut pair = pair().await;
    pair.proxies.reset(THERE.back());
    for end in [&mut pair.dialler, &mut pair.acceptor] {
        let error = timeout(PATIENCE, end.read(&mut [0])).await.expect("it is told").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(pair.proxies.counters()["connections_reset"], 1);
}

#[tokio::test]
async fn while_a_flow_is_reset_no_connection_lasts() {
    let mut pair = pair().await;
    pair.proxies.set(THERE, Condition::reset());
    assert!(timeout(PATIENCE, pair.dialler.read(&mut [0])).await.unwrap().is_err());
    let mut again = TcpStream::connect(("127.0.0.1", pair.proxies.port(THERE))).await.unwrap();
    assert!(timeout(PATIENCE, again.read(&mut [0])).await.unwrap().is_err());
}

#[tokio::test]
async fn a_half_closed_flow_ends_and_the_other_direction_goes_on() {
    let mut pair = pair().await;
    pair.dialler.write_all(b"before").await.unwrap();
    arrives(&mut pair.acceptor, b"before").await;
    pair.proxies.half_close(THERE);
    assert_eq!(timeout(PATIENCE, pair.acceptor.read(&mut [0])).await.unwrap().unwrap(), 0);
    pair.acceptor.write_all(b"still").await.unwrap();
    arrives(&mut pair.dialler, b"still").await;
}

#[tokio::test]
async fn delays_and_rates_hold_bytes_up_for_at_least_as_long_as_they_say() {
    const DELAY: Duration = Duration::from_millis(200);
    let mut pair = pair().await;
    pair.proxies.set(THERE, Condition { delay: DELAY, ..Condition::default() });
    let began = Instant::now();
    pair.dialler.write_all(b"late").await.unwrap();
    arrives(&mut pair.acceptor, b"late").await;
    assert!(began.elapsed() >= DELAY);

    pair.proxies.set(THERE, Condition { bytes_per_s: Some(10_000), ..Condition::default() });
    let began = Instant::now();
    pair.dialler.write_all(&[7; 5000]).await.unwrap();
    arrives(&mut pair.acceptor, &[7; 5000]).await;
    assert!(began.elapsed() >= Duration::from_millis(400), "half a second less the last pause");
    assert_eq!(pair.proxies.counters()["bytes_slowed"], 5004);
}

#[tokio::test]
async fn a_delay_costs_no_throughput() {
    const DELAY: Duration = Duration::from_millis(300);
    const CHUNKS: usize = 20;
    let mut pair = pair().await;
    pair.proxies.set(THERE, Condition { delay: DELAY, ..Condition::default() });
    let began = Instant::now();
    for _ in 0..CHUNKS {
        pair.dialler.write_all(&[7; 100]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    arrives(&mut pair.acceptor, &[7; 100 * CHUNKS]).await;
    assert!(began.elapsed() < DELAY * CHUNKS as u32 / 2, "one after the other they would take six seconds");
}

#[tokio::test]
async fn a_corrupting_flow_changes_as_many_bytes_as_it_counts() {
    const SENT: usize = 1 << 20;
    let pair = pair().await;
    pair.proxies.set(THERE, Condition { corrupt_per_1000: 500, ..Condition::default() });
    let Pair { proxies, mut dialler, mut acceptor, .. } = pair;
    let sending = tokio::spawn(async move {
        dialler.write_all(&vec![0; SENT]).await.unwrap();
        dialler
    });
    let mut received = vec![0; SENT];
    timeout(PATIENCE, acceptor.read_exact(&mut received)).await.expect("all of it arrives").unwrap();
    sending.await.unwrap();
    let changed = received.iter().filter(|byte| **byte != 0).count() as u64;
    assert!(changed > 0);
    assert_eq!(proxies.counters()["bytes_corrupted"], changed);
}

#[tokio::test]
async fn whoever_dials_a_party_that_is_down_is_refused() {
    let mut pair = pair().await;
    let port = pair.proxies.port(THERE);
    pair.proxies.down(THERE.to);
    let refused = timeout(PATIENCE, async { while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {} });
    refused.await.expect("the listener goes away");
    pair.proxies.up(THERE.to);
    let taken = timeout(PATIENCE, async { while TcpStream::connect(("127.0.0.1", port)).await.is_err() {} });
    taken.await.expect("it listens again");
}
