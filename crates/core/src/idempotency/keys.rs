//! Names: the account and the key of a record, as callers write them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bounds::{ACCOUNT_BYTES_MAX, KEY_BYTES_MAX};

/// On whose behalf a call is made. Accounts never see each other's records.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Account(String);

/// What the caller named its request. The bare form; [`Key::parse`] also takes the quoted one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Key(String);

/// Completes "the account …" or "the key …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("must be 1 to 255 bytes long, not {0}")]
    Length(usize),
    #[error("must not contain control characters")]
    Control,
    #[error("begins with a quote, so it must be a whole RFC 8941 string: \"…\" with \\\" and \\\\ as its only escapes")]
    Quoting,
}

fn check(text: &str, bytes_max: usize) -> Result<(), NameError> {
    if text.is_empty() || text.len() > bytes_max {
        return Err(NameError::Length(text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err(NameError::Control);
    }
    Ok(())
}

impl Account {
    pub fn parse(text: &str) -> Result<Account, NameError> {
        const _: () = assert!(ACCOUNT_BYTES_MAX == 255);
        check(text, ACCOUNT_BYTES_MAX)?;
        Ok(Account(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Key {
    /// Takes the bare form, and the string form of RFC 8941 (section 3.3.3) in which the `Idempotency-Key` header comes:
    /// `abc` and `"abc"` are the same key.
    pub fn parse(text: &str) -> Result<Key, NameError> {
        const _: () = assert!(KEY_BYTES_MAX == 255);
        let bare = match text.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => text.to_owned(),
        };
        check(&bare, KEY_BYTES_MAX)?;
        Ok(Key(bare))
    }

    /// The bare form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A key read from a row.
    pub(super) fn stored(bare: &str) -> Key {
        Key(bare.to_owned())
    }
}

/// What another node sends was checked there, and is checked again: a row's key tells an account's length in one byte.
impl TryFrom<String> for Account {
    type Error = NameError;

    fn try_from(text: String) -> Result<Account, NameError> {
        check(&text, ACCOUNT_BYTES_MAX)?;
        Ok(Account(text))
    }
}

/// From the bare form.
impl TryFrom<String> for Key {
    type Error = NameError;

    fn try_from(bare: String) -> Result<Key, NameError> {
        check(&bare, KEY_BYTES_MAX)?;
        Ok(Key(bare))
    }
}

/// Writes a form that [`Key::parse`] reads as this key again: quoted where the bare one begins with a quote.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.starts_with('"') {
            write!(f, "\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""))
        } else {
            f.write_str(&self.0)
        }
    }
}

/// The text of an RFC 8941 string behind its opening quote.
fn unquote(quoted: &str) -> Result<String, NameError> {
    let mut bare = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    while let Some(char) = chars.next() {
        match char {
            '"' if chars.as_str().is_empty() => return Ok(bare),
            '\\' => match chars.next() {
                Some(escaped @ ('"' | '\\')) => bare.push(escaped),
                _ => return Err(NameError::Quoting),
            },
            '"' => return Err(NameError::Quoting),
            other => bare.push(other),
        }
    }
    Err(NameError::Quoting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Result<String, NameError> {
        Key::parse(text).map(|key| key.as_str().to_owned())
    }

    #[test]
    fn the_quoted_and_the_bare_form_name_the_same_key() {
        assert_eq!(key("abc"), key("\"abc\""));
        assert_eq!(key(r#""a\"b\\c""#), Ok(r#"a"b\c"#.to_owned()));
        assert_eq!(key(r#"a"b\c"#), Ok(r#"a"b\c"#.to_owned()), "a bare key is taken as it is");
        for wrong in ["\"abc", "\"", r#""a"b""#, r#""a\b""#, r#""a\"#, "\"abc\";x=1"] {
            assert_eq!(key(wrong), Err(NameError::Quoting), "{wrong}");
        }
        assert_eq!(key("\"\""), Err(NameError::Length(0)));
    }

    #[test]
    fn what_is_shown_of_a_key_names_it_again() {
        for bare in ["abc", "a\"b", "\"abc\"", "\"", "\\\"", "ü \u{2028} %2F/"] {
            let key = Key(bare.to_owned());
            assert_eq!(Key::parse(&key.to_string()), Ok(key));
        }
    }

    #[test]
    fn names_are_1_to_255_bytes_without_control_characters() {
        let long = "ü".repeat(127);
        for good in ["a", " ", "a/b", "a%2Fb", "ü", "\u{fffd}", long.as_str()] {
            assert!(Account::parse(good).is_ok() && Key::parse(good).is_ok(), "{good}");
        }
        assert_eq!(Account::parse(""), Err(NameError::Length(0)));
        assert_eq!(Account::parse(&"ü".repeat(128)), Err(NameError::Length(256)));
        // Length is of the bare form.
        assert_eq!(key(&format!("\"{}\"", "a".repeat(255))).map(|key| key.len()), Ok(255));
        assert_eq!(key(&"a".repeat(256)), Err(NameError::Length(256)));
        for control in ["a\0", "\n", "a\tb", "\u{7f}", "\u{85}"] {
            assert_eq!(Account::parse(control), Err(NameError::Control));
            assert_eq!(key(control), Err(NameError::Control));
        }
    }
}
