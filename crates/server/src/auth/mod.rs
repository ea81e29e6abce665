//! Who may do what: bearer tokens, their roles, and a limit on wrong guesses.
//!
//! In go a request's headers, its client's address and the right that its operation needs; out comes yes or a problem.
//! Secrets are kept as digests only, and compared without telling by the time taken where they differ.

mod attempts;

use std::{net::IpAddr, time::Instant};

use arc_swap::ArcSwapOption;
use axum::http::{HeaderMap, header};
use onceward_core::idempotency::Account;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;
use tracing::{Span, warn};

use crate::{
    api::problem::{Code, Problem},
    settings::{AuthSettings, Role},
};
use attempts::Attempts;

/// What an operation needs of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Nothing, not even a token.
    Open,
    /// Reading metrics.
    Metrics,
    /// Deciding by limits and idempotency keys, publishing, and reading what belongs to nobody in particular.
    Use,
    /// Filling buckets, which belong to no account.
    Reset,
    /// Reading policies.
    ReadPolicies,
    /// Changing what all callers share: policies, event types, operational endpoints, nodes. And deciding for them what
    /// became of a key.
    Administer,
}

/// SHA-256 of a token.
type Digest = [u8; 32];

/// A token as it is kept.
struct Token {
    name: String,
    digest: Digest,
    role: Role,
    /// The token is for this account alone.
    account: Option<Account>,
}

impl Token {
    fn may(&self, right: Right) -> bool {
        match self.role {
            Role::Admin => true,
            Role::Metrics => matches!(right, Right::Open | Right::Metrics),
            Role::Service => match right {
                Right::Open | Right::Use => true,
                Right::ReadPolicies | Right::Reset => self.account.is_none(),
                Right::Metrics | Right::Administer => false,
            },
        }
    }
}

/// Decides about every request; tokens are exchanged while it runs.
pub struct Doorkeeper {
    /// `None`: no tokens are configured, everything is allowed (the settings allow that on loopback only).
    tokens: ArcSwapOption<Vec<Token>>,
    attempts: Attempts,
}

impl Doorkeeper {
    pub fn new(settings: &AuthSettings) -> Doorkeeper {
        let doorkeeper = Doorkeeper { tokens: ArcSwapOption::empty(), attempts: Attempts::default() };
        doorkeeper.reload(settings);
        doorkeeper
    }

    /// Takes over the tokens of checked settings; requests that come from now on are judged by them. False: there are
    /// none where there were some, and those stay, as a file caught half-written must not open the doors.
    pub fn reload(&self, settings: &AuthSettings) -> bool {
        if settings.tokens.is_empty() {
            return self.tokens.load().is_none();
        }
        let tokens = settings.tokens.iter().map(|token| Token {
            name: token.name.clone(),
            digest: digest(
                token.secret.as_ref().expect("checked settings have a secret for each token").reveal().as_bytes(),
            ),
            role: token.role.expect("checked settings have a role for each token"),
            account: token
                .account
                .as_deref()
                .map(|name| Account::parse(name).expect("checked settings have valid accounts")),
        });
        self.tokens.store(Some(tokens.collect::<Vec<Token>>().into()));
        true
    }

    /// Whether a request may do what needs `right`, and the one account for which alone, if there is one. Log lines about
    /// it name the token from then on.
    pub fn admit(&self, headers: &HeaderMap, client: IpAddr, right: Right) -> Result<Option<Account>, Problem> {
        if right == Right::Open {
            return Ok(None);
        }
        let tokens = self.tokens.load();
        let Some(tokens) = tokens.as_deref() else { return Ok(None) };
        let Some(presented) = bearer(headers) else {
            return Err(Problem::new(Code::Unauthorized, "this needs a token: Authorization: Bearer TOKEN"));
        };
        let presented = digest(presented);
        let token = find(tokens, &presented);
        let now = Instant::now();
        if let Some(wait) = self.attempts.blocked(client, now) {
            // Right or wrong, a token that is not known here gets the same answer: else guessing could go on.
            let known = self.attempts.is_known(client, presented);
            if !known || token.is_none() {
                return Err(Problem {
                    retry_after_ms: Some(wait.as_millis() as u64),
                    ..Problem::new(Code::RateLimited, "too many wrong tokens from this address")
                });
            }
        }
        let Some(token) = token else {
            if self.attempts.failed(client, now) {
                warn!(%client, "too many wrong tokens from this address: those not known of it are refused for a while");
            }
            return Err(Problem::new(Code::Unauthorized, "the token is wrong"));
        };
        self.attempts.succeeded(client, presented);
        Span::current().record("token", &token.name);
        if token.may(right) {
            Ok(token.account.clone())
        } else {
            Err(Problem::new(Code::Forbidden, "this token lacks the right to do this"))
        }
    }
}

/// Compares every token, whichever fits, so that the time says nothing.
fn find<'a>(tokens: &'a [Token], presented: &Digest) -> Option<&'a Token> {
    tokens.iter().fold(None, |found, token| if bool::from(token.digest.ct_eq(presented)) { Some(token) } else { found })
}

fn digest(secret: &[u8]) -> Digest {
    Sha256::digest(secret).into()
}

/// The token of `Authorization: Bearer TOKEN`; of two such headers none counts.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::settings::{Secret, TokenSettings};

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn token(name: &str, role: Role, account: Option<&str>) -> TokenSettings {
        TokenSettings {
            name: name.to_owned(),
            secret: Some(Secret::new(format!("secret-of-{name}"))),
            role: Some(role),
            account: account.map(str::to_owned),
            ..TokenSettings::default()
        }
    }

    fn doorkeeper() -> Doorkeeper {
        let tokens = vec![
            token("admin", Role::Admin, None),
            token("service", Role::Service, None),
            token("tenant", Role::Service, Some("tenant-1")),
            token("metrics", Role::Metrics, None),
        ];
        Doorkeeper::new(&AuthSettings { tokens })
    }

    fn with(authorization: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(authorization).expect("valid"));
        headers
    }

    fn code<T>(result: Result<T, Problem>) -> Option<Code> {
        result.err().map(|problem| problem.code)
    }

    #[test]
    fn each_role_has_its_rights_and_no_others() {
        use Right::*;
        let doorkeeper = doorkeeper();
        let rights = [Open, Metrics, Use, Reset, ReadPolicies, Administer];
        for (name, allowed) in [
            ("admin", &rights[..]),
            ("service", &[Open, Use, Reset, ReadPolicies]),
            ("tenant", &[Open, Use]),
            ("metrics", &[Open, Metrics]),
        ] {
            let headers = with(&format!("Bearer secret-of-{name}"));
            for right in rights {
                let expected = (!allowed.contains(&right)).then_some(Code::Forbidden);
                assert_eq!(code(doorkeeper.admit(&headers, CLIENT, right)), expected, "{name} {right:?}");
            }
        }
    }

    #[test]
    fn a_missing_or_wrong_token_is_unauthorized() {
        let doorkeeper = doorkeeper();
        let wrong = [
            "Bearer ",
            "Bearer",
            "Basic c2VjcmV0",
            "Bearer secret-of-admi",
            "Bearer secret-of-adminn",
            "secret-of-admin",
        ];
        for authorization in wrong {
            let result = doorkeeper.admit(&with(authorization), CLIENT, Right::Use);
            assert_eq!(code(result), Some(Code::Unauthorized), "{authorization}");
        }
        assert_eq!(code(doorkeeper.admit(&HeaderMap::new(), CLIENT, Right::Use)), Some(Code::Unauthorized));
        let mut twice = with("Bearer secret-of-admin");
        twice.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret-of-admin"));
        assert_eq!(code(doorkeeper.admit(&twice, CLIENT, Right::Use)), Some(Code::Unauthorized));
    }

    #[test]
    fn without_tokens_everything_is_allowed_and_a_reload_changes_that() {
        let doorkeeper = Doorkeeper::new(&AuthSettings::default());
        assert_eq!(doorkeeper.admit(&HeaderMap::new(), CLIENT, Right::Administer), Ok(None));
        assert!(doorkeeper.reload(&AuthSettings { tokens: vec![token("admin", Role::Admin, None)] }));
        assert_eq!(code(doorkeeper.admit(&HeaderMap::new(), CLIENT, Right::Administer)), Some(Code::Unauthorized));
        // But it never changes it back.
        assert!(!doorkeeper.reload(&AuthSettings::default()));
        assert_eq!(code(doorkeeper.admit(&HeaderMap::new(), CLIENT, Right::Administer)), Some(Code::Unauthorized));
        assert_eq!(doorkeeper.admit(&with("bearer secret-of-admin"), CLIENT, Right::Administer), Ok(None));
    }

    #[test]
    fn an_address_that_keeps_guessing_is_refused_unheard_and_others_are_not() {
        let doorkeeper = doorkeeper();
        let codes = (0..200).map(|_| code(doorkeeper.admit(&with("Bearer guess-guess"), CLIENT, Right::Use)));
        assert_eq!(codes.last(), Some(Some(Code::RateLimited)));
        let right = with("Bearer secret-of-admin");
        assert_eq!(code(doorkeeper.admit(&right, CLIENT, Right::Use)), Some(Code::RateLimited));
        assert_eq!(code(doorkeeper.admit(&right, CLIENT, Right::Open)), None);
        assert_eq!(code(doorkeeper.admit(&HeaderMap::new(), CLIENT, Right::Use)), Some(Code::Unauthorized));
        let other = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(code(doorkeeper.admit(&right, other, Right::Use)), None);
    }

    #[test]
    fn who_guesses_locks_out_nobody_who_is_known_at_the_same_address() {
        let doorkeeper = doorkeeper();
        let service = with("Bearer secret-of-service");
        assert_eq!(code(doorkeeper.admit(&service, CLIENT, Right::Use)), None);
        for _ in 0..200 {
            let _ = doorkeeper.admit(&with("Bearer guess-guess"), CLIENT, Right::Use);
        }
        assert_eq!(code(doorkeeper.admit(&service, CLIENT, Right::Use)), None);
        assert_eq!(code(doorkeeper.admit(&service, CLIENT, Right::Administer)), Some(Code::Forbidden));
        // A token that was taken away is wrong like any other.
        doorkeeper.reload(&AuthSettings { tokens: vec![token("admin", Role::Admin, None)] });
        assert_eq!(code(doorkeeper.admit(&service, CLIENT, Right::Use)), Some(Code::RateLimited));
    }
}
