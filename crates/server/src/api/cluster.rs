//! `/v1/cluster`: how nodes and shards stand, and bringing back a node that lost its disk.

use axum::{
    Json,
    extract::{RawQuery, State},
};
use onceward_core::{
    cluster::NodeId,
    system::{NodeReply, ReplaceState},
};
use serde::Serialize;
use tracing::warn;
use utoipa::ToSchema;

use super::{
    App,
    call::{Deadline, PathSegments},
    problem::{Code, Problem, ProblemMembers},
};
use onceward_shard::ClusterStatus;

#[derive(Serialize, ToSchema)]
#[schema(as = Cluster)]
pub struct ClusterBody {
    /// 32 hex digits; null while this node waits to be taken in by the founder.
    cluster_id: Option<String>,
    node_id: u16,
    version: &'static str,
    nodes: Vec<ClusterNodeBody>,
    shards: Vec<ClusterShardBody>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ClusterNode)]
pub struct ClusterNodeBody {
    id: u16,
    http_address: String,
    peer_address: String,
    reachable: bool,
    /// Of its wall clock against this node's; null where it isn't known.
    wall_clock_offset_ms: Option<i64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ClusterShard)]
pub struct ClusterShardBody {
    /// 0 is the system shard.
    id: u16,
    leader: Option<u16>,
    /// Of this node's replica, as are the next two; null where it has none.
    term: Option<u64>,
    last_log_index: Option<u64>,
    applied_index: Option<u64>,
    members: Vec<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_hash: Option<StateHashBody>,
}

/// Equal on every replica at the same applied index.
#[derive(Serialize, ToSchema)]
#[schema(as = StateHash)]
pub struct StateHashBody {
    applied_index: u64,
    hash: String,
}

fn answer_body(status: ClusterStatus) -> ClusterBody {
    let nodes = status.nodes.into_iter().map(|node| ClusterNodeBody {
        id: node.id.0,
        http_address: node.http_address,
        peer_address: node.peer_address,
        reachable: node.reachable,
        wall_clock_offset_ms: node.wall_clock_offset_ms,
    });
    let shards = status.shards.into_iter().map(|shard| ClusterShardBody {
        id: shard.id.0,
        leader: shard.leader.map(|leader| leader.0),
        term: shard.term,
        last_log_index: shard.last_log_index,
        applied_index: shard.applied_index,
        members: shard.members.iter().map(|member| member.0).collect(),
        state_hash: shard
            .state_hash
            .map(|state| StateHashBody { applied_index: state.applied_index, hash: state.hash }),
    });
    ClusterBody {
        cluster_id: status.cluster_id.map(|id| format!("{id:032x}")),
        node_id: status.node.0,
        version: env!("CARGO_PKG_VERSION"),
        nodes: nodes.collect(),
        shards: shards.collect(),
    }
}

/// The cluster as this node sees it.
#[utoipa::path(
    get, path = "/v1/cluster", tag = "cluster",
    params(("state_hash" = Option<bool>, Query, description = "true: computes each shard's hash, which reads its whole state")),
    responses(
        (status = 200, description = "nodes and shards", body = ClusterBody),
        (status = 400, description = "invalid_request", body = ProblemMembers),
    )
)]
pub async fn cluster(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Json<ClusterBody>, Problem> {
    let state_hash = match query.as_deref() {
        None | Some("" | "state_hash=false") => false,
        Some("state_hash=true") => true,
        Some(_) => return Err(Problem::invalid("the query may only be state_hash=true or state_hash=false")),
    };
    Ok(Json(answer_body(app.service.cluster(state_hash).await)))
}

/// How far a replacement is.
#[derive(Serialize, ToSchema)]
#[schema(as = Replacement)]
pub struct ReplacementBody {
    id: u16,
    /// `awaited`: start the node with an empty directory; `filling`: it is being filled; `in_service`: done.
    state: &'static str,
    /// Grows by one each time the node comes back empty.
    generation: u32,
}

/// Says that a node's disk is lost: its next, empty data directory may come in.
#[utoipa::path(
    post, path = "/v1/cluster/nodes/{id}/replace", tag = "cluster", params(("id" = u16, Path)),
    responses(
        (status = 200, description = "awaited, or already on its way", body = ReplacementBody),
        (status = 400, description = "invalid_request", body = ProblemMembers),
        (status = 404, description = "no such node", body = ProblemMembers),
        (status = 503, description = "not applied", body = ProblemMembers),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = ProblemMembers),
    )
)]
pub async fn replace_node(
    State(app): State<App>,
    Deadline(deadline): Deadline,
    PathSegments(id): PathSegments<String>,
) -> Result<Json<ReplacementBody>, Problem> {
    let node = id.parse::<u16>().ok().filter(|node| *node > 0 && !id.starts_with('+'));
    let Some(node) = node else {
        return Err(Problem::invalid("a node's id is a whole number from 1 to 65535"));
    };
    match app.service.replace(NodeId(node), deadline).await? {
        NodeReply::Recorded(record) => {
            warn!(node, "the node's replacement may come in");
            Ok(Json(ReplacementBody {
                id: node,
                state: match record.replace {
                    ReplaceState::No => "in_service",
                    ReplaceState::Awaited => "awaited",
                    ReplaceState::Filling => "filling",
                },
                generation: record.entry.generation.0,
            }))
        }
        NodeReply::NotFound => Err(Problem::not_found(format!("there is no node {node}"))),
        NodeReply::NotAwaited(_) => Err(Problem::new(Code::Conflict, "the node is being replaced in another way")),
    }
}
