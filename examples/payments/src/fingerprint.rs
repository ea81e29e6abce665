//! The fingerprint: a hash over all that makes two requests the same one. Under a key that was used, another fingerprint
//! is another request, and is refused.

use sha2::{Digest, Sha256};

/// SHA-256 in hexadecimal over method, path, canonical query, content type and raw body, each behind its length as eight
/// bytes (big-endian), so that no two lists of parts give the same bytes.
pub fn fingerprint(method: &str, path: &str, query: &str, content_type: &str, body: &[u8]) -> String {
    let query = canonical_query(query);
    let content_type = content_type.trim().to_ascii_lowercase();
    let mut hash = Sha256::new();
    for part in [method.as_bytes(), path.as_bytes(), query.as_bytes(), content_type.as_bytes(), body] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The pairs as they came, in the order of their bytes: their order means nothing here.
fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.sort_unstable();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_recipe() {
        // printf '\0\0\0\0\0\0\0\4POST\0\0\0\0\0\0\0\11/payments\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\20application/json\0\0\0\0\0\0\0\2{}' | sha256sum
        let expected = "aa370117199233d4a7e63c4f8efd88a6a7a9db002c0375c081ad962270cbc4b9";
        assert_eq!(fingerprint("POST", "/payments", "", "application/json", b"{}"), expected);
    }

    #[test]
    fn every_part_counts_and_none_runs_into_the_next() {
        let base = fingerprint("POST", "/payments", "a=1", "application/json", b"{}");
        for other in [
            fingerprint("PUT", "/payments", "a=1", "application/json", b"{}"),
            fingerprint("POST", "/payment", "a=1", "application/json", b"{}"),
            fingerprint("POST", "/payments", "a=2", "application/json", b"{}"),
            fingerprint("POST", "/payments", "a=1", "text/json", b"{}"),
            fingerprint("POST", "/payments", "a=1", "application/json", b"{ }"),
            fingerprint("POST", "/paymentsa=1", "", "application/json", b"{}"),
            fingerprint("POST/", "payments", "a=1", "application/json", b"{}"),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn the_order_of_the_query_and_the_case_of_the_content_type_do_not_count() {
        let one = fingerprint("POST", "/payments", "b=2&a=1", "Application/JSON ", b"{}");
        assert_eq!(one, fingerprint("POST", "/payments", "a=1&b=2", "application/json", b"{}"));
    }
}
