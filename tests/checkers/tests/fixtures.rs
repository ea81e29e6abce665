//! Each checker proves itself: histories that are broken in one line are rejected with the words that name the fault, and
//! their twins, right in that line, are accepted by all.

use std::{fs, path::Path};

use onceward_checkers::{all, history::History, verdict::Verdict};

/// A history, and what has to be said about the broken one. The name begins with the promise.
const FIXTURES: &[(&str, &str)] = &[
    ("g1-burst", "bucket api/k: admitted 6 between 1.010000 s and 1.061000 s, where at most 5.5"),
    ("g1-refill", "admitted 12"),
    ("g1-window", "admitted 4 between"),
    ("g1-request-id", "bucket api/k: admitted 3"),
    ("g1-reset", "bucket api/k: admitted 4"),
    ("g1-refund", "bucket api/k: admitted 4"),
    ("g1-policy-change", "bucket api/k: admitted 9"),
    ("g1-degraded", "bucket api/k: admitted 3"),
    ("g1-level", "not linearizable"),
    ("g1-refund-once", "not linearizable"),
    ("g2-token-goes-back", "a2 got token 6"),
    ("g2-token-shared", "token 7 given to a1 and"),
    ("g2-fenced-completes", "fenced token 7 completed it"),
    ("g2-fenced-extends", "fenced token 7 extended it"),
    ("g2-lease-broken", "no order of calls explains Begin"),
    ("g2-two-owners", "no order of calls explains"),
    ("g2-replay-changed", "which nobody had stored"),
    ("g2-replay-status", "replayed with the statuses"),
    ("g2-completed-twice", "no order of calls explains Complete"),
    ("g2-retry-is-another", "no order of calls explains Begin"),
    ("g3-policy", "policy api: at 3.001000 s node 1 has"),
    ("g3-endpoint", "endpoint acct/hook: at 3.001000 s node 2 has"),
    ("g3-completion", "key acct/k: completed with \"one\" at 2.001000 s, but"),
    ("g3-attempt", "key acct/k: begun at 1.001000 s, but"),
    ("g3-message", "message acct/e1: accepted by 1.001000 s, but lost"),
    ("g3-app", "application acct: not found at 2.001000 s"),
    ("g3-request-id", "request_id r1, admitted by 1.001000 s, is denied"),
    ("g4-missing", "completed with \"one\", but its message e2 does not exist"),
    ("g4-content", "has the digest d-other instead of d-e1"),
    ("g4-unstored", "the completion with \"one\" was not stored, but its message e1 exists"),
    ("g4-unknown-but-stored", "completed with \"one\", but its message e1 does not exist"),
    ("g4-fenced", "the completion with \"one\" was not stored, but its message e1 exists"),
    ("g5-never-arrived", "message e2, accepted by 1.003000 s, never arrived (1 requests, none answered 2xx)"),
    (
        "g5-ended",
        "message e1, accepted by 1.001000 s, never arrived (1 requests, none answered 2xx) and is still pending",
    ),
    ("g5-signature", "message e1 at 2.000000 s has a wrong signature"),
    ("g5-repeat", "message e1 came at 2.000000 s as"),
    ("g5-repeat-id", "has the id msg_other, told was"),
    ("g5-content", "has the digest d-other, published was"),
    ("g5-unpublished", "message e2 at 2.100000 s was published by nobody"),
    ("g6-gap", "1 numbers up to 4 never came, first 3"),
    ("g6-order", "e3 has number 2, but was sent at 1.004000 s, after e2 with number 3"),
    ("g6-number-twice", "number 2 is that of e2 and"),
    ("g7-policy", "policy api: no order of calls explains GetPolicy"),
    ("g7-policy-revision", "policy api: no order of calls explains PutPolicy"),
    ("g7-policy-as-it-stands", "policy api: no order of calls explains PutPolicy"),
    ("g7-endpoint", "endpoint acct/hook: no order of calls explains GetEndpoint"),
    ("g7-record", "key acct/k: no order of calls explains GetRecord"),
    ("g7-message", "message acct/e1 on node 2 at 3.001000 s: not found, though it was there by 2.001000 s"),
    ("g7-message-id", "message acct/e1 has the ids"),
    ("g8-states", "shard 2 at index 70: node 1 had aa11"),
    ("g9-policy", "policy api: Terms"),
    ("g9-endpoint", "endpoint acct/hook: \"v2\": refused at 2.001000 s, but read at 3.001000 s"),
    ("g9-publish", "message acct/e1: refused at 1.001000 s, but delivered at 2.000000 s"),
    ("g9-completion", "completion with \"one\": refused at 2.001000 s, but replayed"),
    ("g9-begin", "key acct/k: refused at 1.001000 s, but there at 2.001000 s"),
    ("g9-minority", "node 1, without a majority, answered Started { token: 7 } at 2.001000 s"),
    ("g9-unexpected", "node 1 answered 500"),
    ("g10-healing", "healing at 9.000000 s took 5.100000 s"),
    ("g10-leader-loss", "kill-leader: loss of a leader at 9.000000 s took 2.600000 s"),
    ("g10-median", "the median loss of a leader took 1.600000 s"),
];

fn text(name: &str, twin: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.{twin}.jsonl"));
    fs::read_to_string(path).expect("it is in the repository")
}

fn judge(name: &str, twin: &str) -> Vec<Verdict> {
    let history = History::read(text(name, twin).as_bytes()).expect("every line is a record");
    all().iter().map(|checker| checker.check(&history)).collect()
}

#[test]
fn broken_histories_are_rejected() {
    for (name, says) in FIXTURES {
        let promise = name.split('-').next().unwrap().to_uppercase();
        let verdicts = judge(name, "broken");
        let verdict = verdicts.iter().find(|verdict| verdict.promise == promise).unwrap();
        let said = verdict.violations.iter().any(|violation| violation.contains(says));
        assert!(said, "{name}: {promise} should say {says:?}, and says {:#?}", verdict.violations);
    }
}

#[test]
fn their_correct_twins_are_accepted() {
    for (name, _) in FIXTURES {
        for verdict in judge(name, "correct") {
            assert!(verdict.kept(), "{name}: {} says {:#?}", verdict.promise, verdict.violations);
        }
    }
}

#[test]
fn twins_differ_in_one_line() {
    for (name, _) in FIXTURES {
        let (broken, correct) = (text(name, "broken"), text(name, "correct"));
        assert_eq!(broken.lines().count(), correct.lines().count(), "{name}");
        assert_eq!(broken.lines().zip(correct.lines()).filter(|(one, other)| one != other).count(), 1, "{name}");
    }
}

#[test]
fn every_promise_is_tested_by_a_correct_fixture() {
    for checker in all() {
        let promise = checker.promise().to_lowercase() + "-";
        let mut fixtures = FIXTURES.iter().filter(|(name, _)| name.starts_with(&promise));
        let tested = |name: &str| judge(name, "correct").iter().any(|v| v.promise == checker.promise() && v.tested());
        assert!(fixtures.any(|(name, _)| tested(name)), "{promise}");
    }
}

#[test]
fn every_fixture_is_listed() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for entry in fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(FIXTURES.iter().any(|(listed, _)| name.split('.').next() == Some(*listed)), "{name}");
    }
}
