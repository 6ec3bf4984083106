//! Looking whether a task that is to be done once is over, on a machine that is not fit to take control.
//!
//! Nothing of ours runs here, and nothing can be obtained by it: what another has done is done for this
//! machine as well, whatever it is fit for.

use super::context::{Context, Step};
use super::standby::no_answer;
use super::{Phase, Releasing, Standby};
use crate::clock::Instant;
use crate::core::{Action, Cause, Event, Failure, WorkloadEvent};

/// A look is in flight.
#[derive(Debug)]
pub(super) struct Looking {
    sent: Instant,
}

impl Looking {
    pub(super) fn begin(context: &mut Context, step: &mut Step) -> Phase {
        context.attempt_sent(step.now);
        // What rang is followed by this look; else the next would follow at once, and the next.
        context.doorbell.looks(step.now);
        step.act(Action::Look {
            give_up_at: context.attempt_ends(step.now),
        });
        Phase::Looking(Looking { sent: step.now })
    }

    pub(super) fn step(self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        match event {
            Event::Looked(Ok(()) | Err(Failure::Held(_))) => {
                context.was_seen(step);
                let next_at = step.now + context.between_rounds();
                Standby::until(next_at).look(context, step)
            }
            Event::Looked(Err(Failure::AlreadyDone(result))) => {
                context.leave(step, Cause::AlreadyDone(result))
            }
            Event::Looked(Err(Failure::Transient { why, retry_after })) => {
                no_answer(context, step, self.sent, why, retry_after)
            }
            Event::Looked(Err(Failure::Lost { why, .. })) => {
                no_answer(context, step, self.sent, why, None)
            }
            Event::Looked(Err(Failure::Fatal { why, denied })) => {
                if context.contacted() {
                    return no_answer(context, step, self.sent, why, None);
                }
                context.leave(step, Cause::Store { why, denied })
            }
            Event::StopAsked(signal) => {
                context.stop.asked(step.now, signal);
                context.leave(step, Cause::Stopped(signal))
            }
            // Without a guardian nothing can be started.
            Event::Workload(WorkloadEvent::Lost) => context.leave(step, Cause::GuardianLost),
            // No attempt is in flight, so nobody waits for this grant: back with it.
            Event::Acquired(Ok(_)) => Releasing::of_a_stray(context, step),
            // The look keeps its own time limit, and its reply comes in any case; the rest are late echoes
            // of an earlier round, or what is looked at when it is over.
            Event::Ticked
            | Event::Freed
            | Event::Cordoned(_)
            | Event::Uncordoned
            | Event::CommandStopping
            | Event::Acquired(Err(_))
            | Event::Renewed { .. }
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Workload(_) => Phase::Looking(self),
        }
    }
}
