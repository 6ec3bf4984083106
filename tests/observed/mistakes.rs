//! Mistakes that can be made with the protocol: each is found, by the fleet or by the search, else
//! neither of them proves anything.

use std::ops::Range;

use super::protocol::{Check, Mutation, Protocol};
use super::schedule::Schedule;
use super::search::{Bound, search};
use super::{is_wanted, play, print};

/// The first seed whose schedule breaks a promise, and what it breaks.
fn first_failure(protocol: Protocol, seeds: Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let violation = play(Schedule::of(seed, protocol)).violation?;
        Some((seed, violation))
    })
}

/// Has the fleet find what is wrong with this. What has to meet for it meets in every schedule, and
/// the first are left out that find nothing, unless `OBSERVED_UNFOCUSED` asks how many schedules
/// that takes.
fn is_found(name: &str, protocol: Protocol, first: u64) {
    let (protocol, seeds) = if is_wanted("OBSERVED_UNFOCUSED") {
        let focus = None;
        (Protocol { focus, ..protocol }, 1..20_001)
    } else {
        (protocol, first..first + 3000)
    };
    let found = first_failure(protocol, seeds.clone());
    let text = match &found {
        Some((seed, violation)) => format!("by seed {seed}: {violation}"),
        None => format!("NOT FOUND by seeds {seeds:?}"),
    };
    print(&format!("observed: {name}: {text}\n"));
    assert!(
        found.is_some() || is_wanted("OBSERVED_UNFOCUSED"),
        "{name}: {text}"
    );
}

#[test]
fn each_mistake_is_found() {
    for (mutation, focus, first) in [
        (Mutation::StampBefore, None, 1),
        (Mutation::OwnLease, None, 1),
        (Mutation::EarlyTakeOver, Some(6), 1190),
        (Mutation::ExistsIsTransient, None, 240),
        (Mutation::ExistsIsSuccess, None, 1),
        (Mutation::HintOverExists, None, 770),
        (Mutation::T0After, Some(4), 420),
        (Mutation::CleaningNewestFirst, Some(0), 575),
        (Mutation::UnreadIsReleased, None, 1),
        (Mutation::UnreadForKnownLease, None, 1),
        (Mutation::OursCounts, Some(5), 40),
        (Mutation::NoPredecessor, Some(0), 1),
    ] {
        let protocol = Protocol {
            mutation: Some(mutation),
            focus,
            ..Protocol::MEANT
        };
        is_found(&format!("{mutation:?}"), protocol, first);
    }
}

/// A version that stays for ever makes the look for it worthless: whoever saw nothing but that takes
/// the next one though the chain is far ahead.
#[test]
fn a_version_that_stays_for_ever_is_found() {
    let first = Protocol {
        first_is_removed: false,
        looks_twice: false,
        focus: Some(0),
        ..Protocol::MEANT
    };
    is_found("the first version stays", first, 1);
}

/// What was made behind the chain, and not looked after, is no place to go on from.
#[test]
fn a_version_that_counts_before_the_one_before_it_was_found_is_found() {
    let unchecked = Protocol {
        checked_first: false,
        looks_twice: false,
        focus: Some(0),
        ..Protocol::MEANT
    };
    is_found("counts before it was checked", unchecked, 1385);
}

/// The answer to a look by making is lost, and it is asked again: what was not there is there.
#[test]
fn a_look_that_makes_what_it_looks_for_is_found() {
    let making = Protocol {
        check: Check::ByMaking,
        looks_twice: false,
        focus: Some(0),
        ..Protocol::MEANT
    };
    is_found("looks by making", making, 750);
}

/// Each mistake that two instances can show with few faults is found by the search.
#[test]
fn the_search_finds_each_mistake() {
    let bound = Bound {
        ticks: 4,
        versions: 3,
        faults: 1,
    };
    for mutation in [
        Mutation::StampBefore,
        Mutation::OwnLease,
        Mutation::EarlyTakeOver,
        Mutation::ExistsIsSuccess,
        Mutation::T0After,
        Mutation::UnreadIsReleased,
        Mutation::UnreadForKnownLease,
    ] {
        let found = search(bound, Some(mutation));
        let (states, depth) = (found.states, found.depth);
        print(&format!(
            "observed: {mutation:?}: {states} states, {depth} steps deep\n"
        ));
        assert!(found.overlap.is_some(), "{mutation:?}");
    }
}
