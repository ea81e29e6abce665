//! What the system shard promises: policies with one order of revisions, and a registry that lets a node come back once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kit;

use kit::{Shard, token_bucket};
use onceward_core::{
    cluster::{Generation, Manifest, NodeEntry, NodeId},
    command::{Command, Reply},
    limits::{Policy, PolicyName},
    query::{Answer, Query, answer},
    system::*,
};

fn apply(shard: &mut Shard, command: SystemCommand) -> SystemReply {
    match shard.apply(Command::System(command)) {
        Reply::System(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn name(text: &str) -> PolicyName {
    PolicyName::parse(text).unwrap()
}

fn put(shard: &mut Shard, policy: &str, burst: u64) -> (Policy, bool) {
    let command = SystemCommand::PutPolicy { name: name(policy), spec: token_bucket("1/s", burst) };
    match apply(shard, command) {
        SystemReply::Policy(PolicyReply::Stored { policy, created }) => (policy, created),
        other => panic!("{other:?}"),
    }
}

fn delete(shard: &mut Shard, policy: &str) -> PolicyReply {
    match apply(shard, SystemCommand::DeletePolicy { name: name(policy) }) {
        SystemReply::Policy(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn ask(shard: &Shard, query: Query) -> Answer {
    answer(shard.id, &shard.rows, &query).unwrap()
}

/// Changes after `since`: revision and whether the policy lives.
fn changes(shard: &Shard, since: u64, bytes_max: u32) -> (u64, Vec<(u64, bool)>, u64) {
    match ask(shard, Query::PolicyChanges { since, bytes_max }) {
        Answer::PolicyChanges { to, changes, head, .. } => {
            (to, changes.iter().map(|change| (change.revision, change.policy.is_some())).collect(), head)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_same_specification_again_keeps_its_revision() {
    let mut shard = Shard::system();
    let (first, created) = put(&mut shard, "a", 1);
    assert_eq!((first.revision, created), (1, true));
    assert_eq!(put(&mut shard, "a", 1), (first, false));
    let (changed, created) = put(&mut shard, "a", 2);
    assert_eq!((changed.revision, changed.created_revision, created), (2, 1, false));
}

#[test]
fn a_policy_deleted_and_made_again_is_another_one() {
    let mut shard = Shard::system();
    put(&mut shard, "a", 1);
    assert_eq!(delete(&mut shard, "a"), PolicyReply::Deleted { revision: 2 });
    assert_eq!(delete(&mut shard, "a"), PolicyReply::NotFound);
    assert_eq!(ask(&shard, Query::Policy { name: "a".into() }), Answer::Policy(None));
    let (again, created) = put(&mut shard, "a", 1);
    assert_eq!((again.revision, again.created_revision, created), (3, 3, true));
    assert_eq!(changes(&shard, 0, u32::MAX), (3, vec![(3, true)], 3));
}

#[test]
fn changes_come_in_order_and_in_pieces_that_always_get_further() {
    let mut shard = Shard::system();
    for (policy, burst) in [("a", 1), ("b", 1), ("c", 1), ("a", 2)] {
        put(&mut shard, policy, burst);
    }
    delete(&mut shard, "b");
    assert_eq!(changes(&shard, 0, u32::MAX), (5, vec![(3, true), (4, true), (5, false)], 5));
    assert_eq!(changes(&shard, 0, 0), (3, vec![(3, true)], 5));
    assert_eq!(changes(&shard, 3, 0), (4, vec![(4, true)], 5));
    assert_eq!(changes(&shard, 4, 0), (5, vec![(5, false)], 5));
    assert_eq!(changes(&shard, 5, 0), (5, vec![], 5));
}

#[test]
fn tombstones_go_when_every_shard_has_seen_them() {
    let mut shard = Shard::system();
    put(&mut shard, "a", 1);
    put(&mut shard, "b", 1);
    delete(&mut shard, "a");
    delete(&mut shard, "b");
    apply(&mut shard, SystemCommand::ForgetDeletedPolicies { through: 3 });
    assert_eq!(changes(&shard, 0, u32::MAX), (4, vec![(4, false)], 4));
    apply(&mut shard, SystemCommand::ForgetDeletedPolicies { through: 4 });
    assert_eq!(changes(&shard, 0, u32::MAX), (4, vec![], 4));
}

#[test]
fn policies_are_listed_by_name_in_pages() {
    let mut shard = Shard::system();
    for n in 0..150 {
        put(&mut shard, &format!("p{n:03}"), 1);
    }
    delete(&mut shard, "p001");
    let page =
        |after: Option<&str>, limit| match ask(&shard, Query::Policies { after: after.map(str::to_owned), limit }) {
            Answer::Policies { policies, more } => {
                (policies.iter().map(|policy| policy.name.to_string()).collect::<Vec<_>>(), more)
            }
            other => panic!("{other:?}"),
        };
    assert_eq!(page(None, 2), (vec!["p000".into(), "p002".into()], true));
    assert_eq!(page(Some("p147"), 2), (vec!["p148".into(), "p149".into()], false));
    assert_eq!(page(None, u32::MAX).0.len(), 149);
}

#[test]
fn there_is_a_bound_on_policies_and_on_tombstones() {
    let mut shard = Shard::system();
    let limited = |shard: &mut Shard, policy: &str| {
        let command = SystemCommand::PutPolicy { name: name(policy), spec: token_bucket("1/s", 1) };
        matches!(apply(shard, command), SystemReply::Policy(PolicyReply::LimitReached { .. }))
    };
    for n in 0..POLICIES_MAX {
        assert!(!limited(&mut shard, &format!("p{n}")));
    }
    assert!(limited(&mut shard, "one-more"));
    put(&mut shard, "p1", 2);
    for n in 0..POLICIES_MAX {
        delete(&mut shard, &format!("p{n}"));
    }
    assert!(limited(&mut shard, "one-more"));
    put(&mut shard, "p1", 2);
}

#[test]
fn there_is_a_bound_on_the_bytes_of_all_policies() {
    let mut shard = Shard::system();
    let mut spec = token_bucket("1/s", 1);
    spec.exempt = (0..500).map(|n| format!("{n:0>500}")).collect::<Vec<_>>().into();
    let stored = (0..100)
        .take_while(|n| {
            let command = SystemCommand::PutPolicy { name: name(&format!("p{n}")), spec: spec.clone() };
            matches!(apply(&mut shard, command), SystemReply::Policy(PolicyReply::Stored { .. }))
        })
        .count();
    assert_eq!(stored as u64, POLICIES_BYTES_MAX / 251_600);

    // A page of large policies ends early, and the next goes on behind it.
    let Answer::Policies { policies, more } = ask(&shard, Query::Policies { after: None, limit: u32::MAX }) else {
        panic!()
    };
    assert_eq!((policies.len(), more), (4, true));
    let after = policies.last().map(|policy| policy.name.to_string());
    let Answer::Policies { policies: next, .. } = ask(&shard, Query::Policies { after, limit: u32::MAX }) else {
        panic!()
    };
    assert!(next[0].name > policies[3].name);
}

fn entry(id: u16, incarnation: u128) -> NodeEntry {
    NodeEntry {
        id: NodeId(id),
        generation: Generation(1),
        incarnation,
        http_address: format!("h{id}"),
        peer_address: format!("p{id}"),
    }
}

fn node(shard: &mut Shard, command: SystemCommand) -> NodeReply {
    match apply(shard, command) {
        SystemReply::Node(reply) => reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_comes_back_under_the_next_generation_and_every_step_can_be_repeated() {
    let mut shard = Shard::system();
    let manifest = Manifest { cluster_id: 1, data_shards: 8, nodes: vec![entry(1, 11), entry(2, 22)] };
    apply(&mut shard, SystemCommand::RecordManifest { manifest: manifest.clone() });
    let admit = || SystemCommand::AdmitReplacement { entry: entry(2, 99) };
    let recorded = |incarnation, generation, replace| {
        let generation = Generation(generation);
        NodeReply::Recorded(NodeRecord { entry: NodeEntry { generation, ..entry(2, incarnation) }, replace })
    };

    assert!(matches!(node(&mut shard, admit()), NodeReply::NotAwaited(_)));
    for _ in 0..2 {
        let begun = node(&mut shard, SystemCommand::BeginReplace { node: NodeId(2) });
        assert_eq!(begun, recorded(22, 1, ReplaceState::Awaited));
    }
    for _ in 0..2 {
        assert_eq!(node(&mut shard, admit()), recorded(99, 2, ReplaceState::Filling));
    }
    let other = SystemCommand::AdmitReplacement { entry: entry(2, 100) };
    assert!(matches!(node(&mut shard, other), NodeReply::NotAwaited(_)));
    let finish = |generation| SystemCommand::FinishReplace { node: NodeId(2), generation: Generation(generation) };
    assert!(matches!(node(&mut shard, finish(1)), NodeReply::NotAwaited(_)));
    for _ in 0..2 {
        assert_eq!(node(&mut shard, finish(2)), recorded(99, 2, ReplaceState::No));
    }
    // The founding manifest doesn't undo it.
    apply(&mut shard, SystemCommand::RecordManifest { manifest });
    let Answer::Nodes(nodes) = ask(&shard, Query::Nodes) else { panic!() };
    assert_eq!(nodes.iter().map(|node| node.entry.incarnation).collect::<Vec<_>>(), [11, 99]);
    assert_eq!(node(&mut shard, SystemCommand::BeginReplace { node: NodeId(3) }), NodeReply::NotFound);
}

#[test]
fn queries_know_their_kind_of_shard() {
    let (system, data) = (Shard::system(), Shard::with("1/s", 1));
    assert_eq!(ask(&system, Query::SyncedRevision), Answer::Misrouted);
    assert_eq!(ask(&data, Query::SyncedRevision), Answer::SyncedRevision(1));
    assert_eq!(ask(&data, Query::Nodes), Answer::Misrouted);
    assert!(matches!(ask(&data, Query::Clock), Answer::Clock { next_due: None, .. }));
}
