//! Fields that the bodies of several resources have, each read and judged in one place.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::{HeaderName, HeaderValue};
use onceward_core::webhooks::{
    LabelError, Name, NameError,
    bounds::{HEADER_BYTES_MAX, HEADERS_MAX, METADATA_BYTES_MAX, METADATA_MAX},
};

use crate::api::json::{ByName, Field, Judge, Wanted, shown};

pub type MetadataIn = ByName<String, METADATA_MAX>;
pub type HeadersIn = ByName<String, HEADERS_MAX>;
/// A list whose elements are told apart, as it came in.
pub type SetIn = Vec<Field<String>>;

pub const NAME_ALLOWED: &str = "1 to 256 letters, digits, '-', '_' or '.'";
pub const HEADERS_ALLOWED: &str = "must be at most 32 headers, and 4096 bytes of names and values in all";
pub const THROTTLE_ALLOWED: &str = "a whole number from 1 to 65535";

/// What a body describes: something as a whole, or what is to change of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Describes {
    Whole,
    Change,
}

impl Describes {
    /// A field without which there is no whole; to be read further where it is given.
    pub fn needed<T, U>(self, field: Field<T>, read: impl FnOnce(Field<T>) -> Option<U>) -> Option<U> {
        match field {
            Field::Absent if self == Describes::Change => None,
            given => read(given),
        }
    }

    /// A field that has a default, and cannot be removed. Of a whole, `null` is as good as nothing.
    pub fn kept<T, U>(self, field: Field<T>, read: impl FnOnce(Field<T>) -> Option<U>) -> Option<U> {
        match field {
            Field::Absent => None,
            Field::Null if self == Describes::Whole => None,
            given => read(given),
        }
    }
}

/// A field that can be removed: `Some(None)` where it is `null`.
pub type Removable<T> = Option<Option<T>>;

pub fn removable<T, U>(field: Field<T>, read: impl FnOnce(Field<T>) -> Option<U>) -> Removable<U> {
    match field {
        Field::Absent => None,
        Field::Null => Some(None),
        given => read(given).map(Some),
    }
}

/// A text of at most `bytes_max` bytes without control characters but line ends and tabs.
pub fn text(
    judge: &mut Judge,
    field: Field<String>,
    path: &str,
    bytes: std::ops::RangeInclusive<usize>,
) -> Option<String> {
    let allowed = format!("a string of {} to {} bytes", bytes.start(), bytes.end());
    let text = judge.required(field, || path.to_owned(), &allowed)?;
    if !bytes.contains(&text.len()) {
        judge.refuse(path, format!("must be {allowed}, not {}", text.len()));
    } else if text.chars().any(|char| char.is_control() && !matches!(char, '\n' | '\r' | '\t')) {
        judge.refuse(path, "must not contain control characters");
    } else {
        return Some(text);
    }
    None
}

/// The uid of an application or an endpoint.
pub fn uid(judge: &mut Judge, field: Field<String>, path: &str) -> Option<Name> {
    named(judge, field, path, Name::parse_uid)
}

pub fn name(judge: &mut Judge, field: Field<String>, path: &str) -> Option<Name> {
    named(judge, field, path, Name::parse)
}

fn named(
    judge: &mut Judge,
    field: Field<String>,
    path: &str,
    parse: impl Fn(&str) -> Result<Name, NameError>,
) -> Option<Name> {
    let text = judge.required(field, || path.to_owned(), NAME_ALLOWED)?;
    parse(&text).map_err(|error| judge.refuse(path, error.to_string())).ok()
}

/// `throttleRate`, or `rateLimit`, its older name; of two that differ the newer one counts, as with Svix.
pub fn throttle(judge: &mut Judge, throttle_rate: Field<u64>, rate_limit: Field<u64>, at: &str) -> Removable<u32> {
    let mut read = |field, name| removable(field, |field| throttle_rate_of(judge, field, &format!("{at}{name}")));
    let older = read(rate_limit, "rateLimit");
    read(throttle_rate, "throttleRate").or(older)
}

fn throttle_rate_of(judge: &mut Judge, field: Field<u64>, path: &str) -> Option<u32> {
    let rate = judge.number(field, || path.to_owned(), 1..=u64::from(u16::MAX), THROTTLE_ALLOWED)?;
    u32::try_from(rate).ok()
}

/// A set of names or labels: 1 to `max` of them; one that comes twice counts once.
pub fn set<T: Ord>(
    judge: &mut Judge,
    field: Field<SetIn>,
    path: &str,
    max: usize,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Option<BTreeSet<T>> {
    let allowed = format!("a list of 1 to {max} strings, or null");
    let list = judge.required(field, || path.to_owned(), &allowed)?;
    if list.is_empty() || list.len() > max {
        judge.refuse(path, format!("must be {allowed}, not of {}", list.len()));
        return None;
    }
    let (count, mut read, mut set) = (list.len(), 0, BTreeSet::new());
    for (at, element) in list.into_iter().enumerate() {
        let at = format!("{path}[{at}]");
        let Some(text) = judge.required(element, || at.clone(), "a string") else { continue };
        match parse(&text) {
            Ok(element) => {
                set.insert(element);
                read += 1;
            }
            Err(error) => judge.refuse(at, error),
        }
    }
    (read == count).then_some(set)
}

pub fn names(judge: &mut Judge, field: Field<SetIn>, path: &str, max: usize) -> Option<BTreeSet<Name>> {
    set(judge, field, path, max, |text| Name::parse(text).map_err(|error| error.to_string()))
}

/// Channels, or tags.
pub fn labels(
    judge: &mut Judge,
    field: Field<SetIn>,
    path: &str,
    max: usize,
    check: impl Fn(&str) -> Result<(), LabelError>,
) -> Option<BTreeSet<String>> {
    set(judge, field, path, max, |text| check(text).map(|()| text.to_owned()).map_err(|error| error.to_string()))
}

/// `metadata`: an object of strings.
pub fn metadata(judge: &mut Judge, field: Field<MetadataIn>, path: &str) -> Option<BTreeMap<String, String>> {
    const _: () = assert!(METADATA_MAX == 64 && METADATA_BYTES_MAX == 4_096);
    let allowed = "at most 64 entries, and 4096 bytes of keys and values in all";
    let given = judge.required(field, || path.to_owned(), MetadataIn::WHAT)?;
    let entries = members(judge, given, path, "a string", METADATA_MAX, allowed, |judge, value, at, allowed| {
        judge.required(value, || at.to_owned(), allowed)
    })?;
    let bytes: usize = entries.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > METADATA_BYTES_MAX {
        judge.refuse(path, format!("must be {allowed}, not {bytes} bytes"));
        return None;
    }
    Some(entries)
}

/// `headers` of an endpoint: those that it adds to its deliveries.
pub fn headers(judge: &mut Judge, field: Field<HeadersIn>, path: &str) -> Option<BTreeMap<String, String>> {
    let given = judge.required(field, || path.to_owned(), HeadersIn::WHAT)?;
    let headers = header_members(judge, given, path, |judge, value, at, allowed| {
        let value = judge.required(value, || at.to_owned(), allowed)?;
        check_header_value(&value).map_err(|error| judge.refuse(at, error)).ok()?;
        Some(value)
    })?;
    check_headers_size(judge, path, headers.iter().map(|(name, value)| name.len() + value.len()).sum())?;
    Some(headers)
}

/// As [`headers`], where `null` stands for one that is to be removed.
pub fn headers_patch(
    judge: &mut Judge,
    field: Field<HeadersIn>,
    path: &str,
) -> Option<BTreeMap<String, Option<String>>> {
    let given = judge.required(field, || path.to_owned(), HeadersIn::WHAT)?;
    let headers = header_members(judge, given, path, |judge, value, at, allowed| {
        let Field::Given(value) = value else {
            return match value {
                Field::Null => Some(None),
                other => judge.required(other, || at.to_owned(), allowed).map(Some),
            };
        };
        check_header_value(&value).map_err(|error| judge.refuse(at, error)).ok()?;
        Some(Some(value))
    })?;
    let bytes = headers.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, String::len)).sum();
    check_headers_size(judge, path, bytes)?;
    Some(headers)
}

fn check_headers_size(judge: &mut Judge, path: &str, bytes: usize) -> Option<()> {
    const _: () = assert!(HEADERS_MAX == 32 && HEADER_BYTES_MAX == 4_096);
    if bytes > HEADER_BYTES_MAX {
        judge.refuse(path, format!("{HEADERS_ALLOWED}, not {bytes} bytes"));
        return None;
    }
    Some(())
}

fn header_members<T>(
    judge: &mut Judge,
    given: HeadersIn,
    path: &str,
    read: impl Fn(&mut Judge, Field<String>, &str, &str) -> Option<T>,
) -> Option<BTreeMap<String, T>> {
    let headers =
        members(judge, given, path, "a string", HEADERS_MAX, "at most 32 headers", |judge, value, at, allowed| {
            read(judge, value, at, allowed)
        })?;
    let mut seen = BTreeSet::new();
    let mut good = true;
    for name in headers.keys() {
        let at = format!("{path}[{:?}]", shown(name));
        if let Err(error) = check_header_name(name) {
            judge.refuse(at, error);
            good = false;
        } else if !seen.insert(name.to_ascii_lowercase()) {
            judge.refuse(at, "is there twice, but for upper and lower case");
            good = false;
        }
    }
    good.then_some(headers)
}

/// The members of an object of values by name; `None` where one of them is wrong, or there are too many.
fn members<T, const MAX: usize>(
    judge: &mut Judge,
    given: ByName<String, MAX>,
    path: &str,
    what: &str,
    max: usize,
    allowed: &str,
    read: impl Fn(&mut Judge, Field<String>, &str, &str) -> Option<T>,
) -> Option<BTreeMap<String, T>> {
    if given.count > max {
        judge.refuse(path, format!("must be {allowed}, not {}", given.count));
        return None;
    }
    let (count, mut entries) = (given.members.len(), BTreeMap::new());
    for (name, value) in given.members {
        let at = format!("{path}[{:?}]", shown(&name));
        if let Some(value) = read(judge, value, &at, what)
            && entries.insert(name, value).is_some()
        {
            judge.refuse(at, crate::api::json::DUPLICATE);
        }
    }
    (entries.len() == count).then_some(entries)
}

/// Names that deliveries set themselves, that steer the connection, or that name another sender.
const RESERVED: [&str; 18] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
];
const RESERVED_PREFIXES: [&str; 6] = ["webhook-", "svix-", "x-svix-", "onceward-", "proxy-", "sec-"];

fn check_header_name(name: &str) -> Result<(), String> {
    if HeaderName::try_from(name).is_err() {
        return Err("is not a header's name: letters, digits and any of !#$%&'*+-.^_`|~".to_owned());
    }
    let lower = name.to_ascii_lowercase();
    if RESERVED.contains(&lower.as_str()) || RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix)) {
        return Err("is a header that deliveries or connections use themselves; choose another name".to_owned());
    }
    Ok(())
}

fn check_header_value(value: &str) -> Result<(), String> {
    let visible = value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
    if visible && value.trim_matches([' ', '\t']).len() == value.len() && HeaderValue::try_from(value).is_ok() {
        return Ok(());
    }
    Err("must be visible ASCII and spaces, none of these at its ends, and without line ends".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_are_tokens_that_nobody_else_uses() {
        for good in ["X-Api-Key", "authorization", "x.y_z~", "cookie", "Accept", "webhook"] {
            assert_eq!(check_header_name(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            " x",
            "x y",
            "x:",
            "x\r\ny",
            "ü",
            "Host",
            "CONTENT-TYPE",
            "content-length",
            "Transfer-Encoding",
            "TE",
            "Connection",
            "Upgrade",
            "user-agent",
            "Webhook-Id",
            "webhook-signature",
            "svix-id",
            "Onceward-Sequence",
            "Proxy-Authorization",
        ] {
            assert!(check_header_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn header_values_cannot_end_their_line() {
        for good in ["", "a", "Bearer a.b/c=", "a b\tc"] {
            assert_eq!(check_header_value(good), Ok(()), "{good:?}");
        }
        for bad in ["a\r\nx: y", "a\n", "\r", "\0", "a\u{7f}", "ü", " a", "a\t"] {
            assert!(check_header_value(bad).is_err(), "{bad:?}");
        }
    }
}
