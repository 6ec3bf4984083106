//! Interleavings: every order in which a shared drive can carry out concurrent calls of two
//! instances' stores, a dead instance's guardian, and an operator's `break`. All of that is shipped
//! code: each system call waits for its turn, and each order is played from the start.
//!
//! Time is stopped, except when no process has a call, and when a fault makes calls hang. Two
//! orders count as one if they differ only in calls that do not touch each other (sleep sets: P.
//! Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems", 1996, chapter 5).
//! A scenario too large for that is bounded by its switches from one process to another (M.
//! Musuvathi and S. Qadeer, "Iterative Context Bounding for Systematic Testing of Multithreaded
//! Programs", 2007).
//!
//! `INTERLEAVINGS_FAULTS` sets the faults in an order: answers lost or late, errors, or waits of 1
//! or 16 s; `INTERLEAVINGS_SWITCHES` the switches. Each scenario has defaults for both.
//! `INTERLEAVINGS_OF` selects scenarios by a part of the name.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use trafficcop_lease::shared_file::Call;

use super::drive::changes;
use super::interleaved::{
    Actor, CONTENDER, GUARDIAN, HOLDER, Kind, LEASE, OPERATOR, Op, Pending, World,
};
use super::print;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A call is carried out: the process, and the call's number.
    Call(Actor, usize, Kind),
    /// All calls hang for this many seconds.
    Late(u64),
}

#[derive(Clone, Debug)]
struct Tried {
    action: Action,
    call: Option<Call>,
    /// Whether it gave a process an answer, or let one begin its next operation.
    told: bool,
}

struct Point {
    actions: Vec<(Action, Option<Call>)>,
    /// Steps that need not be tried here, because an equivalent order was tried before.
    asleep: Vec<Tried>,
    tried: Vec<Tried>,
    chosen: usize,
    told: bool,
}

impl Point {
    fn chosen(&self) -> Tried {
        let (action, call) = self.actions[self.chosen].clone();
        let told = self.told;
        Tried { action, call, told }
    }

    /// Chooses a step that is neither tried nor asleep.
    fn choose(&mut self) -> bool {
        let known = |action: Action| {
            let mut known = self.asleep.iter().chain(&self.tried);
            known.any(|tried| tried.action == action)
        };
        let next = self.actions.iter().position(|(action, _)| !known(*action));
        self.chosen = next.unwrap_or_default();
        next.is_some()
    }
}

fn paths(call: &Call) -> Vec<std::path::PathBuf> {
    match call {
        Call::MakeDirectory(path)
        | Call::RemoveDirectory(path)
        | Call::RemoveFile(path)
        | Call::Stat(path)
        | Call::StatLink(path)
        | Call::List(path)
        | Call::Read(path)
        | Call::Write { path, .. } => vec![path.clone()],
        Call::StatIn(directory, name) => vec![directory.join(name)],
        Call::ReadIn(directory, name) => vec![directory.join(name)],
        Call::Rename(from, to) => vec![from.clone(), to.clone()],
    }
}

/// Whether their order makes no difference.
fn commute(one: &Call, other: &Call) -> bool {
    let disturbs = |one: &Call, other: &Call| {
        // A list or a stat of a directory sees every change in it.
        let whole = matches!(other, Call::List(_) | Call::Stat(_));
        let touches = |changed: &Path, path: &Path| {
            path.starts_with(changed) || whole && changed.parent() == Some(path)
        };
        let (changed, seen) = (paths(one), paths(other));
        let mut pairs = changed
            .iter()
            .flat_map(|changed| seen.iter().map(move |path| (changed, path)));
        changes(one) && pairs.any(|(changed, path)| touches(changed, path))
    };
    !disturbs(one, other) && !disturbs(other, one)
}

impl Tried {
    fn is_independent_of(&self, other: &Tried) -> bool {
        let (
            Action::Call(whose, _, Kind::Done),
            Action::Call(of_other, _, Kind::Done),
            Some(call),
            Some(others),
        ) = (self.action, other.action, &self.call, &other.call)
        else {
            return false;
        };
        whose != of_other && !(self.told && other.told) && commute(call, others)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Faults {
    /// Lost and late answers, errors, and hanging.
    All,
    Errors,
}

#[derive(Clone, Copy)]
struct Bound {
    /// Largest number in one order.
    faults: usize,
    of: Faults,
    /// Largest number of switches in one order: the last process waits while another continues, or
    /// its own calls are reordered.
    switches: Option<usize>,
}

impl Bound {
    /// Whether equivalent orders must be played, too: with a limit of switches, the equivalent one
    /// may be beyond it.
    fn leaves_none(self) -> bool {
        self.switches.is_some()
    }
}

#[derive(Default)]
struct Found {
    orders: usize,
    /// Orders that were left out because they are equivalent to others.
    left: usize,
    calls: usize,
    longest: usize,
}

/// Returns the first call of the process that continued last or, if it has none, of each.
fn without_a_switch(world: &World, last: Option<Actor>) -> Vec<(Actor, Pending)> {
    let mut pending = world.pending();
    if pending.iter().any(|(actor, _)| Some(*actor) == last) {
        pending.retain(|(actor, _)| Some(*actor) == last);
    }
    // Calls are listed process by process, in order.
    pending.dedup_by_key(|(actor, _)| *actor);
    pending
}

fn actions(
    pending: Vec<(Actor, Pending)>,
    faults: usize,
    of: Faults,
) -> Vec<(Action, Option<Call>)> {
    let mut actions = Vec::new();
    for (actor, pending) in pending {
        let mut add = |kind| {
            let action = Action::Call(actor, pending.number, kind);
            actions.push((action, Some(pending.call.clone())));
        };
        add(Kind::Done);
        if faults > 0 && changes(&pending.call) && !pending.abandoned {
            add(Kind::Denied);
            if of == Faults::All {
                add(Kind::Again);
                add(Kind::Slow);
            }
        }
    }
    if faults > 0 && of == Faults::All && !actions.is_empty() {
        actions.extend([1, 16].map(|seconds| (Action::Late(seconds), None)));
    }
    actions
}

/// Plays these points' choices, then the first choice at each further point.
fn play(world: &mut World, points: &mut Vec<Point>, bound: Bound, found: &mut Found) {
    let mut at = 0;
    let mut faults = bound.faults;
    let mut switches = bound.switches;
    let mut last = None;
    loop {
        world.settle();
        if world.violation().is_some() || world.is_over() {
            break;
        }
        let pending = match switches {
            Some(0) => without_a_switch(world, last),
            _ => world.pending(),
        };
        let actions = actions(pending, faults, bound.of);
        if actions.is_empty() {
            if !world.waits() {
                world.violate("a process waits for nothing".to_owned());
            }
            continue;
        }
        if at == points.len() {
            let before = points.last().filter(|_| !bound.leaves_none());
            let asleep = before.map_or_else(Vec::new, |before| {
                let chosen = before.chosen();
                let known = before.asleep.iter().chain(&before.tried);
                let stay = known.filter(|tried| tried.is_independent_of(&chosen));
                stay.cloned().collect()
            });
            let mut point = Point {
                actions,
                asleep,
                tried: Vec::new(),
                chosen: 0,
                told: false,
            };
            if !point.choose() {
                found.left += 1;
                return;
            }
            points.push(point);
        }
        let point = &mut points[at];
        let told = world.told();
        match point.actions[point.chosen].0 {
            Action::Call(actor, number, kind) => {
                let free = without_a_switch(world, last);
                if !free
                    .iter()
                    .any(|(it, call)| (*it, call.number) == (actor, number))
                {
                    switches = switches.map(|switches| switches - 1);
                }
                last = Some(actor);
                faults -= usize::from(kind != Kind::Done);
                if kind == Kind::Denied {
                    world.excuses();
                }
                world.carry_out(actor, number, kind);
                found.calls += 1;
            }
            Action::Late(seconds) => {
                faults -= 1;
                world.excuses();
                world.pass(Duration::from_secs(seconds));
            }
        }
        world.settle();
        point.told = world.told() > told;
        at += 1;
    }
    found.orders += 1;
    found.longest = found.longest.max(at);
    if world.violation().is_none() {
        world.somebody_else_gets_it();
    }
}

fn search(begin: fn(&mut World), bound: Bound) -> (Found, Option<String>) {
    let mut found = Found::default();
    let mut points: Vec<Point> = Vec::new();
    loop {
        let mut world = World::new();
        begin(&mut world);
        play(&mut world, &mut points, bound, &mut found);
        if let Some(violation) = world.violation() {
            let mut text = world.trace().join("\n");
            let _ = write!(text, "\n{violation}");
            return (found, Some(text));
        }
        loop {
            let Some(point) = points.last_mut() else {
                return (found, None);
            };
            let chosen = point.chosen();
            point.tried.push(chosen);
            if point.choose() {
                break;
            }
            points.pop();
        }
    }
}

struct Scenario {
    name: &'static str,
    begin: fn(&mut World),
    bound: Bound,
}

/// Makes a scenario that is played in every order.
const fn small(name: &'static str, begin: fn(&mut World)) -> Scenario {
    Scenario {
        name,
        begin,
        bound: Bound {
            faults: 0,
            of: Faults::All,
            switches: None,
        },
    }
}

/// Makes a scenario with too many calls to play every order.
const fn large(name: &'static str, begin: fn(&mut World)) -> Scenario {
    let mut large = small(name, begin);
    large.bound.switches = Some(1);
    large
}

/// Makes a scenario with one fault and this many switches.
const fn faulty(
    name: &'static str,
    of: Faults,
    switches: usize,
    begin: fn(&mut World),
) -> Scenario {
    let bound = Bound {
        faults: 1,
        of,
        switches: Some(switches),
    };
    Scenario { name, begin, bound }
}

const SCENARIOS: [Scenario; 18] = [
    small("two take what is free", |world| {
        world.plays(HOLDER, &[Op::Compete, Op::Release]);
        world.plays(CONTENDER, &[Op::Compete, Op::Release]);
        world.begin(HOLDER, &[Op::Compete]);
        world.begin(CONTENDER, &[Op::Compete]);
    }),
    small("one renews, and one looks", |world| {
        world.is_held();
        world.begin(HOLDER, &[Op::Renew]);
        world.begin(CONTENDER, &[Op::Compete]);
    }),
    small("one releases, and one looks", |world| {
        world.is_held();
        world.begin(HOLDER, &[Op::Release]);
        world.begin(CONTENDER, &[Op::Compete]);
    }),
    small("a renewal hangs until the lease is over", |world| {
        world.is_held();
        world.excuses();
        world.pass(LEASE / 3);
        world.begin(HOLDER, &[Op::Renew, Op::Release]);
        world.settle();
        world.pass(LEASE);
        world.begin(CONTENDER, &[Op::Compete]);
    }),
    small("a release hangs until the lease is over", |world| {
        world.is_held();
        world.excuses();
        world.pass(LEASE / 3);
        world.begin(HOLDER, &[Op::Release]);
        world.settle();
        world.pass(LEASE);
        world.begin(CONTENDER, &[Op::Compete]);
    }),
    small("a guardian gives back what its supervisor had", |world| {
        world.is_held();
        world.pass(LEASE / 3);
        world.begin(HOLDER, &[Op::Renew]);
        world.settle();
        world.kill(HOLDER);
        world.begin(GUARDIAN, &[Op::GiveBack]);
        world.begin(CONTENDER, &[Op::Compete]);
    }),
    small("a guardian gives back what is over", |world| {
        world.is_held();
        world.excuses();
        world.pass(LEASE / 3);
        world.begin(HOLDER, &[Op::Renew]);
        world.settle();
        world.kill(HOLDER);
        world.pass(LEASE);
        world.begin(GUARDIAN, &[Op::GiveBack]);
        world.begin(CONTENDER, &[Op::Compete]);
    }),
    small("an operator breaks, and the holder renews", |world| {
        world.is_held();
        world.begin(HOLDER, &[Op::Renew]);
        world.begin(OPERATOR, &[Op::Break]);
    }),
    small("an operator breaks, and the holder releases", |world| {
        world.is_held();
        world.begin(HOLDER, &[Op::Release]);
        world.begin(OPERATOR, &[Op::Break]);
    }),
    small(
        "the old versions are removed beside a renewal that hung",
        |world| {
            world.is_held();
            world.excuses();
            world.pass(LEASE / 3);
            world.begin(HOLDER, &[Op::Renew]);
            world.settle();
            world.pass(LEASE);
            world.begin(OPERATOR, &[Op::RemoveOld]);
        },
    ),
    small("one begins where another has, and sees nothing", |world| {
        world.pass(LEASE / 3);
        world.plays(HOLDER, &[Op::Compete]);
        world.sees_nothing(CONTENDER);
        world.begin(HOLDER, &[Op::Renew]);
        world.begin(CONTENDER, &[Op::Compete]);
    }),
    large("two begin where nothing is", |world| {
        world.begin(HOLDER, &[Op::Compete]);
        world.begin(CONTENDER, &[Op::Compete]);
    }),
    large("an operator breaks, one renews, one competes", |world| {
        world.is_held();
        world.begin(HOLDER, &[Op::Renew, Op::Renew]);
        world.begin(OPERATOR, &[Op::Break]);
        world.begin(CONTENDER, &[Op::Compete, Op::Compete]);
    }),
    large("an operator breaks, one releases, one competes", |world| {
        world.is_held();
        world.begin(HOLDER, &[Op::Release]);
        world.begin(OPERATOR, &[Op::Break]);
        world.begin(CONTENDER, &[Op::Compete, Op::Compete]);
    }),
    faulty("a renewal goes wrong", Faults::All, 0, |world| {
        world.is_held();
        world.begin(HOLDER, &[Op::Renew, Op::Renew, Op::Release]);
    }),
    faulty(
        "a take-over goes wrong, and another waits for its end",
        Faults::All,
        0,
        |world| {
            world.plays(HOLDER, &[Op::Compete, Op::Release]);
            world.begin(HOLDER, &[Op::Compete]);
            let looks = [Op::Compete, Op::Wait, Op::Compete, Op::Wait, Op::Compete];
            world.begin(CONTENDER, &looks);
        },
    ),
    faulty(
        "a take-over by an old view goes wrong while the old versions are removed",
        Faults::Errors,
        1,
        |world| {
            world.is_held();
            world.sees_nothing_new(CONTENDER);
            world.plays(HOLDER, &[Op::Renew, Op::Renew]);
            world.pass(LEASE * 2 / 3);
            world.plays(HOLDER, &[Op::Renew]);
            world.pass(LEASE / 2);
            world.begin(OPERATOR, &[Op::RemoveOld]);
            // Abandoned calls are carried out, too, and their lock is released.
            world.begin(CONTENDER, &[Op::Compete, Op::Release]);
        },
    ),
    faulty(
        "the removal of the old versions goes wrong, and another has an old view",
        Faults::Errors,
        0,
        |world| {
            world.plays(HOLDER, &[Op::Compete, Op::Renew, Op::Renew]);
            world.plays(CONTENDER, &[Op::Compete]);
            world.sees_nothing_new(CONTENDER);
            world.plays(HOLDER, &[Op::Renew; 5]);
            world.plays(HOLDER, &[Op::Release]);
            world.pass(5 * LEASE);
            world.begin(HOLDER, &[Op::Compete]);
            world.begin(CONTENDER, &[Op::Compete]);
        },
    ),
];

#[test]
fn no_order_of_calls_breaks_a_promise() {
    let few = |name| {
        std::env::var(name)
            .ok()
            .map(|it| it.parse().expect("a number"))
    };
    let of = std::env::var("INTERLEAVINGS_OF").unwrap_or_default();
    let scenarios = SCENARIOS.iter().filter(|it| it.name.contains(&of));
    for Scenario { name, begin, bound } in scenarios {
        let began = std::time::Instant::now();
        let mut bound = *bound;
        if let Some(faults) = few("INTERLEAVINGS_FAULTS") {
            (bound.faults, bound.of) = (faults, Faults::All);
        }
        bound.switches = bound
            .switches
            .map(|switches| few("INTERLEAVINGS_SWITCHES").unwrap_or(switches));
        let faults = bound.faults;
        let (found, violation) = search(*begin, bound);
        print(&format!(
            "interleavings: {name}, {faults} faults: {} orders of up to {} choices ({} calls), {} left as no others, \
             {:.1} s\n",
            found.orders,
            found.longest,
            found.calls,
            found.left,
            began.elapsed().as_secs_f64()
        ));
        if let Some(violation) = violation {
            panic!("{name}, order {}:\n{violation}", found.orders);
        }
    }
}
