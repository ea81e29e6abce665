//! Exemptions: the keys, and prefixes of keys, that a policy doesn't count.

use serde::{Deserialize, Serialize};

/// Sorted patterns: a key, or a prefix ending in `*`. A look-up is two binary searches, however many there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct Exemptions {
    patterns: Vec<String>,
    /// The prefixes without their `*`, sorted, none of them the beginning of another: so of all of them only the
    /// greatest that is not above a key can be its beginning.
    prefixes: Vec<String>,
}

impl Exemptions {
    pub fn contains(&self, key: &str) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        let above = self.prefixes.partition_point(|prefix| prefix.as_str() <= key);
        let by_prefix = above.checked_sub(1).is_some_and(|at| key.starts_with(&self.prefixes[at]));
        // The pattern `a*` is no key, but the key `a*` is covered by it anyway.
        by_prefix || self.patterns.binary_search_by(|pattern| pattern.as_str().cmp(key)).is_ok()
    }

    /// As they were given, sorted, each once.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }
}

impl From<Vec<String>> for Exemptions {
    fn from(mut patterns: Vec<String>) -> Exemptions {
        patterns.sort_unstable();
        patterns.dedup();
        let mut all: Vec<&str> = patterns.iter().filter_map(|pattern| pattern.strip_suffix('*')).collect();
        all.sort_unstable();
        let mut prefixes: Vec<String> = Vec::new();
        for prefix in all {
            if !prefixes.last().is_some_and(|shorter| prefix.starts_with(shorter.as_str())) {
                prefixes.push(prefix.to_owned());
            }
        }
        Exemptions { patterns, prefixes }
    }
}

impl From<Exemptions> for Vec<String> {
    fn from(exemptions: Exemptions) -> Vec<String> {
        exemptions.patterns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_fast_lookup_agrees_with_reading_the_list(
            patterns in prop::collection::vec("[ab]{0,3}\\*?", 0..8),
            key in "[ab*]{0,5}",
        ) {
            let expected = patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => key.starts_with(prefix),
                None => *pattern == key,
            });
            prop_assert_eq!(Exemptions::from(patterns).contains(&key), expected);
        }
    }
}
