//! What an account is told of its payments: a webhook that goes into Onceward with the completion of the payment's key, so
//! that there is never one without the other.
//!
//! It is made from the stored answer and nothing else: whoever completes the key, the message is the same.

use serde_json::{Value, json};

use crate::response::StoredResponse;

/// The message about an answer; `None`: a payment that was not made is told to nobody but its client.
pub fn of(response: &StoredResponse) -> Option<Value> {
    if response.status != 201 {
        return None;
    }
    let payment: Value = serde_json::from_str(&response.body).ok()?;
    Some(json!({
        "eventType": "payment.created",
        // A message with this id is published once, whoever publishes it.
        "eventId": payment["id"],
        "payload": { "type": "payment.created", "data": payment },
    }))
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn a_payment_is_told_with_its_own_id_and_a_refusal_is_not() {
        let body = json!({ "id": "pay_1", "amount_cents": 100 });
        let paid = StoredResponse::new(StatusCode::CREATED, "application/json", body.to_string());
        let message = of(&paid).unwrap();
        assert_eq!((&message["eventId"], &message["payload"]["data"]), (&json!("pay_1"), &body));
        assert_eq!(of(&paid), Some(message), "always the same");
        let declined = StoredResponse::new(StatusCode::PAYMENT_REQUIRED, "application/problem+json", "{}".into());
        assert_eq!(of(&declined), None);
    }
}
