//! What the protocol can be: as it is meant, as it was drawn first, and with each mistake that the
//! simulation has to find.

use std::time::Duration;

use super::clock::{SECOND, Time};

/// How the version before a new one is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// By making it: that it exists is the wanted answer.
    ByMaking,
    /// By making something inside it.
    ByMakingInside,
}

/// A mistake that must be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// The stamp is older than the look.
    StampBefore,
    /// A lease of our own is waited for instead of the record's.
    OwnLease,
    /// The take-over comes a margin too soon.
    EarlyTakeOver,
    /// "It exists" is taken for a transient error.
    ExistsIsTransient,
    /// "It exists" is taken for a success.
    ExistsIsSuccess,
    /// The hint's record is believed where a version exists against what it says.
    HintOverExists,
    /// The lease is counted from the answer.
    T0After,
    /// What is old is removed newest first.
    CleaningNewestFirst,
    /// A version without a record is taken for released.
    UnreadIsReleased,
    /// A version without a record is held for the lease that was read last, or a usual one.
    UnreadForKnownLease,
    /// A version of ours that exists is taken for the renewal that was asked for.
    OursCounts,
    /// Nobody looks for the version before the one that was made.
    NoPredecessor,
}

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    pub(crate) check: Check,
    /// Whoever takes over looks for the one before that, too.
    pub(crate) looks_twice: bool,
    /// A version counts as made only when the one before it was found.
    pub(crate) checked_first: bool,
    /// The version before the first is installed with the directory and removed like any other; else
    /// there is none, and the first stays for ever.
    pub(crate) first_is_removed: bool,
    /// How many are removed at once.
    pub(crate) removed: usize,
    /// How many of the last versions stay, however old they are.
    pub(crate) kept: u64,
    /// For how long every version stays.
    pub(crate) kept_for: Time,
    /// See [`Mutation::UnreadForKnownLease`].
    pub(crate) known_lease: Duration,
    pub(crate) mutation: Option<Mutation>,
    /// What has to meet in every schedule: see the patterns of the schedules.
    pub(crate) focus: Option<u8>,
}

impl Protocol {
    /// As it is meant. Less is kept, and for a shorter time, than on a drive: so views that are
    /// older than what is kept come up in schedules of minutes.
    pub(crate) const MEANT: Protocol = Protocol {
        check: Check::ByMakingInside,
        looks_twice: true,
        checked_first: true,
        first_is_removed: true,
        removed: 12,
        kept: 6,
        kept_for: 60 * SECOND,
        known_lease: Duration::from_secs(15),
        mutation: None,
        focus: None,
    };
}
