//! The page: whether the product kept its promises, and where to look if not.
//!
//! One file that needs nothing else, neither a network nor, but for pointing at the plots, a script. Whatever comes from a
//! history is escaped by the templates.

use std::collections::BTreeMap;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use onceward_checkers::history::{History, Nemesis, Recovery, RecoveryFrom, Run};
use onceward_checkers::verdict::Verdict;

use crate::plots;
use crate::promises::{self, Standing};
use crate::text;
use crate::timeline::{Timeline, quantile};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

pub fn page(history: &History, verdicts: &[Verdict], shortcomings: &[String]) -> String {
    let timeline = Timeline::of(history);
    let outcome = Outcome::of(verdicts, shortcomings);
    let title = format!("{} · seed {}", outcome.headline(), history.run.as_ref().map_or(0, |run| run.seed));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (header(history, &timeline, &outcome))
                    (promise_table(verdicts))
                    (plots::over_time(history, verdicts, &timeline))
                    (nemesis_table(history))
                    (plots::recoveries(history))
                    (plots::buckets(history, &timeline))
                    (files())
                }
                (plots::readout_data(history, &timeline))
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// What the run says in all.
struct Outcome {
    violated: Vec<String>,
    untested: Vec<String>,
    kept: usize,
    shortcomings: Vec<String>,
}

impl Outcome {
    fn of(verdicts: &[Verdict], shortcomings: &[String]) -> Outcome {
        let with = |standing: Standing| {
            let those = verdicts.iter().filter(move |verdict| promises::standing(verdict) == standing);
            those.map(|verdict| verdict.promise.clone()).collect::<Vec<_>>()
        };
        Outcome {
            violated: with(Standing::Violated),
            untested: with(Standing::Untested),
            kept: with(Standing::Kept).len(),
            shortcomings: shortcomings.to_vec(),
        }
    }

    fn headline(&self) -> String {
        if !self.violated.is_empty() {
            return format!("Violated: {}", self.violated.join(", "));
        }
        match (self.shortcomings.is_empty(), self.kept, self.untested.len()) {
            (_, 0, _) => "Nothing was judged".to_owned(),
            (false, _, _) => "Nothing violated, but not all was exercised".to_owned(),
            (true, kept, 0) => format!("All {kept} promises kept"),
            (true, kept, untested) => format!("{kept} of {} promises kept, the others untested", kept + untested),
        }
    }

    /// A colour class, and the word that says the same.
    fn class(&self) -> (&'static str, &'static str) {
        match (self.violated.is_empty(), self.shortcomings.is_empty() && self.kept > 0) {
            (false, _) => ("bad", "Failed"),
            (true, false) => ("doubt", "Shows too little"),
            (true, true) => ("good", "Passed"),
        }
    }
}

fn header(history: &History, timeline: &Timeline, outcome: &Outcome) -> Markup {
    let (class, word) = outcome.class();
    html! {
        header class=(class) {
            p .kind { "Onceward · " @if simulated(history) { "simulated run" } @else { "partition run" } }
            h1 { span .badge { (word) } " " (outcome.headline()) }
            p .summary { (summary(history, timeline)) }
            @if !outcome.untested.is_empty() {
                p { "Untested, because the run had nothing to judge them by: " b { (outcome.untested.join(", ")) } "." }
            }
            @if !outcome.shortcomings.is_empty() {
                p { "The run shows less than it was meant to:" }
                ul { @for reason in &outcome.shortcomings { li { (reason) } } }
            }
            @if let Some(run) = &history.run { (facts(run, timeline)) }
        }
    }
}

/// A simulation has no start by the clock on the wall.
fn simulated(history: &History) -> bool {
    history.run.as_ref().is_some_and(|run| run.started_at.is_empty())
}

fn summary(history: &History, timeline: &Timeline) -> String {
    let last_reads = history.operations.iter().filter(|operation| operation.last).count() as u64;
    let calls = history.operations.len() as u64 - last_reads;
    let total =
        |of: fn(&crate::timeline::Step) -> u32| timeline.steps.iter().map(|step| u64::from(of(step))).sum::<u64>();
    let share = |count: u64| format!("{:.1} %", count as f64 * 100.0 / calls.max(1) as f64);
    let mut summary = format!(
        "{}, of which {} were refused and {} had an unknown outcome; {}, of which {} were repeated; {} injected; {} of what \
         was left in the end.",
        text::counted(calls, "call", "calls"),
        share(total(|step| step.refused)),
        share(total(|step| step.unknown)),
        text::counted(history.deliveries.len() as u64, "delivery", "deliveries"),
        text::count(total(|step| step.repeated)),
        text::counted(history.nemeses.len() as u64, "fault", "faults"),
        text::counted(last_reads, "read", "reads"),
    );
    let unexpected = total(|step| step.unexpected);
    if unexpected > 0 {
        summary.push_str(&format!(" {} answers that no client must ever see.", text::count(unexpected)));
    }
    summary
}

fn facts(run: &Run, timeline: &Timeline) -> Markup {
    html! {
        dl .facts {
            div { dt { "Seed" } dd { code { (run.seed) } } }
            div { dt { "Nodes" } dd { (run.nodes) } }
            div { dt { "Data shards" } dd { (run.data_shards) } }
            div { dt { "Asked for" } dd { (text::long(run.duration_ms * 1000)) } }
            div { dt { "Recorded" } dd { (text::long(timeline.end_us)) } }
            div { dt { "Workload" } dd { (run.workload) } }
            div { dt { "Nemesis" } dd { (run.nemesis) } }
            @if !run.started_at.is_empty() { div { dt { "Started" } dd { (text::to_the_second(&run.started_at)) } } }
            @if !run.version.is_empty() { div { dt { "Version" } dd { (run.version) } } }
        }
        @if !run.command.is_empty() { p .again { "Run it again: " code { (run.command) } } }
    }
}

fn promise_table(verdicts: &[Verdict]) -> Markup {
    html! {
        section id="promises" {
            h2 { "Promises" }
            div .wide {
                table .promises {
                    thead { tr { th { "" } th { "Promise" } th { "Verdict" } th { "Judged" } } }
                    tbody { @for verdict in verdicts { (promise_row(verdict)) } }
                }
            }
        }
    }
}

fn promise_row(verdict: &Verdict) -> Markup {
    let (name, words) = promises::words(&verdict.promise);
    let standing = promises::standing(verdict);
    html! {
        tr id=(verdict.promise) {
            th scope="row" { (verdict.promise) }
            td { b { (name) } p .words { (words) } }
            td { span class={ "badge " (standing.class()) } { (standing.word()) } }
            td .judged {
                @for (what, count) in &verdict.judged { span { b { (text::count(*count)) } " " (what) } }
                @if verdict.measured.len() <= MEASURED_OPEN_MAX { (measured(verdict)) }
                @else { details { summary { "Measured" } (measured(verdict)) } }
            }
        }
        @if !verdict.violations.is_empty() {
            tr .violations { td {} td colspan="3" {
                details open[verdict.violations.len() <= VIOLATIONS_OPEN_MAX] {
                    summary { "What violates it" }
                    ol { @for violation in verdict.violations.iter().take(VIOLATIONS_SHOWN_MAX) { li { (sentence(violation)) } } }
                    @if verdict.violations.len() > VIOLATIONS_SHOWN_MAX { p { "The others are in " code { "verdicts.json" } "." } }
                }
            } }
        }
    }
}

/// Figures that do not get in the way.
const MEASURED_OPEN_MAX: usize = 2;

fn measured(verdict: &Verdict) -> Markup {
    html! { @for (what, value) in &verdict.measured { span .measured { (what) ": " (value) } } }
}

/// As many as one reads without having asked for them.
const VIOLATIONS_OPEN_MAX: usize = 10;
/// One fault can show in every key; a page that lists them all helps nobody.
const VIOLATIONS_SHOWN_MAX: usize = 200;

/// A sentence of a checker, in which each time leads to its place in the plots.
fn sentence(text: &str) -> Markup {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, at_us, time, after)) = promises::next_time(rest) {
        parts.push(html! { (before) a href="#timeline" data-at=(at_us) { (time) } });
        rest = after;
    }
    html! { @for part in &parts { (part) } (rest) }
}

/// Of one nemesis, all times that it was at work.
#[derive(Default)]
struct Rounds<'a> {
    rounds: Vec<&'a Nemesis>,
    effects: BTreeMap<&'a str, u64>,
    leader_losses_us: Vec<u64>,
    healings_us: Vec<u64>,
}

impl Rounds<'_> {
    fn bit(&self) -> bool {
        self.effects.values().any(|count| *count > 0)
    }
}

fn rounds(history: &History) -> BTreeMap<&str, Rounds<'_>> {
    let mut by_name: BTreeMap<&str, Rounds> = BTreeMap::new();
    for nemesis in &history.nemeses {
        let rounds = by_name.entry(&nemesis.name).or_default();
        rounds.rounds.push(nemesis);
        nemesis.effects.iter().for_each(|effect| *rounds.effects.entry(&effect.name).or_default() += effect.count);
    }
    for Recovery { took_us, after, nemesis, .. } in &history.recoveries {
        let rounds = by_name.entry(nemesis).or_default();
        match after {
            RecoveryFrom::LeaderLoss => rounds.leader_losses_us.push(*took_us),
            RecoveryFrom::Healing => rounds.healings_us.push(*took_us),
        }
    }
    by_name.values_mut().for_each(|rounds| {
        rounds.leader_losses_us.sort_unstable();
        rounds.healings_us.sort_unstable();
    });
    by_name
}

fn nemesis_table(history: &History) -> Markup {
    let rounds = rounds(history);
    if rounds.is_empty() {
        return html! {};
    }
    html! {
        section id="nemeses" {
            h2 { "Nemeses" }
            p .note {
                "What was done to the cluster, what shows that it bit, and how long the cluster took to come back: "
                "median and, in brackets, the worst."
            }
            div .wide {
                table .nemeses {
                    thead { tr {
                        th { "Nemesis" } th .number { "Rounds" } th { "What it did" }
                        th .number { "After leader loss" } th .number { "After healing" } th { "When" }
                    } }
                    tbody { @for (name, rounds) in &rounds { (nemesis_row(name, rounds)) } }
                }
            }
        }
    }
}

fn nemesis_row(name: &str, rounds: &Rounds) -> Markup {
    html! {
        tr {
            th scope="row" { (name) }
            td .number { (rounds.rounds.len()) }
            td .judged {
                @for (effect, count) in &rounds.effects { span { b { (text::count(*count)) } " " (effect.replace('_', " ")) } }
                @if !rounds.bit() && !rounds.rounds.is_empty() { span .badge.doubt { "Never bit" } }
            }
            td .number { (median_and_worst(&rounds.leader_losses_us)) }
            td .number { (median_and_worst(&rounds.healings_us)) }
            td { @if !rounds.rounds.is_empty() { (times(&rounds.rounds)) } }
        }
    }
}

/// When, and on whom.
fn times(rounds: &[&Nemesis]) -> Markup {
    html! {
        details { summary { "Rounds" } ul .rounds {
            @for round in rounds { li {
                a href="#timeline" data-at=(round.from_us) { (text::clock(round.from_us)) }
                " – " (text::clock(round.until_us)) " " (round.target)
            } }
        } }
    }
}

fn median_and_worst(sorted_us: &[u64]) -> String {
    match sorted_us.last() {
        Some(worst) => format!("{} ({})", text::duration(quantile(sorted_us, 50)), text::duration(*worst)),
        None => "–".to_owned(),
    }
}

fn files() -> Markup {
    html! {
        footer {
            h2 { "Beside this page" }
            ul {
                li {
                    a href="history.jsonl" { "history.jsonl" }
                    ": everything that was seen, a record a line; what the verdicts were made from."
                }
                li { a href="history.edn" { "history.edn" } ": the same calls as Jepsen writes them, for its checkers." }
                li { a href="nemeses.txt" { "nemeses.txt" } ": what was done to the cluster, in order." }
                li { a href="verdicts.json" { "verdicts.json" } ": the verdicts, for programs." }
            }
        }
    }
}
