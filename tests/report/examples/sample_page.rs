//! Writes the report of a made-up run, to look at while changing the page: `cargo run -p onceward-report --example
//! sample_page -- DIR [violated]`.

#[path = "../tests/report/sample.rs"]
mod sample;

use std::path::Path;

use onceward_checkers::verdict::Verdict;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().expect("the first argument is a directory");
    let violated = arguments.next().is_some();
    let history = sample::run(7, 600, 150);
    let verdicts: Vec<Verdict> = (1..=10).map(|number| verdict(number, violated)).collect();
    std::fs::create_dir_all(&dir)?;
    onceward_report::write_history(&Path::new(&dir).join("history.jsonl"), &history)?;
    let shortcomings = if violated { vec!["slow-fsync never bit".to_owned()] } else { Vec::new() };
    onceward_report::write(Path::new(&dir), &history, &verdicts, &shortcomings)
}

fn verdict(number: u64, violated: bool) -> Verdict {
    let mut verdict = Verdict {
        promise: format!("G{number}"),
        judged: vec![("calls".to_owned(), number * 4321), ("keys".to_owned(), 20)],
        violations: Vec::new(),
        measured: vec![("undecided".to_owned(), "0".to_owned())],
    };
    if violated && number == 5 {
        verdict.judged.clear();
    }
    if violated && number == 2 {
        let sentence = |i: u64| {
            format!(
                "key account-{i}/k{i}: token 7 was issued at {}.123456 s while token 6 was live until {}.500000 s",
                118 + i,
                119 + i
            )
        };
        verdict.violations = (0..3).map(sentence).collect();
    }
    verdict
}
