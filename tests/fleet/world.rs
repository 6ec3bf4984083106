//! The event queue, the store's side of a schedule, and which process may run when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tempfile::TempDir;
use trafficcop_core::{Cordon, Exit, HoldPolicy, IfLost, Rules, Tenure};

use super::adversary::{Kind, Place, Schedule, Who};
use super::clock::{Clock, MILLI, SECOND, Time, nanos};
use super::drive::Server;
use super::mount::Mount;
use super::operator::Operator;
use super::pair::{Life, Lock, Pair};
use super::shelf::Shelf;
use super::shelved::make_shelf;
use super::store::{Id, Reply, Request, Store};
use super::wire::Texts;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum From {
    Supervisor,
    Guardian,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Happening {
    Supervisor(usize),
    Timer(usize, Time),
    Guardian(usize),
    /// `lost`: its reply is lost. `denied`: its reply becomes an error.
    Arrives {
        pair: usize,
        from: From,
        slot: u64,
        request: Request,
        lost: bool,
        denied: bool,
    },
    Answered {
        pair: usize,
        from: From,
        slot: u64,
        reply: Reply,
    },
    Act(usize),
    Continue(usize, Who),
    Resume(usize),
    /// The command has replaced the guardian's image.
    Executed(usize, u64),
    MainDies(usize, u64, Exit),
    DaemonDies(usize, u64),
    Operator(usize),
    LeaseEnds,
    Restart(usize),
    /// Announcements for the machine have changed.
    Announced(usize),
    /// The cordon with this number is lifted, if it is still the last.
    Lifted(usize, u64),
    /// A pair that heard of a cordon then has had the time to drain.
    CordonDue(usize, Time),
    Rest,
    /// A guardian has had the time to notice that this tree has ended.
    EndDue(usize, u64),
    Judgement,
}

struct Entry(Time, u64, Happening);

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
    pub(crate) until: Time,
    pub(crate) resumed: Time,
    /// Total time of suspension by its own clock: the timers of its processes did not run.
    pub(crate) shown_suspended: Duration,
    /// Kind of request after which its supervisor is stopped, and for how long.
    pub(crate) trap: Option<(Kind, Time)>,
    pub(crate) cordon: Option<(u64, Cordon)>,
    deferred: Vec<Happening>,
}

/// An operator's break: the leases (on a shared drive only one instance's), and the time.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) leases: Range<Id>,
    pub(crate) of: Option<usize>,
    /// Time at which others could get control because of it.
    pub(crate) others: Others,
    pub(crate) at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    AtOnce,
    /// Before the end of the broken lease.
    Sooner,
    /// At the end of the broken lease.
    AtTheEnd,
}

impl Broken {
    pub(crate) fn is(&self, p: usize, lease: Id) -> bool {
        self.leases.contains(&lease) && self.of.is_none_or(|of| of == p)
    }

    pub(crate) fn gives_away(&self) -> bool {
        self.others != Others::AtTheEnd
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) schedules: u64,
    pub(crate) events: u64,
    pub(crate) tenures: u64,
    pub(crate) handovers: u64,
    pub(crate) overlaps: u64,
    pub(crate) words: u64,
    pub(crate) unknowable: u64,
    pub(crate) drains: u64,
    /// Cordons that supervisors heard of, and how many of these while in control.
    pub(crate) cordons: u64,
    pub(crate) cordoned_holders: u64,
    pub(crate) unfit: u64,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) drive: BTreeMap<&'static str, u64>,
    pub(crate) shelf: BTreeMap<&'static str, u64>,
    /// Schedules, tenures and hand-overs, by place.
    pub(crate) places: BTreeMap<&'static str, [u64; 3]>,
}

pub(crate) struct World {
    pub(crate) schedule: Schedule,
    pub(crate) now: Time,
    queue: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
    pub(crate) rng: Rng,
    pub(crate) machines: Vec<Machine>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) store: Store,
    pub(crate) store_clock: Clock,
    pub(crate) texts: Arc<Mutex<Texts>>,
    /// Directory of a lock's file.
    pub(crate) directory: Option<TempDir>,
    pub(crate) drive: Option<Arc<Mutex<Server>>>,
    pub(crate) shelf: Option<Arc<Mutex<Shelf>>>,
    pub(crate) operators: Vec<Operator>,
    pub(crate) makings: usize,
    pub(crate) tally: Tally,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) broken: Vec<Broken>,
    /// End of each lease as granted, whether or not the answer arrived.
    pub(crate) granted: HashMap<Id, Time>,
    /// End of each lease's protection, as known now.
    pub(crate) lasts: HashMap<Id, Time>,
    /// Time at which supervisors of a machine were stopped during a request.
    pub(crate) stops: Vec<(usize, Time, Time)>,
    pub(crate) last_end: Time,
    /// Leases touched by others than their holders, once for each time.
    pub(crate) touched: Vec<Id>,
    pub(crate) generations: u64,
    pub(crate) last_token: u64,
    pub(crate) last_deletions: u32,
    pub(crate) last_holder: Option<usize>,
    pub(crate) resting: bool,
}

fn directory() -> TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory
        .or_else(|_| tempfile::tempdir())
        .expect("a directory")
}

impl World {
    pub(crate) fn new(schedule: Schedule, tracing: bool) -> World {
        let mut rng = Rng::with_seed(schedule.seed);
        let machines = schedule
            .ppm
            .iter()
            .map(|ppm| Machine {
                clock: Clock::new(rng.u64(100..1_000_000) * SECOND, *ppm),
                suspended: None,
                until: 0,
                resumed: 0,
                shown_suspended: Duration::ZERO,
                trap: None,
                cordon: None,
                deferred: Vec::new(),
            })
            .collect();
        let exists = rng.u8(0..4) > 0;
        let directory = (schedule.place != Place::Blob).then(directory);
        let drive = directory
            .as_ref()
            .filter(|_| schedule.place == Place::Shared);
        let drive = drive.map(|directory| {
            let lock = directory.path().join("lock");
            let acts = schedule.acts.clone();
            let mut server = Server::new(lock, schedule.ppm.len(), acts, schedule.seed);
            server.staleness = schedule.staleness;
            server.trace = tracing.then(Vec::new);
            Arc::new(Mutex::new(server))
        });
        let shelf = make_shelf(&schedule, tracing);
        let mut world = World {
            now: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            machines,
            pairs: Vec::new(),
            store: Store::new(schedule.budgets[0].lease, exists),
            store_clock: Clock::new(1_000_000 * SECOND, schedule.store_ppm),
            texts: Arc::default(),
            directory,
            drive,
            shelf,
            operators: Vec::new(),
            makings: 0,
            tally: Tally {
                schedules: 1,
                ..Tally::default()
            },
            violation: None,
            trace: tracing.then(Vec::new),
            broken: Vec::new(),
            granted: HashMap::new(),
            lasts: HashMap::new(),
            stops: Vec::new(),
            last_end: 0,
            touched: Vec::new(),
            generations: 0,
            last_token: 0,
            last_deletions: 0,
            last_holder: None,
            resting: false,
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
        world.plan(world.schedule.rest, Happening::Rest);
        world
    }

    pub(crate) fn plan(&mut self, at: Time, what: Happening) {
        self.sequence += 1;
        self.queue
            .push(Reverse(Entry(at.max(self.now), self.sequence, what)));
    }

    /// Draws the delay between a cause and the wake-up of a process.
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

    pub(crate) fn run(&mut self) {
        while let Some(Reverse(Entry(at, _, what))) = self.queue.pop() {
            self.now = at;
            self.tally.events += 1;
            if self.tally.events > 500_000 {
                self.violate("the schedule does not end".to_owned());
            }
            self.drive_goes_on();
            self.shelf_goes_on();
            let over = self.happen(what);
            self.look_at_the_drive();
            if over || self.violation.is_some() {
                break;
            }
        }
        if let Some(drive) = &self.drive {
            self.tally.drive = drive.lock().expect("whole").counts.clone();
        }
        if let Some(shelf) = &self.shelf {
            self.tally.shelf = shelf.lock().expect("whole").counts.clone();
        }
    }

    fn happen(&mut self, what: Happening) -> bool {
        match what {
            Happening::Supervisor(p) => {
                if !self.defers(p, what) {
                    self.supervise(p);
                }
            }
            Happening::Timer(p, armed) => {
                if self.pairs[p].armed == armed && !self.defers(p, what) {
                    self.pairs[p].armed = Time::MAX;
                    self.supervise(p);
                }
            }
            Happening::Guardian(p) => {
                self.pairs[p].guardian_armed = Time::MAX;
                self.guard(p);
            }
            Happening::Arrives {
                pair,
                from,
                slot,
                request,
                lost,
                denied,
            } => {
                let now = self.store_clock.at(self.now);
                let leased = self.store.leased(now);
                let mut reply = self.store.handle(now, request);
                // A request for the rest of a break breaks the lease of an instance that got it in
                // between.
                if let (Request::RestOfBreaking { .. }, Reply::Rest(_), Some(id)) =
                    (request, reply, leased)
                {
                    self.touched.push(id);
                }
                if !matches!(request, Request::Look { .. }) {
                    self.say(|| format!("store: {request:?} of #{pair} -> {reply:?}"));
                    self.lease_changed();
                }
                if from == From::Supervisor {
                    self.spring_the_trap(pair, request);
                }
                if denied {
                    reply = Reply::Error {
                        status: 500,
                        retry_after: None,
                    };
                }
                if !lost {
                    let at = self.now + self.travel(self.pairs[pair].machine);
                    self.plan(
                        at,
                        Happening::Answered {
                            pair,
                            from,
                            slot,
                            reply,
                        },
                    );
                }
            }
            Happening::Answered {
                pair,
                from,
                slot,
                reply,
            } => match from {
                From::Supervisor => {
                    self.pairs[pair].network.answered(slot, reply);
                    self.supervise(pair);
                }
                From::Guardian => {
                    self.pairs[pair].guardian_network.answered(slot, reply);
                    self.guard(pair);
                }
            },
            Happening::Act(at) => self.act(at),
            Happening::Continue(p, who) => self.go_on(p, who),
            Happening::Resume(machine) => self.resume(machine),
            Happening::Executed(p, generation) => {
                if self.defers(p, what) {
                    return false;
                }
                if let Some(tree) = &mut self.pairs[p].tree
                    && tree.generation == generation
                {
                    tree.executed = true;
                    self.guard(p);
                }
            }
            Happening::MainDies(p, generation, exit) => {
                if self.defers(p, what) {
                    return false;
                }
                if let Some(tree) = &mut self.pairs[p].tree
                    && tree.generation == generation
                    && tree.main
                {
                    tree.main = false;
                    tree.exit = exit;
                    self.pairs[p].kernel.facts().child_signal = true;
                    self.note_the_end(p);
                    self.say(|| format!("#{p}: the main process ended: {exit:?}"));
                    self.wake_both(p);
                }
            }
            Happening::DaemonDies(p, generation) => {
                if self.defers(p, what) {
                    return false;
                }
                if let Some(tree) = &mut self.pairs[p].tree
                    && tree.generation == generation
                    && tree.daemon
                {
                    tree.daemon = false;
                    // Its parent has reaped it, if that is not the guardian.
                    tree.daemon_reaped = tree.main;
                    let orphan = !tree.main;
                    self.pairs[p].kernel.facts().child_signal |= orphan;
                    self.note_the_end(p);
                    self.say(|| format!("#{p}: the daemon ended"));
                    self.wake_both(p);
                }
            }
            Happening::Operator(at) => self.operate(at),
            Happening::LeaseEnds => self.lease_changed(),
            Happening::Restart(machine) => self.restart(machine),
            Happening::Announced(machine) => self.announced(machine),
            Happening::Lifted(machine, number) => self.lifted(machine, number),
            Happening::CordonDue(p, told) => self.judge_cordon(p, told),
            Happening::EndDue(p, generation) => self.judge_end(p, generation),
            Happening::Rest => {
                self.say(|| "the adversary rests".to_owned());
                self.resting = true;
                for machine in 0..self.machines.len() {
                    self.restart(machine);
                }
                let lease = nanos(self.schedule.longest_wait());
                let poll = nanos(self.schedule.poll);
                let mut bound = lease + lease / 50 + poll * 5 / 4 + 6 * SECOND;
                if self.schedule.place == Place::Shared {
                    // Two leases, and the longest wait for a version without a readable record.
                    bound += lease + 60 * SECOND + 3 * poll + 15 * SECOND;
                }
                if self.schedule.place == Place::Store {
                    // An old view between two new ones begins a standby's wait anew.
                    bound += self.schedule.staleness;
                }
                if self.drive.is_some() && self.store.deletions > 0 {
                    bound += nanos(self.schedule.grace) + 10 * SECOND;
                }
                if self.machines.iter().any(|machine| machine.cordon.is_some()) {
                    // An instance that starts on a cordoned machine may hear of it late, and drains
                    // then.
                    bound += 7 * SECOND + self.drain_for_a_cordon();
                }
                self.plan(self.now + bound, Happening::Judgement);
            }
            Happening::Judgement => {
                self.judge_liveness();
                return true;
            }
        }
        false
    }

    fn defers(&mut self, p: usize, what: Happening) -> bool {
        let machine = &mut self.machines[self.pairs[p].machine];
        let asleep = machine.suspended.is_some();
        if asleep {
            machine.deferred.push(what);
        }
        asleep
    }

    pub(crate) fn wake_both(&mut self, p: usize) {
        let at = self.now + self.lag();
        self.plan(at, Happening::Guardian(p));
        self.wake_supervisor(p);
    }

    pub(crate) fn wake_supervisor(&mut self, p: usize) {
        let at = self.now + self.lag();
        self.plan(at, Happening::Supervisor(p));
    }

    pub(crate) fn of_machine(&self, machine: usize) -> Vec<usize> {
        let on = |p: &usize| self.pairs[*p].machine == machine;
        (0..self.pairs.len()).filter(on).collect()
    }

    fn go_on(&mut self, p: usize, who: Who) {
        let now = self.now;
        let pair = &mut self.pairs[p];
        let ends = |life: Life| matches!(life, Life::Stopped(until) if now >= until);
        if who != Who::Guardian && ends(pair.supervisor) {
            pair.supervisor = Life::Runs;
            pair.continued = now;
        }
        if who != Who::Supervisor && ends(pair.guardian) {
            pair.guardian = Life::Runs;
            pair.guardian_continued = now;
            pair.handle.link().child = true;
        }
        self.wake_both(p);
    }

    fn resume(&mut self, machine: usize) {
        let it = &mut self.machines[machine];
        let Some(since) = it.suspended.filter(|_| self.now >= it.until) else {
            return;
        };
        it.suspended = None;
        it.resumed = self.now;
        it.shown_suspended += it.clock.at(self.now).since(it.clock.at(since));
        // The kernel's cache of a drive did not age.
        if let Some(drive) = &self.drive {
            let mut drive = drive.lock().expect("whole");
            let until = self.now + drive.rng.u64(0..60) * SECOND;
            if drive.rng.bool() && drive.views[machine].1 < until {
                drive.views[machine] = (since, until);
            }
        }
        // Events of the suspend are due now; the supervisor's timers did not run.
        for what in std::mem::take(&mut it.deferred) {
            let at = self.now + self.lag();
            self.plan(at, what);
        }
        for p in self.of_machine(machine) {
            self.pairs[p].kernel.facts().wall_jumped = true;
            self.wake_both(p);
        }
    }

    pub(crate) fn restart_later(&mut self, machine: usize) {
        let at = if self.resting {
            self.now + 100 * MILLI
        } else if self.rng.u8(0..10) < 7 {
            self.now + self.rng.u64(100..10_000) * MILLI
        } else {
            return;
        };
        self.plan(at, Happening::Restart(machine));
    }

    fn lock(&self, machine: usize) -> Lock {
        let Some(directory) = &self.directory else {
            return Lock::Blob;
        };
        let path = directory.path().join("lock");
        let runtime = directory.path().join(machine.to_string());
        if let Some(shelf) = &self.shelf {
            return self.entry_of(shelf, machine, runtime);
        }
        let Some(drive) = &self.drive else {
            return Lock::File(path);
        };
        let _ = std::fs::create_dir(&runtime);
        Lock::Shared {
            path,
            runtime,
            mount: Mount::carried(drive, machine, self.pairs.len()),
            memory: Arc::default(),
        }
    }

    fn restart(&mut self, machine: usize) {
        if self
            .of_machine(machine)
            .iter()
            .any(|p| self.pairs[*p].competes())
        {
            return;
        }
        let schedule = &self.schedule;
        let rules = Rules {
            hold_policy: HoldPolicy {
                max_hold: schedule.max_hold,
                cooldown: schedule.max_hold.map(|_| schedule.cooldown),
                ..HoldPolicy::default()
            },
            once: None,
            budget: Some(schedule.budgets[machine]).filter(|_| schedule.place != Place::File),
            poll: Some(schedule.poll).filter(|_| schedule.place != Place::File),
            wait: None,
            patience: std::time::Duration::from_secs(30),
            auth_patience: std::time::Duration::from_secs(300),
            grace: schedule.grace,
            stop_signal: 15,
            if_lost: if schedule.compete {
                IfLost::Compete
            } else {
                IfLost::Exit
            },
            on_terminal: false,
            seed: self.rng.u64(..),
        };
        let p = self.pairs.len();
        let now = self.machines[machine].clock.at(self.now);
        let lease = self.schedule.budgets[machine].lease;
        // Mostly known before the first attempt.
        let cordon = self.machines[machine].cordon.clone();
        let cordon = cordon.map(|(_, cordon)| cordon);
        let known = cordon.filter(|_| self.rng.u8(0..4) > 0);
        let is_known = known.is_some();
        let tenure = Tenure::new(rules, now)
            .cordoned_by(known)
            .only_if(self.schedule.asks_every());
        let contained = self.rng.bool();
        let lock = self.lock(machine);
        let mut pair = Pair::new(machine, p, tenure, lease, contained, &lock, &self.texts);
        pair.clock.seed(self.rng.u64(..));
        if is_known {
            (pair.cordoned, pair.cordon_sent) = (Some(self.now), true);
        } else if self.machines[machine].cordon.is_some() {
            self.announce_later(machine);
        }
        self.pairs.push(pair);
        self.say(|| format!("#{p} begins on machine {machine}"));
        self.wake_both(p);
    }
}
