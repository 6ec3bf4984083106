//! The event queue of a schedule, the machines, and what the adversary does to them.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use trafficcop::Instant;
use trafficcop::internals::core::observed::{Claim, LONGEST_LEASE};
use trafficcop::internals::core::{Budget, Event, Exit, HoldPolicy, IfLost, Rules, Tenure};

use super::clock::{Clock, MILLI, SECOND, Time, nanos};
use super::instance::{Instance, Lane, Seat};
use super::network::{Mode, Wire};
use super::schedule::{Deed, Schedule, Who};
use super::share::{GRACE, OPERATOR, Reply, Request, Share};
use super::store::fresh;

#[derive(Clone, Debug)]
pub(crate) enum Happening {
    Supervisor(usize),
    Guardian(usize),
    Arrives(Wire, Request, Mode),
    /// With the number of the server's start that executed it.
    Answered(Wire, Request, Reply, u64),
    Act(usize),
    Continue(usize),
    Resume(usize, Time),
    /// The machine has been up again for a moment.
    Resumed(usize),
    CommandDies(usize, u64, Exit),
    /// The operator's record, behind the version that was made.
    BreakRecorded(u64, Claim),
    Restart(usize),
    Judgement,
}

struct Entry(Time, u64, Box<Happening>);

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

pub(crate) struct Machine {
    pub(crate) clock: Clock,
    pub(crate) suspended: Option<Time>,
    pub(crate) resumed: Time,
    /// What is read is as old as this moment, until then.
    pub(crate) view: (Time, Time),
    stamps: Rc<Cell<Option<(u64, Instant)>>>,
    deferred: Vec<Happening>,
}

/// What a run of many schedules adds up to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) schedules: u64,
    pub(crate) events: u64,
    pub(crate) tenures: u64,
    pub(crate) handovers: u64,
    pub(crate) versions: u64,
    pub(crate) stops: u64,
    /// Versions that were made behind the greatest, from a view older than what is kept.
    pub(crate) ancient: u64,
    pub(crate) faults: std::collections::BTreeMap<&'static str, u64>,
}

/// See the module's text.
pub(crate) struct World {
    pub(crate) schedule: Schedule,
    pub(crate) now: Time,
    queue: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
    pub(crate) rng: Rng,
    pub(crate) machines: Vec<Machine>,
    pub(crate) instances: Vec<Instance>,
    pub(crate) share: Share,
    nonces: Rc<Cell<u128>>,
    pub(crate) tally: Tally,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) generations: u64,
    pub(crate) last_token: u64,
    pub(crate) last_holder: Option<usize>,
    pub(crate) torn_until: Time,
    /// An operator has given control to somebody else at this moment.
    pub(crate) broken: Option<Time>,
    /// When somebody has to run at the latest.
    due: Time,
    over: bool,
}

impl World {
    pub(crate) fn new(schedule: Schedule, tracing: bool) -> World {
        let mut rng = Rng::with_seed(schedule.seed);
        let machines = schedule.ppm.iter().map(|ppm| Machine {
            clock: Clock::new(rng.u64(100..1_000_000) * SECOND, *ppm),
            suspended: None,
            resumed: 0,
            view: (0, 0),
            stamps: Rc::default(),
            deferred: Vec::new(),
        });
        let mut world = World {
            now: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            machines: machines.collect(),
            instances: Vec::new(),
            share: Share::new(schedule.protocol.first_is_removed),
            nonces: Rc::new(Cell::new(0)),
            tally: Tally {
                schedules: 1,
                ..Tally::default()
            },
            violation: None,
            trace: tracing.then(Vec::new),
            generations: 0,
            last_token: 0,
            last_holder: None,
            torn_until: 0,
            broken: None,
            due: 0,
            over: false,
            rng,
            schedule,
        };
        for machine in 0..world.machines.len() {
            let at = world.rng.u64(0..2000) * MILLI;
            world.plan(at, Happening::Restart(machine));
        }
        for at in 0..world.schedule.acts.len() {
            world.plan(world.schedule.acts[at].at, Happening::Act(at));
        }
        // Two leases, the longest time that a version without a record is held, and a few looks.
        let lease = world.schedule.leases.iter().max().copied();
        let looks = 4 * nanos(world.schedule.poll) + 15 * SECOND;
        let due = 2 * nanos(lease.unwrap_or_default()) + nanos(LONGEST_LEASE) + looks;
        world.due = world.schedule.rest + due;
        let sooner = if world.rng.u8(0..4) == 0 { due } else { 0 };
        world.plan(world.schedule.rest + sooner, Happening::Judgement);
        world
    }

    pub(crate) fn plan(&mut self, at: Time, what: Happening) {
        if at != Time::MAX {
            self.sequence += 1;
            let entry = Entry(at.max(self.now), self.sequence, Box::new(what));
            self.queue.push(Reverse(entry));
        }
    }

    /// Time passes between a cause and the process it wakes.
    pub(crate) fn lag(&mut self) -> Time {
        self.rng.u64(10_000..3 * MILLI)
    }

    pub(crate) fn say(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9.3} {}", self.now as f64 / 1e9, text()));
        }
    }

    pub(crate) fn violate(&mut self, text: String) {
        self.say(|| format!("VIOLATION: {text}"));
        self.violation
            .get_or_insert(format!("{text} (at {:.3} s)", self.now as f64 / 1e9));
    }

    /// Runs to the end or the first violation.
    pub(crate) fn run(&mut self) {
        while let Some(Reverse(Entry(at, _, what))) = self.queue.pop() {
            self.now = at;
            self.tally.events += 1;
            if self.tally.events > 1_000_000 {
                self.violate("the schedule does not end".to_owned());
            }
            self.happen(*what);
            if self.over || self.violation.is_some() {
                break;
            }
        }
        self.tally.versions = self.share.greatest;
        self.tally.ancient = self.share.ancient;
    }

    /// Puts off what happens to a process that stands still.
    pub(crate) fn defers(&mut self, machine: usize, what: &Happening) -> bool {
        let machine = &mut self.machines[machine];
        if machine.suspended.is_some() {
            machine.deferred.push(what.clone());
        }
        machine.suspended.is_some()
    }

    pub(crate) fn happen(&mut self, what: Happening) {
        match what {
            Happening::Supervisor(p) => {
                self.instances[p].armed = Time::MAX;
                if !self.defers(self.instances[p].machine, &what) {
                    self.supervise(p);
                }
            }
            Happening::Guardian(p) => {
                self.instances[p].guardian_armed = Time::MAX;
                if !self.defers(self.instances[p].machine, &what) {
                    self.guard(p);
                }
            }
            Happening::Arrives(wire, request, mode) => self.arrives(wire, request, mode),
            Happening::Answered(wire, request, ref reply, epoch) => {
                if epoch != self.share.epoch && reply.may_differ_when_repeated() {
                    // The answer died with the server: it is asked again.
                    let at = self.now + self.rng.u64(500..4000) * MILLI;
                    self.plan(at, Happening::Arrives(wire, request, Mode::Calm));
                } else if !self.defers(wire.machine, &what) {
                    self.delivers(wire, reply.clone());
                }
            }
            Happening::Act(at) => self.act(at),
            Happening::Continue(p) => {
                if self.defers(self.instances[p].machine, &what) {
                    return;
                }
                self.instances[p].stopped = false;
                self.say(|| format!("#{p} goes on"));
                for lane in [Lane::Worker, Lane::Writer] {
                    self.go_on(p, lane);
                }
                self.supervise(p);
            }
            Happening::Resume(m, back) => self.resume(m, back),
            Happening::Resumed(m) => self.judge_resumed(m),
            Happening::CommandDies(p, generation, exit) => {
                if !self.defers(self.instances[p].machine, &what) {
                    self.command_dies(p, generation, exit);
                }
            }
            Happening::BreakRecorded(version, claim) => {
                self.share.record(self.now, version, claim);
            }
            Happening::Restart(m) => self.begin(m),
            Happening::Judgement => {
                // Once somebody runs whose lease was confirmed since, little more can happen.
                self.over = self.is_confirmed();
                if !self.over && self.now >= self.due {
                    self.judge_liveness();
                    self.over = true;
                }
                self.plan(self.now + 5 * SECOND, Happening::Judgement);
            }
        }
    }

    fn begin(&mut self, m: usize) {
        if self
            .instances
            .iter()
            .any(|i| i.machine == m && i.competes())
        {
            return;
        }
        if self.machines[m].suspended.is_some() {
            self.machines[m].deferred.push(Happening::Restart(m));
            return;
        }
        let p = self.instances.len();
        let lease = self.schedule.leases[m];
        let mut budget = Budget::for_lease(lease);
        if self.schedule.least_margins {
            budget.margin = lease / 50 + Duration::from_millis(200);
        }
        let rules = Rules {
            budget: Some(budget),
            poll: Some(self.schedule.poll),
            wait: None,
            patience: Duration::from_secs(30),
            grace: Duration::from_secs(self.rng.choice([1, 5, 30]).expect("a choice")),
            stop_signal: 15,
            if_lost: IfLost::Compete,
            hold_policy: HoldPolicy::default(),
            once: None,
            seed: self.schedule.seed + p as u64,
        };
        let seat = Seat {
            machine: m,
            budget,
            nonce: fresh(&self.nonces),
            nonces: Rc::clone(&self.nonces),
            stamps: Rc::clone(&self.machines[m].stamps),
            protocol: self.schedule.protocol,
        };
        let now = self.machines[m].clock.at(self.now);
        self.instances
            .push(Instance::new(seat, Tenure::new(rules, now)));
        self.say(|| format!("#{p} begins on machine {m}, lease {lease:?}"));
        self.supervise(p);
    }

    pub(crate) fn restart_later(&mut self, m: usize) {
        let at = self.now + self.rng.u64(100..8000) * MILLI;
        self.plan(at, Happening::Restart(m));
    }

    /// The instance that competes on a machine.
    fn on(&self, m: usize) -> Option<usize> {
        let mut all = (0..self.instances.len()).rev();
        all.find(|p| self.instances[*p].machine == m && self.instances[*p].competes())
    }

    fn act(&mut self, at: usize) {
        let deed = self.schedule.acts[at].deed;
        self.say(|| format!("ACT {at}: {deed:?}"));
        let name = match deed {
            Deed::Net(_, weather, _) => weather.name(),
            Deed::Stop(m, span) => {
                if let Some(p) = self.on(m).filter(|p| !self.instances[*p].stopped) {
                    self.instances[p].stopped = true;
                    self.plan(self.now + span, Happening::Continue(p));
                }
                "stop"
            }
            Deed::Kill(m, who) => self.kill(m, who),
            Deed::Suspend(m, span, back) => {
                if self.machines[m].suspended.is_none() {
                    self.machines[m].suspended = Some(self.now);
                    self.plan(self.now + span, Happening::Resume(m, back));
                }
                "suspend"
            }
            Deed::Stale(m, back, span) => {
                self.machines[m].view = (self.now.saturating_sub(back), self.now + span);
                "stale"
            }
            Deed::Torn(span) => {
                self.torn_until = self.now + span;
                "torn"
            }
            Deed::RestartServer(grace) => {
                self.share.epoch += 1;
                if grace {
                    self.share.grace_until = self.now + GRACE;
                }
                "server"
            }
            Deed::Break => {
                self.break_lock();
                "break"
            }
            Deed::Signal(m) => {
                if let Some(p) = self.on(m) {
                    self.instances[p].stop_asked = true;
                    self.instances[p].inbox.push_back(Event::StopAsked(15));
                    let at = self.now + self.lag();
                    self.plan(at, Happening::Supervisor(p));
                }
                "signal"
            }
        };
        *self.tally.faults.entry(name).or_default() += 1;
    }

    fn kill(&mut self, m: usize, who: Who) -> &'static str {
        let Some(p) = self.on(m) else {
            return "nobody to kill";
        };
        match who {
            Who::Supervisor => {
                self.supervisor_dies(p);
                self.restart_later(m);
                "kill supervisor"
            }
            Who::Guardian => {
                self.guardian_dies(p);
                "kill guardian"
            }
            Who::Machine => {
                for instance in self.instances.iter_mut().filter(|i| i.machine == m) {
                    instance.lives = false;
                    instance.guardian = false;
                    instance.command = None;
                }
                self.machines[m].stamps.set(None);
                let at = self.now + self.rng.u64(5..40) * SECOND;
                self.plan(at, Happening::Restart(m));
                "kill machine"
            }
        }
    }

    /// An operator makes the next version, and then its record: held, for no shorter than the one
    /// before it.
    fn break_lock(&mut self) {
        let before = self.share.greatest;
        let version = before + 1;
        let lease = self.share.lease_of(before).unwrap_or(LONGEST_LEASE);
        if before == 0 || self.share.make(self.now, version, OPERATOR) != Reply::Made {
            return;
        }
        self.broken = Some(self.now);
        let claim = Claim {
            nonce: fresh(&self.nonces),
            lease,
            released: false,
        };
        let at = self.now + self.rng.u64(1..2000) * MILLI;
        self.plan(at, Happening::BreakRecorded(version, claim));
    }

    fn resume(&mut self, m: usize, back: Time) {
        let now = self.now;
        let machine = &mut self.machines[m];
        let Some(since) = machine.suspended.take() else {
            return;
        };
        machine.resumed = now;
        if back > 0 {
            machine.view = (since, now + back);
        }
        self.say(|| format!("machine {m} goes on"));
        for what in std::mem::take(&mut self.machines[m].deferred) {
            let at = now + self.lag();
            self.plan(at, what);
        }
        self.plan(now + 350 * MILLI, Happening::Resumed(m));
    }
}
