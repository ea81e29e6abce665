//! Rate limits over HTTP, one file per operation: what comes in is checked here, what goes out is rounded here, and
//! nothing is decided here.

pub mod check;
pub mod headers;
pub mod refund;
pub mod reset;

use onceward_core::limits::{
    PolicyName,
    bounds::{KEY_BYTES_MAX, REQUEST_ID_BYTES_MAX},
};

use crate::api::json::Judge;

const KEY_ALLOWED: &str = "a string of 1 to 512 bytes";
const POLICY_ALLOWED: &str = "the name of a policy";
const REQUEST_ID_ALLOWED: &str = "a string of 1 to 64 bytes";

fn judge_key(judge: &mut Judge, path: impl Fn() -> String, key: &str) {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        judge.refuse(path(), format!("must be {KEY_ALLOWED}, not {}", key.len()));
    }
}

fn judge_policy(judge: &mut Judge, path: impl Fn() -> String, name: &str) {
    if let Err(error) = PolicyName::parse(name) {
        judge.refuse(path(), format!("must be {POLICY_ALLOWED}: {error}"));
    }
}

fn judge_request_id(judge: &mut Judge, id: &str) {
    if id.is_empty() || id.len() > REQUEST_ID_BYTES_MAX {
        judge.refuse("request_id", format!("must be {REQUEST_ID_ALLOWED}, not {}", id.len()));
    }
}
