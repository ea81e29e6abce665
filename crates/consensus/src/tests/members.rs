//! Members that come, go and lag: snapshots, replacement, other generations.

use bytes::Bytes;
use onceward_core::time::ShardTime;

use super::{Cluster, has_policy, member, until, write};
use crate::{
    frames::{self, Method},
    types::{AppendRequest, Vote},
};
use onceward_storage::MemoryStore;

/// Snapshots and purges by bytes, after so few that a test needs no thousands of entries.
fn small(config: &mut crate::GroupConfig) {
    config.snapshot_every_bytes = 16 << 10;
    config.keep_bytes = 4 << 10;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lags_behind_the_purged_log_gets_a_snapshot() {
    let mut cluster = Cluster::found(3, small).await;
    assert!(write(&cluster.groups(), "first").await);
    cluster.agree().await;
    let leader = cluster.leader().await;
    let lagging = cluster.groups().into_iter().find(|group| group.me() != leader.me()).unwrap();
    let node = lagging.me().node.0;
    let stopped_at = lagging.status().last_log_index;
    cluster.wires.isolate(node, (1..=3).filter(|other| *other != node));
    let others: Vec<_> = cluster.groups().into_iter().filter(|group| group.me() != lagging.me()).collect();
    let mut written = 0;
    while others.iter().any(|group| group.status().purged_index <= stopped_at) {
        assert!(write(&others, &format!("policy-{written}")).await);
        written += 1;
        assert!(written < 10_000, "the log is never purged");
    }
    cluster.wires.heal();
    cluster.agree().await;
    assert!(lagging.status().purged_index > stopped_at, "it could have got entries only");
    assert!((0..written).all(|number| has_policy(&lagging, &format!("policy-{number}"))));
    assert!(lagging.status().log_bytes < 64 << 10);

    // What it installed, it starts again from.
    let (me, disk) = cluster.kill(node, 1).await;
    cluster.start(me, disk).await;
    assert!(write(&cluster.groups(), "last").await);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_brings_a_clock_that_ran_slow_meanwhile_and_is_followed() {
    let mut cluster = Cluster::found(3, small).await;
    assert!(write(&cluster.groups(), "first").await);
    cluster.agree().await;
    cluster.wires.isolate(3, [1, 2]);
    // The time while both others are down is lost on them, and on the shard: nobody knows better than they do.
    for node in [1, 2] {
        let (me, disk) = cluster.kill(node, 0).await;
        cluster.start(me, disk).await;
    }
    let lagging = cluster.members[&3].group.clone();
    let others: Vec<_> = [1, 2].iter().map(|node| cluster.members[node].group.clone()).collect();
    let leader = until("a leader without the third", || async {
        others.iter().find(|group| group.leadership().borrow().am_leader).cloned()
    })
    .await;
    leader.adopt_clock(ShardTime::ZERO);
    let stopped_at = lagging.status().last_log_index;
    while others.iter().any(|group| group.status().purged_index <= stopped_at) {
        assert!(write(&others, "policy").await && write(&others, &"y".repeat(60)).await);
    }
    until("a snapshot of everything", || async {
        leader.snapshot_now().await.unwrap();
        let status = leader.status();
        (status.snapshot_index == status.last_log_index).then_some(())
    })
    .await;
    assert!(lagging.shard_clock() > leader.shard_clock(), "it has lost nothing yet");
    cluster.wires.heal();
    cluster.agree().await;
    until("a snapshot, not entries only", || async { (lagging.status().purged_index > stopped_at).then_some(()) })
        .await;
    let (followed, led) = (lagging.shard_clock().unwrap(), leader.shard_clock().unwrap());
    assert!(followed <= led, "as a leader it would run {} µs fast", followed.since_us(led));

    // What it would guess after a restart is no further ahead.
    let (me, disk) = cluster.kill(3, 0).await;
    cluster.start(me, disk).await;
    let group = &cluster.members[&3].group;
    let (guess, led) = (group.clock_guess(), leader.shard_clock().unwrap());
    assert!(guess <= led, "it guesses {} µs too much", guess.since_us(led));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_disk_is_lost_is_replaced_by_its_next_generation() {
    let mut cluster = Cluster::found(3, small).await;
    for number in 0..40 {
        assert!(write(&cluster.groups(), &format!("policy-{number}")).await);
    }
    cluster.kill(3, 0).await;
    let (old, new) = (member(3, 0), member(3, 1));
    cluster.start(new, MemoryStore::new()).await;
    for attempt in ["replaced", "replaced again"] {
        until(attempt, || async { cluster.leader().await.replace_member(old, new).await.ok() }).await;
    }
    let leader = cluster.leader().await;
    let status = leader.status();
    assert_eq!(status.voters, [member(1, 0), member(2, 0), new].into());
    assert!(status.learners.is_empty() && !status.joint);
    cluster.agree().await;
    // It counts: with one of the others away there is still a majority.
    let other = [1, 2].into_iter().find(|node| *node != leader.me().node.0).unwrap();
    cluster.kill(other, 0).await;
    assert!(write(&cluster.groups(), "with-the-new-one").await);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_follows_and_does_not_vote() {
    let mut cluster = Cluster::found(3, |_| {}).await;
    let learner = member(4, 0);
    cluster.start(learner, MemoryStore::new()).await;
    until("the learner", || async { cluster.leader().await.add_learner(learner).await.ok() }).await;
    assert!(write(&cluster.groups(), "seen-by-all").await);
    cluster.agree().await;
    let status = cluster.members[&4].group.status();
    assert_eq!((status.learners, status.voters.contains(&learner)), ([learner].into(), false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_meant_for_another_generation_or_speaks_for_another_member_is_refused() {
    let cluster = Cluster::found(1, |_| {}).await;
    let group = cluster.leader().await;
    let before = group.status();
    let usurper = member(9, 0);
    let rpc = AppendRequest {
        vote: Vote::new_committed(1000, usurper.to_u64()),
        prev_log_id: None,
        entries: Vec::new(),
        leader_commit: None,
    };
    let append = Method::Append as u8;
    let old_generation = frames::append_request(member(1, 7), &rpc);
    assert!(group.handle(usurper, append, old_generation).await.unwrap_err().contains("1.7"));
    let for_another = frames::append_request(group.me(), &rpc);
    assert!(group.handle(member(8, 0), append, for_another).await.unwrap_err().contains("9.0"));
    for (method, body) in [(append, &b"garbage"[..]), (append, b""), (Method::Vote as u8, b"\x01"), (77, b"\x01")] {
        assert!(group.handle(usurper, method, Bytes::from_static(body)).await.is_err());
    }
    assert_eq!(group.status().term, before.term);
}
