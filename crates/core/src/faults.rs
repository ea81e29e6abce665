//! Seeded faults: mistakes that an engineer could have made, each in one line where the true code stands, so that the
//! checkers of histories can show that they would be found.
//!
//! Only with the feature `faults` can one be chosen, when a process starts. Without it [`active`] is `false` at compile
//! time, and nothing of this is in the binary.

/// A mistake. All nodes of a cluster make the same one, so that replicas still agree where it is in `apply`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The log writer says that it is done before anything is on disk.
    SkipFsync,
    /// The replica at hand answers reads, whatever it has missed.
    ReadWithoutReadIndex,
    /// A leader answers when it hands an entry to its log.
    AnswerBeforeApply,
    /// Whoever knows the key may complete, abandon and extend.
    ForgetToken,
    /// A new leader begins with full buckets.
    RefillOnLeaderChange,
    /// A leader carries out twice what other nodes send it.
    ApplyForwardedTwice,
    /// A new leader delivers only what comes due from then on.
    DropDueOnLeaderChange,
    /// A deadline is a definite no, also behind the hand-over.
    RefuseAfterHandOver,
    /// What an aborted hold gives back, it gives back twice.
    AbortTwice,
    /// The shard clock goes on by the wall clock.
    ClockFollowsWall,
}

/// Whether this process makes the mistake.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub const fn active(_fault: Fault) -> bool {
    false
}

#[cfg(feature = "faults")]
pub use chosen::{active, choose, forget_buckets};

#[cfg(feature = "faults")]
mod chosen {
    use std::{
        str::FromStr,
        sync::atomic::{AtomicU8, Ordering},
    };

    use super::Fault;
    use crate::{
        codec::keys::Kind,
        rows::{Rows, RowsError, Table},
    };

    const NONE: u8 = u8::MAX;
    static CHOSEN: AtomicU8 = AtomicU8::new(NONE);

    /// From now on this process makes the mistake. Before anything else runs in it.
    pub fn choose(fault: Fault) {
        CHOSEN.store(fault as u8, Ordering::Relaxed);
    }

    /// Whether this process makes the mistake.
    pub fn active(fault: Fault) -> bool {
        CHOSEN.load(Ordering::Relaxed) == fault as u8
    }

    impl Fault {
        pub const ALL: [Fault; 10] = [
            Fault::SkipFsync,
            Fault::ReadWithoutReadIndex,
            Fault::AnswerBeforeApply,
            Fault::ForgetToken,
            Fault::RefillOnLeaderChange,
            Fault::ApplyForwardedTwice,
            Fault::DropDueOnLeaderChange,
            Fault::RefuseAfterHandOver,
            Fault::AbortTwice,
            Fault::ClockFollowsWall,
        ];

        pub const fn name(self) -> &'static str {
            match self {
                Fault::SkipFsync => "skip-fsync",
                Fault::ReadWithoutReadIndex => "read-without-read-index",
                Fault::AnswerBeforeApply => "answer-before-apply",
                Fault::ForgetToken => "forget-token",
                Fault::RefillOnLeaderChange => "refill-on-leader-change",
                Fault::ApplyForwardedTwice => "apply-forwarded-twice",
                Fault::DropDueOnLeaderChange => "drop-due-on-leader-change",
                Fault::RefuseAfterHandOver => "refuse-after-hand-over",
                Fault::AbortTwice => "abort-twice",
                Fault::ClockFollowsWall => "clock-follows-wall",
            }
        }
    }

    impl FromStr for Fault {
        type Err = String;

        fn from_str(name: &str) -> Result<Fault, String> {
            let known = || Fault::ALL.map(Fault::name).join(", ");
            let found = Fault::ALL.into_iter().find(|fault| fault.name() == name);
            found.ok_or_else(|| format!("there is no fault {name:?}; known are {}", known()))
        }
    }

    /// Makes every bucket a full one, as for a leader that keeps them in memory and begins anew.
    pub fn forget_buckets(rows: &mut dyn Rows) -> Result<(), RowsError> {
        const PAGE: usize = 1_024;
        loop {
            let page = rows.scan(Table::State, &Kind::Bucket.prefix(), None, PAGE)?;
            if page.is_empty() {
                return Ok(());
            }
            page.into_iter().for_each(|(row, _)| rows.delete(Table::State, row));
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_fault_is_known_by_its_name_and_an_unknown_name_is_told_all_of_them() {
            for fault in Fault::ALL {
                assert_eq!(fault.name().parse(), Ok(fault));
            }
            let told = "no-such".parse::<Fault>().unwrap_err();
            assert!(Fault::ALL.iter().all(|fault| told.contains(fault.name())), "{told}");
        }
    }
}
