//! What many standbys on one blob cost together: simulated, in virtual time, on the real state
//! machine of each, so it needs no machine of a certain speed and says the same wherever it runs.
//!
//! Called by `main` as the section `crowd`; prints Markdown, which docs/figures.md has as it comes. The
//! simulation is that of the tests, which hold it to bounds.

#[expect(
    dead_code,
    reason = "the simulation uses a part of the fleet's support"
)]
#[path = "../../tests/fleet/clock.rs"]
mod clock;
#[path = "../../tests/fleet/service.rs"]
mod service;
#[path = "../../tests/fleet/crowd.rs"]
mod simulation;
#[expect(
    dead_code,
    reason = "the simulation uses a part of the fleet's support"
)]
#[path = "../../tests/fleet/store.rs"]
mod store;

use std::time::Duration;

use self::clock::{MILLI, SECOND, Time};
use self::service::TARGET;
use self::simulation::{Crowd, Plan};
use crate::numbers::Samples;
use crate::rows::{CROWD_ROWS, CROWDS};

const MINUTE: Time = 60 * SECOND;
/// Changes of control of each kind.
const CHANGES: usize = 40;
/// Drains that last longer than the longest poll.
const LONG_DRAINS: usize = 5;

/// Simulates and prints.
pub(crate) fn print() {
    let plans = [
        (1, 2, false),
        (50, 2, false),
        (80, 2, false),
        (500, 2, false),
        (500, 12, false),
        (500, 2, true),
    ];
    let columns = plans.map(|(standbys, poll, doorbell)| {
        column(Plan {
            standbys,
            poll: Duration::from_secs(poll),
            drain: Duration::from_secs(2),
            started_within: Duration::from_secs(1),
            throttles: None,
            doorbell,
            seed: 1,
        })
    });
    println!("\nSimulated on the real state machine; {CHANGES} changes of control of each kind.\n");
    println!("| | {} |", CROWDS.join(" | "));
    println!("|---|{}", "---|".repeat(CROWDS.len()));
    for (number, row) in CROWD_ROWS.iter().enumerate() {
        let cells: Vec<&str> = columns.iter().map(|column| &*column[number]).collect();
        println!("| {row} | {} |", cells.join(" | "));
    }
}

/// The cells of one plan, from top to bottom.
fn column(plan: Plan) -> Vec<String> {
    let mut crowd = Crowd::new(plan);
    crowd.run_until(2 * MINUTE);
    assert_eq!(crowd.standing_by(), plan.standbys, "all but the holder");
    let started = crowd.service.busiest(0, 2 * SECOND, SECOND);
    let minute_later = crowd.service.busiest(MINUTE, 2 * MINUTE, SECOND);
    let hour = (crowd.now(), crowd.now() + 60 * MINUTE);
    crowd.run_until(hour.1);
    let rate = crowd.service.asked(hour.0, hour.1) as f64 / 3600.0;
    let calm = |stretch| crowd.service.busiest(hour.0, hour.1, stretch);
    let share = |rate: f64| format!("{rate:.1} ({:.1} %)", 100.0 * rate / TARGET as f64);
    let mut cells = vec![
        share(rate),
        calm(100 * MILLI).to_string(),
        calm(SECOND).to_string(),
        started.to_string(),
        minute_later.to_string(),
    ];
    let long = Plan {
        drain: Duration::from_secs(30),
        ..plan
    };
    let mut open = Crowd::new(long);
    let (_, busiest) = changes(&mut open, LONG_DRAINS, Crowd::hand_over);
    cells.push(busiest.to_string());
    let mut throttled = Crowd::new(Plan {
        throttles: Some(None),
        ..long
    });
    let (gaps, _) = changes(&mut throttled, LONG_DRAINS, Crowd::hand_over);
    let refused =
        throttled.service.refused() as f64 / throttled.service.asked(0, throttled.now()) as f64;
    cells.push(format!(
        "{:.0} %, {:.0}",
        100.0 * refused,
        gaps.quantile(1.0)
    ));
    let kinds: [fn(&mut Crowd) -> Duration; 3] = [Crowd::hand_over, Crowd::crash, Crowd::power_off];
    for change in kinds {
        let (gaps, busiest) = changes(&mut crowd, CHANGES, change);
        cells.push(busiest.to_string());
        cells.push(format!("{:.0} ({:.0})", gaps.p50(), gaps.quantile(0.99)));
    }
    cells
}

/// How long each change took, in ms, and the busiest second from it until all have looked again.
fn changes(
    crowd: &mut Crowd,
    number: usize,
    change: impl Fn(&mut Crowd) -> Duration,
) -> (Samples, usize) {
    let (mut gaps, mut busiest) = (Samples::default(), 0);
    for _ in 0..number {
        crowd.settle();
        let from = crowd.now();
        gaps.push(change(crowd).as_secs_f64() * 1e3);
        crowd.settle();
        busiest = busiest.max(crowd.service.busiest(from, crowd.now(), SECOND));
    }
    assert_eq!(crowd.gave_up(), 0, "nobody leaves");
    (gaps, busiest)
}
