//! The search's model compared with the shipped code, in random walks through its graph. Each
//! instance of the model has a shipped one beside it: driver, workload, handle, blob store and the
//! guardian's loop. Both get the same events at the same ticks, and must do the same in the same
//! order: requests with their leases, orders, signals, kills, reports, releases and ends.
//!
//! `TIED_SEED` (default 1) is the first seed, `TIED_COUNT` the number of walks. A walk that parts
//! is shrunk to the steps it needs, and printed.
//!
//! The search's abstractions are left out here (tests/README.md lists them, too):
//! - No time passes within a tick, except while a handle waits for its guardian's answer, or kills
//!   the tree of a dead one: the instance's later moments are behind their ticks by that much. The
//!   wait for a silent start runs between the ticks.
//! - Looks, records and announcements, which accompany a call's one request, are answered at once.
//! - A grant answered at the tick at which its attempt ends is heard before, as that tick means in
//!   the model; not if the instance was disturbed since.
//! - A guardian reads the orders that come with a stop when its supervisor has done all that is
//!   due.
//! - A supervisor that has given its guardian up is not stopped, killed or asked to stop before it
//!   has done what follows.
//! - The dismissal of a guardian, and its release of a lease once begun: the fleet plays both.

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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) bound: Bound,
    pub(crate) attempt: Duration,
    pub(crate) contained: bool,
    /// Per cent of the steps that are faults, where both are possible.
    pub(crate) faults: u8,
    /// A stopped process continues at one step in this many.
    pub(crate) stops: u8,
}

/// Deeds of a model's supervisor that are not compared yet, because the shipped one does them
/// together with all that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Owes {
    Nothing,
    Asked,
    /// A stop, and an order to its guardian.
    Ordered,
    /// A stop; only its guardian's report is unread.
    Unread,
    Lost,
}

impl Owes {
    /// Whether the shipped instance can be in step again after this.
    pub(crate) fn lets(self, step: Step) -> bool {
        match step {
            // It has already done more than give its guardian up.
            Step::Asks(_)
            | Step::SupervisorStops(_)
            | Step::SupervisorDies(_)
            | Step::MachineStops(_) => self == Owes::Nothing,
            Step::GuardianStops(_) | Step::GuardianDies(_) => self == Owes::Nothing,
            // The shipped guardian has not read its order yet.
            Step::Guards(_) => self != Owes::Ordered,
            // The stop comes before all that comes with it.
            _ => true,
        }
    }

    /// Returns what is owed after a step.
    pub(crate) fn after(mut owes: [Owes; 2], search: &Search, next: &Next) -> [Owes; 2] {
        match next.step {
            Step::Supervises(p) => owes[p] = Owes::Nothing,
            Step::Loses(p) => owes[p] = Owes::Lost,
            Step::Asks(p) if search.is_due(&next.world, p) => {
                let is_told = |(_, deed): &(usize, Deed)| matches!(deed, Deed::Orders(_));
                // The report can wait in the shipped socket, too.
                let mut unread = next.world.clone();
                unread.processes[p].inbox.clear();
                let is_more = search.is_due(&unread, p);
                owes[p] = match (next.deeds.iter().any(is_told), is_more) {
                    (true, true) => Owes::Ordered,
                    (true, false) => Owes::Unread,
                    (false, _) => Owes::Asked,
                };
            }
            _ => {}
        }
        owes
    }
}

/// Reason for which a step of the search is not played here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LeftOut {
    /// Falls between a request to a supervisor and its reaction.
    Between,
    /// The grant's answer leaves no time for it.
    NoTimeForTheRecord,
}

/// Whether a grant is heard just at the end of its attempt.
fn is_granted_late(process: &model::Process, tick: u8, is_heard: bool) -> bool {
    process.call.is_some_and(|call| {
        let reply = match call.stage {
            Stage::Answered(reply) if is_heard => Some(reply),
            Stage::Done(reply) if !is_heard => Some(reply),
            _ => None,
        };
        let is_granted = matches!(reply, Some(interned::Reply::Done(_)));
        call.kind == Kind::Acquire && is_granted && tick == call.give_up
    })
}

/// Returns why a step is left out independent of debts, if it is.
pub(crate) fn left_out(world: &model::World, step: Step) -> Option<LeftOut> {
    let tick = world.tick;
    let process = step.whose().map(|p| &world.processes[p])?;
    match step {
        // The shipped instance hears the grant before, unless disturbed.
        Step::Answers(_) | Step::Supervises(_) => {
            let is_heard = matches!(step, Step::Supervises(_));
            let is_late = is_granted_late(process, tick, is_heard);
            let is_undisturbed = process.is_whole() && !process.is_excused;
            (is_late && !is_undisturbed).then_some(LeftOut::NoTimeForTheRecord)
        }
        Step::Asks(_)
        | Step::SupervisorStops(_)
        | Step::SupervisorDies(_)
        | Step::MachineStops(_)
            if is_granted_late(process, tick, true) =>
        {
            Some(LeftOut::NoTimeForTheRecord)
        }
        _ => None,
    }
}

fn kinds(deeds: &[(usize, Deed)]) -> Vec<Kind> {
    let kind = |deed: &(usize, Deed)| match deed.1 {
        Deed::Asks(kind, _) => Some(kind),
        _ => None,
    };
    deeds.iter().filter_map(kind).collect()
}

pub(crate) struct Walk {
    plan: Plan,
    pub(crate) search: Search,
    pub(crate) world: model::World,
    shipped: [Shipped; 2],
    pub(crate) owes: [Owes; 2],
    /// The model did them; the shipped instance owes them.
    owed: [Vec<Deed>; 2],
    /// The shipped instance did them since the last tick; the model does at the next.
    early: [Vec<Deed>; 2],
    /// These deeds cannot be compared.
    is_astray: bool,
    pub(crate) way: Vec<Step>,
    /// Steps and deeds, if kept.
    pub(crate) trace: Option<Vec<String>>,
    tally: BTreeMap<String, usize>,
}

impl Walk {
    pub(crate) fn new(plan: Plan) -> Walk {
        let search = Search::new(plan.bound, Interned::new(1, plan.attempt), None);
        Walk {
            trace: Some(Vec::new()),
            ..Walk::of(plan, search)
        }
    }

    /// Makes a silent walk that uses the states that a search has met.
    pub(crate) fn of(plan: Plan, mut search: Search) -> Walk {
        let world = search.first();
        let shipped = [(); 2].map(|()| Shipped::new(0, plan.attempt, plan.contained));
        Walk {
            plan,
            search,
            world,
            shipped,
            owes: [Owes::Nothing; 2],
            owed: [Vec::new(), Vec::new()],
            early: [Vec::new(), Vec::new()],
            is_astray: false,
            way: Vec::new(),
            trace: None,
            tally: BTreeMap::new(),
        }
    }

    pub(crate) fn next(&mut self) -> Vec<Next> {
        if self.is_astray {
            return Vec::new();
        }
        let mut next = self.search.next(&self.world);
        next.retain(|Next { step, .. }| {
            let lets = step.whose().is_none_or(|p| self.owes[p].lets(*step));
            lets && left_out(&self.world, *step).is_none()
        });
        next
    }

    fn tell(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(text());
        }
    }

    pub(crate) fn take(&mut self, next: Next) -> Result<(), String> {
        let after = Owes::after(self.owes, &self.search, &next);
        let Next { step, world, deeds } = next;
        let before = std::mem::replace(&mut self.world, world);
        let tick = before.tick;
        self.way.push(step);
        self.tell(|| format!("tick {tick:>2}: {step:?}"));
        let of = |p: usize| {
            let deeds = deeds.iter().filter(move |(whose, _)| *whose == p);
            deeds.map(|(_, deed)| *deed).collect::<Vec<_>>()
        };
        self.owes = after;
        match step {
            Step::Supervises(p) => {
                let mut with = std::mem::take(&mut self.owed[p]);
                with.extend(of(p));
                self.supervise(p, tick, before.token, &with)?;
            }
            Step::Loses(p) => {
                self.owed[p] = of(p);
                let next = self.search.after(&self.world, Step::Supervises(p));
                let deeds = next.map(|next| next.deeds).unwrap_or_default();
                self.shipped[p].is_about_to_ask(&kinds(&deeds), before.token);
                self.early[p] = self.shipped[p].supervise(tick, true)?;
            }
            Step::Asks(p) => {
                let signals = &self.shipped[p].pair.to_signals;
                let _ = signals.send(SignalEvent::Stop(SIGTERM));
                match after[p] {
                    Owes::Nothing => self.supervise(p, tick, before.token, &of(p))?,
                    Owes::Unread => {
                        let unread =
                            std::mem::take(&mut self.shipped[p].pair.handle.link().to_supervisor);
                        self.supervise(p, tick, before.token, &of(p))?;
                        self.shipped[p].pair.handle.link().to_supervisor = unread;
                    }
                    Owes::Asked | Owes::Ordered | Owes::Lost => self.owed[p] = of(p),
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
                    if is_granted_late(&self.world.processes[p], tick, true) {
                        self.early[p] = self.shipped[p].hears_in_time(tick)?;
                    }
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

    fn supervise(&mut self, p: usize, tick: u8, token: u8, with: &[Deed]) -> Result<(), String> {
        let shipped = &mut self.shipped[p];
        let asked = with.iter().map(|deed| (p, *deed)).collect::<Vec<_>>();
        shipped.is_about_to_ask(&kinds(&asked), token);
        let mut deeds = std::mem::take(&mut self.early[p]);
        deeds.append(&mut shipped.supervise(tick, false)?);
        self.compare(p, with, &deeds)
    }

    fn compare(&mut self, p: usize, with: &[Deed], deeds: &[Deed]) -> Result<(), String> {
        let told = if self.trace.is_some() { deeds } else { &[] };
        for deed in told {
            let text = format!("{deed:?}");
            let kind = text.split([',', ' ']).next().unwrap_or_default();
            let kind = kind.trim_end_matches(|c: char| c.is_ascii_digit() || "()".contains(c));
            *self.tally.entry(kind.to_owned()).or_default() += 1;
            self.tell(|| format!("         #{p}: {text}"));
        }
        if self.shipped[p].agrees(with, deeds) {
            return Ok(());
        }
        Err(format!("#{p}: the model has {with:?}"))
    }

    /// Advances the tick; nothing may be due any more.
    fn time_passes(&mut self, before: &model::World) -> Result<(), String> {
        for p in 0..2 {
            let process = &before.processes[p];
            if process.supervisor == model::Life::Runs {
                self.supervise(p, before.tick, before.token, &[])?;
            }
            if process.guardian == model::Life::Runs {
                let deeds = self.shipped[p].guard(before.tick)?;
                self.compare(p, &[], &deeds)?;
            }
            if process.is_silent() && process.starting != 0 {
                let deeds = self.shipped[p].listens(before.tick)?;
                // In the model, a retry due between two ticks is due at the next.
                self.is_astray |= !deeds.is_empty();
                self.early[p] = deeds;
            }
            let now = self.world.processes[p].supervisor;
            if process.supervisor == model::Life::Dead && now == model::Life::Runs {
                let Plan {
                    attempt, contained, ..
                } = self.plan;
                self.shipped[p] = Shipped::new(self.world.tick, attempt, contained);
                self.early[p].clear();
                self.tell(|| format!("         #{p} begins anew"));
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

/// Plays the walk of a seed, to its end or to its parting.
fn walk(seed: u64) -> (Walk, Result<(), String>) {
    let mut rng = Rng::with_seed(seed);
    let plan = Plan {
        bound: Bound {
            faults: rng.u8(0..20),
            last_fault: 20,
            ticks: 24,
            rest: u8::MAX,
        },
        // The other value ends within a tick, later than the second after which a guardian is
        // silent.
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

/// Prints the steps that a parting needs, with their deeds.
pub(crate) fn explain(plan: Plan, way: &[Step], why: String) -> String {
    let (walk, parts) = again(plan, way);
    let Err(parts) = parts else {
        return format!("{why}, but not when it is walked again");
    };
    let (walk, why) = shrink(walk, parts);
    print(&format!(
        "{}\n{why}\n{} of {} steps are needed\n",
        walk.trace.unwrap_or_default().join("\n"),
        walk.way.len(),
        way.len(),
    ));
    why
}

#[test]
fn the_search_s_model_does_what_ships() {
    let first = number("TIED_SEED", 1);
    let count = number("TIED_COUNT", 150);
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
            let why = explain(walk.plan, &walk.way, why);
            print(&format!(
                "again: TIED_SEED={seed} TIED_COUNT=1 cargo test --test fleet tied::\n"
            ));
            panic!("the model parts from what ships in the walk of seed {seed}: {why}");
        }
    }
    print(&format!(
        "tied: {count} walks (seeds {first}..), {steps} steps and {ticks} ticks of both, in {:.1} s: {tally:?}\n",
        began.elapsed().as_secs_f64()
    ));
    // Two sides that do nothing always agree.
    assert!(count < 300 || tally.len() >= 19, "{tally:?}");
}
