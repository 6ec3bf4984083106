//! Mistakes in the use of `Observed`. Each that two instances can show with one fault must be
//! found, or the search proves nothing. tests/planted has them in the shipped code, for the fleet.

use super::search::{Bound, search};
use crate::print;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The stamp is older than the look.
    StampBefore,
    /// The own lease is waited for instead of the record's.
    OwnLease,
    EarlyTakeOver,
    ExistsIsSuccess,
    /// The lease counts from the answer.
    T0After,
    /// A version without a record counts as released.
    UnreadIsReleased,
    /// A version without a record counts for a usual lease.
    UnreadForUsualLease,
    /// A version without a record counts as the instance's own, although an operator may have made
    /// it.
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
