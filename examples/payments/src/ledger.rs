//! The ledger: payments, and beside them one fence per idempotency key, in one SQLite file.
//!
//! Everything that makes a payment happen once is in [`judge`] and in the two transactions that ask it. Nothing in here
//! knows that Onceward exists: an attempt is an account, a key, a token that grows from attempt to attempt, and the
//! fingerprint of its request.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use axum::http::StatusCode;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, named_params};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::response::StoredResponse;

/// How long a transaction waits for another process that writes.
const BUSY_MAX: Duration = Duration::from_secs(5);
/// More than this is declined: a stand-in for a business that says no.
const AMOUNT_CENTS_MAX: i64 = 1_000_000;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS payments (
        id TEXT PRIMARY KEY,
        account TEXT NOT NULL,
        idempotency_key TEXT NOT NULL,
        amount_cents INTEGER NOT NULL CHECK (amount_cents > 0),
        currency TEXT NOT NULL,
        recipient TEXT NOT NULL,
        created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    ) STRICT;
    CREATE INDEX IF NOT EXISTS payments_by_account ON payments (account, created_at);
    CREATE TABLE IF NOT EXISTS fences (
        account TEXT NOT NULL,
        idempotency_key TEXT NOT NULL,
        token INTEGER NOT NULL,
        fingerprint TEXT NOT NULL,
        response TEXT,
        PRIMARY KEY (account, idempotency_key)
    ) STRICT, WITHOUT ROWID;
";

pub struct Ledger {
    connection: Mutex<Connection>,
}

/// Who wants to write.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub account: String,
    pub key: String,
    pub token: i64,
    pub fingerprint: String,
}

/// What is to be paid.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub amount_cents: i64,
    pub currency: String,
    pub to: String,
}

#[derive(Debug, Serialize)]
pub struct Payment {
    id: String,
    amount_cents: i64,
    currency: String,
    to: String,
    idempotency_key: String,
    created_at: String,
}

/// What an attempt came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// Done just now: paid, or declined.
    Settled(StoredResponse),
    /// Given up just now: no older attempt can pay any more, a newer one may.
    Withdrawn,
    /// An earlier attempt had committed; this is its answer, and nothing was done now.
    Found(StoredResponse),
    /// A newer attempt was here. Nothing was done.
    Outrun,
    /// The key's answer belongs to another request. Nothing was done.
    OtherRequest,
}

/// What the ledger remembers of a key.
#[derive(Debug)]
struct Fence {
    /// The greatest that wrote here.
    token: i64,
    fingerprint: String,
    /// The answer, once there is one. It never changes.
    response: Option<StoredResponse>,
}

/// Whether an attempt may do what it came for; if not, why.
fn judge(fence: Option<Fence>, attempt: &Attempt) -> Option<Settlement> {
    match fence? {
        Fence { fingerprint, response: Some(_), .. } if fingerprint != attempt.fingerprint => {
            Some(Settlement::OtherRequest)
        }
        // Whatever the tokens say: an answer is final.
        Fence { response: Some(response), .. } => Some(Settlement::Found(response)),
        Fence { token, response: None, .. } if token > attempt.token => Some(Settlement::Outrun),
        Fence { .. } => None,
    }
}

impl Ledger {
    pub fn open(file: &Path) -> rusqlite::Result<Ledger> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(BUSY_MAX)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // Committed means on disk, also in WAL mode.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(SCHEMA)?;
        Ok(Ledger { connection: Mutex::new(connection) })
    }

    /// Pays, or declines, unless this key was settled before or a newer attempt was here. One transaction: the payment
    /// and the fence are both there afterwards, or neither is. `before_commit` is called when both are written.
    pub fn settle(
        &self,
        attempt: &Attempt,
        order: &Order,
        before_commit: impl FnOnce(),
    ) -> rusqlite::Result<Settlement> {
        self.fenced(attempt, |transaction| {
            let response = if order.amount_cents > AMOUNT_CENTS_MAX {
                declined()
            } else {
                paid(&insert_payment(transaction, attempt, order)?)
            };
            // A refusal is a result like any other: without it, an older attempt could pay what was declined.
            write_fence(transaction, attempt, Some(&response))?;
            before_commit();
            Ok(Settlement::Settled(response))
        })
    }

    /// Gives the key up without an answer, so that a later attempt may pay and no earlier one can.
    pub fn withdraw(&self, attempt: &Attempt) -> rusqlite::Result<Settlement> {
        self.fenced(attempt, |transaction| {
            write_fence(transaction, attempt, None)?;
            Ok(Settlement::Withdrawn)
        })
    }

    /// Runs `effect` in a transaction of its own if the fence lets this attempt through; if not, says why.
    fn fenced(
        &self,
        attempt: &Attempt,
        effect: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<Settlement>,
    ) -> rusqlite::Result<Settlement> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        // IMMEDIATE takes the lock for writing before the fence is read: nobody writes between the look and the leap.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if let Some(reason) = judge(read_fence(&transaction, attempt)?, attempt) {
            return Ok(reason);
        }
        let done = effect(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    /// An account's payments, the oldest first.
    pub fn payments(&self, account: &str) -> rusqlite::Result<Vec<Payment>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut statement = connection.prepare("SELECT * FROM payments WHERE account = ?1 ORDER BY created_at, id")?;
        statement.query_map([account], payment_of_row)?.collect()
    }

    pub fn payment(&self, account: &str, id: &str) -> rusqlite::Result<Option<Payment>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut statement = connection.prepare("SELECT * FROM payments WHERE account = ?1 AND id = ?2")?;
        statement.query_row([account, id], payment_of_row).optional()
    }
}

fn read_fence(transaction: &Transaction<'_>, attempt: &Attempt) -> rusqlite::Result<Option<Fence>> {
    transaction
        .prepare("SELECT token, fingerprint, response FROM fences WHERE account = ?1 AND idempotency_key = ?2")?
        .query_row([&attempt.account, &attempt.key], |row| {
            let response: Option<String> = row.get("response")?;
            let response = response.map(|text| serde_json::from_str(&text)).transpose();
            let response = response.map_err(|error| {
                rusqlite::Error::FromSqlConversionFailure(2, rusqlite::types::Type::Text, Box::new(error))
            })?;
            Ok(Fence { token: row.get("token")?, fingerprint: row.get("fingerprint")?, response })
        })
        .optional()
}

fn write_fence(
    transaction: &Transaction<'_>,
    attempt: &Attempt,
    response: Option<&StoredResponse>,
) -> rusqlite::Result<()> {
    let response = response.map(|response| json!(response).to_string());
    transaction
        .prepare(
            "INSERT INTO fences (account, idempotency_key, token, fingerprint, response)
             VALUES (:account, :key, :token, :fingerprint, :response)
             ON CONFLICT (account, idempotency_key)
             DO UPDATE SET token = :token, fingerprint = :fingerprint, response = :response",
        )?
        .execute(named_params! {
            ":account": attempt.account,
            ":key": attempt.key,
            ":token": attempt.token,
            ":fingerprint": attempt.fingerprint,
            ":response": response,
        })?;
    Ok(())
}

fn insert_payment(transaction: &Transaction<'_>, attempt: &Attempt, order: &Order) -> rusqlite::Result<Payment> {
    transaction
        .prepare(
            "INSERT INTO payments (id, account, idempotency_key, amount_cents, currency, recipient)
             VALUES ('pay_' || lower(hex(randomblob(12))), :account, :key, :amount_cents, :currency, :to)
             RETURNING *",
        )?
        .query_row(
            named_params! {
                ":account": attempt.account,
                ":key": attempt.key,
                ":amount_cents": order.amount_cents,
                ":currency": order.currency,
                ":to": order.to,
            },
            payment_of_row,
        )
}

fn payment_of_row(row: &Row<'_>) -> rusqlite::Result<Payment> {
    Ok(Payment {
        id: row.get("id")?,
        amount_cents: row.get("amount_cents")?,
        currency: row.get("currency")?,
        to: row.get("recipient")?,
        idempotency_key: row.get("idempotency_key")?,
        created_at: row.get("created_at")?,
    })
}

fn paid(payment: &Payment) -> StoredResponse {
    let mut response = StoredResponse::new(StatusCode::CREATED, "application/json", json!(payment).to_string());
    response.headers.insert("location".to_owned(), format!("/payments/{}", payment.id));
    response
}

fn declined() -> StoredResponse {
    let problem = json!({
        "type": "about:blank",
        "title": "The payment is declined",
        "status": 402,
        "code": "declined",
        "detail": format!("no more than {AMOUNT_CENTS_MAX} cents can be paid at once"),
    });
    StoredResponse::new(StatusCode::PAYMENT_REQUIRED, "application/problem+json", problem.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        ledger: Ledger,
        dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Fixture {
            let dir = tempfile::tempdir().unwrap();
            Fixture { ledger: Ledger::open(&dir.path().join("ledger.sqlite")).unwrap(), dir }
        }

        /// As another process sees the same file.
        fn another(&self) -> Ledger {
            Ledger::open(&self.dir.path().join("ledger.sqlite")).unwrap()
        }

        fn settle(&self, token: i64) -> Settlement {
            self.ledger.settle(&attempt(token), &order(100), || {}).unwrap()
        }

        fn rows(&self) -> usize {
            self.ledger.payments("alice").unwrap().len()
        }
    }

    fn attempt(token: i64) -> Attempt {
        Attempt { account: "alice".into(), key: "k".into(), token, fingerprint: "f".into() }
    }

    fn order(amount_cents: i64) -> Order {
        Order { amount_cents, currency: "EUR".into(), to: "bob".into() }
    }

    fn settled(settlement: Settlement) -> StoredResponse {
        let Settlement::Settled(response) = settlement else { panic!("{settlement:?}") };
        response
    }

    #[test]
    fn whoever_comes_after_a_commit_finds_its_answer_with_any_token() {
        let fixture = Fixture::new();
        let first = settled(fixture.settle(5));
        for token in [1, 5, 9] {
            assert_eq!(fixture.settle(token), Settlement::Found(first.clone()), "token {token}");
        }
        assert_eq!(fixture.rows(), 1);
        let after_a_restart = fixture.another().settle(&attempt(10), &order(100), || {}).unwrap();
        assert_eq!(after_a_restart, Settlement::Found(first));
    }

    #[test]
    fn an_older_attempt_does_not_pay_what_a_newer_one_declined() {
        let fixture = Fixture::new();
        let declined = settled(fixture.ledger.settle(&attempt(2), &order(AMOUNT_CENTS_MAX + 1), || {}).unwrap());
        assert_eq!(declined.status, 402);
        assert_eq!(fixture.settle(1), Settlement::Found(declined));
        assert_eq!(fixture.rows(), 0);
    }

    #[test]
    fn an_older_attempt_does_not_pay_what_a_newer_one_gave_up_and_a_still_newer_one_does() {
        let fixture = Fixture::new();
        assert_eq!(fixture.ledger.withdraw(&attempt(2)).unwrap(), Settlement::Withdrawn);
        assert_eq!(fixture.settle(1), Settlement::Outrun);
        assert_eq!(fixture.ledger.withdraw(&attempt(1)).unwrap(), Settlement::Outrun);
        assert_eq!(fixture.rows(), 0);
        settled(fixture.settle(3));
        assert_eq!(fixture.rows(), 1);
    }

    #[test]
    fn what_an_older_attempt_paid_cannot_be_given_up_any_more() {
        let fixture = Fixture::new();
        let paid = settled(fixture.settle(1));
        assert_eq!(fixture.ledger.withdraw(&attempt(2)).unwrap(), Settlement::Found(paid));
    }

    #[test]
    fn an_answer_is_not_given_to_another_request_and_a_key_given_up_is_free_for_one() {
        let fixture = Fixture::new();
        let other = |token| Attempt { fingerprint: "g".into(), ..attempt(token) };
        fixture.ledger.withdraw(&attempt(1)).unwrap();
        settled(fixture.ledger.settle(&other(2), &order(200), || {}).unwrap());
        assert_eq!(fixture.settle(3), Settlement::OtherRequest);
        assert_eq!(fixture.rows(), 1);
    }

    #[test]
    fn accounts_and_keys_do_not_meet() {
        let fixture = Fixture::new();
        for (account, key) in [("alice", "k"), ("alice", "K"), ("bob", "k"), ("bobk", "")] {
            let attempt = Attempt { account: account.into(), key: key.into(), ..attempt(1) };
            settled(fixture.ledger.settle(&attempt, &order(100), || {}).unwrap());
        }
        assert_eq!(fixture.rows(), 2);
    }

    #[test]
    fn what_dies_before_its_commit_leaves_nothing() {
        let fixture = Fixture::new();
        let ledger = fixture.another();
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ledger.settle(&attempt(1), &order(100), || panic!("killed"))
        }));
        assert!(died.is_err());
        assert_eq!(fixture.rows(), 0);
        settled(fixture.settle(2));
        assert_eq!(fixture.rows(), 1);
    }

    #[test]
    fn of_many_at_once_in_several_processes_one_pays_and_all_have_its_answer() {
        let fixture = Fixture::new();
        let ledgers: Vec<Ledger> = (0..4).map(|_| fixture.another()).collect();
        let outcomes: Vec<Settlement> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..32)
                .map(|token| {
                    let ledger = &ledgers[token % ledgers.len()];
                    scope.spawn(move || ledger.settle(&attempt(token as i64), &order(100), || {}).unwrap())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let paid: Vec<&StoredResponse> = outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                Settlement::Settled(response) => Some(response),
                _ => None,
            })
            .collect();
        assert_eq!((paid.len(), fixture.rows()), (1, 1));
        let found = Settlement::Found(paid[0].clone());
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == found).count(), 31);
    }
}
