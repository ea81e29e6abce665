//! What a run came to, on one screen: a row for each promise, a row for each nemesis.

use std::{collections::BTreeMap, fmt::Write as _};

use onceward_checkers::{
    history::{Effect, History, Outcome, RecoveryFrom},
    verdict::Verdict,
};

use crate::run::Finished;

/// Sentences that are shown of each promise; the report has them all.
const VIOLATIONS_SHOWN: usize = 5;

pub fn summary(finished: &Finished) -> String {
    let mut text = String::new();
    write(&mut text, finished).expect("a string takes all that is written");
    text
}

fn write(text: &mut String, finished: &Finished) -> std::fmt::Result {
    writeln!(text, "{}", calls(&finished.history))?;
    writeln!(text, "\n{:<9}{:<10}judged", "promise", "")?;
    for verdict in &finished.verdicts {
        writeln!(text, "{:<9}{:<10}{}", verdict.promise, word(verdict), judged(verdict))?;
    }
    writeln!(text, "\n{:<24}{:>5}  {:<22}{:<22}effects", "nemesis", "times", "leader lost", "healed")?;
    for (name, row) in nemeses(&finished.history) {
        let effects: Vec<String> = row.effects.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let (lost, healed) = (median_and_max(row.leader_losses), median_and_max(row.healings));
        writeln!(text, "{name:<24}{:>5}  {lost:<22}{healed:<22}{}", row.times, effects.join(", "))?;
    }
    for verdict in finished.verdicts.iter().filter(|verdict| !verdict.kept()) {
        writeln!(text, "\n{} is violated:", verdict.promise)?;
        for violation in verdict.violations.iter().take(VIOLATIONS_SHOWN) {
            writeln!(text, "  {violation}")?;
        }
        let more = verdict.violations.len().saturating_sub(VIOLATIONS_SHOWN);
        if more > 0 {
            writeln!(text, "  … and {more} more in the report")?;
        }
    }
    if !finished.shortcomings.is_empty() {
        writeln!(text, "\nThe run shows less than it was meant to:")?;
    }
    for shortcoming in &finished.shortcomings {
        writeln!(text, "  {shortcoming}")?;
    }
    Ok(())
}

fn word(verdict: &Verdict) -> &'static str {
    match (verdict.kept(), verdict.tested()) {
        (false, _) => "VIOLATED",
        (true, true) => "kept",
        (true, false) => "untested",
    }
}

/// What there was of it. What was measured of single nemeses stands in their own rows.
fn judged(verdict: &Verdict) -> String {
    let counted = verdict.judged.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{count} {what}"));
    let measured = verdict.measured.iter().filter(|(what, value)| !what.contains(',') && value != "0");
    counted.chain(measured.map(|(what, value)| format!("{what}: {value}"))).collect::<Vec<_>>().join(", ")
}

fn calls(history: &History) -> String {
    let count =
        |class: fn(&Outcome) -> bool| history.operations.iter().filter(|operation| class(&operation.outcome)).count();
    format!(
        "{} calls: {} answered, {} refused, {} unknown; {} deliveries",
        history.operations.len(),
        count(|outcome| matches!(outcome, Outcome::Answered { .. })),
        count(|outcome| *outcome == Outcome::Refused),
        count(|outcome| *outcome == Outcome::Unknown),
        history.deliveries.len()
    )
}

#[derive(Default)]
struct Row {
    times: usize,
    effects: BTreeMap<String, u64>,
    leader_losses: Vec<u64>,
    healings: Vec<u64>,
}

fn nemeses(history: &History) -> BTreeMap<&str, Row> {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for nemesis in &history.nemeses {
        let row = rows.entry(&nemesis.name).or_default();
        row.times += 1;
        for Effect { name, count } in &nemesis.effects {
            *row.effects.entry(name.clone()).or_default() += count;
        }
    }
    for recovery in &history.recoveries {
        let row = rows.entry(&recovery.nemesis).or_default();
        match recovery.after {
            RecoveryFrom::LeaderLoss => row.leader_losses.push(recovery.took_us),
            RecoveryFrom::Healing => row.healings.push(recovery.took_us),
        }
    }
    rows
}

/// Such as `0.93 s, at most 1.20 s`; nothing of nothing.
fn median_and_max(mut took_us: Vec<u64>) -> String {
    took_us.sort_unstable();
    let Some(max) = took_us.last() else { return "–".to_owned() };
    let seconds = |us: u64| us as f64 / 1e6;
    format!("{:.2} s, max {:.2} s", seconds(took_us[took_us.len() / 2]), seconds(*max))
}
