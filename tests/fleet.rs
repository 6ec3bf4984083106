//! The simulated fleet: several instances compete for one lock against an adversary, in virtual
//! time, in one schedule after another.
//!
//! A simulated supervisor has the parts of `run`: the driver, the workload with its handle on the
//! guardian, and the store. A blob's store uses the official client over a simulated network, a
//! local file's the kernel's own lock, a shared drive's a directory that requests reach late, a
//! helper's an entry that its calls reach late. The guardian is the shipped loop over a simulated
//! process table. No shipped code is copied.
//!
//! It is a separate binary because it computes for minutes, at the lowest priority, while other
//! tests wait.
//!
//! `FLEET_SEED` (default 1) is the first seed, `FLEET_COUNT` (default 100) the number of seeds.
//! `FLEET_PLACE` (`blob`, `file`, `shared drive` or `store`) selects schedules by their lock. A
//! schedule that fails is shrunk to the acts it needs, and printed with its trace and the command
//! that plays it again.

#[cfg(not(debug_assertions))]
compile_error!("a release has one clock and one network: play the fleet without --release");

#[path = "fleet/adversary.rs"]
mod adversary;
#[path = "fleet/caller.rs"]
mod caller;
#[path = "fleet/clock.rs"]
mod clock;
#[path = "fleet/crowd.rs"]
mod crowd;
#[path = "fleet/crowded.rs"]
mod crowded;
#[path = "fleet/deeds.rs"]
mod deeds;
#[path = "fleet/drive.rs"]
mod drive;
#[path = "fleet/drive_deeds.rs"]
mod drive_deeds;
#[path = "fleet/guardian.rs"]
mod guardian;
#[path = "fleet/handle.rs"]
mod handle;
#[path = "fleet/interleaved.rs"]
mod interleaved;
#[path = "fleet/interleavings.rs"]
mod interleavings;
#[path = "fleet/judge.rs"]
mod judge;
#[path = "fleet/kernel.rs"]
mod kernel;
#[expect(dead_code, reason = "it is walked here; the search explores it")]
#[path = "search/model.rs"]
mod model;
#[path = "fleet/mount.rs"]
mod mount;
#[path = "fleet/network.rs"]
mod network;
#[path = "fleet/operator.rs"]
mod operator;
#[path = "fleet/pair.rs"]
mod pair;
#[path = "fleet/service.rs"]
mod service;
#[path = "fleet/shelf.rs"]
mod shelf;
#[path = "fleet/shelved.rs"]
mod shelved;
#[path = "fleet/shipped.rs"]
mod shipped;
#[path = "fleet/store.rs"]
mod store;
#[path = "fleet/supervisor.rs"]
mod supervisor;
#[path = "fleet/tied.rs"]
mod tied;
#[path = "fleet/tour.rs"]
mod tour;
#[path = "fleet/unread.rs"]
mod unread;
#[path = "fleet/wire.rs"]
mod wire;
#[path = "fleet/world.rs"]
mod world;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adversary::{Place, Schedule};
use world::{Tally, World};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// Prints past the harness's capture: the numbers matter when all is well, too.
fn print(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn fails(schedule: Schedule) -> bool {
    let mut world = World::new(schedule, false);
    world.run();
    world.violation.is_some()
}

fn shrink(mut schedule: Schedule) -> Schedule {
    let mut smaller = true;
    while smaller {
        smaller = false;
        for at in (0..schedule.acts.len()).rev() {
            let mut without = schedule.clone();
            without.acts.remove(at);
            if fails(without.clone()) {
                schedule = without;
                smaller = true;
            }
        }
    }
    schedule
}

fn explain(whole: Schedule) -> String {
    let (seed, place) = (whole.seed, whole.place.name());
    let acts = whole.acts.len();
    let schedule = shrink(whole);
    let mut world = World::new(schedule, true);
    world.run();
    let trace = world.trace.take().unwrap_or_default().join("\n");
    format!(
        "{trace}\n\n{:#?}\n{} of {acts} acts are needed: {}\n\
         again: FLEET_PLACE='{place}' FLEET_SEED={seed} FLEET_COUNT=1 cargo test --test fleet\n",
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
    sum.overlaps += one.overlaps;
    sum.words += one.words;
    sum.unknowable += one.unknowable;
    sum.drains += one.drains;
    sum.cordons += one.cordons;
    sum.cordoned_holders += one.cordoned_holders;
    sum.unfit += one.unfit;
    for (place, counts) in &one.places {
        let of_place = sum.places.entry(place).or_default();
        for (sum, count) in of_place.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    for (kind, count) in &one.faults {
        *sum.faults.entry(kind).or_default() += count;
    }
    for (kind, count) in &one.drive {
        *sum.drive.entry(kind).or_default() += count;
    }
    for (kind, count) in &one.shelf {
        *sum.shelf.entry(kind).or_default() += count;
    }
}

/// Returns a seed's schedules at this place, or at any. Every third seed also has one for a helper's
/// store; every seed has one if only stores are played.
fn schedules(seed: u64, place: Option<&str>) -> Vec<Schedule> {
    let mut schedules = vec![Schedule::of(seed)];
    if place == Some(Place::Store.name()) || place.is_none() && seed.is_multiple_of(3) {
        schedules.push(Schedule::of_store(seed));
    }
    schedules.retain(|schedule| place.is_none_or(|place| place == schedule.place.name()));
    schedules
}

#[test]
fn the_promise_holds_in_every_schedule() {
    let first = number("FLEET_SEED", 1);
    let count = number("FLEET_COUNT", 100);
    let place = std::env::var("FLEET_PLACE").ok();
    let next = AtomicU64::new(first);
    let failed = Mutex::new(None::<Schedule>);
    let over = AtomicBool::new(false);
    let work = || {
        let mut sum = Tally::default();
        while !over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                break;
            }
            for schedule in schedules(seed, place.as_deref()) {
                let whole = schedule.clone();
                let mut world = World::new(schedule, false);
                world.run();
                if world.violation.is_some() {
                    let mut failed = failed.lock().expect("whole");
                    if failed.as_ref().is_none_or(|other| seed < other.seed) {
                        *failed = Some(whole);
                    }
                    over.store(true, Ordering::Relaxed);
                }
                let tally = &mut world.tally;
                let counts = [1, tally.tenures, tally.handovers];
                tally.places.insert(world.schedule.place.name(), counts);
                add(&mut sum, tally);
            }
        }
        sum
    };
    let mut sum = Tally::default();
    std::thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        for worker in workers {
            add(&mut sum, &worker.join().expect("a schedule does not panic"));
        }
    });
    print(&format!(
        "fleet: {} schedules (seeds {first}..), {} events, {} tenures, {} hand-overs, {} drains or \
         kills, {} cordons heard of ({} of them in control), {} times not fit; {} overlaps that nobody could have \
         prevented, {} of them told, {} not to be known\n\
         fleet: schedules, tenures and hand-overs: {:?}\n\
         fleet: faults {:?}\n\
         fleet: on shared drives {:?}\n\
         fleet: in helpers' stores {:?}\n",
        sum.schedules,
        sum.events,
        sum.tenures,
        sum.handovers,
        sum.drains,
        sum.cordons,
        sum.cordoned_holders,
        sum.unfit,
        sum.overlaps,
        sum.words,
        sum.unknowable,
        sum.places,
        sum.faults,
        sum.drive,
        sum.shelf
    ));
    if let Some(failed) = failed.into_inner().expect("whole") {
        let seed = failed.seed;
        print(&explain(failed));
        panic!(
            "the schedule of seed {seed} breaks a promise, after {} schedules",
            sum.schedules
        );
    }
    // A fleet in which nothing happens proves nothing.
    let played = sum.schedules;
    if played >= 1000 {
        assert!(
            sum.tenures > played && sum.handovers > played / 2,
            "{sum:?}"
        );
        assert!(sum.faults.len() >= 20, "{:?}", sum.faults);
        for counts in sum.places.values() {
            assert!(
                counts[1] > counts[0] && counts[2] > counts[0] / 2,
                "{sum:?}"
            );
        }
        assert!(sum.cordoned_holders > played / 50, "{sum:?}");
        assert!(sum.unfit > played, "{sum:?}");
    }
    let on_drive = sum.places.get(Place::Shared.name());
    if on_drive.is_some_and(|counts| counts[0] >= 100) {
        assert!(sum.drive.len() >= 10, "{:?}", sum.drive);
    }
    let in_store = sum.places.get(Place::Store.name());
    if in_store.is_some_and(|counts| counts[0] >= 100) {
        assert!(sum.shelf.len() >= 7, "{:?}", sum.shelf);
    }
}
