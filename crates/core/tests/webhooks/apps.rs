//! Applications: their names, and where they are found.

use onceward_core::{
    cluster::{Generation, Manifest, NodeEntry, NodeId, ShardId},
    command::*,
    idempotency::{BeginCommand, CompleteCommand, CompleteReply, Publishing},
    machine::Machine,
    webhooks::*,
};

use crate::kit::{
    Shard,
    idempotency::{account, key, response},
    webhooks::*,
};

fn manifest() -> Manifest {
    let node = NodeEntry {
        id: NodeId(1),
        generation: Generation(0),
        incarnation: 0,
        http_address: String::new(),
        peer_address: String::new(),
    };
    Manifest { cluster_id: 1, data_shards: 8, nodes: vec![node] }
}

#[test]
fn ids_sort_by_age_and_say_where_they_were_made() {
    let mut shard = Shard::data();
    let mut last = String::new();
    for entry in 0..4 {
        let create = |_| {
            let create = CreateApp { uid: None, spec: app_spec("Acme"), get_if_exists: false };
            Command::Webhook(Box::new(shard.webhook(Action::CreateApp(create))))
        };
        let commands = (0..3).map(create).collect();
        for reply in shard.apply_all(commands) {
            let Reply::Webhook(reply) = reply else { panic!("{reply:?}") };
            let WebhookReply::App { app, created: true } = *reply else { panic!("{reply:?}") };
            let text = app.id.to_string();
            assert!(text > last, "{text} behind {last}");
            assert_eq!((AppId::parse(&text), app.id.shard()), (Some(app.id), shard.id));
            // Whoever has the id knows the way, and so has whoever has it as an account's name.
            assert_eq!(manifest().app_shard(&AppRef::Id(app.id)), Some(shard.id));
            assert_eq!(manifest().account_shard(&app.account()), shard.id);
            last = text;
        }
        // In the second entry the clock stands still, in the third it has moved on.
        shard.now += entry % 2;
        shard = shard.reopened();
    }
    let elsewhere = Manifest { data_shards: 8, ..manifest() };
    let far = Shard { id: ShardId(9), machine: Machine::new(ShardId(9)), ..Shard::data() }.create_app(None).id;
    assert_eq!(elsewhere.app_shard(&AppRef::Id(far)), None, "no shard of this cluster made it");
    assert_eq!(manifest().app_shard(&acme()), Some(manifest().account_shard("acme")));
}

#[test]
fn an_application_is_the_account_of_its_uid_or_of_its_id_where_it_has_none() {
    let mut shard = Shard::data();
    let named = shard.app("acme");
    let unnamed = shard.create_app(None);
    assert_eq!(named.account(), "acme");
    assert_eq!(unnamed.account(), unnamed.id.to_string());
    for (of, is_account) in [("acme".to_owned(), true), (unnamed.account(), true), (named.id.to_string(), false)] {
        let (of, key) = (account(&of), key("k"));
        let token = shard.start(BeginCommand { account: of.clone(), ..shard.beginning("1") });
        let publishing = Publishing { messages: vec![message("{}")], retention_us: RETENTION_US, nonce: NONCE };
        let (response, wall_ms) = (response("ok"), shard.wall_ms());
        let complete = CompleteCommand { account: of, key, token, response, wall_ms, publishing };
        let reply = shard.apply(Command::Complete(complete));
        let is_completed = matches!(reply, Reply::Complete(CompleteReply::Completed { .. }));
        assert_eq!(is_completed, is_account, "{reply:?}");
    }
}

#[test]
fn an_applications_uid_is_fixed_when_it_is_made() {
    let mut shard = Shard::data();
    let named = AppRef::Id(shard.app("acme").id);
    let unnamed = AppRef::Id(shard.create_app(None).id);
    let put = |app: &AppRef, uid: Option<&str>| {
        Action::PutApp(PutApp { app: app.clone(), uid: uid.map(name), spec: app_spec("New") })
    };
    let patch = |app: &AppRef, uid: Option<&str>| {
        Action::PatchApp(PatchApp {
            app: app.clone(),
            patch: AppPatch { uid: Some(uid.map(name)), ..AppPatch::default() },
        })
    };
    for action in [
        put(&named, Some("other")),
        put(&unnamed, Some("other")),
        patch(&named, Some("other")),
        patch(&named, None),
        patch(&unnamed, Some("other")),
        put(&AppRef::Uid(name("other")), Some("another")),
    ] {
        assert_eq!(shard.refused(action), Refusal::UidFixed);
    }
    // The one that it has is no change, and a body that names none leaves it.
    for action in [put(&named, Some("acme")), patch(&named, Some("acme")), patch(&unnamed, None), put(&named, None)] {
        assert!(matches!(shard.act(action), WebhookReply::App { created: false, .. }));
    }
    let WebhookAnswer::App(app) = shard.look(WebhookQuery::App { app: acme() }) else { panic!("no app") };
    assert_eq!((app.uid, app.spec.name.as_str()), (Some(name("acme")), "New"));
}

#[test]
fn creating_an_application_twice_is_refused_unless_the_one_that_is_there_will_do() {
    let mut shard = Shard::data();
    let first = shard.app("acme");
    let again = |get_if_exists| {
        Action::CreateApp(CreateApp { uid: Some(name("acme")), spec: app_spec("Other"), get_if_exists })
    };
    assert_eq!(shard.refused(again(false)), Refusal::Taken);
    assert_eq!(shard.act(again(true)), WebhookReply::App { app: first.clone(), created: false });
    assert_eq!(shard.act(Action::DeleteApp { app: acme() }), WebhookReply::Done);
    let WebhookReply::App { app, created: true } = shard.act(again(true)) else { panic!("not made anew") };
    assert!(app.id > first.id);
}

#[test]
fn put_makes_what_its_path_names_by_a_uid_and_never_by_an_id() {
    let mut shard = Shard::data();
    let put =
        |app: &str| Action::PutApp(PutApp { app: AppRef::parse(app).unwrap(), uid: None, spec: app_spec("Acme") });
    assert!(matches!(shard.act(put("acme")), WebhookReply::App { created: true, .. }));
    let app_id = shard.app_id();
    let other_id = shard.endpoint(everything()).endpoint;
    let gone = shard.create_app(None).id;
    shard.act(Action::DeleteApp { app: AppRef::Id(gone) });
    assert_eq!(shard.refused(put(&gone.to_string())), Refusal::NoApp);
    // An id of another kind reads as a uid, but as one that nobody can have.
    assert_eq!(shard.refused(put(&other_id.to_string())), Refusal::NoApp);
    assert_eq!(Name::parse_uid(&app_id.to_string()), Err(NameError::IsId));

    let put = |endpoint: &str, uid: Option<&str>| {
        let endpoint = EndpointRef::parse(endpoint).unwrap();
        let (uid, spec, secret) = (uid.map(name), everything(), secret(2));
        Action::PutEndpoint(PutEndpoint { app: acme(), endpoint, uid, spec, secret })
    };
    let WebhookReply::Endpoint { endpoint, created: true } = shard.act(put("hook", None)) else { panic!("not made") };
    assert_eq!(endpoint.uid, Some(name("hook")));
    assert_eq!(shard.refused(put(&app_id.to_string(), None)), Refusal::NoEndpoint);
    shard.delete_endpoint(EndpointKey { app: app_id, endpoint: other_id });
    assert_eq!(shard.refused(put(&other_id.to_string(), None)), Refusal::NoEndpoint);

    // Unlike an application's, an endpoint's uid may change, but not to one that is taken.
    let WebhookReply::Endpoint { endpoint: renamed, created: false } = shard.act(put("hook", Some("new"))) else {
        panic!("made")
    };
    assert_eq!((renamed.id, renamed.uid), (endpoint.id, Some(name("new"))));
    let key = EndpointKey { app: app_id, endpoint: endpoint.id };
    assert_eq!(shard.secrets_of(key), [secret(2)], "a put of one that is there keeps its secret");
    assert!(matches!(shard.act(put("hook", None)), WebhookReply::Endpoint { created: true, .. }), "free again");
    assert_eq!(shard.refused(put("hook", Some("new"))), Refusal::Taken);
    assert_eq!(shard.refused(creating(acme(), Some("new"), everything())), Refusal::Taken);
}

#[test]
fn a_changed_rate_limit_of_an_application_reaches_all_of_its_endpoints() {
    let mut shard = Shard::with_acme();
    let endpoints = [(); 2].map(|()| shard.endpoint(everything()));
    shard.machine.take_moved();
    let patch = AppPatch { rate_limit: Some(Some(1)), ..AppPatch::default() };
    shard.act(Action::PatchApp(PatchApp { app: acme(), patch }));
    let told = shard.machine.take_moved();
    assert_eq!(told, endpoints.map(onceward_core::codec::keys::endpoint_state), "their dispatcher looks again");
}
