//! Why the peer links could not be set up. What goes wrong later is retried and logged, or is the outcome of a call.

use std::net::SocketAddr;

/// A wrong setting, by what the operator can do about it.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Choose another address, or free it.
    #[error("cannot listen for peers on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    /// Correct the shared secret.
    #[error("the peer secret has {actual} bytes; at least {min} are needed")]
    SecretTooShort { actual: usize, min: usize },
    /// Correct the certificate, the key or the authority's certificate.
    #[error("peer TLS: {0}")]
    Tls(String),
}
