//! Calls of the webhooks API as tests make them, and the judge of what a receiver got: every accepted message, duplicates
//! alike, sequences without gaps.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    client::{Answer, Api, NoAnswer, Outcome},
    receiver::{Delivery, Receiver},
};

/// How long a call is made again before it counts as never answered.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Between two tries.
const REST: Duration = Duration::from_millis(20);

/// An endpoint of an application, at a path of a receiver.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub app: String,
    pub id: String,
    pub path: String,
    pub secret: String,
}

/// A message as it was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    pub id: String,
    pub event_type: String,
    /// The payload's text.
    pub payload: String,
}

/// What a receiver got at an endpoint, as [`judge`] found it right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    pub messages: usize,
    /// Deliveries beyond the first of each message.
    pub repeated: usize,
}

impl Api {
    /// A call below `/api/v1`.
    pub async fn webhooks(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.try_json(method, &format!("/api/v1{path}"), body)
            .await
            .unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
    }

    pub async fn webhooks_get(&self, path: &str) -> Answer {
        self.get(&format!("/api/v1{path}")).await
    }

    /// An application with this uid; returns its id.
    pub async fn create_app(&self, uid: &str) -> String {
        let answer = self.webhooks("POST", "/app", &json!({ "name": uid, "uid": uid })).await.expect_status(201);
        answer.json()["id"].as_str().unwrap_or_else(|| panic!("no id in {answer:?}")).to_owned()
    }

    /// An endpoint at a path of the receiver; `more`: what its body has besides.
    pub async fn create_endpoint(&self, app: &str, receiver: &Receiver, path: &str, more: Value) -> Endpoint {
        self.create_endpoint_at(app, &receiver.url(path), path, more).await
    }

    pub async fn create_endpoint_at(&self, app: &str, url: &str, path: &str, more: Value) -> Endpoint {
        let mut body = json!({ "url": url });
        for (name, value) in more.as_object().expect("members of an endpoint") {
            body[name] = value.clone();
        }
        let made = self.webhooks("POST", &format!("/app/{app}/endpoint"), &body).await.expect_status(201).json();
        let id = made["id"].as_str().unwrap_or_else(|| panic!("no id in {made}")).to_owned();
        let secret = self.secret(app, &id).await;
        Endpoint { app: app.to_owned(), id, path: path.to_owned(), secret }
    }

    pub async fn secret(&self, app: &str, endpoint: &str) -> String {
        let answer = self.webhooks_get(&format!("/app/{app}/endpoint/{endpoint}/secret")).await.expect_status(200);
        answer.json()["key"].as_str().unwrap_or_else(|| panic!("no key in {answer:?}")).to_owned()
    }

    pub async fn try_publish(&self, app: &str, message: &str) -> Result<Answer, NoAnswer> {
        let headers = [("content-type", "application/json")];
        self.send("POST", &format!("/api/v1/app/{app}/msg"), &headers, message.as_bytes().to_vec()).await
    }

    /// Publishes and returns what was accepted; anything but 202 panics.
    pub async fn publish(&self, app: &str, event_type: &str, payload: &Value) -> Accepted {
        let message = json!({ "eventType": event_type, "payload": payload }).to_string();
        let answer = self.try_publish(app, &message).await.unwrap_or_else(|error| panic!("{message}: {error:?}"));
        accepted(&answer.expect_status(202), payload)
    }

    /// The attempts at a message, the newest first.
    pub async fn attempts(&self, app: &str, message: &str) -> Vec<Value> {
        let answer = self.webhooks_get(&format!("/app/{app}/attempt/msg/{message}?limit=250")).await.expect_status(200);
        answer.json()["data"].as_array().unwrap_or_else(|| panic!("no list in {answer:?}")).clone()
    }

    /// Waits until so many attempts at a message are recorded; returns all there are then, the newest first.
    pub async fn wait_attempts(&self, app: &str, message: &str, count: usize, at_most: Duration) -> Vec<Value> {
        let deadline = Instant::now() + at_most;
        loop {
            let attempts = self.attempts(app, message).await;
            if attempts.len() >= count {
                return attempts;
            }
            assert!(Instant::now() < deadline, "{count} attempts at {message} in {at_most:?}: {attempts:#?}");
            tokio::time::sleep(REST).await;
        }
    }
}

/// Publishes under an event id, through one node after the other, until it is known to be accepted: with an event id it
/// lands once. Also says how often it was tried again.
pub async fn publish_until_known(
    apis: &[Api],
    turn: usize,
    app: &str,
    event_type: &str,
    event_id: &str,
    payload: &Value,
) -> (Accepted, usize) {
    let message = json!({ "eventType": event_type, "eventId": event_id, "payload": payload }).to_string();
    let deadline = Instant::now() + ANSWER_MAX;
    for tries in 0.. {
        let answer = apis[(turn + tries) % apis.len()].try_publish(app, &message).await;
        match Outcome::of(&answer) {
            Outcome::Done => {
                let answer = answer.expect("it is done").expect_status(202);
                return (accepted(&answer, payload), tries);
            }
            Outcome::Unknown | Outcome::NotApplied => {}
            other => panic!("{event_id}: {other:?}: {answer:?}"),
        }
        assert!(Instant::now() < deadline, "{event_id} is not accepted: {answer:?}");
        tokio::time::sleep(REST).await;
    }
    unreachable!("the deadline ends it")
}

fn accepted(answer: &Answer, payload: &Value) -> Accepted {
    let message = answer.json();
    let text = |name: &str| message[name].as_str().unwrap_or_else(|| panic!("no {name} in {message}")).to_owned();
    Accepted { id: text("id"), event_type: text("eventType"), payload: payload.to_string() }
}

/// Judges what came to an endpoint, given all messages that were accepted for it. Panics unless each of them came, and
/// nothing else, signed; duplicates with the same id have the same body and sequence; and the sequences are 1, 2, 3 …
/// in the order of the messages' ids, which is that of their commits.
pub fn judge(what: &str, deliveries: &[Delivery], accepted: &[Accepted], secret: &str) -> Received {
    let accepted: BTreeMap<&str, &Accepted> = accepted.iter().map(|message| (message.id.as_str(), message)).collect();
    let mut first: BTreeMap<&str, &Delivery> = BTreeMap::new();
    let mut repeated = 0;
    for delivery in deliveries {
        let id = delivery.id();
        let message = accepted.get(id).unwrap_or_else(|| panic!("{what}: nobody published {id}: {delivery:?}"));
        assert_eq!(delivery.text(), message.payload, "{what}: the body of {id}");
        assert!(delivery.is_signed_with(secret), "{what}: {delivery:?} is not signed with its endpoint's secret");
        match first.get(id) {
            Some(other) => {
                assert_eq!(delivery.sequence(), other.sequence(), "{what}: {id} has two sequences");
                repeated += 1;
            }
            None => drop(first.insert(id, delivery)),
        }
    }
    let missing: Vec<&&str> = accepted.keys().filter(|id| !first.contains_key(*id)).collect();
    assert!(missing.is_empty(), "{what}: {} of {} are missing: {missing:?}", missing.len(), accepted.len());
    for (expected, (id, delivery)) in (1..).zip(&first) {
        assert_eq!(delivery.sequence(), expected, "{what}: {id} is number {expected} by its id");
    }
    Received { messages: first.len(), repeated }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;
    use standardwebhooks::Webhook;

    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn delivery(id: &str, sequence: u64, body: &str) -> Delivery {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
        let signature = Webhook::new(SECRET).unwrap().sign(id, now, body.as_bytes()).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", id.parse().unwrap());
        headers.insert("webhook-timestamp", now.into());
        headers.insert("webhook-signature", signature.parse().unwrap());
        headers.insert("onceward-sequence", sequence.into());
        Delivery { at: Instant::now(), path: "/".into(), headers, body: body.into(), status: 200 }
    }

    fn message(id: &str) -> Accepted {
        Accepted { id: id.into(), event_type: "t".into(), payload: "{}".into() }
    }

    fn rejects(deliveries: &[Delivery]) -> bool {
        let accepted = [message("msg_1"), message("msg_2")];
        std::panic::catch_unwind(|| judge("fixture", deliveries, &accepted, SECRET)).is_err()
    }

    #[test]
    fn the_judge_accepts_a_whole_history_and_rejects_each_broken_one() {
        let (one, two) = (delivery("msg_1", 1, "{}"), delivery("msg_2", 2, "{}"));
        let whole = [two.clone(), one.clone(), two.clone()];
        let accepted = [message("msg_1"), message("msg_2")];
        assert_eq!(judge("fixture", &whole, &accepted, SECRET), Received { messages: 2, repeated: 1 });
        let mut forged = two.clone();
        forged.headers.insert("webhook-timestamp", 1.into());
        for (what, second) in [
            ("a gap", delivery("msg_2", 3, "{}")),
            ("another order", delivery("msg_2", 1, "{}")),
            ("another body", delivery("msg_2", 2, "[]")),
            ("a message of nobody", delivery("msg_3", 2, "{}")),
            ("a wrong signature", forged),
        ] {
            assert!(rejects(&[one.clone(), second]), "{what}");
        }
        assert!(rejects(std::slice::from_ref(&one)), "a message that is missing");
        assert!(rejects(&[one.clone(), two, delivery("msg_1", 2, "{}")]), "a duplicate with another sequence");
        assert!(rejects(&[one.clone(), delivery("msg_1", 1, "{}"), delivery("msg_2", 1, "{}")]), "a sequence twice");
    }
}
