//! Secrets that an endpoint's deliveries are signed with: read by their owner, and rotated. They go out here and nowhere
//! else.

use axum::{Json, extract::State};
use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use bytes::Bytes;
use onceward_core::{
    seams::Entropy,
    webhooks::{
        Action, EndpointRef, RotateSecret, Secret, WebhookAnswer, WebhookQuery,
        bounds::{GRACE_SECONDS_DEFAULT, GRACE_SECONDS_MAX, SECRET_BYTES_DEFAULT},
    },
};
use onceward_shard::OsEntropy;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    call::{At, Call, Owner, ask, change, unexpected},
    error::{HttpErrorBody, ValidationErrorBody},
    fields::Describes,
};
use crate::api::{
    App,
    call::Deadline,
    json::{Field, Judge, object, read_tolerantly},
    problem::{Code, Problem},
};

/// What a secret of this kind begins with (<https://www.standardwebhooks.com>).
const PREFIX: &str = "whsec_";
/// With padding, or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A secret of the caller's. What is wrong with it is told without repeating it.
pub(super) fn read(judge: &mut Judge, field: Field<String>, path: &str) -> Option<Secret> {
    let allowed = "a string: whsec_ and 24 to 75 bytes in base64";
    let text = match field {
        // Whatever it was, it may have been meant as a secret.
        Field::Wrong(_) => {
            judge.refuse(path, format!("must be {allowed}"));
            return None;
        }
        given => judge.required(given, || path.to_owned(), allowed)?,
    };
    let Ok(key) = BASE64.decode(text.strip_prefix(PREFIX).unwrap_or(&text)) else {
        judge.refuse(path, format!("must be {allowed}; other kinds of secrets are not taken"));
        return None;
    };
    Secret::new(Bytes::from(key)).map_err(|error| judge.refuse(path, error.to_string())).ok()
}

/// A new secret.
pub(super) fn draw() -> Secret {
    let bytes = [OsEntropy.nonce(), OsEntropy.nonce()].map(u128::to_le_bytes).concat();
    Secret::new(Bytes::copy_from_slice(&bytes[..SECRET_BYTES_DEFAULT])).expect("it is of the default length")
}

#[derive(ToSchema)]
#[schema(as = EndpointSecretRotateIn)]
pub struct RotateBody {
    /// `whsec_` and 24 to 75 bytes in base64; null or left out: one is drawn.
    #[schema(value_type = String, required = false)]
    key: Field<String>,
    /// How long deliveries are signed with the former secret, too. Default 86400.
    #[schema(value_type = u64, required = false, maximum = 604_800, rename = "gracePeriodSeconds")]
    grace_period_seconds: Field<u64>,
}

object!(RotateBody { key, grace_period_seconds: "gracePeriodSeconds" });

/// Reads and checks the body: the secret, where it has one, and the grace in seconds.
pub fn parse(body: &[u8]) -> Result<(Option<Secret>, u64), Problem> {
    const _: () = assert!(GRACE_SECONDS_MAX == 604_800);
    let mut judge = Judge::default();
    let body: RotateBody = read_tolerantly(body, &mut judge)?;
    let key = Describes::Whole.kept(body.key, |field| read(&mut judge, field, "key"));
    let grace = Describes::Whole.kept(body.grace_period_seconds, |field| {
        let path = || "gracePeriodSeconds".to_owned();
        judge.number(field, path, 0..=GRACE_SECONDS_MAX, "a whole number from 0 to 604800")
    });
    judge.verdict(Some((key, grace.unwrap_or(GRACE_SECONDS_DEFAULT))))
}

#[derive(Serialize, ToSchema)]
#[schema(as = EndpointSecretOut)]
pub struct SecretOut {
    /// `whsec_` and the secret in base64.
    key: String,
}

#[utoipa::path(
    get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret", tag = "webhooks",
    operation_id = "v1.endpoint.get-secret",
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("endpoint_id" = String, Path, description = "id or uid")
    ),
    responses(
        (status = 200, description = "the newest secret", body = SecretOut),
        (status = 404, description = "no such application or endpoint", body = HttpErrorBody),
        (status = 503, description = "no quorum to read from", body = HttpErrorBody),
    )
)]
pub async fn get_secret(
    State(app): State<App>,
    Owner(owner): Owner,
    At(endpoint): At<EndpointRef>,
    Deadline(deadline): Deadline,
) -> Result<Json<SecretOut>, Problem> {
    told(ask(&app, WebhookQuery::Secret { app: owner, endpoint }, deadline).await?)
}

fn told(answer: WebhookAnswer) -> Result<Json<SecretOut>, Problem> {
    match answer {
        WebhookAnswer::Secret(secret) => {
            Ok(Json(SecretOut { key: format!("{PREFIX}{}", STANDARD.encode(secret.reveal())) }))
        }
        _ => Err(unexpected()),
    }
}

/// Deliveries are signed with the new secret from then on, and with the former one, too, while its grace lasts.
#[utoipa::path(
    post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret/rotate", tag = "webhooks",
    operation_id = "v1.endpoint.rotate-secret", request_body = RotateBody,
    params(
        ("app_id" = String, Path, description = "id or uid"),
        ("endpoint_id" = String, Path, description = "id or uid"),
        ("idempotency-key" = Option<String>, Header, description = "1 to 255 bytes; repeated, the call answers alike")
    ),
    responses(
        (status = 200, description = "rotated: the newest secret", body = SecretOut),
        (status = 400, description = "limit_reached: too many former secrets are still good", body = HttpErrorBody),
        (status = 404, description = "no such application or endpoint", body = HttpErrorBody),
        (status = 422, description = "invalid_request, fingerprint_mismatch", body = ValidationErrorBody),
        (status = 503, description = "not applied", body = HttpErrorBody),
        (status = 504, description = "it may or may not apply; repeat it with its idempotency-key", body = HttpErrorBody),
    )
)]
pub async fn rotate_secret(
    State(app): State<App>,
    owner: Owner,
    At(endpoint): At<EndpointRef>,
    Deadline(deadline): Deadline,
    call: Call,
) -> Result<Json<SecretOut>, Problem> {
    let (secret, grace_s) = parse(&call.body)?;
    let request = call.request(owner.scope());
    let secret = secret.unwrap_or_else(draw);
    let newest = WebhookQuery::Secret { app: owner.0.clone(), endpoint: endpoint.clone() };
    let rotate = RotateSecret { app: owner.0, endpoint, secret, grace_us: grace_s * 1_000_000 };
    change(&app, Action::RotateSecret(rotate), request, deadline).await?;
    // Read, as a repeated call did not set what it drew. That it can't be read does not say that nothing was done.
    let read = ask(&app, newest, deadline).await;
    told(read.map_err(|_| Problem::new(Code::OutcomeUnknown, "it is rotated, and could not be read; read it again"))?)
}
