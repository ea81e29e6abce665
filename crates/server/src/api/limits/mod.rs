//! Rate limits over HTTP, one file per operation: what comes in is checked here, what goes out is rounded here, and
//! nothing is decided here.

pub mod check;
pub mod headers;
pub mod refund;
pub mod reset;

use onceward_core::limits::{
    PolicyName,
    bounds::{BURST_MAX, KEY_BYTES_MAX, REQUEST_ID_BYTES_MAX},
};

use crate::api::json::{Field, Judge};

/// The name of a policy that may exist. It stays text, as a check names many and finds out by looking.
fn policy(judge: &mut Judge, field: Field<String>, path: impl Fn() -> String) -> Option<String> {
    let name = judge.required(field, &path, "the name of a policy")?;
    let parsed = PolicyName::parse(&name).map_err(|error| judge.refuse(path(), error.to_string()));
    parsed.is_ok().then_some(name)
}

fn key(judge: &mut Judge, field: Field<String>, path: impl Fn() -> String) -> Option<String> {
    const _: () = assert!(KEY_BYTES_MAX == 512);
    judge.text(field, path, KEY_BYTES_MAX, "a string of 1 to 512 bytes")
}

fn request_id(judge: &mut Judge, field: Field<String>) -> Option<String> {
    const _: () = assert!(REQUEST_ID_BYTES_MAX == 64);
    judge.text(field, || "request_id".to_owned(), REQUEST_ID_BYTES_MAX, "a string of 1 to 64 bytes")
}

/// Tokens, at least `min`; `allowed` says so.
fn cost(judge: &mut Judge, field: Field<u64>, path: impl Fn() -> String, min: u64, allowed: &str) -> Option<u64> {
    judge.number(field, path, min..=BURST_MAX, allowed)
}
