//! G6: sequences. Per endpoint 1, 2, 3 … in commit order without gaps, one message a number.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::{
    endpoints::{self, EndpointName},
    history::{Delivery, History},
    messages::{self, Event, Published},
    time::seconds,
    verdict::{Checker, Verdict},
};

pub struct Sequences;

impl Checker for Sequences {
    fn promise(&self) -> &'static str {
        "G6"
    }

    fn check(&self, history: &History) -> Verdict {
        let mut verdict = Verdict::new(self.promise());
        let (published, known) = (messages::published(history), endpoints::endpoints(history));
        let mut logs: BTreeMap<EndpointName<'_>, Vec<&Delivery>> = BTreeMap::new();
        for delivery in &history.deliveries {
            logs.entry((&delivery.app, &delivery.endpoint)).or_default().push(delivery);
        }
        let (mut endpoints, mut numbers, mut unjudged) = (0, 0, 0);
        for (name, log) in logs {
            // Made anew, it begins at 1 again.
            if known.get(&name).is_some_and(|known| known.may_be_deleted) {
                unjudged += 1;
                continue;
            }
            let numbered = numbered(name, &log, &mut verdict);
            let created = known.get(&name).map(|known| known.first_us).filter(|first_us| *first_us != u64::MAX);
            let first_us = created.unwrap_or(0);
            has_no_gaps(name, &numbered, first_us, &published, &mut verdict);
            keeps_order(name, &numbered, &published, &mut verdict);
            endpoints += 1;
            numbers += numbered.len();
        }
        verdict.judged("endpoints", endpoints);
        verdict.judged("numbers", numbers);
        verdict.measured("endpoints that may have been deleted and made anew", unjudged.to_string());
        verdict.told_briefly()
    }
}

fn numbered<'a>(
    (app, endpoint): EndpointName<'_>,
    log: &[&'a Delivery],
    verdict: &mut Verdict,
) -> BTreeMap<u64, &'a str> {
    let mut numbered: BTreeMap<u64, &str> = BTreeMap::new();
    for delivery in log {
        match numbered.entry(delivery.sequence) {
            Entry::Vacant(free) => {
                free.insert(&delivery.event_id);
            }
            Entry::Occupied(taken) if *taken.get() == delivery.event_id => {}
            Entry::Occupied(taken) => verdict.violated(format!(
                "endpoint {app}/{endpoint}: number {} is that of {} and, at {}, of {}",
                delivery.sequence,
                taken.get(),
                seconds(delivery.at_us),
                delivery.event_id
            )),
        }
    }
    numbered
}

/// A number may be missing for each message that may have been accepted and has not arrived here.
fn has_no_gaps(
    (app, endpoint): EndpointName<'_>,
    numbered: &BTreeMap<u64, &str>,
    first_us: u64,
    published: &BTreeMap<Event<'_>, Published<'_>>,
    verdict: &mut Verdict,
) {
    let Some(last) = numbered.last_key_value().map(|(last, _)| *last) else { return };
    if numbered.contains_key(&0) {
        verdict.violated(format!("endpoint {app}/{endpoint}: number 0"));
    }
    let missing = last.saturating_sub(numbered.range(1..).count() as u64);
    let arrived: std::collections::HashSet<&str> = numbered.values().copied().collect();
    let elsewhere =
        published.range((app, "")..).take_while(|((of, _), _)| *of == app).filter(|((_, event_id), message)| {
            let before = message.accepted_us.is_some_and(|accepted_us| accepted_us < first_us);
            message.possible() && !before && !arrived.contains(event_id)
        });
    let unseen = elsewhere.count() as u64;
    if missing > unseen {
        let gap = (1..=last).find(|number| !numbered.contains_key(number)).unwrap_or(last);
        verdict.violated(format!(
            "endpoint {app}/{endpoint}: {missing} numbers up to {last} never came, first {gap}, where {unseen} messages may be under way"
        ));
    }
}

/// What was accepted before another message was sent has the smaller number.
fn keeps_order(
    (app, endpoint): EndpointName<'_>,
    numbered: &BTreeMap<u64, &str>,
    published: &BTreeMap<Event<'_>, Published<'_>>,
    verdict: &mut Verdict,
) {
    let mut by_begin: Vec<(u64, &str, &Published<'_>)> = numbered
        .iter()
        .filter_map(|(number, event_id)| Some((*number, *event_id, published.get(&(app, event_id))?)))
        .collect();
    let mut by_end = by_begin.clone();
    by_begin.sort_by_key(|(_, _, message)| message.first_us);
    by_end.sort_by_key(|(_, _, message)| message.accepted_us);
    let (mut ended, mut newest) = (by_end.into_iter().peekable(), None);
    for (number, event_id, message) in by_begin.into_iter().filter(|(_, _, message)| message.possible()) {
        while let Some(earlier) = ended.next_if(|(_, _, earlier)| earlier.accepted_us < Some(message.first_us)) {
            newest = newest.max(Some((earlier.0, earlier.1)));
        }
        if let Some((earlier_number, earlier)) = newest.filter(|(earlier, _)| *earlier > number) {
            verdict.violated(format!(
                "endpoint {app}/{endpoint}: {event_id} has number {number}, but was sent at {}, after {earlier} with number {earlier_number} had been accepted",
                seconds(message.first_us)
            ));
        }
    }
}
