//! Policies as the system shard keeps them: by name, with a revision that increases over all of them, deletions as
//! tombstones until every data shard has seen them.

use serde::{Deserialize, Serialize};

use crate::limits::Policy;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyReply {
    /// `created`: there was none of this name. The same specification again keeps its revision.
    Stored { policy: Policy, created: bool },
    Deleted { revision: u64 },
    NotFound,
    /// Too many policies, or too many bytes of them in all: the limit is `max`, of `what`.
    LimitReached { what: String, max: u64 },
}
