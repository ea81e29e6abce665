//! The page: small, closed, and telling the truth at its top.

use onceward_checkers::history::{
    Algorithm, Call, Effect, History, Item, ItemResult, Mode, Nemesis, Operation, Outcome, Reply, Run, Terms,
};
use onceward_checkers::verdict::Verdict;

use crate::sample;

const SECOND: u64 = 1_000_000;

fn page(history: &History, verdicts: &[Verdict], shortcomings: &[String]) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    onceward_report::write(dir.path(), history, verdicts, shortcomings).expect("it is written");
    std::fs::read_to_string(dir.path().join("index.html")).expect("it is there")
}

fn verdict(promise: &str, judged: u64, violations: &[&str]) -> Verdict {
    Verdict {
        promise: promise.to_owned(),
        judged: vec![("keys".to_owned(), judged)],
        measured: Vec::new(),
        violations: violations.iter().map(|violation| (*violation).to_owned()).collect(),
    }
}

fn headline(page: &str) -> String {
    let (_, rest) = page.split_once("<h1>").expect("it has a headline");
    let (headline, _) = rest.split_once("</h1>").expect("it ends");
    headline.replace("</span>", "").split_once('>').expect("it has a badge").1.to_owned()
}

#[test]
fn the_headline_says_how_it_went() {
    let history = sample::run(1, 20, 20);
    let kept = [verdict("G1", 9, &[]), verdict("G2", 9, &[])];
    let violated = [verdict("G1", 9, &[]), verdict("G2", 9, &["key k is owned twice"])];
    let untested = [verdict("G1", 9, &[]), verdict("G2", 0, &[])];
    let nothing = [verdict("G1", 0, &[])];
    let short = ["one-way never bit".to_owned()];
    assert_eq!(headline(&page(&history, &kept, &[])), "Passed All 2 promises kept");
    assert_eq!(headline(&page(&history, &violated, &[])), "Failed Violated: G2");
    assert_eq!(headline(&page(&history, &untested, &[])), "Passed 1 of 2 promises kept, the others untested");
    assert_eq!(headline(&page(&history, &nothing, &[])), "Shows too little Nothing was judged");
    assert_eq!(
        headline(&page(&history, &kept, &short)),
        "Shows too little Nothing violated, but not all was exercised"
    );
}

#[test]
fn whatever_the_history_holds_stays_text() {
    const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&";
    let mut history = sample::run(1, 20, 20);
    let hostile = || HOSTILE.to_owned();
    history.run = Some(Run { nemesis: hostile(), workload: hostile(), ..history.run.take().expect("it is told") });
    history.nemeses.push(Nemesis {
        from_us: 0,
        until_us: SECOND,
        name: hostile(),
        target: hostile(),
        effects: vec![Effect { name: hostile(), count: 1 }],
    });
    history.operations.iter_mut().for_each(|operation| {
        if let Call::Check { items, .. } = &mut operation.call {
            items[0].key = hostile();
        }
    });
    let page = page(&history, &[verdict(HOSTILE, 1, &[HOSTILE])], &[hostile()]);
    assert!(!page.contains("<img"), "a tag came through");
    assert_eq!(page.matches("<script").count(), 2, "the readings and the page's own");
    assert_eq!(page.matches("</script").count(), 2);
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = page(&sample::run(1, 20, 20), &[], &[]);
    for elsewhere in ["http:", "https:", "//cdn", "<link", "@import", "url(", "src="] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
}

#[test]
fn a_page_does_not_grow_with_the_run() {
    let verdicts = [verdict("G1", 9, &vec!["a bucket at 1.000000 s"; 100_000])];
    let size = page(&sample::run(1, 600, 170), &verdicts, &[]).len();
    assert!(size < 600_000, "{size} bytes for ten minutes of 100 000 calls");
    let size = page(&sample::run(1, 7_200, 15), &verdicts, &[]).len();
    assert!(size < 1_500_000, "{size} bytes for two hours");
}

#[test]
fn an_empty_history_has_a_page() {
    assert!(page(&History::default(), &[], &[]).contains("Nothing was judged"));
}

#[test]
fn a_time_that_a_violation_names_leads_to_the_plots() {
    let violations = ["node 2: token 7 at 3.250000 s, within 5 s of 1.5 s; then 12.000001 s"];
    let page = page(&sample::run(1, 20, 20), &[verdict("G2", 1, &violations)], &[]);
    assert!(page.contains(r##"<a href="#timeline" data-at="3250000">3.250000 s</a>, within 5 s of 1.5 s; then <a"##));
    assert!(page.contains(r##"data-at="12000001">12.000001 s</a>"##));
}

/// A bucket that refills nothing in the time of a run.
fn bucket_of_ten(admits: u64, extra: impl IntoIterator<Item = Operation>) -> History {
    let terms = Terms {
        algorithm: Algorithm::TokenBucket,
        amount: 1,
        window_us: 86_400 * SECOND,
        burst: 10,
        on_unavailable: "deny".to_owned(),
    };
    let put = Call::PutPolicy { policy: "p".to_owned(), terms: terms.clone() };
    let mut operations = vec![answered(0, put, Reply::Policy { terms, revision: 1, pending: false })];
    let item = Item { policy: "p".to_owned(), key: "k".to_owned(), cost: 1 };
    let result = ItemResult { allowed: true, limit: 10, remaining: 0, retry_after_ms: None, degraded: false };
    for i in 0..admits {
        let call = Call::Check { items: vec![item.clone()], mode: Mode::Enforce, request_id: None };
        operations.push(answered(i + 1, call, Reply::Checked { allowed: true, results: vec![result.clone()] }));
    }
    operations.extend(extra);
    History { operations, ..History::default() }
}

fn answered(at: u64, call: Call, reply: Reply) -> Operation {
    let (invoked_us, outcome) = (at * 1_000, Outcome::Answered { reply });
    Operation { process: 1, node: 1, invoked_us, returned_us: invoked_us + 500, last: false, call, outcome }
}

#[test]
fn a_bucket_beyond_its_bound_is_shown_as_such() {
    assert!(page(&bucket_of_ten(10, []), &[], &[]).contains("used 100 %"));
    let over = page(&bucket_of_ten(12, []), &[], &[]);
    assert!(over.contains("used 120 %") && over.contains(">over<"));
}

#[test]
fn what_was_given_back_does_not_count_against_a_bucket() {
    let refund = Call::Refund { policy: "p".to_owned(), key: "k".to_owned(), cost: 2, request_id: "r".to_owned() };
    let refunded = page(&bucket_of_ten(12, [answered(5, refund, Reply::Refunded)]), &[], &[]);
    assert!(refunded.contains("used 100 %"));
    let reset = Call::Reset { policy: "p".to_owned(), key: "k".to_owned() };
    let reset = page(&bucket_of_ten(14, [answered(5, reset, Reply::Reset)]), &[], &[]);
    assert!(!reset.contains(">over<"));
}
