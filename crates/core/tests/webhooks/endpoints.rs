//! Endpoints: how many there may be, their secrets and their headers.

use onceward_core::webhooks::{bounds::*, *};

use crate::{
    HOUR_US,
    kit::{Shard, webhooks::*},
};

#[test]
fn an_application_has_a_hundred_endpoints_and_the_cluster_ten() {
    for (mut shard, app, max) in
        [(Shard::with_acme(), acme(), ENDPOINTS_MAX), (Shard::system(), AppRef::Operational, OPERATIONAL_ENDPOINTS_MAX)]
    {
        let endpoints: Vec<_> = (0..max).map(|_| shard.endpoint_of(app.clone(), None, everything())).collect();
        let one_more = creating(app.clone(), None, everything());
        assert_eq!(shard.refused(one_more.clone()), Refusal::TooMany { max: u64::from(max) });
        let endpoint = EndpointRef::Id(endpoints[0].endpoint);
        assert_eq!(shard.act(Action::DeleteEndpoint(DeleteEndpoint { app, endpoint })), WebhookReply::Done);
        assert!(matches!(shard.act(one_more), WebhookReply::Endpoint { .. }));
    }
}

#[test]
fn a_rotated_secret_signs_from_its_entry_on_and_the_former_one_until_its_grace_is_over() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    assert_eq!(shard.secrets_of(endpoint), [secret(1)]);
    assert_eq!(shard.rotate(endpoint, secret(2), HOUR_US), WebhookReply::Done);
    assert_eq!(shard.secrets_of(endpoint), [secret(2), secret(1)], "the newest first");
    assert_eq!(shard.rotate(endpoint, secret(2), HOUR_US), WebhookReply::Done, "the same again is no rotation");
    assert_eq!(shard.secrets_of(endpoint), [secret(2), secret(1)]);
    shard.now += HOUR_US - 1;
    assert_eq!(shard.secrets_of(endpoint).len(), 2);
    shard.now += 1;
    assert_eq!(shard.secrets_of(endpoint), [secret(2)]);
    let WebhookAnswer::Secret(told) =
        shard.look(WebhookQuery::Secret { app: acme(), endpoint: EndpointRef::Id(endpoint.endpoint) })
    else {
        panic!("no secret")
    };
    assert_eq!(told, secret(2));

    // Back to a former one: it is the newest, and no former one any more.
    shard.rotate(endpoint, secret(3), HOUR_US);
    shard.rotate(endpoint, secret(2), HOUR_US);
    assert_eq!(shard.secrets_of(endpoint), [secret(2), secret(3)]);
    shard.rotate(endpoint, secret(4), 0);
    assert_eq!(shard.secrets_of(endpoint), [secret(4), secret(3)], "without grace it is over at once");
    shard.now += HOUR_US;
    for n in 0..FORMER_SECRETS_MAX as u8 {
        assert_eq!(shard.rotate(endpoint, secret(10 + n), HOUR_US), WebhookReply::Done);
    }
    assert_eq!(shard.secrets_of(endpoint).len(), 1 + FORMER_SECRETS_MAX);
    let rows = shard.rows.clone();
    let too_many = WebhookReply::Refused(Refusal::TooManySecrets);
    assert_eq!(shard.rotate(endpoint, secret(20), HOUR_US), too_many);
    assert_eq!(shard.rows, rows);
    shard.now += HOUR_US;
    assert_eq!(shard.rotate(endpoint, secret(20), HOUR_US), WebhookReply::Done);
}

#[test]
fn a_secret_is_never_printed() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let printed = format!("{:?} {:?}", shard.target_of(endpoint), creating(acme(), None, everything()));
    assert!(printed.contains("Secret(…)") && !printed.contains("1, 1, 1") && !printed.contains("\\x01"), "{printed}");
}

#[test]
fn headers_are_replaced_or_patched_whatever_their_case() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let set = |patch: bool, headers: &[(&str, Option<&str>)]| {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect();
        let endpoint = EndpointRef::Id(endpoint.endpoint);
        Action::SetHeaders(SetHeaders { app: acme(), endpoint, patch, headers })
    };
    let of = |shard: &Shard| shard.target_of(endpoint).unwrap().headers;
    let headers = |all: &[(&str, &str)]| -> Headers {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    shard.act(set(false, &[("X-One", Some("1")), ("x-two", Some("2"))]));
    assert_eq!(of(&shard), headers(&[("X-One", "1"), ("x-two", "2")]));
    shard.act(set(true, &[("x-one", Some("one")), ("X-Three", Some("3")), ("X-TWO", None), ("x-none", None)]));
    assert_eq!(of(&shard), headers(&[("x-one", "one"), ("X-Three", "3")]));
    let long = "v".repeat(HEADER_BYTES_MAX);
    assert_eq!(shard.refused(set(true, &[("x-long", Some(&long))])), Refusal::HeadersTooLarge);
    let names: Vec<String> = (0..=HEADERS_MAX).map(|n| format!("x-{n}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), Some("v"))).collect();
    assert_eq!(shard.refused(set(false, &many)), Refusal::HeadersTooLarge);
    assert_eq!(shard.act(set(false, &many[1..])), WebhookReply::Done);
    assert_eq!(of(&shard).len(), HEADERS_MAX);
    shard.act(set(false, &[]));
    assert_eq!(of(&shard), headers(&[]));
}

#[test]
fn an_endpoint_that_is_put_by_its_uid_keeps_it_and_by_its_id_has_what_the_call_says() {
    let mut shard = Shard::with_acme();
    let put = |shard: &mut Shard, endpoint: EndpointRef| {
        let (app, spec, secret) = (acme(), everything(), secret(1));
        match shard.act(Action::PutEndpoint(PutEndpoint { app, endpoint, uid: None, spec, secret })) {
            WebhookReply::Endpoint { endpoint, created } => (endpoint.id, endpoint.uid, created),
            other => panic!("{other:?}"),
        }
    };
    let by_uid = || EndpointRef::Uid(name("hook"));
    let (id, uid, created) = put(&mut shard, by_uid());
    assert_eq!((uid, created), (Some(name("hook")), true));
    assert_eq!(put(&mut shard, by_uid()), (id, Some(name("hook")), false), "the same call again meets the same one");
    assert_eq!(put(&mut shard, EndpointRef::Id(id)), (id, None, false));
}

#[test]
fn what_a_disabled_endpoint_has_pending_has_no_next_attempt() {
    let mut shard = Shard::with_acme();
    let endpoint = shard.endpoint(everything());
    let message = shard.publish(message("{}"));
    let next = |shard: &Shard| {
        let message = MessageRef::Id(message);
        match shard.look(WebhookQuery::Deliveries { app: acme(), message, page: all_of_it() }) {
            WebhookAnswer::Deliveries(page) => (page.items[0].status, page.items[0].next_attempt_wall_ms.is_some()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(next(&shard), (DeliveryStatus::Pending, true));
    shard.set_disabled(endpoint, true);
    assert_eq!(next(&shard), (DeliveryStatus::Pending, false));
    shard.set_disabled(endpoint, false);
    assert_eq!(next(&shard), (DeliveryStatus::Pending, true));
}
