//! The supervisor of an instance: the loop of the driver, with one worker thread for the share.

use std::rc::Rc;
use std::time::Duration;

use trafficcop::Instant;
use trafficcop::internals::core::{Action, Deadlines, Event, Failure, Start, State};

use super::clock::{SECOND, Time};
use super::instance::{Answer, Lane, Wanted};
use super::world::{Happening, World};

const ANNOUNCE: Duration = Duration::from_secs(5);
const UNDO: Duration = Duration::from_secs(2);
/// More steps than this in one second of true time are a busy loop.
const STEPS: u32 = 150;

fn stalled() -> Failure {
    Failure::Transient {
        why: "no answer".to_owned(),
        retry_after: None,
    }
}

impl World {
    fn stands_still(&self, p: usize) -> bool {
        let instance = &self.instances[p];
        !instance.competes()
            || instance.stopped
            || self.machines[instance.machine].suspended.is_some()
    }

    /// The present moment, as an instance reads it.
    pub(crate) fn clock(&self, p: usize) -> Instant {
        self.machines[self.instances[p].machine].clock.at(self.now)
    }

    /// One turn of the driver's loop, as often as something is ready.
    pub(crate) fn supervise(&mut self, p: usize) {
        if self.stands_still(p) {
            return;
        }
        let now = self.clock(p);
        while self.violation.is_none() {
            let instance = &mut self.instances[p];
            if instance.tenure.ending().is_some() {
                return self.ended(p);
            }
            if let Some((wanted, give_up_at)) = instance.wanted
                && now >= give_up_at
            {
                self.gives_up(p, now, wanted);
            } else if let Some(event) = instance.inbox.pop_front() {
                if event != Event::Ticked {
                    self.step(p, now, Event::Ticked);
                }
                self.judge_news(p, &event);
                self.step(p, now, event);
            } else if now >= instance.tenure.wake_at() {
                self.step(p, now, Event::Ticked);
            } else {
                break;
            }
        }
        self.arm(p);
    }

    fn arm(&mut self, p: usize) {
        let instance = &self.instances[p];
        let limit = instance.wanted.map_or(Instant::FOREVER, |(_, at)| at);
        let at = instance.tenure.wake_at().min(limit);
        let at = self.machines[instance.machine].clock.when(at);
        if at == Time::MAX || at == instance.armed {
            return;
        }
        self.instances[p].armed = at;
        let lag = self.lag();
        self.plan(at + lag, Happening::Supervisor(p));
    }

    fn step(&mut self, p: usize, now: Instant, event: Event) {
        let second = self.now / SECOND;
        let instance = &mut self.instances[p];
        if instance.steps.0 != second {
            instance.steps = (second, 0);
        }
        instance.steps.1 += 1;
        if instance.steps.1 > STEPS {
            return self.violate(format!("#{p} loops"));
        }
        let before = *instance.tenure.state();
        let heard = self.trace.is_some().then(|| format!("{event:?}"));
        let actions = instance.tenure.step(now, event);
        let after = *instance.tenure.state();
        if before != after {
            self.say(|| {
                format!(
                    "#{p}: {before:?} -> {after:?} at {}",
                    heard.unwrap_or_default()
                )
            });
        }
        for action in actions {
            self.act_on(p, now, action, after);
        }
    }

    fn act_on(&mut self, p: usize, now: Instant, action: Action, state: State) {
        match action {
            Action::Acquire { give_up_at } => self.want(p, now, Wanted::Acquire, give_up_at),
            Action::Withdraw { give_up_at } => {
                if let Some((wanted, at)) = &mut self.instances[p].wanted {
                    (*wanted, *at) = (Wanted::Withdrawn, give_up_at);
                } else {
                    self.want(p, now, Wanted::Release, give_up_at);
                }
            }
            Action::Renew { give_up_at } => {
                self.want(p, now, Wanted::Renew { t0: now }, give_up_at);
            }
            Action::Announce => self.want(p, now, Wanted::Announce, now + ANNOUNCE),
            Action::Release { give_up_at } => {
                if self.instances[p].command.is_some() {
                    return self.violate(format!("#{p} releases while its command lives"));
                }
                self.want(p, now, Wanted::Release, give_up_at);
            }
            Action::Abandon => self.instances[p].wanted = None,
            Action::Start(Start {
                deadlines: Deadlines { term_at, kill_at },
                token,
                ..
            }) => self.start(p, term_at, kill_at, token),
            Action::Extend(Deadlines { term_at, kill_at }) => {
                let instance = &mut self.instances[p];
                (instance.term_at, instance.kill_at) = (term_at, kill_at);
                instance.told_at = self.now;
                self.guard(p);
            }
            Action::Drain { end_of_grace, .. } => {
                self.instances[p].end_of_grace = end_of_grace;
                self.term(p);
                self.guard(p);
            }
            Action::Kill => self.kill_command(p),
            Action::Record { .. } | Action::Ask { .. } | Action::Look { .. } => {
                unreachable!("no task and no condition in this fleet")
            }
            Action::StandBy | Action::Attend { .. } | Action::TenureOver { .. } => {}
            Action::Notify(notice) => self.say(|| format!("#{p} ({state:?}) says {notice:?}")),
        }
    }

    /// Has the worker do something, unless it is still at what nobody waits for any more.
    fn want(&mut self, p: usize, now: Instant, wanted: Wanted, give_up_at: Instant) {
        let instance = &mut self.instances[p];
        if instance.worker.job.is_some() {
            let occupied = Err(stalled());
            return match wanted {
                Wanted::Announce => {}
                Wanted::Acquire | Wanted::Withdrawn => {
                    instance.inbox.push_back(Event::Acquired(Err(stalled())));
                }
                Wanted::Renew { t0 } => instance.inbox.push_back(Event::Renewed {
                    t0,
                    reply: occupied,
                }),
                Wanted::Release => instance.inbox.push_back(Event::Released(occupied)),
            };
        }
        let store = instance.store.clone();
        instance.wanted = Some((wanted, give_up_at));
        instance.worker.job = Some(match wanted {
            Wanted::Acquire | Wanted::Withdrawn => {
                Box::pin(async { Answer::Acquired(store.acquire().await) })
            }
            Wanted::Renew { .. } | Wanted::Announce => {
                Box::pin(async { Answer::Renewed(store.renew().await) })
            }
            Wanted::Release => {
                Box::pin(async move { Answer::Released(store.release(give_up_at).await) })
            }
        });
        self.instances[p].worker.desk.now.set(now);
        self.go_on(p, Lane::Worker);
    }

    /// Nobody waits for the worker any more; it goes on all the same.
    fn gives_up(&mut self, p: usize, now: Instant, wanted: Wanted) {
        self.go_on(p, Lane::Worker);
        let instance = &mut self.instances[p];
        if instance.wanted.take().is_none() {
            return;
        }
        let event = match wanted {
            Wanted::Announce => return,
            Wanted::Acquire => Event::Acquired(Err(stalled())),
            Wanted::Withdrawn => return self.want(p, now, Wanted::Release, now + UNDO),
            Wanted::Renew { t0 } => Event::Renewed {
                t0,
                reply: Err(stalled()),
            },
            Wanted::Release => Event::Released(Err(stalled())),
        };
        self.instances[p].inbox.push_back(event);
    }

    /// A thread goes on as far as it goes.
    pub(crate) fn go_on(&mut self, p: usize, lane: Lane) {
        let now = self.clock(p);
        let instance = &mut self.instances[p];
        if lane != Lane::Guardian && (instance.stopped || !instance.lives) {
            return;
        }
        let (request, answer) = instance.thread(lane).go_on(now);
        if let Some(request) = request {
            self.send(p, lane, request);
        }
        match lane {
            Lane::Worker => {
                if let Some(answer) = answer {
                    self.answered(p, answer);
                }
                self.write_behind(p);
            }
            Lane::Writer => {
                // Somebody may wait for what was written.
                if self.instances[p].worker.desk.reply.borrow().is_none()
                    && matches!(self.instances[p].wanted, Some((Wanted::Release, _)))
                {
                    self.go_on(p, Lane::Worker);
                }
                self.write_behind(p);
            }
            Lane::Guardian if answer.is_some() => self.instances[p].guardian = false,
            Lane::Guardian => {}
        }
    }

    fn write_behind(&mut self, p: usize) {
        let instance = &mut self.instances[p];
        if instance.writer.job.is_some() || instance.store.records.borrow().is_empty() {
            return;
        }
        let store = instance.store_at(&instance.writer.desk);
        instance.writer.job = Some(Box::pin(async {
            store.write_behind().await;
            Answer::Nothing
        }));
        self.go_on(p, Lane::Writer);
    }

    fn answered(&mut self, p: usize, answer: Answer) {
        let now = self.clock(p);
        let instance = &mut self.instances[p];
        let Some((wanted, _)) = instance.wanted.take() else {
            // What a granted tenure would begin with, nobody waited for.
            if matches!(answer, Answer::Acquired(Ok(_))) {
                instance.store.state.borrow_mut().tenure = false;
            }
            return;
        };
        let event = match (wanted, answer) {
            (Wanted::Withdrawn, _) => return self.want(p, now, Wanted::Release, now + UNDO),
            (Wanted::Renew { t0 }, Answer::Renewed(reply)) => {
                let late =
                    instance.store.protocol.mutation == Some(super::protocol::Mutation::T0After);
                Event::Renewed {
                    t0: if late { now } else { t0 },
                    reply,
                }
            }
            (_, Answer::Acquired(reply)) => Event::Acquired(reply),
            (_, Answer::Released(reply)) => Event::Released(reply),
            _ => return,
        };
        instance.inbox.push_back(event);
        let at = self.now + self.lag();
        self.plan(at, Happening::Supervisor(p));
    }

    fn ended(&mut self, p: usize) {
        let instance = &mut self.instances[p];
        instance.done = true;
        instance.wanted = None;
        {
            let state = instance.store.state.borrow();
            if !state.tenure {
                instance.store.stamps.set(state.observed.seen());
            }
        }
        // The process is gone, and its threads with it.
        instance.lives = false;
        instance.guardian = false;
        let machine = instance.machine;
        let lives = instance.command.is_some();
        let ending = instance.tenure.ending().cloned();
        self.say(|| format!("#{p} is done: {ending:?}"));
        if lives {
            self.violate(format!("#{p} ends while its command lives"));
        }
        self.restart_later(machine);
    }

    /// The supervisor is killed: what it has asked the share goes on its way.
    pub(crate) fn supervisor_dies(&mut self, p: usize) {
        let instance = &mut self.instances[p];
        instance.lives = false;
        instance.orphaned = true;
        instance.worker.job = None;
        instance.writer.job = None;
        let at = self.now + self.lag();
        self.plan(at, Happening::Guardian(p));
    }

    pub(crate) fn tell(&mut self, p: usize, event: Event) {
        self.instances[p].inbox.push_back(event);
        let at = self.now + self.lag();
        self.plan(at, Happening::Supervisor(p));
    }

    /// A store of the guardian's own, as the supervisor left it.
    pub(crate) fn last_store(&self, p: usize) -> Option<super::store::Store> {
        let instance = &self.instances[p];
        let observed = instance.store.memory.borrow().clone()?;
        let mut store = instance.store_at(&instance.last_job.desk);
        let nonce = observed.claim(false).nonce;
        let mut progress = super::store::Progress::new(nonce, store.lease);
        progress.observed = observed;
        store.state = Rc::new(progress.into());
        Some(store)
    }
}
