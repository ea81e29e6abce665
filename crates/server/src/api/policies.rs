//! `/v1/policies`: writing, reading and deleting what limits allow.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use onceward_core::{
    cluster::ShardId,
    limits::{
        Algorithm, Escrow, FieldError, OnUnavailable, Override, OverrideDraft, Policy, PolicyDraft, PolicyName,
        PolicySpec,
    },
};
use serde::{Serialize, de::MapAccess};
use tracing::info;
use utoipa::ToSchema;

use super::{
    App,
    call::{Deadline, JsonBody, PathSegments},
    json::{DUPLICATE, Field, Judge, Object, Wanted, object, read_object, shown},
    problem::{Code, Problem, ProblemMembers, policy_not_found},
};
use onceward_shard::PolicyWrite;

#[derive(ToSchema)]
#[schema(as = PolicyRequest)]
pub struct PolicyBody {
    /// `token_bucket` (default) or `sliding_window`.
    #[schema(value_type = String, required = false)]
    algorithm: Field<String>,
    /// `N/unit` or `N/Kunit`, units ms s min h d: `2/s`, `5000/15min`.
    #[schema(value_type = String)]
    rate: Field<String>,
    /// Token bucket only: the capacity; default N of the rate.
    #[schema(value_type = u64, minimum = 1, maximum = 1_000_000_000_000_u64, required = false)]
    burst: Field<u64>,
    /// `local` (default), `allow` or `deny`.
    #[schema(value_type = String, required = false)]
    on_unavailable: Field<String>,
    /// Default 250.
    #[schema(value_type = u64, minimum = 10, maximum = 2000, required = false)]
    timeout_ms: Field<u64>,
    /// Keys, or prefixes ending in `*`, that are always allowed and never counted.
    #[schema(value_type = Vec<String>, required = false)]
    exempt: Field<Vec<Field<String>>>,
    /// By key: `{"rate", "burst"}` or `"deny"`.
    #[schema(value_type = Object, required = false)]
    overrides: Field<Overrides>,
    /// `auto` (default) or `off`.
    #[schema(value_type = String, required = false)]
    escrow: Field<String>,
}

struct LimitBody {
    rate: Field<String>,
    burst: Field<u64>,
}

enum OverrideBody {
    Word(String),
    Limit(Object<LimitBody>),
}

/// The members of `overrides`, in the order they came in.
#[derive(Default)]
struct Overrides(Vec<(String, Field<OverrideBody>)>);

object!(PolicyBody { algorithm, rate, burst, on_unavailable, timeout_ms, exempt, overrides, escrow });
object!(LimitBody { rate, burst });

impl<'de> Wanted<'de> for OverrideBody {
    const WHAT: &'static str = "\"deny\" or an object with rate and burst";

    fn from_text(text: &str) -> Option<Self> {
        Some(OverrideBody::Word(text.to_owned()))
    }

    fn from_object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        Ok(Object::from_object(object)?.map(OverrideBody::Limit))
    }
}

impl<'de> Wanted<'de> for Overrides {
    const WHAT: &'static str = "an object of overrides by key";

    fn from_object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        let mut overrides = Vec::new();
        while let Some(member) = object.next_entry()? {
            overrides.push(member);
        }
        Ok(Some(Overrides(overrides)))
    }
}

/// Reads and checks the body.
pub fn parse(body: &[u8]) -> Result<PolicySpec, Problem> {
    let mut judge = Judge::default();
    let body: PolicyBody = read_object(body, &mut judge)?;
    let path = |name: &'static str| move || name.to_owned();
    let draft = PolicyDraft {
        algorithm: judge.optional(body.algorithm, path("algorithm"), "\"token_bucket\" or \"sliding_window\""),
        rate: judge.optional(body.rate, path("rate"), "a string like \"2/s\" or \"5000/15min\""),
        burst: judge.optional(body.burst, path("burst"), "a whole number from 1 to 1000000000000"),
        on_unavailable: judge.optional(body.on_unavailable, path("on_unavailable"), "\"local\", \"allow\" or \"deny\""),
        timeout_ms: judge.optional(body.timeout_ms, path("timeout_ms"), "a whole number from 10 to 2000"),
        exempt: exempt(&mut judge, body.exempt),
        overrides: overrides(&mut judge, body.overrides),
        escrow: judge.optional(body.escrow, path("escrow"), "\"auto\" or \"off\""),
    };
    judge.verdict(Some(draft))?.check().map_err(Problem::invalid_fields)
}

fn exempt(judge: &mut Judge, field: Field<Vec<Field<String>>>) -> Vec<String> {
    let list = judge.optional(field, || "exempt".to_owned(), "a list of keys").unwrap_or_default();
    let keys = list.into_iter().enumerate();
    keys.filter_map(|(at, key)| judge.required(key, || format!("exempt[{at}]"), "a key, or a prefix ending in *"))
        .collect()
}

fn overrides(judge: &mut Judge, field: Field<Overrides>) -> BTreeMap<String, OverrideDraft> {
    let Overrides(given) = judge.optional(field, || "overrides".to_owned(), Overrides::WHAT).unwrap_or_default();
    let mut drafts = BTreeMap::new();
    for (key, value) in given {
        let at = format!("overrides[{:?}]", shown(&key));
        let Some(value) = judge.required(value, || at.clone(), OverrideBody::WHAT) else { continue };
        let draft = match value {
            OverrideBody::Word(word) => OverrideDraft::Word(word),
            OverrideBody::Limit(limit) => {
                let LimitBody { rate, burst } = judge.object(limit, &format!("{at}."));
                let path = |name: &'static str| {
                    let at = &at;
                    move || format!("{at}.{name}")
                };
                OverrideDraft::Limit {
                    rate: judge.optional(rate, path("rate"), "a string like \"2/s\""),
                    burst: judge.optional(burst, path("burst"), "a whole number from 1 to 1000000000000"),
                }
            }
        };
        if drafts.insert(key, draft).is_some() {
            judge.refuse(at, DUPLICATE);
        }
    }
    drafts
}

fn name(text: &str) -> Result<PolicyName, Problem> {
    PolicyName::parse(text).map_err(|error| {
        Problem::invalid_fields(vec![FieldError { field: "policy".to_owned(), message: error.to_string() }])
    })
}

/// A policy as it is stored.
#[derive(Serialize, ToSchema)]
#[schema(as = Policy)]
pub struct PolicyAnswerBody {
    name: String,
    revision: u64,
    algorithm: &'static str,
    rate: String,
    /// Token bucket only.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    on_unavailable: &'static str,
    timeout_ms: u32,
    exempt: Vec<String>,
    #[schema(value_type = Object)]
    overrides: BTreeMap<String, OverrideAnswerBody>,
    escrow: &'static str,
    /// Shards that have no quorum now and will take the policy when they do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pending_shards: Vec<u16>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum OverrideAnswerBody {
    Deny(&'static str),
    Limit {
        rate: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        burst: Option<u64>,
    },
}

#[derive(Serialize, ToSchema)]
#[schema(as = Policies)]
pub struct PoliciesAnswerBody {
    policies: Vec<PolicyAnswerBody>,
}

/// A deletion that some shards don't know of yet.
#[derive(Serialize, ToSchema)]
#[schema(as = PolicyDeletion)]
pub struct DeletionAnswerBody {
    pending_shards: Vec<u16>,
}

fn answer_body(policy: Policy, pending_shards: &[ShardId]) -> PolicyAnswerBody {
    let Policy { name, revision, spec, .. } = policy;
    let burst = |burst: u64| (spec.algorithm == Algorithm::TokenBucket).then_some(burst);
    let override_body = |value: Override| match value {
        Override::Deny => OverrideAnswerBody::Deny("deny"),
        Override::Limit { rate, burst: capacity } => {
            OverrideAnswerBody::Limit { rate: rate.to_string(), burst: burst(capacity) }
        }
    };
    PolicyAnswerBody {
        name: name.to_string(),
        revision,
        algorithm: match spec.algorithm {
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::SlidingWindow => "sliding_window",
        },
        rate: spec.rate.to_string(),
        burst: burst(spec.burst),
        on_unavailable: match spec.on_unavailable {
            OnUnavailable::Local => "local",
            OnUnavailable::Allow => "allow",
            OnUnavailable::Deny => "deny",
        },
        timeout_ms: spec.timeout_ms,
        exempt: spec.exempt.patterns().to_vec(),
        overrides: spec.overrides.iter().map(|(key, value)| (key.clone(), override_body(*value))).collect(),
        escrow: match spec.escrow {
            Escrow::Auto => "auto",
            Escrow::Off => "off",
        },
        pending_shards: numbers(pending_shards),
    }
}

fn numbers(shards: &[ShardId]) -> Vec<u16> {
    shards.iter().map(|shard| shard.0).collect()
}

/// Creates or replaces a policy. A check begun after the 200 or 201 uses it, on any node.
#[utoipa::path(
    put, path = "/v1/policies/{policy}", tag = "policies", request_body = PolicyBody,
    params(("policy" = String, Path, description = "[a-z0-9][a-z0-9_.-]{0,62}")),
    responses(
        (status = 200, description = "replaced", body = PolicyAnswerBody),
        (status = 201, description = "new", body = PolicyAnswerBody),
        (status = 202, description = "stored; pending_shards have no quorum to take it now", body = PolicyAnswerBody),
        (status = 400, description = "invalid_request", body = ProblemMembers),
        (status = 413, description = "too many policies, or too much of them in all", body = ProblemMembers),
        (status = 503, description = "not applied", body = ProblemMembers),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = ProblemMembers),
    )
)]
pub async fn put_policy(
    State(app): State<App>,
    Deadline(deadline): Deadline,
    PathSegments(policy): PathSegments<String>,
    JsonBody(body): JsonBody,
) -> Result<Response, Problem> {
    let name = name(&policy)?;
    let spec = parse(&body)?;
    match app.service.put_policy(name, spec, deadline).await? {
        PolicyWrite::Stored { policy, created, pending_shards } => {
            info!(policy = %policy.name, revision = policy.revision, "policy stored");
            let status = match (pending_shards.is_empty(), created) {
                (false, _) => StatusCode::ACCEPTED,
                (true, true) => StatusCode::CREATED,
                (true, false) => StatusCode::OK,
            };
            Ok((status, Json(answer_body(policy, &pending_shards))).into_response())
        }
        PolicyWrite::LimitReached { what, max } => {
            Err(Problem::new(Code::TooLarge, format!("a cluster holds at most {max} {what}; nothing was stored")))
        }
    }
}

#[utoipa::path(
    get, path = "/v1/policies/{policy}", tag = "policies", params(("policy" = String, Path)),
    responses(
        (status = 200, description = "the policy", body = PolicyAnswerBody),
        (status = 404, description = "no such policy", body = ProblemMembers),
        (status = 503, description = "no quorum to read from", body = ProblemMembers),
    )
)]
pub async fn get_policy(
    State(app): State<App>,
    Deadline(deadline): Deadline,
    PathSegments(policy): PathSegments<String>,
) -> Result<Json<PolicyAnswerBody>, Problem> {
    let name = name(&policy)?;
    match app.service.policy(name, deadline).await? {
        Some(policy) => Ok(Json(answer_body(policy, &[]))),
        None => Err(policy_not_found(&policy)),
    }
}

#[utoipa::path(
    get, path = "/v1/policies", tag = "policies",
    responses(
        (status = 200, description = "all policies, by name", body = PoliciesAnswerBody),
        (status = 503, description = "no quorum to read from", body = ProblemMembers),
    )
)]
pub async fn list_policies(
    State(app): State<App>,
    Deadline(deadline): Deadline,
) -> Result<Json<PoliciesAnswerBody>, Problem> {
    let policies = app.service.policies(deadline).await?;
    Ok(Json(PoliciesAnswerBody { policies: policies.into_iter().map(|policy| answer_body(policy, &[])).collect() }))
}

#[utoipa::path(
    delete, path = "/v1/policies/{policy}", tag = "policies", params(("policy" = String, Path)),
    responses(
        (status = 204, description = "deleted"),
        (status = 202, description = "deleted; pending_shards have no quorum to learn it now", body = DeletionAnswerBody),
        (status = 404, description = "no such policy", body = ProblemMembers),
        (status = 503, description = "not applied", body = ProblemMembers),
        (status = 504, description = "it may or may not apply; repeating it is safe", body = ProblemMembers),
    )
)]
pub async fn delete_policy(
    State(app): State<App>,
    Deadline(deadline): Deadline,
    PathSegments(policy): PathSegments<String>,
) -> Result<Response, Problem> {
    let name = name(&policy)?;
    let Some(pending_shards) = app.service.delete_policy(name, deadline).await? else {
        return Err(policy_not_found(&policy));
    };
    info!(policy, "policy deleted");
    if pending_shards.is_empty() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok((StatusCode::ACCEPTED, Json(DeletionAnswerBody { pending_shards: numbers(&pending_shards) })).into_response())
}
