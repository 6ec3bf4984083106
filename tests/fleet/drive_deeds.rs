//! Faults of a shared drive, and rare meetings of such faults.

use std::time::Duration;

use fastrand::Rng;
use trafficcop_core::Budget;

use super::adversary::{Act, Deed, Weather, Who, span};
use super::clock::{MILLI, SECOND, nanos};

pub(crate) fn budgets(rng: &mut Rng, machines: usize) -> Vec<Budget> {
    let mixed = rng.bool();
    let least = rng.bool();
    let usual = lease(rng);
    let budget = |lease: Duration| {
        let mut budget = Budget::for_lease(lease);
        if least {
            budget.margin = lease / 50 + Duration::from_millis(200);
        }
        budget
    };
    let leases = (0..machines).map(|_| if mixed { lease(rng) } else { usual });
    leases.map(budget).collect()
}

fn lease(rng: &mut Rng) -> Duration {
    let seconds = rng.choice([10, 10, 12, 15, 20, 30, 60]);
    Duration::from_secs(seconds.expect("a choice"))
}

pub(crate) fn deeds(rng: &mut Rng, machines: usize) -> Vec<Act> {
    let count = rng.usize(0..4);
    let mut acts: Vec<Act> = (0..count)
        .map(|_| Act {
            at: rng.u64(1..90) * SECOND,
            deed: deed(rng, machines),
        })
        .collect();
    let drawn = rng.u8(0..20);
    acts.extend(pattern(rng, machines, drawn));
    acts
}

fn deed(rng: &mut Rng, machines: usize) -> Deed {
    let machine = rng.usize(0..machines);
    match rng.u8(0..12) {
        0..4 => Deed::Stale(machine, span(rng, 60), span(rng, 60)),
        4 | 5 => Deed::Torn(span(rng, 60)),
        6..9 => Deed::RestartServer(rng.bool()),
        9 => Deed::ServerClock(rng.u64(1..7200)),
        _ => Deed::Tidy(match rng.usize(3..10) {
            7.. => 1,
            keep => keep,
        }),
    }
}

fn pattern(rng: &mut Rng, machines: usize, drawn: u8) -> Vec<Act> {
    let machine = rng.usize(0..machines);
    let at = rng.u64(3..40) * SECOND + rng.u64(0..1000) * MILLI;
    let act = |at, deed| Act { at, deed };
    match drawn {
        // A view older than the versions that are kept, and other weather.
        0..4 => {
            let gone = rng.u64(60..200) * SECOND;
            let back = rng.u64(5..60) * SECOND;
            let at = rng.u64(300..12_000) * MILLI;
            let mut acts = vec![
                act(at, Deed::Suspend(machine, gone)),
                act(
                    at + gone - SECOND,
                    Deed::Stale(machine, gone - SECOND, back),
                ),
            ];
            if rng.bool() {
                let weather = [
                    Weather::Slow(6 * SECOND),
                    Weather::LosesReplies,
                    Weather::Answers(500, None),
                ];
                let weather = rng.choice(weather).expect("a choice");
                let late = rng.u64(0..8000) * MILLI;
                let net = Deed::Net(Some(machine), weather, span(rng, 20));
                acts.push(act(at + gone + late, net));
            }
            if rng.u8(0..3) == 0 {
                let late = rng.u64(0..4000) * MILLI;
                acts.push(act(at + gone + late, Deed::RestartServer(rng.bool())));
            }
            acts
        }
        // The holder loses answers, then dies; its successor may have seen any of them.
        4 => vec![
            act(
                at,
                Deed::Net(Some(machine), Weather::LosesReplies, span(rng, 20)),
            ),
            act(
                at + rng.u64(0..12_000) * MILLI,
                Deed::Kill(machine, Who::Supervisor),
            ),
        ],
        // The server comes back when a machine has just been granted control.
        5 => vec![
            act(at, Deed::Kill(machine, Who::Both)),
            act(
                at + rng.u64(8..70) * SECOND,
                Deed::RestartServer(rng.bool()),
            ),
        ],
        // The way is slow from the beginning.
        6 => vec![act(
            0,
            Deed::Net(None, Weather::Slow(8 * SECOND), 20 * SECOND),
        )],
        // Answers are late, lost or errors; then no more arrive.
        7..10 => {
            let weather = match drawn {
                7 => Weather::Slow(rng.u64(1000..6000) * MILLI),
                8 => Weather::LosesReplies,
                _ => Weather::Answers(500, None),
            };
            let ill = rng.u64(2000..20_000) * MILLI;
            let cut = at + ill + rng.u64(0..3000) * MILLI;
            vec![
                act(at, Deed::Net(Some(machine), weather, ill)),
                act(cut, Deed::Net(Some(machine), Weather::Frozen, 75 * SECOND)),
            ]
        }
        // A holder is cut off.
        10 => vec![act(
            at,
            Deed::Net(Some(machine), Weather::Frozen, 75 * SECOND),
        )],
        // A holder comes back when another has taken over, with no record yet.
        11 => vec![
            act(at, Deed::RestartServer(true)),
            act(
                at + rng.u64(0..20_000) * MILLI,
                Deed::Net(
                    Some(machine),
                    Weather::Answers(500, None),
                    rng.u64(6000..25_000) * MILLI,
                ),
            ),
        ],
        // All instances die, and an operator removes all versions but the last.
        12 => {
            let dies = |machine| act(at, Deed::Kill(machine, Who::Both));
            let mut acts: Vec<Act> = (0..machines).map(dies).collect();
            acts.push(act(at + rng.u64(6..24) * SECOND, Deed::Tidy(1)));
            acts
        }
        // An operator breaks a lease without telling its holder; old views hide that.
        13 => vec![
            act(at, Deed::Stale(machine, 2 * SECOND, 58 * SECOND)),
            act(
                at + rng.u64(0..5000) * MILLI,
                Deed::Break(Some(match rng.bool() {
                    true => Duration::ZERO,
                    false => Duration::from_secs(10),
                })),
            ),
        ],
        _ => Vec::new(),
    }
}

/// Makes acts that must meet to the second, by the schedule's leases.
pub(crate) fn meetings(rng: &mut Rng, budgets: &[Budget]) -> Vec<Act> {
    let machine = rng.usize(0..budgets.len());
    let act = |at, deed| Act { at, deed };
    let lease = |machine: usize| nanos(budgets[machine].lease);
    match rng.u8(0..16) {
        // A dead supervisor's guardian is stopped until another instance has the lock, then
        // releases with the last information it got. A third instance looks for the first time just
        // then.
        0 | 1 => {
            let at = rng.u64(3000..30_000) * MILLI;
            let rest = lease(machine) * 2 / 3;
            let span = rest + rng.u64(0..rest / 2 + 8 * SECOND);
            let other = rng.usize(0..budgets.len());
            vec![
                act(at, Deed::Stop(machine, Who::Guardian, span)),
                act(at + 200 * MILLI, Deed::Kill(machine, Who::Supervisor)),
                act(
                    at + span - rng.u64(0..2000) * MILLI,
                    Deed::Kill(other, Who::Both),
                ),
            ]
        }
        // A view is older than the versions that are kept, and a request made then fails, or its
        // answer dies with the server.
        2 | 3 => {
            let at = rng.u64(300..12_000) * MILLI;
            let longest = (0..budgets.len()).map(lease).max().expect("machines");
            let gone = longest * 3 + rng.u64(60..120) * SECOND;
            let wakes = at + gone;
            let mut acts = vec![
                act(at, Deed::Suspend(machine, gone)),
                act(
                    wakes - SECOND,
                    Deed::Stale(machine, gone - SECOND, 40 * SECOND),
                ),
            ];
            if rng.bool() {
                let errors = Deed::Net(Some(machine), Weather::Answers(500, None), 20 * SECOND);
                acts.push(act(wakes + rng.u64(0..1000) * MILLI, errors));
                return acts;
            }
            let slow = Weather::Slow(rng.u64(300..2000) * MILLI);
            acts.push(act(wakes, Deed::Net(Some(machine), slow, 30 * SECOND)));
            acts.extend((0..8).map(|_| {
                let at = wakes + rng.u64(0..20_000) * MILLI;
                act(at, Deed::RestartServer(false))
            }));
            acts
        }
        _ => Vec::new(),
    }
}
