//! One attempt at a payment, from its rate limit to its answer. `RECIPE.md` goes through every place where it may die.
//!
//! Onceward says who works on a key and remembers the answer. The ledger makes sure that whoever is late, or comes
//! second, does not pay again. What a client is told as final is what Onceward holds: nothing else is ever answered.

use std::sync::Arc;

use crate::{
    demo::{Faults, Rehearsal, Step},
    event,
    idempotency_key::IdempotencyKey,
    ledger::{Attempt, Ledger, Order, Settlement},
    onceward::{Admission, Begin, Begun, Ended, Onceward, OncewardError},
    problem::Problem,
    response::StoredResponse,
};

pub struct Service {
    pub onceward: Onceward,
    pub ledger: Arc<Ledger>,
    pub terms: Terms,
    /// What goes wrong on purpose; nothing in earnest.
    pub rehearsal: Option<Rehearsal>,
}

/// What this service asks of Onceward.
pub struct Terms {
    pub policy: String,
    pub lease_ms: u64,
    pub ttl_ms: u64,
}

/// A payment that somebody asks for.
pub struct Call {
    pub account: String,
    pub key: IdempotencyKey,
    pub fingerprint: String,
    /// Names this HTTP request, however often a node has to be asked on its behalf.
    pub attempt_id: String,
    pub order: Order,
    pub faults: Faults,
}

pub struct Answer {
    pub response: StoredResponse,
    /// Whether an earlier attempt made it.
    pub replayed: bool,
}

impl Service {
    /// Counts the request against its account's limit.
    pub async fn admit(&self, account: &str, attempt_id: &str) -> Result<(), Problem> {
        match self.onceward.check(&self.terms.policy, account, attempt_id).await {
            Ok(Admission::Admitted) => Ok(()),
            Ok(Admission::Limited(headers)) => Err(Problem::rate_limited(headers)),
            Err(error) => Err(did_not_pay(error)),
        }
    }

    pub async fn pay(&self, call: Call) -> Result<Answer, Problem> {
        let token = match self.begin(&call).await {
            Ok(Begun::Started { token }) => token,
            Ok(Begun::Completed(response)) => return Ok(Answer { response, replayed: true }),
            Ok(Begun::InProgress { retry_after }) => return Err(Problem::in_progress(retry_after)),
            Ok(Begun::OtherRequest) => return Err(Problem::other_request()),
            // Without Onceward nobody knows whether another attempt is under way: no payment.
            Err(error) => return Err(did_not_pay(error)),
        };
        call.faults.reached(Step::Begun).await;

        let Call { account, key, fingerprint, order, faults, .. } = call;
        let attempt = Attempt { account, key: key.as_str().to_owned(), token, fingerprint };
        let settlement = self.write(attempt.clone(), order, faults.clone()).await;
        let answer = match settlement {
            Some(Settlement::Settled(response)) => Answer { response, replayed: false },
            // An earlier attempt died between its commit and its `complete`. We finish what it left.
            Some(Settlement::Found(response)) => Answer { response, replayed: true },
            Some(Settlement::Withdrawn) => return Err(self.give_up(&attempt, &key).await),
            Some(Settlement::Outrun) => return Err(Problem::superseded()),
            Some(Settlement::OtherRequest) => return Err(self.refuse_other_request(&attempt, &key).await),
            // Nobody knows whether that was committed. Once the lease is over, the next attempt looks at the fence.
            None => return Err(Problem::outcome_unknown()),
        };
        faults.reached(Step::Committed).await;

        let message = event::of(&answer.response);
        match self.onceward.complete(&attempt.account, &key.quoted(), token, &answer.response, message).await {
            Ok(Ended::Done) => {}
            // A newer attempt finds our answer behind the fence and completes the key with it.
            Ok(Ended::Fenced) => return Err(Problem::superseded()),
            Err(error) => {
                tracing::error!(%error, "committed, and Onceward could not be told");
                return Err(Problem::outcome_unknown());
            }
        }
        faults.reached(Step::Completed).await;
        Ok(answer)
    }

    async fn begin(&self, call: &Call) -> Result<Begun, OncewardError> {
        let begin = Begin {
            account: &call.account,
            key: &call.key.quoted(),
            fingerprint: &call.fingerprint,
            attempt_id: &call.attempt_id,
            lease_ms: self.terms.lease_ms,
            ttl_ms: self.terms.ttl_ms,
        };
        self.onceward.begin(&begin).await
    }

    /// The effect and its fence. `None` when the database fails.
    async fn write(&self, attempt: Attempt, order: Order, faults: Faults) -> Option<Settlement> {
        let ledger = self.ledger.clone();
        let written = tokio::task::spawn_blocking(move || {
            if bank_answers(&order) {
                ledger.settle(&attempt, &order, || faults.reached_blocking(Step::Inserted))
            } else {
                ledger.withdraw(&attempt)
            }
        });
        match written.await {
            Ok(Ok(settlement)) => Some(settlement),
            Ok(Err(error)) => {
                tracing::error!(%error, "the ledger failed");
                None
            }
            Err(error) => {
                tracing::error!(%error, "the ledger panicked");
                None
            }
        }
    }

    /// Frees the key after [`Settlement::Withdrawn`], so that the client need not wait for the lease. Only if that
    /// succeeds were we the newest attempt to the end, and only then "nothing was paid" is true for all of them.
    async fn give_up(&self, attempt: &Attempt, key: &IdempotencyKey) -> Problem {
        match self.onceward.abandon(&attempt.account, &key.quoted(), attempt.token).await {
            Ok(Ended::Done) => Problem::bank_offline(),
            Ok(Ended::Fenced) => Problem::superseded(),
            Err(error) => did_not_pay(error),
        }
    }

    /// Onceward had forgotten the key and the ledger had not. That we began it for the other request is undone; if that
    /// fails, the lease's end undoes it.
    async fn refuse_other_request(&self, attempt: &Attempt, key: &IdempotencyKey) -> Problem {
        if let Err(error) = self.onceward.abandon(&attempt.account, &key.quoted(), attempt.token).await {
            tracing::warn!(%error, "the key stays held until its lease is over");
        }
        Problem::other_request()
    }
}

/// A stand-in for whatever may fail now and succeed later: nobody answers for recipients called `offline-…`.
fn bank_answers(order: &Order) -> bool {
    !order.to.starts_with("offline-")
}

/// What a client is told while this request has certainly written nothing.
fn did_not_pay(error: OncewardError) -> Problem {
    match error {
        OncewardError::Unavailable(_) => {
            tracing::warn!(%error, "Onceward is unavailable");
            Problem::unavailable()
        }
        OncewardError::Unexpected { .. } => {
            tracing::error!(%error, "Onceward was not understood");
            Problem::internal()
        }
    }
}
