//! What a group promises while its disks are sound: replication, reads, leadership, time, bounds, fatal errors.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use onceward_core::{
    cluster::ShardId,
    codec::keys,
    command::Command,
    limits::{CheckCommand, Mode},
    rows::{ReadRows, Table},
    time::ShardTime,
};
use onceward_storage::{Family, ShardState, Store, WriteSet};
use tokio::time::sleep;

use super::{Cluster, PATIENCE, has_policy, propose, put_policy, until, write};
use crate::{Group, ProposeError, ReadError, log::READ_BYTES_MAX};

/// A command of some size that changes nothing: it belongs on a data shard.
fn ballast(bytes: usize) -> Command {
    Command::Check(CheckCommand { mode: Mode::Enforce, items: Vec::new(), request_id: Some("x".repeat(bytes)) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_is_on_all_members_and_their_states_are_equal() {
    let cluster = Cluster::found(3, |_| {}).await;
    let groups = cluster.groups();
    let writes = (0..64).map(|number| {
        let groups = groups.clone();
        tokio::spawn(async move { write(&groups, &format!("policy-{number}")).await })
    });
    for write in writes.collect::<Vec<_>>() {
        assert!(write.await.unwrap());
    }
    cluster.agree().await;
    for group in &groups {
        assert!((0..64).all(|number| has_policy(group, &format!("policy-{number}"))));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_alone_leads_itself() {
    let mut cluster = Cluster::found(1, |_| {}).await;
    assert!(write(&cluster.groups(), "alone").await);
    let leader = cluster.leader().await;
    leader.read_index().await.unwrap();
    assert!(leader.heard_from_leader_within(Duration::ZERO));
    assert_eq!(leader.initialize([leader.me()].into()).await.map_err(|error| error.to_string()), Ok(()));
    let (me, disk) = cluster.kill(1, 0).await;
    cluster.start(me, disk).await;
    let leader = cluster.leader().await;
    assert!(has_policy(&leader, "alone"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_isolated_leader_serves_no_read_and_loses_its_leadership_to_the_others() {
    let cluster = Cluster::found(3, |_| {}).await;
    let old = cluster.leader().await;
    old.read_index().await.unwrap();
    let lease = Duration::from_millis(500);
    assert!(old.heard_from_leader_within(PATIENCE));
    cluster.wires.isolate(old.me().node.0, (1..=3).filter(|node| *node != old.me().node.0));

    let refused = until("a refused read", || async { old.read_index().await.err() }).await;
    assert!(matches!(refused, ReadError::Unavailable(_) | ReadError::NotLeader { .. }));
    until("the lease of the old leader to end", || async { (!old.heard_from_leader_within(lease)).then_some(()) })
        .await;

    let others: Vec<_> = cluster.groups().into_iter().filter(|group| group.me() != old.me()).collect();
    assert!(write(&others, "after").await);
    assert!(!has_policy(&old, "after"));
    assert!(old.read_index().await.is_err());
    cluster.wires.heal();
    cluster.agree().await;
    assert!(has_policy(&old, "after"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_refuses_proposals_for_certain_and_names_the_leader() {
    let cluster = Cluster::found(3, |_| {}).await;
    let leader = cluster.leader().await;
    let follower = cluster.groups().into_iter().find(|group| group.me() != leader.me()).unwrap();
    let hint = until("the follower to hear of the leader", || async {
        match propose(&follower, put_policy("elsewhere", 1)).await {
            Err(ProposeError::NotLeader { hint }) => hint,
            other => panic!("{other:?}"),
        }
    })
    .await;
    assert_eq!(hint, leader.me());
    assert!(matches!(follower.read_index().await, Err(ReadError::NotLeader { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_on_demand_and_the_new_leader_knows_the_time() {
    let cluster = Cluster::found(3, |_| {}).await;
    assert!(write(&cluster.groups(), "before").await);
    cluster.agree().await;
    let old = cluster.leader().await;
    let then = old.shard_clock().unwrap();
    old.handover().await.unwrap();
    let new = until("another leader", || async {
        let leader = cluster.leader().await;
        (leader.me() != old.me()).then_some(leader)
    })
    .await;
    let now = new.shard_clock().expect("a follower's clock lives by the entries it received");
    // It may be slow by what the entry took to arrive, and is never ahead of a clock that ran all the time.
    assert!(now <= old.shard_clock().unwrap());
    assert!(now.plus_us(PATIENCE.as_micros() as u64) >= then);
    assert!(write(&cluster.groups(), "after").await);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_goes_to_nobody_but_those_who_may_have_it() {
    let cluster = Cluster::found(3, |_| {}).await;
    assert!(write(&cluster.groups(), "before").await);
    let old = cluster.leader().await;
    assert!(old.handover_to(&[old.me().node].into()).await.is_err(), "nobody else may");
    let heir = cluster.groups().iter().map(Group::me).find(|member| *member != old.me()).unwrap();
    let nodes = [heir.node].into();
    until("the heir is heard of", || async { old.handover_to(&nodes).await.ok() }).await;
    until("the heir leads", || async { (cluster.leader().await.me() == heir).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_member_guesses_the_time_from_what_it_stored() {
    let mut cluster = Cluster::found(1, |_| {}).await;
    let leader = cluster.leader().await;
    leader.adopt_clock(ShardTime(50_000_000));
    assert!(write(&cluster.groups(), "stamped").await);
    let before = leader.shard_clock().unwrap();
    let member = cluster.members.remove(&1).unwrap();
    leader.stop().await;
    cluster.start(member.me, member.disk).await;
    let group = &cluster.members[&1].group;
    assert_eq!(group.shard_clock(), None);
    assert!(group.clock_guess() >= before.max(group.state_clock().unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_knows_what_its_log_holds_before_it_runs() {
    let mut cluster = Cluster::found(1, |_| {}).await;
    assert!(write(&cluster.groups(), "held").await);
    let last = cluster.leader().await.last_log_index();
    assert!(last > Some(1));
    let member = cluster.members.remove(&1).unwrap();
    member.group.stop().await;
    let group = cluster.open(member.me, &member.disk, &member.config, &member.fatal).await;
    assert_eq!(group.last_log_index(), last);
    group.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lags_is_sent_bounded_pieces_and_too_large_a_batch_is_refused() {
    const BATCH_BYTES: usize = 300 << 10;
    let cluster = Cluster::found(3, |_| {}).await;
    let leader = cluster.leader().await;
    let lagging = cluster.groups().into_iter().find(|group| group.me() != leader.me()).unwrap().me().node.0;
    cluster.wires.isolate(lagging, (1..=3).filter(|node| *node != lagging));
    for _ in 0..24 {
        propose(&leader, ballast(BATCH_BYTES)).await.unwrap();
    }
    cluster.wires.heal();
    cluster.agree().await;
    let largest = cluster.wires.largest_append.load(Ordering::Relaxed);
    assert!(largest > BATCH_BYTES && largest < READ_BYTES_MAX + BATCH_BYTES + 4096, "{largest} bytes");
    assert!(matches!(propose(&leader, ballast(5 << 20)).await, Err(ProposeError::TooLarge { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_disk_is_told_and_acknowledges_nothing() {
    let cluster = Cluster::found(1, |_| {}).await;
    assert!(write(&cluster.groups(), "before").await);
    let member = &cluster.members[&1];
    member.disk.fail_next_sync();
    let doomed = member.group.propose(vec![put_policy("doomed", 1)]);
    tokio::select! {
        answered = doomed => assert!(matches!(answered, Err(ProposeError::Unknown(_))), "{answered:?}"),
        () = sleep(PATIENCE) => panic!("neither answered nor given up"),
    }
    until("the fatal error of writer and group", || async { (member.fatal.lock().unwrap().len() >= 2).then_some(()) })
        .await;
    let told = member.fatal.lock().unwrap().clone();
    assert!(told.iter().any(|what| what.contains("shard 0")), "{told:?}");
    assert!(!has_policy(&member.group, "doomed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_entry_that_fails_half_way_nothing_reaches_the_disk() {
    let cluster = Cluster::found(1, |_| {}).await;
    assert!(write(&cluster.groups(), "before").await);
    let member = &cluster.members[&1];
    until("it is written behind", || async { (member.group.status().dirty_rows == 0).then_some(()) }).await;
    // A row of the first generation of the system shard's state, damaged.
    let mut damage = WriteSet::new();
    damage.put(Family::State, [&[0; 6][..], &keys::policy("damaged")].concat(), b"garbage");
    member.disk.write(&damage).unwrap();

    let failed = member.group.propose(vec![put_policy("first-half", 1), put_policy("damaged", 1)]).await;
    assert!(matches!(failed, Err(ProposeError::Unknown(_))), "{failed:?}");
    until("the fatal error", || async { (!member.fatal.lock().unwrap().is_empty()).then_some(()) }).await;
    member.group.stop().await;

    let state = ShardState::open(Arc::new(member.disk.clone()), ShardId::SYSTEM).unwrap();
    let row = |name| state.get(Table::State, &keys::policy(name)).unwrap();
    assert!(row("before").is_some());
    assert_eq!(row("first-half"), None, "it would be applied to its own effects");
}
