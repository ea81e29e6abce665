//! The `Idempotency-Key` header of draft-ietf-httpapi-idempotency-key-header: a string as RFC 8941 writes it
//! (`"8e03978e"`), or the same without its quotes, as most clients send it. Both name the same key.

use axum::http::{HeaderMap, HeaderValue};

pub const NAME: &str = "idempotency-key";

/// What Onceward takes.
const BYTES_MAX: usize = 255;

/// A key without its quotes: 1–255 printable ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("there is none")]
    Missing,
    #[error("send one key, not several")]
    Several,
    #[error("only printable ASCII characters may stand in a key")]
    Characters,
    #[error("what begins with a quote must be a whole string: \"…\" with \\\" and \\\\ as its only escapes")]
    Quoting,
    #[error("a key is 1 to 255 characters long")]
    Length,
}

impl IdempotencyKey {
    pub fn of(headers: &HeaderMap) -> Result<IdempotencyKey, KeyError> {
        let mut values = headers.get_all(NAME).iter();
        let value = values.next().ok_or(KeyError::Missing)?;
        if values.next().is_some() {
            return Err(KeyError::Several);
        }
        IdempotencyKey::parse(value)
    }

    fn parse(value: &HeaderValue) -> Result<IdempotencyKey, KeyError> {
        let text = value.to_str().map_err(|_| KeyError::Characters)?.trim_matches([' ', '\t']);
        if text.contains('\t') {
            return Err(KeyError::Characters);
        }
        let key = match text.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => text.to_owned(),
        };
        if key.is_empty() || key.len() > BYTES_MAX {
            return Err(KeyError::Length);
        }
        Ok(IdempotencyKey(key))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The quoted form. Onceward takes both forms; a bare key that begins with a quote could be taken for a quoted one.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// The text of a string behind its opening quote.
fn unquote(quoted: &str) -> Result<String, KeyError> {
    let mut key = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    loop {
        match chars.next().ok_or(KeyError::Quoting)? {
            '"' if chars.as_str().is_empty() => return Ok(key),
            '"' => return Err(KeyError::Quoting),
            '\\' => match chars.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => return Err(KeyError::Quoting),
            },
            plain => key.push(plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &'static str) -> Result<String, KeyError> {
        IdempotencyKey::parse(&HeaderValue::from_static(text)).map(|key| key.0)
    }

    #[test]
    fn quoted_and_bare_name_the_same_key() {
        assert_eq!(key("8e03978e"), key("\"8e03978e\""));
        assert_eq!(key(r#""a \"b\" \\""#), Ok(r#"a "b" \"#.to_owned()));
        let awkward = IdempotencyKey(r#""a"\"#.to_owned());
        let again = IdempotencyKey::parse(&HeaderValue::from_str(&awkward.quoted()).unwrap());
        assert_eq!(again, Ok(awkward));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for half in ["\"", "\"a", "\"a\"b", "\"a\\", "\"a\\b\"", "\"a\";x=1"] {
            assert_eq!(key(half), Err(KeyError::Quoting), "{half}");
        }
        assert_eq!(key(""), Err(KeyError::Length));
        assert_eq!(key("\"\""), Err(KeyError::Length));
        assert_eq!(key("a\tb"), Err(KeyError::Characters));
        let long = HeaderValue::from_str(&"a".repeat(BYTES_MAX + 1)).unwrap();
        assert_eq!(IdempotencyKey::parse(&long), Err(KeyError::Length));
        let mut two = HeaderMap::new();
        assert_eq!(IdempotencyKey::of(&two), Err(KeyError::Missing));
        two.append(NAME, HeaderValue::from_static("a"));
        two.append(NAME, HeaderValue::from_static("b"));
        assert_eq!(IdempotencyKey::of(&two), Err(KeyError::Several));
    }
}
