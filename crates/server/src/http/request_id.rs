//! The id under which a request is found in logs and answers: the caller's, or a new one.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::bounds::REQUEST_ID_BYTES_MAX;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The caller's id if it is one line of visible ASCII of bounded length, else a new one.
pub fn of_request(headers: &HeaderMap) -> HeaderValue {
    match headers.get(REQUEST_ID) {
        Some(id)
            if (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic) =>
        {
            id.clone()
        }
        _ => fresh(),
    }
}

/// A number drawn when the process started, and one that counts: unique, and found without asking for randomness.
pub fn fresh() -> HeaderValue {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("request ids"));
    static NEXT: AtomicU64 = AtomicU64::new(0);
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let number = (u128::from(*PROCESS) << 64) | u128::from(NEXT.fetch_add(1, Ordering::Relaxed));
    let text: [u8; 32] = std::array::from_fn(|at| DIGITS[(number >> (4 * (31 - at))) as usize & 15]);
    HeaderValue::from_bytes(&text).expect("hex digits are visible ASCII")
}

/// The trace context to pass on (<https://www.w3.org/TR/trace-context/#traceparent-header>), if it is a valid one.
pub fn traceparent(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(TRACEPARENT)?;
    is_traceparent(value.as_bytes()).then(|| value.clone())
}

fn is_traceparent(value: &[u8]) -> bool {
    let is_hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == b'0');
    // Later versions may go on behind the flags.
    let (Some(head), rest) = (value.get(..55), value.get(55..).unwrap_or_default()) else { return false };
    let (version, trace, parent, flags) = (&head[0..2], &head[3..35], &head[36..52], &head[53..55]);
    let ends = rest.is_empty() || (version != b"00" && rest[0] == b'-' && rest.len() <= 128);
    [head[2], head[35], head[52]] == *b"---"
        && [version, trace, parent, flags].into_iter().all(is_hex)
        && version != b"ff"
        && !is_zero(trace)
        && !is_zero(parent)
        && ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(id: &'static [u8]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_bytes(id).expect("valid"));
        headers
    }

    #[test]
    fn a_callers_id_is_kept_when_it_can_be_logged() {
        assert_eq!(of_request(&with(b"req-1/{a}")), "req-1/{a}");
        assert_ne!(of_request(&with(b"a b")), "a b");
        assert_ne!(of_request(&with(b"\xc3\xa4")).as_bytes(), b"\xc3\xa4");
        assert_ne!(of_request(&with(&[b'a'; 129])).as_bytes(), [b'a'; 129]);
        assert_eq!(of_request(&with(b"")).len(), 32);
    }

    #[test]
    fn fresh_ids_differ() {
        assert_ne!(fresh(), fresh());
    }

    #[test]
    fn only_a_valid_traceparent_is_passed_on() {
        let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(is_traceparent(valid.as_bytes()));
        assert!(is_traceparent(valid.replacen("00", "01", 1).as_bytes()));
        assert!(is_traceparent(format!("{}-more", valid.replacen("00", "cc", 1)).as_bytes()));
        for wrong in [
            "",
            "00",
            &valid[..54],
            &format!("{valid}-more"),
            &valid.replacen("00", "ff", 1),
            &valid.to_uppercase(),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert!(!is_traceparent(wrong.as_bytes()), "{wrong}");
        }
    }
}
