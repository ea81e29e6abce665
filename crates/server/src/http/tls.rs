//! TLS on the HTTP port, from PEM files.

use std::{path::Path, sync::Arc};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::settings::TlsSettings;

/// `None` when TLS isn't configured. Errors name the file.
pub fn acceptor(settings: &TlsSettings) -> Result<Option<TlsAcceptor>, String> {
    let (Some(cert), Some(key)) = (&settings.cert, &settings.key) else { return Ok(None) };
    let chain = certificates(cert)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("http.tls.key: {}: {error}", key.display()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("http.tls: {error}"))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| format!("http.tls: {error}"))?;
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let error = |detail: String| format!("http.tls.cert: {}: {detail}", path.display());
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(|e| error(e.to_string()))?.collect();
    let chain = chain.map_err(|e| error(e.to_string()))?;
    if chain.is_empty() { Err(error("there is no certificate in it".to_owned())) } else { Ok(chain) }
}
