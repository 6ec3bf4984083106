use trafficcop::Instant;
use trafficcop_core::{Bell, Event, Failure, Grant, HolderInfo, Ring, State, TaskResult};

use super::{BEGIN, Call, Due, Id, Kind, RIVAL, Reply, World};
use crate::alone::plan::ms;

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
    pub(super) fn new() -> Lock {
        Lock {
            holder: 0,
            until: Instant::FOREVER,
            breaking: false,
            token: 0,
            failed: 0,
            over: false,
            draining: false,
            rival_ends: Instant::FOREVER,
        }
    }

    pub(crate) fn keeps_out(&self, now: Instant) -> bool {
        self.holder != 0 && now < self.until
    }
}

impl World {
    /// Returns until when the lock counts a lease that begins now, by the fastest possible clock.
    pub(crate) fn until(&self) -> Instant {
        let lease = self.plan.rules.budget.map(|budget| budget.lease);
        lease.map_or(Instant::FOREVER, |lease| self.now + (lease - lease / 50))
    }

    fn is_done(&self) -> bool {
        let by_another = self.plan.done_by_another;
        self.lock.over || by_another.is_some_and(|at| self.now >= BEGIN + at)
    }

    pub(super) fn serves(&mut self, call: Call) -> Reply {
        let (now, id) = (self.now, call.id);
        let ours = self.lock.holder == id && !self.lock.breaking;
        let lost = |until| {
            let why = "not ours".to_owned();
            Reply::Failed(Failure::Lost { until, why })
        };
        match call.kind {
            Kind::Acquire => {
                if self.is_done() {
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
                if self.is_done() {
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
            // The lock is free, so an earlier request was carried out.
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

    pub(super) fn result(&self) -> TaskResult {
        TaskResult {
            status: 3,
            holder: "rival".to_owned(),
            at: String::new(),
            token: 1,
        }
    }

    pub(super) fn holder(&self) -> HolderInfo {
        if self.lock.holder != RIVAL {
            return HolderInfo::default();
        }
        let draining = self.lock.draining;
        HolderInfo {
            holder: Some("rival".to_owned()),
            token: Some(self.lock.token),
            draining,
            bell: self.bell().map(Box::new),
            polls_as_ever: self.plan.polls_as_ever,
            expires: (self.plan.tells_expiry && !draining).then_some(self.lock.rival_ends),
            ..HolderInfo::default()
        }
    }

    pub(super) fn bell(&self) -> Option<Bell> {
        let nonce = u128::from(self.lock.token);
        self.plan.bell.map(|ip| Bell {
            address: (ip, 80).into(),
            nonce,
        })
    }

    /// Whether a ring can reach the instance; a holder listens to no bell.
    pub(super) fn may_ring(&self) -> bool {
        let state = *self.tenure.state();
        self.rung < 400 && matches!(state, State::Standby | State::Acquiring)
    }

    /// Rings at any time: the instance must know whether it listens.
    pub(super) fn rings(&mut self, ring: Ring) {
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

    pub(super) fn rival(&mut self) {
        if self.lock.holder != RIVAL {
            if self.rests {
                return;
            }
            let comes = self.rng.u8(0..100) < self.plan.rival;
            if comes && !self.lock.keeps_out(self.now) {
                return self.rival_takes_it();
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

    pub(super) fn rival_takes_it(&mut self) {
        self.lock.token += 1;
        self.lock.breaking = false;
        (self.lock.holder, self.lock.until) = (RIVAL, Instant::FOREVER);
        self.lock.rival_ends = self.now + self.plan.rival_holds;
        self.lock.draining = false;
        self.say(|| "the rival has it".to_owned());
        let drains = self.lock.rival_ends - self.plan.rival_drains;
        self.due(drains, Due::Rival);
    }

    pub(super) fn listens(&mut self) {
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
}
