//! Mistakes that can be made with `Observed`: each that two instances can show with one fault is found, else the
//! search proves nothing. As bugs of the shipped code they are planted for the fleet: tests/planted.

use super::search::{Bound, search};
use crate::print;

/// What can be done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The stamp is older than the look.
    StampBefore,
    /// A lease of our own is waited for instead of the record's.
    OwnLease,
    /// The take-over comes a margin too soon.
    EarlyTakeOver,
    /// "It exists" is taken for a success.
    ExistsIsSuccess,
    /// The lease is counted from the answer.
    T0After,
    /// A version without a record is taken for released.
    UnreadIsReleased,
    /// A version without a record is held for a usual lease.
    UnreadForUsualLease,
    /// A version without a record is taken for ours while our lease lasts, though an operator may have made it.
    BreakIsOverlooked,
}

#[test]
fn each_mistake_is_found() {
    let bound = Bound {
        ticks: 4,
        versions: 3,
        faults: 1,
        breaks: false,
    };
    for mistake in [
        Mistake::StampBefore,
        Mistake::OwnLease,
        Mistake::EarlyTakeOver,
        Mistake::ExistsIsSuccess,
        Mistake::T0After,
        Mistake::UnreadIsReleased,
        Mistake::UnreadForUsualLease,
    ] {
        let found = search(bound, Some(mistake));
        let (states, depth) = (found.states, found.depth);
        print(&format!(
            "search: chain: {mistake:?}: {states} states, {depth} steps deep\n"
        ));
        assert!(found.overlap.is_some(), "{mistake:?}");
    }
    let found = search(super::search::A_BREAK, Some(Mistake::BreakIsOverlooked));
    print(&format!(
        "search: chain: a break is overlooked: {} states\n",
        found.states
    ));
    assert!(found.overlap.is_some(), "a break is overlooked");
}
