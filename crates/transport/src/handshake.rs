//! The beginning of every connection: who is at the other end, and whether either side wants to talk.
//!
//! In goes a fresh stream, out comes the peer's authenticated and admitted [`Hello`], or why not. All of it is bounded
//! to small frames and, by the caller, to a few seconds. Nothing is read beyond the handshake's last byte.
//!
//! ```text
//! dialler → listener   preamble: "1WRD", protocol version u16 BE, kind of security u8, 0
//! listener → dialler   preamble; from here on inside TLS, if that is the kind
//! dialler → listener   Opening  { hello, to, lane, nonce }
//! listener → dialler   Challenge{ hello, nonce }
//! dialler → listener   Proof    { mac }                    dialler proves
//! listener → dialler   Verdict  { mac, refusal? }          listener proves, and says whether it admits
//! dialler → listener   Verdict  { mac, refusal? }          dialler says whether it admits
//! ```
//! Each is a MessagePack array behind its length (u32 BE). A `mac` is HMAC-SHA256 under the shared secret over the name of
//! the role that sends it, the Opening, the Challenge and the refusal, each behind its length; inside TLS it is absent. The
//! role's name keeps one side's proof from serving as the other's, the nonces keep it from serving twice.

use std::io;

use hmac::{Hmac, KeyInit, Mac};
use onceward_core::cluster::NodeId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::limits::{HANDSHAKE_FRAME_BYTES_MAX, REFUSAL_TEXT_BYTES_MAX};
use crate::links::{Doorkeeper, Hello, Lane, PROTOCOL_VERSION};
use crate::notices::clean;
use crate::security::{Security, certificate_is_of};

#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no handshake within its time")]
    TimedOut,
    /// Not our protocol, or another version or setting of it.
    #[error("{0}")]
    Foreign(String),
    /// The peer could not prove who it is.
    #[error("{0}")]
    Unproven(String),
    #[error("it refused this node: {0}")]
    RefusedByPeer(String),
    #[error("node {}: {reason}", peer.node)]
    RefusedHere { peer: Hello, reason: String },
}

/// How this connection's sides prove who they are.
pub(crate) enum Proofs<'a> {
    Secret(&'a [u8]),
    /// TLS has verified the peer's certificate; it remains to compare it with the peer's Hello.
    Certificate(CertificateDer<'static>),
}

const MAGIC: [u8; 4] = *b"1WRD";
const PREAMBLE_BYTES: usize = 8;
const DIALLER: &[u8] = b"onceward peer 1: dialler proves";
const LISTENER: &[u8] = b"onceward peer 1: listener proves and decides";
const DIALLER_VERDICT: &[u8] = b"onceward peer 1: dialler decides";

type Nonce = [u8; 32];
type Code = [u8; 32];

#[derive(Serialize, Deserialize)]
struct Opening {
    hello: Hello,
    to: NodeId,
    lane: Lane,
    nonce: Nonce,
}

#[derive(Serialize, Deserialize)]
struct Challenge {
    hello: Hello,
    nonce: Nonce,
}

#[derive(Serialize, Deserialize)]
struct Proof {
    mac: Option<Code>,
}

#[derive(Serialize, Deserialize)]
struct Verdict {
    mac: Option<Code>,
    refusal: Option<String>,
}

fn preamble(security: &Security) -> [u8; PREAMBLE_BYTES] {
    let [version_high, version_low] = PROTOCOL_VERSION.to_be_bytes();
    let kind = match security {
        Security::Hmac { .. } => 1,
        Security::Mtls(_) => 2,
    };
    [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], version_high, version_low, kind, 0]
}

async fn read_magic(stream: &mut (impl AsyncRead + Unpin)) -> Result<[u8; PREAMBLE_BYTES], HandshakeError> {
    let mut theirs = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut theirs).await?;
    if theirs[..MAGIC.len()] != MAGIC {
        return Err(HandshakeError::Foreign("it doesn't speak the peer protocol of Onceward".to_owned()));
    }
    Ok(theirs)
}

fn compare(theirs: [u8; PREAMBLE_BYTES], ours: [u8; PREAMBLE_BYTES]) -> Result<(), HandshakeError> {
    let version = u16::from_be_bytes([theirs[4], theirs[5]]);
    if version != PROTOCOL_VERSION {
        let text = format!("it speaks version {version} of the peer protocol, this node version {PROTOCOL_VERSION}");
        return Err(HandshakeError::Foreign(text));
    }
    if theirs[6..] != ours[6..] {
        let text = "it is set to another kind of peer security (shared secret or TLS) than this node";
        return Err(HandshakeError::Foreign(text.to_owned()));
    }
    Ok(())
}

/// The dialler's half of the preamble.
pub(crate) async fn preamble_dialling(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    security: &Security,
) -> Result<(), HandshakeError> {
    let ours = preamble(security);
    stream.write_all(&ours).await?;
    compare(read_magic(stream).await?, ours)
}

/// The listener's half. A stranger gets no answer; a peer of another version or setting is told ours.
pub(crate) async fn preamble_listening(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    security: &Security,
) -> Result<(), HandshakeError> {
    let ours = preamble(security);
    let theirs = read_magic(stream).await?;
    stream.write_all(&ours).await?;
    compare(theirs, ours)
}

/// The certificate that TLS has verified, the peer's own.
pub(crate) fn certificate(
    chain: Option<&[CertificateDer<'static>]>,
) -> Result<CertificateDer<'static>, HandshakeError> {
    let own = chain.and_then(|chain| chain.first());
    own.cloned().ok_or_else(|| HandshakeError::Unproven("it showed no certificate".to_owned()))
}

/// The dialler's half of what follows the preamble (and TLS).
pub(crate) async fn dial(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    proofs: &Proofs<'_>,
    doorkeeper: &dyn Doorkeeper,
    to: NodeId,
    lane: Lane,
) -> Result<Hello, HandshakeError> {
    let opening = encode(&Opening { hello: doorkeeper.hello(), to, lane, nonce: nonce()? });
    send(stream, &opening).await?;
    let challenge_bytes = receive(stream).await?;
    let challenge: Challenge = decode(&challenge_bytes)?;
    let transcript = Transcript { opening: &opening, challenge: &challenge_bytes };
    send(stream, &encode(&Proof { mac: transcript.mac(proofs, DIALLER, None) })).await?;

    let verdict: Verdict = decode(&receive(stream).await?)?;
    let refusal = verdict.refusal.as_deref().map(clean);
    let proven = transcript.verify(proofs, LISTENER, verdict.refusal.as_deref(), verdict.mac, challenge.hello.node);
    match (proven, refusal) {
        // An unproven refusal is worth telling: it is what a wrong secret looks like. It admits nobody.
        (_, Some(text)) => return Err(HandshakeError::RefusedByPeer(text)),
        (Err(error), None) => return Err(error),
        (Ok(()), None) => {}
    }
    let decision = if challenge.hello.node == to {
        admit(&challenge.hello, doorkeeper)
    } else {
        Err(format!("node {} answers at the address of node {to}: check the peer addresses", challenge.hello.node))
    };
    decide(stream, &transcript, proofs, DIALLER_VERDICT, &challenge.hello, decision).await?;
    Ok(challenge.hello)
}

/// The listener's half of what follows the preamble (and TLS).
pub(crate) async fn accept(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    proofs: &Proofs<'_>,
    doorkeeper: &dyn Doorkeeper,
) -> Result<(Hello, Lane), HandshakeError> {
    let opening_bytes = receive(stream).await?;
    let opening: Opening = decode(&opening_bytes)?;
    let own = doorkeeper.hello();
    let challenge = encode(&Challenge { hello: own, nonce: nonce()? });
    send(stream, &challenge).await?;
    let transcript = Transcript { opening: &opening_bytes, challenge: &challenge };

    let proof: Proof = decode(&receive(stream).await?)?;
    if let Err(error) = transcript.verify(proofs, DIALLER, None, proof.mac, opening.hello.node) {
        let refusal = Some(error.to_string());
        send(stream, &encode(&Verdict { mac: None, refusal })).await?;
        return Err(error);
    }
    let decision = if opening.hello.node == own.node {
        Err(format!("it calls itself node {}, as this node does", own.node))
    } else if opening.to != own.node {
        Err(format!("this is node {}, not node {}: check the peer addresses", own.node, opening.to))
    } else {
        admit(&opening.hello, doorkeeper)
    };
    decide(stream, &transcript, proofs, LISTENER, &opening.hello, decision).await?;

    let verdict: Verdict = decode(&receive(stream).await?)?;
    transcript.verify(proofs, DIALLER_VERDICT, verdict.refusal.as_deref(), verdict.mac, opening.hello.node)?;
    match verdict.refusal {
        Some(text) => Err(HandshakeError::RefusedByPeer(clean(&text))),
        None => Ok((opening.hello, opening.lane)),
    }
}

fn admit(peer: &Hello, doorkeeper: &dyn Doorkeeper) -> Result<(), String> {
    if peer.version != PROTOCOL_VERSION {
        return Err(format!("version {} of the peer protocol instead of {PROTOCOL_VERSION}", peer.version));
    }
    doorkeeper.admit(peer)
}

/// Tells the peer what this side decided, with this side's proof.
async fn decide(
    stream: &mut (impl AsyncWrite + Unpin),
    transcript: &Transcript<'_>,
    proofs: &Proofs<'_>,
    role: &[u8],
    peer: &Hello,
    decision: Result<(), String>,
) -> Result<(), HandshakeError> {
    let refusal = decision.err().map(|reason| clean(&reason));
    let mac = transcript.mac(proofs, role, refusal.as_deref());
    send(stream, &encode(&Verdict { mac, refusal: refusal.clone() })).await?;
    match refusal {
        Some(reason) => Err(HandshakeError::RefusedHere { peer: *peer, reason }),
        None => Ok(()),
    }
}

/// What both sides' proofs cover: the bytes as they were sent.
struct Transcript<'a> {
    opening: &'a [u8],
    challenge: &'a [u8],
}

impl Transcript<'_> {
    fn hash(&self, secret: &[u8], role: &[u8], refusal: Option<&str>) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
        for part in [role, self.opening, self.challenge, refusal.unwrap_or_default().as_bytes()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }

    fn mac(&self, proofs: &Proofs<'_>, role: &[u8], refusal: Option<&str>) -> Option<Code> {
        match proofs {
            Proofs::Secret(secret) => Some(self.hash(secret, role, refusal).finalize().into_bytes().into()),
            Proofs::Certificate(_) => None,
        }
    }

    /// Compares in constant time.
    fn verify(
        &self,
        proofs: &Proofs<'_>,
        role: &[u8],
        refusal: Option<&str>,
        mac: Option<Code>,
        peer: NodeId,
    ) -> Result<(), HandshakeError> {
        match proofs {
            Proofs::Secret(secret) => self
                .hash(secret, role, refusal)
                .verify_slice(&mac.unwrap_or_default())
                .map_err(|_| HandshakeError::Unproven("the peer secrets of the two nodes differ".to_owned())),
            Proofs::Certificate(certificate) => certificate_is_of(certificate, peer).map_err(|error| {
                HandshakeError::Unproven(format!("its certificate is not that of node {peer}: {error}"))
            }),
        }
    }
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec(value).expect("plain values encode")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HandshakeError> {
    rmp_serde::from_slice(bytes).map_err(|_| HandshakeError::Foreign("an unreadable handshake".to_owned()))
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), HandshakeError> {
    let length = u32::try_from(bytes.len()).expect("handshake frames are small");
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(bytes);
    stream.write_all(&framed).await?;
    Ok(stream.flush().await?)
}

async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, HandshakeError> {
    let length = stream.read_u32().await? as usize;
    if length > HANDSHAKE_FRAME_BYTES_MAX {
        return Err(HandshakeError::Foreign(format!("a handshake longer than {HANDSHAKE_FRAME_BYTES_MAX} bytes")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

// A refusal, with all that goes around it, has to fit into a frame of the handshake.
const _: () = assert!(REFUSAL_TEXT_BYTES_MAX + 256 <= HANDSHAKE_FRAME_BYTES_MAX);

#[cfg(any(test, fuzzing))]
#[path = "handshake_fuzzing.rs"]
pub mod fuzzing;
#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
