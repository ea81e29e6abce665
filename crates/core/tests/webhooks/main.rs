//! What each command on webhooks promises, by example. The laws are in `webhooks_model`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod apps;
mod endpoints;
#[path = "../kit/mod.rs"]
mod kit;
mod lists;
mod messages;
mod outcomes;
mod removal;
mod system;

use kit::{Shard, webhooks::*};
use onceward_core::{
    codec::keys::Kind,
    command::*,
    query::{Answer, Query},
    webhooks::*,
};

const SECOND_US: u64 = 1_000_000;
const HOUR_US: u64 = 3_600 * SECOND_US;
const RETRY: Verdict = Verdict::Retry { after_us: 5 * SECOND_US };

fn sequence(shard: &Shard, endpoint: EndpointKey, message: MessageId) -> u64 {
    shard.delivery(endpoint, message).expect("a delivery").sequence
}

/// Works the expiry table off as a shard's leader would, until nothing is due or is due right behind.
fn expire_all(shard: &mut Shard) {
    let mut idle = 0;
    while idle < 2 {
        idle = if shard.expire() == 0 { idle + 1 } else { 0 };
        shard.now += 1;
    }
}

/// A shard with operational endpoints in it: one that wants everything, and one that wants nothing of ours.
fn with_operational() -> (Shard, EndpointKey) {
    let mut shard = Shard::with_acme();
    let ids = operational_ids(2);
    let indifferent = OperationalEndpoint { spec: wanting(&["nothing"], &[]), ..operational(ids[1]) };
    assert_eq!(shard.copy_operational(1, vec![operational(ids[0]), indifferent]), 1);
    (shard, operational_key(ids[0]))
}

const KINDS_OF_MESSAGE: [Kind; 7] =
    [Kind::Message, Kind::Payload, Kind::EventId, Kind::Delivery, Kind::Due, Kind::Attempt, Kind::AttemptOfEndpoint];

fn rows_of_messages(shard: &Shard) -> usize {
    KINDS_OF_MESSAGE.iter().map(|&kind| shard.rows_of(kind)).sum()
}

fn event_type_spec(description: &str) -> EventTypeSpec {
    EventTypeSpec {
        description: description.to_owned(),
        archived: false,
        deprecated: false,
        feature_flag: None,
        group_name: None,
        schemas: None,
    }
}

#[test]
fn a_command_on_the_wrong_kind_of_shard_changes_nothing() {
    let mut data = Shard::with_acme();
    data.publish(message("{}"));
    let event_type = Action::EventType(EventTypeChange::Put { name: name("user.created"), spec: event_type_spec("") });
    for mut shard in [data.reopened(), Shard::system()] {
        let of_data = vec![
            Command::Webhook(Box::new(shard.webhook(publishing(message("{}"))))),
            Command::Webhook(Box::new(shard.webhook(creating(acme(), None, everything())))),
            Command::Webhook(Box::new(shard.webhook(Action::CreateApp(CreateApp {
                uid: None,
                spec: app_spec("x"),
                get_if_exists: true,
            })))),
            Command::RecordOutcomes(shard.recording(vec![])),
            Command::CopyOperational(CopyOperational { revision: 1, endpoints: vec![] }),
        ];
        let of_system = vec![
            Command::Webhook(Box::new(shard.webhook(event_type.clone()))),
            Command::Webhook(Box::new(shard.webhook(creating(AppRef::Operational, None, everything())))),
        ];
        shard.apply_all(vec![]);
        let rows = shard.rows.clone();
        for command in if shard.id.is_system() { of_data } else { of_system } {
            assert_eq!(shard.apply(command), Reply::Misrouted);
        }
        assert_eq!(shard.rows, rows);
        let page = all_of_it();
        let of_data = [WebhookQuery::Apps { page }, WebhookQuery::App { app: acme() }];
        let of_system = [
            WebhookQuery::EventType { name: name("user.created") },
            WebhookQuery::Endpoints { app: AppRef::Operational, page },
        ];
        for query in if shard.id.is_system() { of_data } else { of_system } {
            assert_eq!(shard.ask(Query::Webhook(query)), Answer::Misrouted);
        }
    }
}
