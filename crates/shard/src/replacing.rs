//! How a node that lost its disk comes back: asked for by an operator, let in under a new generation, filled as a
//! learner, made a voter where its predecessor was one.
//!
//! Each node runs this caretaker; what it does depends on what it leads. All steps repeat without harm.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use onceward_core::{
    cluster::{Generation, Manifest, MemberId, NodeEntry, NodeId, ShardId},
    command::{Command, Reply},
    query::{self, Answer, Query},
    system::{NodeRecord, NodeReply, ReplaceState, SystemCommand, SystemReply},
};
use onceward_transport::{Lane, Request};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::{info, warn};

use crate::{
    founding,
    node::{Serving, Shared},
    outcome::{Outcome, ServiceError},
    shard_actor::Shard,
    wire::{self, Members, Method},
};

const CARE_INTERVAL: Duration = Duration::from_secs(1);
const STEP_TIMEOUT: Duration = Duration::from_secs(2);

/// The registry as this node's replica of the system shard has it; empty until the founders wrote it.
pub(crate) fn registry(serving: &Serving) -> Vec<NodeRecord> {
    let Some(system) = serving.router.local(ShardId::SYSTEM) else { return Vec::new() };
    match system.group.read(|rows| query::answer(ShardId::SYSTEM, rows, &Query::Nodes)) {
        Ok(Answer::Nodes(records)) => records,
        _ => Vec::new(),
    }
}

/// The manifest with the nodes as they are now.
pub(crate) fn current_manifest(serving: &Serving, records: &[NodeRecord]) -> Manifest {
    let mut manifest = serving.surroundings.manifest.clone();
    for entry in &mut manifest.nodes {
        if let Some(record) = records.iter().find(|record| record.entry.id == entry.id) {
            *entry = record.entry.clone();
        }
    }
    manifest
}

/// An operator says that the node's disk is lost.
pub(crate) async fn begin(serving: &Serving, node: NodeId, deadline: Instant) -> Result<NodeReply, ServiceError> {
    let manifest = &serving.surroundings.manifest;
    let reply = ask(serving, SystemCommand::BeginReplace { node }, deadline).await?;
    if reply != NodeReply::NotFound || !manifest.nodes.iter().any(|entry| entry.id == node) {
        return Ok(reply);
    }
    // The cluster is so young that nobody wrote its manifest into the registry yet.
    let record = Command::System(SystemCommand::RecordManifest { manifest: manifest.clone() });
    serving.router.submit(ShardId::SYSTEM, &record, deadline).await.into_result()?;
    ask(serving, SystemCommand::BeginReplace { node }, deadline).await
}

async fn ask(serving: &Serving, command: SystemCommand, deadline: Instant) -> Result<NodeReply, ServiceError> {
    match serving.router.submit(ShardId::SYSTEM, &Command::System(command), deadline).await.into_result()? {
        Reply::System(SystemReply::Node(reply)) => Ok(reply),
        other => {
            warn!(?other, "a replacement was answered by another command's reply");
            Err(ServiceError::Unknown)
        }
    }
}

/// Looks after nodes that come in or come back, until the node stops.
pub(crate) async fn take_care(shared: Arc<Shared>, serving: Arc<Serving>) {
    let mut ticks = interval(CARE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Filling a shard takes as long as sending its state does; who waits to be taken in must not wait for that.
    let mut placing = JoinSet::new();
    loop {
        ticks.tick().await;
        let records = registry(&serving);
        let manifest = current_manifest(&serving, &records);
        founding::adopt_known(&shared, &manifest).await;
        let leads_system = serving.router.local(ShardId::SYSTEM).is_some_and(|shard| shard.leads().is_ok());
        if leads_system && records.is_empty() {
            let manifest = serving.surroundings.manifest.clone();
            submit(&serving, SystemCommand::RecordManifest { manifest }).await;
        }
        for record in records.iter().filter(|record| leads_system && record.replace == ReplaceState::Awaited) {
            admit(&shared, &serving, record).await;
        }
        while placing.try_join_next().is_some() {}
        if placing.is_empty() {
            placing.spawn(place(shared.clone(), serving.clone(), manifest, records));
        }
    }
}

/// Gives every node its place in the shards led here, and tells the registry of replacements that have all of theirs.
async fn place(shared: Arc<Shared>, serving: Arc<Serving>, manifest: Manifest, records: Vec<NodeRecord>) {
    for entry in manifest.nodes.iter().filter(|entry| is_here(&shared, entry)) {
        fill_led_shards(&serving, entry).await;
    }
    for record in records.iter().filter(|record| record.replace == ReplaceState::Filling) {
        let leads_system = serving.router.local(ShardId::SYSTEM).is_some_and(|shard| shard.leads().is_ok());
        if leads_system && is_filled(&serving, record).await {
            let (node, generation) = (record.entry.id, record.entry.generation);
            info!(%node, "the replacement votes in all its shards");
            submit(&serving, SystemCommand::FinishReplace { node, generation }).await;
        }
    }
}

/// Whether the directory that the cluster expects of a node is connected, as a member.
fn is_here(shared: &Shared, entry: &NodeEntry) -> bool {
    shared
        .peer_hello(entry.id)
        .is_some_and(|hello| hello.cluster_id.is_some() && hello.incarnation == entry.incarnation)
}

async fn submit(serving: &Serving, command: SystemCommand) -> Option<NodeReply> {
    let deadline = Instant::now() + STEP_TIMEOUT;
    match serving.router.submit(ShardId::SYSTEM, &Command::System(command), deadline).await {
        Outcome::Applied(Reply::System(SystemReply::Node(reply))) => Some(reply),
        _ => None,
    }
}

/// Lets in the empty directory that waits at the door.
async fn admit(shared: &Shared, serving: &Serving, record: &NodeRecord) {
    let node = record.entry.id;
    let Some(probed) = founding::probe(shared.links(), node).await else { return };
    if probed.cluster_id.is_some() {
        return;
    }
    // The registry gives it the next generation; the one named here is not used.
    let entry = founding::entry(node, record.entry.generation, &probed);
    if let Some(NodeReply::Recorded(record)) = submit(serving, SystemCommand::AdmitReplacement { entry }).await {
        info!(%node, generation = record.entry.generation.0, "an empty directory becomes the node's next generation");
    }
}

/// In every shard led here that the node is to hold: its present generation takes the place of an older one, or comes in
/// as a learner where no generation of it is.
async fn fill_led_shards(serving: &Serving, entry: &NodeEntry) {
    let new = MemberId::new(entry.id, entry.generation);
    for shard in serving.router.local_shards() {
        let manifest = &serving.surroundings.manifest;
        if !manifest.holders(shard.id).contains(&new.node) || shard.leads().is_err() {
            continue;
        }
        let status = shard.group.status();
        let mut present = status.voters.iter().chain(&status.learners).filter(|member| member.node == new.node);
        let changed = match present.clone().copied().find(|member| is_older(*member, new)) {
            Some(old) => shard.group.replace_member(old, new).await,
            None if present.next().is_none() => shard.group.add_learner(new).await,
            None => continue,
        };
        match changed {
            Ok(()) => info!(shard = %shard.id, %new, "the node took its place in the shard"),
            Err(error) => warn!(shard = %shard.id, %new, %error, "the node is not in its place yet"),
        }
    }
}

fn is_older(member: MemberId, new: MemberId) -> bool {
    member.node == new.node && member.generation < new.generation
}

/// Whether every shard's leader says that the new generation is in and the old ones are out.
async fn is_filled(serving: &Serving, record: &NodeRecord) -> bool {
    let new = MemberId::new(record.entry.id, record.entry.generation);
    for shard in serving.surroundings.manifest.shards() {
        if !serving.surroundings.manifest.holders(shard).contains(&new.node) {
            continue;
        }
        let Some(members) = members(serving, shard).await else { return false };
        let votes = serving.surroundings.manifest.voters(shard).contains(&new.node);
        let place = if votes { &members.voters } else { &members.learners };
        let is_in = place.contains(&new.to_u64());
        let old_is_out = (0..new.generation.0).all(|generation| {
            let old = MemberId::new(new.node, Generation(generation)).to_u64();
            !members.voters.contains(&old) && !members.learners.contains(&old)
        });
        if !(is_in && old_is_out) {
            return false;
        }
    }
    true
}

/// The members of a shard as its leader has them. Where the leader isn't known, every voter is asked.
async fn members(serving: &Serving, shard: ShardId) -> Option<Members> {
    let believed = serving.router.believed_leader(shard);
    for node in believed.into_iter().chain(serving.surroundings.manifest.voters(shard)) {
        let members = if node == serving.surroundings.me.node {
            serving.router.local(shard).map(|shard| members_here(shard))
        } else {
            ask_for_members(serving, shard, node).await
        };
        if let Some(members) = members.filter(|members| members.led_here) {
            return Some(members);
        }
    }
    None
}

async fn ask_for_members(serving: &Serving, shard: ShardId, node: NodeId) -> Option<Members> {
    let request = Request {
        lane: Lane::Control,
        method: Method::Members.code(),
        shard,
        body: Bytes::new(),
        timeout: STEP_TIMEOUT,
    };
    wire::decode(&serving.surroundings.links.call(node, request).await.ok()?).ok()
}

pub(crate) fn members_here(shard: &Shard) -> Members {
    let status = shard.group.status();
    Members {
        led_here: shard.leads().is_ok() && !status.joint,
        voters: status.voters.iter().map(|member| member.to_u64()).collect(),
        learners: status.learners.iter().map(|member| member.to_u64()).collect(),
    }
}
