//! Reset: one bucket begins a new epoch, full but for what outstanding grants may still spend.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetCommand {
    pub policy: String,
    pub key: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResetReply {
    Done,
    PolicyNotFound { policy: String },
}
