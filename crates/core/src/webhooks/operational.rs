//! Operational endpoints: who is told when an endpoint is disabled or a delivery given up. They are written on the system
//! shard, and copied into every data shard, so that what is told commits with what it tells of.

use serde::{Deserialize, Serialize};

use super::{
    endpoint::{EndpointSpec, Headers},
    id::EndpointId,
    names::Name,
    secret::Secret,
};

/// All operational endpoints as of a revision of the system shard. Applied only if the revision is greater than that
/// of the shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOperational {
    pub revision: u64,
    /// By ascending id.
    pub endpoints: Vec<OperationalEndpoint>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationalEndpoint {
    pub id: EndpointId,
    pub uid: Option<Name>,
    pub spec: EndpointSpec,
    pub headers: Headers,
    pub secret: Secret,
    /// Former secrets with the time for which they are still good; shards' clocks differ.
    pub former: Vec<(Secret, u64)>,
    pub created_wall_ms: u64,
    pub updated_wall_ms: u64,
}
