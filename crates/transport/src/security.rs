//! How peers prove who they are: by a shared secret, or by certificates of a common authority.
//!
//! In go a secret or PEM texts, out comes what the handshake needs. Which node may join is not decided here.

use std::fmt;
use std::sync::Arc;

use onceward_core::cluster::NodeId;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::TransportError;
use crate::limits::SECRET_BYTES_MIN;

/// How the nodes of a cluster authenticate each other; all must be set alike.
#[derive(Clone)]
pub enum Security {
    /// Both sides prove that they know the secret, by HMAC-SHA256 over fresh nonces and both Hellos. Connections are
    /// neither encrypted nor protected against who can change packets under way: for loopback and networks one trusts.
    Hmac {
        /// At least [`SECRET_BYTES_MIN`] bytes.
        secret: Vec<u8>,
    },
    /// TLS 1.3, both sides with certificates.
    Mtls(Tls),
}

impl Security {
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        match self {
            Security::Hmac { secret } if secret.len() < SECRET_BYTES_MIN => {
                Err(TransportError::SecretTooShort { actual: secret.len(), min: SECRET_BYTES_MIN })
            }
            Security::Hmac { .. } | Security::Mtls(_) => Ok(()),
        }
    }
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Security::Hmac { .. } => "Hmac",
            Security::Mtls(_) => "Mtls",
        })
    }
}

/// A node's certificate, and whose certificates it trusts.
///
/// Verified on both sides: the peer's chain leads to the authority, is valid now and for this use (extended key usage,
/// if present, must allow server *and* client authentication), and the certificate has the DNS name `node-N.onceward`
/// for the N that the peer gives in its Hello. Certificates are not looked up in revocation lists: replace the authority.
#[derive(Clone)]
pub struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) connector: TlsConnector,
}

impl Tls {
    /// PEM texts: this node's certificate chain (its own first), its private key, and the authority or authorities that
    /// sign the nodes' certificates.
    pub fn from_pem(chain: &[u8], key: &[u8], authority: &[u8]) -> Result<Tls, TransportError> {
        let chain = certificates(chain, "certificate chain")?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| tls(format!("private key: {error}")))?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority, "authority")? {
            roots.add(certificate).map_err(|error| tls(format!("authority: {error}")))?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(ring::default_provider());
        Ok(Tls {
            acceptor: acceptor(chain.clone(), key.clone_key(), roots.clone(), provider.clone())?,
            connector: connector(chain, key, roots, provider)?,
        })
    }
}

fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
) -> Result<TlsAcceptor, TransportError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build().map_err(tls)?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(tls)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(tls)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn connector(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
) -> Result<TlsConnector, TransportError> {
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(tls)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(tls)?;
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, TransportError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => Err(tls(format!("{what}: no certificate in it"))),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(tls(format!("{what}: {error}"))),
    }
}

fn tls(error: impl fmt::Display) -> TransportError {
    TransportError::Tls(error.to_string())
}

/// The DNS name that a node's certificate must have.
pub(crate) fn certificate_name(node: NodeId) -> ServerName<'static> {
    ServerName::try_from(format!("node-{node}.onceward")).expect("letters, digits and hyphens make a DNS name")
}

/// Whether a verified certificate is that of a node.
pub(crate) fn certificate_is_of(certificate: &CertificateDer<'_>, node: NodeId) -> Result<(), rustls::Error> {
    rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, &certificate_name(node))
}
