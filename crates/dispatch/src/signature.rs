//! Signatures of deliveries, after [Standard Webhooks](https://github.com/standard-webhooks/standard-webhooks) v1.
//!
//! In go the keys that are valid now and what is signed, out comes the header's value. Which keys are valid is not known
//! here, and none is kept.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The length of one entry: `v1,` and 32 bytes in base64.
const ENTRY_LEN: usize = 3 + 44;

/// The value of `webhook-signature`: one entry for each key, the newest first if they come in so.
pub fn sign<'k>(keys: impl IntoIterator<Item = &'k [u8]>, id: &str, timestamp_s: u64, body: &[u8]) -> String {
    let head = format!("{id}.{timestamp_s}.");
    let mut entries = String::with_capacity(2 * (ENTRY_LEN + 1));
    for key in keys {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        mac.update(head.as_bytes());
        mac.update(body);
        if !entries.is_empty() {
            entries.push(' ');
        }
        entries.push_str("v1,");
        BASE64_STANDARD.encode_string(mac.finalize().into_bytes(), &mut entries);
    }
    entries
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn key(secret: &str) -> Vec<u8> {
        BASE64_STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap()
    }

    fn vectors() -> Vec<Value> {
        let file: Value = serde_json::from_str(include_str!("../tests/vectors/standard-webhooks.json")).unwrap();
        file["valid"].as_array().unwrap().clone()
    }

    #[test]
    fn the_published_vectors_hold() {
        let vectors = vectors();
        assert!(vectors.len() >= 2);
        for vector in vectors {
            let text = |name: &str| vector[name].as_str().unwrap().to_owned();
            let timestamp = vector["timestamp"].as_u64().unwrap();
            let key = key(&text("secret"));
            let signature = sign([key.as_slice()], &text("id"), timestamp, text("body").as_bytes());
            assert_eq!(signature, text("signature"));
        }
    }

    #[test]
    fn each_valid_secret_has_its_entry_and_none_is_no_entry() {
        let (first, second) =
            (key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), key("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"));
        let alone = |key: &[u8]| sign([key], "msg_1", 7, b"\x00\xff");
        let both = sign([first.as_slice(), second.as_slice()], "msg_1", 7, b"\x00\xff");
        assert_eq!(both, format!("{} {}", alone(&first), alone(&second)));
        assert_eq!(alone(&first).len(), ENTRY_LEN);
        assert_eq!(sign([], "msg_1", 7, b""), "");
    }
}
