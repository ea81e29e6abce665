//! Secrets that deliveries are signed with. They are made outside of `apply`, so that replicas agree.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::bounds::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};

/// The key itself, not its `whsec_` text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Bytes")]
pub struct Secret(Bytes);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in base64, not {0}")]
pub struct SecretLength(pub usize);

impl Secret {
    pub fn new(key: Bytes) -> Result<Secret, SecretLength> {
        match key.len() {
            SECRET_BYTES_MIN..=SECRET_BYTES_MAX => Ok(Secret(key)),
            len => Err(SecretLength(len)),
        }
    }

    /// Whoever calls this takes care that it goes to the owner, or into a signature, and nowhere else.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Bytes> for Secret {
    type Error = SecretLength;

    fn try_from(key: Bytes) -> Result<Secret, SecretLength> {
        Secret::new(key)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
