//! What a person gets of a run: a page to look at, a history that Jepsen's checkers can read, the nemeses in order, and the
//! verdicts as JSON.
//!
//! A history and its verdicts go in, files come out. Judges nothing.

mod buckets;
mod edn;
mod jepsen;
mod page;
mod plot;
mod plots;
mod promises;
mod text;
mod timeline;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use onceward_checkers::history::{History, Nemesis, Record};
use onceward_checkers::verdict::Verdict;

/// Writes `index.html`, `history.edn`, `nemeses.txt` and `verdicts.json` into `dir`, which must exist. `shortcomings` say
/// why the run proves less than it was meant to, each in a sentence.
pub fn write(dir: &Path, history: &History, verdicts: &[Verdict], shortcomings: &[String]) -> io::Result<()> {
    std::fs::write(dir.join("index.html"), page::page(history, verdicts, shortcomings))?;
    std::fs::write(dir.join("verdicts.json"), serde_json::to_vec_pretty(verdicts)?)?;
    std::fs::write(dir.join("nemeses.txt"), nemeses(history))?;
    let mut edn = BufWriter::new(File::create(dir.join("history.edn"))?);
    jepsen::write(&mut edn, history)?;
    edn.flush()
}

/// Writes `history.jsonl` for who did not record one on the way.
pub fn write_history(path: &Path, history: &History) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    records(history).try_for_each(|record| record.write(&mut out))?;
    out.flush()
}

fn records(history: &History) -> impl Iterator<Item = Record> {
    let run = history.run.iter().cloned().map(Record::Run);
    run.chain(history.operations.iter().cloned().map(Record::Operation))
        .chain(history.deliveries.iter().cloned().map(Record::Delivery))
        .chain(history.state_hashes.iter().cloned().map(Record::StateHash))
        .chain(history.nemeses.iter().cloned().map(Record::Nemesis))
        .chain(history.leaders.iter().cloned().map(Record::Leader))
        .chain(history.isolations.iter().cloned().map(Record::Isolation))
        .chain(history.recoveries.iter().cloned().map(Record::Recovery))
}

/// What was done to the cluster, a line each, in order.
fn nemeses(history: &History) -> String {
    let mut nemeses: Vec<&Nemesis> = history.nemeses.iter().collect();
    nemeses.sort_by_key(|nemesis| (nemesis.from_us, nemesis.until_us));
    nemeses.into_iter().map(line).collect()
}

fn line(nemesis: &Nemesis) -> String {
    let (from, until) = (text::clock_ms(nemesis.from_us), text::clock_ms(nemesis.until_us));
    let effects: Vec<String> =
        nemesis.effects.iter().map(|effect| format!("{} {}", effect.name, effect.count)).collect();
    format!("{from:>12} – {until:>12}  {:<20} {:<40} {}\n", nemesis.name, nemesis.target, effects.join(", "))
}
