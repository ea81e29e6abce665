//! G5: every accepted message is delivered at least once to each endpoint that it matched, or ends visibly. What comes more
//! than once is the same each time, and nothing comes that nobody published.

use std::collections::{BTreeMap, HashMap};

use crate::{
    endpoints::{self, EndpointName},
    history::{Call, Delivery, History, Reply},
    messages::{self, Event, Published},
    time::seconds,
    verdict::{Checker, Verdict},
};

pub struct Delivered;

/// `fail` among the statuses of a delivery.
const FAILED: u8 = 2;

impl Checker for Delivered {
    fn promise(&self) -> &'static str {
        "G5"
    }

    fn check(&self, history: &History) -> Verdict {
        let mut verdict = Verdict::new(self.promise());
        let published = messages::published(history);
        let mut log: HashMap<(EndpointName<'_>, &str), Vec<&Delivery>> = HashMap::new();
        for delivery in &history.deliveries {
            let endpoint = (delivery.app.as_str(), delivery.endpoint.as_str());
            log.entry((endpoint, &delivery.event_id)).or_default().push(delivery);
        }
        verdict.judged("requests received", history.deliveries.len());
        everything_arrives(history, &published, &log, &mut verdict);
        nothing_else_arrives(history, &published, &mut verdict);
        repeats_are_alike(&log, &mut verdict);
        verdict.told_briefly()
    }
}

type Log<'a> = HashMap<(EndpointName<'a>, &'a str), Vec<&'a Delivery>>;

fn everything_arrives<'a>(
    history: &'a History,
    published: &BTreeMap<Event<'a>, Published<'a>>,
    log: &Log<'a>,
    verdict: &mut Verdict,
) {
    let statuses = last_statuses(history);
    let (mut arrived, mut ended, mut unjudged) = (0, 0, 0);
    for (endpoint, known) in endpoints::endpoints(history) {
        if known.may_be_deleted || known.may_be_disabled {
            unjudged += 1;
            continue;
        }
        let (app, name) = endpoint;
        let of_app = published.range((app, "")..).take_while(|((of, _), _)| *of == app);
        for ((_, event_id), message) in of_app {
            if message.accepted_us.is_none() || !message.possible() || known.created_us >= message.first_us {
                continue;
            }
            let requests = log.get(&(endpoint, *event_id)).map_or(&[][..], Vec::as_slice);
            if requests.iter().any(|request| request.answered.is_some_and(|status| (200..300).contains(&status))) {
                arrived += 1;
                continue;
            }
            let told = match statuses.get(&(endpoint, *event_id)) {
                Some(Some(FAILED)) => {
                    ended += 1;
                    continue;
                }
                Some(Some(0)) => "is said to be delivered",
                Some(Some(_)) => "is still pending",
                Some(None) => "has no delivery",
                None => "was not asked about",
            };
            let accepted = seconds(message.accepted_us.unwrap_or_default());
            let count = requests.len();
            verdict.violated(format!(
                "endpoint {app}/{name}: message {event_id}, accepted by {accepted}, never arrived ({count} requests, none answered 2xx) and {told}"
            ));
        }
    }
    verdict.judged("messages that arrived", arrived);
    verdict.judged("messages that ended visibly", ended);
    verdict.measured("endpoints deleted or disabled, to which nothing has to come", unjudged.to_string());
}

/// What was last said of each delivery; `None`: that there is none.
fn last_statuses(history: &History) -> HashMap<(EndpointName<'_>, &str), Option<u8>> {
    let asked = history.operations.iter().filter(|operation| operation.last);
    let told = asked.filter_map(|operation| match (&operation.call, operation.reply()?) {
        (Call::GetDelivery { app, endpoint, event_id }, reply) => {
            let status = if let Reply::DeliveryStatus { status } = reply { Some(*status) } else { None };
            Some((((app.as_str(), endpoint.as_str()), event_id.as_str()), status))
        }
        _ => None,
    });
    told.collect()
}

fn nothing_else_arrives<'a>(
    history: &'a History,
    published: &BTreeMap<Event<'a>, Published<'a>>,
    verdict: &mut Verdict,
) {
    let mut events: HashMap<&str, &str> = HashMap::new();
    for Delivery { at_us, app, endpoint, message_id, event_id, digest, signed, .. } in &history.deliveries {
        let request = format!("endpoint {app}/{endpoint}: message {event_id} at {}", seconds(*at_us));
        if !signed {
            verdict.violated(format!("{request} has a wrong signature"));
        }
        let message = published.get(&(app.as_str(), event_id.as_str())).expect("deliveries are among what is known");
        if message.first_us > *at_us && !message.refused {
            verdict.violated(format!("{request} was published by nobody"));
        } else if message.possible() && !message.digests.contains(digest.as_str()) {
            verdict.violated(format!("{request} has the digest {digest}, published was {:?}", message.digests));
        }
        if !message.ids.is_empty() && !message.ids.contains(message_id.as_str()) {
            verdict.violated(format!("{request} has the id {message_id}, told was {:?}", message.ids));
        }
        let other = *events.entry(message_id).or_insert(event_id);
        if other != event_id {
            verdict.violated(format!("{request} has the id {message_id} of message {other}"));
        }
    }
}

fn repeats_are_alike(log: &Log<'_>, verdict: &mut Verdict) {
    let mut repeated = 0;
    for (((app, endpoint), event_id), requests) in log {
        let same = |delivery: &Delivery| (delivery.message_id.clone(), delivery.digest.clone(), delivery.sequence);
        repeated += usize::from(requests.len() > 1);
        if let Some(other) = requests.iter().find(|other| same(other) != same(requests[0])) {
            let (first, second) = (seconds(requests[0].at_us), seconds(other.at_us));
            verdict.violated(format!(
                "endpoint {app}/{endpoint}: message {event_id} came at {first} as {:?} and at {second} as {:?}",
                same(requests[0]),
                same(other)
            ));
        }
    }
    verdict.judged("messages that came more than once", repeated);
}
