//! Endpoints that misbehave harm nobody else, and rate limits hold.

use std::time::Duration;

use onceward_core::webhooks::{Action, AppPatch, PatchApp};
use onceward_dispatch::DispatchConfig;
use tokio::time::{Instant, sleep, sleep_until};

use crate::kit::{Answer, Received, Receiver, Shard, acme, config, dispatch, ok, until};

/// One slow endpoint clogged everyone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_endpoint_does_not_feel_fifty_that_hang_drip_reset_and_fail() {
    let drip = Answer::Drip(b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n".to_vec(), Duration::from_millis(50));
    let mut bad = Vec::new();
    for answer in [Answer::Hang, drip, Answer::Reset, ok(500), ok(302)].iter().cycle().take(50) {
        bad.push(Receiver::always(answer.clone()).await);
    }
    let healthy = Receiver::always(ok(200)).await;
    let shard = Shard::leading();
    for receiver in bad.iter().chain([&healthy]) {
        shard.endpoint(&receiver.url());
    }
    let dispatch =
        dispatch(&shard, DispatchConfig { in_flight_max: 64, timeout: Duration::from_secs(15), ..config() }).await;
    let (began, mut published) = (Instant::now(), Vec::new());
    for number in 0..300_u32 {
        sleep_until(began + Duration::from_millis(10) * number).await;
        published.push(Instant::now());
        shard.publish(&healthy.url(), "{}");
        if number % 50 == 0 {
            for receiver in &bad {
                shard.publish(&receiver.url(), "{}");
            }
        }
    }
    until("the healthy one has all", || healthy.received().len() == 300).await;
    let mut lags: Vec<Duration> = healthy
        .received()
        .iter()
        .map(|one| one.at - published[one.headers["onceward-sequence"].parse::<usize>().unwrap() - 1])
        .collect();
    lags.sort_unstable();
    // Room for a busy machine: whoever waits for one of the others waits for 15 s.
    assert!(lags[297] < Duration::from_millis(250), "p99 {:?}", lags[297]);
    let stats = dispatch.stats();
    assert!(stats.in_flight >= 20, "those that hang did hang: {}", stats.in_flight);
    assert!(stats.in_flight <= 48 + 2, "three quarters of 64, and what the healthy one has: {}", stats.in_flight);
}

/// A breaker: an endpoint that fails is asked now and then, and used fully as soon as it answers.
#[tokio::test]
async fn an_endpoint_that_hangs_has_few_attempts_in_flight_until_it_answers() {
    let receiver = Receiver::start(|number, _| if number < 8 { Answer::Hang } else { ok(200) }).await;
    let shard = Shard::leading();
    shard.endpoint(&receiver.url());
    let dispatch = dispatch(&shard, config()).await;
    for _ in 0..200 {
        shard.publish(&receiver.url(), "{}");
    }
    let mut most = 0;
    until("eight attempts have hung", || {
        let stats = dispatch.stats();
        most = most.max(if stats.attempts_timed_out < 8 { stats.in_flight } else { 0 });
        stats.attempts_timed_out == 8
    })
    .await;
    assert!(most <= 4, "{most}");
    until("all is delivered", || shard.pending() == 0).await;
}

/// From the first to the last. What was let through in different seconds arrives apart, whatever each took on its way.
fn spread(received: &[Received]) -> Duration {
    let times = || received.iter().map(|one| one.at);
    times().max().unwrap() - times().min().unwrap()
}

/// Endpoint throttle accepted and never applied.
#[tokio::test]
async fn a_rate_limit_of_an_endpoint_holds_also_over_a_change_of_leaders() {
    let receiver = Receiver::always(ok(200)).await;
    let shard = Shard::leading();
    shard.endpoint_with(&receiver.url(), Some(10));
    let first = dispatch(&shard, config()).await;
    for _ in 0..30 {
        shard.publish(&receiver.url(), "{}");
    }
    until("the first came", || receiver.received().len() >= 10).await;
    first.stop().await;
    let _second = dispatch(&shard, config()).await;
    until("all is delivered", || shard.pending() == 0).await;
    let received = receiver.received();
    assert_eq!(received.len(), 30);
    assert!(spread(&received) > Duration::from_millis(1_700), "{:?}", spread(&received));
}

#[tokio::test]
async fn a_rate_limit_of_an_application_holds_over_its_endpoints_and_one_at_rest_does_not_wait() {
    let (one, other) = (Receiver::always(ok(200)).await, Receiver::always(ok(200)).await);
    let shard = Shard::leading();
    let patch = AppPatch { rate_limit: Some(Some(10)), ..AppPatch::default() };
    shard.act(Action::PatchApp(PatchApp { app: acme(), patch }));
    shard.endpoint(&one.url());
    shard.endpoint(&other.url());
    let _dispatch = dispatch(&shard, config()).await;
    sleep(Duration::from_millis(1_100)).await;
    let began = Instant::now();
    for _ in 0..10 {
        shard.publish(&one.url(), "{}");
        shard.publish(&other.url(), "{}");
    }
    until("the first came", || !one.received().is_empty()).await;
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    until("all is delivered", || shard.pending() == 0).await;
    let received: Vec<Received> = one.received().into_iter().chain(other.received()).collect();
    assert_eq!(received.len(), 20);
    assert!(spread(&received) > Duration::from_millis(700), "{:?}", spread(&received));
}
