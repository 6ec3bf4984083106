//! Drain: the command's tree was asked to end, or is being killed.
//!
//! The lease is renewed all the while: a tree that dies slowly must not live into the next holder's tenure.
//! Only "tree empty" ends this state.

use std::time::Duration;

use super::context::Context;
use super::held_lease::RenewalAnswer;
use super::holding::CommandRun;
use super::{Phase, Releasing, Step, resting};
use crate::clock::Instant;
use crate::stop::Stop;
use crate::{Action, Cause, Event, WorkloadEvent};

// Standbys would learn of a faster drain when it is over, at the cost of one more write.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Draining {
    pub(super) run: CommandRun,
    cause: Cause,
    // Moment from which the drain can have ended the command.
    due: Instant,
    // Fixed at the beginning: renewals must not prolong a drain for ever.
    end_of_grace: Instant,
    announce_at: Instant,
    kept: bool,
    // No deadline moves and nothing is announced any more.
    killing: bool,
}

impl Draining {
    pub(super) fn begin(
        run: CommandRun,
        cause: Cause,
        due: Instant,
        end_of_grace: Instant,
    ) -> Draining {
        let announce_at = match run.announced {
            true => Instant::FOREVER,
            false => due + ANNOUNCE_AFTER,
        };
        Draining {
            run,
            cause,
            due,
            end_of_grace,
            announce_at,
            kept: false,
            killing: false,
        }
    }

    pub(super) fn killed(run: CommandRun, cause: Cause, due: Instant) -> Draining {
        Draining {
            killing: true,
            ..Draining::begin(run, cause, due, due)
        }
    }

    /// Counts the announcement from `now`, for a drain that was due earlier.
    pub(super) fn since(mut self, now: Instant) -> Draining {
        if !self.run.announced {
            self.announce_at = now + ANNOUNCE_AFTER;
        }
        self
    }

    /// The lease will be kept, and standbys would come closer in vain.
    pub(super) fn unannounced(mut self) -> Draining {
        self.announce_at = Instant::FOREVER;
        self.kept = true;
        self
    }

    pub(super) fn keeps_it(&self) -> bool {
        self.kept && !self.killing
    }

    pub(super) fn is_killing(&self) -> bool {
        self.killing
    }

    pub(super) fn wake_at(&self) -> Instant {
        let limit = self.run.held_lease.kill_at();
        let renewal = self.run.held_lease.renewal_due(limit);
        if self.killing {
            return renewal;
        }
        self.killed_at().min(self.announce_at).min(renewal)
    }

    fn killed_at(&self) -> Instant {
        self.end_of_grace.min(self.run.held_lease.kill_at())
    }

    pub(super) fn step(mut self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        // The clock goes before all events but "tree empty", after which nothing is left to kill.
        let over = self.run.is_over_by(&event);
        if !over && step.now >= self.killed_at() {
            self.kill(step);
        }
        match event {
            Event::Renewed { t0, reply } => {
                let held_lease = &mut self.run.held_lease;
                let (term_at, kill_at) = (held_lease.term_at(), held_lease.kill_at());
                let answer = held_lease.renewed(context, step.now, t0, reply, kill_at);
                match answer {
                    RenewalAnswer::Lost(why) => {
                        self.cause = lost(self.cause, why);
                        if step.now >= self.killed_at() {
                            self.kill(step);
                        }
                        if !self.killing {
                            step.extend(&self.run.held_lease);
                        }
                    }
                    // Keeps others out while the tree dies, but postpones no kill.
                    _ if self.killing => {}
                    RenewalAnswer::Confirmed => {
                        step.extend(held_lease);
                        context.answered(step);
                    }
                    RenewalAnswer::Doubt(why) => context.doubts(step, why, Some(term_at)),
                    // Only after a loss: the deadlines stay.
                    RenewalAnswer::TooLate => {}
                }
                self.go_on(step)
            }
            Event::Workload(WorkloadEvent::Started { .. }) => {
                self.run.has_started();
                self.go_on(step)
            }
            Event::Workload(WorkloadEvent::NotStarted { errno }) if over => {
                Releasing::after(context, step, self.run, Cause::NotStarted { errno }, None)
            }
            Event::Workload(WorkloadEvent::Exited(exit)) => {
                self.run.exited(step, exit);
                self.go_on(step)
            }
            Event::Workload(WorkloadEvent::TreeEmpty { at }) if over => {
                let cause = ended_by(self.cause, self.due, at);
                resting::after(context, step, self.run, cause, at)
            }
            // A hook that failed during the stop failed because of it.
            Event::Workload(WorkloadEvent::HookFailed { at, .. }) if over => {
                context.not_prepared(None);
                Releasing::after(context, step, self.run, self.cause, Some(at))
            }
            Event::Workload(WorkloadEvent::Lost) => {
                context.guardian_lost = true;
                self.cause = guardian_lost(self.cause);
                self.killing = true;
                self.go_on(step)
            }
            Event::Workload(WorkloadEvent::TreeStuck) => {
                Releasing::never(step, self.run.exit, self.cause)
            }
            Event::StopAsked(signal) => {
                // The request keeps this instance from competing again.
                if context.stop.asked(step.now, signal) == Stop::AtOnce {
                    self.kill(step);
                }
                self.go_on(step)
            }
            // Later rounds see the cordon.
            Event::Ticked
            | Event::Cordoned(_)
            | Event::Uncordoned
            | Event::Freed
            | Event::CommandStopping
            | Event::Acquired(_)
            | Event::Looked(_)
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Workload(
                WorkloadEvent::NotStarted { .. }
                | WorkloadEvent::HookFailed { .. }
                | WorkloadEvent::TreeEmpty { .. }
                | WorkloadEvent::Stopped
                | WorkloadEvent::LeftBehind
                | WorkloadEvent::Acting
                | WorkloadEvent::ClockJumped
                | WorkloadEvent::Standby(_)
                | WorkloadEvent::Condition(_)
                | WorkloadEvent::Health(_),
            ) => self.go_on(step),
        }
    }

    pub(super) fn go_on(mut self, step: &mut Step) -> Phase {
        let limit = self.run.held_lease.kill_at();
        self.run.held_lease.renew_if_due(step, limit);
        if !self.killing && step.now >= self.announce_at {
            self.announce_at = Instant::FOREVER;
            step.act(Action::Announce);
        }
        Phase::Draining(self)
    }

    fn kill(&mut self, step: &mut Step) {
        // A process that is stuck in the kernel does not react to a second kill.
        if !std::mem::replace(&mut self.killing, true) {
            step.act(Action::Kill);
        }
    }
}

/// A tree that was empty before the drain can have touched it ended by itself.
fn ended_by(cause: Cause, due: Instant, at: Instant) -> Cause {
    match cause {
        Cause::Stopped(_)
        | Cause::HandOver
        | Cause::GivenUp(_)
        | Cause::Cordoned { .. }
        | Cause::Doubt { .. }
        | Cause::Lost { .. }
            if at < due =>
        {
            Cause::CommandEnded
        }
        cause => cause,
    }
}

/// A loss replaces doubt and hand-overs; another reason stays.
fn lost(cause: Cause, why: String) -> Cause {
    if matches!(
        cause,
        Cause::Doubt { .. } | Cause::HandOver | Cause::GivenUp(_) | Cause::Cordoned { .. }
    ) {
        return Cause::Lost { why };
    }
    cause
}

/// Without a guardian there is no next round to compete for.
fn guardian_lost(cause: Cause) -> Cause {
    if matches!(
        cause,
        Cause::HandOver
            | Cause::GivenUp(_)
            | Cause::Cordoned { .. }
            | Cause::Doubt { .. }
            | Cause::Lost { .. }
    ) {
        return Cause::GuardianLost;
    }
    cause
}
