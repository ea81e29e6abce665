//! `GET /v1/idempotency/{account}`: an account's keys, page by page, in the order of their bytes.

use axum::{
    Json,
    extract::{Query, State},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use onceward_core::idempotency::{
    Key, RecordState, RecordSummary,
    bounds::{PAGE_DEFAULT, PAGE_MAX},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{COMPLETED, IN_PROGRESS, INDETERMINATE, Instant, account, state_name};
use crate::api::{
    App,
    call::{Caller, Deadline, PathSegments},
    json::{DUPLICATE, Field, Judge, shown},
    problem::{Problem, ProblemMembers},
};

/// The first byte of an iterator; one of another version is refused.
const ITERATOR_VERSION: u8 = 1;

/// Which page of which list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    state: Option<RecordState>,
    limit: Option<u32>,
    after: Option<Key>,
}

/// Reads the query's parameters.
fn page(judge: &mut Judge, parameters: Vec<(String, String)>) -> Page {
    let mut page = Page::default();
    let mut seen: Vec<&str> = Vec::new();
    for (name, value) in &parameters {
        if seen.contains(&name.as_str()) {
            judge.refuse(shown(name), DUPLICATE);
            continue;
        }
        match name.as_str() {
            "state" => page.state = state(judge, value),
            "limit" => page.limit = limit(judge, value),
            "iterator" => page.after = after(judge, value),
            unknown => {
                judge.refuse(shown(unknown), "is unknown; known are state, limit, iterator");
                continue;
            }
        }
        seen.push(name);
    }
    page
}

fn state(judge: &mut Judge, value: &str) -> Option<RecordState> {
    match value {
        IN_PROGRESS => return Some(RecordState::InProgress),
        COMPLETED => return Some(RecordState::Completed),
        INDETERMINATE => return Some(RecordState::Indeterminate),
        _ => {}
    }
    let allowed = "\"in_progress\", \"completed\" or \"indeterminate\"";
    judge.refuse("state", format!("must be {allowed}, not {:?}", shown(value)));
    None
}

fn limit(judge: &mut Judge, value: &str) -> Option<u32> {
    const _: () = assert!(PAGE_MAX == 250);
    // `parse` would take a sign, too.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let limit = value.parse().ok().filter(|limit| digits && (1..=PAGE_MAX).contains(limit));
    if limit.is_none() {
        judge.refuse("limit", format!("must be a whole number from 1 to 250, not {:?}", shown(value)));
    }
    limit
}

fn after(judge: &mut Judge, value: &str) -> Option<Key> {
    let bytes = URL_SAFE_NO_PAD.decode(value).ok();
    let key = bytes.as_deref().and_then(|bytes| match bytes {
        [ITERATOR_VERSION, key @ ..] => std::str::from_utf8(key).ok(),
        _ => None,
    });
    let key = key.and_then(|key| Key::parse(key).ok());
    if key.is_none() {
        judge.refuse("iterator", "must be what an earlier page of this list gave as its iterator");
    }
    key
}

fn iterator(after: &Key) -> String {
    URL_SAFE_NO_PAD.encode([&[ITERATOR_VERSION], after.to_string().as_bytes()].concat())
}

#[derive(Serialize, ToSchema)]
#[schema(as = IdempotencyKeys)]
pub struct RecordsBody {
    /// May be fewer than `limit`, or none, though the list goes on.
    data: Vec<RecordSummaryBody>,
    /// For the next page; null at the end.
    iterator: Option<String>,
    done: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = IdempotencyKeySummary)]
pub struct RecordSummaryBody {
    /// In quotes where the key itself begins with one: as it stands here, it names the key again.
    key: String,
    /// `in_progress`, `completed` or `indeterminate`.
    state: &'static str,
    #[schema(value_type = String, format = "date-time")]
    created_at: Instant,
    /// Not of a completed key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    lease_expires_at: Option<Instant>,
    /// Of a completed key, like the one below.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    completed_at: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    expires_at: Option<Instant>,
}

fn summary(record: RecordSummary) -> RecordSummaryBody {
    RecordSummaryBody {
        key: record.key.to_string(),
        state: state_name(record.state),
        created_at: Instant::of_wall_ms(record.created_wall_ms),
        lease_expires_at: record.lease_expires_wall_ms.map(Instant::of_wall_ms),
        completed_at: record.completed_wall_ms.map(Instant::of_wall_ms),
        expires_at: record.expires_wall_ms.map(Instant::of_wall_ms),
    }
}

/// Each page is read by itself: keys that come and go between two pages may or may not be listed. An account that is
/// named like an operation (`begin`) is listed with a letter of it percent-encoded (`%62egin`).
#[utoipa::path(
    get, path = "/v1/idempotency/{account}", tag = "idempotency",
    params(
        ("account" = String, Path, description = "percent-encoded"),
        ("state" = Option<String>, Query, description = "in_progress, completed or indeterminate; default: all"),
        ("limit" = Option<u32>, Query, description = "1 to 250, default 50"),
        ("iterator" = Option<String>, Query, description = "of the page before")
    ),
    responses(
        (status = 200, description = "a page", body = RecordsBody),
        (status = 400, description = "invalid_request", body = ProblemMembers),
        (status = 503, description = "no quorum to read from", body = ProblemMembers),
    )
)]
pub async fn list_keys(
    State(app): State<App>,
    caller: Caller,
    PathSegments(name): PathSegments<String>,
    Deadline(deadline): Deadline,
    query: Result<Query<Vec<(String, String)>>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<RecordsBody>, Problem> {
    let mut judge = Judge::default();
    let account = account(&mut judge, &caller, Field::Given(name))?;
    let Query(parameters) = query.map_err(|_| Problem::invalid("the query cannot be read"))?;
    let page = page(&mut judge, parameters);
    let account = judge.verdict(account)?;
    let limit = page.limit.unwrap_or(PAGE_DEFAULT);
    let records = app.service.records(account, page.state, page.after, limit, deadline).await?;
    Ok(Json(RecordsBody {
        iterator: records.next.as_ref().map(iterator),
        done: records.next.is_none(),
        data: records.records.into_iter().map(summary).collect(),
    }))
}
