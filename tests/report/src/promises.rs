//! The promises in words, and how one stands after a run.

use onceward_checkers::verdict::Verdict;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Kept,
    Violated,
    Untested,
}

impl Standing {
    pub fn word(self) -> &'static str {
        match self {
            Standing::Kept => "Kept",
            Standing::Violated => "Violated",
            Standing::Untested => "Untested",
        }
    }

    pub fn class(self) -> &'static str {
        match self {
            Standing::Kept => "good",
            Standing::Violated => "bad",
            Standing::Untested => "doubt",
        }
    }
}

pub fn standing(verdict: &Verdict) -> Standing {
    match (verdict.kept(), verdict.tested()) {
        (false, _) => Standing::Violated,
        (true, true) => Standing::Kept,
        (true, false) => Standing::Untested,
    }
}

/// A name, and a sentence for who does not know it.
pub fn words(promise: &str) -> (&'static str, &'static str) {
    match promise {
        "G1" => (
            "Limits never over-admit",
            "In no interval does a bucket admit more than its burst and what refilled meanwhile.",
        ),
        "G2" => (
            "One owner",
            "A key has one live token at a time, tokens only grow, a fenced one changes nothing, and all replays are alike.",
        ),
        "G3" => {
            ("Acknowledged is durable", "What was answered with success is still there after every node was killed.")
        }
        "G4" => (
            "Complete and publish are one",
            "A completed key has all its messages, one that is not completed has none.",
        ),
        "G5" => (
            "Delivered at least once",
            "Every accepted message reaches every endpoint it matched, or ends visibly; repeats carry the same id.",
        ),
        "G6" => ("Sequences without gaps", "Each endpoint is sent 1, 2, 3 … in the order of publishing."),
        "G7" => {
            ("Reads are linearizable", "What any node answers is never older than what somebody was answered before.")
        }
        "G8" => ("Replicas agree", "At an equal applied index, replicas have equal state."),
        "G9" => ("Failures are told apart", "What was refused never took effect, and no other error is ever seen."),
        "G10" => (
            "It comes back",
            "A lost leader costs less than 1.5 s of refusals (median); 5 s after healing every shard serves through every node.",
        ),
        _ => ("", ""),
    }
}

/// The next `12.034567 s` in a sentence: what stands before it, the time in microseconds, as it was written, and the rest.
pub fn next_time(text: &str) -> Option<(&str, u64, &str, &str)> {
    for (end, unit) in text.match_indices(" s") {
        let followed = text[end + unit.len()..].chars().next().is_some_and(char::is_alphanumeric);
        let number = |c: char| c.is_ascii_digit() || c == '.';
        let start =
            text[..end].rfind(|c| !number(c)).map_or(0, |i| i + text[i..].chars().next().map_or(1, char::len_utf8));
        let Some((seconds, fraction)) = text[start..end].split_once('.') else { continue };
        if followed || fraction.len() != MICROSECOND_DIGITS {
            continue;
        }
        if let (Ok(seconds), Ok(fraction)) = (seconds.parse::<u64>(), fraction.parse::<u64>()) {
            let after = end + unit.len();
            let at_us = seconds.saturating_mul(1_000_000).saturating_add(fraction);
            return Some((&text[..start], at_us, &text[start..after], &text[after..]));
        }
    }
    None
}

/// Times of the history are written to the microsecond; a duration such as `5 s` is no place in it.
const MICROSECOND_DIGITS: usize = 6;
