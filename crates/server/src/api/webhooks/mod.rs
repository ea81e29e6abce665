//! Webhooks over HTTP, as Svix publishes them: `/api/v1`, one file per resource. What comes in is checked here, what goes
//! out is written here, and nothing is decided here.
//!
//! Bodies and queries are read tolerantly, since SDKs of other versions send more. An endpoint belongs to an application,
//! or (an operational one) to the cluster: the operations are the same ones, on two paths.

pub mod app;
pub mod attempt;
mod call;
pub mod delivery;
pub mod endpoint;
mod error;
pub mod event_type;
mod fields;
pub mod headers;
pub mod health;
pub mod message;
mod page;
pub mod secret;
mod url_guard;

use onceward_core::webhooks::{Missing, Refusal};

use crate::api::problem::{Code, Place, Problem};
pub use error::{HttpErrorBody, ValidationErrorBody, is_webhooks, rewrite};
use onceward_core::limits::FieldError;
pub use url_guard::UrlGuard;

/// What a query did not find.
fn missing(missing: Missing) -> Problem {
    Problem::not_found(match missing {
        Missing::App => "there is no such application",
        Missing::Endpoint => "there is no such endpoint",
        Missing::Message => "there is no such message",
        Missing::Attempt => "there is no such attempt",
        Missing::EventType => "there is no such event type",
    })
}

/// Why a call changed nothing.
fn refused(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::NoApp => missing(Missing::App),
        Refusal::NoEndpoint => missing(Missing::Endpoint),
        Refusal::NoEventType => missing(Missing::EventType),
        Refusal::Taken => Problem::new(Code::Conflict, "something of this id or uid is there already"),
        Refusal::UidFixed => unprocessable(
            Place::Body,
            "uid",
            "cannot be changed: an application's uid is its account's name, which is fixed when it is made",
        ),
        Refusal::TooMany { max } => {
            Problem::new(Code::LimitReached, format!("there may be at most {max} of these; nothing was stored"))
        }
        Refusal::HeadersTooLarge => unprocessable(Place::Body, "headers", fields::HEADERS_ALLOWED),
        Refusal::TooManySecrets => Problem::new(
            Code::LimitReached,
            "the secret was rotated so often that too many former ones are still good; wait for their grace to end",
        ),
        Refusal::EventIdTaken => {
            Problem::new(Code::Conflict, "this eventId was published with other content, which stays as it is")
        }
        Refusal::RequestMismatch => {
            let message = "was used for another request; repeat that one, or choose a new key";
            let errors = vec![FieldError { field: call::IDEMPOTENCY_KEY.to_string(), message: message.to_owned() }];
            let detail = format!("this idempotency-key {message}");
            Problem { errors, ..Problem::new(Code::FingerprintMismatch, detail) }.in_place(Place::Header)
        }
    }
}

/// One field that is wrong.
fn unprocessable(place: Place, field: &str, message: impl Into<String>) -> Problem {
    Problem::invalid_fields(vec![FieldError { field: field.to_owned(), message: message.into() }]).in_place(place)
}
