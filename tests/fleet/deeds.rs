use trafficcop::Instant;
use trafficcop::internals::signals::SignalEvent;
use trafficcop_core::Cordon;

use super::adversary::{Act, Deed, Kind, Weather, Who};
use super::clock::{MILLI, SECOND, Time, nanos};
use super::drive::GRACE;
use super::pair::Life;
use super::store::{Id, Request};
use super::world::{Broken, Happening, Others, World};

impl World {
    pub(crate) fn act(&mut self, at: usize) {
        let Act { deed, .. } = self.schedule.acts[at];
        self.say(|| format!("ADVERSARY: {deed:?}"));
        let kind = match deed {
            Deed::Net(_, weather, _) => match weather {
                Weather::Slow(_) => "slow network",
                Weather::Straggles(_) => "stragglers",
                Weather::LosesRequests => "lost requests",
                Weather::LosesReplies => "lost replies",
                Weather::Cut => "cut off",
                Weather::Twice(_) => "doubled requests",
                Weather::Answers(..) => "error answers",
                Weather::DoesAndDenies => "done and denied",
                Weather::Frozen => "frozen store",
            },
            Deed::Stop(_, Who::Supervisor, _) => "STOP supervisor",
            Deed::Stop(_, Who::Guardian, _) => "STOP guardian",
            Deed::Stop(_, Who::Both, _) => "STOP both",
            Deed::Trap(..) => "STOP amid a request",
            Deed::Kill(_, Who::Supervisor) => "KILL supervisor",
            Deed::Kill(_, Who::Guardian) => "KILL guardian",
            Deed::Kill(_, Who::Both) => "KILL both",
            Deed::Suspend(..) => "suspend",
            Deed::Break(_) => "break",
            Deed::Delete => "delete",
            Deed::Signal(..) => "stop signal",
            Deed::WallJump(_) => "wall clock jump",
            Deed::Cordon(..) => "cordon",
            Deed::Stale(..) => "old views",
            Deed::Torn(_) => "torn hints",
            Deed::RestartServer(true) => "server restarted, with a grace period",
            Deed::RestartServer(false) => "server restarted",
            Deed::ServerClock(_) => "server's clock put forward",
            Deed::Tidy(_) => "old versions removed by hand",
        };
        *self.tally.faults.entry(kind).or_default() += 1;
        let store_now = self.store_clock.at(self.now);
        match deed {
            Deed::Net(..) => {}
            Deed::Trap(machine, kind, span) => self.machines[machine].trap = Some((kind, span)),
            Deed::Stop(machine, who, span) => {
                let until = self.now + span;
                for p in self.of_machine(machine) {
                    let pair = &mut self.pairs[p];
                    if who != Who::Guardian {
                        stop(&mut pair.supervisor, until);
                    }
                    if who != Who::Supervisor {
                        if pair.guardian == Life::Runs {
                            pair.guardian_stopped = self.now;
                        }
                        stop(&mut pair.guardian, until);
                        if span >= 900 * MILLI {
                            pair.guardian_hurt = true;
                        }
                        // The kernel wakes the supervisor, which looks some time later.
                        pair.handle.link().child = true;
                        let at = self.now + self.rng.u64(0..500) * MILLI;
                        self.plan(at, Happening::Supervisor(p));
                    }
                    self.plan(until, Happening::Continue(p, who));
                }
            }
            Deed::Kill(machine, who) => {
                for p in self.of_machine(machine) {
                    if who != Who::Guardian {
                        self.supervisor_dies(p);
                    }
                    if who != Who::Supervisor {
                        self.pairs[p].guardian_hurt = true;
                        self.guardian_dies(p);
                    }
                }
            }
            Deed::Suspend(machine, span) => {
                let until = self.now + span;
                let it = &mut self.machines[machine];
                it.until = it.until.max(until);
                it.suspended.get_or_insert(self.now);
                self.plan(until, Happening::Resume(machine));
            }
            Deed::Break(period) if self.drive.is_some() => self.break_on_the_drive(period),
            Deed::Break(period) if self.shelf.is_some() => self.break_in_the_store(period),
            Deed::Stale(..) | Deed::Torn(_) if self.shelf.is_some() => self.act_on_the_store(deed),
            Deed::Delete if self.drive.is_some() => self.delete_on_the_drive(),
            Deed::Stale(..)
            | Deed::Torn(_)
            | Deed::RestartServer(_)
            | Deed::ServerClock(_)
            | Deed::Tidy(_) => self.act_on_the_drive(deed),
            Deed::Break(period) => {
                self.touched.extend(self.store.protects(store_now));
                if let Some(id) = self.store.protects(store_now)
                    && let Some(period) = period
                {
                    self.broken.push(broken(id, period.is_zero(), self.now));
                }
                self.store.break_lease(store_now, period);
                self.lease_changed();
            }
            Deed::Delete => {
                self.touched.extend(self.store.protects(store_now));
                if let Some(id) = self.store.protects(store_now) {
                    self.broken.push(broken(id, true, self.now));
                }
                self.store.delete();
                self.lease_changed();
            }
            Deed::Signal(machine, signal) => {
                for p in self.of_machine(machine) {
                    self.pairs[p].signals.push_back(SignalEvent::Stop(signal));
                    self.pairs[p].stop_asked = true;
                    self.wake_supervisor(p);
                }
            }
            Deed::Cordon(machine, before, span) => {
                let it = &mut self.machines[machine];
                let before = before.map_or(Instant::FOREVER, |before| {
                    it.clock.at(self.now.saturating_add(before))
                });
                let why = "a reboot".to_owned();
                let number = at as u64;
                it.cordon = Some((number, Cordon { why, before }));
                self.announce_later(machine);
                if let Some(span) = span {
                    self.plan(self.now + span, Happening::Lifted(machine, number));
                }
            }
            Deed::WallJump(machine) => {
                for p in self.of_machine(machine) {
                    self.pairs[p].kernel.facts().wall_jumped = true;
                    self.wake_both(p);
                }
            }
        }
    }

    fn act_on_the_drive(&mut self, deed: Deed) {
        let Some(drive) = self.drive.clone() else {
            return;
        };
        let mut drive = drive.lock().expect("whole");
        match deed {
            Deed::Stale(machine, back, span) => {
                drive.views[machine] = (self.now.saturating_sub(back), self.now + span);
            }
            Deed::Torn(span) => drive.torn_until = self.now + span,
            Deed::RestartServer(grace) => {
                drive.starts += 1;
                if grace {
                    drive.grace_until = self.now + GRACE;
                }
            }
            Deed::ServerClock(seconds) => drive.ahead += seconds,
            Deed::Tidy(keep) => {
                let pauses = self.schedule.budgets.iter().map(|it| nanos(it.renew_every));
                drive.tidy(keep, pauses.max().unwrap_or(0) + 2 * SECOND);
            }
            _ => unreachable!("it is no drive's"),
        }
    }

    pub(crate) fn spring_the_trap(&mut self, p: usize, request: Request) {
        let machine = self.pairs[p].machine;
        let kind = match request {
            Request::Acquire { .. } => Kind::Acquire,
            Request::Set { .. } => Kind::Record,
            Request::Renew { .. } => Kind::Renew,
            Request::RestOfBreaking { .. } => Kind::Rest,
            Request::Release { .. } => Kind::Release,
            Request::Look { .. } | Request::Create => return,
        };
        let trap = self.machines[machine].trap;
        let Some((_, span)) = trap.filter(|(wanted, _)| *wanted == kind && !self.resting) else {
            return;
        };
        self.machines[machine].trap = None;
        let until = self.now + span;
        self.say(|| format!("#{p}: its supervisor is stopped before it hears of that"));
        self.stops.push((machine, self.now, until));
        stop(&mut self.pairs[p].supervisor, until);
        self.plan(until, Happening::Continue(p, Who::Supervisor));
    }

    pub(crate) fn lifted(&mut self, machine: usize, number: u64) {
        let it = &mut self.machines[machine];
        if it.cordon.as_ref().is_some_and(|(last, _)| *last == number) {
            it.cordon = None;
            self.say(|| format!("machine {machine} is cordoned no more"));
            self.announce_later(machine);
        }
    }

    /// Schedules when the supervisor learns of a cordon: it asks the platform now and then, and
    /// sometimes gets no answer.
    pub(crate) fn announce_later(&mut self, machine: usize) {
        let at = self.now + self.rng.u64(0..6000) * MILLI;
        self.plan(at, Happening::Announced(machine));
    }

    pub(crate) fn announced(&mut self, machine: usize) {
        let cordon = self.machines[machine].cordon.clone();
        let cordon = cordon.map(|(_, cordon)| cordon);
        for p in self.of_machine(machine) {
            let pair = &mut self.pairs[p];
            if std::mem::replace(&mut pair.cordon_sent, cordon.is_some()) || cordon.is_some() {
                pair.signals.push_back(SignalEvent::Cordon(cordon.clone()));
                self.wake_supervisor(p);
            }
        }
    }
}

fn broken(id: Id, at_once: bool, at: Time) -> Broken {
    Broken {
        leases: id..id + 1,
        of: None,
        others: match at_once {
            true => Others::AtOnce,
            false => Others::Sooner,
        },
        at,
    }
}

fn stop(life: &mut Life, until: Time) {
    *life = match *life {
        Life::Runs => Life::Stopped(until),
        Life::Stopped(before) => Life::Stopped(before.max(until)),
        Life::Dead => Life::Dead,
    };
}
