//! Why an attempt came to nothing, in words that its endpoint's owner may read: nothing of the inside is in them.

use std::{io, time::Duration};

use tokio_rustls::rustls::{self, CertificateError};

use crate::guard::Refused;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The guard refused every address.
    #[error("{0}")]
    Refused(Refused),
    #[error("the name {0} does not resolve")]
    Unresolved(String),
    #[error("{0}")]
    Connect(&'static str),
    #[error("TLS: {0}")]
    Tls(String),
    #[error("no answer within {} s", .0.as_secs_f64())]
    NoAnswer(Duration),
    #[error("the answer was not complete within {} s", .0.as_secs_f64())]
    Incomplete(Duration),
    #[error("the connection was closed before the answer was complete")]
    Closed,
    #[error("the answer is not HTTP/1.1")]
    Protocol,
    #[error("only https:// is allowed")]
    HttpsOnly,
    /// URLs are checked when they are given; this one can't be asked for nevertheless.
    #[error("the URL cannot be requested")]
    Url,
}

impl Failure {
    pub(crate) fn connect(error: &io::Error) -> Failure {
        Failure::Connect(match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused",
            io::ErrorKind::ConnectionReset => "connection reset",
            io::ErrorKind::HostUnreachable => "host unreachable",
            io::ErrorKind::NetworkUnreachable => "network unreachable",
            io::ErrorKind::TimedOut => "connection timed out",
            _ => "cannot connect",
        })
    }

    pub(crate) fn tls(error: &io::Error) -> Failure {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(_))) => {
                Failure::Tls("invalid peer certificate".to_owned())
            }
            Some(error) => Failure::Tls(error.to_string()),
            None => Failure::Tls("the connection was closed during the handshake".to_owned()),
        }
    }

    pub(crate) fn exchange(error: &hyper::Error) -> Failure {
        if error.is_parse() { Failure::Protocol } else { Failure::Closed }
    }
}
