//! What is said about peers in the log: bounded in length, and in how often.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use onceward_core::cluster::NodeId;
use tokio::time::Instant;

use crate::limits::{LOG_EVERY, LOG_PEERS_MAX, REFUSAL_TEXT_BYTES_MAX};

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// Somebody who connected to this node.
    Caller(IpAddr),
    /// This node could not reach another.
    Unreachable(NodeId),
    /// Another node refused this one, or was refused, when this one dialled.
    Refused(NodeId),
}

/// Says which lines may be written now: one a subject in [`LOG_EVERY`].
#[derive(Default)]
pub(crate) struct Notices {
    last: Mutex<HashMap<Subject, Instant>>,
}

impl Notices {
    pub fn may_tell(&self, subject: Subject) -> bool {
        self.may_tell_at(Instant::now(), subject)
    }

    fn may_tell_at(&self, now: Instant, subject: Subject) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= LOG_PEERS_MAX {
            last.retain(|_, told| now - *told < LOG_EVERY);
        }
        match last.get(&subject) {
            Some(told) if now - *told < LOG_EVERY => false,
            None if last.len() >= LOG_PEERS_MAX => false,
            Some(_) | None => {
                last.insert(subject, now);
                true
            }
        }
    }
}

/// A text from or for a peer, fit for one line of a log: no control characters, at most [`REFUSAL_TEXT_BYTES_MAX`].
pub(crate) fn clean(text: &str) -> String {
    let mut end = text.len().min(REFUSAL_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_told_once_in_its_time_and_many_subjects_take_bounded_memory() {
        let notices = Notices::default();
        let now = Instant::now();
        let first = Subject::Unreachable(NodeId(1));
        assert!(notices.may_tell_at(now, first));
        assert!(!notices.may_tell_at(now, first));
        assert!(notices.may_tell_at(now, Subject::Refused(NodeId(1))));
        for last_octets in 0..=u16::MAX {
            let [third, fourth] = last_octets.to_be_bytes();
            notices.may_tell_at(now, Subject::Caller(IpAddr::from([10, 0, third, fourth])));
        }
        assert_eq!(notices.last.lock().unwrap().len(), LOG_PEERS_MAX);
        assert!(notices.may_tell_at(now + LOG_EVERY, first));
    }

    #[test]
    fn texts_are_cut_at_a_character_and_lose_line_breaks() {
        assert_eq!(clean("no\nway"), "no way");
        let long = "é".repeat(REFUSAL_TEXT_BYTES_MAX);
        assert!(clean(&long).len() <= REFUSAL_TEXT_BYTES_MAX && clean(&long).ends_with('é'));
    }
}
