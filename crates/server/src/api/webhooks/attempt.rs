//! Attempts to deliver messages, and what receivers answered.

use axum::{Json, extract::State};
use onceward_core::webhooks::{
    AttemptFilter, AttemptStatus, AttemptView, DeliveryAttemptId, EndpointRef, MessageRef, Page, PageIn, WebhookAnswer,
    WebhookQuery,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    call::{At, Owner, ask, unexpected},
    delivery::Status,
    error::{HttpErrorBody, ValidationErrorBody},
    page::{ListBody, Parameters, number},
};
use crate::api::{App, call::Deadline, instant::Instant, problem::Problem};

/// An attempt. One that failed and will be repeated is `fail`, like the last one; the delivery tells when it is due again.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageAttemptOut)]
#[serde(rename_all = "camelCase")]
pub struct AttemptOut {
    id: String,
    endpoint_id: String,
    msg_id: String,
    url: String,
    /// The beginning of the answer's body, 16 KiB at most, or what went wrong.
    response: String,
    /// 0: no answer came.
    response_status_code: u16,
    response_duration_ms: u32,
    /// 0 success, 2 fail.
    status: u8,
    status_text: &'static str,
    /// Always 0: by the schedule.
    trigger_type: u8,
    #[schema(value_type = String, format = "date-time")]
    timestamp: Instant,
}

fn out(attempt: AttemptView, with_content: bool) -> AttemptOut {
    let status = match attempt.status {
        AttemptStatus::Succeeded => Status::SUCCESS,
        AttemptStatus::Retrying | AttemptStatus::Failed => Status::FAIL,
    };
    AttemptOut {
        id: attempt.id.to_string(),
        endpoint_id: attempt.endpoint.to_string(),
        msg_id: attempt.message.to_string(),
        url: attempt.answer.url,
        response: if with_content { attempt.answer.body } else { "{}".to_owned() },
        response_status_code: attempt.answer.status_code,
        response_duration_ms: attempt.answer.duration_ms,
        status: status.number,
        status_text: status.text,
        trigger_type: 0,
        timestamp: Instant::of_wall_ms(attempt.answer.started_wall_ms),
    }
}

/// What a list of attempts is asked for.
struct Asked {
    page: PageIn,
    filter: AttemptFilter,
    with_content: bool,
    /// Attempts of the status that is asked for never are.
    never: bool,
}

fn asked(mut parameters: Parameters) -> Result<Asked, Problem> {
    let page = parameters.page(true, |text| DeliveryAttemptId::parse(text).map(|id| id.0));
    let status = parameters.parsed("status", "0, 1, 2, 3 or 4", |value| number(value).filter(|status| *status <= 4));
    let class = parameters.parsed("status_code_class", "0, 100, 200, 300, 400 or 500", |value| {
        let class = number(value).filter(|class| class % 100 == 0 && *class <= 500)?;
        u8::try_from(class / 100).ok()
    });
    let endpoint = parameters.parsed("endpoint_id", "an endpoint's id or uid", |value| EndpointRef::parse(value).ok());
    let filter = AttemptFilter {
        message: parameters.messages(),
        status: match status {
            Some(0) => Some(AttemptStatus::Succeeded),
            Some(2) => Some(AttemptStatus::Failed),
            _ => None,
        },
        status_code_class: class,
        endpoint,
    };
    let with_content = parameters.flag("with_content", true);
    let never = matches!(status, Some(1 | 3 | 4));
    parameters.verdict(Asked { page, filter, with_content, never })
}

async fn list(
    app: &App,
    query: WebhookQuery,
    asked: Asked,
    deadline: Deadline,
) -> Result<Json<ListBody<AttemptOut>>, Problem> {
    let Deadline(deadline) = deadline;
    let found = match ask(app, query, deadline).await? {
        WebhookAnswer::Attempts(_) if asked.never => Page { items: Vec::new(), done: true, cursor: None },
        WebhookAnswer::Attempts(found) => found,
        _ => return Err(unexpected()),
    };
    Ok(Json(ListBody::new(
        found,
        &asked.page,
        |id| DeliveryAttemptId(id).to_string(),
        |attempt| attempt.id.0,
        |attempt| out(attempt, asked.with_content),
    )))
}

/// The newest first.
#[utoipa::path(
    get, path = "/api/v1/app/{app_id}/attempt/msg/{msg_id}", tag = "webhooks",
    operation_id = "v1.message-attempt.list-by-msg",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("msg_id" = String, Path, description = "id or eventId"),
        ("limit" = Option<u32>, Query, description = "1 to 250, default 50"),
        ("iterator" = Option<String>, Query, description = "iterator or prevIterator of another page"),
        ("status" = Option<u8>, Query, description = "0 success or 2 fail"),
        ("status_code_class" = Option<u16>, Query, description = "0 (no answer), 100, 200, 300, 400 or 500"),
        ("endpoint_id" = Option<String>, Query, description = "to this endpoint alone, by id or uid"),
        ("event_types" = Option<String>, Query, description = "these alone, separated by commas"),
        ("channel" = Option<String>, Query, description = "of messages on this channel alone"),
        ("tag" = Option<String>, Query, description = "of messages of this tag alone"),
        ("before" = Option<String>, Query, description = "before this instant (RFC 3339)"),
        ("after" = Option<String>, Query, description = "after this instant (RFC 3339)"),
        ("with_content" = Option<bool>, Query, description = "answer what receivers said, too; default true")
    ),
    responses(
        (status = 200, description = "a page", body = ListBody<AttemptOut>),
        (status = 404, description = "no such application, message or endpoint", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn list_attempts_of_message(
    State(app): State<App>,
    Owner(owner): Owner,
    At(message): At<MessageRef>,
    deadline: Deadline,
    parameters: Parameters,
) -> Result<Json<ListBody<AttemptOut>>, Problem> {
    let asked = asked(parameters)?;
    let (filter, page) = (asked.filter.clone(), asked.page);
    list(&app, WebhookQuery::AttemptsOfMessage { app: owner, message, filter, page }, asked, deadline).await
}

/// The newest first.
#[utoipa::path(
    get, path = "/api/v1/app/{app_id}/attempt/endpoint/{endpoint_id}", tag = "webhooks",
    operation_id = "v1.message-attempt.list-by-endpoint",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("endpoint_id" = String, Path, description = "id or uid"),
        ("limit" = Option<u32>, Query, description = "1 to 250, default 50"),
        ("iterator" = Option<String>, Query, description = "iterator or prevIterator of another page"),
        ("status" = Option<u8>, Query, description = "0 success or 2 fail"),
        ("status_code_class" = Option<u16>, Query, description = "0 (no answer), 100, 200, 300, 400 or 500"),
        ("event_types" = Option<String>, Query, description = "these alone, separated by commas"),
        ("channel" = Option<String>, Query, description = "of messages on this channel alone"),
        ("tag" = Option<String>, Query, description = "of messages of this tag alone"),
        ("before" = Option<String>, Query, description = "before this instant (RFC 3339)"),
        ("after" = Option<String>, Query, description = "after this instant (RFC 3339)"),
        ("with_content" = Option<bool>, Query, description = "answer what the receiver said, too; default true")
    ),
    responses(
        (status = 200, description = "a page", body = ListBody<AttemptOut>),
        (status = 404, description = "no such application or endpoint", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn list_attempts_of_endpoint(
    State(app): State<App>,
    Owner(owner): Owner,
    At(endpoint): At<EndpointRef>,
    deadline: Deadline,
    parameters: Parameters,
) -> Result<Json<ListBody<AttemptOut>>, Problem> {
    let mut asked = asked(parameters)?;
    // The path says which.
    asked.filter.endpoint = None;
    let (filter, page) = (asked.filter.clone(), asked.page);
    list(&app, WebhookQuery::AttemptsOfEndpoint { app: owner, endpoint, filter, page }, asked, deadline).await
}

#[utoipa::path(
    get, path = "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}", tag = "webhooks",
    operation_id = "v1.message-attempt.get",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("msg_id" = String, Path, description = "id or eventId"),
        ("attempt_id" = String, Path)
    ),
    responses(
        (status = 200, description = "the attempt", body = AttemptOut),
        (status = 404, description = "no such application, message or attempt", body = HttpErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn get_attempt(
    State(app): State<App>,
    Owner(owner): Owner,
    At(message): At<MessageRef>,
    At(attempt): At<DeliveryAttemptId>,
    Deadline(deadline): Deadline,
) -> Result<Json<AttemptOut>, Problem> {
    match ask(&app, WebhookQuery::Attempt { app: owner, message, attempt }, deadline).await? {
        WebhookAnswer::Attempt(found) => Ok(Json(out(found, true))),
        _ => Err(unexpected()),
    }
}
