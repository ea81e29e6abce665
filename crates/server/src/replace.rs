//! `onceward replace`: asks any serving node to let an emptied node come back.

use std::{fs, path::PathBuf, sync::Arc};

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, Uri, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

use crate::bounds::REPLACE_TIMEOUT;

/// Not to be printed: it may hold a token.
#[derive(Args)]
pub struct ReplaceArgs {
    /// The node that lost its disk.
    #[arg(value_name = "NODE_ID", value_parser = clap::value_parser!(u16).range(1..))]
    node: u16,
    /// Any node that serves, e.g. http://127.0.0.1:4001
    #[arg(long)]
    url: Uri,
    /// An admin's token; better in the variable ONCEWARD_TOKEN, as other users can see a command line.
    #[arg(long)]
    token: Option<String>,
    /// With https: PEM of the authority that signed the node's certificate.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Asks, and says what to do next.
pub async fn run(args: ReplaceArgs) -> Result<(), String> {
    let node = args.node;
    let answer = timeout(REPLACE_TIMEOUT, ask(&args)).await;
    let (status, body) = answer.map_err(|_| format!("{} did not answer within {REPLACE_TIMEOUT:?}", args.url))??;
    if status == 200 {
        println!("node {node} may come back: start it with an empty data directory. {body}");
        return Ok(());
    }
    Err(format!("{} answered {status}: {body}", args.url))
}

async fn ask(args: &ReplaceArgs) -> Result<(u16, String), String> {
    let error = |error: &dyn std::fmt::Display| format!("{}: {error}", args.url);
    let host = args.url.host().ok_or("--url must be like http://127.0.0.1:4001")?;
    let https = match args.url.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err("--url must begin with http:// or https://".to_owned()),
    };
    let port = args.url.port_u16().unwrap_or(if https { 443 } else { 80 });
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(|e| error(&e))?;
    if !https {
        return exchange(stream, args).await;
    }
    let ca = args.ca.as_ref().ok_or("https needs --ca FILE")?;
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|e| error(&e))?;
    let stream = connector(ca)?.connect(name, stream).await.map_err(|e| error(&e))?;
    exchange(stream, args).await
}

fn connector(ca: &PathBuf) -> Result<TlsConnector, String> {
    let error = |error: &dyn std::fmt::Display| format!("--ca {}: {error}", ca.display());
    let pem = fs::read(ca).map_err(|e| error(&e))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        roots.add(certificate.map_err(|e| error(&e))?).map_err(|e| error(&e))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| error(&e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn exchange<S>(stream: S, args: &ReplaceArgs) -> Result<(u16, String), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let error = |error: hyper::Error| format!("{}: {error}", args.url);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(error)?;
    let driving = tokio::spawn(connection);
    let answer = sender.send_request(request(args)?).await.map_err(error)?;
    let read = read(answer).await;
    driving.abort();
    read
}

fn request(args: &ReplaceArgs) -> Result<Request<Empty<Bytes>>, String> {
    let authority = args.url.authority().map_or("", |authority| authority.as_str());
    let mut request = Request::post(format!("/v1/cluster/nodes/{}/replace", args.node)).header(header::HOST, authority);
    if let Some(token) = args.token.clone().or_else(|| std::env::var("ONCEWARD_TOKEN").ok()) {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    request.body(Empty::new()).map_err(|error| error.to_string())
}

async fn read(answer: hyper::Response<Incoming>) -> Result<(u16, String), String> {
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
