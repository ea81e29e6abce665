//! Histories as files, and runs that did not do what they were for.

use std::{fs, path::Path};

use onceward_checkers::{
    exercised,
    history::{Effect, History, Nemesis, Record},
};

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    fs::read_to_string(path).expect("it is in the repository")
}

fn history(text: &str) -> History {
    History::read(text.as_bytes()).expect("every line is a record")
}

#[test]
fn a_history_reads_back_as_it_was_written() {
    let first = history(&fixture("g5-ended.correct.jsonl"));
    let mut written = Vec::new();
    for operation in &first.operations {
        Record::Operation(operation.clone()).write(&mut written).unwrap();
    }
    for delivery in &first.deliveries {
        Record::Delivery(delivery.clone()).write(&mut written).unwrap();
    }
    assert_eq!(History::read(written.as_slice()).unwrap(), first);
}

#[test]
fn a_line_that_was_being_written_when_the_recorder_died_is_left_out() {
    let text = fixture("g8-states.correct.jsonl");
    let torn = &text[..text.len() - 20];
    assert_eq!(history(torn).state_hashes.len(), history(&text).state_hashes.len() - 1);
}

#[test]
fn a_line_that_is_no_record_is_named() {
    let text = fixture("g8-states.correct.jsonl").replacen("\n", "\n?\n", 1);
    let error = History::read(text.as_bytes()).unwrap_err();
    assert!(error.to_string().starts_with("line 2: "), "{error}");
}

fn with_nemesis(from_us: u64, until_us: u64, count: u64) -> History {
    let mut history = history(&fixture("g3-message.correct.jsonl"));
    let effects = vec![Effect { name: "refused".to_owned(), count }];
    let (name, target) = ("halves".to_owned(), String::new());
    history.push(Record::Nemesis(Nemesis { from_us, until_us, name, target, effects }));
    history
}

#[test]
fn a_run_whose_nemesis_bit_was_exercised() {
    assert_eq!(exercised(&with_nemesis(0, 2_000_000, 3)), Vec::<String>::new());
}

#[test]
fn a_run_that_proves_nothing_says_why() {
    let nothing = exercised(&History::default());
    assert_eq!(nothing, ["no call was answered"]);
    let toothless = exercised(&with_nemesis(0, 2_000_000, 0));
    assert_eq!(toothless, ["nemesis halves never bit (played: 1)"]);
    let lonely = exercised(&with_nemesis(5_000_000, 6_000_000, 3));
    assert_eq!(lonely, ["nothing was under way while nemesis halves lasted (played: 1)"]);
}
