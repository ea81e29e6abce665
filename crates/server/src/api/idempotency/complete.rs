//! `POST /v1/idempotency/complete`: stores the outcome of a key's work, once, and publishes the messages that go with it,
//! both or neither.

use axum::{Json, extract::State};
use onceward_core::{
    idempotency::{Account, CompleteCommand, CompleteReply, PublishedMessage, Publishing},
    webhooks::{
        AppId, Name, NewMessage, Refusal,
        bounds::{COMPLETION_MESSAGES_MAX, COMPLETION_PAYLOAD_BYTES_MAX},
    },
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    COMPLETED, Claim, already_completed, claim, fenced,
    response::{self, ResponseIn},
};
use crate::api::{
    App,
    call::{Caller, CountedBody, Deadline},
    instant::Instant,
    json::{Field, Judge, Object, object, read_object},
    problem::{Code, Problem, ProblemMembers},
    webhooks::message::{self, MessageBody},
};

#[derive(ToSchema)]
#[schema(as = CompleteRequest)]
pub struct CompleteBody {
    #[schema(value_type = String)]
    account: Field<String>,
    #[schema(value_type = String)]
    key: Field<String>,
    /// What `begin` gave.
    #[schema(value_type = u64, minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    token: Field<u64>,
    #[schema(value_type = ResponseIn)]
    response: Field<Object<ResponseIn>>,
    /// Published to the application that is the account, in the same step: at most 16, and 512 KiB of payloads in all. In
    /// them, unlike beside them, unknown fields are read over.
    #[schema(value_type = Vec<MessageBody>, required = false, max_items = 16)]
    messages: Field<Vec<Field<Object<MessageBody>>>>,
}

object!(CompleteBody { account, key, token, response, messages });

/// Reads and checks the body. Messages are kept for `retention_us`.
pub fn parse(body: &[u8], caller: &Caller, retention_us: u64) -> Result<CompleteCommand, Problem> {
    let mut judge = Judge::default();
    let body: CompleteBody = read_object(body, &mut judge)?;
    let claim = claim(&mut judge, caller, body.account, body.key, body.token)?;
    let response = response::read(&mut judge, body.response);
    let messages = messages(&mut judge, body.messages, retention_us);
    if let Some(claim) = claim.as_ref().filter(|_| !messages.is_empty()) {
        check_publisher(&mut judge, &claim.account);
    }
    let command = claim.zip(response).map(|(Claim { account, key, token }, response)| CompleteCommand {
        account,
        key,
        token,
        response,
        wall_ms: 0,
        publishing: Publishing { messages, retention_us, ..Publishing::default() },
    });
    judge.verdict(command)
}

fn messages(judge: &mut Judge, field: Field<Vec<Field<Object<MessageBody>>>>, retention_us: u64) -> Vec<NewMessage> {
    const _: () = assert!(COMPLETION_MESSAGES_MAX == 16 && COMPLETION_PAYLOAD_BYTES_MAX == 524_288);
    let allowed = "a list of at most 16 messages";
    let list = judge.optional(field, || "messages".to_owned(), allowed).unwrap_or_default();
    if list.len() > COMPLETION_MESSAGES_MAX {
        judge.refuse("messages", format!("must be {allowed}, not of {}", list.len()));
        return Vec::new();
    }
    let mut messages = Vec::with_capacity(list.len());
    for (at, message) in list.into_iter().enumerate() {
        let path = format!("messages[{at}]");
        let Some(message) = judge.required(message, || path.clone(), "an object with eventType and payload") else {
            continue;
        };
        let at = format!("{path}.");
        let message = judge.tolerant_object(message, &at);
        messages.extend(message::read(judge, message, &at, retention_us));
    }
    let bytes: usize = messages.iter().map(|message| message.payload.len()).sum();
    if bytes > COMPLETION_PAYLOAD_BYTES_MAX {
        judge.refuse_size("messages", format!("have payloads of {bytes} bytes in all; 524288 are the most"));
    }
    messages
}

/// Whoever publishes is an application.
fn check_publisher(judge: &mut Judge, account: &Account) {
    if AppId::parse(account.as_str()).is_none()
        && let Err(error) = Name::parse_uid(account.as_str())
    {
        judge.refuse("account", format!("must be an application's uid, or its id where it has none: it {error}"));
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = CompleteAnswer)]
pub struct CompleteAnswerBody {
    /// `completed`
    state: &'static str,
    #[schema(value_type = String, format = "date-time")]
    completed_at: Instant,
    #[schema(value_type = String, format = "date-time")]
    expires_at: Instant,
    /// In the order of the call.
    messages: Vec<PublishedOut>,
}

/// A message that was published, now or by the same call before.
#[derive(Serialize, ToSchema)]
#[schema(as = PublishedMessage)]
#[serde(rename_all = "camelCase")]
pub struct PublishedOut {
    id: String,
    event_id: Option<String>,
}

fn published(message: PublishedMessage) -> PublishedOut {
    PublishedOut { id: message.id.to_string(), event_id: message.event_id.map(|id| id.as_str().to_owned()) }
}

/// Repeating it with the same token and content answers the same.
#[utoipa::path(
    post, path = "/v1/idempotency/complete", tag = "idempotency", request_body = CompleteBody,
    responses(
        (status = 200, description = "stored, now or by the same call before", body = CompleteAnswerBody),
        (status = 400, description = "invalid_request; the key stays held", body = ProblemMembers),
        (
            status = 404, description = "not_found: the account is no application; the key stays held",
            body = ProblemMembers
        ),
        (
            status = 409,
            description = "fenced: the token is not the newest; already_completed: with other content; \
                conflict: a message's eventId was used with other content, and the key stays held",
            body = ProblemMembers
        ),
        (status = 413, description = "too_large: nothing was stored, the key stays held", body = ProblemMembers),
        (status = 503, description = "not applied", body = ProblemMembers),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = ProblemMembers),
    )
)]
pub async fn complete(
    State(app): State<App>,
    caller: Caller,
    Deadline(deadline): Deadline,
    CountedBody { bytes, room }: CountedBody,
) -> Result<Json<CompleteAnswerBody>, Problem> {
    let command = parse(&bytes, &caller, app.webhooks.retention_us())?;
    drop(bytes);
    let reply = app.service.complete(command, deadline).await?;
    // Until here the response that was read from the body is in memory.
    drop(room);
    app.metrics.completed(outcome(&reply));
    match reply {
        CompleteReply::Completed { completed_wall_ms, expires_wall_ms, messages } => Ok(Json(CompleteAnswerBody {
            state: COMPLETED,
            completed_at: Instant::of_wall_ms(completed_wall_ms),
            expires_at: Instant::of_wall_ms(expires_wall_ms),
            messages: messages.into_iter().map(published).collect(),
        })),
        CompleteReply::Fenced => Err(fenced()),
        CompleteReply::AlreadyCompleted => {
            Err(already_completed("this key was completed with other content, which stays"))
        }
        CompleteReply::MessageRefused { index, refusal } => Err(message_refused(index, &refusal)),
    }
}

fn message_refused(index: u32, refusal: &Refusal) -> Problem {
    let (code, why) = match refusal {
        Refusal::NoApp => (Code::NotFound, "the account is no application"),
        Refusal::EventIdTaken => (Code::Conflict, "its eventId was published with other content"),
        _ => (Code::Conflict, "it cannot be published"),
    };
    Problem::new(code, format!("messages[{index}]: {why}; nothing was done, and the key stays held"))
}

fn outcome(reply: &CompleteReply) -> &'static str {
    match reply {
        CompleteReply::Completed { .. } => COMPLETED,
        CompleteReply::Fenced => "fenced",
        CompleteReply::AlreadyCompleted => "already_completed",
        CompleteReply::MessageRefused { .. } => "message_refused",
    }
}
