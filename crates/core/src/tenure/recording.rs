//! Record of a task's result, under a lease that is renewed meanwhile.
//!
//! A result counts when the store has confirmed it, and only then is the lease given back. A run that this
//! instance ended has no result.

use std::time::Duration;

use super::context::Context;
use super::held_lease::RenewalAnswer;
use super::holding::CommandRun;
use super::{Phase, Releasing, Step};
use crate::budget::{ATTEMPT, RETRY};
use crate::clock::Instant;
use crate::hold_policy::BACKOFF;
use crate::stop::Stop;
use crate::{Action, Cause, Event, Exit, Failure, Notice, Once, Outcome, WorkloadEvent};

// A store that takes renewals and no records (a right is missing, the record is full) would keep this
// instance for ever.
const RECORD_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct Recording {
    run: CommandRun,
    outcome: Outcome,
    // `None` once the store has confirmed a later request.
    empty_at: Option<Instant>,
    give_up_at: Instant,
    why: Option<String>,
    progress: RecordProgress,
}

#[derive(Debug)]
enum RecordProgress {
    /// The store must be asked.
    Due { at: Instant },
    /// The store was asked.
    InFlight { sent: Instant },
    /// The failed run is recorded, and no candidate tries before this moment.
    BackOff { until: Instant },
}

pub(super) fn after(
    context: &mut Context,
    step: &mut Step,
    mut run: CommandRun,
    cause: Cause,
    empty_at: Instant,
    rule: Once,
) -> Phase {
    if cause.is_hung() && run.exit == Some(Exit::Code(0)) {
        // This status answers the stop, and is no success. Without a stop signal it was only killed.
        let signal = Some(context.rules.stop_signal).filter(|signal| *signal != 0);
        run.exit = Some(Exit::Signal(signal.unwrap_or(libc::SIGKILL)));
    }
    if cause != Cause::CommandEnded && !cause.is_hung() {
        // The command may have been in the middle of its work, whatever its status.
        if matches!(cause, Cause::Stopped(_) | Cause::Cordoned { .. }) {
            step.report(Notice::NotDone);
        }
        return Releasing::after(context, step, run, cause, Some(empty_at));
    }
    // To record a success here would keep the task from ever being done.
    let Some(exit) = run.exit else {
        let why = "it is not known how the command ended".to_owned();
        let cause = Cause::NotRecorded { why };
        return Releasing::after(context, step, run, cause, Some(empty_at));
    };
    Recording {
        outcome: rule.outcome(exit, run.held_lease.failed()),
        run,
        empty_at: Some(empty_at),
        give_up_at: step.now + RECORD_TIMEOUT,
        why: None,
        progress: RecordProgress::Due { at: step.now },
    }
    .go_on(context, step)
}

impl Recording {
    fn limit(&self) -> Instant {
        // Not term_at: nothing runs that would have to end.
        self.run.held_lease.kill_at()
    }

    pub(super) fn wake_at(&self) -> Instant {
        let limit = self.limit();
        let next = match self.progress {
            RecordProgress::Due { at } => at.min(self.give_up_at).min(limit),
            RecordProgress::InFlight { .. } => Instant::FOREVER,
            RecordProgress::BackOff { until } => until.min(limit),
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
                    RenewalAnswer::Confirmed => {
                        context.answered(step);
                        self.empty_at = self.empty_at.filter(|at| t0 < *at);
                    }
                    RenewalAnswer::Doubt(why) => context.doubts(step, why, None),
                    RenewalAnswer::TooLate => {}
                    // The rest of a lease that is being broken is enough for a record.
                    RenewalAnswer::Lost(why) => {
                        self.why = Some(format!("the lease was lost: {why}"))
                    }
                }
                self.go_on(context, step)
            }
            Event::Workload(WorkloadEvent::ClockJumped) => {
                self.run.held_lease.hurry(step.now);
                self.go_on(context, step)
            }
            Event::StopAsked(signal) => {
                match (context.stop.asked(step.now, signal), &self.progress) {
                    (_, RecordProgress::BackOff { .. }) => {
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
                context.guardian_lost = true;
                self.go_on(context, step)
            }
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
            RecordProgress::Due { .. } if now >= limit || now >= self.give_up_at => {
                return self.give_up(context, step);
            }
            RecordProgress::Due { at } if now >= at => {
                step.act(Action::Record {
                    outcome: self.outcome,
                    give_up_at: limit.min(now + ATTEMPT),
                });
                self.progress = RecordProgress::InFlight { sent: now };
            }
            // Like a hand-over: others, on whose machines it may work, go first.
            RecordProgress::BackOff { until } if now >= until || now >= limit => {
                return self.leave(context, step, Cause::HandOver);
            }
            RecordProgress::Due { .. }
            | RecordProgress::InFlight { .. }
            | RecordProgress::BackOff { .. } => {}
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
        let RecordProgress::InFlight { sent } = self.progress else {
            return self.go_on(context, step);
        };
        match reply {
            // However late: a store takes a record from the holder alone.
            Ok(()) => self.confirmed(context, step),
            Err(Failure::Transient { why, retry_after }) => {
                if self.why.is_none() {
                    step.report(Notice::Unrecorded { why: why.clone() });
                }
                // The reason of a loss is the better one.
                if !self.run.held_lease.lost() {
                    self.why = Some(why);
                }
                // One more attempt must fit in before the lease is over.
                let latest = self.limit() - RETRY;
                let jitter = &mut context.jitter;
                let at = jitter.again_at(sent, step.now, retry_after, latest);
                self.progress = RecordProgress::Due { at };
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

    fn confirmed(mut self, context: &mut Context, step: &mut Step) -> Phase {
        // The store took it from the holder, so the lease was held when the tree was empty.
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
        // Under the lease: other candidates would not know of this instance's pause.
        let until = step.now + BACKOFF.after(failed);
        step.report(Notice::Pausing { until });
        self.progress = RecordProgress::BackOff { until };
        self.go_on(context, step)
    }

    fn give_up(mut self, context: &mut Context, step: &mut Step) -> Phase {
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
