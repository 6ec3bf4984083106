//! The lease that is observed on a chain of versions, proved in virtual time: the real decisions
//! (`Observed`, `Tenure`) over a simulated share, with drifting clocks, stale views, answers that
//! are late or lost, deaths and pauses.
//!
//! `OBSERVED_SEED` (default 1) is the first seed, `OBSERVED_COUNT` (default 20000) the number of
//! schedules. A schedule that fails is shrunk to the acts it needs, and printed with its trace;
//! `OBSERVED_SEED=n OBSERVED_COUNT=1 cargo test --test observed` plays it again.

#[path = "fleet/clock.rs"]
mod clock;
#[path = "observed/guardian.rs"]
mod guardian;
#[path = "observed/instance.rs"]
mod instance;
#[path = "observed/network.rs"]
mod network;
#[path = "observed/protocol.rs"]
mod protocol;
#[path = "observed/referee.rs"]
mod referee;
#[path = "observed/schedule.rs"]
mod schedule;
#[path = "observed/share.rs"]
mod share;
#[path = "observed/store.rs"]
mod store;
#[path = "observed/supervisor.rs"]
mod supervisor;
#[path = "observed/world.rs"]
mod world;

use std::io::Write;

use protocol::{Mutation, Protocol};
use schedule::Schedule;
use world::{Tally, World};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
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
    let mut world = World::new(if std::env::var("OBSERVED_TRACE").is_ok() { whole } else { shrink(whole) }, true);
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
    sum.withdrawn += one.withdrawn;
    for (kind, count) in &one.faults {
        *sum.faults.entry(kind).or_default() += count;
    }
}

/// The first seed whose schedule breaks a promise, and what it breaks.
fn first_failure(protocol: Protocol, seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let violation = play(Schedule::of(seed, protocol)).violation?;
        Some((seed, violation))
    })
}

#[test]
fn the_promise_holds_in_every_schedule() {
    let first = number("OBSERVED_SEED", 1);
    let count = number("OBSERVED_COUNT", 20_000);
    let protocol = Protocol {
        focus: u8::try_from(number("OBSERVED_FOCUS", 255)).ok().filter(|focus| *focus < 32),
        ..Protocol::MEANT
    };
    if std::env::var("OBSERVED_TRACE").is_ok() {
        print(&explain(first, protocol));
    }
    let began = std::time::Instant::now();
    let mut sum = Tally::default();
    for seed in first..first + count {
        let world = play(Schedule::of(seed, protocol));
        add(&mut sum, &world.tally);
        if world.violation.is_some() {
            print(&explain(seed, protocol));
            panic!("the schedule of seed {seed} breaks a promise, after {}", sum.schedules);
        }
    }
    print(&format!(
        "observed: {sum:?} in {:.1} s\n",
        began.elapsed().as_secs_f64()
    ));
}

/// Each mistake is found within so many schedules. The count says how many it took.
#[test]
fn each_mistake_is_found() {
    for (mutation, within, focus) in [
        (Mutation::StampBefore, 4000, None),
        (Mutation::OwnLease, 1000, None),
        (Mutation::EarlyTakeOver, 1000, Some(6)),
        (Mutation::ExistsIsTransient, 1000, None),
        (Mutation::ExistsIsSuccess, 1000, None),
        (Mutation::HintOverExists, 1000, None),
        (Mutation::T0After, 1000, Some(4)),
        (Mutation::CleaningNewestFirst, 4000, Some(0)),
        (Mutation::UnreadIsReleased, 1000, None),
        (Mutation::UnreadForKnownLease, 4000, None),
        (Mutation::OursCounts, 1000, Some(5)),
        (Mutation::NoPredecessor, 4000, Some(0)),
    ] {
        let protocol = Protocol {
            focus,
            ..Protocol::with(mutation)
        };
        let found = first_failure(protocol, 1..within + 1);
        print(&format!("observed: {mutation:?}: {found:?}\n"));
    }
    let drawn = first_failure(Protocol::DRAWN, 1..4000);
    print(&format!("observed: drawn {drawn:?}\n"));
}
