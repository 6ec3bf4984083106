//! The driver of one instance, its guardian with the real state, its command, and the lock. Knows no rule:
//! whatever is done is shown to the referee.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use trafficcop::Instant;
use trafficcop::internals::core::{
    Action, Bell, Cordon, Deadlines, Event, Exit, Failed, Failure, Grant, HolderInfo, Outcome,
    Ring, State, TaskResult, Tenure, Unfit, WorkloadEvent,
};
use trafficcop::internals::guardian::state::{GuardianState, Input, Step};

use super::drive::{Drive, Learned};
use super::health::Monitor;
use super::plan::{Deed, Plan, Weather, ms, secs};
use super::referee::Ledger;

/// Whose a lease is: 0 is nobody's.
pub(crate) type Id = u32;
pub(crate) const RIVAL: Id = Id::MAX;
/// Who looks at the record alone needs no lease.
const READER: Id = Id::MAX - 1;
/// More steps than this at one moment are a loop without a pause.
const STEPS: u32 = 60;
/// What the driver gives to a release whose answer is not waited for.
const UNDO: Duration = secs(2);

pub(crate) const BEGIN: Instant = Instant::from_nanos(1_000_000_000_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Acquire,
    /// At the record alone.
    Look,
    Renew,
    Record(Outcome),
    Release,
}

/// What the supervisor has asked the lock, and waits for.
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
    /// Whether the machine is fit to take control.
    Fitness(Result<(), Unfit>),
    /// The command's health is to be looked at.
    Health(u64),
    /// The command of this generation says something of its watchdog.
    Speaks(u64, usize),
    Probed(u64),
    /// The store of a shared drive hears of what was made.
    Learns(Learned),
    /// Of those that look once, the next.
    Process,
    Rival,
    Freed,
    Act(usize),
    Uncordoned,
    Resumes,
    Rests,
    Judgement,
}

pub(crate) struct Tree {
    pub(crate) generation: u64,
    pub(crate) id: Id,
    pub(crate) main: bool,
    pub(crate) rest: bool,
    deaf: bool,
    exit_told: bool,
    silent: bool,
}

/// The lock, as its store has it.
pub(crate) struct Lock {
    pub(crate) holder: Id,
    pub(crate) until: Instant,
    pub(crate) breaking: bool,
    pub(crate) token: u64,
    failed: u32,
    over: bool,
    draining: bool,
    pub(crate) rival_ends: Instant,
}

impl Lock {
    pub(crate) fn keeps_out(&self, now: Instant) -> bool {
        self.holder != 0 && now < self.until
    }
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) now: Instant,
    queue: BTreeMap<(Instant, u64), Due>,
    made: u64,
    pub(crate) tenure: Tenure,
    /// In hundredths of what was planned, and whether it had been planned so before.
    pub(crate) waited: Vec<(bool, f64)>,
    began: bool,
    rung: usize,
    pub(crate) over: bool,
    /// It is about to be told something, and what time it is before that.
    pub(crate) has_news: bool,
    pub(crate) paused: bool,
    pub(crate) resumed: Instant,
    deferred: Vec<Due>,
    armed: u64,
    steps: (Instant, u32),
    pub(crate) call: Option<Call>,
    /// What is recorded is recorded beside the renewals.
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
        let tenure = Tenure::new(plan.rules.clone(), BEGIN)
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
            lock: Lock {
                holder: 0,
                until: Instant::FOREVER,
                breaking: false,
                token: 0,
                failed: 0,
                over: false,
                draining: false,
                rival_ends: Instant::FOREVER,
            },
            freed_planned: false,
            asked: 0,
            monitor: Monitor::new(plan.health.clone()),
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

    fn act(&mut self, at: usize) {
        let deed = self.plan.acts[at].deed.clone();
        self.say(|| format!("DEED: {deed:?}"));
        match deed {
            Deed::Weather(weather, span) => self.weather.push((weather, self.now + span)),
            Deed::Break(_) if self.drive.is_some() => self.breaks_on_drive(),
            Deed::Break(span) => {
                if self.lock.keeps_out(self.now)
                    && self.lock.holder != RIVAL
                    && self.plan.rules.budget.is_some()
                {
                    self.lock.breaking = true;
                    self.lock.until = self.lock.until.min(self.now + span.unwrap_or_default());
                    self.ledger.broken = Some(self.now);
                }
            }
            Deed::Stop(signal) => self.hears(Event::StopAsked(signal)),
            Deed::Cordon(before, span) => {
                let before = before.map_or(Instant::FOREVER, |before| self.now + before);
                let why = "a reboot".to_owned();
                self.hears(Event::Cordoned(Cordon { why, before }));
                if let Some(span) = span {
                    self.due(self.now + span, Due::Uncordoned);
                }
            }
            Deed::Pause(span) => {
                self.paused = true;
                self.due(self.now + span, Due::Resumes);
            }
            Deed::GuardianDies => {
                if std::mem::replace(&mut self.guardian_lives, false) {
                    self.news(WorkloadEvent::Lost);
                    self.tree = None;
                    self.news(WorkloadEvent::TreeEmpty { at: self.now });
                }
            }
            Deed::ClockJumps => self.hears(Event::Workload(WorkloadEvent::ClockJumped)),
            Deed::CommandStopping => self.hears(Event::CommandStopping),
            Deed::Echo(which) => self.echo(which),
            Deed::Stuck(span) => (self.stuck, self.dies_within) = (true, span),
            Deed::ProberDies => self.prober_dies(),
        }
    }

    fn hears(&mut self, event: Event) {
        // Not lost while it is stopped; its order among what waits does not matter.
        if !self.paused && self.began {
            self.tell(event);
        }
    }

    fn echo(&mut self, which: u8) {
        let stale = Instant::ZERO + secs(1);
        let kind = self.call.map(|call| call.kind);
        let standby = *self.tenure.state() == State::Standby && !self.paused;
        let standby = standby && self.began;
        let event = match which % 12 {
            0 if self.plan.condition.is_some() && which > 60 && !self.ledger.is_asking() => {
                Event::Workload(WorkloadEvent::Condition(Ok(())))
            }
            0 => Event::Workload(WorkloadEvent::TreeEmpty { at: stale }),
            1 if *self.tenure.state() != State::Releasing => Event::Released(Ok(())),
            2 if self.recording.is_none() => Event::Recorded(Ok(())),
            3 if kind != Some(Kind::Renew) => Event::Renewed {
                t0: stale,
                reply: Ok(()),
            },
            4 if standby
                && self.drive.is_none()
                && kind.is_none()
                && !self.lock.keeps_out(self.now) =>
            {
                self.ids += 1;
                (self.lock.holder, self.held, self.proposed) = (self.ids, self.ids, 0);
                self.lock.until = self.until();
                self.lock.token += 1;
                let (t0, token, failed) = (self.now, self.lock.token, 0);
                Event::Acquired(Ok(Grant { t0, token, failed }))
            }
            5 => Event::Workload(WorkloadEvent::Standby(Some(5))),
            6 if self.ledger.has_started() => {
                Event::Workload(WorkloadEvent::NotStarted { errno: 2 })
            }
            7 => Event::Workload(WorkloadEvent::HookFailed {
                at: match which > 128 && self.ledger.has_started() {
                    true => self.now,
                    false => stale,
                },
                how: Failed::NotStarted(2),
            }),
            8 => Event::Workload(WorkloadEvent::LeftBehind),
            9 if kind != Some(Kind::Acquire) => Event::Acquired(Err(Failure::Lost {
                until: None,
                why: String::new(),
            })),
            10 if *self.tenure.state() == State::Releasing && self.ledger.has_ended() => {
                Event::Workload(WorkloadEvent::Exited(Exit::Code(77)))
            }
            10 => Event::Workload(WorkloadEvent::Stopped),
            _ => Event::Uncordoned,
        };
        self.hears(event);
    }

    // --- the lock ---

    /// Until when the lock counts a lease of this moment, by a clock that is as fast as can be.
    pub(crate) fn until(&self) -> Instant {
        let lease = self.plan.rules.budget.map(|budget| budget.lease);
        lease.map_or(Instant::FOREVER, |lease| self.now + (lease - lease / 50))
    }

    fn serves(&mut self, call: Call) -> Reply {
        let (now, id) = (self.now, call.id);
        let ours = self.lock.holder == id && !self.lock.breaking;
        let lost = |until| {
            let why = "not ours".to_owned();
            Reply::Failed(Failure::Lost { until, why })
        };
        match call.kind {
            Kind::Acquire => {
                let another = self
                    .plan
                    .done_by_another
                    .is_some_and(|at| now >= BEGIN + at);
                if self.lock.over || another {
                    return Reply::Failed(Failure::AlreadyDone(self.result()));
                }
                if self.lock.keeps_out(now) && !ours {
                    return Reply::Failed(Failure::Held(self.holder()));
                }
                self.lock.token += 1;
                self.lock.breaking = false;
                (self.lock.holder, self.lock.until) = (id, self.until());
                Reply::Granted(Grant {
                    t0: call.sent,
                    token: self.lock.token,
                    failed: self.lock.failed,
                })
            }
            Kind::Look => {
                let another = self
                    .plan
                    .done_by_another
                    .is_some_and(|at| now >= BEGIN + at);
                if self.lock.over || another {
                    return Reply::Failed(Failure::AlreadyDone(self.result()));
                }
                if self.lock.keeps_out(now) && self.rng.bool() {
                    return Reply::Failed(Failure::Held(self.holder()));
                }
                Reply::Done
            }
            Kind::Renew if ours => {
                self.lock.until = self.until();
                Reply::Done
            }
            Kind::Release if self.lock.holder == id => {
                self.lock.holder = 0;
                self.lock.breaking = false;
                Reply::Done
            }
            Kind::Record(outcome) if ours && self.lock.keeps_out(now) => {
                if outcome.over {
                    self.lock.over = true;
                } else {
                    self.lock.failed += 1;
                }
                Reply::Done
            }
            // Of what is nobody's: so the request before this one was carried out.
            Kind::Release if !self.lock.keeps_out(now) => Reply::Done,
            Kind::Renew | Kind::Record(_) if self.lock.holder == id && self.lock.keeps_out(now) => {
                lost(Some(self.lock.until))
            }
            Kind::Renew | Kind::Record(_) | Kind::Release if self.rng.bool() => lost(None),
            Kind::Renew | Kind::Record(_) | Kind::Release => {
                Reply::Failed(Failure::Held(self.holder()))
            }
        }
    }

    /// How the task ended, as its record says.
    fn result(&self) -> TaskResult {
        TaskResult {
            status: 3,
            holder: "rival".to_owned(),
            at: String::new(),
            token: 1,
        }
    }

    fn holder(&self) -> HolderInfo {
        if self.lock.holder != RIVAL {
            return HolderInfo::default();
        }
        let draining = self.lock.draining;
        HolderInfo {
            holder: Some("rival".to_owned()),
            token: Some(self.lock.token),
            draining,
            bell: self.bell().map(Box::new),
            is_one_of_many: self.plan.is_one_of_many,
            expires: (self.plan.tells_expiry && !draining).then_some(self.lock.rival_ends),
            ..HolderInfo::default()
        }
    }

    /// Each of the rival's tenures has another.
    fn bell(&self) -> Option<Bell> {
        let nonce = u128::from(self.lock.token);
        self.plan.bell.map(|ip| Bell {
            address: (ip, 80).into(),
            nonce,
        })
    }

    /// Whoever has control listens to nobody's.
    fn may_ring(&self) -> bool {
        let state = *self.tenure.state();
        self.rung < 400 && matches!(state, State::Standby | State::Acquiring)
    }

    /// It rings as it likes: whom, and whether there is anybody, is the instance's to know.
    fn rings(&mut self, ring: Ring) {
        let before = *self.tenure.state();
        self.hear_a_ring(ring);
        self.hear(&Event::Ticked);
        let actions = self.tenure.rang(self.now, ring);
        self.say(|| format!("{before:?} at {ring:?}: {actions:?}"));
        for (at, action) in actions.iter().enumerate() {
            self.judge(at, action, &actions);
            if self.violation.is_some() {
                return;
            }
            self.does(action.clone());
        }
        self.judge_step(&Event::Ticked, before, &actions);
        self.arm();
    }

    /// Another takes the lock, drains, and gives it back.
    fn rival(&mut self) {
        if self.lock.holder != RIVAL {
            if self.rests {
                return;
            }
            let comes = self.rng.u8(0..100) < self.plan.rival;
            if comes && !self.lock.keeps_out(self.now) {
                self.lock.token += 1;
                self.lock.breaking = false;
                (self.lock.holder, self.lock.until) = (RIVAL, Instant::FOREVER);
                self.lock.rival_ends = self.now + self.plan.rival_holds;
                self.lock.draining = false;
                self.say(|| "the rival has it".to_owned());
                let drains = self.lock.rival_ends - self.plan.rival_drains;
                return self.due(drains, Due::Rival);
            }
        } else if self.now < self.lock.rival_ends {
            self.lock.draining = true;
            return self.due(self.lock.rival_ends, Due::Rival);
        } else {
            self.say(|| "the rival gives it back".to_owned());
            self.lock.holder = 0;
        }
        let pause = if self.rng.u8(0..4) == 0 { 40 } else { 8000 };
        let pause = ms(self.rng.u64(1..pause));
        self.due(self.now + pause, Due::Rival);
    }

    /// A lock that wakes its waiters says that it is free.
    fn listens(&mut self) {
        let free = !self.lock.keeps_out(self.now) && self.call.is_none();
        if self.plan.wakes && free && !self.freed_planned && self.tenure.listens() {
            self.freed_planned = true;
            self.due(self.now + self.plan.way, Due::Freed);
        } else if self.plan.wakes
            && self.tenure.listens()
            && self.lock.until > self.now
            && self.lock.until < Instant::FOREVER
            && !self.freed_planned
        {
            self.freed_planned = true;
            self.due(self.lock.until, Due::Freed);
        }
    }

    // --- the driver ---

    pub(crate) fn ask(&mut self, kind: Kind, id: Id, give_up_at: Instant) {
        self.made += 1;
        let call = Call {
            number: self.made,
            kind,
            id,
            sent: self.now,
        };
        let slot = match kind {
            Kind::Record(_) => &mut self.recording,
            Kind::Acquire | Kind::Look | Kind::Renew | Kind::Release => &mut self.call,
        };
        if slot.replace(call).is_some() {
            return self.violate("two calls to the store at once");
        }
        self.due(give_up_at, Due::GivesUp(call.number));
        let way = self.plan.way;
        // What is not ours, or nothing, is not asked for.
        if id == 0 {
            let reply = match kind {
                Kind::Release => Reply::Done,
                _ => Reply::Failed(Failure::Lost {
                    until: None,
                    why: "nothing".to_owned(),
                }),
            };
            return self.due(self.now, Due::Answers(call.number, reply));
        }
        if self.is_busy() {
            let why = "the request before it still hangs".to_owned();
            let busy = Failure::Transient {
                why,
                retry_after: None,
            };
            return self.due(self.now, Due::Answers(call.number, Reply::Failed(busy)));
        }
        self.weather.retain(|(_, until)| self.now < *until);
        let refused = |why: &str, retry_after| {
            let why = why.to_owned();
            Reply::Failed(Failure::Transient { why, retry_after })
        };
        match self.weather.last().map(|(weather, _)| weather.clone()) {
            None => self.due(self.now + way, Due::Arrives(call, Some(way))),
            Some(Weather::RequestsLost) => {}
            Some(Weather::AnswersLost) => self.due(self.now + way, Due::Arrives(call, None)),
            Some(Weather::Slow(span)) => {
                self.due(self.now + way, Due::Arrives(call, Some(span)));
            }
            Some(Weather::Refused(wish)) => {
                self.due(
                    self.now + way * 2,
                    Due::Answers(call.number, refused("503", wish)),
                );
            }
            Some(Weather::Forbidden) => {
                let (why, denied) = ("403".to_owned(), true);
                let reply = Reply::Failed(Failure::Fatal { why, denied });
                self.due(self.now + way * 2, Due::Answers(call.number, reply));
            }
        }
    }

    /// Whether this machine is fit to take control.
    fn answers(&mut self, give_up_at: Instant) {
        let (answer, span) = self.plan.answers[self.asked % 16];
        self.asked += 1;
        // In the end each is, and soon.
        let (answer, span) = match self.rests {
            true => (Ok(()), Some(span.unwrap_or_default().min(ms(100)))),
            false => (answer, span),
        };
        let at = span.map_or(give_up_at, |span| self.now + span);
        let answer = match at < give_up_at {
            true => answer,
            false => Err(Unfit::TimedOut),
        };
        self.due(at.min(give_up_at), Due::Fitness(answer));
    }

    /// Another process, of which nothing is known.
    pub(crate) fn begins_anew(&mut self) {
        (self.call, self.recording, self.withdrawn) = (None, None, None);
        (self.held, self.proposed, self.spent) = (0, 0, 0);
        (self.over, self.freed_planned) = (false, false);
        self.tell(Event::Ticked);
    }

    fn release(&mut self, give_up_at: Instant) {
        let ours = [self.held, self.proposed, self.spent];
        let id = ours.into_iter().find(|id| *id != 0).unwrap_or(0);
        (self.held, self.proposed, self.spent) = (0, 0, id);
        self.ask(Kind::Release, id, give_up_at);
    }

    fn answered(&mut self, number: u64, reply: Reply) {
        let recorded = self.recording.take_if(|call| call.number == number);
        let answered = || self.call.take_if(|call| call.number == number);
        let Some(call) = recorded.or_else(answered) else {
            return;
        };
        let result = match &reply {
            Reply::Failed(failure) => Err(failure.clone()),
            Reply::Done | Reply::Granted(_) => Ok(()),
        };
        match call.kind {
            Kind::Acquire => {
                if matches!(reply, Reply::Granted(_)) {
                    self.drive.iter_mut().for_each(|drive| drive.granted = true);
                    (self.held, self.proposed) = (call.id, 0);
                }
                if let Some(give_up_at) = self.withdrawn.take() {
                    return self.release(give_up_at);
                }
                self.tell(Event::Acquired(match reply {
                    Reply::Granted(grant) => Ok(grant),
                    Reply::Done => unreachable!("an attempt is granted or fails"),
                    Reply::Failed(failure) => Err(failure),
                }));
            }
            Kind::Renew => {
                if matches!(
                    result,
                    Err(Failure::Lost { until: None, .. } | Failure::Held(_))
                ) {
                    self.held = 0;
                }
                let t0 = call.sent;
                self.tell(Event::Renewed { t0, reply: result });
            }
            Kind::Record(_) => self.tell(Event::Recorded(result)),
            Kind::Look => self.tell(Event::Looked(result)),
            Kind::Release => {
                if !matches!(result, Err(Failure::Transient { .. })) {
                    self.spent = 0;
                }
                self.tell(Event::Released(result));
            }
        }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.monitor_hears(&event);
        if self.over || self.violation.is_some() {
            return;
        }
        if event != Event::Ticked && self.plan.ticks_first {
            self.has_news = true;
            self.step(Event::Ticked);
            self.has_news = false;
        }
        self.step(event);
        self.arm();
    }

    fn arm(&mut self) {
        if self.tenure.ending().is_some() {
            self.over = true;
            (self.call, self.recording) = (None, None);
            return;
        }
        self.armed += 1;
        let (wake_at, armed) = (self.tenure.wake_at(), self.armed);
        if wake_at < Instant::FOREVER {
            self.due(wake_at, Due::Wake(armed));
        }
    }

    fn step(&mut self, event: Event) {
        if self.over || self.violation.is_some() || self.tenure.ending().is_some() {
            return;
        }
        if self.steps.0 != self.now {
            self.steps = (self.now, 0);
        }
        self.steps.1 += 1;
        if self.steps.1 > STEPS {
            return self.violate("it loops");
        }
        let before = *self.tenure.state();
        self.hear(&event);
        let actions = self.tenure.step(self.now, event.clone());
        let after = *self.tenure.state();
        self.say(|| format!("{before:?} -> {after:?} at {event:?}: {actions:?}"));
        for (at, action) in actions.iter().enumerate() {
            self.judge(at, action, &actions);
            if self.violation.is_some() {
                return;
            }
            self.does(action.clone());
        }
        self.judge_step(&event, before, &actions);
    }

    fn does(&mut self, action: Action) {
        match action {
            Action::Acquire { give_up_at } => {
                if std::mem::take(&mut self.held) != 0 {
                    self.proposed = 0;
                }
                self.spent = 0;
                if self.proposed == 0 {
                    self.ids += 1;
                    self.proposed = self.ids;
                }
                self.ask(Kind::Acquire, self.proposed, give_up_at);
            }
            Action::Withdraw { give_up_at } => {
                self.withdrawn = Some(give_up_at);
                let number = self.call.map_or(0, |call| call.number);
                self.due(give_up_at, Due::Undo(number));
            }
            Action::Renew { give_up_at } => self.ask(Kind::Renew, self.held, give_up_at),
            Action::Record {
                outcome,
                give_up_at,
            } => {
                self.ask(Kind::Record(outcome), self.held, give_up_at);
            }
            Action::Release { give_up_at } => {
                (self.call, self.recording) = (None, None);
                self.release(give_up_at);
            }
            Action::Abandon => {
                (self.call, self.recording) = (None, None);
                // A lock without a lease lasts as long as a descriptor is open.
                if self.plan.rules.budget.is_none() && self.lock.holder != RIVAL {
                    self.lock.holder = 0;
                }
            }
            Action::Start(start) => {
                self.tenures += 1;
                self.order(Order::Start(start.deadlines));
            }
            Action::Extend(deadlines) => self.order(Order::Extend(deadlines)),
            Action::Drain {
                signal,
                end_of_grace,
            } => {
                self.stops_watching();
                self.order(Order::Drain(signal, end_of_grace));
            }
            Action::Kill => {
                self.stops_watching();
                self.order(Order::Kill);
            }
            Action::Ask { give_up_at } => self.answers(give_up_at),
            Action::Look { give_up_at } => self.ask(Kind::Look, READER, give_up_at),
            Action::Announce
            | Action::Attend { .. }
            | Action::StandBy
            | Action::TenureOver { .. }
            | Action::Notify(_) => {}
        }
    }

    // --- the guardian and the command ---

    /// What a frame takes; nothing where moments are to meet.
    fn lag(&mut self) -> Duration {
        let lag = ms(self.rng.u64(0..3));
        lag * u32::from(!self.plan.way.is_zero())
    }

    fn order(&mut self, order: Order) {
        let way = self.lag();
        self.order_at = self.order_at.max(self.now + way);
        self.due(self.order_at, Due::Ordered(order));
    }

    fn news(&mut self, event: WorkloadEvent) {
        let way = self.lag();
        self.news_at = self.news_at.max(self.now + way);
        self.due(self.news_at, Due::News(event));
    }

    fn ordered(&mut self, order: Order) {
        if !self.guardian_lives {
            return;
        }
        match order {
            Order::Start(deadlines) => self.starts(deadlines),
            Order::Extend(deadlines) => self.feed(Input::Extended(deadlines)),
            Order::Drain(signal, end_of_grace) => {
                self.feed(Input::DrainAsked {
                    signal,
                    end_of_grace,
                });
            }
            Order::Kill => self.feed(Input::KillAsked),
        }
    }

    fn starts(&mut self, deadlines: Deadlines) {
        let at = self.now;
        let habit = self.plan.habit.clone();
        let percent = |rng: &mut Rng, of: u8| rng.u8(0..100) < of;
        if percent(&mut self.rng, habit.hook_failed) {
            let span = ms(self.rng.choice([0, 100, 2500, 40_000]).expect("a choice"));
            return self.due(at + span, Due::HookFails);
        }
        if at >= deadlines.first() || percent(&mut self.rng, habit.not_started) {
            return self.news(WorkloadEvent::NotStarted { errno: 2 });
        }
        self.generations += 1;
        let generation = self.generations;
        self.tree = Some(Tree {
            generation,
            id: self.held,
            main: true,
            rest: percent(&mut self.rng, habit.daemon),
            deaf: percent(&mut self.rng, habit.deaf),
            exit_told: false,
            silent: percent(&mut self.rng, habit.silent),
        });
        self.judge_birth();
        let stop_signal = self.plan.rules.stop_signal;
        self.feed(Input::Forked {
            deadlines,
            stop_signal,
            pid: 1,
        });
        self.feed(Input::Executed);
        self.speaks(generation, 0);
        if let Some(lives) = habit
            .lives
            .filter(|_| !self.rests || !generation.is_multiple_of(3))
        {
            let exit = habit.exits[(generation % 8) as usize];
            self.due(at + lives, Due::MainEnds(generation, exit));
        }
    }

    fn feed(&mut self, input: Input) {
        if !self.guardian_lives {
            return;
        }
        let steps = self.guardian.step(self.now, input);
        let ends_within = self.plan.habit.ends_within;
        for step in steps.iter() {
            match step {
                Step::Tell(event) => self.news(event),
                Step::SignalGroup(signal) => {
                    if let Some(tree) = self.tree.as_ref().filter(|tree| !tree.deaf) {
                        let ends = Due::MainEnds(tree.generation, Exit::Signal(signal));
                        self.due(self.now + ends_within, ends);
                    }
                }
                Step::TermRest => {
                    if let Some(tree) = self.tree.as_ref().filter(|tree| !tree.deaf) {
                        let ends = Due::RestEnds(tree.generation);
                        self.due(self.now + ends_within, ends);
                    }
                }
                Step::Kill if self.stuck && self.dies_within.is_none() => {}
                Step::Kill => {
                    if let Some(tree) = &self.tree {
                        let generation = tree.generation;
                        let soon = ms(self.rng.u64(0..100));
                        let at = self.now + self.dies_within.unwrap_or(soon);
                        self.due(at, Due::MainEnds(generation, Exit::Signal(9)));
                        self.due(at, Due::RestEnds(generation));
                    }
                }
                Step::Depart => {}
            }
        }
        let next = self.guardian.next();
        if next < Instant::FOREVER {
            self.due(next, Due::Guardian);
        }
    }

    /// The guardian sees who is left.
    fn children(&mut self, exit: Exit) {
        let Some(tree) = &mut self.tree else { return };
        if tree.main {
            return;
        }
        let (told, rest) = (std::mem::replace(&mut tree.exit_told, true), tree.rest);
        let silent = tree.silent;
        if !told && (!silent || rest) {
            self.feed(Input::MainExited(exit));
        }
        if rest {
            self.feed(Input::OthersLive);
        } else {
            self.tree = None;
            self.feed(Input::Emptied);
        }
    }
}
