//! Release of a lease, or of what may be one, and the decision about the next round. Nothing runs here.

use std::time::Duration;

use super::context::Context;
use super::held_lease::HeldLease;
use super::holding::CommandRun;
use super::{IfLost, Phase, Standby, Step};
use crate::budget::ATTEMPT;
use crate::clock::Instant;
use crate::stop::Stop;
use crate::{Action, Cause, Ending, Event, Exit, Failure, Notice, WorkloadEvent};

// After that the lease runs out by itself, and there is no reason to wait.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Releasing {
    cause: Option<Cause>,
    exit: Option<Exit>,
    overlap: bool,
    empty_at: Option<Instant>,
    // Moment before the last granted request.
    confirmed: Instant,
    // Moment from which another instance can have the lease because it ran out.
    others_from: Instant,
    began: bool,
    // Only a granted lease's release is reported.
    granted: bool,
    give_up_at: Instant,
    progress: ReleaseProgress,
}

#[derive(Debug)]
enum ReleaseProgress {
    /// A renewal in flight could undo a release that overtook it, and the lease would keep all others out
    /// without a holder.
    Renewing { until: Instant },
    /// The store must be asked.
    Due { at: Instant },
    /// The store was asked.
    InFlight { sent: Instant },
}

impl Releasing {
    /// `empty_at` of `None`: nothing of the tenure ever ran.
    pub(super) fn after(
        context: &mut Context,
        step: &mut Step,
        run: CommandRun,
        cause: Cause,
        empty_at: Option<Instant>,
    ) -> Phase {
        let held_lease = &run.held_lease;
        let mut this = Releasing::new(step, Some(cause), Some(held_lease));
        this.began = true;
        this.exit = run.exit;
        this.confirmed = held_lease.confirmed();
        this.others_from = held_lease.others_from();
        this.overlap = empty_at.is_some_and(|at| at > this.others_from);
        this.empty_at = empty_at;
        this.begin(context, step, held_lease)
    }

    pub(super) fn of_a_lease(
        context: &mut Context,
        step: &mut Step,
        held_lease: &HeldLease,
        cause: Option<Cause>,
    ) -> Phase {
        Releasing::new(step, cause, Some(held_lease)).begin(context, step, held_lease)
    }

    /// Gives back a lease that was granted without an open attempt.
    pub(super) fn return_unasked_grant(context: &mut Context, step: &mut Step) -> Phase {
        let mut this = Releasing::new(step, None, None);
        this.granted = true;
        this.go_on(context, step)
    }

    pub(super) fn decline_offer(context: &mut Context, step: &mut Step) -> Phase {
        Releasing::new(step, None, None).go_on(context, step)
    }

    pub(super) fn undo_uncertain_acquire(
        context: &mut Context,
        step: &mut Step,
        cause: Cause,
    ) -> Phase {
        Releasing::new(step, Some(cause), None).go_on(context, step)
    }

    pub(super) fn of_an_attempt(step: &mut Step, cause: Cause) -> Phase {
        let mut this = Releasing::new(step, Some(cause), None);
        // Not dropped: it may obtain the lease after this instance has gone.
        step.act(Action::Withdraw {
            give_up_at: this.give_up_at.min(step.now + ATTEMPT),
        });
        this.progress = ReleaseProgress::InFlight { sent: step.now };
        Phase::Releasing(this)
    }

    /// A tree that cannot be killed may live for ever.
    pub(super) fn never(step: &mut Step, exit: Option<Exit>, cause: Cause) -> Phase {
        left_to_run_out(step, "a process of the command cannot be killed".to_owned());
        step.act(Action::TenureOver {
            cause: cause.clone(),
        });
        Phase::Done(Ending {
            cause,
            exit,
            overlap: true,
            released: false,
        })
    }

    pub(super) fn reason(&self) -> (Option<&Cause>, Option<Exit>) {
        (self.cause.as_ref(), self.exit)
    }

    fn new(step: &Step, cause: Option<Cause>, held_lease: Option<&HeldLease>) -> Releasing {
        // After its end another instance may have the lease.
        let end = held_lease.map_or(Instant::FOREVER, HeldLease::may_last_until);
        Releasing {
            cause,
            exit: None,
            overlap: false,
            empty_at: None,
            confirmed: Instant::ZERO,
            others_from: Instant::FOREVER,
            began: false,
            granted: held_lease.is_some(),
            give_up_at: end.min(step.now + RELEASE_TIMEOUT),
            progress: ReleaseProgress::Due { at: step.now },
        }
    }

    fn begin(mut self, context: &mut Context, step: &mut Step, held_lease: &HeldLease) -> Phase {
        // The store could only repeat the loss, but requests under way must not go on.
        if held_lease.lost() {
            step.act(Action::Abandon);
            return self.conclude(context, step, false);
        }
        if let Some(until) = held_lease.in_flight_until() {
            self.progress = ReleaseProgress::Renewing { until };
        }
        self.go_on(context, step)
    }

    pub(super) fn wake_at(&self) -> Instant {
        match self.progress {
            ReleaseProgress::Renewing { until } => until,
            ReleaseProgress::Due { at } => at,
            ReleaseProgress::InFlight { .. } => Instant::FOREVER,
        }
    }

    pub(super) fn step(mut self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        match event {
            Event::Released(reply) => self.released(context, step, reply),
            Event::Renewed { reply, .. } => self.renewed(context, step, reply),
            // The withdrawn attempt had been answered already.
            Event::Acquired(Ok(_)) => {
                self.granted = true;
                self.progress = ReleaseProgress::Due { at: step.now };
                self.go_on(context, step)
            }
            Event::Workload(WorkloadEvent::Exited(exit)) => {
                if self.empty_at.is_some() && self.exit.is_none() {
                    self.exit = Some(exit);
                    step.report(Notice::CommandEnded(exit));
                }
                self.go_on(context, step)
            }
            Event::Workload(WorkloadEvent::Lost) => {
                context.guardian_lost = true;
                self.go_on(context, step)
            }
            Event::StopAsked(signal) => match context.stop.asked(step.now, signal) {
                Stop::Requested | Stop::Again => self.go_on(context, step),
                Stop::AtOnce => {
                    self.run_out(context, step, "a stop at once was requested".to_owned())
                }
            },
            Event::Ticked
            | Event::Cordoned(_)
            | Event::Uncordoned
            | Event::Freed
            | Event::CommandStopping
            | Event::Acquired(Err(_))
            | Event::Looked(_)
            | Event::Recorded(_)
            | Event::Workload(_) => self.go_on(context, step),
        }
    }

    fn go_on(mut self, context: &mut Context, step: &mut Step) -> Phase {
        let at = match self.progress {
            ReleaseProgress::Renewing { until } => until,
            ReleaseProgress::Due { at } => at,
            ReleaseProgress::InFlight { .. } => return Phase::Releasing(self),
        };
        if step.now >= self.give_up_at {
            return self.run_out(context, step, "the store did not answer in time".to_owned());
        }
        if step.now >= at {
            step.act(Action::Release {
                give_up_at: self.give_up_at.min(step.now + ATTEMPT),
            });
            self.progress = ReleaseProgress::InFlight { sent: step.now };
        }
        Phase::Releasing(self)
    }

    fn released(
        mut self,
        context: &mut Context,
        step: &mut Step,
        reply: Result<(), Failure>,
    ) -> Phase {
        let ReleaseProgress::InFlight { sent } = self.progress else {
            return self.go_on(context, step);
        };
        match reply {
            // If another instance holds it, this one does not, as wanted.
            Ok(()) | Err(Failure::Held(_)) => {
                if self.granted {
                    step.report(Notice::Released);
                }
                self.conclude(context, step, true)
            }
            Err(Failure::Lost { why, until }) => {
                // The loss came at an unknown moment after the last confirmation, unless the lease has run
                // out meanwhile.
                if step.now < self.others_from {
                    let since = until.unwrap_or(self.confirmed);
                    self.overlap |= self.empty_at.is_some_and(|at| at > since);
                }
                step.report(Notice::FoundLost { why });
                self.conclude(context, step, false)
            }
            Err(Failure::Transient { why, retry_after }) => {
                let latest = self.give_up_at;
                let at = context.jitter.again_at(sent, step.now, retry_after, latest);
                if at >= self.give_up_at {
                    return self.run_out(context, step, why);
                }
                self.progress = ReleaseProgress::Due { at };
                self.go_on(context, step)
            }
            Err(Failure::Fatal { why, .. }) => self.run_out(context, step, why),
            Err(over @ Failure::AlreadyDone(_)) => self.run_out(context, step, over.to_string()),
        }
    }

    fn renewed(
        mut self,
        context: &mut Context,
        step: &mut Step,
        reply: Result<(), Failure>,
    ) -> Phase {
        let others_from = match reply {
            Ok(())
            | Err(Failure::Transient { .. } | Failure::Fatal { .. } | Failure::AlreadyDone(_)) => {
                None
            }
            Err(Failure::Held(_)) => Some(Instant::ZERO),
            Err(Failure::Lost { until, .. }) => Some(until.unwrap_or(Instant::ZERO)),
        };
        if let Some(others_from) = others_from {
            self.overlap |= self.empty_at.is_some_and(|at| at > others_from);
        }
        match self.progress {
            ReleaseProgress::Renewing { .. } if others_from.is_some() => {
                step.act(Action::Abandon);
                self.conclude(context, step, false)
            }
            ReleaseProgress::Renewing { .. } => {
                self.progress = ReleaseProgress::Due { at: step.now };
                self.go_on(context, step)
            }
            ReleaseProgress::Due { .. } | ReleaseProgress::InFlight { .. } => {
                self.go_on(context, step)
            }
        }
    }

    fn run_out(self, context: &mut Context, step: &mut Step, why: String) -> Phase {
        left_to_run_out(step, why);
        self.conclude(context, step, false)
    }

    /// Competes again if control was lost or handed over, and no stop was requested.
    fn conclude(self, context: &mut Context, step: &mut Step, released: bool) -> Phase {
        // Else a wait that ends on a cordoned machine would undo the attempt again and again.
        context.take_ambiguous();
        if let Some(cause) = self.cause.clone().filter(|_| self.began) {
            step.act(Action::TenureOver { cause });
        }
        let competes = match &self.cause {
            None | Some(Cause::HandOver | Cause::GivenUp(_) | Cause::Cordoned { .. }) => true,
            Some(Cause::Doubt { .. } | Cause::Lost { .. }) => {
                context.rules.if_lost == IfLost::Compete
            }
            Some(
                Cause::CommandEnded
                | Cause::NotStarted { .. }
                | Cause::Stopped(_)
                | Cause::GuardianLost
                | Cause::NotRecorded { .. }
                | Cause::AlreadyDone(_)
                | Cause::Unfit(_)
                | Cause::NotObtained(_)
                | Cause::Store { .. },
            ) => false,
        };
        // The instance that gives control away knows first, and would take it straight back.
        let handed_over = matches!(self.cause, Some(Cause::HandOver | Cause::GivenUp(_)));
        let cool_down = context.cool_down(self.cause.as_ref());
        // The end of the tenure goes before later requests: it makes the exit status.
        let cause = match self.cause {
            Some(cause) if !competes => cause,
            tenure_ended_by => {
                if let Some(signal) = context.stop.first() {
                    Cause::Stopped(signal)
                } else if context.guardian_lost {
                    Cause::GuardianLost
                } else if self.began && context.out_of_time(step.now) {
                    // A tenure without a started command: its cause ends a wait that is over.
                    tenure_ended_by.unwrap_or_else(|| context.not_obtained())
                } else {
                    if self.overlap {
                        step.report(Notice::Overlapped);
                    }
                    let wait = if handed_over {
                        cool_down
                    } else {
                        context.between_rounds()
                    };
                    let next_at = step.now + wait;
                    if handed_over {
                        step.report(Notice::CoolingDown { until: next_at });
                    }
                    return Standby::until(next_at).look(context, step);
                }
            }
        };
        // A task that was stopped is not done: a status of 0 would look like a success that no record has.
        let unfinished = context.rules.once.is_some() && matches!(cause, Cause::Stopped(_));
        Phase::Done(Ending {
            cause,
            exit: self
                .exit
                .filter(|exit| !unfinished || *exit != Exit::Code(0)),
            overlap: self.overlap,
            released,
        })
    }
}

fn left_to_run_out(step: &mut Step, why: String) {
    step.act(Action::Abandon);
    step.report(Notice::LeftToRunOut { why });
}
