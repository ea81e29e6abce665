//! `history.edn`, as a checker that knows Jepsen's histories reads it.

use std::collections::{HashMap, HashSet};

use onceward_checkers::history::{Call, Effect, History, Nemesis, Operation, Outcome, Reply};

use crate::edn_reader::{Form, read};
use crate::sample;

const HOSTILE: &str = "quote \" backslash \\ line\nreturn\r tab\t nul\0 separator\u{2028} 漢字 } ] , :k";

fn written(history: &History) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    onceward_report::write(dir.path(), history, &[], &[]).expect("it is written");
    std::fs::read_to_string(dir.path().join("history.edn")).expect("it is there")
}

fn get_policy(process: u64, times_us: (u64, u64), outcome: Outcome) -> Operation {
    let call = Call::GetPolicy { policy: "p".to_owned() };
    let (invoked_us, returned_us) = times_us;
    Operation { process, node: 1, invoked_us, returned_us, last: false, call, outcome }
}

fn not_found() -> Outcome {
    Outcome::Answered { reply: Reply::NotFound }
}

#[test]
fn every_call_is_an_invocation_and_a_completion_in_the_order_of_time() {
    let history = sample::run(3, 60, 50);
    let ops = read(&written(&history));
    let mut open: HashMap<i128, String> = HashMap::new();
    let (mut calls, mut gone, mut last_time) = (0, HashSet::new(), 0);
    for (index, op) in ops.iter().enumerate() {
        assert_eq!(op.integer("index"), index as i128);
        assert!(op.integer("time") >= last_time);
        last_time = op.integer("time");
        let Some(Form::Integer(process)) = op.get("process") else { continue };
        match op.keyword("type") {
            "invoke" => {
                assert!(!gone.contains(process), "{process} goes on after an unknown outcome");
                assert_eq!(open.insert(*process, op.keyword("f").to_owned()), None);
                calls += 1;
            }
            kind @ ("ok" | "fail" | "info") => {
                assert_eq!(open.remove(process).as_deref(), Some(op.keyword("f")));
                gone.extend((kind == "info").then_some(*process));
            }
            other => panic!("no type: {other}"),
        }
    }
    assert_eq!((calls, open.len()), (history.operations.len(), 0));
}

#[test]
fn outcomes_are_told_apart() {
    let outcomes =
        [not_found(), Outcome::Refused, Outcome::Unknown, Outcome::Unexpected { status: 500, body: "?".to_owned() }];
    let operations = outcomes.into_iter().enumerate().map(|(i, outcome)| get_policy(i as u64, (1, 2), outcome));
    let ops = read(&written(&History { operations: operations.collect(), ..History::default() }));
    let completed: Vec<&str> = ops[4..].iter().map(|op| op.keyword("type")).collect();
    assert_eq!(completed, ["ok", "fail", "info", "info"]);
}

#[test]
fn strings_read_back_as_they_were_and_an_op_stays_on_its_line() {
    let call = Call::CreateApp { app: HOSTILE.to_owned() };
    let history =
        History { operations: vec![Operation { call, ..get_policy(0, (1, 2), not_found()) }], ..History::default() };
    let text = written(&history);
    assert_eq!(text.lines().count(), 2);
    let app = read(&text)[0].get("value").and_then(|value| value.get("app").cloned());
    assert_eq!(app, Some(Form::String(HOSTILE.to_owned())));
}

#[test]
fn numbers_that_no_long_holds_are_big_integers() {
    let (account, key, messages) = ("a".to_owned(), "k".to_owned(), Vec::new());
    let call = Call::Complete { account, key, token: u64::MAX, body: String::new(), messages };
    let history =
        History { operations: vec![Operation { call, ..get_policy(0, (1, 2), not_found()) }], ..History::default() };
    let text = written(&history);
    assert!(text.contains(":token 18446744073709551615N"), "{text}");
}

#[test]
fn calls_that_touch_are_concurrent_and_those_of_one_process_are_not() {
    let operations = vec![
        get_policy(0, (1, 5), not_found()),
        get_policy(0, (5, 9), not_found()),
        get_policy(1, (5, 6), not_found()),
    ];
    let ops = read(&written(&History { operations, ..History::default() }));
    let order: Vec<(i128, &str)> = ops.iter().map(|op| (op.integer("process"), op.keyword("type"))).collect();
    assert_eq!(order, [(0, "invoke"), (1, "invoke"), (0, "ok"), (0, "invoke"), (1, "ok"), (0, "ok")]);
}

#[test]
fn a_process_that_goes_on_after_an_unknown_outcome_gets_a_new_number() {
    let operations = vec![get_policy(0, (1, 2), Outcome::Unknown), get_policy(0, (3, 4), not_found())];
    let ops = read(&written(&History { operations, ..History::default() }));
    let processes: Vec<i128> = ops.iter().map(|op| op.integer("process")).collect();
    assert_eq!(processes, [0, 0, 1, 1]);
}

#[test]
fn a_nemesis_starts_and_stops() {
    let effects = ["refused", "refused"].map(|name| Effect { name: name.to_owned(), count: 2 });
    let (name, target) = ("kill one".to_owned(), "node 2".to_owned());
    let nemesis = Nemesis { from_us: 1, until_us: 2, name, target, effects: effects.to_vec() };
    let ops = read(&written(&History { nemeses: vec![nemesis], ..History::default() }));
    let told: Vec<&str> = ops.iter().map(|op| op.keyword("f")).collect();
    assert_eq!(told, ["start-kill-one", "stop-kill-one"]);
    assert!(ops.iter().all(|op| op.keyword("process") == "nemesis" && op.keyword("type") == "info"));
    assert_eq!(ops[1].get("value").expect("effects").integer("refused"), 4);
}
