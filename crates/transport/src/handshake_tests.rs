use std::sync::Mutex;

use onceward_core::cluster::Generation;
use tokio::io::{DuplexStream, duplex};

use super::*;
use crate::golden::assert_wire;

struct Door {
    hello: Hello,
    verdict: Result<(), String>,
    seen: Mutex<Option<Hello>>,
}

impl Door {
    fn of(node: u16) -> Door {
        Door { hello: hello(node), verdict: Ok(()), seen: Mutex::new(None) }
    }
}

impl Doorkeeper for Door {
    fn hello(&self) -> Hello {
        self.hello
    }

    fn admit(&self, peer: &Hello) -> Result<(), String> {
        *self.seen.lock().unwrap() = Some(*peer);
        self.verdict.clone()
    }
}

fn hello(node: u16) -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        cluster_id: Some(0xfedc_ba98_7654_3210_0123_4567_89ab_cdef),
        node: NodeId(node),
        generation: Generation(2),
        incarnation: u128::MAX - u128::from(node),
    }
}

const SECRET: Proofs<'static> = Proofs::Secret(b"a secret of the cluster");
const OTHER: Proofs<'static> = Proofs::Secret(b"a secret of another one");

type Dialled = Result<Hello, HandshakeError>;
type Accepted = Result<(Hello, Lane), HandshakeError>;

async fn shake(dialler: &Door, listener: &Door, to: u16, secrets: (&Proofs<'_>, &Proofs<'_>)) -> (Dialled, Accepted) {
    let (mut left, mut right) = duplex(HANDSHAKE_FRAME_BYTES_MAX);
    tokio::join!(
        dial(&mut left, secrets.0, dialler, NodeId(to), Lane::Control),
        accept(&mut right, secrets.1, listener)
    )
}

#[test]
fn hello_and_preamble_keep_their_bytes() {
    assert_wire("preamble_hmac", &preamble(&Security::Hmac { secret: Vec::new() }));
    for (name, hello) in [("hello_standby", Hello { cluster_id: None, ..hello(1) }), ("hello_member", hello(3))] {
        assert_wire(name, &encode(&hello));
        assert_eq!(decode::<Hello>(&encode(&hello)).unwrap(), hello);
    }
}

#[test]
fn proofs_keep_their_bytes_and_differ_by_role_and_refusal() {
    let transcript = Transcript { opening: b"opening", challenge: b"challenge" };
    let dialler = transcript.mac(&SECRET, DIALLER, None).unwrap();
    assert_wire("proof_dialler", &dialler);
    assert_ne!(Some(dialler), transcript.mac(&SECRET, LISTENER, None));
    assert_ne!(transcript.mac(&SECRET, LISTENER, None), transcript.mac(&SECRET, LISTENER, Some("no")));
    assert_ne!(Some(dialler), transcript.mac(&OTHER, DIALLER, None));
}

#[tokio::test]
async fn both_sides_learn_who_the_other_is() {
    let (one, two) = (Door::of(1), Door::of(2));
    let (dialled, accepted) = shake(&one, &two, 2, (&SECRET, &SECRET)).await;
    assert_eq!(dialled.unwrap(), hello(2));
    assert_eq!(accepted.unwrap(), (hello(1), Lane::Control));
    assert_eq!(*one.seen.lock().unwrap(), Some(hello(2)));
    assert_eq!(*two.seen.lock().unwrap(), Some(hello(1)));
}

#[tokio::test]
async fn a_wrong_secret_is_refused_by_both_before_the_doorkeepers_are_asked() {
    let (one, two) = (Door::of(1), Door::of(2));
    let (dialled, accepted) = shake(&one, &two, 2, (&SECRET, &OTHER)).await;
    assert!(matches!(dialled, Err(HandshakeError::RefusedByPeer(text)) if text.contains("secrets")));
    assert!(matches!(accepted, Err(HandshakeError::Unproven(_))));
    assert!(one.seen.lock().unwrap().is_none() && two.seen.lock().unwrap().is_none());
}

#[tokio::test]
async fn a_doorkeepers_refusal_is_told_to_the_other_side_whichever_side_it_is() {
    let refusing = |node| Door { verdict: Err("another cluster\n".to_owned()), ..Door::of(node) };
    let (dialled, accepted) = shake(&Door::of(1), &refusing(2), 2, (&SECRET, &SECRET)).await;
    assert!(matches!(dialled, Err(HandshakeError::RefusedByPeer(text)) if text == "another cluster "));
    assert!(matches!(accepted, Err(HandshakeError::RefusedHere { peer, .. }) if peer == hello(1)));

    let (dialled, accepted) = shake(&refusing(1), &Door::of(2), 2, (&SECRET, &SECRET)).await;
    assert!(matches!(dialled, Err(HandshakeError::RefusedHere { peer, .. }) if peer == hello(2)));
    assert!(matches!(accepted, Err(HandshakeError::RefusedByPeer(text)) if text == "another cluster "));
}

#[tokio::test]
async fn a_node_that_was_not_meant_or_has_the_same_number_or_another_version_is_refused() {
    let (dialled, _) = shake(&Door::of(1), &Door::of(3), 2, (&SECRET, &SECRET)).await;
    assert!(matches!(dialled, Err(HandshakeError::RefusedByPeer(text)) if text.contains("this is node 3, not node 2")));

    let (dialled, _) = shake(&Door::of(2), &Door::of(2), 2, (&SECRET, &SECRET)).await;
    assert!(matches!(dialled, Err(HandshakeError::RefusedByPeer(text)) if text.contains("calls itself node 2")));

    let newer = Door { hello: Hello { version: PROTOCOL_VERSION + 1, ..hello(1) }, ..Door::of(1) };
    let (dialled, _) = shake(&newer, &Door::of(2), 2, (&SECRET, &SECRET)).await;
    assert!(
        matches!(dialled, Err(HandshakeError::RefusedByPeer(text)) if text.contains(&format!("version {}", newer.hello.version)))
    );
}

/// Someone without the secret who answers with what the dialler itself proved.
#[tokio::test]
async fn a_reflected_proof_proves_nothing() {
    let (mut left, mut right) = duplex(HANDSHAKE_FRAME_BYTES_MAX);
    let one = Door::of(1);
    let attacker = async {
        let opening: Opening = decode(&receive(&mut right).await.unwrap()).unwrap();
        send(&mut right, &encode(&Challenge { hello: hello(2), nonce: opening.nonce })).await.unwrap();
        let proof: Proof = decode(&receive(&mut right).await.unwrap()).unwrap();
        send(&mut right, &encode(&Verdict { mac: proof.mac, refusal: None })).await.unwrap();
    };
    let (dialled, ()) = tokio::join!(dial(&mut left, &SECRET, &one, NodeId(2), Lane::Data), attacker);
    assert!(matches!(dialled, Err(HandshakeError::Unproven(_))));
    assert!(one.seen.lock().unwrap().is_none());
}

/// Someone without the secret who heard a whole handshake and says the dialler's part again.
#[tokio::test]
async fn a_replayed_handshake_proves_nothing() {
    let (mut left, mut heard_left) = duplex(HANDSHAKE_FRAME_BYTES_MAX);
    let (mut right, mut heard_right) = duplex(HANDSHAKE_FRAME_BYTES_MAX);
    let (one, two) = (Door::of(1), Door::of(2));
    let relay = async {
        let opening = pass(&mut heard_left, &mut heard_right).await;
        pass(&mut heard_right, &mut heard_left).await;
        let proof = pass(&mut heard_left, &mut heard_right).await;
        pass(&mut heard_right, &mut heard_left).await;
        pass(&mut heard_left, &mut heard_right).await;
        [opening, proof]
    };
    let (dialled, accepted, recorded) =
        tokio::join!(dial(&mut left, &SECRET, &one, NodeId(2), Lane::Data), accept(&mut right, &SECRET, &two), relay);
    assert!(dialled.is_ok() && accepted.is_ok());

    let (mut replaying, mut right) = duplex(HANDSHAKE_FRAME_BYTES_MAX);
    let replay = async {
        for frame in &recorded {
            send(&mut replaying, frame).await.unwrap();
        }
        receive(&mut replaying).await.unwrap();
        decode::<Verdict>(&receive(&mut replaying).await.unwrap()).unwrap()
    };
    let (accepted, verdict) = tokio::join!(accept(&mut right, &SECRET, &two), replay);
    assert!(matches!(accepted, Err(HandshakeError::Unproven(_))));
    assert!(verdict.refusal.is_some() && verdict.mac.is_none());
}

async fn pass(from: &mut DuplexStream, to: &mut DuplexStream) -> Vec<u8> {
    let frame = receive(from).await.unwrap();
    send(to, &frame).await.unwrap();
    frame
}

#[tokio::test]
async fn a_frame_too_long_for_a_handshake_is_refused_unread() {
    let (mut left, mut right) = duplex(16);
    left.write_u32(HANDSHAKE_FRAME_BYTES_MAX as u32 + 1).await.unwrap();
    let accepted = accept(&mut right, &SECRET, &Door::of(2)).await;
    assert!(matches!(accepted, Err(HandshakeError::Foreign(_))));
}
