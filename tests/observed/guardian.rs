//! The guardian of an instance, and the command: it acts at its absolute deadlines by the machine's
//! clock, and when its supervisor has died it drains and releases.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop::internals::core::{Event, Exit, WorkloadEvent};

use super::clock::{MILLI, SECOND, Time};
use super::instance::{Answer, Command, Lane};
use super::world::{Happening, World};

const ETIME: i32 = 62;
const GRACE: Duration = Duration::from_secs(5);
/// For the release after the supervisor's death.
const LAST: Duration = Duration::from_secs(30);

impl World {
    /// The supervisor orders the command to be started.
    pub(crate) fn start(&mut self, p: usize, term_at: Instant, kill_at: Instant, token: u64) {
        let now = self.clock(p);
        let instance = &mut self.instances[p];
        if instance.command.is_some() {
            return self.violate(format!("#{p} starts a command beside another"));
        }
        if !instance.guardian {
            return self.tell(p, Event::Workload(WorkloadEvent::NotStarted { errno: 3 }));
        }
        (instance.term_at, instance.kill_at) = (term_at, kill_at);
        instance.end_of_grace = Instant::FOREVER;
        instance.told_at = self.now;
        if now >= term_at.min(kill_at) {
            return self.tell(
                p,
                Event::Workload(WorkloadEvent::NotStarted { errno: ETIME }),
            );
        }
        self.generations += 1;
        let generation = self.generations;
        let deaf = self.rng.u8(0..100) < self.schedule.deaf;
        self.instances[p].command = Some(Command {
            generation,
            born: self.now,
            deaf,
            termed: false,
            killed: false,
        });
        if let Some(lives) = self.schedule.lives {
            let end = self.now + self.rng.u64(0..2 * lives);
            if end + 5 * SECOND < self.schedule.rest {
                self.plan(end, Happening::CommandDies(p, generation, Exit::Code(0)));
            }
        }
        self.say(|| format!("#{p}: BORN with token {token}"));
        self.judge_birth(p, token);
        self.tell(p, Event::Workload(WorkloadEvent::Started { pid: 1 }));
        self.guard(p);
    }

    /// One turn of the guardian's loop: the clock first.
    pub(crate) fn guard(&mut self, p: usize) {
        let machine = self.instances[p].machine;
        if !self.instances[p].guardian || self.machines[machine].suspended.is_some() {
            return;
        }
        let now = self.clock(p);
        let instance = &mut self.instances[p];
        if instance.orphaned && instance.command.is_none() {
            return self.live_on(p, now);
        }
        let Some(command) = instance.command else {
            return;
        };
        if instance.orphaned && instance.end_of_grace == Instant::FOREVER {
            instance.end_of_grace = now + GRACE;
            self.term(p);
        }
        let instance = &self.instances[p];
        let (term_at, end) = (
            instance.term_at,
            instance.kill_at.min(instance.end_of_grace),
        );
        if now >= end {
            return self.kill_command(p);
        }
        if now >= term_at && !command.termed {
            self.term(p);
        }
        let next = if now < term_at { term_at.min(end) } else { end };
        let at = self.machines[machine].clock.when(next);
        if at != Time::MAX && at != self.instances[p].guardian_armed {
            self.instances[p].guardian_armed = at;
            let lag = self.lag();
            self.plan(at + lag, Happening::Guardian(p));
        }
    }

    /// Supervisor and command are gone: what was held is released, if that can be done soon.
    fn live_on(&mut self, p: usize, now: Instant) {
        if self.instances[p].last_job.job.is_none() {
            let Some(store) = self.last_store(p) else {
                self.instances[p].guardian = false;
                return;
            };
            self.instances[p].last_job_ends = now + LAST;
            self.instances[p].last_job.job = Some(Box::pin(async {
                store.release_orphan().await;
                Answer::Nothing
            }));
        }
        if now >= self.instances[p].last_job_ends {
            self.instances[p].guardian = false;
            return;
        }
        self.go_on(p, Lane::Guardian);
        if self.instances[p].guardian {
            self.plan(self.now + SECOND, Happening::Guardian(p));
        }
    }

    /// The command is asked to end.
    pub(crate) fn term(&mut self, p: usize) {
        self.judge_need(p);
        let Some(command) = &mut self.instances[p].command else {
            return;
        };
        if std::mem::replace(&mut command.termed, true) || command.deaf {
            return;
        }
        let generation = command.generation;
        let at = self.now + self.rng.u64(5..2000) * MILLI;
        self.plan(at, Happening::CommandDies(p, generation, Exit::Signal(15)));
    }

    /// SIGKILL; on a busy machine that takes a moment.
    pub(crate) fn kill_command(&mut self, p: usize) {
        self.judge_need(p);
        let Some(command) = &mut self.instances[p].command else {
            return;
        };
        if std::mem::replace(&mut command.killed, true) {
            return;
        }
        let generation = command.generation;
        let at = self.now + self.rng.u64(1..150) * MILLI;
        self.plan(at, Happening::CommandDies(p, generation, Exit::Signal(9)));
    }

    pub(crate) fn command_dies(&mut self, p: usize, generation: u64, exit: Exit) {
        let instance = &mut self.instances[p];
        if instance
            .command
            .is_none_or(|command| command.generation != generation)
        {
            return;
        }
        instance.command = None;
        self.say(|| format!("#{p}: the command is gone ({exit:?})"));
        let at = self.clock(p);
        if self.instances[p].competes() {
            self.tell(p, Event::Workload(WorkloadEvent::Exited(exit)));
            self.tell(p, Event::Workload(WorkloadEvent::TreeEmpty { at }));
        }
        let soon = self.now + self.lag();
        self.plan(soon, Happening::Guardian(p));
    }

    /// Its death kills the command.
    pub(crate) fn guardian_dies(&mut self, p: usize) {
        let instance = &mut self.instances[p];
        if !std::mem::replace(&mut instance.guardian, false) {
            return;
        }
        if let Some(command) = &mut instance.command {
            command.killed = true;
            let generation = command.generation;
            let at = self.now + self.lag();
            self.plan(at, Happening::CommandDies(p, generation, Exit::Signal(9)));
        }
        self.tell(p, Event::Workload(WorkloadEvent::Lost));
    }
}
