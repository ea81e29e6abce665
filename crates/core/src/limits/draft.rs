//! PolicyDraft: a specification as somebody wrote it, and every fault that it has.

use std::collections::BTreeMap;

use super::{
    Algorithm, Escrow, Exemptions, FieldError, OnUnavailable, Override, PolicySpec, Rate,
    bounds::{
        BURST_MAX, EXEMPT_MAX, KEY_BYTES_MAX, OVERRIDES_MAX, SPEC_BYTES_MAX, TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX,
        TIMEOUT_MS_MIN,
    },
    policy::quoted,
};
use crate::codec;

/// The fields of `PUT /v1/policies/{policy}` as they come; `None` where one is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyDraft {
    pub algorithm: Option<String>,
    pub rate: Option<String>,
    pub burst: Option<u64>,
    pub on_unavailable: Option<String>,
    pub timeout_ms: Option<u64>,
    pub exempt: Vec<String>,
    pub overrides: BTreeMap<String, OverrideDraft>,
    pub escrow: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverrideDraft {
    /// A text: only `deny` is one.
    Word(String),
    Limit {
        rate: Option<String>,
        burst: Option<u64>,
    },
}

/// Takes the value, or keeps the fault and a stand-in so that the other fields are looked at too.
struct Faults(Vec<FieldError>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), message: message.into() });
    }

    /// One of a few words, the first of which is the default.
    fn choice<T: Copy>(&mut self, field: &str, given: Option<&str>, choices: &[(&str, T)]) -> T {
        let Some(given) = given else { return choices[0].1 };
        match choices.iter().find(|(word, _)| *word == given) {
            Some(&(_, value)) => value,
            None => {
                let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
                self.add(field, format!("{} is not one of {}", quoted(given), words.join(", ")));
                choices[0].1
            }
        }
    }

    fn key(&mut self, field: &str, what: &str, key: &str) {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            self.add(field, format!("{what} is 1 to {KEY_BYTES_MAX} bytes, this one has {}", key.len()));
        }
    }

    /// A rate and the capacity that goes with it; `at` is the path of the object they stand in, empty or ending in a dot.
    fn limit(&mut self, at: &str, algorithm: Algorithm, rate: Option<&str>, burst: Option<u64>) -> Option<(Rate, u64)> {
        let rate = match rate.map(str::parse::<Rate>) {
            Some(Ok(rate)) => Some(rate),
            Some(Err(error)) => {
                self.add(format!("{at}rate"), error.to_string());
                None
            }
            None => {
                self.add(format!("{at}rate"), "is required: N/unit or N/Kunit, such as 2/s or 5000/15min");
                None
            }
        };
        match (algorithm, burst) {
            (Algorithm::SlidingWindow, Some(_)) => {
                self.add(
                    format!("{at}burst"),
                    "is not for a sliding_window, whose limit is the N of its rate: leave it out",
                );
            }
            (Algorithm::TokenBucket, Some(0)) => {
                self.add(
                    format!("{at}burst"),
                    format!("is 1 to {BURST_MAX}; to block a key, give it the override \"deny\""),
                );
            }
            (Algorithm::TokenBucket, Some(burst)) if burst > BURST_MAX => {
                self.add(format!("{at}burst"), format!("is 1 to {BURST_MAX}, not {burst}"));
            }
            (Algorithm::TokenBucket, None) if rate.is_some_and(|rate| rate.amount > BURST_MAX) => {
                self.add(
                    format!("{at}burst"),
                    format!("is required where the N of the rate is above {BURST_MAX}: 1 to {BURST_MAX}"),
                );
            }
            (Algorithm::SlidingWindow, None) if rate.is_some_and(|rate| rate.amount > BURST_MAX) => {
                self.add(format!("{at}rate"), format!("a sliding_window's limit is at most {BURST_MAX}"));
            }
            _ => {}
        }
        rate.map(|rate| (rate, burst.unwrap_or(rate.amount)))
    }
}

impl PolicyDraft {
    /// The specification, or all that is wrong with it.
    pub fn check(self) -> Result<PolicySpec, Vec<FieldError>> {
        let mut faults = Faults(Vec::new());
        let algorithm = faults.choice(
            "algorithm",
            self.algorithm.as_deref(),
            &[("token_bucket", Algorithm::TokenBucket), ("sliding_window", Algorithm::SlidingWindow)],
        );
        let limit = faults.limit("", algorithm, self.rate.as_deref(), self.burst);
        let on_unavailable = faults.choice(
            "on_unavailable",
            self.on_unavailable.as_deref(),
            &[("local", OnUnavailable::Local), ("allow", OnUnavailable::Allow), ("deny", OnUnavailable::Deny)],
        );
        let escrow = faults.choice("escrow", self.escrow.as_deref(), &[("auto", Escrow::Auto), ("off", Escrow::Off)]);
        let timeout_ms = timeout(&mut faults, self.timeout_ms);
        let exempt = exemptions(&mut faults, self.exempt);
        let overrides = overrides(&mut faults, algorithm, self.overrides);
        let Some((rate, burst)) = limit.filter(|_| faults.0.is_empty()) else { return Err(faults.0) };

        let spec = PolicySpec { algorithm, rate, burst, on_unavailable, timeout_ms, exempt, overrides, escrow };
        let bytes = codec::encode(&spec).len();
        if bytes > SPEC_BYTES_MAX {
            let message = format!("exempt and overrides take {bytes} bytes together, {SPEC_BYTES_MAX} are allowed");
            return Err(vec![FieldError { field: "overrides".into(), message }]);
        }
        Ok(spec)
    }
}

fn timeout(faults: &mut Faults, given: Option<u64>) -> u32 {
    let Some(given) = given else { return TIMEOUT_MS_DEFAULT };
    match u32::try_from(given) {
        Ok(ms) if (TIMEOUT_MS_MIN..=TIMEOUT_MS_MAX).contains(&ms) => ms,
        _ => {
            faults.add("timeout_ms", format!("is {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX}, not {given}"));
            TIMEOUT_MS_DEFAULT
        }
    }
}

fn exemptions(faults: &mut Faults, patterns: Vec<String>) -> Exemptions {
    if patterns.len() > EXEMPT_MAX {
        faults.add("exempt", format!("has {} entries, {EXEMPT_MAX} are allowed", patterns.len()));
        return Exemptions::default();
    }
    for (index, pattern) in patterns.iter().enumerate() {
        faults.key(&format!("exempt[{index}]"), "a key or prefix", pattern);
    }
    Exemptions::from(patterns)
}

fn overrides(
    faults: &mut Faults,
    algorithm: Algorithm,
    drafts: BTreeMap<String, OverrideDraft>,
) -> BTreeMap<String, Override> {
    if drafts.len() > OVERRIDES_MAX {
        faults.add("overrides", format!("has {} entries, {OVERRIDES_MAX} are allowed", drafts.len()));
        return BTreeMap::new();
    }
    let mut checked = BTreeMap::new();
    for (key, draft) in drafts {
        let at = format!("overrides[{}]", quoted(&key));
        faults.key(&at, "a key", &key);
        match draft {
            OverrideDraft::Word(word) if word == "deny" => {
                checked.insert(key, Override::Deny);
            }
            OverrideDraft::Word(word) => {
                let word = quoted(&word);
                faults.add(at, format!("{word} is not \"deny\"; else an override is an object with rate and burst"));
            }
            OverrideDraft::Limit { rate, burst } => {
                if let Some((rate, burst)) = faults.limit(&format!("{at}."), algorithm, rate.as_deref(), burst) {
                    checked.insert(key, Override::Limit { rate, burst });
                }
            }
        }
    }
    checked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(rate: &str) -> PolicyDraft {
        PolicyDraft { rate: Some(rate.into()), ..PolicyDraft::default() }
    }

    fn faulty_fields(draft: PolicyDraft) -> Vec<String> {
        draft.check().expect_err("faults").into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let spec = draft("100/min").check().expect("valid");
        assert_eq!((spec.algorithm, spec.burst, spec.timeout_ms), (Algorithm::TokenBucket, 100, 250));
        assert_eq!((spec.on_unavailable, spec.escrow), (OnUnavailable::Local, Escrow::Auto));
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let fields = faulty_fields(PolicyDraft {
            algorithm: Some("leaky".into()),
            rate: Some("1/month".into()),
            burst: Some(0),
            on_unavailable: Some("panic".into()),
            timeout_ms: Some(9),
            exempt: vec!["ok".into(), String::new()],
            overrides: BTreeMap::from([
                ("a".into(), OverrideDraft::Word("allow".into())),
                ("b".into(), OverrideDraft::Limit { rate: None, burst: Some(BURST_MAX + 1) }),
                ("c".repeat(KEY_BYTES_MAX + 1), OverrideDraft::Word("deny".into())),
            ]),
            escrow: Some("on".into()),
        });
        let long_key = format!("overrides[\"{}\"]", "c".repeat(64));
        assert_eq!(
            fields,
            [
                "algorithm",
                "rate",
                "burst",
                "on_unavailable",
                "escrow",
                "timeout_ms",
                "exempt[1]",
                "overrides[\"a\"]",
                "overrides[\"b\"].rate",
                "overrides[\"b\"].burst",
                long_key.as_str()
            ]
        );
    }

    #[test]
    fn an_error_quotes_only_the_beginning_of_a_wrong_text() {
        let long = || Some("x".repeat(100_000));
        let draft = PolicyDraft { rate: long(), algorithm: long(), on_unavailable: long(), ..PolicyDraft::default() };
        let faults = draft.check().expect_err("faults");
        assert_eq!(faults.len(), 3);
        assert!(faults.iter().all(|fault| fault.message.len() < 300), "{faults:?}");
    }

    #[test]
    fn a_sliding_window_has_no_burst() {
        let sliding =
            |rate: &str, burst| PolicyDraft { algorithm: Some("sliding_window".into()), burst, ..draft(rate) };
        assert_eq!(sliding("7/s", None).check().expect("valid").burst, 7);
        assert_eq!(faulty_fields(sliding("7/s", Some(7))), ["burst"]);
        assert_eq!(faulty_fields(sliding("1000000000001/h", None)), ["rate"]);
    }

    #[test]
    fn bounds_of_capacity_and_lists_hold() {
        assert!(PolicyDraft { burst: Some(BURST_MAX), ..draft("1/365d") }.check().is_ok());
        assert_eq!(faulty_fields(draft("2000000000000/h")), ["burst"]);
        assert_eq!(faulty_fields(PolicyDraft::default()), ["rate"]);
        assert_eq!(faulty_fields(PolicyDraft { exempt: vec!["a".into(); EXEMPT_MAX + 1], ..draft("1/s") }), ["exempt"]);
        let many = (0..=OVERRIDES_MAX).map(|n| (n.to_string(), OverrideDraft::Word("deny".into()))).collect();
        assert_eq!(faulty_fields(PolicyDraft { overrides: many, ..draft("1/s") }), ["overrides"]);
        let long = (0..600).map(|n| (format!("{n:0>512}"), OverrideDraft::Word("deny".into()))).collect();
        assert_eq!(faulty_fields(PolicyDraft { overrides: long, ..draft("1/s") }), ["overrides"]);
    }
}
