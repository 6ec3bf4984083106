//! Control with nothing running: the lease is kept for a restart, or for a minimal hold.

use super::context::Context;
use super::held_lease::RenewalAnswer;
use super::holding::{CommandRun, in_doubt};
use super::{Holding, Phase, Releasing, Step, recording};
use crate::clock::Instant;
use crate::{Cause, Cordon, Event, HandOverReason, Notice, WorkloadEvent};

#[derive(Debug)]
pub(super) struct Resting {
    run: CommandRun,
    // `None` once the store has confirmed a later request: a loss after that came when nothing lived, and
    // is no overlap (71).
    empty_at: Option<Instant>,
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    /// The command is started again then.
    BackOff { until: Instant },
    /// The command is started as soon as the store has confirmed the lease.
    Due,
    /// The command has done its work.
    Keeping { until: Instant },
}

enum Next {
    Restart,
    Keep { until: Instant },
    GiveBack,
}

fn next(context: &Context, run: &CommandRun, now: Instant) -> Next {
    let hold_policy = &context.rules.hold_policy;
    // A stop that was requested while the command ended by itself still ends this instance.
    let Some(exit) = run.exit.filter(|_| context.stop.first().is_none()) else {
        return Next::GiveBack;
    };
    if hold_policy
        .restart
        .is_some_and(|rule| rule.applies_to(exit))
    {
        return Next::Restart;
    }
    match hold_policy
        .min_hold
        .map(|span| run.held_lease.began() + span)
    {
        Some(until) if now < until => Next::Keep { until },
        _ => Next::GiveBack,
    }
}

/// A hang is a failure, whatever the status after the stop.
fn next_of_hung(context: &Context) -> Next {
    let restarts = context.rules.hold_policy.restart.is_some();
    match restarts && context.stop.first().is_none() {
        true => Next::Restart,
        false => Next::GiveBack,
    }
}

pub(super) fn is_ahead(context: &Context, run: &CommandRun, now: Instant) -> bool {
    !matches!(next(context, run, now), Next::GiveBack)
}

/// Goes on after the tree was empty at `empty_at`.
pub(super) fn after(
    context: &mut Context,
    step: &mut Step,
    mut run: CommandRun,
    cause: Cause,
    empty_at: Instant,
) -> Phase {
    if let Some(rule) = context.rules.once {
        return recording::after(context, step, run, cause, empty_at, rule);
    }
    let now = step.now;
    let is_hung = cause.is_hung();
    let next = if is_hung {
        next_of_hung(context)
    } else {
        next(context, &run, now)
    };
    let rest = match next {
        Next::Restart if cause == Cause::CommandEnded || is_hung => {
            // The end of this run does not end the instance.
            run.exit = None;
            match restart(context, step, &mut run) {
                Ok(rest) => rest,
                Err(cause) => {
                    return Releasing::after(context, step, run, cause, Some(empty_at));
                }
            }
        }
        Next::Keep { until } if cause == Cause::CommandEnded && now < run.held_lease.kill_at() => {
            step.report(Notice::Keeping { until });
            Rest::Keeping { until }
        }
        Next::Restart | Next::Keep { .. } | Next::GiveBack => {
            return Releasing::after(context, step, run, cause, Some(empty_at));
        }
    };
    // Then a later loss is known to have come when nothing lived.
    run.held_lease.hurry(now);
    Resting {
        run,
        empty_at: Some(empty_at),
        rest,
    }
    .go_on(context, step)
}

fn restart(context: &mut Context, step: &mut Step, run: &mut CommandRun) -> Result<Rest, Cause> {
    // Do not report a restart that never comes.
    if context.guardian_lost {
        return Err(Cause::GuardianLost);
    }
    if run.held_lease.lost() {
        let why = "it was lost while the command ended".to_owned();
        return Err(Cause::Lost { why });
    }
    if step.now >= run.held_lease.term_at() {
        return Err(in_doubt(context));
    }
    if let Some(cause) = context.cordon_as_cause() {
        return Err(cause);
    }
    let Some((wait, number)) = context.next_restart(run, step.now) else {
        step.report(Notice::RestartsSpent);
        return Err(Cause::GivenUp(HandOverReason::RestartsSpent));
    };
    let until = step.now + wait;
    step.report(Notice::BackingOff { until, number });
    Ok(Rest::BackOff { until })
}

impl Resting {
    /// Returns until when a renewal is useful: a command that starts needs time for its end.
    fn limit(&self) -> Instant {
        match self.rest {
            Rest::BackOff { .. } | Rest::Due => self.run.held_lease.term_at(),
            Rest::Keeping { .. } => self.run.held_lease.kill_at(),
        }
    }

    // A command that has done its work has nothing to hand over.
    fn hands_over_at(&self, context: &Context) -> Instant {
        match self.rest {
            Rest::BackOff { .. } | Rest::Due => context.hands_over_at(&self.run.held_lease),
            Rest::Keeping { .. } => Instant::FOREVER,
        }
    }

    pub(super) fn wake_at(&self, context: &Context) -> Instant {
        let limit = self.limit();
        let rest = match self.rest {
            Rest::BackOff { until } | Rest::Keeping { until } => until,
            Rest::Due => Instant::FOREVER,
        };
        let renewal = self.run.held_lease.renewal_due(limit);
        limit
            .min(rest)
            .min(renewal)
            .min(self.hands_over_at(context))
    }

    pub(super) fn step(mut self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        let limit = self.limit();
        if step.now >= limit {
            if let Event::StopAsked(signal) = event {
                context.stop.asked(step.now, signal);
            }
            context.guardian_lost |= event == Event::Workload(WorkloadEvent::Lost);
            return self.out_of_time(context, step);
        }
        match event {
            Event::Ticked => self.go_on(context, step),
            Event::Workload(WorkloadEvent::ClockJumped) => {
                self.run.held_lease.hurry(step.now);
                self.go_on(context, step)
            }
            Event::Renewed { t0, reply } => {
                let held_lease = &mut self.run.held_lease;
                match held_lease.renewed(context, step.now, t0, reply, limit) {
                    RenewalAnswer::Confirmed => {
                        context.answered(step);
                        self.empty_at = self.empty_at.filter(|at| t0 < *at);
                        if matches!(self.rest, Rest::Due) {
                            self.hurry_if_half_gone(step.now);
                        }
                        self.go_on(context, step)
                    }
                    RenewalAnswer::Doubt(why) => {
                        context.doubts(step, why, None);
                        self.go_on(context, step)
                    }
                    RenewalAnswer::TooLate => self.go_on(context, step),
                    RenewalAnswer::Lost(why) => {
                        step.report(Notice::LeftToRunOut { why: why.clone() });
                        self.leave(context, step, Cause::Lost { why })
                    }
                }
            }
            Event::StopAsked(signal) => {
                context.stop.asked(step.now, signal);
                self.leave(context, step, Cause::Stopped(signal))
            }
            Event::Workload(WorkloadEvent::Lost) => {
                context.guardian_lost = true;
                match self.rest {
                    Rest::BackOff { .. } | Rest::Due => {
                        self.leave(context, step, Cause::GuardianLost)
                    }
                    Rest::Keeping { .. } => self.go_on(context, step),
                }
            }
            Event::Cordoned(Cordon { why, .. }) => match self.rest {
                Rest::BackOff { .. } | Rest::Due => {
                    self.leave(context, step, Cause::Cordoned { why })
                }
                // The lease keeps others out, and nothing runs.
                Rest::Keeping { .. } => self.go_on(context, step),
            },
            Event::Uncordoned
            | Event::Freed
            | Event::CommandStopping
            | Event::Acquired(_)
            | Event::Looked(_)
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Workload(_) => self.go_on(context, step),
        }
    }

    fn go_on(mut self, context: &mut Context, step: &mut Step) -> Phase {
        let now = step.now;
        if now >= self.hands_over_at(context) {
            step.report(Notice::HoldOver);
            return self.leave(context, step, Cause::HandOver);
        }
        match self.rest {
            Rest::Keeping { until } if now >= until => {
                return self.leave(context, step, Cause::CommandEnded);
            }
            Rest::BackOff { until } if now >= until => {
                self.rest = Rest::Due;
                self.hurry_if_half_gone(now);
            }
            Rest::BackOff { .. } | Rest::Due | Rest::Keeping { .. } => {}
        }
        if matches!(self.rest, Rest::Due) && !self.run.held_lease.half_gone(now) {
            step.report(Notice::Restarting);
            return Holding::again(self.run, step);
        }
        let limit = self.limit();
        self.run.held_lease.renew_if_due(step, limit);
        Phase::Resting(self)
    }

    // Once: a store that refuses at once must not be asked without a pause.
    fn hurry_if_half_gone(&mut self, now: Instant) {
        if self.run.held_lease.half_gone(now) {
            self.run.held_lease.hurry(now);
        }
    }

    fn out_of_time(self, context: &mut Context, step: &mut Step) -> Phase {
        if context.doubt().is_none() {
            let why = "the lease could not be confirmed in time".to_owned();
            context.doubts(step, why, None);
        }
        let cause = in_doubt(context);
        self.leave(context, step, cause)
    }

    /// Gives the lease back. A command that has done its work keeps its ending.
    fn leave(self, context: &mut Context, step: &mut Step, cause: Cause) -> Phase {
        let cause = match self.rest {
            Rest::Keeping { .. } => Cause::CommandEnded,
            Rest::BackOff { .. } | Rest::Due => cause,
        };
        Releasing::after(context, step, self.run, cause, self.empty_at)
    }
}
