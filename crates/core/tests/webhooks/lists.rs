//! Lists: whichever way they are walked, and whatever is filtered, everything comes once.

use onceward_core::webhooks::{bounds::*, *};

use crate::{
    RETRY, SECOND_US, event_type_spec,
    kit::{Shard, webhooks::*},
};

#[test]
fn event_types_are_listed_page_by_page_in_both_orders_and_both_directions() {
    let mut shard = Shard::system();
    let names: Vec<String> = (10..31).map(|n| format!("t{n}")).collect();
    for of in &names {
        let spec = EventTypeSpec { archived: of.ends_with('5'), ..event_type_spec("") };
        shard.act(Action::EventType(EventTypeChange::Put { name: name(of), spec }));
    }
    for (limit, include_archived, descending) in every_way() {
        let page = |cursor: Option<Name>, backwards: bool| {
            let list = WebhookQuery::EventTypes { cursor, backwards, descending, include_archived, limit };
            match shard.look(list) {
                WebhookAnswer::EventTypes { items, done } => {
                    let names: Vec<String> = items.iter().map(|item| item.name.as_str().to_owned()).collect();
                    (names, done)
                }
                other => panic!("{other:?}"),
            }
        };
        let mut expected: Vec<String> =
            names.iter().filter(|of| include_archived || !of.ends_with('5')).cloned().collect();
        if descending {
            expected.reverse();
        }
        for backwards in [false, true] {
            let (mut found, mut cursor) = (Vec::new(), None);
            loop {
                let (items, done) = page(cursor, backwards);
                assert!(items.len() <= limit as usize);
                let next = if backwards { items.first() } else { items.last() };
                cursor = next.map(|next| name(next));
                found = if backwards { [items, found].concat() } else { [found, items].concat() };
                if done {
                    break;
                }
            }
            assert_eq!(found, expected, "{limit} {include_archived} {descending} {backwards}");
        }
    }
}

fn every_way() -> impl Iterator<Item = (u32, bool, bool)> {
    [1, 2, 3, 7, 21, 22, 250].into_iter().flat_map(|limit| {
        [(false, false), (false, true), (true, false), (true, true)].map(|(one, two)| (limit, one, two))
    })
}

/// Everything that a list has, by pages in one direction; checks that each page has at most `limit` items.
fn walk<T: Clone>(limit: u32, backwards: bool, descending: bool, list: impl Fn(PageIn) -> Page<T>) -> Vec<T> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = list(PageIn { cursor, backwards, descending, limit });
        assert!(page.items.len() <= limit as usize);
        assert!(page.done || page.cursor.is_some(), "a page that is not the last one gets further");
        found = if backwards { [page.items, found].concat() } else { [found, page.items].concat() };
        cursor = page.cursor;
        if page.done {
            return found;
        }
    }
}

/// The list is the same whichever way it is walked.
fn assert_pages<T: Clone + PartialEq + std::fmt::Debug>(expected: &[T], list: impl Fn(PageIn) -> Page<T>) {
    for (limit, backwards, descending) in every_way() {
        let mut expected = expected.to_vec();
        if descending {
            expected.reverse();
        }
        assert_eq!(walk(limit, backwards, descending, &list), expected, "{limit} {backwards} {descending}");
    }
}

#[test]
fn every_list_has_everything_once_whichever_way_it_is_walked() {
    let mut shard = Shard::with_acme();
    let apps: Vec<_> = std::iter::once(shard.app_id()).chain((0..20).map(|_| shard.create_app(None).id)).collect();
    assert_pages(&apps, |page| match shard.look(WebhookQuery::Apps { page }) {
        WebhookAnswer::Apps(Page { items, done, cursor }) => {
            Page { items: items.iter().map(|app| app.id).collect(), done, cursor }
        }
        other => panic!("{other:?}"),
    });
    let endpoints: Vec<_> = (0..21).map(|_| shard.endpoint(everything())).collect();
    let ids: Vec<_> = endpoints.iter().map(|endpoint| endpoint.endpoint).collect();
    assert_pages(&ids, |page| match shard.look(WebhookQuery::Endpoints { app: acme(), page }) {
        WebhookAnswer::Endpoints(Page { items, done, cursor }) => {
            Page { items: items.iter().map(|endpoint| endpoint.id).collect(), done, cursor }
        }
        other => panic!("{other:?}"),
    });
    let messages: Vec<_> = (0..21).map(|n| shard.publish(message(&n.to_string()))).collect();
    for with_payload in [false, true] {
        assert_pages(&messages, |page| {
            let filter = MessageFilter::default();
            match shard.look(WebhookQuery::Messages { app: acme(), filter, with_payload, page }) {
                WebhookAnswer::Messages(Page { items, done, cursor }) => {
                    assert!(items.iter().all(|item| item.payload.is_some() == with_payload));
                    Page { items: items.iter().map(|message| message.id).collect(), done, cursor }
                }
                other => panic!("{other:?}"),
            }
        });
    }
    let message = MessageRef::Id(messages[3]);
    assert_pages(&ids, |page| {
        match shard.look(WebhookQuery::Deliveries { app: acme(), message: message.clone(), page }) {
            WebhookAnswer::Deliveries(Page { items, done, cursor }) => {
                Page { items: items.iter().map(|delivery| delivery.endpoint_id).collect(), done, cursor }
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn attempts_are_listed_by_message_and_by_endpoint_with_their_filters() {
    let mut shard = Shard::with_acme();
    let endpoints: Vec<_> = (0..21).map(|_| shard.endpoint(everything())).collect();
    let tagged =
        NewMessage { tags: vec!["eu".to_owned()], channels: vec!["c".to_owned()], ..message_with_id("evt", "{}") };
    let first = shard.publish(tagged);
    let others: Vec<_> =
        (0..20).map(|_| shard.publish(NewMessage { event_type: name("other"), ..message("{}") })).collect();
    for &endpoint in &endpoints {
        shard.report_one(endpoint, first, 0, if endpoint == endpoints[0] { RETRY } else { Verdict::Succeeded });
    }
    for &other in &others {
        shard.report_one(endpoints[0], other, 0, Verdict::Exhausted);
    }
    let of_message = |filter: AttemptFilter| {
        let shard = &shard;
        move |page: PageIn| {
            let (message, filter) = (MessageRef::EventId(name("evt")), filter.clone());
            match shard.look(WebhookQuery::AttemptsOfMessage { app: acme(), message, filter, page }) {
                WebhookAnswer::Attempts(Page { items, done, cursor }) => {
                    Page { items: items.iter().map(|item| (item.message, item.endpoint)).collect(), done, cursor }
                }
                other => panic!("{other:?}"),
            }
        }
    };
    let of_endpoint = |filter: AttemptFilter| {
        let (shard, endpoint) = (&shard, endpoints[0].endpoint);
        move |page: PageIn| {
            let (endpoint, filter) = (EndpointRef::Id(endpoint), filter.clone());
            match shard.look(WebhookQuery::AttemptsOfEndpoint { app: acme(), endpoint, filter, page }) {
                WebhookAnswer::Attempts(Page { items, done, cursor }) => {
                    Page { items: items.iter().map(|item| item.message).collect(), done, cursor }
                }
                other => panic!("{other:?}"),
            }
        }
    };
    let all = AttemptFilter::default;
    let of_type = |of: &str| MessageFilter { event_types: Some(vec![name(of)]), ..MessageFilter::default() };
    let by_message: Vec<_> = endpoints.iter().map(|endpoint| (first, endpoint.endpoint)).collect();
    assert_pages(&by_message, of_message(all()));
    let one = Some(EndpointRef::Id(endpoints[4].endpoint));
    assert_pages(&by_message[4..5], of_message(AttemptFilter { endpoint: one, ..all() }));
    assert_pages(&by_message[1..], of_message(AttemptFilter { status: Some(AttemptStatus::Succeeded), ..all() }));
    assert_pages(&by_message[..1], of_message(AttemptFilter { status_code_class: Some(5), ..all() }));
    assert_pages(&[], of_message(AttemptFilter { message: of_type("other"), ..all() }));

    let by_endpoint: Vec<_> = [&[first], &others[..]].concat();
    assert_pages(&by_endpoint, of_endpoint(all()));
    assert_pages(&others, of_endpoint(AttemptFilter { message: of_type("other"), ..all() }));
    assert_pages(&[first], of_endpoint(AttemptFilter { status: Some(AttemptStatus::Retrying), ..all() }));
    assert_pages(&by_endpoint, of_endpoint(AttemptFilter { status: Some(AttemptStatus::Failed), ..all() }));
    let tag = MessageFilter { tag: Some("eu".to_owned()), ..MessageFilter::default() };
    assert_pages(&[first], of_endpoint(AttemptFilter { message: tag, ..all() }));
    let before = MessageFilter { before_wall_ms: Some(1_700_000_000_000), ..MessageFilter::default() };
    assert_pages(&[], of_endpoint(AttemptFilter { message: before, ..all() }));

    let attempt = shard.attempts_of(first).remove(2);
    let get = |message: MessageId| {
        shard.look(WebhookQuery::Attempt { app: acme(), message: MessageRef::Id(message), attempt: attempt.id })
    };
    assert_eq!(get(first), WebhookAnswer::Attempt(attempt.clone()));
    assert_eq!(get(others[0]), WebhookAnswer::NotFound(Missing::Attempt));
}

#[test]
fn messages_are_listed_by_type_channel_tag_and_time() {
    let mut shard = Shard::with_acme();
    let mut messages = Vec::new();
    for n in 0..12_u32 {
        shard.now += SECOND_US;
        let (event_type, channel, tag) = (format!("t{}", n % 2), format!("c{}", n % 3), format!("g{}", n % 4));
        messages.push(shard.publish(NewMessage {
            event_type: name(&event_type),
            channels: vec!["all".to_owned(), channel],
            tags: vec![tag],
            ..message("{}")
        }));
    }
    let wall_ms = |n: u64| 1_700_000_000_000 + 2_000 + n * 1_000;
    let list = |filter: MessageFilter| {
        let shard = &shard;
        move |page: PageIn| match shard.look(WebhookQuery::Messages {
            app: acme(),
            filter: filter.clone(),
            with_payload: true,
            page,
        }) {
            WebhookAnswer::Messages(Page { items, done, cursor }) => {
                Page { items: items.iter().map(|message| message.id).collect(), done, cursor }
            }
            other => panic!("{other:?}"),
        }
    };
    let none = MessageFilter::default;
    let every = |step: usize, from: usize| messages[from..].iter().step_by(step).copied().collect::<Vec<_>>();
    assert_pages(&every(2, 1), list(MessageFilter { event_types: Some(vec![name("t1"), name("t9")]), ..none() }));
    assert_pages(&every(3, 2), list(MessageFilter { channel: Some("c2".to_owned()), ..none() }));
    assert_pages(&messages, list(MessageFilter { channel: Some("all".to_owned()), ..none() }));
    assert_pages(&every(4, 3), list(MessageFilter { tag: Some("g3".to_owned()), ..none() }));
    assert_pages(&messages[..5], list(MessageFilter { before_wall_ms: Some(wall_ms(5)), ..none() }));
    assert_pages(&messages[6..], list(MessageFilter { after_wall_ms: Some(wall_ms(5)), ..none() }));
    assert_pages(&[], list(MessageFilter { event_types: Some(vec![]), ..none() }));
}

#[test]
fn a_page_comes_short_rather_than_slow_or_large_and_goes_on() {
    let mut shard = Shard::with_acme();
    let large = "x".repeat(PAYLOAD_BYTES_MAX);
    let messages: Vec<_> = (0..9).map(|_| shard.publish(message(&large))).collect();
    let list = |page| match shard.look(WebhookQuery::Messages {
        app: acme(),
        filter: MessageFilter::default(),
        with_payload: true,
        page,
    }) {
        WebhookAnswer::Messages(page) => page,
        other => panic!("{other:?}"),
    };
    let page = list(all_of_it());
    assert!(!page.done && page.items.len() < 6, "{} items", page.items.len());
    assert_pages(&messages, |page| {
        let Page { items, done, cursor } = list(page);
        Page { items: items.iter().map(|message| message.id).collect(), done, cursor }
    });

    let mut shard = Shard::with_acme();
    for _ in 0..PAGE_ROWS_READ_MAX {
        shard.publish(message("{}"));
    }
    let rare = shard.publish(NewMessage { event_type: name("rare"), ..message("{}") });
    let filter = MessageFilter { event_types: Some(vec![name("rare")]), ..MessageFilter::default() };
    let list = |page| match shard.look(WebhookQuery::Messages {
        app: acme(),
        filter: filter.clone(),
        with_payload: false,
        page,
    }) {
        WebhookAnswer::Messages(page) => page,
        other => panic!("{other:?}"),
    };
    let page = list(all_of_it());
    assert!(page.items.is_empty() && !page.done && page.cursor.is_some());
    let page = list(PageIn { cursor: page.cursor, ..all_of_it() });
    assert!(page.items[0].id == rare && page.done);
}
