//! Control: first with nothing running (a lease that must be confirmed), then with the command.

use std::time::Duration;

use super::context::Context;
use super::draining::Draining;
use super::held_lease::{HeldLease, RenewalAnswer};
use super::{Phase, Releasing, Step, resting};
use crate::clock::Instant;
use crate::hold_policy::History;
use crate::stop::{SIGINT, SIGQUIT, Stop};
use crate::{
    Action, Cause, Cordon, Event, Exit, Failed, HandOverReason, HealthEvent, Hung, Notice,
    WorkloadEvent,
};

/// Granted lease that is renewed before anything starts, because the answer took so long.
#[derive(Debug)]
pub(super) struct Confirming {
    held_lease: HeldLease,
}

impl Confirming {
    pub(super) fn begin(mut held_lease: HeldLease, step: &mut Step) -> Phase {
        held_lease.hurry(step.now);
        Confirming { held_lease }.go_on(step)
    }

    pub(super) fn wake_at(&self) -> Instant {
        let limit = self.held_lease.term_at();
        limit.min(self.held_lease.renewal_due(limit))
    }

    pub(super) fn step(mut self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        let limit = self.held_lease.term_at();
        // A request in the event is kept: no later state will see it.
        if step.now >= limit {
            if let Event::StopAsked(signal) = event {
                context.stop.asked(step.now, signal);
            }
            context.guardian_lost |= event == Event::Workload(WorkloadEvent::Lost);
            let why = "the lease could not be confirmed in time".to_owned();
            context.doubts(step, why, None);
            return self.give_back(context, step, None);
        }
        match event {
            Event::Renewed { t0, reply } => {
                match self.held_lease.renewed(context, step.now, t0, reply, limit) {
                    RenewalAnswer::Confirmed if self.held_lease.half_gone(step.now) => {
                        self.held_lease.hurry(step.now);
                        self.go_on(step)
                    }
                    RenewalAnswer::Confirmed => Holding::begin(self.held_lease, context, step),
                    RenewalAnswer::Doubt(why) => {
                        context.doubts(step, why, None);
                        self.go_on(step)
                    }
                    RenewalAnswer::TooLate => self.give_back(context, step, None),
                    RenewalAnswer::Lost(why) => {
                        context.doubts(step, why, None);
                        self.give_back(context, step, None)
                    }
                }
            }
            Event::StopAsked(signal) => {
                context.stop.asked(step.now, signal);
                self.give_back(context, step, Some(Cause::Stopped(signal)))
            }
            Event::Workload(WorkloadEvent::Lost) => {
                self.give_back(context, step, Some(Cause::GuardianLost))
            }
            Event::Cordoned(_) => self.give_back(context, step, None),
            Event::Ticked
            | Event::Uncordoned
            | Event::Freed
            | Event::CommandStopping
            | Event::Acquired(_)
            | Event::Looked(_)
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Workload(_) => self.go_on(step),
        }
    }

    fn go_on(mut self, step: &mut Step) -> Phase {
        let limit = self.held_lease.term_at();
        self.held_lease.renew_if_due(step, limit);
        Phase::Confirming(self)
    }

    fn give_back(self, context: &mut Context, step: &mut Step, cause: Option<Cause>) -> Phase {
        Releasing::of_a_lease(context, step, &self.held_lease, cause)
    }
}

/// Returns the signal that was typed at the command's terminal and ended it. It was meant for the whole
/// job, and nothing else reports it.
fn typed(context: &Context, exit: Exit) -> Option<i32> {
    match exit {
        Exit::Signal(signal @ (SIGINT | SIGQUIT)) if context.rules.on_terminal => Some(signal),
        Exit::Signal(_) | Exit::Code(_) => None,
    }
}

#[derive(Debug)]
pub(super) struct CommandRun {
    pub(super) held_lease: HeldLease,
    // Moment of the order to start: an end of the tree before that belongs to the run before.
    since: Instant,
    started: bool,
    pub(super) exit: Option<Exit>,
    pub(super) announced: bool,
    exited_at: Option<Instant>,
    // The next tenure, maybe on a machine where the command works, starts from zero.
    pub(super) history: History,
}

impl CommandRun {
    fn new(held_lease: HeldLease, history: History, since: Instant) -> CommandRun {
        CommandRun {
            held_lease,
            since,
            started: false,
            exit: None,
            announced: false,
            exited_at: None,
            history,
        }
    }

    /// Tells whether nothing of this run lives any more. A tree that ended just before term_at must not
    /// count as stopped because its report came just after.
    pub(super) fn is_over_by(&self, event: &Event) -> bool {
        match event {
            Event::Workload(WorkloadEvent::TreeEmpty { at }) => *at >= self.since,
            Event::Workload(WorkloadEvent::HookFailed { at, .. }) => {
                !self.started && *at >= self.since
            }
            Event::Workload(WorkloadEvent::NotStarted { .. }) => !self.started,
            Event::Ticked
            | Event::Freed
            | Event::CommandStopping
            | Event::Acquired(_)
            | Event::Looked(_)
            | Event::Renewed { .. }
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Workload(
                WorkloadEvent::Started { .. }
                | WorkloadEvent::Stopped
                | WorkloadEvent::Exited(_)
                | WorkloadEvent::LeftBehind
                | WorkloadEvent::Acting
                | WorkloadEvent::ClockJumped
                | WorkloadEvent::Lost
                | WorkloadEvent::TreeStuck
                | WorkloadEvent::Standby(_)
                | WorkloadEvent::Condition(_)
                | WorkloadEvent::Health(_),
            )
            | Event::StopAsked(_)
            | Event::Cordoned(_)
            | Event::Uncordoned => false,
        }
    }

    pub(super) fn has_started(&mut self) {
        self.started = true;
    }

    pub(super) fn exited(&mut self, step: &mut Step, exit: Exit) {
        self.started = true;
        self.exit = Some(exit);
        self.exited_at = Some(step.now);
        step.report(Notice::CommandEnded(exit));
    }

    pub(super) fn ran(&self, now: Instant) -> Duration {
        self.exited_at.unwrap_or(now).since(self.since)
    }
}

#[derive(Debug)]
pub(super) struct Holding {
    pub(super) run: CommandRun,
}

impl Holding {
    /// Starts the command if enough is left of a lease that was just granted.
    pub(super) fn begin(held_lease: HeldLease, context: &mut Context, step: &mut Step) -> Phase {
        context.answered(step);
        // A lease that is only forgotten keeps all others out.
        if context.is_cordoned() {
            return Releasing::of_a_lease(context, step, &held_lease, None);
        }
        if step.now >= held_lease.term_at() {
            let why = "the lease was granted too late to be used".to_owned();
            context.doubts(step, why, None);
            return Releasing::of_a_lease(context, step, &held_lease, None);
        }
        if held_lease.half_gone(step.now) {
            return Confirming::begin(held_lease, step);
        }
        context.in_control();
        // People read it before the command's own output.
        step.report(Notice::InControl {
            token: held_lease.token(),
        });
        step.act(Action::Start(held_lease.start()));
        let run = CommandRun::new(held_lease, History::default(), step.now);
        Phase::Holding(Holding { run })
    }

    pub(super) fn again(run: CommandRun, step: &mut Step) -> Phase {
        step.act(Action::Start(run.held_lease.start()));
        let run = CommandRun::new(run.held_lease, run.history, step.now);
        Phase::Holding(Holding { run })
    }

    pub(super) fn wake_at(&self, context: &Context) -> Instant {
        let held_lease = &self.run.held_lease;
        let limit = held_lease.term_at();
        limit
            .min(held_lease.renewal_due(limit))
            .min(context.hands_over_at(held_lease))
    }

    pub(super) fn step(mut self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        let over = self.run.is_over_by(&event);
        let term_at = self.run.held_lease.term_at();
        // A renewal that was answered while this process was stopped must not move a deadline that has
        // passed: the guardian has acted on it.
        if !over && step.now >= term_at {
            return self.out_of_time(context, step, event);
        }
        if !over && step.now >= context.hands_over_at(&self.run.held_lease) {
            return self.hand_over(context, step, event);
        }
        match event {
            Event::Ticked => self.go_on(step),
            Event::Workload(WorkloadEvent::ClockJumped) => {
                self.run.held_lease.hurry(step.now);
                self.go_on(step)
            }
            Event::Renewed { t0, reply } => {
                let held_lease = &mut self.run.held_lease;
                match held_lease.renewed(context, step.now, t0, reply, term_at) {
                    RenewalAnswer::Confirmed => {
                        step.extend(held_lease);
                        context.answered(step);
                        self.go_on(step)
                    }
                    RenewalAnswer::Doubt(why) => {
                        context.doubts(step, why, Some(term_at));
                        self.go_on(step)
                    }
                    // The check of the clock excludes this.
                    RenewalAnswer::TooLate => self.go_on(step),
                    RenewalAnswer::Lost(why) => self.lost(context, step, why),
                }
            }
            Event::Workload(WorkloadEvent::Started { .. }) => {
                self.run.has_started();
                self.go_on(step)
            }
            Event::Workload(WorkloadEvent::NotStarted { errno }) if over => {
                Releasing::after(context, step, self.run, Cause::NotStarted { errno }, None)
            }
            Event::Workload(WorkloadEvent::HookFailed { at, how }) if over => {
                hook_failed(context, step, self.run, at, how)
            }
            Event::Workload(WorkloadEvent::Exited(exit)) => {
                let end_of_grace = step.now + context.rules.grace;
                step.act(drain(context, end_of_grace));
                self.run.exited(step, exit);
                let due = step.now;
                if let Some(signal) = typed(context, exit) {
                    let _: Stop = context.stop.asked(due, signal);
                    // The tree ended before the signal was known, and not by itself.
                    let since = self.run.since;
                    let cause = Cause::Stopped(signal);
                    let drain = Draining::begin(self.run, cause, since, end_of_grace);
                    return drain.since(due).go_on(step);
                }
                let kept = resting::is_ahead(context, &self.run, due);
                let drain = Draining::begin(self.run, Cause::CommandEnded, due, end_of_grace);
                if kept { drain.unannounced() } else { drain }.go_on(step)
            }
            Event::Workload(WorkloadEvent::TreeEmpty { at }) if over => {
                // The guardian acts on its own at term_at: a command that ended before did so by itself.
                let cause = if at < term_at {
                    Cause::CommandEnded
                } else {
                    in_doubt(context)
                };
                resting::after(context, step, self.run, cause, at)
            }
            Event::Workload(WorkloadEvent::Lost) => {
                context.guardian_lost = true;
                step.report(Notice::Draining(Cause::GuardianLost));
                Phase::Draining(Draining::killed(self.run, Cause::GuardianLost, step.now))
            }
            Event::Workload(WorkloadEvent::Health(HealthEvent::Hung(hung))) => {
                self.hung(context, step, hung)
            }
            // The command's own guardian lives, and ends it in order.
            Event::Workload(WorkloadEvent::Health(HealthEvent::GuardianLost)) => {
                context.guardian_lost = true;
                let end_of_grace = step.now + context.rules.grace;
                self.drain(context, step, Cause::GuardianLost, step.now, end_of_grace)
            }
            Event::Workload(WorkloadEvent::TreeStuck) => {
                Releasing::never(step, self.run.exit, Cause::GuardianLost)
            }
            Event::Workload(WorkloadEvent::Acting) => self.guardian_acts(step),
            Event::StopAsked(signal) => {
                // Nothing ran before, so this is the first.
                let _: Stop = context.stop.asked(step.now, signal);
                let end_of_grace = step.now + context.rules.grace;
                self.drain(
                    context,
                    step,
                    Cause::Stopped(signal),
                    step.now,
                    end_of_grace,
                )
            }
            Event::Cordoned(Cordon { why, .. }) => {
                let end_of_grace = context.end_of_grace_for_a_cordon(step.now);
                let cause = Cause::Cordoned { why };
                self.drain(context, step, cause, step.now, end_of_grace)
            }
            Event::CommandStopping => {
                // The command may end for a restart, which must attract no standby.
                let is_last = context.rules.hold_policy.restart.is_none();
                if is_last && !std::mem::replace(&mut self.run.announced, true) {
                    step.act(Action::Announce);
                }
                self.go_on(step)
            }
            Event::Uncordoned
            | Event::Freed
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
                | WorkloadEvent::Standby(_)
                | WorkloadEvent::Condition(_)
                | WorkloadEvent::Health(
                    HealthEvent::Answered { .. }
                    | HealthEvent::Failed { .. }
                    | HealthEvent::NotAsked { .. },
                ),
            ) => self.go_on(step),
        }
    }

    fn go_on(mut self, step: &mut Step) -> Phase {
        let limit = self.run.held_lease.term_at();
        self.run.held_lease.renew_if_due(step, limit);
        Phase::Holding(self)
    }

    /// Drains or kills because term_at has passed; the next state judges the event.
    // The guardian does the same: neither relies on the other being scheduled.
    fn out_of_time(self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        let (term_at, kill_at) = (self.run.held_lease.term_at(), self.run.held_lease.kill_at());
        let cause = in_doubt(context);
        if step.now >= kill_at {
            step.act(Action::Kill);
            step.report(Notice::Draining(cause.clone()));
            return Draining::killed(self.run, cause, term_at).step(context, step, event);
        }
        step.act(drain(context, kill_at));
        step.report(Notice::Draining(cause.clone()));
        Draining::begin(self.run, cause, term_at, kill_at)
            .since(step.now)
            .step(context, step, event)
    }

    /// Notes that the guardian already drains the command.
    // A second drain would signal it twice. The report comes late, so the drain counts from the start: an
    // end by itself would pass on a stopped command's status, and end the competition.
    fn guardian_acts(self, step: &mut Step) -> Phase {
        let why = "the guardian heard of a renewal too late".to_owned();
        let cause = Cause::Doubt { why };
        step.report(Notice::Draining(cause.clone()));
        let (since, kill_at) = (self.run.since, self.run.held_lease.kill_at());
        Draining::begin(self.run, cause, since, kill_at)
            .since(step.now)
            .go_on(step)
    }

    fn hand_over(self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        let end_of_grace = step.now + context.rules.grace;
        step.act(drain(context, end_of_grace));
        step.report(Notice::Draining(Cause::HandOver));
        Draining::begin(self.run, Cause::HandOver, step.now, end_of_grace)
            .step(context, step, event)
    }

    fn hung(self, context: &mut Context, step: &mut Step, hung: Hung) -> Phase {
        let (due, end_of_grace) = (step.now, step.now + context.rules.grace);
        let cause = Cause::GivenUp(HandOverReason::Hung(hung));
        step.act(drain(context, end_of_grace));
        step.report(Notice::Draining(cause.clone()));
        let kept = context.rules.hold_policy.restart.is_some();
        let drain = Draining::begin(self.run, cause, due, end_of_grace);
        if kept { drain.unannounced() } else { drain }.go_on(step)
    }

    /// Ends the command at once, or in the time that a lease which is being broken still has.
    fn lost(self, context: &mut Context, step: &mut Step, why: String) -> Phase {
        let held_lease = &self.run.held_lease;
        let kill_at = held_lease.kill_at();
        let cause = Cause::Lost { why };
        if step.now >= kill_at {
            step.act(Action::Kill);
            step.report(Notice::Draining(cause.clone()));
            return Phase::Draining(Draining::killed(self.run, cause, step.now));
        }
        // If this process is stopped before the drain, the guardian must kill by the new deadline.
        step.extend(held_lease);
        let grace = held_lease.grace_on_loss(context.rules.grace);
        let end_of_grace = kill_at.min(step.now + grace);
        self.drain(context, step, cause, step.now, end_of_grace)
    }

    fn drain(
        self,
        context: &Context,
        step: &mut Step,
        cause: Cause,
        due: Instant,
        end_of_grace: Instant,
    ) -> Phase {
        step.act(drain(context, end_of_grace));
        step.report(Notice::Draining(cause.clone()));
        Draining::begin(self.run, cause, due, end_of_grace).go_on(step)
    }
}

fn drain(context: &Context, end_of_grace: Instant) -> Action {
    Action::Drain {
        signal: context.rules.stop_signal,
        end_of_grace,
    }
}

fn hook_failed(
    context: &mut Context,
    step: &mut Step,
    run: CommandRun,
    at: Instant,
    how: Failed,
) -> Phase {
    context.not_prepared(Some(how));
    step.report(Notice::HookFailed(how));
    let cause = Cause::GivenUp(HandOverReason::HookFailed(how));
    Releasing::after(context, step, run, cause, Some(at))
}

pub(super) fn in_doubt(context: &Context) -> Cause {
    let why = context.doubt().unwrap_or("no renewal was answered in time");
    Cause::Doubt {
        why: why.to_owned(),
    }
}
