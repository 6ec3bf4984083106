//! Mistakes of stores, drivers and guardians, the known ones of other tools among them: each is found,
//! else the search proves nothing. Those of the core are planted in its source: tests/planted.

use super::world::Broken;
use super::{Bound, print, search};

/// What can be done wrong round the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A call to the store ends when it is answered, and else never.
    NeverTimesOut,
    /// What is not answered counts as lost.
    FirstBlipIsLoss,
    /// The token is counted from the last release.
    TokenBeginsAnew,
    /// Whether a lease has run out is read off the contender's wall clock.
    WallClocks,
    /// The lease is counted from the answer.
    T0OfTheAnswer,
    /// The guardian is told how long the command may run, and not until when.
    RelativeDeadline,
    /// No child in a list is taken for no child.
    EmptyListIsBelieved,
}

#[test]
fn each_mistake_is_found() {
    for (mistake, faults, broken) in [
        (Mistake::NeverTimesOut, 1, Broken::NeedlessStop),
        (Mistake::FirstBlipIsLoss, 1, Broken::NeedlessStop),
        (Mistake::TokenBeginsAnew, 1, Broken::TokenGoesBack),
        (Mistake::WallClocks, 0, Broken::Overlap),
        (Mistake::T0OfTheAnswer, 2, Broken::Overlap),
        (Mistake::RelativeDeadline, 2, Broken::Overlap),
        (Mistake::EmptyListIsBelieved, 1, Broken::ReleasedEarly),
    ] {
        // What takes two takes them soon.
        let bound = Bound {
            last_fault: 5 - faults,
            ticks: 10,
            ..Bound::of(faults)
        };
        let found = search(bound, 1, Some(mistake));
        print(&format!(
            "search: {mistake:?}: {:?} after {} states, {} steps deep\n",
            found.broken, found.states, found.depth
        ));
        assert_eq!(found.broken, broken, "{mistake:?}");
    }
}
