//! The plots of the page: what each shows, and of what.

use std::collections::BTreeMap;

use maud::{Markup, PreEscaped, html};
use onceward_checkers::bounds::{HEALING_MAX_US, LEADER_LOSS_MAX_US};
use onceward_checkers::history::{Algorithm, History, Nemesis, RecoveryFrom};
use onceward_checkers::verdict::Verdict;
use serde_json::json;

use crate::buckets::{self, Bucket, Point};
use crate::plot::{Plot, Scale, Shape, percent, time_axis, time_ticks};
use crate::promises;
use crate::text;
use crate::timeline::{Reign, Step, Timeline, quantile, reigns};

/// Marks of violations on the axis of time: enough to see where they are.
const MARKS_MAX: usize = 100;
/// Buckets in the table, and of these as curves.
const BUCKETS_LISTED_MAX: usize = 12;
const BUCKETS_DRAWN_MAX: usize = 6;
/// Lanes of leaders, and reigns in a lane, that are drawn.
const REIGNS_MAX: usize = 400;

/// Everything that shares the axis of time.
pub fn over_time(history: &History, verdicts: &[Verdict], timeline: &Timeline) -> Markup {
    let under = under(history, verdicts, timeline);
    let ticks = time_ticks(timeline.end_us);
    html! {
        section id="timeline" {
            h2 { "Over time" }
            p .note {
                "Grey bands are nemeses at work"
                @if !marks(verdicts).is_empty() { ", red lines are times that violations name" }
                ". Point at a plot to read it; a click holds the time."
            }
            (nemesis_lanes(history, timeline, &ticks))
            (throughput(timeline).draw(&under, &ticks))
            (failures(timeline).draw(&under, &ticks))
            (latency(timeline).draw(&under, &ticks))
            (leader_lanes(history, timeline, &ticks))
            @if !history.deliveries.is_empty() { (deliveries(timeline).draw(&under, &ticks)) }
            div #readout aria-live="polite" hidden {}
        }
    }
}

/// Bands of nemeses and marks of violations, which every plot over time has beneath its shapes.
fn under(history: &History, verdicts: &[Verdict], timeline: &Timeline) -> Markup {
    html! {
        @for (from_us, until_us) in united(&history.nemeses) { (span("band", timeline, from_us, until_us, "", "")) }
        @for at_us in marks(verdicts) { i .mark style={ "left:" (percent(timeline.place(at_us))) } {} }
    }
}

fn marks(verdicts: &[Verdict]) -> Vec<u64> {
    let mut marks = Vec::new();
    for violation in verdicts.iter().flat_map(|verdict| &verdict.violations) {
        let mut rest = violation.as_str();
        while let Some((_, at_us, _, after)) = promises::next_time(rest) {
            marks.push(at_us);
            rest = after;
        }
    }
    marks.truncate(MARKS_MAX);
    marks
}

/// The times at which any nemesis was at work.
fn united(nemeses: &[Nemesis]) -> Vec<(u64, u64)> {
    let mut times: Vec<(u64, u64)> = nemeses.iter().map(|nemesis| (nemesis.from_us, nemesis.until_us)).collect();
    times.sort_unstable();
    times.dedup_by(|next, kept| {
        let overlap = next.0 <= kept.1;
        kept.1 = if overlap { kept.1.max(next.1) } else { kept.1 };
        overlap
    });
    times
}

/// A stretch of time with a text on it.
fn span(class: &str, timeline: &Timeline, from_us: u64, until_us: u64, label: &str, title: &str) -> Markup {
    let left = timeline.place(from_us);
    let width = timeline.place(until_us.max(from_us)) - left;
    let title = (!title.is_empty()).then_some(title);
    html! {
        span class={ "span " (class) } style={ "left:" (percent(left)) ";width:" (percent(width)) } title=[title] { (label) }
    }
}

/// A lane for each nemesis, in the order in which they first came.
fn nemesis_lanes(history: &History, timeline: &Timeline, ticks: &[(f64, String)]) -> Markup {
    let mut nemeses: Vec<&Nemesis> = history.nemeses.iter().collect();
    nemeses.sort_by_key(|nemesis| (nemesis.from_us, nemesis.until_us));
    let mut lanes: Vec<(&str, Vec<&Nemesis>)> = Vec::new();
    for nemesis in nemeses {
        match lanes.iter_mut().find(|(name, _)| *name == nemesis.name) {
            Some((_, lane)) => lane.push(nemesis),
            None => lanes.push((&nemesis.name, vec![nemesis])),
        }
    }
    html! {
        @if !lanes.is_empty() {
            figure .plot.lanes.thin {
                figcaption { b { "Nemeses" } }
                @for (name, lane) in &lanes { div .frame {
                    div .scale { span { (name) } }
                    div .area { @for nemesis in lane { (nemesis_span(nemesis, timeline)) } div .cursor {} }
                } }
                (time_axis(ticks))
            }
        }
    }
}

fn nemesis_span(nemesis: &Nemesis, timeline: &Timeline) -> Markup {
    let (from, until) = (text::clock(nemesis.from_us), text::clock(nemesis.until_us));
    let title = format!("{} {from} – {until} {}", nemesis.name, nemesis.target);
    span("nemesis", timeline, nemesis.from_us, nemesis.until_us, "", &title)
}

/// A layer of a stack: colour class, name, and how many of a step are in it.
type Layer = (&'static str, &'static str, fn(&Step) -> u32);

const CALLS: [Layer; 5] = [
    ("answered", "answered", |step| step.answered),
    ("denied", "denied by a limit", |step| step.denied),
    ("refused", "refused (503)", |step| step.refused),
    ("unknown", "unknown (504, lost)", |step| step.unknown),
    ("unexpected", "unexpected", |step| step.unexpected),
];

fn throughput(timeline: &Timeline) -> Plot {
    stack("Calls per second", &CALLS, timeline, "tall")
}

fn failures(timeline: &Timeline) -> Plot {
    stack("Calls without an answer, per second", &CALLS[2..], timeline, "low")
}

fn deliveries(timeline: &Timeline) -> Plot {
    const LAYERS: [Layer; 2] =
        [("answered", "first attempts", |step| step.delivered), ("denied", "repeated", |step| step.repeated)];
    stack("Deliveries per second, as receivers saw them", &LAYERS, timeline, "low")
}

/// Columns on one another. Layers of which the run has nothing are left out.
fn stack(title: &'static str, layers: &[Layer], timeline: &Timeline, size: &'static str) -> Plot {
    let layers: Vec<&Layer> =
        layers.iter().filter(|layer| timeline.steps.iter().any(|step| layer.2(step) > 0)).collect();
    let rate = |step: &Step, layer: &Layer| timeline.per_second(layer.2(step));
    let total = |step: &Step| layers.iter().map(|layer| rate(step, layer)).sum::<f64>();
    let most = timeline.steps.iter().map(total).fold(1.0, f64::max);
    let scale = Scale::linear(most, "");
    let width = timeline.step_us as f64 / timeline.end_us as f64;
    let mut bases = vec![0.0; timeline.steps.len()];
    let mut shapes = Vec::new();
    for layer in &layers {
        let heights = timeline.steps.iter().zip(&mut bases).map(|(step, base)| {
            let low = *base;
            *base += rate(step, layer);
            (scale.place(low), scale.place(*base))
        });
        shapes.push(Shape::columns(layer.0, width, heights.collect::<Vec<_>>()));
    }
    let names = layers.iter().map(|layer| layer.1).collect::<Vec<_>>().join(", ");
    let described =
        if names.is_empty() { format!("{title}: none") } else { format!("{title}: {names}; at most {most:.0}") };
    let legend = layers.iter().map(|layer| (layer.0, layer.1)).collect();
    Plot { title, described, legend, scale, shapes, size }
}

fn latency(timeline: &Timeline) -> Plot {
    let latencies = || timeline.steps.iter().filter_map(|step| step.latency);
    let least = latencies().map(|latency| latency.p50_us).min().unwrap_or(1_000);
    let most = latencies().map(|latency| latency.max_us).max().unwrap_or(1_000_000);
    let scale = Scale::decades_us(least as f64, most as f64);
    let line = |class: &'static str, of: fn(&crate::timeline::Latency) -> u64| {
        let points = timeline.steps.iter().enumerate().map(|(i, step)| {
            let middle_us = (i as u64 * timeline.step_us + timeline.step_us / 2).min(timeline.end_us);
            (timeline.place(middle_us), step.latency.as_ref().map(|latency| scale.place(of(latency) as f64)))
        });
        Shape::line(class, points)
    };
    let shapes = vec![
        line("line max", |latency| latency.max_us),
        line("line p99", |latency| latency.p99_us),
        line("line p50", |latency| latency.p50_us),
    ];
    Plot {
        title: "Latency of answered calls",
        described: format!("Latency of answered calls, from {} to {}", text::duration(least), text::duration(most)),
        legend: vec![("line p50", "median"), ("line p99", "99 %"), ("line max", "worst")],
        scale,
        shapes,
        size: "tall",
    }
}

/// A lane a shard, in which each reign has its leader's number on it.
fn leader_lanes(history: &History, timeline: &Timeline, ticks: &[(f64, String)]) -> Markup {
    let reigns = reigns(history, timeline.end_us);
    html! {
        @if !reigns.is_empty() {
            figure .plot.lanes {
                figcaption {
                    b { "Leaders" }
                    span .legend { "the number is the node that leads; hatched: nobody was seen to" }
                }
                @for (shard, reigns) in &reigns { div .frame {
                    div .scale { span { @if *shard == 0 { "system" } @else { "shard " (shard) } } }
                    div .area { @for reign in reigns.iter().take(REIGNS_MAX) { (leader(reign, timeline)) } div .cursor {} }
                } }
                (time_axis(ticks))
            }
        }
    }
}

fn leader(reign: &Reign, timeline: &Timeline) -> Markup {
    let (class, label) = match reign.node {
        Some(node) => (format!("leader node-{}", (node.max(1) - 1) % NODE_COLOURS), node.to_string()),
        None => ("leader nobody".to_owned(), String::new()),
    };
    let who = reign.node.map_or("nobody".to_owned(), |node| format!("node {node}"));
    let title = format!("{who}, term {}, from {}", reign.term, text::clock_ms(reign.from_us));
    span(&class, timeline, reign.from_us, reign.until_us, &label, &title)
}

const NODE_COLOURS: u16 = 5;

/// How long it took to come back, in columns.
pub fn recoveries(history: &History) -> Markup {
    let of = |kind: RecoveryFrom| {
        let those = history.recoveries.iter().filter(|recovery| recovery.after == kind);
        let mut took_us: Vec<u64> = those.map(|recovery| recovery.took_us).collect();
        took_us.sort_unstable();
        took_us
    };
    let (losses, healings) = (of(RecoveryFrom::LeaderLoss), of(RecoveryFrom::Healing));
    html! {
        @if !history.recoveries.is_empty() {
            section id="recoveries" {
                h2 { "Coming back" }
                div .grid {
                    (histogram("From the loss of a leader to the first success on its shards", &losses, LEADER_LOSS_MAX_US))
                    (histogram("From healing to full service through every node", &healings, HEALING_MAX_US))
                }
            }
        }
    }
}

const HISTOGRAM_COLUMNS: u64 = 30;

fn histogram(title: &'static str, sorted_us: &[u64], bound_us: u64) -> Markup {
    let Some(&worst_us) = sorted_us.last() else { return html! {} };
    let end_us = worst_us.max(bound_us) * 11 / 10;
    let mut columns = vec![0u32; HISTOGRAM_COLUMNS as usize];
    sorted_us.iter().for_each(|took_us| columns[(took_us * HISTOGRAM_COLUMNS / end_us) as usize] += 1);
    let scale = Scale::linear(columns.iter().copied().max().map_or(1.0, f64::from), "");
    let width = 1.0 / HISTOGRAM_COLUMNS as f64;
    let shape = Shape::columns("answered", width, columns.iter().map(|count| (0.0, scale.place(f64::from(*count)))));
    let median = text::duration(quantile(sorted_us, 50));
    let described = format!(
        "{}: median {median}, worst {}; bound {}",
        text::counted(sorted_us.len() as u64, "time", "times"),
        text::duration(worst_us),
        text::duration(bound_us)
    );
    let plot =
        Plot { title, described: described.clone(), legend: Vec::new(), scale, shapes: vec![shape], size: "low" };
    let bound = html! { i .bound style={ "left:" (percent(bound_us as f64 / end_us as f64)) } { "bound" } };
    let ticks: Vec<(f64, String)> = (0..=end_us / 1_000_000)
        .map(|second| ((second * 1_000_000) as f64 / end_us as f64, format!("{second} s")))
        .collect();
    html! { div { (plot.draw(&bound, &ticks)) p .note { (described) } } }
}

/// What buckets admitted against what they were allowed to.
pub fn buckets(history: &History, timeline: &Timeline) -> Markup {
    let mut buckets = buckets::buckets(history);
    if buckets.is_empty() {
        return html! {};
    }
    let count = buckets.len();
    let nearest = buckets.iter().map(|bucket| bucket.worst.share).fold(0.0, f64::max);
    let ticks = time_ticks(timeline.end_us);
    let drawn: Vec<Markup> =
        buckets.iter().take(BUCKETS_DRAWN_MAX).map(|bucket| bucket_plot(bucket, timeline, &ticks)).collect();
    // To the tenth of a per cent, so that of those that used all of it the busiest come first.
    buckets.sort_by_key(|bucket| std::cmp::Reverse((bucket.worst.share * 1000.0).round() as u64));
    html! {
        section id="buckets" {
            h2 { "Buckets" }
            p .note {
                (text::count(count as u64)) " buckets. The worst interval is the one in which most was admitted beyond what refilled meanwhile, "
                "as a share of the burst; 100 % is the bound. "
                "The nearest to it used " (share(nearest)) ". A policy that changed is drawn by its most generous terms."
            }
            div .grid { @for plot in &drawn { (plot) } }
            h3 { "Nearest to their bound" }
            div .wide { table .buckets {
                thead { tr {
                    th { "Policy" } th { "Key" } th { "Terms" }
                    th .number { "Checks" } th .number { "Denied" } th .number { "Admitted" } th { "Worst interval" }
                } }
                tbody { @for bucket in buckets.iter().take(BUCKETS_LISTED_MAX) { (bucket_row(bucket)) } }
            } }
        }
    }
}

fn share(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn terms(bucket: &Bucket) -> String {
    let window = text::window(bucket.terms.window_us);
    match bucket.terms.algorithm {
        Algorithm::TokenBucket => {
            format!("{} per {window}, burst {}", bucket.terms.amount, bucket.terms.burst)
        }
        Algorithm::SlidingWindow => format!("{} in any {window}", bucket.terms.amount),
    }
}

fn bucket_row(bucket: &Bucket) -> Markup {
    let over = bucket.worst.share > 1.0 + 1e-9;
    html! {
        tr {
            td { (bucket.policy) } td { (bucket.key) } td { (terms(bucket)) }
            @for number in [bucket.checks, bucket.denied, bucket.admitted] { td .number { (text::count(number)) } }
            td {
                span .meter aria-hidden="true" { i .over[over] style={ "width:" (percent(bucket.worst.share.min(1.0))) } {} }
                (share(bucket.worst.share)) @if over { " " span .badge.bad { "over" } }
                " " a href="#timeline" data-at=(bucket.worst.from_us) { (text::clock_ms(bucket.worst.from_us)) }
                " – " (text::clock_ms(bucket.worst.until_us))
            }
        }
    }
}

fn bucket_plot(bucket: &Bucket, timeline: &Timeline, ticks: &[(f64, String)]) -> Markup {
    let most = bucket.curve.iter().map(|point| point.allowed.max(point.admitted)).fold(1.0, f64::max);
    let scale = Scale::linear(most, "");
    let line = |class: &'static str, of: fn(&Point) -> f64| {
        Shape::line(class, bucket.curve.iter().map(|point| (timeline.place(point.at_us), Some(scale.place(of(point))))))
    };
    let shapes = vec![line("line allowed", |point| point.allowed), line("line admitted", |point| point.admitted)];
    let described = format!("{} of {}: admitted {} of {most:.0} allowed", bucket.key, bucket.policy, bucket.admitted);
    let legend = vec![("line admitted", "admitted"), ("line allowed", "allowed: burst + refill")];
    let plot = Plot { title: "", described, legend, scale, shapes, size: "low" };
    html! { div { h3 { (bucket.policy) " / " (bucket.key) } (plot.draw(&html! {}, ticks)) } }
}

/// What the script reads out where somebody points.
pub fn readout_data(history: &History, timeline: &Timeline) -> Markup {
    let row = |step: &Step| {
        let latency = step.latency.map(|latency| [latency.p50_us, latency.p99_us, latency.max_us]);
        let counts =
            [step.answered, step.denied, step.refused, step.unknown, step.unexpected, step.delivered, step.repeated];
        json!([counts, latency])
    };
    let leaders: BTreeMap<u16, Vec<_>> = reigns(history, timeline.end_us)
        .into_iter()
        .map(|(shard, reigns)| {
            (shard, reigns.iter().take(REIGNS_MAX).map(|reign| json!([reign.from_us, reign.node])).collect())
        })
        .collect();
    let nemeses =
        history.nemeses.iter().map(|nemesis| json!([nemesis.from_us, nemesis.until_us, nemesis.name, nemesis.target]));
    let data = json!({
        "end_us": timeline.end_us,
        "step_us": timeline.step_us,
        "steps": timeline.steps.iter().map(row).collect::<Vec<_>>(),
        "nemeses": nemeses.collect::<Vec<_>>(),
        "leaders": leaders,
    });
    // Within a script element nothing but `<` can end or change what the browser reads.
    let text = data.to_string().replace('<', "\\u003c");
    html! { script type="application/json" id="readings" { (PreEscaped(text)) } }
}
