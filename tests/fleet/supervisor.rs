//! The supervisor of a pair: `src/driver.rs` and `src/guardian/handle.rs`, step by step.

use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use trafficcop::Instant;
use trafficcop::internals::core::{
    Action, Event, Exit, Failure, Notice, Start, State, WorkloadEvent,
};
use trafficcop::internals::guardian::liveness::Beat;
use trafficcop::internals::guardian::wire::{Event as WireEvent, FRAME, Request};

use super::clock::{MILLI, SECOND, Time};
use super::pair::{Answer, Attendance, Life, Told, Word};
use super::world::{From, Happening, World};

const ANNOUNCE: Duration = Duration::from_secs(5);
const UNDO: Duration = Duration::from_secs(2);
/// More steps than this in one second of true time are a busy loop.
const STEPS: u32 = 150;

impl World {
    /// One turn of the loop in `hold`, as often as something is ready.
    pub(crate) fn supervise(&mut self, p: usize) {
        let pair = &self.pairs[p];
        let machine = &self.machines[pair.machine];
        if pair.supervisor != Life::Runs || machine.suspended.is_some() || !pair.competes() {
            return;
        }
        let now = machine.clock.at(self.now);
        pair.desk.now.set(now);
        loop {
            if let Some(ending) = self.pairs[p].tenure.ending() {
                let ending = ending.clone();
                self.say(|| format!("#{p} is done: {ending:?}"));
                self.ended(p, ending);
                return;
            }
            if self.violation.is_some() {
                return;
            }
            // The order of the looks is that of `hold`.
            if let Some(word) = self.pairs[p].signals.pop_front() {
                self.asked(p, now, word);
            } else if let Some(news) = self.news(p, now) {
                self.heard(p, now, news);
            } else if let Some(answer) = self.answer(p) {
                self.answered(p, now, answer);
            } else if now >= self.wake_at(p) {
                self.woke(p, now);
            } else {
                break;
            }
        }
        self.send(p, From::Supervisor);
        self.arm(p);
    }

    fn wake_at(&self, p: usize) -> Instant {
        let pair = &self.pairs[p];
        pair.tenure
            .wake_at()
            .min(pair.withdrawn.unwrap_or(Instant::FOREVER))
    }

    fn arm(&mut self, p: usize) {
        let mut at = self.wake_at(p);
        let pair = &self.pairs[p];
        let now = pair.desk.now.get();
        let machine = pair.machine;
        for wake in pair.desk.wakes.take() {
            // Those of calls have a timer of their own.
            let (clock, slept) = (self.machines[machine].clock, self.machines[machine].slept);
            let at = clock.when(wake).saturating_add(self.lag());
            self.sequence_plan(at, Happening::Supervisor(p, slept));
        }
        let pair = &self.pairs[p];
        if self.feels_pulse(p) {
            at = at.min(now + pair.pulse.next(now));
            if now < pair.kill_at {
                at = at.min(pair.kill_at);
            }
        }
        let machine = &self.machines[pair.machine];
        let (slept, at) = (machine.slept, machine.clock.when(at));
        if at == Time::MAX || at == pair.armed {
            return;
        }
        self.pairs[p].armed = at;
        let lag = self.lag();
        self.plan(at + lag, Happening::Supervisor(p, slept));
    }

    // --- hold ---

    fn step(&mut self, p: usize, now: Instant, event: Event) {
        let second = self.now / SECOND;
        let pair = &mut self.pairs[p];
        if pair.second != second {
            (pair.second, pair.steps) = (second, 0);
        }
        pair.steps += 1;
        if pair.steps > STEPS {
            let state = *pair.tenure.state();
            self.violate(format!("#{p} loops in {state:?}"));
            return;
        }
        let before = *pair.tenure.state();
        let actions = pair.tenure.step(now, event);
        let after = *pair.tenure.state();
        if before != after {
            self.say(|| format!("#{p}: {before:?} -> {after:?}"));
        }
        self.act_on(p, now, actions);
        if before != after && matches!(after, State::Standby | State::Acquiring) {
            self.competes_again(p);
        }
    }

    fn tell(&mut self, p: usize, now: Instant, event: Event) {
        if event != Event::Ticked {
            self.step(p, now, Event::Ticked);
        }
        self.step(p, now, event);
    }

    fn asked(&mut self, p: usize, now: Instant, word: Word) {
        match word {
            Word::Stop(signal) => self.tell(p, now, Event::StopAsked(signal)),
            Word::Cordon(Some(cordon)) => {
                // What was due before it was told is no fault of the one who did not know.
                self.step(p, now, Event::Ticked);
                self.hears_of_a_cordon(p);
                self.step(p, now, Event::Cordoned(cordon));
            }
            Word::Cordon(None) => {
                self.pairs[p].cordoned = None;
                self.tell(p, now, Event::Uncordoned);
            }
        }
    }

    fn heard(&mut self, p: usize, now: Instant, news: WorkloadEvent) {
        self.tell(p, now, Event::Workload(news));
    }

    fn answered(&mut self, p: usize, now: Instant, answer: Answer) {
        let pair = &mut self.pairs[p];
        match answer {
            Answer::Acquired(reply) => {
                pair.acquiring = false;
                match pair.withdrawn.take() {
                    Some(give_up_at) => self.undo(p, give_up_at),
                    None => self.tell(p, now, Event::Acquired(reply)),
                }
            }
            Answer::Renewed { t0, reply } => {
                if let Err(Failure::Lost { until, .. }) = &reply {
                    let clock = self.machines[pair.machine].clock;
                    let told = Told {
                        at: self.now,
                        until: until.map_or(0, |until| clock.when(until)),
                    };
                    self.pairs[p].told_lost.push(told);
                }
                self.tell(p, now, Event::Renewed { t0, reply });
            }
            Answer::Released(reply) => {
                // Later it can have run out and been taken, and says nothing.
                let budget = &self.schedule.budget;
                let term_after = budget.lease - budget.margin - budget.grace_on_loss;
                let left = budget.lease - budget.lease / 50;
                if matches!(reply, Err(Failure::Lost { .. }))
                    && now < pair.told_term_at + (left - term_after)
                {
                    let at = self.now;
                    pair.told_lost.push(Told { at, until: 0 });
                }
                self.tell(p, now, Event::Released(reply));
            }
            Answer::Announced => {}
        }
    }

    fn woke(&mut self, p: usize, now: Instant) {
        let pair = &mut self.pairs[p];
        if pair.withdrawn.is_some_and(|give_up_at| now >= give_up_at) {
            pair.withdrawn = None;
            pair.acquiring = false;
            pair.calls.clear();
            self.undo(p, now + UNDO);
        }
        self.tell(p, now, Event::Ticked);
    }

    fn undo(&mut self, p: usize, give_up_at: Instant) {
        let store = Rc::clone(&self.pairs[p].store);
        self.pairs[p].calls.push(Box::pin(async move {
            Answer::Released(store.release(give_up_at).await)
        }));
    }

    fn answer(&mut self, p: usize) -> Option<Answer> {
        let mut context = Context::from_waker(Waker::noop());
        let pair = &mut self.pairs[p];
        for at in 0..pair.calls.len() {
            if let Poll::Ready(answer) = pair.calls[at].as_mut().poll(&mut context) {
                drop(pair.calls.remove(at));
                if pair.calls.is_empty() {
                    pair.desk.forget();
                }
                return Some(answer);
            }
        }
        None
    }

    fn act_on(&mut self, p: usize, now: Instant, actions: Vec<Action>) {
        for action in actions {
            let pair = &mut self.pairs[p];
            let store = Rc::clone(&pair.store);
            match action {
                Action::Acquire { give_up_at } => {
                    if pair.cordoned.is_some() {
                        return self.violate(format!("#{p} competes on a cordoned machine"));
                    }
                    pair.acquiring = true;
                    pair.calls.push(Box::pin(async move {
                        Answer::Acquired(store.acquire(give_up_at).await)
                    }));
                }
                Action::Withdraw { give_up_at } => pair.withdrawn = Some(give_up_at),
                Action::Renew { give_up_at } => {
                    let desk = Rc::clone(&pair.desk);
                    pair.calls.push(Box::pin(async move {
                        let t0 = desk.now.get();
                        Answer::Renewed {
                            t0,
                            reply: store.renew(give_up_at).await,
                        }
                    }));
                }
                Action::Start(start) => {
                    if pair.cordoned.is_some() {
                        return self.violate(format!("#{p} starts on a cordoned machine"));
                    }
                    pair.cordon_heard = false;
                    pair.had_control = true;
                    pair.told_lost.clear();
                    self.start(p, start);
                }
                Action::Extend(deadlines) => {
                    pair.told_term_at = deadlines.term_at;
                    self.pairs[p].kill_at = deadlines.kill_at;
                    self.pairs[p].told_at = self.now;
                    self.demand(p, Request::Extend(deadlines), &[]);
                }
                Action::Drain {
                    signal,
                    end_of_grace,
                } => {
                    self.demand(
                        p,
                        Request::Drain {
                            signal,
                            end_of_grace,
                        },
                        &[],
                    );
                }
                Action::Kill => self.demand(p, Request::Kill, &[]),
                Action::Record { .. } => unreachable!("no task in the fleet"),
                Action::Announce => {
                    let give_up_at = now + ANNOUNCE;
                    pair.calls.push(Box::pin(async move {
                        let _ = store.announce(give_up_at).await;
                        Answer::Announced
                    }));
                }
                Action::Release { give_up_at } => {
                    pair.calls.clear();
                    if pair.tree_lives() && pair.attendance != Attendance::Over {
                        self.violate(format!("#{p} releases while its tree lives"));
                        return;
                    }
                    self.demand(p, Request::SetReleaseInfo { release_info: 0 }, &[]);
                    self.undo(p, give_up_at);
                }
                Action::Abandon => {
                    pair.calls.clear();
                    pair.desk.forget();
                    self.demand(p, Request::SetReleaseInfo { release_info: 0 }, &[]);
                }
                Action::StandBy | Action::Attend { .. } | Action::TenureOver { .. } => {}
                Action::Notify(notice) => self.noticed(p, &notice),
            }
        }
    }

    fn noticed(&mut self, p: usize, notice: &Notice) {
        self.say(|| format!("#{p} says {notice:?}"));
        self.pairs[p].said_overlap |= *notice == Notice::Overlapped;
    }

    // --- the handle ---

    fn start(&mut self, p: usize, start: Start) {
        let Start {
            deadlines, token, ..
        } = start;
        let term_at = deadlines.term_at;
        let pair = &mut self.pairs[p];
        if pair.attendance != Attendance::Well {
            return pair.inbox.push_back(WorkloadEvent::NotStarted { errno: 3 });
        }
        if pair.busy {
            return self.violate(format!("#{p} starts a command beside another"));
        }
        pair.busy = true;
        pair.pulse.starts();
        pair.kill_at = deadlines.kill_at;
        pair.told_at = self.now;
        pair.told_term_at = term_at;
        let budget = &self.schedule.budget;
        let t0 = term_at - (budget.lease - budget.margin - budget.grace_on_loss);
        if pair.desk.now.get().since(t0) > budget.lease / 2 {
            self.violate(format!("#{p} starts under a lease of which half is gone"));
            return;
        }
        let pair = &mut self.pairs[p];
        let mut payload = token.to_le_bytes().to_vec();
        payload.extend(pair.store.release_info().unwrap_or(0).to_le_bytes());
        let start = Request::Start {
            program: 0,
            in_control: true,
            deadlines,
            stop_signal: 15,
            env: 8,
            release_info: 8,
            lock: false,
            input: false,
        };
        self.demand(p, start, &payload);
    }

    fn demand(&mut self, p: usize, demand: Request, payload: &[u8]) {
        let pair = &mut self.pairs[p];
        if pair.attendance != Attendance::Well || pair.guardian == Life::Dead {
            return;
        }
        pair.to_guardian.extend_from_slice(&demand.encode());
        pair.to_guardian.extend_from_slice(payload);
        let at = self.now + self.lag();
        self.plan(at, Happening::Guardian(p));
    }

    /// While the guardian runs it answers every ping: only else is its pulse worth following.
    fn feels_pulse(&self, p: usize) -> bool {
        let pair = &self.pairs[p];
        pair.attendance == Attendance::Well
            && pair.busy
            && (pair.guardian != Life::Runs || !pair.pulse.is_answered())
    }

    fn news(&mut self, p: usize, now: Instant) -> Option<WorkloadEvent> {
        self.read(p);
        if let Some(news) = self.pairs[p].inbox.pop_front() {
            return Some(news);
        }
        match self.pairs[p].attendance {
            Attendance::Well => {
                if self.feels_pulse(p) {
                    let pair = &mut self.pairs[p];
                    let beat = if now >= pair.kill_at {
                        match pair.pulse.hurry(now) {
                            Beat::Quiet => pair.pulse.look(now),
                            beat => beat,
                        }
                    } else {
                        pair.pulse.look(now)
                    };
                    match beat {
                        Beat::Quiet => {}
                        Beat::Ping(seq) => self.demand(p, Request::Ping(seq), &[]),
                        Beat::Silent => {
                            self.say(|| format!("#{p}: the guardian is silent"));
                            self.lose(p);
                            return self.pairs[p].inbox.pop_front();
                        }
                    }
                }
                None
            }
            Attendance::Lost => {
                if self.pairs[p].tree_lives() {
                    self.kill_tree(p);
                    return None;
                }
                self.pairs[p].tree = None;
                self.pairs[p].attendance = Attendance::Over;
                Some(WorkloadEvent::TreeEmpty { at: now })
            }
            Attendance::Over => None,
        }
    }

    fn read(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        if pair.attendance != Attendance::Well {
            return;
        }
        let bytes = std::mem::take(&mut pair.to_supervisor);
        for frame in bytes.as_chunks::<FRAME>().0 {
            let news = match WireEvent::decode(frame).expect("the guardian is of sound mind") {
                WireEvent::Pong(seq) => {
                    pair.pulse.answered(seq);
                    continue;
                }
                WireEvent::Workload(news) => news,
                WireEvent::Ready | WireEvent::Unready { .. } => {
                    unreachable!("it is ready long since")
                }
            };
            match news {
                WorkloadEvent::Started { .. } => pair.pulse.started(),
                WorkloadEvent::NotStarted { .. } | WorkloadEvent::TreeEmpty { .. } => {
                    pair.busy = false;
                }
                _ => {}
            }
            pair.inbox.push_back(news);
        }
        if pair.guardian == Life::Dead {
            self.lose(p);
        }
    }

    fn lose(&mut self, p: usize) {
        self.guardian_dies(p);
        let pair = &mut self.pairs[p];
        pair.busy = false;
        pair.attendance = Attendance::Lost;
        pair.inbox.push_back(WorkloadEvent::Lost);
        self.kill_tree(p);
    }

    // --- deaths ---

    pub(crate) fn supervisor_dies(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        if !pair.competes() {
            return;
        }
        pair.supervisor = Life::Dead;
        pair.calls.clear();
        let at = self.now + self.lag();
        self.plan(at, Happening::Guardian(p));
        self.restart_later(self.pairs[p].machine);
    }

    /// Its death kills the main process; what else there is becomes the supervisor's, or init's.
    pub(crate) fn guardian_dies(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        if pair.guardian == Life::Dead {
            return;
        }
        pair.guardian = Life::Dead;
        pair.on_orphaned = None;
        pair.to_guardian.clear();
        if let Some(tree) = pair.tree.as_ref().filter(|tree| tree.main) {
            let generation = tree.generation;
            let at = self.now + self.lag();
            self.plan(at, Happening::MainDies(p, generation, Exit::Signal(9)));
        }
        self.wake_supervisor(p);
    }

    /// SIGKILL to everything; on a busy machine that takes a moment.
    pub(crate) fn kill_tree(&mut self, p: usize) {
        let Some(tree) = &mut self.pairs[p].tree else {
            return;
        };
        if std::mem::replace(&mut tree.killed, true) {
            return;
        }
        let (generation, main, daemon) = (tree.generation, tree.main, tree.daemon);
        if main {
            let at = self.now + self.rng.u64(1..100) * MILLI;
            self.plan(at, Happening::MainDies(p, generation, Exit::Signal(9)));
        }
        if daemon {
            let at = self.now + self.rng.u64(1..100) * MILLI;
            self.plan(at, Happening::DaemonDies(p, generation));
        }
    }

    pub(crate) fn sequence_plan(&mut self, at: Time, what: Happening) {
        if at != Time::MAX {
            self.plan(at, what);
        }
    }
}
