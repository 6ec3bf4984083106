//! The search's model held against what ships: walks of its graph at random, and beside each instance of the
//! model one of the fleet's, which is the shipped driver, workload, handle, blob store and guardian's loop. It is
//! given the same at the same ticks, and must do the same in the same order: ask the service, under which
//! lease; order, signal, kill and give up; tell, give back, end.
//!
//! `TIED_SEED` (default 1) is the first seed, `TIED_COUNT` the number of walks. One that parts is shrunk to the
//! steps it needs, and printed.
//!
//! What the search abstracts, and is left out here (tests/README.md says it, too):
//! - Within a tick no time passes, but where a handle waits for a guardian's answer, or looks after what a dead
//!   one left: by so much all later moments of the instance are behind their ticks.
//! - What a call to the service is made of beside its one request, looks, records and announcements, is
//!   answered at once.
//! - An attempt to acquire that is granted at the very tick of its end, and so has no time left to write its
//!   record. In the model that tick stands for a moment before it.
//! - A guardian that is silent before a start was heard of is given up when its deadline comes, and not after
//!   the ten seconds that a start may take, which are more than a tick.
//! - Whoever is asked to stop, or loses its guardian, does at once what is due.
//! - The dismissal of a guardian, and how it gives a lease back once it has begun to: the fleet plays both.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use trafficcop::internals::signals::SignalEvent;

use super::model::interned::{self, Interned, TICK};
use super::model::steps::Step;
use super::model::world::{self as model, Deed, Kind, Stage};
use super::model::{Bound, Next, Search};
use super::pair::Life;
use super::shipped::{SIGTERM, Shipped};
use super::{number, print};

/// What a walk may do.
#[derive(Clone, Copy, Debug)]
struct Plan {
    bound: Bound,
    attempt: Duration,
    contained: bool,
    /// Of a hundred steps so many are faults, where both are possible.
    faults: u8,
    /// What is stopped goes on at one of so many steps.
    stops: u8,
}

/// One walk, and what ships beside it.
struct Walk {
    plan: Plan,
    search: Search,
    world: model::World,
    shipped: [Shipped; 2],
    /// What was asked of it and is still to be compared, as it is done with what is due.
    owed: Option<(usize, Vec<Deed>, bool)>,
    way: Vec<Step>,
    trace: Vec<String>,
    /// How often each kind of deed was done by what ships.
    tally: BTreeMap<String, usize>,
}

impl Walk {
    fn new(plan: Plan) -> Walk {
        let mut search = Search::new(plan.bound, Interned::new(1, plan.attempt), None);
        let world = search.first();
        let shipped = [(); 2].map(|()| Shipped::new(0, plan.attempt, plan.contained));
        Walk {
            plan,
            search,
            world,
            shipped,
            owed: None,
            way: Vec::new(),
            trace: Vec::new(),
            tally: BTreeMap::new(),
        }
    }

    /// What can come next, and is played here.
    fn next(&mut self) -> Vec<Next> {
        let mut next = self.search.next(&self.world);
        if let Some((p, ..)) = self.owed {
            next.retain(|next| next.step == Step::Supervises(p));
        }
        next.retain(|next| self.is_played(next.step));
        next
    }

    fn is_played(&self, step: Step) -> bool {
        let of = |p: usize| &self.world.processes[p];
        let tick = self.world.tick;
        match step {
            Step::Answers(p) | Step::Supervises(p) => {
                let granted = of(p).call.filter(|call| {
                    let reply = match call.stage {
                        Stage::Ordered | Stage::Sent => None,
                        Stage::Done(reply) | Stage::Answered(reply) => Some(reply),
                    };
                    call.kind == Kind::Acquire && matches!(reply, Some(interned::Reply::Done(_)))
                });
                granted.is_none_or(|call| tick != call.give_up)
            }
            // Whoever listens for a second does meanwhile what is due; and a start is given more than a tick, but
            // for its deadline.
            Step::Loses(p) => {
                let is_heard = of(p).starting == 0 || tick >= self.shipped[p].kill;
                is_heard && !self.search.is_due(&self.world, p)
            }
            _ => true,
        }
    }

    /// Takes a step, in the model and in what ships.
    fn take(&mut self, next: Next) -> Result<(), String> {
        let Next { step, world, deeds } = next;
        let before = std::mem::replace(&mut self.world, world);
        let tick = before.tick;
        self.way.push(step);
        self.trace.push(format!("tick {tick:>2}: {step:?}"));
        let of = |p: usize| {
            let deeds = deeds.iter().filter(move |(whose, _)| *whose == p);
            deeds.map(|(_, deed)| *deed).collect::<Vec<_>>()
        };
        match step {
            Step::Supervises(p) => {
                let (mut owed, mut is_silent) = (Vec::new(), false);
                if let Some((_, deeds, silent)) = self.owed.take() {
                    (owed, is_silent) = (deeds, silent);
                }
                owed.extend(of(p));
                self.supervise(p, tick, before.token, owed, is_silent)?;
            }
            Step::Loses(p) => self.owed = Some((p, of(p), true)),
            Step::Asks(p) => {
                let signals = &self.shipped[p].pair.to_signals;
                let _ = signals.send(SignalEvent::Stop(SIGTERM));
                if self.search.is_due(&self.world, p) {
                    self.owed = Some((p, of(p), false));
                } else {
                    self.supervise(p, tick, before.token, of(p), false)?;
                }
            }
            Step::Guards(p) => {
                let deeds = self.shipped[p].guard(tick)?;
                self.compare(p, &of(p), &deeds)?;
            }
            Step::Answers(p) => {
                if let Some(call) = self.world.processes[p].call
                    && let Stage::Answered(reply) = call.stage
                {
                    self.shipped[p].is_answered(call.kind, reply);
                }
            }
            Step::Dies(p, main, daemon) => self.shipped[p].is_left(main, daemon),
            Step::MainEnds(p) => self.shipped[p].is_left(false, true),
            Step::SupervisorDies(p) => self.shipped[p].pair.drive = None,
            Step::GuardianStops(p) | Step::MachineStops(p) => {
                self.shipped[p].pair.guardian = Life::Stopped(0);
                self.shipped[p].pair.handle.link().child = true;
            }
            Step::GuardianContinues(p) => {
                self.shipped[p].pair.guardian = Life::Runs;
                self.shipped[p].pair.handle.link().child = true;
            }
            Step::GuardianDies(p) => self.shipped[p].guardian_dies(),
            Step::Strays(..)
            | Step::Serves(_)
            | Step::SupervisorStops(_)
            | Step::SupervisorContinues(_) => {}
            Step::TimePasses => self.time_passes(&before)?,
        }
        Ok(())
    }

    fn supervise(
        &mut self,
        p: usize,
        tick: u8,
        token: u8,
        with: Vec<Deed>,
        is_silent: bool,
    ) -> Result<(), String> {
        let of_kind = |deed: &Deed| match deed {
            Deed::Asks(kind, _) => Some(*kind),
            _ => None,
        };
        let asked: Vec<_> = with.iter().filter_map(of_kind).collect();
        let shipped = &mut self.shipped[p];
        shipped.is_about_to_ask(&asked, token);
        let deeds = shipped.supervise(tick, is_silent)?;
        self.compare(p, &with, &deeds)
    }

    fn compare(&mut self, p: usize, with: &[Deed], deeds: &[Deed]) -> Result<(), String> {
        for deed in deeds {
            let text = format!("{deed:?}");
            let kind = text.split([',', ' ']).next().unwrap_or_default();
            let kind = kind.trim_end_matches(|c: char| c.is_ascii_digit() || "()".contains(c));
            *self.tally.entry(kind.to_owned()).or_default() += 1;
            self.trace.push(format!("         #{p}: {text}"));
        }
        if self.shipped[p].agrees(with, deeds) {
            return Ok(());
        }
        Err(format!("#{p}: the model has {with:?}"))
    }

    /// Nothing is due any more, in what ships as little as in the model.
    fn time_passes(&mut self, before: &model::World) -> Result<(), String> {
        for p in 0..2 {
            let process = &before.processes[p];
            if process.supervisor == model::Life::Runs {
                self.supervise(p, before.tick, before.token, Vec::new(), false)?;
            }
            if process.guardian == model::Life::Runs {
                let deeds = self.shipped[p].guard(before.tick)?;
                self.compare(p, &[], &deeds)?;
            }
            let now = self.world.processes[p].supervisor;
            if process.supervisor == model::Life::Dead && now == model::Life::Runs {
                let Plan {
                    attempt, contained, ..
                } = self.plan;
                self.shipped[p] = Shipped::new(self.world.tick, attempt, contained);
                self.trace.push(format!("         #{p} begins anew"));
            }
        }
        Ok(())
    }
}

fn is_fault(step: Step) -> bool {
    match step {
        Step::MainEnds(_)
        | Step::SupervisorStops(_)
        | Step::SupervisorDies(_)
        | Step::GuardianStops(_)
        | Step::GuardianDies(_)
        | Step::MachineStops(_)
        | Step::Asks(_) => true,
        Step::Supervises(_)
        | Step::Loses(_)
        | Step::Guards(_)
        | Step::Strays(..)
        | Step::Serves(_)
        | Step::Answers(_)
        | Step::Dies(..)
        | Step::SupervisorContinues(_)
        | Step::GuardianContinues(_)
        | Step::TimePasses => false,
    }
}

fn continues(step: Step) -> bool {
    matches!(
        step,
        Step::SupervisorContinues(_) | Step::GuardianContinues(_)
    )
}

/// The walk of a seed, to its end or to where what ships parts from it.
fn walk(seed: u64) -> (Walk, Result<(), String>) {
    let mut rng = Rng::with_seed(seed);
    let plan = Plan {
        bound: Bound {
            faults: rng.u8(0..20),
            last_fault: 20,
            ticks: 24,
            rest: u8::MAX,
        },
        // The other ends within a tick, behind the second in which a guardian is found silent.
        attempt: *rng.choice(&[TICK, TICK * 5 / 3]).expect("two"),
        contained: rng.bool(),
        faults: rng.u8(1..15),
        stops: *rng.choice(&[1, 4, 30]).expect("three"),
    };
    let mut walk = Walk::new(plan);
    loop {
        let next = walk.next();
        let wants_fault = rng.u8(0..100) < walk.plan.faults;
        let stays = rng.u8(0..walk.plan.stops) > 0;
        let (faults, mut others): (Vec<_>, Vec<_>) =
            next.into_iter().partition(|next| is_fault(next.step));
        if stays && others.iter().any(|next| !continues(next.step)) {
            others.retain(|next| !continues(next.step));
        }
        let of = match (wants_fault || others.is_empty()) && !faults.is_empty() {
            true => faults,
            false => others,
        };
        if of.is_empty() {
            return (walk, Ok(()));
        }
        let next = of[rng.usize(0..of.len())].clone();
        if let Err(why) = walk.take(next) {
            return (walk, Err(why));
        }
    }
}

/// The same steps again, without those that cannot be taken any more.
fn again(plan: Plan, way: &[Step]) -> (Walk, Result<(), String>) {
    let mut walk = Walk::new(plan);
    for step in way {
        let next = walk.next().into_iter().find(|next| next.step == *step);
        let Some(next) = next else { continue };
        if let Err(why) = walk.take(next) {
            return (walk, Err(why));
        }
    }
    (walk, Ok(()))
}

/// Leaves out what the parting does not need, step by step.
fn shrink(mut walk: Walk, mut why: String) -> (Walk, String) {
    let mut smaller = true;
    while smaller {
        smaller = false;
        for at in (0..walk.way.len()).rev() {
            let mut way = walk.way.clone();
            if at >= way.len() {
                continue;
            }
            way.remove(at);
            if let (shorter, Err(parts)) = again(walk.plan, &way)
                && shorter.way.len() < walk.way.len()
            {
                (walk, why, smaller) = (shorter, parts, true);
            }
        }
    }
    (walk, why)
}

#[test]
fn the_search_s_model_does_what_ships() {
    let first = number("TIED_SEED", 1);
    let count = number("TIED_COUNT", 300);
    let began = std::time::Instant::now();
    let (mut steps, mut ticks) = (0, 0);
    let mut tally = BTreeMap::new();
    for seed in first..first + count {
        let (walk, parts) = walk(seed);
        (steps, ticks) = (steps + walk.way.len(), ticks + usize::from(walk.world.tick));
        for (kind, count) in &walk.tally {
            *tally.entry(kind.clone()).or_insert(0) += count;
        }
        if let Err(why) = parts {
            let of = walk.way.len();
            let (walk, why) = shrink(walk, why);
            print(&format!(
                "{}\n{why}\n{} of {of} steps are needed\nagain: TIED_SEED={seed} TIED_COUNT=1 cargo test --test fleet tied::\n",
                walk.trace.join("\n"),
                walk.way.len(),
            ));
            panic!("the model parts from what ships in the walk of seed {seed}: {why}");
        }
    }
    print(&format!(
        "tied: {count} walks (seeds {first}..), {steps} steps and {ticks} ticks of both, in {:.1} s: {tally:?}\n",
        began.elapsed().as_secs_f64()
    ));
    // What does nothing agrees with everything.
    assert!(count < 300 || tally.len() >= 19, "{tally:?}");
}
