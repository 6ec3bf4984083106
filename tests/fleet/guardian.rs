//! The guardian of a pair: the shipped loop, turned when poll(2) would end its wait, with the
//! effects of its acts; and the command's tree.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;
use trafficcop::Instant;
use trafficcop_core::Exit;
use trafficcop_core::clock::{sleep, start_thread};
use trafficcop_lease::SharedMemory;
use trafficcop_lease::blob::release_orphaned_with;
use trafficcop_lease::helper;
use trafficcop_lease::shared_file::{RELEASE_LIMIT, release_orphaned_by};

use super::adversary::Place;
use super::clock::{MILLI, SECOND, Time};
use super::drive::era_of;
use super::kernel::Act;
use super::operator::{Memory, lease_id};
use super::pair::{Life, Tree};
use super::store::Id;
use super::world::{From, Happening, World};

const SIGKILL: i32 = 9;

/// Turns in one second of true time; more are a busy loop. While it kills, it looks every few
/// milliseconds.
const TURNS: u32 = 200;

/// Releases as a dying guardian's process does, with the alarm that ends it.
async fn release_by(memory: Arc<Memory>, release: fn(&dyn SharedMemory)) {
    let (done, end) = oneshot::channel();
    let work = move || {
        release(&*memory);
        let _ = done.send(());
    };
    start_thread("release", work).expect("a thread of the simulation");
    tokio::select! {
        _ = end => {}
        () = sleep(Duration::from_secs(RELEASE_LIMIT.into())) => {}
    }
}

impl World {
    pub(crate) fn guard(&mut self, p: usize) {
        let pair = &self.pairs[p];
        let machine = &self.machines[pair.machine];
        if pair.guardian != Life::Runs || machine.suspended.is_some() {
            return;
        }
        if pair.on_orphaned.is_some() {
            return self.live_on(p);
        }
        let (now, suspended) = (machine.clock.at(self.now), machine.shown_suspended);
        let misses = self.rng.u8(0..8) == 0;
        let pair = &mut self.pairs[p];
        {
            let mut facts = pair.kernel.facts();
            facts.to_guardian.append(&mut pair.to_guardian);
            facts.hung_up = pair.drive.is_none();
            facts.misses = misses;
            facts.tree = pair.tree.take();
        }
        let ready = pair.kernel.poll(pair.wait, now, self.now, pair.waits_until);
        let shown = pair.kernel.facts().shown.until;
        if let (Some(ready), Some(event_loop)) = (ready, &mut pair.event_loop) {
            let clock = Rc::clone(&pair.guardian_clock);
            clock.enter(now, suspended, || event_loop.turn(ready));
        }
        let (acts, words) = {
            let mut facts = pair.kernel.facts();
            pair.tree = facts.tree.take();
            (
                std::mem::take(&mut facts.acts),
                std::mem::take(&mut facts.to_supervisor),
            )
        };
        if !words.is_empty() {
            pair.handle.link().to_supervisor.extend_from_slice(&words);
            self.wake_supervisor(p);
        }
        for act in acts {
            if self.violation.is_some() {
                return;
            }
            self.acted(p, act);
        }
        if ready.is_some() {
            self.judge_turn(p, now, shown);
            self.count_turns(p);
            self.wait_again(p, now);
        }
        self.plan_turn(p);
    }

    fn wait_again(&mut self, p: usize, now: Instant) {
        let pair = &mut self.pairs[p];
        let Some(event_loop) = &mut pair.event_loop else {
            return;
        };
        if event_loop.is_over() {
            if pair.on_orphaned.is_none() {
                pair.guardian = Life::Dead;
                pair.event_loop = None;
                pair.handle.link().child = true;
                self.wake_supervisor(p);
            }
            self.lock_may_be_free();
            return;
        }
        let machine = &self.machines[pair.machine];
        let clock = Rc::clone(&pair.guardian_clock);
        pair.wait = clock.enter(now, machine.shown_suspended, || event_loop.next_wait());
        let millis = pair.wait.millis;
        pair.waits_until = millis.map_or(Time::MAX, |millis| self.now + Time::from(millis) * MILLI);
    }

    fn plan_turn(&mut self, p: usize) {
        let pair = &self.pairs[p];
        if pair.guardian != Life::Runs || pair.on_orphaned.is_some() {
            return;
        }
        let machine = &self.machines[pair.machine];
        let now = machine.clock.at(self.now);
        let armed = pair.kernel.facts().armed;
        let mut at = machine.clock.when(armed).min(pair.waits_until);
        if pair
            .kernel
            .poll(pair.wait, now, self.now, Time::MAX)
            .is_some()
        {
            at = self.now;
        }
        if at < pair.guardian_armed {
            self.pairs[p].guardian_armed = at;
            let lag = self.lag();
            self.plan(at + lag, Happening::Guardian(p));
        }
    }

    /// Reports a loop that turns without end, which would take the machine from all others.
    fn count_turns(&mut self, p: usize) {
        let second = self.now / SECOND;
        let pair = &mut self.pairs[p];
        if pair.guardian_second != second {
            (pair.guardian_second, pair.turns) = (second, 0);
        }
        pair.turns += 1;
        if pair.turns > TURNS {
            self.violate(format!("the guardian of #{p} loops"));
        }
    }

    fn acted(&mut self, p: usize, act: Act) {
        match act {
            Act::Forked { token } => self.give_birth(p, token),
            Act::Group(signal) => self.signal_main(p, signal),
            Act::One(pid, signal) => {
                let tree = self.pairs[p].tree.as_ref();
                if tree.is_some_and(|tree| tree.pid == pid) {
                    self.signal_main(p, signal);
                } else {
                    self.signal_daemon(p, signal);
                }
            }
            Act::KilledContained => {
                self.signal_main(p, SIGKILL);
                self.signal_daemon(p, SIGKILL);
            }
            Act::Shown(until) => self.judge_what_is_shown(p, until),
            Act::Released(release_info) => {
                let pair = &mut self.pairs[p];
                pair.on_orphaned = Some(match self.schedule.place {
                    Place::Shared => {
                        Box::pin(release_by(Arc::clone(&pair.memory), release_orphaned_by))
                    }
                    Place::Store => Box::pin(release_by(
                        Arc::clone(&pair.memory),
                        helper::release_orphaned_by,
                    )),
                    Place::Blob | Place::File => {
                        let account = pair.guardian_network.account();
                        Box::pin(async move {
                            release_orphaned_with(&account, &release_info).await;
                        })
                    }
                });
                self.live_on(p);
            }
        }
    }

    fn live_on(&mut self, p: usize) {
        let mut context = Context::from_waker(Waker::noop());
        let pair = &mut self.pairs[p];
        let Some(on_orphaned) = &mut pair.on_orphaned else {
            return;
        };
        let machine = &self.machines[pair.machine];
        let (now, suspended) = (machine.clock.at(self.now), machine.shown_suspended);
        let clock = Rc::clone(&pair.guardian_clock);
        let done = clock.enter(now, suspended, || on_orphaned.as_mut().poll(&mut context));
        if done == Poll::Ready(()) {
            clock.end_threads();
            pair.on_orphaned = None;
            pair.guardian = Life::Dead;
            pair.event_loop = None;
            return;
        }
        let next = clock.next().map(|next| machine.clock.when(next));
        self.send(p, From::Guardian);
        if let Some(at) = next {
            let lag = self.lag();
            self.plan(at + lag, Happening::Guardian(p));
        }
    }

    fn give_birth(&mut self, p: usize, token: u64) {
        let habit = self.schedule.habit;
        let percent = |rng: &mut fastrand::Rng, of: u8| rng.u8(0..100) < of;
        let lease = self.lease_of(p).unwrap_or_default();
        self.generations += 1;
        let generation = self.generations;
        let (now, rng) = (self.now, &mut self.rng);
        let Some(tree) = &mut self.pairs[p].tree else {
            return;
        };
        let daemon = percent(rng, habit.daemon);
        *tree = Tree {
            generation,
            lease,
            born: now,
            has_daemon: daemon,
            daemon,
            deaf: percent(rng, habit.deaf),
            deaf_daemon: percent(rng, habit.deaf_daemon),
            ..tree.clone()
        };
        let executed = now + self.lag();
        self.plan(executed, Happening::Executed(p, generation));
        if let Some(lives) = habit.lives {
            let end = self.now + self.rng.u64(0..2 * lives);
            if end + 35 * SECOND < self.schedule.rest {
                self.plan(end, Happening::MainDies(p, generation, Exit::Code(0)));
            }
        }
        self.say(|| format!("#{p}: BORN with token {token}, lease {lease}"));
        self.judge_birth(p);
    }

    /// Returns the lease in the last release information from its supervisor.
    pub(crate) fn lease_of(&self, p: usize) -> Option<Id> {
        if self.schedule.place.is_chain() {
            let token = self.pairs[p].handle.link().token?;
            let era = self.makings(|makings| era_of(makings, p, token))??;
            return Some(lease_id(era, token));
        }
        let link = self.pairs[p].handle.link();
        let text: serde_json::Value = serde_json::from_slice(&link.release_info).ok()?;
        let lease = text["lease"].as_str()?;
        Some(self.texts.lock().expect("whole").lease(lease))
    }

    fn signal_main(&mut self, p: usize, signal: i32) {
        let Some(tree) = self.pairs[p].tree.as_ref().filter(|tree| tree.main) else {
            return;
        };
        let had_it = if signal == SIGKILL {
            tree.killed
        } else {
            tree.termed
        };
        if had_it {
            return;
        }
        self.say(|| format!("#{p}: signal {signal} to the group"));
        self.judge_need(p);
        let Some(tree) = &mut self.pairs[p].tree else {
            return;
        };
        let generation = tree.generation;
        let span = if signal == SIGKILL {
            tree.killed = true;
            self.rng.u64(1..100)
        } else {
            tree.termed = true;
            if tree.deaf {
                return;
            }
            self.rng.u64(5..2000)
        };
        let at = self.now + span * MILLI;
        self.plan(at, Happening::MainDies(p, generation, Exit::Signal(signal)));
    }

    fn signal_daemon(&mut self, p: usize, signal: i32) {
        let Some(tree) = self.pairs[p].tree.as_mut().filter(|tree| tree.daemon) else {
            return;
        };
        let generation = tree.generation;
        let span = if signal == SIGKILL {
            if std::mem::replace(&mut tree.daemon_killed, true) {
                return;
            }
            self.rng.u64(1..100)
        } else {
            if std::mem::replace(&mut tree.daemon_termed, true) || tree.deaf_daemon {
                return;
            }
            self.rng.u64(5..2000)
        };
        let at = self.now + span * MILLI;
        self.plan(at, Happening::DaemonDies(p, generation));
    }
}
