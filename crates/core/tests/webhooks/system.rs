//! The system shard: operational endpoints and their copies, and event types.

use std::collections::BTreeMap;

use onceward_core::{
    codec::keys::Kind,
    webhooks::{bounds::*, *},
};

use crate::{
    HOUR_US, SECOND_US, event_type_spec, expire_all,
    kit::{Shard, webhooks::*},
    rows_of_messages, with_operational,
};

#[test]
fn operational_endpoints_are_copied_whole_and_only_upwards() {
    let (mut shard, told) = with_operational();
    let endpoint = shard.endpoint(everything());
    let messages = [(); 2].map(|()| shard.publish(message("{}")));
    shard.report_one(endpoint, messages[0], 0, Verdict::Exhausted);
    let numbered = shard.delivery(told, shard.due_now(told)[0]).unwrap().sequence;
    let rows = shard.rows.clone();
    for older in [0, 1] {
        assert_eq!(shard.copy_operational(older, vec![]), 1);
    }
    assert_eq!(shard.rows, rows);

    let moved = EndpointSpec { url: "https://other.example".to_owned(), ..everything() };
    let former = vec![(secret(8), HOUR_US)];
    shard.copy_operational(7, vec![OperationalEndpoint { spec: moved, former, ..operational(told.endpoint) }]);
    assert_eq!(shard.look(WebhookQuery::OperationalRevision), WebhookAnswer::OperationalRevision(7));
    let target = shard.target_of(told).unwrap();
    assert_eq!((target.url.as_str(), target.secrets), ("https://other.example", vec![secret(9), secret(8)]));
    shard.now += HOUR_US;
    assert_eq!(shard.secrets_of(told), [secret(9)], "the grace runs by this shard's clock");
    shard.report_one(endpoint, messages[1], 0, Verdict::Exhausted);
    let second = *shard.due_now(told).last().unwrap();
    assert_eq!(shard.delivery(told, second).unwrap().sequence, numbered + 1, "the copy keeps what it counts");

    // One that is not among them is removed, with what is pending.
    shard.copy_operational(8, vec![]);
    assert_eq!(shard.target_of(told), None);
    expire_all(&mut shard);
    assert!(shard.pending(told).is_empty());
    let kinds = [Kind::Clearing, Kind::EndpointState].map(|kind| shard.rows_of(kind));
    assert_eq!(kinds, [0, 1], "only that of acme's endpoint is left");
    shard.now += RETENTION_US;
    expire_all(&mut shard);
    assert_eq!(rows_of_messages(&shard), 0);
}

#[test]
fn the_system_shard_counts_each_change_of_an_operational_endpoint() {
    let mut shard = Shard::system();
    let all = |shard: &Shard| match shard.look(WebhookQuery::Operational) {
        WebhookAnswer::Operational(copy) => copy,
        other => panic!("{other:?}"),
    };
    let endpoint = shard.endpoint_of(AppRef::Operational, Some("ops"), everything()).endpoint;
    assert_eq!(all(&shard).revision, 1);
    let rotate = |secret, grace_us| {
        let endpoint = EndpointRef::Uid(name("ops"));
        Action::RotateSecret(RotateSecret { app: AppRef::Operational, endpoint, secret, grace_us })
    };
    assert_eq!(shard.act(rotate(secret(2), HOUR_US)), WebhookReply::Done);
    shard.now += HOUR_US / 2;
    shard.apply_all(vec![]);
    let copy = all(&shard);
    assert_eq!((copy.revision, copy.endpoints.len()), (2, 1));
    let copied = &copy.endpoints[0];
    assert_eq!((copied.id, &copied.secret), (endpoint, &secret(2)));
    assert_eq!(copied.former, [(secret(1), HOUR_US / 2)], "with the time that is left");
    let app = AppRef::Operational;
    let patch = EndpointPatch { uid: Some(None), disabled: Some(true), ..EndpointPatch::default() };
    shard.act(Action::PatchEndpoint(PatchEndpoint { app: app.clone(), endpoint: EndpointRef::Id(endpoint), patch }));
    shard.act(Action::SetHeaders(SetHeaders {
        app: app.clone(),
        endpoint: EndpointRef::Id(endpoint),
        patch: false,
        headers: BTreeMap::new(),
    }));
    assert_eq!(all(&shard).revision, 4);
    assert!(all(&shard).endpoints[0].spec.disabled);
    shard.act(Action::DeleteEndpoint(DeleteEndpoint { app, endpoint: EndpointRef::Id(endpoint) }));
    assert_eq!(all(&shard), CopyOperational { revision: 5, endpoints: vec![] });
    expire_all(&mut shard);
    assert!(shard.rows.expiry.is_empty());
    // To the cluster itself nothing but endpoints belongs.
    for action in [
        Action::PutApp(PutApp { app: AppRef::Operational, uid: None, spec: app_spec("x") }),
        Action::PatchApp(PatchApp { app: AppRef::Operational, patch: AppPatch::default() }),
        Action::DeleteApp { app: AppRef::Operational },
        Action::Publish(Publish { app: AppRef::Operational, message: message("{}"), retention_us: 1 }),
    ] {
        assert_eq!(shard.refused(action), Refusal::NoApp);
    }
}

#[test]
fn event_types_are_archived_and_come_back_or_are_expunged() {
    let mut shard = Shard::system();
    let change = |change| Action::EventType(change);
    let (create, put) = (
        |of: &str| change(EventTypeChange::Create { name: name(of), spec: event_type_spec("first") }),
        |of: &str| change(EventTypeChange::Put { name: name(of), spec: event_type_spec("put") }),
    );
    let delete = |of: &str, expunge| change(EventTypeChange::Delete { name: name(of), expunge });
    let stored = |reply: WebhookReply| match reply {
        WebhookReply::EventType { event_type, created } => (event_type, created),
        other => panic!("{other:?}"),
    };
    let (first, created) = stored(shard.act(create("user.created")));
    assert!(created);
    assert_eq!(shard.refused(create("user.created")), Refusal::Taken);
    shard.now += SECOND_US;
    assert_eq!(shard.act(delete("user.created", false)), WebhookReply::Done);
    let (again, created) = stored(shard.act(create("user.created")));
    assert_eq!((again.spec.archived, created, again.created_wall_ms), (false, true, first.created_wall_ms));
    assert!(!stored(shard.act(put("user.created"))).1 && stored(shard.act(put("user.deleted"))).1);
    let patch = EventTypePatch { deprecated: Some(true), group_name: Some(Some(name("user"))), ..Default::default() };
    let (patched, _) = stored(shard.act(change(EventTypeChange::Patch { name: name("user.deleted"), patch })));
    assert_eq!((patched.spec.description.as_str(), patched.spec.deprecated), ("put", true));

    assert_eq!(shard.act(delete("user.created", true)), WebhookReply::Done);
    let get = |of: &str| shard.look(WebhookQuery::EventType { name: name(of) });
    assert_eq!(get("user.created"), WebhookAnswer::NotFound(Missing::EventType));
    assert_eq!(get("user.deleted"), WebhookAnswer::EventType(patched));
    assert_eq!(shard.refused(delete("user.created", true)), Refusal::NoEventType);

    for n in 1..EVENT_TYPES_MAX {
        shard.act(create(&format!("t{n}")));
    }
    assert_eq!(shard.refused(create("more")), Refusal::TooMany { max: EVENT_TYPES_MAX });
    assert_eq!(shard.act(delete("t7", true)), WebhookReply::Done);
    assert!(stored(shard.act(create("more"))).1, "one that is gone makes room");
}
