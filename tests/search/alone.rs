//! One instance with all rules that it can have, and a lock that answers late, wrongly or never:
//! one history after another, in virtual time, with the real [`Tenure`](trafficcop_core::Tenure)
//! and `GuardianState`. It covers what the search leaves out: restarts and holds, `--once`, waits
//! with an end, cordons, conditions, hangs, locks without a lease, a shared drive with the real
//! [`Observed`](trafficcop_core::Observed), processes that look once, leases of any length, and
//! every moment to the nanosecond.
//!
//! `ALONE_SEED` (default 1) is the first seed, `ALONE_COUNT` (default 4000) the number of
//! histories. A history that fails is shrunk to the deeds it needs, and printed.

#[path = "alone/drive.rs"]
mod drive;
#[path = "alone/health.rs"]
mod health;
#[path = "alone/meetings.rs"]
mod meetings;
#[path = "alone/plan.rs"]
mod plan;
#[path = "alone/record.rs"]
mod record;
#[path = "alone/referee.rs"]
mod referee;
#[path = "alone/world.rs"]
mod world;

use plan::Plan;
use world::World;

use super::print;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

fn play(plan: Plan, tracing: bool) -> World {
    let mut world = World::new(plan, tracing);
    world.run();
    world
}

fn shrink(mut plan: Plan) -> Plan {
    let mut smaller = true;
    while smaller {
        smaller = false;
        for at in (0..plan.acts.len()).rev() {
            let mut without = plan.clone();
            without.acts.remove(at);
            if play(without.clone(), false).violation.is_some() {
                plan = without;
                smaller = true;
            }
        }
    }
    plan
}

/// Checks that standbys do not look in step: intervals vary evenly by a fifth, and the first wait
/// is any part of an interval.
fn is_spread(waited: &[(bool, f64)]) {
    for (kept, from, width, bins) in [(true, 80.0, 4.0, 10), (false, 0.0, 10.0, 8)] {
        let mut counts = vec![0_usize; bins];
        let of = waited.iter().filter(|(is, _)| *is == kept);
        let all = of.clone().count();
        for (_, hundredths) in of {
            let bin = ((hundredths - from) / width) as usize;
            if let Some(count) = counts.get_mut(bin) {
                *count += 1;
            }
        }
        let (least, most) = (counts.iter().min(), counts.iter().max());
        let even = least
            .zip(most)
            .is_some_and(|(least, most)| most * 10 < least * 15);
        assert!(
            all < 2000 || even,
            "breaks a rule: looks are not spread: {counts:?}"
        );
    }
}

#[test]
fn lone_instance_keeps_every_rule() {
    let first = number("ALONE_SEED", 1);
    let count = number("ALONE_COUNT", 4_000);
    let began = std::time::Instant::now();
    let mut tenures = 0;
    let mut waited = Vec::new();
    for seed in first..first + count {
        let world = play(Plan::of(seed), false);
        tenures += world.tenures;
        waited.extend(world.waited);
        if let Some(violation) = world.violation {
            let world = play(shrink(Plan::of(seed)), true);
            print(&format!(
                "{}\n\n{:#?}\n",
                world.trace.unwrap_or_default().join("\n"),
                world.plan
            ));
            panic!("the history of seed {seed} breaks a rule: {violation}");
        }
    }
    print(&format!(
        "alone: {count} histories (seeds {first}..), {tenures} commands, in {:.1} s\n",
        began.elapsed().as_secs_f64()
    ));
    is_spread(&waited);
    assert!(count < 1000 || tenures > count / 2, "{tenures}");
}
