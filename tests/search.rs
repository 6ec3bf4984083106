//! An exhaustive breadth-first search of the lease on a blob: two instances with the real
//! [`Tenure`] and `GuardianState`, one service, and every order of events up to a bound of ticks
//! and faults. Requests arrive late or never, answers are late or lost; supervisors, guardians and
//! machines stop, die, or are asked to end; commands end by themselves and leave processes behind.
//!
//! It checks that no command lives while the service does not keep others out for it; that no
//! command is stopped because of one unanswered call; that a command runs again after the last
//! fault; and that tokens grow. A running process does all that is due before a tick is over, and a
//! killed command's death uses the whole margin. That covers less clock drift than the margin; the
//! fleet shows how much there may be.
//!
//! `SEARCH_FAULTS`, `SEARCH_LAST_FAULT` and `SEARCH_TICKS` move the bound.

#[path = "search/alone.rs"]
mod alone;
#[path = "search/chain/mod.rs"]
mod chain;
#[expect(dead_code, reason = "it is walked by the fleet")]
#[path = "search/model.rs"]
mod model;

use std::io::Write;

use model::world::Broken;
use model::{Bound, Mistake, search};

/// Prints past the harness's capture: the numbers matter when all is well, too.
pub(crate) fn print(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn number(name: &str, otherwise: u8) -> u8 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

#[test]
fn the_promise_holds_in_every_order_of_events() {
    let faults = number("SEARCH_FAULTS", 1);
    let bound = Bound::of(faults);
    let last_fault = number("SEARCH_LAST_FAULT", bound.last_fault);
    let bound = Bound {
        last_fault,
        ticks: number("SEARCH_TICKS", bound.ticks),
        ..bound
    };
    let began = std::time::Instant::now();
    let found = search(bound, 1, None);
    let [cores, guardians, instances] = found.met;
    print(&format!(
        "search: {} states to {bound:?}, {} steps deep, in {:.1} s: {cores} tenures, {guardians} \
         guardians, {instances} instances with their wires; nobody ran for {} ticks at most after \
         the last fault\n",
        found.states,
        found.depth,
        began.elapsed().as_secs_f64(),
        found.longest_rest,
    ));
    if found.broken != Broken::Nothing {
        panic!("{}\n{:?}", found.way, found.broken);
    }
}

/// The random spread of polls and retries must not matter on the grid of ticks.
#[test]
fn chance_makes_no_difference() {
    let bound = Bound::of(0);
    let [one, other] = [1, 2].map(|seed| search(bound, seed, None));
    assert_eq!((one.states, one.depth), (other.states, other.depth));
}

#[test]
fn each_mistake_is_found() {
    // The faults, and the time for them, that suffice to find it.
    for (mistake, faults, last_fault, broken) in [
        (Mistake::NeverTimesOut, 1, 4, Broken::NeedlessStop),
        (Mistake::FirstBlipIsLoss, 1, 4, Broken::NeedlessStop),
        (Mistake::TokenBeginsAnew, 1, 4, Broken::TokenGoesBack),
        (Mistake::WallClocks, 0, 0, Broken::Overlap),
        (Mistake::T0OfTheAnswer, 2, 1, Broken::Overlap),
        (Mistake::RelativeDeadline, 2, 3, Broken::Overlap),
        (Mistake::EmptyListIsBelieved, 1, 4, Broken::ReleasedEarly),
    ] {
        let bound = Bound {
            last_fault,
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
