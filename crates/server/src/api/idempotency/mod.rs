//! Idempotency keys over HTTP, one file per operation: what comes in is checked here, what goes out is written here,
//! and nothing is decided here.
//!
//! A token that is for one account gets `forbidden` for every other, before anything else is looked at: so it cannot
//! even tell whether a key exists.

pub mod abandon;
pub mod begin;
pub mod complete;
pub mod delete;
pub mod extend;
pub mod list;
pub mod read;
mod response;

use onceward_core::idempotency::{
    Account, Key, Lease, NameError, RecordState,
    bounds::{LEASE_MS_MAX, LEASE_MS_MIN, TOKEN_MAX},
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::{
    call::Caller,
    instant::Instant,
    json::{Field, Judge},
    problem::{Code, Problem},
};

/// The account of a body. A token that is not for it is refused at once, whatever else is wrong.
fn account(judge: &mut Judge, caller: &Caller, field: Field<String>) -> Result<Option<Account>, Problem> {
    let Some(name) = judge.required(field, || "account".to_owned(), "a string of 1 to 255 bytes") else {
        return Ok(None);
    };
    caller.check_account(&name)?;
    Ok(Account::parse(&name).map_err(|error| judge.refuse("account", error.to_string())).ok())
}

fn key(judge: &mut Judge, field: Field<String>) -> Option<Key> {
    let name = judge.required(field, || "key".to_owned(), "a string of 1 to 255 bytes")?;
    match Key::parse(&name) {
        Ok(key) => return Some(key),
        Err(error @ NameError::Length(1..)) => judge.refuse_size("key", error.to_string()),
        Err(error) => judge.refuse("key", error.to_string()),
    }
    None
}

/// An account and a key from a path.
fn account_and_key(caller: &Caller, account: String, key: String) -> Result<(Account, Key), Problem> {
    let mut judge = Judge::default();
    let account = self::account(&mut judge, caller, Field::Given(account))?;
    let key = self::key(&mut judge, Field::Given(key));
    judge.verdict(account.zip(key))
}

fn token(judge: &mut Judge, field: Field<u64>) -> Option<u64> {
    const _: () = assert!(TOKEN_MAX == 9_007_199_254_740_991);
    judge.number(field, || "token".to_owned(), 1..=TOKEN_MAX, "the whole number that begin gave, below 2^53")
}

/// What names an attempt that has a key, or claims to.
struct Claim {
    account: Account,
    key: Key,
    token: u64,
}

fn claim(
    judge: &mut Judge,
    caller: &Caller,
    account: Field<String>,
    key: Field<String>,
    token: Field<u64>,
) -> Result<Option<Claim>, Problem> {
    let account = self::account(judge, caller, account)?;
    let key = self::key(judge, key);
    let token = self::token(judge, token);
    Ok(account.zip(key).zip(token).map(|((account, key), token)| Claim { account, key, token }))
}

fn lease_ms(judge: &mut Judge, field: Field<u64>) -> Option<u64> {
    const _: () = assert!(LEASE_MS_MIN == 100 && LEASE_MS_MAX == 3_600_000);
    let allowed = "a whole number from 100 to 3600000";
    judge.number(field, || "lease_ms".to_owned(), LEASE_MS_MIN..=LEASE_MS_MAX, allowed)
}

fn fenced() -> Problem {
    Problem::new(
        Code::Fenced,
        "the token is not the newest of this key, or there is no such key: another attempt took over, or it was freed",
    )
}

fn already_completed(detail: &str) -> Problem {
    Problem::new(Code::AlreadyCompleted, detail)
}

fn not_found(account: &Account, key: &Key) -> Problem {
    let key = key.to_string();
    Problem::not_found(format!("account {:?} has no key {key:?}", account.as_str()))
}

/// Until when an attempt owns its key.
#[derive(Serialize, ToSchema)]
#[schema(as = Lease)]
pub struct LeaseBody {
    #[schema(value_type = String, format = "date-time")]
    lease_expires_at: Instant,
    /// Rounded down. It counts from when the call was taken, not from when its answer comes: only whoever counts from when
    /// the call was sent is never late. After a `begin` that waited, that may be over at once: extend first.
    lease_remaining_ms: u64,
}

impl From<Lease> for LeaseBody {
    fn from(lease: Lease) -> LeaseBody {
        LeaseBody {
            lease_expires_at: Instant::of_wall_ms(lease.expires_wall_ms),
            lease_remaining_ms: lease.remaining_us / 1_000,
        }
    }
}

const IN_PROGRESS: &str = "in_progress";
const COMPLETED: &str = "completed";
const INDETERMINATE: &str = "indeterminate";

fn state_name(state: RecordState) -> &'static str {
    match state {
        RecordState::InProgress => IN_PROGRESS,
        RecordState::Completed => COMPLETED,
        RecordState::Indeterminate => INDETERMINATE,
    }
}
