//! What stands of a message for each endpoint that it matched.

use axum::{Json, extract::State};
use onceward_core::webhooks::{DeliveryStatus, DeliveryView, EndpointId, MessageRef, WebhookAnswer, WebhookQuery};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    call::{At, Owner, ask, unexpected},
    endpoint::{EndpointCommonOut, common},
    error::{HttpErrorBody, ValidationErrorBody},
    page::{ListBody, Parameters},
};
use crate::api::{App, call::Deadline, instant::Instant, problem::Problem};

/// A status as Svix numbers and names it.
pub struct Status {
    pub number: u8,
    pub text: &'static str,
}

impl Status {
    pub const SUCCESS: Status = Status { number: 0, text: "success" };
    pub const FAIL: Status = Status { number: 2, text: "fail" };
    /// It will be tried, at its time.
    pub const PENDING: Status = Status { number: 1, text: "pending" };
    pub const SENDING: Status = Status { number: 3, text: "sending" };
}

/// An endpoint that a message matched, and what stands of its delivery.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageEndpointOut)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryOut {
    id: String,
    /// 0 success, 1 pending (its endpoint is disabled), 2 fail, 3 sending.
    status: u8,
    status_text: &'static str,
    /// Of one that is sending.
    #[schema(value_type = Option<String>, format = "date-time")]
    next_attempt: Option<Instant>,
    #[serde(flatten)]
    common: EndpointCommonOut,
}

/// `None`: its endpoint is deleted, and with it all that could be told.
fn out(delivery: DeliveryView) -> Option<DeliveryOut> {
    let status = match delivery.status {
        DeliveryStatus::Succeeded => Status::SUCCESS,
        // It waits for its endpoint to be enabled.
        DeliveryStatus::Pending if delivery.next_attempt_wall_ms.is_none() => Status::PENDING,
        DeliveryStatus::Pending => Status::SENDING,
        // Nothing more will come of it by itself.
        DeliveryStatus::Failed | DeliveryStatus::Withheld => Status::FAIL,
    };
    Some(DeliveryOut {
        id: delivery.endpoint_id.to_string(),
        status: status.number,
        status_text: status.text,
        next_attempt: delivery.next_attempt_wall_ms.map(Instant::of_wall_ms),
        common: common(delivery.endpoint?),
    })
}

/// By the endpoints' age. A message that came while an endpoint was disabled is `fail` there: nothing will come of it by
/// itself.
#[utoipa::path(
    get, path = "/api/v1/app/{app_id}/msg/{msg_id}/endpoint", tag = "webhooks",
    operation_id = "v1.message-attempt.list-attempted-destinations",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("msg_id" = String, Path, description = "id or eventId"),
        ("limit" = Option<u32>, Query, description = "1 to 250, default 50"),
        ("iterator" = Option<String>, Query, description = "iterator or prevIterator of another page")
    ),
    responses(
        (status = 200, description = "a page", body = ListBody<DeliveryOut>),
        (status = 404, description = "no such application or message", body = HttpErrorBody),
        (status = 422, description = "invalid_request", body = ValidationErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn list_deliveries(
    State(app): State<App>,
    Owner(owner): Owner,
    At(message): At<MessageRef>,
    Deadline(deadline): Deadline,
    mut parameters: Parameters,
) -> Result<Json<ListBody<DeliveryOut>>, Problem> {
    let page = parameters.page(false, |text| EndpointId::parse(text).map(|id| id.0));
    let page = parameters.verdict(page)?;
    match ask(&app, WebhookQuery::Deliveries { app: owner, message, page }, deadline).await? {
        WebhookAnswer::Deliveries(found) => {
            let text = |id| EndpointId(id).to_string();
            let list = ListBody::new(found, &page, text, |delivery| delivery.endpoint_id.0, out);
            Ok(Json(ListBody {
                data: list.data.into_iter().flatten().collect(),
                iterator: list.iterator,
                prev_iterator: list.prev_iterator,
                done: list.done,
            }))
        }
        _ => Err(unexpected()),
    }
}
