//! What the fuzzer reaches besides the public API: the handshake. Compiled by cargo-fuzz, which sets `cfg(fuzzing)`, and
//! with the tests, so that it doesn't fall behind; no part of the crate otherwise.

use std::fmt::Debug;

use futures::executor::block_on;
use onceward_core::cluster::Generation;

use super::*;

/// Admits whoever has proved who it is.
struct OpenDoor;

impl Doorkeeper for OpenDoor {
    fn hello(&self) -> Hello {
        Hello {
            version: PROTOCOL_VERSION,
            cluster_id: Some(7),
            node: NodeId(1),
            generation: Generation(0),
            incarnation: 11,
        }
    }

    fn admit(&self, _: &Hello) -> Result<(), String> {
        Ok(())
    }
}

const SECRET: &[u8] = b"a secret that no stranger knows";

/// A stranger dials this node and says `said`.
///
/// # Panics
/// If it is admitted.
pub fn stranger_dials(mut said: &[u8]) {
    let stream = &mut tokio::io::join(&mut said, tokio::io::sink());
    let admitted = block_on(async {
        preamble_listening(stream, &Security::Hmac { secret: SECRET.to_vec() }).await?;
        accept(stream, &Proofs::Secret(SECRET), &OpenDoor).await
    });
    assert_refused(admitted);
}

/// A stranger answers `said` when this node dials node 2.
///
/// # Panics
/// If it is taken for that node.
pub fn stranger_answers(mut said: &[u8]) {
    let stream = &mut tokio::io::join(&mut said, tokio::io::sink());
    let admitted = block_on(async {
        preamble_dialling(stream, &Security::Hmac { secret: SECRET.to_vec() }).await?;
        dial(stream, &Proofs::Secret(SECRET), &OpenDoor, NodeId(2), Lane::Data).await
    });
    assert_refused(admitted);
}

fn assert_refused(admitted: Result<impl Debug, HandshakeError>) {
    let error = admitted.expect_err("nobody is admitted without the secret");
    assert!(error.to_string().len() <= REFUSAL_TEXT_BYTES_MAX + 256, "a line of the log is bounded");
}

/// Reads each message of the handshake, and writes what can be read.
///
/// # Panics
/// If what was written reads as something else.
pub fn handshake_messages(bytes: &[u8]) {
    assert_survives::<Opening>(bytes);
    assert_survives::<Challenge>(bytes);
    assert_survives::<Proof>(bytes);
    assert_survives::<Verdict>(bytes);
}

fn assert_survives<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(message) = decode::<T>(bytes) {
        let written = encode(&message);
        let read = decode::<T>(&written).expect("what was written is readable");
        assert_eq!(encode(&read), written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &impl Serialize) -> Vec<u8> {
        let message = encode(message);
        [&(message.len() as u32).to_be_bytes()[..], &message].concat()
    }

    #[test]
    fn a_stranger_that_keeps_to_the_protocol_is_refused_for_its_proof_alone() {
        let preamble = preamble(&Security::Hmac { secret: Vec::new() });
        let hello = Hello { node: NodeId(2), ..OpenDoor.hello() };
        let opening = Opening { hello, to: NodeId(1), lane: Lane::Data, nonce: [0; 32] };
        let proof = Proof { mac: Some([0; 32]) };
        stranger_dials(&[&preamble[..], &framed(&opening), &framed(&proof)].concat());
        let challenge = Challenge { hello, nonce: [0; 32] };
        let verdict = Verdict { mac: Some([0; 32]), refusal: None };
        stranger_answers(&[&preamble[..], &framed(&challenge), &framed(&verdict)].concat());
        for message in [encode(&opening), encode(&verdict)] {
            handshake_messages(&message);
        }
    }
}
