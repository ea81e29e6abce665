use std::collections::HashSet;
use std::time::Duration;

use futures::FutureExt;

use super::*;

const FAR: Duration = Duration::from_secs(60);

fn call(calls: &Arc<Calls>, body: &[u8], timeout: Duration) -> futures::future::BoxFuture<'static, Outcome> {
    calls.clone().call(1, ShardId(0), Bytes::copy_from_slice(body), Instant::now() + timeout).boxed()
}

fn drain(outbox: &impl Outbox) -> Vec<Frame> {
    let mut round = Vec::new();
    outbox.drain(&mut round);
    round
}

#[tokio::test]
async fn a_call_is_not_sent_while_it_waits_and_unknown_once_it_was_drained() {
    let calls = Arc::new(Calls::default());
    assert!(matches!(call(&calls, b"", Duration::ZERO).await, Err(CallError::NotSent(_))));
    assert!(drain(&*calls).is_empty(), "what timed out while waiting is never sent");

    let mut drained = call(&calls, b"a", Duration::from_millis(300));
    assert!((&mut drained).now_or_never().is_none());
    assert_eq!(drain(&*calls).len(), 1);
    assert_eq!(drained.await, Err(CallError::TimedOut));

    let (mut sent, mut waiting) = (call(&calls, b"s", FAR), call(&calls, b"w", FAR));
    assert!((&mut sent).now_or_never().is_none());
    assert_eq!(drain(&*calls).len(), 1);
    assert!((&mut waiting).now_or_never().is_none());
    calls.close("gone");
    assert_eq!(sent.await, Err(CallError::Lost("gone".to_owned())));
    assert_eq!(waiting.await, Err(CallError::NotSent("gone".to_owned())));
    assert_eq!(call(&calls, b"", FAR).await, Err(CallError::NotSent("gone".to_owned())));
    assert_eq!(calls.slots(), (0, 0, 0));
}

#[tokio::test]
async fn a_dropped_call_frees_its_slot_and_is_not_sent_any_more() {
    let calls = Arc::new(Calls::default());
    let mut waiting = call(&calls, b"xyz", FAR);
    assert!((&mut waiting).now_or_never().is_none());
    assert_eq!(calls.slots(), (1, 3, 0));
    drop(waiting);
    assert_eq!(calls.slots(), (0, 0, 0));
    assert!(drain(&*calls).is_empty());

    let mut sent = call(&calls, b"xyz", FAR);
    assert!((&mut sent).now_or_never().is_none());
    drain(&*calls);
    assert_eq!(calls.slots(), (0, 0, 1));
    drop(sent);
    assert_eq!(calls.slots(), (0, 0, 0));
}

#[tokio::test]
async fn the_queue_is_bounded_by_count_and_by_bytes() {
    let calls = Arc::new(Calls::default());
    let body = vec![0; WAITING_BYTES_MAX / 4];
    let mut kept: Vec<_> = (0..4).map(|_| call(&calls, &body, FAR)).collect();
    kept.iter_mut().for_each(|call| assert!(call.now_or_never().is_none()));
    assert!(matches!(call(&calls, b"x", FAR).now_or_never(), Some(Err(CallError::NotSent(_)))));
    kept.clear();
    for _ in 0..WAITING_CALLS_MAX {
        let mut waiting = call(&calls, b"", FAR);
        assert!((&mut waiting).now_or_never().is_none());
        kept.push(waiting);
    }
    assert!(matches!(call(&calls, b"", FAR).now_or_never(), Some(Err(CallError::NotSent(_)))));
}

/// Whoever wins each race between timer, drop, writer and the connection's end: what is told as not sent never reached
/// the writer, and what the writer took is never told as not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn not_sent_is_told_of_exactly_the_calls_that_the_writer_never_took() {
    for _ in 0..20 {
        let calls = Arc::new(Calls::default());
        let callers: Vec<_> = (0..400_u64)
            .map(|number| {
                let call = call(&calls, &number.to_be_bytes(), Duration::from_micros(number * 7));
                tokio::spawn(async move { (number, call.await) })
            })
            .collect();
        let writer = {
            let calls = calls.clone();
            tokio::task::spawn_blocking(move || {
                let mut taken = HashSet::new();
                let mut round = Vec::new();
                let mut rounds = 0;
                while calls.drain(&mut round) {
                    for frame in round.drain(..) {
                        let Frame::Request { body, .. } = frame else { panic!("only requests were queued") };
                        assert!(taken.insert(u64::from_be_bytes(body[..].try_into().unwrap())), "sent twice");
                    }
                    rounds += 1;
                    if rounds == 3_000 {
                        calls.close("gone");
                    }
                    std::thread::yield_now();
                }
                taken
            })
        };
        let taken = writer.await.unwrap();
        for caller in callers {
            let (number, outcome) = caller.await.unwrap();
            let not_sent = matches!(outcome, Err(CallError::NotSent(_)));
            assert_eq!(not_sent, !taken.contains(&number), "call {number}: {outcome:?}");
        }
        assert_eq!(calls.slots(), (0, 0, 0));
    }
}

#[tokio::test]
async fn answers_beyond_their_bound_end_the_connection() {
    let answers = Answers::default();
    let body = Bytes::from(vec![0; 8 << 20]);
    for id in 0..8 {
        answers.push(Frame::Answer { id, body: body.clone() }, None);
    }
    assert!(!answers.overflowed());
    answers.push(Frame::Answer { id: 9, body }, None);
    assert!(answers.overflowed());
    assert!(drain(&answers).is_empty());
}
