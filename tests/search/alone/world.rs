//! The history of one instance: one event after another for its driver, its guardian, its command
//! and the lock. It knows no rule: the referee sees every deed.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use trafficcop::Instant;
use trafficcop_core::{
    Cordon, Deadlines, Event, Exit, Failed, Failure, Grant, Outcome, Tenure, Unfit, WorkloadEvent,
};
use trafficcop_guardian::state::{GuardianState, Input};

use super::drive::{Drive, Learned};
use super::health::Monitor;
use super::plan::{Plan, Weather, secs};
use super::record::Telling;
use super::referee::Ledger;

#[path = "world/command.rs"]
mod command;
#[path = "world/deeds.rs"]
mod deeds;
#[path = "world/driver.rs"]
mod driver;
#[path = "world/lock.rs"]
mod lock;

use command::Tree;
use lock::Lock;

/// Owner of a lease; 0 is none.
pub(crate) type Id = u32;
pub(crate) const RIVAL: Id = Id::MAX;
/// Reader of the record, without a lease.
const READER: Id = Id::MAX - 1;
/// Limit of steps at one moment; more are a loop without a pause.
const STEPS: u32 = 60;
/// Limit of an abandoned release in the driver.
const UNDO: Duration = secs(2);

pub(crate) const BEGIN: Instant = Instant::from_nanos(1_000_000_000_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Acquire,
    Look,
    Renew,
    Record(Outcome),
    Release,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) id: Id,
    pub(crate) sent: Instant,
}

#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Granted(Grant),
    Done,
    Failed(Failure),
}

#[derive(Clone, Debug)]
pub(crate) enum Order {
    Start(Deadlines),
    Extend(Deadlines),
    Drain(i32, Instant),
    Kill,
}

pub(crate) enum Due {
    Begins,
    Wake(u64),
    Arrives(Call, Option<Duration>),
    Answers(u64, Reply),
    GivesUp(u64),
    Undo(u64),
    Guardian,
    Ordered(Order),
    News(WorkloadEvent),
    MainEnds(u64, Exit),
    RestEnds(u64),
    HookFails,
    Rings,
    Fitness(Result<(), Unfit>),
    /// The health is due for a look.
    Health(u64),
    /// A watchdog message of this generation's command.
    Speaks(u64, usize),
    Probed(u64),
    /// A write of the health is due.
    Tells,
    /// The write of this word was answered, or is known to be lost.
    Told(usize, bool),
    /// The store of a shared drive learns from an answer.
    Learns(Learned),
    Process,
    Rival,
    Freed,
    Act(usize),
    Uncordoned,
    Resumes,
    Rests,
    Judgement,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) now: Instant,
    queue: BTreeMap<(Instant, u64), Due>,
    made: u64,
    pub(crate) tenure: Tenure,
    /// Waits in hundredths of the plan, each with whether the plan was the same before.
    pub(crate) waited: Vec<(bool, f64)>,
    began: bool,
    rung: usize,
    pub(crate) over: bool,
    /// Whether an event follows this tick.
    pub(crate) has_news: bool,
    pub(crate) paused: bool,
    pub(crate) resumed: Instant,
    deferred: Vec<Due>,
    armed: u64,
    steps: (Instant, u32),
    pub(crate) call: Option<Call>,
    /// A write of the task's result, concurrent with renewals.
    pub(crate) recording: Option<Call>,
    withdrawn: Option<Instant>,
    proposed: Id,
    held: Id,
    spent: Id,
    ids: Id,
    // A socket keeps the order.
    order_at: Instant,
    news_at: Instant,
    pub(crate) guardian: GuardianState,
    pub(crate) guardian_lives: bool,
    pub(crate) stuck: bool,
    dies_within: Option<Duration>,
    pub(crate) tree: Option<Tree>,
    generations: u64,
    pub(crate) lock: Lock,
    freed_planned: bool,
    asked: usize,
    pub(crate) monitor: Monitor,
    pub(crate) telling: Telling,
    pub(crate) drive: Option<Drive>,
    weather: Vec<(Weather, Instant)>,
    pub(crate) rests: bool,
    pub(crate) ledger: Ledger,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) tenures: u64,
}

impl World {
    pub(crate) fn new(plan: Plan, tracing: bool) -> World {
        let cordon = plan.cordoned_before.then(|| Cordon {
            why: "a reboot".to_owned(),
            before: Instant::FOREVER,
        });
        let tenure = plan
            .tenure(BEGIN)
            .cordoned_by(cordon.clone())
            .only_if(plan.condition);
        let ledger = Ledger::new(cordon, &plan);
        let mut world = World {
            rng: Rng::with_seed(plan.seed),
            now: BEGIN,
            queue: BTreeMap::new(),
            made: 0,
            tenure,
            waited: Vec::new(),
            began: false,
            rung: 0,
            over: false,
            has_news: false,
            paused: false,
            resumed: BEGIN,
            deferred: Vec::new(),
            armed: 0,
            steps: (BEGIN, 0),
            call: None,
            recording: None,
            withdrawn: None,
            proposed: 0,
            held: 0,
            spent: 0,
            ids: 0,
            order_at: BEGIN,
            news_at: BEGIN,
            guardian: GuardianState::with_grace(plan.rules.grace),
            guardian_lives: true,
            stuck: false,
            dies_within: None,
            tree: None,
            generations: 0,
            lock: Lock::new(),
            freed_planned: false,
            asked: 0,
            monitor: Monitor::new(plan.health.clone()),
            telling: Telling::default(),
            drive: Drive::new(&plan),
            weather: Vec::new(),
            rests: false,
            ledger,
            violation: None,
            trace: tracing.then(Vec::new),
            tenures: 0,
            plan,
        };
        for at in 0..world.plan.acts.len() {
            world.due(BEGIN + world.plan.acts[at].at, Due::Act(at));
        }
        if world.plan.cordoned_before {
            world.due(BEGIN + world.plan.rest / 2, Due::Uncordoned);
        }
        world.due(BEGIN + world.plan.rest, Due::Rests);
        if world.plan.rival > 0 {
            match world.drive {
                Some(_) => world.rival_on_drive(),
                None => world.rival(),
            }
        }
        world.judge_settings();
        if world.plan.bell.is_some() {
            world.due(BEGIN, Due::Rings);
        }
        world
    }

    pub(crate) fn due(&mut self, at: Instant, due: Due) {
        self.made += 1;
        self.queue.insert((at.max(self.now), self.made), due);
    }

    pub(crate) fn say(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let at = self.now.since(BEGIN).as_secs_f64();
            trace.push(format!("{at:>9.3} {}", text()));
        }
    }

    pub(crate) fn violate(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.say(|| format!("VIOLATION: {text}"));
        let at = self.now.since(BEGIN).as_secs_f64();
        self.violation
            .get_or_insert(format!("{text} (at {at:.3} s)"));
    }

    pub(crate) fn run(&mut self) {
        self.due(BEGIN + self.plan.begins_late, Due::Begins);
        while let Some(entry) = self.queue.first_entry() {
            let ((now, _), due) = entry.remove_entry();
            self.now = now;
            if matches!(due, Due::Judgement) {
                return self.judge_liveness();
            }
            self.judge_protection();
            self.happens(due);
            self.listens();
            self.judge_protection();
            let over = self.over && self.tree.is_none();
            if self.violation.is_some() || over && !self.is_followed() {
                return;
            }
        }
    }

    fn happens(&mut self, due: Due) {
        if matches!(due, Due::Begins) {
            (self.began, self.resumed) = (true, self.now);
            return self.tell(Event::Ticked);
        }
        if (self.paused || !self.began)
            && matches!(
                due,
                Due::Wake(_)
                    | Due::Answers(..)
                    | Due::GivesUp(_)
                    | Due::Undo(_)
                    | Due::News(_)
                    | Due::Freed
                    | Due::Fitness(_)
                    | Due::Health(_)
                    | Due::Tells
                    | Due::Told(..)
                    | Due::Uncordoned
            )
        {
            return self.deferred.push(due);
        }
        match due {
            Due::Wake(armed) => {
                if armed == self.armed {
                    self.tell(Event::Ticked);
                }
            }
            Due::Arrives(call, back) if self.drive.is_some() => self.drive_serves(call, back),
            Due::Learns(learned) => self.learns(learned),
            Due::Process => self.next_process(),
            Due::Arrives(call, back) => {
                let reply = self.serves(call);
                self.say(|| format!("lock: {:?} of {} -> {reply:?}", call.kind, call.id));
                if let Some(back) = back {
                    self.due(self.now + back, Due::Answers(call.number, reply));
                }
            }
            Due::Answers(number, reply) => self.answered(number, reply),
            Due::GivesUp(number) => {
                let why = "no answer".to_owned();
                let silence = Failure::Transient {
                    why,
                    retry_after: None,
                };
                self.answered(number, Reply::Failed(silence));
            }
            Due::Undo(number) => {
                let waits = self.call.is_some_and(|call| call.number == number);
                if waits && self.withdrawn.take().is_some() {
                    self.call = None;
                    self.tells_no_more();
                    self.release(self.now + UNDO);
                    self.tell(Event::Ticked);
                }
            }
            Due::Guardian => self.feed(Input::Ticked),
            Due::Ordered(order) => self.ordered(order),
            Due::News(event) => self.tell(Event::Workload(event)),
            Due::MainEnds(generation, exit) => {
                let tree = self
                    .tree
                    .as_mut()
                    .filter(|tree| tree.generation == generation);
                if let Some(tree) = tree.filter(|tree| tree.main) {
                    tree.main = false;
                    self.children(exit);
                }
            }
            Due::RestEnds(generation) => {
                let tree = self
                    .tree
                    .as_mut()
                    .filter(|tree| tree.generation == generation);
                if let Some(tree) = tree.filter(|tree| tree.rest) {
                    tree.rest = false;
                    self.children(Exit::Code(0));
                }
            }
            Due::Rings => {
                let (ring, pause) = self.plan.rings[self.rung % 24];
                self.rung += 1;
                self.due(self.now + pause, Due::Rings);
                if self.began && !self.over && !self.paused && self.may_ring() {
                    self.rings(ring);
                }
            }
            Due::HookFails => {
                if self.guardian_lives {
                    let how = Failed::Exited(Exit::Code(1));
                    self.news(WorkloadEvent::HookFailed { at: self.now, how });
                }
            }
            Due::Fitness(answer) => self.tell(Event::Workload(WorkloadEvent::Condition(answer))),
            Due::Health(_) | Due::Speaks(..) | Due::Probed(_) => self.is_heard(due),
            Due::Tells => self.tells_of_health(),
            Due::Told(number, is_lost) => self.told(number, is_lost),
            Due::Rival if self.drive.is_some() => self.rival_on_drive(),
            Due::Rival => self.rival(),
            Due::Freed => {
                self.freed_planned = false;
                if self.tenure.listens() && self.call.is_none() && !self.lock.keeps_out(self.now) {
                    self.tell(Event::Freed);
                }
            }
            Due::Act(at) => self.act(at),
            Due::Uncordoned => self.tell(Event::Uncordoned),
            Due::Resumes => {
                self.paused = false;
                self.resumed = self.now;
                for due in std::mem::take(&mut self.deferred) {
                    self.due(self.now, due);
                }
                self.looks_after_health();
            }
            Due::Rests => {
                self.rests = true;
                let tenures = self.tenures;
                if let Some(drive) = &mut self.drive {
                    drive.tenures_before = tenures;
                }
                let bound = self.ledger.bound(&self.plan);
                self.due(self.now + bound, Due::Judgement);
            }
            Due::Begins | Due::Judgement => {}
        }
    }
}
