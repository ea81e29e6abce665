//! Response: what an attempt answered, kept byte for byte, and the digest by which the same completion is known again.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::bounds::{BODY_BYTES_MAX, HEADER_BYTES_MAX, HEADERS_MAX, STATUS_MAX, STATUS_MIN};

/// SHA-256 of a completion.
pub(super) type Digest = [u8; 32];

/// An HTTP response as the work of a key gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    pub status: u16,
    /// In the order that they came in; names differ also in other than case.
    pub headers: Vec<(String, HeaderValues)>,
    pub body: Body,
}

/// The shape in which a header came is the one in which it goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeaderValues {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// UTF-8.
    Text(String),
    /// Came in base64, and goes out so.
    Binary(Bytes),
}

/// What is wrong with a response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    #[error("must be a whole number from {STATUS_MIN} to {STATUS_MAX}, not {0}")]
    Status(u64),
    #[error("has {0} headers; at most {HEADERS_MAX} are kept")]
    TooManyHeaders(usize),
    #[error("names and values take {0} bytes; at most {HEADER_BYTES_MAX} are kept")]
    HeadersTooLarge(usize),
    #[error("has {0:?}, which is not the name of a header")]
    HeaderName(String),
    #[error("names {0:?} twice; several values of a header come as a list")]
    HeaderTwice(String),
    #[error("the value of {0:?} has a control character")]
    HeaderValue(String),
    #[error("is {0} bytes long; at most {BODY_BYTES_MAX} are kept")]
    BodyTooLarge(usize),
}

impl ResponseError {
    /// It is well-formed, but more than is kept.
    pub fn is_too_large(&self) -> bool {
        matches!(
            self,
            ResponseError::TooManyHeaders(_) | ResponseError::HeadersTooLarge(_) | ResponseError::BodyTooLarge(_)
        )
    }
}

impl HeaderValues {
    pub fn all(&self) -> &[String] {
        match self {
            HeaderValues::One(value) => std::slice::from_ref(value),
            HeaderValues::Many(values) => values,
        }
    }
}

impl Body {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Body::Text(text) => text.as_bytes(),
            Body::Binary(bytes) => bytes,
        }
    }
}

/// A token of RFC 9110, section 5.6.2.
fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn is_header_value(value: &str) -> bool {
    value.chars().all(|char| char == '\t' || !char.is_control())
}

impl Response {
    pub fn check_status(status: u64) -> Result<u16, ResponseError> {
        let fits = u16::try_from(status).ok().filter(|status| (STATUS_MIN..=STATUS_MAX).contains(status));
        fits.ok_or(ResponseError::Status(status))
    }

    pub fn check_headers(headers: &[(String, HeaderValues)]) -> Result<(), ResponseError> {
        if headers.len() > HEADERS_MAX {
            return Err(ResponseError::TooManyHeaders(headers.len()));
        }
        let bytes = header_bytes(headers);
        if bytes > HEADER_BYTES_MAX {
            return Err(ResponseError::HeadersTooLarge(bytes));
        }
        for (at, (name, values)) in headers.iter().enumerate() {
            if !is_header_name(name) {
                return Err(ResponseError::HeaderName(name.clone()));
            }
            if headers[..at].iter().any(|(earlier, _)| earlier.eq_ignore_ascii_case(name)) {
                return Err(ResponseError::HeaderTwice(name.clone()));
            }
            if !values.all().iter().all(|value| is_header_value(value)) {
                return Err(ResponseError::HeaderValue(name.clone()));
            }
        }
        Ok(())
    }

    pub fn check_body(body: &Body) -> Result<(), ResponseError> {
        match body.bytes().len() {
            0..=BODY_BYTES_MAX => Ok(()),
            bytes => Err(ResponseError::BodyTooLarge(bytes)),
        }
    }

    /// Equal for equal responses, in whatever order a client's map gave the headers' names.
    pub(super) fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        let part = |hash: &mut Sha256, bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        hash.update(self.status.to_be_bytes());
        let mut headers: Vec<_> = self.headers.iter().collect();
        headers.sort_by(|a, b| a.0.cmp(&b.0));
        hash.update((headers.len() as u64).to_be_bytes());
        for (name, values) in headers {
            part(&mut hash, name.as_bytes());
            let (shape, values) = match values {
                HeaderValues::One(value) => (0, std::slice::from_ref(value)),
                HeaderValues::Many(values) => (1, values.as_slice()),
            };
            hash.update([shape]);
            hash.update((values.len() as u64).to_be_bytes());
            values.iter().for_each(|value| part(&mut hash, value.as_bytes()));
        }
        hash.update([matches!(self.body, Body::Binary(_)) as u8]);
        part(&mut hash, self.body.bytes());
        hash.finalize().into()
    }

    /// Bytes that it takes at the most, but for tags and lengths.
    pub(crate) fn bytes(&self) -> usize {
        header_bytes(&self.headers) + self.body.bytes().len()
    }

    /// Values of headers, each of which takes a length.
    pub(crate) fn parts(&self) -> usize {
        self.headers.iter().map(|(_, values)| 2 + values.all().len()).sum()
    }
}

/// As [`HEADER_BYTES_MAX`] counts them.
fn header_bytes(headers: &[(String, HeaderValues)]) -> usize {
    let value_bytes = |values: &HeaderValues| values.all().iter().map(|value| value.len().max(1)).sum::<usize>();
    headers.iter().map(|(name, values)| name.len() + value_bytes(values)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(headers: &[(&str, &str)]) -> Response {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), HeaderValues::One((*value).to_owned())));
        Response { status: 200, headers: headers.collect(), body: Body::Text("ok".to_owned()) }
    }

    #[test]
    fn the_digest_tells_contents_apart_and_not_the_order_of_names() {
        let plain = response(&[("a", "b"), ("c", "d")]);
        assert_eq!(plain.digest(), response(&[("c", "d"), ("a", "b")]).digest());
        let others = [
            response(&[("a", "d"), ("c", "b")]),
            response(&[("a", "b")]),
            response(&[("ab", ""), ("c", "d")]),
            Response { status: 201, ..plain.clone() },
            Response { body: Body::Text("ok ".to_owned()), ..plain.clone() },
            Response { body: Body::Binary(Bytes::from_static(b"ok")), ..plain.clone() },
            Response {
                headers: vec![
                    ("a".to_owned(), HeaderValues::Many(vec!["b".to_owned()])),
                    ("c".to_owned(), HeaderValues::One("d".to_owned())),
                ],
                ..plain.clone()
            },
        ];
        for other in others {
            assert_ne!(plain.digest(), other.digest(), "{other:?}");
        }
    }

    #[test]
    fn headers_are_checked_by_name_value_number_and_size() {
        let check = |headers: &[(&str, &str)]| Response::check_headers(&response(headers).headers);
        assert_eq!(check(&[("Content-Type", "text/plain"), ("x-ü", "")]), Err(ResponseError::HeaderName("x-ü".into())));
        assert_eq!(check(&[("", "")]), Err(ResponseError::HeaderName(String::new())));
        assert_eq!(check(&[("x", "ü\ta")]), Ok(()));
        assert_eq!(check(&[("x", "a\r\nb: c")]), Err(ResponseError::HeaderValue("x".into())));
        assert_eq!(check(&[("x", "1"), ("X", "2")]), Err(ResponseError::HeaderTwice("X".into())));
        let long = "v".repeat(HEADER_BYTES_MAX - 1);
        assert_eq!(check(&[("x", &long)]), Ok(()));
        assert_eq!(check(&[("xy", &long)]), Err(ResponseError::HeadersTooLarge(HEADER_BYTES_MAX + 1)));
        let names: Vec<String> = (0..=HEADERS_MAX).map(|n| format!("x{n}")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert_eq!(check(&many), Err(ResponseError::TooManyHeaders(HEADERS_MAX + 1)));
        assert_eq!(check(&many[1..]), Ok(()));
    }

    #[test]
    fn bodies_and_statuses_have_bounds() {
        let body = |len| Response::check_body(&Body::Binary(Bytes::from(vec![0; len])));
        assert_eq!(body(BODY_BYTES_MAX), Ok(()));
        assert_eq!(body(BODY_BYTES_MAX + 1), Err(ResponseError::BodyTooLarge(BODY_BYTES_MAX + 1)));
        let status = |status| Response::check_status(status).is_ok();
        assert_eq!([99, 100, 599, 600, u64::MAX].map(status), [false, true, true, false, false]);
    }
}
