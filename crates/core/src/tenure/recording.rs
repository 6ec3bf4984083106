//! The command of a task that is to be done once has ended: what it came to is recorded under the
//! lease, which is renewed meanwhile.
//!
//! Entered only after "tree empty". A result counts when the store has confirmed it, and only then
//! is the lease given back; a run that was ended by us is no result. After a failed run that is not
//! the last one the lease is kept for a back-off, so that nobody tries at once, whoever comes next.

use std::time::Duration;

use super::context::Context;
use super::held_lease::Answer;
use super::holding::CommandRun;
use super::{Phase, Releasing, Step};
use crate::budget::{ATTEMPT, RETRY};
use crate::clock::Instant;
use crate::hold_policy::BACKOFF;
use crate::stop::Stop;
use crate::{Action, Cause, Event, Exit, Failure, Notice, Once, Outcome, WorkloadEvent};

// For how long a result is tried to be recorded while the lease can be renewed: a store that takes
// renewals and no records (a right is missing, the record is full) would keep us here for ever.
const PATIENCE: Duration = Duration::from_secs(300);

/// In control; what a task came to is being recorded.
#[derive(Debug)]
pub(super) struct Recording {
    run: CommandRun,
    outcome: Outcome,
    // When the last of the tree was seen to be gone; `None` once the store has confirmed a request
    // sent later than that.
    empty_at: Option<Instant>,
    give_up_at: Instant,
    // Why it is not recorded yet, as far as that is known.
    why: Option<String>,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    /// The store is to be asked.
    Due { at: Instant },
    /// The store was asked; the attempt keeps its own time limit, and its reply comes in any case.
    InFlight { sent: Instant },
    /// It is recorded that the run failed; the lease is given back at this moment.
    BackOff { until: Instant },
}

/// After the tree of a task's run was empty at `empty_at`.
pub(super) fn after(
    context: &mut Context,
    step: &mut Step,
    mut run: CommandRun,
    cause: Cause,
    empty_at: Instant,
    rule: Once,
) -> Phase {
    if cause.is_hung() && run.exit == Some(Exit::Code(0)) {
        // That is how it ended when it was asked to, and no success.
        // Without a stop signal it was only killed.
        let signal = Some(context.rules.stop_signal).filter(|signal| *signal != 0);
        run.exit = Some(Exit::Signal(signal.unwrap_or(libc::SIGKILL)));
    }
    if cause != Cause::CommandEnded && !cause.is_hung() {
        // It may have been in the middle of its work, whatever status it ended with.
        if matches!(cause, Cause::Stopped(_) | Cause::Cordoned { .. }) {
            step.report(Notice::NotDone);
        }
        return Releasing::after(context, step, run, cause, Some(empty_at));
    }
    // An empty tree of which no end was told. To record a success that nobody saw would keep the task
    // from ever being done.
    let Some(exit) = run.exit else {
        let why = "it is not known how the command ended".to_owned();
        let cause = Cause::NotRecorded { why };
        return Releasing::after(context, step, run, cause, Some(empty_at));
    };
    Recording {
        outcome: rule.outcome(exit, run.held_lease.failed()),
        run,
        empty_at: Some(empty_at),
        give_up_at: step.now + PATIENCE,
        why: None,
        progress: Progress::Due { at: step.now },
    }
    .go_on(context, step)
}

impl Recording {
    fn limit(&self) -> Instant {
        // Not term_at: nothing runs that would have to be ended, so all of the lease is good.
        self.run.held_lease.kill_at()
    }

    pub(super) fn wake_at(&self) -> Instant {
        let limit = self.limit();
        let next = match self.progress {
            Progress::Due { at } => at.min(self.give_up_at).min(limit),
            Progress::InFlight { .. } => Instant::FOREVER,
            Progress::BackOff { until } => until.min(limit),
        };
        next.min(self.run.held_lease.renewal_due(limit))
    }

    pub(super) fn step(mut self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        match event {
            Event::Recorded(reply) => self.recorded(context, step, reply),
            Event::Renewed { t0, reply } => {
                let limit = self.limit();
                let held_lease = &mut self.run.held_lease;
                match held_lease.renewed(context, step.now, t0, reply, limit) {
                    Answer::Confirmed => {
                        context.answered(step);
                        self.empty_at = self.empty_at.filter(|at| t0 < *at);
                    }
                    Answer::Doubt(why) => context.doubts(step, why, None),
                    Answer::TooLate => {}
                    // What is left of a lease that is being broken is good enough for a record.
                    Answer::Lost(why) => self.why = Some(format!("the lease was lost: {why}")),
                }
                self.go_on(context, step)
            }
            Event::Workload(WorkloadEvent::ClockJumped) => {
                self.run.held_lease.hurry(step.now);
                self.go_on(context, step)
            }
            Event::StopAsked(signal) => {
                match (context.stop.asked(step.now, signal), &self.progress) {
                    (_, Progress::BackOff { .. }) => {
                        self.leave(context, step, Cause::Stopped(signal))
                    }
                    (Stop::Requested | Stop::Again, _) => self.go_on(context, step),
                    (Stop::AtOnce, _) => {
                        self.why = Some("a stop at once was requested".to_owned());
                        self.give_up(context, step)
                    }
                }
            }
            Event::Workload(WorkloadEvent::Lost) => {
                // Nothing is to be started any more by us; the result is as good as before.
                context.guardian_lost = true;
                self.go_on(context, step)
            }
            // Nothing of ours runs: the clock, late echoes, and a dead guardian's own corpse.
            Event::Ticked
            | Event::Cordoned(_)
            | Event::Uncordoned
            | Event::Freed
            | Event::CommandStopping
            | Event::Acquired(_)
            | Event::Looked(_)
            | Event::Released(_)
            | Event::Workload(_) => self.go_on(context, step),
        }
    }

    fn go_on(mut self, context: &mut Context, step: &mut Step) -> Phase {
        let (now, limit) = (step.now, self.limit());
        match self.progress {
            Progress::Due { .. } if now >= limit || now >= self.give_up_at => {
                return self.give_up(context, step);
            }
            Progress::Due { at } if now >= at => {
                step.act(Action::Record {
                    outcome: self.outcome,
                    give_up_at: limit.min(now + ATTEMPT),
                });
                self.progress = Progress::InFlight { sent: now };
            }
            // Given back as if handed over: we wait behind the others, who may be on a machine on
            // which it works.
            Progress::BackOff { until } if now >= until || now >= limit => {
                return self.leave(context, step, Cause::HandOver);
            }
            Progress::Due { .. } | Progress::InFlight { .. } | Progress::BackOff { .. } => {}
        }
        self.run.held_lease.renew_if_due(step, limit);
        Phase::Recording(self)
    }

    fn recorded(
        mut self,
        context: &mut Context,
        step: &mut Step,
        reply: Result<(), Failure>,
    ) -> Phase {
        let Progress::InFlight { sent } = self.progress else {
            return self.go_on(context, step);
        };
        match reply {
            // However late we hear of it: no store takes a record from anybody but the holder.
            Ok(()) => self.confirmed(context, step),
            Err(Failure::Transient { why, retry_after }) => {
                if self.why.is_none() {
                    step.report(Notice::Unrecorded { why: why.clone() });
                }
                // The reason of a loss is the better one.
                if !self.run.held_lease.lost() {
                    self.why = Some(why);
                }
                // Whatever the service wishes, one more attempt fits in before the lease is over.
                let latest = self.limit() - RETRY;
                let jitter = &mut context.jitter;
                let at = jitter.again_at(sent, step.now, retry_after, latest);
                self.progress = Progress::Due { at };
                self.go_on(context, step)
            }
            Err(failure) => {
                self.why = Some(failure.to_string());
                match failure {
                    Failure::Lost { until, .. } => {
                        self.run.held_lease.lose(step.now, until);
                    }
                    Failure::Held(_) => self.run.held_lease.lose(step.now, None),
                    Failure::AlreadyDone(_) | Failure::Transient { .. } | Failure::Fatal { .. } => {
                    }
                }
                self.give_up(context, step)
            }
        }
    }

    /// The store has it.
    fn confirmed(mut self, context: &mut Context, step: &mut Step) -> Phase {
        // It took it from us, so the lease was ours when the tree was empty.
        self.empty_at = None;
        let failed = self.run.held_lease.failed();
        step.report(Notice::Recorded {
            outcome: self.outcome,
            attempt: failed.saturating_add(1),
        });
        if self.outcome.over {
            return self.leave(context, step, Cause::CommandEnded);
        }
        if let Some(signal) = context.stop.first() {
            return self.leave(context, step, Cause::Stopped(signal));
        }
        // Under the lease: nobody else would know of a pause that only we keep.
        let until = step.now + BACKOFF.after(failed);
        step.report(Notice::Pausing { until });
        self.progress = Progress::BackOff { until };
        self.go_on(context, step)
    }

    fn give_up(mut self, context: &mut Context, step: &mut Step) -> Phase {
        // It may have been lost before there was anything to record.
        let lost = self.run.held_lease.lost();
        let why = self.why.take();
        let why = why.or(lost.then(|| "the lease was lost".to_owned()));
        let why = why.or(context.doubt().map(str::to_owned));
        let why = why.unwrap_or_else(|| "the store did not answer in time".to_owned());
        self.leave(context, step, Cause::NotRecorded { why })
    }

    fn leave(self, context: &mut Context, step: &mut Step, cause: Cause) -> Phase {
        Releasing::after(context, step, self.run, cause, self.empty_at)
    }
}
