//! The lease that is observed on a chain of versions, proved in virtual time: the real decisions
//! (`Observed`, `Tenure`) over a simulated share, with drifting clocks, stale views, answers that
//! are late or lost, deaths and pauses.
//!
//! A binary of its own for the same reason as the fleet.
//!
//! `OBSERVED_SEED` (default 1) is the first seed, `OBSERVED_COUNT` (default 20000) the number of
//! schedules. A schedule that fails is shrunk to the acts it needs, and printed with its trace;
//! `OBSERVED_SEED=n OBSERVED_COUNT=1 cargo test --test observed` plays it again. `OBSERVED_TRACE=1`
//! prints the whole trace of every schedule, `OBSERVED_FOCUS=n` has one pattern of faults in each.

#[path = "fleet/clock.rs"]
mod clock;
#[path = "search/explore.rs"]
mod explore;
#[path = "observed/guardian.rs"]
mod guardian;
#[path = "observed/instance.rs"]
mod instance;
#[path = "observed/memories.rs"]
mod memories;
#[path = "observed/mistakes.rs"]
mod mistakes;
#[path = "observed/network.rs"]
mod network;
#[path = "observed/protocol.rs"]
mod protocol;
#[path = "observed/referee.rs"]
mod referee;
#[path = "observed/schedule.rs"]
mod schedule;
#[path = "observed/search.rs"]
mod search;
#[path = "observed/share.rs"]
mod share;
#[path = "observed/states.rs"]
mod states;
#[path = "observed/store.rs"]
mod store;
#[path = "observed/supervisor.rs"]
mod supervisor;
#[path = "observed/world.rs"]
mod world;
#[path = "observed/writer.rs"]
mod writer;

use std::io::Write;

use protocol::Protocol;
use schedule::Schedule;
use world::{Tally, World};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

fn is_wanted(name: &str) -> bool {
    std::env::var_os(name).is_some()
}

/// Past the capture of the test harness: the numbers are worth something when all is well, too.
fn print(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn play(schedule: Schedule) -> World {
    let mut world = World::new(schedule, false);
    world.run();
    world
}

/// Leaves out what the failure does not need, act by act.
fn shrink(mut schedule: Schedule) -> Schedule {
    let mut smaller = true;
    while smaller {
        smaller = false;
        for at in (0..schedule.acts.len()).rev() {
            let mut without = schedule.clone();
            without.acts.remove(at);
            if play(without.clone()).violation.is_some() {
                schedule = without;
                smaller = true;
            }
        }
    }
    schedule
}

fn explain(seed: u64, protocol: Protocol) -> String {
    let whole = Schedule::of(seed, protocol);
    let acts = whole.acts.len();
    let mut world = World::new(
        if std::env::var("OBSERVED_TRACE").is_ok() {
            whole
        } else {
            shrink(whole)
        },
        true,
    );
    world.run();
    let trace = world.trace.take().unwrap_or_default().join("\n");
    format!(
        "{trace}\n\n{:#?}\n{} of {acts} acts are needed: {}\n\
         again: OBSERVED_SEED={seed} OBSERVED_COUNT=1 cargo test --test observed\n",
        world.schedule,
        world.schedule.acts.len(),
        world.violation.unwrap_or_default(),
    )
}

fn add(sum: &mut Tally, one: &Tally) {
    sum.schedules += one.schedules;
    sum.events += one.events;
    sum.tenures += one.tenures;
    sum.handovers += one.handovers;
    sum.versions += one.versions;
    sum.stops += one.stops;
    sum.ancient += one.ancient;
    for (kind, count) in &one.faults {
        *sum.faults.entry(kind).or_default() += count;
    }
}

#[test]
fn the_promise_holds_in_every_schedule() {
    let first = number("OBSERVED_SEED", 1);
    let count = number("OBSERVED_COUNT", 20_000);
    let focus = u8::try_from(number("OBSERVED_FOCUS", 255)).unwrap_or(255);
    let protocol = Protocol {
        focus: (focus < 32).then_some(focus),
        ..Protocol::MEANT
    };
    let began = std::time::Instant::now();
    let mut sum = Tally::default();
    for seed in first..first + count {
        let world = play(Schedule::of(seed, protocol));
        add(&mut sum, &world.tally);
        if world.violation.is_some() || is_wanted("OBSERVED_TRACE") {
            print(&explain(seed, protocol));
        }
        if let Some(violation) = world.violation {
            panic!(
                "the schedule of seed {seed} breaks a promise, after {}: {violation}",
                sum.schedules
            );
        }
    }
    print(&format!(
        "observed: {} schedules (seeds {first}..) in {:.1} s, {} events, {} tenures, {} hand-overs, \
         {} versions, {} commands stopped at term_at, {} takings from a view older than what is kept\n\
         observed: faults {:?}\n",
        sum.schedules,
        began.elapsed().as_secs_f64(),
        sum.events,
        sum.tenures,
        sum.handovers,
        sum.versions,
        sum.stops,
        sum.ancient,
        sum.faults
    ));
    // A fleet that does nothing proves nothing.
    if count >= 1000 {
        assert!(sum.tenures > count && sum.handovers > count / 2, "{sum:?}");
        assert!(sum.faults.len() >= 14, "{:?}", sum.faults);
        assert!(
            sum.ancient > count / 500 && sum.stops > count / 10,
            "{sum:?}"
        );
    }
}

fn searches(bound: search::Bound) {
    let began = std::time::Instant::now();
    let found = search::search(bound, None);
    print(&format!(
        "observed: {} states to {bound:?}, {} steps deep, in {:.1} s\n",
        found.states,
        found.depth,
        began.elapsed().as_secs_f64()
    ));
    if let Some(way) = found.overlap {
        panic!("two commands at once:\n{}", way.join("\n"));
    }
}

/// `OBSERVED_TICKS`, `OBSERVED_VERSIONS` and `OBSERVED_FAULTS` move the bound.
#[test]
fn no_order_of_events_lets_two_commands_live_at_once() {
    let of = |name, otherwise| u8::try_from(number(name, otherwise)).expect("a small number");
    searches(search::Bound {
        ticks: of("OBSERVED_TICKS", 3),
        versions: of("OBSERVED_VERSIONS", 3),
        faults: of("OBSERVED_FAULTS", 1),
    });
}

/// Without a fault, but with room for a release by whoever has lost the lock, and for its heir.
#[test]
fn no_order_of_events_lets_a_loser_release_what_is_anothers() {
    searches(search::Bound {
        ticks: 2,
        versions: 4,
        faults: 0,
    });
}
