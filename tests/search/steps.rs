//! All possible next steps: turns, requests, ends, faults, and time.

use super::Search;
use super::instance::START;
use super::interned::{LEASE, Reply};
use super::mistakes::Mistake;
use super::world::{Broken, Id, Kind, Life, Process, Stage, Stray, Tree, World};

/// Ticks after which an abandoned request is gone.
const LATE: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Supervises(usize),
    Loses(usize),
    Guards(usize),
    /// The abandoned request with this number arrives.
    Strays(usize, usize),
    Serves(usize),
    Answers(usize),
    /// Whether the main process still lives, and the daemon.
    Dies(usize, bool, bool),
    MainEnds(usize),
    SupervisorStops(usize),
    SupervisorContinues(usize),
    SupervisorDies(usize),
    GuardianStops(usize),
    GuardianContinues(usize),
    GuardianDies(usize),
    MachineStops(usize),
    Asks(usize),
    TimePasses,
}

impl Step {
    /// Returns its instance; the passing of time has none.
    pub(crate) fn whose(self) -> Option<usize> {
        match self {
            Step::Supervises(p)
            | Step::Loses(p)
            | Step::Guards(p)
            | Step::Strays(p, _)
            | Step::Serves(p)
            | Step::Answers(p)
            | Step::Dies(p, ..)
            | Step::MainEnds(p)
            | Step::SupervisorStops(p)
            | Step::SupervisorContinues(p)
            | Step::SupervisorDies(p)
            | Step::GuardianStops(p)
            | Step::GuardianContinues(p)
            | Step::GuardianDies(p)
            | Step::MachineStops(p)
            | Step::Asks(p) => Some(p),
            Step::TimePasses => None,
        }
    }

    pub(crate) fn of_the_other(self) -> Step {
        match self {
            Step::Supervises(p) => Step::Supervises(1 - p),
            Step::Loses(p) => Step::Loses(1 - p),
            Step::Guards(p) => Step::Guards(1 - p),
            Step::Strays(p, at) => Step::Strays(1 - p, at),
            Step::Serves(p) => Step::Serves(1 - p),
            Step::Answers(p) => Step::Answers(1 - p),
            Step::Dies(p, main, daemon) => Step::Dies(1 - p, main, daemon),
            Step::MainEnds(p) => Step::MainEnds(1 - p),
            Step::SupervisorStops(p) => Step::SupervisorStops(1 - p),
            Step::SupervisorContinues(p) => Step::SupervisorContinues(1 - p),
            Step::SupervisorDies(p) => Step::SupervisorDies(1 - p),
            Step::GuardianStops(p) => Step::GuardianStops(1 - p),
            Step::GuardianContinues(p) => Step::GuardianContinues(1 - p),
            Step::GuardianDies(p) => Step::GuardianDies(1 - p),
            Step::MachineStops(p) => Step::MachineStops(1 - p),
            Step::Asks(p) => Step::Asks(1 - p),
            Step::TimePasses => Step::TimePasses,
        }
    }
}

impl Search {
    pub(crate) fn steps(&mut self, world: &World) {
        for p in 0..2 {
            self.turns(world, p);
            self.travels(world, p);
            self.dies(world, p);
            self.is_disturbed(world, p);
        }
        self.time_passes(world);
    }

    /// Adds the steps of this kind.
    pub(crate) fn steps_like(&mut self, world: &World, step: Step) {
        match step {
            Step::Supervises(p) | Step::Loses(p) | Step::Guards(p) => self.turns(world, p),
            Step::Strays(p, _) | Step::Serves(p) | Step::Answers(p) => self.travels(world, p),
            Step::Dies(p, ..) => self.dies(world, p),
            Step::MainEnds(p)
            | Step::SupervisorStops(p)
            | Step::SupervisorContinues(p)
            | Step::SupervisorDies(p)
            | Step::GuardianStops(p)
            | Step::GuardianContinues(p)
            | Step::GuardianDies(p)
            | Step::MachineStops(p)
            | Step::Asks(p) => self.is_disturbed(world, p),
            Step::TimePasses => self.time_passes(world),
        }
    }

    fn turns(&mut self, world: &World, p: usize) {
        if self.is_due(world, p) {
            let mut next = world.clone();
            self.supervise(&mut next, p);
            self.reach(Step::Supervises(p), next);
        }
        if self.is_guardian_due(world, p) {
            let mut next = world.clone();
            self.guard(&mut next, p);
            self.reach(Step::Guards(p), next);
        }
        let process = &world.processes[p];
        // A supervisor that waits a second for its guardian does meanwhile what is due.
        let is_heard = process.is_silent() && !process.is_patient(world.tick);
        if is_heard && !self.is_due(world, p) {
            let mut next = world.clone();
            self.lose(&mut next, p);
            self.reach(Step::Loses(p), next);
        }
    }

    fn travels(&mut self, world: &World, p: usize) {
        let process = &world.processes[p];
        for at in 0..process.strays.len() {
            let mut next = world.clone();
            let Stray { kind, id, .. } = next.processes[p].strays.remove(at);
            self.serves(&mut next, p, kind, id);
            self.reach(Step::Strays(p, at), next);
        }
        let Some(call) = process.call else { return };
        let mut next = world.clone();
        let (step, stage) = match call.stage {
            Stage::Sent => {
                let reply = self.serves(&mut next, p, call.kind, call.id);
                (Step::Serves(p), Stage::Done(reply))
            }
            Stage::Done(reply) => (Step::Answers(p), Stage::Answered(reply)),
            Stage::Ordered | Stage::Answered(_) => return,
        };
        if let Some(call) = &mut next.processes[p].call {
            call.stage = stage;
        }
        self.reach(step, next);
    }

    /// Answers as the service does: a leased blob, by the table of the reference.
    fn serves(&self, world: &mut World, p: usize, kind: Kind, id: Id) -> Reply {
        let tick = world.tick;
        let clock = if self.is(Mistake::WallClocks) {
            tick + world.processes[p].ahead
        } else {
            tick
        };
        match kind {
            Kind::Acquire => {
                if world.lease != id && world.lease != 0 && world.until > clock {
                    return Reply::Held;
                }
                world.token += 1;
                (world.lease, world.until) = (id, tick + LEASE);
                Reply::Done(world.token)
            }
            // An expired lease can be renewed under its id until another takes it.
            Kind::Renew if world.lease == id => {
                world.until = tick + LEASE;
                Reply::Done(0)
            }
            Kind::Release if world.lease == id => {
                (world.lease, world.until) = (0, 0);
                if self.is(Mistake::TokenBeginsAnew) {
                    world.token = 0;
                }
                Reply::Done(0)
            }
            Kind::Renew | Kind::Release => Reply::Lost,
        }
    }

    /// Lets a process end that was asked to, or lets it live on.
    fn dies(&mut self, world: &World, p: usize) {
        let Some(tree) = world.processes[p].tree else {
            return;
        };
        let mut ended = Vec::new();
        if tree.main && tree.asked {
            ended.push((false, tree.daemon));
        }
        if tree.daemon && tree.daemon_asked && !tree.main {
            ended.push((false, false));
        }
        if tree.dies {
            ended.push((false, false));
        }
        for (main, daemon) in ended {
            let mut next = world.clone();
            let process = &mut next.processes[p];
            process.tree = Some(Tree {
                main,
                daemon,
                ..tree
            });
            if process.guardian == Life::Dead {
                process.is_bereft();
            }
            self.reach(Step::Dies(p, main, daemon), next);
        }
    }

    fn is_disturbed(&mut self, world: &World, p: usize) {
        let process = &world.processes[p];
        if process.supervisor == Life::Stopped {
            let mut next = world.clone();
            next.processes[p].supervisor = Life::Runs;
            next.quiet = next.tick;
            self.reach(Step::SupervisorContinues(p), next);
        }
        if process.guardian == Life::Stopped {
            let mut next = world.clone();
            next.processes[p].guardian = Life::Runs;
            next.quiet = next.tick;
            self.reach(Step::GuardianContinues(p), next);
        }
        let Some(world) = self.one_more_fault(world) else {
            return;
        };
        let process = &world.processes[p];
        let hurt = |change: fn(&mut Process)| {
            let mut next = world.clone();
            let process = &mut next.processes[p];
            process.is_excused = true;
            change(process);
            next
        };
        let has_supervisor = process.supervisor == Life::Runs;
        let has_guardian = process.guardian == Life::Runs;
        if has_supervisor {
            let stopped = hurt(|process| process.supervisor = Life::Stopped);
            self.reach(Step::SupervisorStops(p), stopped);
            let dead = hurt(|process| {
                process.supervisor = Life::Dead;
                process.drop_call();
                process.inbox.clear();
            });
            self.reach(Step::SupervisorDies(p), dead);
            let mut asked = hurt(|_| {});
            self.is_asked_to_stop(&mut asked, p);
            self.reach(Step::Asks(p), asked);
        }
        if has_guardian {
            let stopped = hurt(|process| process.guardian = Life::Stopped);
            self.reach(Step::GuardianStops(p), stopped);
            self.reach(Step::GuardianDies(p), hurt(guardian_dies));
        }
        if has_supervisor && has_guardian {
            // The whole machine.
            let stopped = hurt(|process| {
                process.supervisor = Life::Stopped;
                process.guardian = Life::Stopped;
            });
            self.reach(Step::MachineStops(p), stopped);
        }
        if process
            .tree
            .is_some_and(|tree| tree.main && !tree.asked && !tree.dies)
        {
            // It ends by itself, and leaves a daemon behind.
            let ended = hurt(|process| {
                if let Some(tree) = &mut process.tree {
                    tree.main = false;
                }
            });
            self.reach(Step::MainEnds(p), ended);
        }
    }

    fn one_more_fault(&self, world: &World) -> Option<World> {
        if world.faults >= self.bound.faults || world.tick > self.bound.last_fault {
            return None;
        }
        Some(World {
            faults: world.faults + 1,
            quiet: world.tick,
            ..world.clone()
        })
    }

    /// Advances the tick once every running process has done what was due.
    fn time_passes(&mut self, world: &World) {
        if world.tick == self.bound.ticks || world.is_beyond_us() {
            return;
        }
        let mut next = world.clone();
        for p in 0..2 {
            let process = &next.processes[p];
            // A start may take longer.
            let is_silent = process.is_silent() && !process.is_patient(next.tick);
            let kills = process
                .tree
                .is_some_and(|tree| tree.dies || tree.main && process.guardian == Life::Dead);
            if kills || is_silent || self.is_due(&next, p) || self.is_guardian_due(&next, p) {
                return;
            }
            let waits = process.call.is_some_and(|call| {
                !call.is_slow && matches!(call.stage, Stage::Sent | Stage::Done(_))
            });
            if waits {
                let Some(slower) = self.one_more_fault(&next) else {
                    return;
                };
                next = slower;
                let process = &mut next.processes[p];
                process.slow += 1;
                if let Some(call) = &mut process.call {
                    call.is_slow = true;
                }
            }
        }
        next.tick += 1;
        let tick = next.tick;
        if next.until <= tick {
            next.until = 0;
        }
        for p in 0..2 {
            let process = &mut next.processes[p];
            process.strays.retain(|stray| stray.sent + LATE >= tick);
            // Only time in which the supervisor can hear counts as silence.
            if process.starting != 0 && process.supervisor == Life::Stopped {
                process.starting = tick + START;
            }
            // An instance that is stopped to the end of the attempt does not read its grant in
            // time.
            if let Some(call) = &mut process.call
                && (call.kind, call.give_up) == (Kind::Acquire, tick)
                && matches!(call.stage, Stage::Answered(Reply::Done(_)))
            {
                call.give_up -= 1;
            }
            let is_gone = process.supervisor == Life::Dead && process.guardian == Life::Dead;
            if is_gone && process.tree.is_none() {
                let core = self.interned.begin(tick);
                let process = &mut next.processes[p];
                *process = Process {
                    strays: std::mem::take(&mut process.strays),
                    ..Process::new(core, process.ahead)
                };
            }
        }
        self.judge_rest(&mut next);
        self.reach(Step::TimePasses, next);
    }

    /// Judges whether a command runs again some time after the last fault, if an instance can.
    fn judge_rest(&mut self, world: &mut World) {
        let anybody = world.processes.iter().any(Process::is_whole);
        if !anybody || world.processes.iter().any(Process::works) {
            return;
        }
        let idle = world.tick - world.quiet;
        self.longest_rest = self.longest_rest.max(idle);
        if idle >= self.bound.rest {
            world.breaks(Broken::NobodyRuns);
        }
    }
}

fn guardian_dies(process: &mut Process) {
    process.is_bereft();
    process.release = 0;
    if let Some(tree) = &mut process.tree {
        tree.asked = true;
    }
}
