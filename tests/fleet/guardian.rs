//! The guardian of a pair (`src/guardian/event_loop.rs`) and the command's tree.

use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use trafficcop::Instant;
use trafficcop::internals::core::{Exit, WorkloadEvent};
use trafficcop::internals::guardian::state::{Input, Step};
use trafficcop::internals::guardian::wire::{Event as WireEvent, FRAME, Request};
use trafficcop::internals::lease::blob::release_orphaned_with;

use super::clock::{MILLI, SECOND, Time};
use super::pair::{Life, Tree};
use super::store::Id;
use super::world::{From, Happening, World};

const ETIME: i32 = 62;

impl World {
    /// One turn of the guardian's loop.
    pub(crate) fn guard(&mut self, p: usize) {
        let pair = &self.pairs[p];
        let machine = &self.machines[pair.machine];
        if pair.guardian != Life::Runs || machine.suspended.is_some() {
            return;
        }
        let now = machine.clock.at(self.now);
        if self.pairs[p].on_orphaned.is_some() {
            return self.live_on(p);
        }
        // The timer goes before everything, and children before the socket.
        self.feed(p, now, Input::Ticked);
        if std::mem::take(&mut self.pairs[p].wall_jumped) {
            self.report(p, WireEvent::Workload(WorkloadEvent::ClockJumped));
        }
        self.look_after_children(p, now);
        self.read_socket(p, now);
        if self.pairs[p].guardian == Life::Runs {
            let next = self.pairs[p].watch.next();
            let machine = &self.machines[self.pairs[p].machine];
            let at = machine.clock.when(next);
            if at != Time::MAX && at != self.pairs[p].guardian_armed {
                self.pairs[p].guardian_armed = at;
                let lag = self.lag();
                self.plan(at + lag, Happening::Guardian(p));
            }
        }
    }

    /// The supervisor is dead, the tree is gone: the lease is given back.
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
            pair.on_orphaned = None;
            pair.guardian = Life::Dead;
            return;
        }
        let next = clock.next().map(|next| machine.clock.when(next));
        self.send(p, From::Guardian);
        if let Some(at) = next {
            let lag = self.lag();
            self.plan(at + lag, Happening::Guardian(p));
        }
    }

    fn feed(&mut self, p: usize, now: Instant, event: Input) {
        let steps = self.pairs[p].watch.step(now, event);
        for step in steps.iter() {
            match step {
                Step::Tell(event) => self.report(p, WireEvent::Workload(event)),
                Step::SignalGroup(signal) => self.signal_main(p, signal),
                Step::TermRest => self.signal_daemon(p),
                Step::Kill => {
                    self.say(|| format!("#{p}: the guardian kills"));
                    self.judge_need(p);
                    self.kill_tree(p);
                }
                Step::Depart => self.depart(p),
            }
        }
    }

    fn report(&mut self, p: usize, report: WireEvent) {
        let pair = &mut self.pairs[p];
        if !pair.deaf {
            let mut link = pair.handle.link();
            link.to_supervisor.extend_from_slice(&report.encode());
            drop(link);
            self.wake_supervisor(p);
        }
    }

    fn depart(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        let release_info = std::mem::take(&mut pair.release_info);
        if release_info.is_empty() {
            pair.guardian = Life::Dead;
            return;
        }
        let account = pair.guardian_network.account();
        pair.on_orphaned = Some(Box::pin(async move {
            release_orphaned_with(&account, &release_info).await;
        }));
        self.live_on(p);
    }

    fn look_after_children(&mut self, p: usize, now: Instant) {
        let Some(tree) = &mut self.pairs[p].tree else {
            return;
        };
        if !tree.told_executed {
            tree.told_executed = true;
            self.feed(p, now, Input::Executed);
        }
        let Some(tree) = &mut self.pairs[p].tree else {
            return;
        };
        if tree.main {
            return;
        }
        let (exit, daemon) = (tree.exit, tree.daemon);
        if !std::mem::replace(&mut tree.told_exit, true) {
            self.feed(p, now, Input::MainExited(exit));
        }
        if daemon {
            self.feed(p, now, Input::OthersLive);
        } else {
            self.pairs[p].tree = None;
            self.feed(p, now, Input::Emptied);
        }
    }

    fn read_socket(&mut self, p: usize, now: Instant) {
        let bytes = std::mem::take(&mut self.pairs[p].to_guardian);
        let mut at = 0;
        while let Some(frame) = bytes[at..].first_chunk::<FRAME>() {
            let demand = Request::decode(frame).expect("the supervisor is of sound mind");
            let payload = &bytes[at + FRAME..at + FRAME + demand.payload()];
            at += FRAME + demand.payload();
            self.obey(p, now, demand, payload);
        }
        let pair = &mut self.pairs[p];
        if !pair.deaf && pair.supervisor == Life::Dead {
            pair.deaf = true;
            self.feed(p, now, Input::Orphaned);
        } else if pair.ending.is_some() && pair.watch.is_idle() && !pair.deaf {
            // Dismissed.
            pair.guardian = Life::Dead;
        }
    }

    fn obey(&mut self, p: usize, now: Instant, demand: Request, payload: &[u8]) {
        match demand {
            Request::Start {
                deadlines,
                stop_signal,
                env,
                ..
            } => {
                let (env, release_info) = payload.split_at(env as usize);
                let token = token_of(env);
                self.pairs[p].release_info = release_info.to_vec();
                let lease = self.lease_of(release_info);
                if now >= deadlines.first() {
                    return self.report(
                        p,
                        WireEvent::Workload(WorkloadEvent::NotStarted { errno: ETIME }),
                    );
                }
                self.give_birth(p, lease, token);
                let forked = Input::Forked {
                    deadlines,
                    stop_signal,
                    pid: 1,
                };
                self.feed(p, now, forked);
                let at = self.now + self.lag();
                self.plan(at, Happening::Guardian(p));
            }
            Request::Extend(deadlines) => self.feed(p, now, Input::Extended(deadlines)),
            Request::Drain {
                signal,
                end_of_grace,
            } => {
                self.feed(
                    p,
                    now,
                    Input::DrainAsked {
                        signal,
                        end_of_grace,
                    },
                );
            }
            Request::Kill => self.feed(p, now, Input::KillAsked),
            Request::SetReleaseInfo { .. } => self.pairs[p].release_info.clear(),
            Request::Ping(seq) => self.report(p, WireEvent::Pong(seq)),
            Request::Signal(_) | Request::Resume | Request::Dismiss => {}
        }
    }

    fn lease_of(&self, release_info: &[u8]) -> Id {
        let text: serde_json::Value = serde_json::from_slice(release_info).expect("JSON");
        let lease = text["lease"].as_str().expect("a lease");
        self.texts.lock().expect("whole").lease(lease)
    }

    // --- the command ---

    fn give_birth(&mut self, p: usize, lease: u64, token: u64) {
        let habit = self.schedule.habit;
        let percent = |rng: &mut fastrand::Rng, of: u8| rng.u8(0..100) < of;
        self.generations += 1;
        let generation = self.generations;
        let tree = Tree {
            generation,
            lease,
            token,
            born: self.now,
            main: true,
            exit: Exit::Code(0),
            told_executed: false,
            told_exit: false,
            daemon: percent(&mut self.rng, habit.daemon),
            deaf: percent(&mut self.rng, habit.deaf),
            deaf_daemon: percent(&mut self.rng, habit.deaf_daemon),
            termed: false,
            daemon_termed: false,
            killed: false,
            excused: false,
            overlapped: false,
        };
        if let Some(lives) = habit.lives {
            let end = self.now + self.rng.u64(0..2 * lives);
            if end + 35 * SECOND < self.schedule.rest {
                self.plan(end, Happening::MainDies(p, generation, Exit::Code(0)));
            }
        }
        self.say(|| format!("#{p}: BORN with token {token}, lease {lease}"));
        self.pairs[p].tree = Some(tree);
        self.judge_birth(p);
    }

    fn signal_main(&mut self, p: usize, signal: i32) {
        self.say(|| format!("#{p}: signal {signal} to the group"));
        self.judge_need(p);
        let Some(tree) = &mut self.pairs[p].tree else {
            return;
        };
        if tree.main && !tree.deaf && !std::mem::replace(&mut tree.termed, true) {
            let generation = tree.generation;
            let at = self.now + self.rng.u64(5..2000) * MILLI;
            self.plan(at, Happening::MainDies(p, generation, Exit::Signal(signal)));
        }
    }

    fn signal_daemon(&mut self, p: usize) {
        let Some(tree) = &mut self.pairs[p].tree else {
            return;
        };
        if tree.daemon && !tree.deaf_daemon && !std::mem::replace(&mut tree.daemon_termed, true) {
            let generation = tree.generation;
            let at = self.now + self.rng.u64(5..2000) * MILLI;
            self.plan(at, Happening::DaemonDies(p, generation));
        }
    }
}

fn token_of(env: &[u8]) -> u64 {
    let mut set = env.split(|byte| *byte == 0).filter_map(|set| {
        let value = str::from_utf8(set)
            .ok()?
            .strip_prefix("TRAFFICCOP_TOKEN=")?;
        value.parse().ok()
    });
    set.next().expect("a token")
}
