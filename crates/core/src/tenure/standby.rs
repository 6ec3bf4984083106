//! Wait for control: how often to look, and the attempt to get it.

use std::time::Duration;

use super::context::Context;
use super::held_lease::HeldLease;
use super::{Holding, Phase, Releasing, Step};
use crate::budget::RETRY;
use crate::clock::Instant;
use crate::retry::Jitter;
use crate::{Action, Cause, Event, Failure, HolderInfo, WorkloadEvent};

// Time for an answer before the end of the wait, however long the poll.
const LAST_LOOK: Duration = Duration::from_millis(250);

// Wake-ups by the store may be in vain (another instance was faster, or the kernel is wrong), and would
// cost a processor.
const FREED_GAP: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Standby {
    next_at: Instant,
    // The store may keep the lock for this instance.
    offered: bool,
}

impl Standby {
    pub(super) fn until(next_at: Instant) -> Standby {
        Standby {
            next_at,
            offered: false,
        }
    }

    pub(super) fn listens(&self, context: &Context) -> bool {
        self.next_at == Instant::FOREVER && !context.is_cordoned() && context.is_fit()
    }

    pub(super) fn wake_at(&self, context: &Context) -> Instant {
        if context.is_cordoned() {
            return context.wait_ends();
        }
        let looks = context.is_fit() || self.looks_for_a_result(context);
        let due = if looks {
            self.due(context)
        } else {
            Instant::FOREVER
        };
        due.min(context.asks_at()).min(context.wait_ends())
    }

    fn looks_for_a_result(&self, context: &Context) -> bool {
        context.rules.once.is_some()
            && context.unfit().is_some()
            && !context.is_asking()
            && !context.is_cordoned()
    }

    fn due(&self, context: &Context) -> Instant {
        self.next_at.min(context.doorbell.look_at())
    }

    pub(super) fn step(mut self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        match event {
            Event::Ticked | Event::Cordoned(_) => self.look(context, step),
            Event::Uncordoned => {
                // An instance that only the store wakes would not learn which holder it stands behind.
                if self.next_at == Instant::FOREVER {
                    self.next_at = step.now;
                }
                self.look(context, step)
            }
            Event::Freed => {
                let woken = context.woken.map(|woken| woken + FREED_GAP);
                self.next_at = woken.map_or(step.now, |next| next.max(step.now));
                context.woken = Some(self.next_at);
                self.offered = true;
                self.look(context, step)
            }
            Event::Workload(WorkloadEvent::Condition(answer)) => {
                let looks = match answer {
                    Ok(()) => context.is_known_as_unfit(),
                    Err(_) => context.rules.once.is_some(),
                };
                if looks && self.next_at == Instant::FOREVER {
                    self.next_at = step.now;
                }
                self.look(context, step)
            }
            Event::StopAsked(signal) => {
                context.stop.asked(step.now, signal);
                context.leave(step, Cause::Stopped(signal))
            }
            Event::Workload(WorkloadEvent::Lost) => context.leave(step, Cause::GuardianLost),
            Event::Acquired(Ok(_)) => Releasing::return_unasked_grant(context, step),
            Event::Acquired(Err(_))
            | Event::CommandStopping
            | Event::Looked(_)
            | Event::Renewed { .. }
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Workload(_) => self.look(context, step),
        }
    }

    pub(super) fn look(self, context: &mut Context, step: &mut Step) -> Phase {
        let is_due = step.now >= self.due(context);
        let looks_for_a_result = is_due && self.looks_for_a_result(context);
        // Before the cordon: a wait ends on a cordoned machine as well.
        if context.out_of_time(step.now) {
            if looks_for_a_result {
                return Looking::begin(context, step);
            }
            let cause = context.not_obtained();
            return context.leave(step, cause);
        }
        if context.keeps_out(step) {
            context.stands_by(step);
            if self.keeps_something(context) {
                return Releasing::decline_offer(context, step);
            }
            return Phase::Standby(self);
        }
        context.report_fitness(step);
        if context.unfit().is_some() {
            context.stands_by(step);
            if self.keeps_something(context) {
                return Releasing::decline_offer(context, step);
            }
            if looks_for_a_result {
                return Looking::begin(context, step);
            }
        }
        if is_due && context.is_fit_at(step.now) {
            context.attempt_sent(step.now);
            context.doorbell.looks(step.now);
            step.act(Action::Acquire {
                give_up_at: context.attempt_ends(step.now),
            });
            return Phase::Acquiring(Acquiring { sent: step.now });
        }
        context.asks(step);
        // Not before the answer: this instance may take control at once.
        if context.is_fit_at(step.now) {
            context.stands_by(step);
        }
        Phase::Standby(self)
    }

    /// Tells whether the store may keep the lock for this instance, which must then give it up.
    fn keeps_something(&self, context: &mut Context) -> bool {
        self.offered || context.take_ambiguous()
    }
}

#[derive(Debug)]
pub(super) struct Acquiring {
    sent: Instant,
}

impl Acquiring {
    pub(super) fn step(self, context: &mut Context, step: &mut Step, event: Event) -> Phase {
        match event {
            Event::Acquired(Ok(grant)) => {
                let held_lease = HeldLease::new(context.rules.budget, grant, step.now);
                Holding::begin(held_lease, context, step)
            }
            Event::Acquired(Err(Failure::Held(holder))) => self.held(context, step, holder),
            // An earlier attempt, or the look under the lease that gave this answer, may have left
            // something.
            Event::Acquired(Err(Failure::AlreadyDone(result))) => {
                Releasing::undo_uncertain_acquire(context, step, Cause::AlreadyDone(result))
            }
            Event::Acquired(Err(Failure::Transient { why, retry_after })) => {
                context.may_have_obtained();
                no_answer(context, step, self.sent, why, retry_after)
            }
            Event::Acquired(Err(Failure::Lost { why, .. })) => {
                context.may_have_obtained();
                no_answer(context, step, self.sent, why, None)
            }
            Event::Acquired(Err(Failure::Fatal { why, denied })) => {
                if context.contacted() {
                    context.may_have_obtained();
                }
                refusal(context, step, self.sent, why, denied)
            }
            Event::StopAsked(signal) => {
                context.stop.asked(step.now, signal);
                Releasing::of_an_attempt(step, Cause::Stopped(signal))
            }
            Event::Workload(WorkloadEvent::Lost) => {
                context.guardian_lost = true;
                Releasing::of_an_attempt(step, Cause::GuardianLost)
            }
            // A cordoned machine gives back what it obtains, and the store repeats an offer when this
            // instance listens again.
            Event::Ticked
            | Event::Freed
            | Event::Cordoned(_)
            | Event::Uncordoned
            | Event::CommandStopping
            | Event::Looked(_)
            | Event::Renewed { .. }
            | Event::Released(_)
            | Event::Recorded(_)
            | Event::Workload(_) => Phase::Acquiring(self),
        }
    }

    fn held(self, context: &mut Context, step: &mut Step, holder: HolderInfo) -> Phase {
        context.answered(step);
        let next_at = match context.rules.poll {
            Some(poll) => {
                step.attend(context.doorbell.finds(step.now, &holder));
                let kept = context.keeps_the_interval(&holder);
                let jitter = &mut context.jitter;
                let rung = context.doorbell.interval(step.now, poll, jitter);
                let wait =
                    rung.unwrap_or_else(|| poll_interval(poll, holder.draining, kept, jitter));
                // Look just when the lease runs out: a fail-over would wait for the spread.
                let due = holder.expires.filter(|due| *due > step.now);
                let next_at = (step.now + wait).min(due.unwrap_or(Instant::FOREVER));
                last_look(context, step.now, next_at)
            }
            None => Instant::FOREVER,
        };
        context.sees(step, holder);
        Standby::until(next_at).look(context, step)
    }
}

pub(super) fn no_answer(
    context: &mut Context,
    step: &mut Step,
    sent: Instant,
    why: String,
    retry_after: Option<Duration>,
) -> Phase {
    context.doubts(step, why.clone(), None);
    if !context.contacted() && step.now >= context.patience_ends() {
        return context.leave(step, Cause::Store { why, denied: false });
    }
    ask_again(context, step, sent, retry_after, Instant::FOREVER)
}

/// Before the first contact, a refusal ends this instance. Later, while keys are being rotated, only a
/// credential that stays refused ends it, because a restart would read a new one.
fn refusal(
    context: &mut Context,
    step: &mut Step,
    sent: Instant,
    why: String,
    denied: bool,
) -> Phase {
    if !context.contacted() {
        return context.leave(step, Cause::Store { why, denied });
    }
    if !denied {
        return no_answer(context, step, sent, why, None);
    }
    let leaves_at = context.refused(step, &why);
    if step.now >= leaves_at {
        let why = format!(
            "{why}; refused for as long as --auth-patience: start again with a valid credential"
        );
        return context.leave(step, Cause::Store { why, denied });
    }
    ask_again(context, step, sent, None, leaves_at)
}

fn ask_again(
    context: &mut Context,
    step: &mut Step,
    sent: Instant,
    retry_after: Option<Duration>,
    latest: Instant,
) -> Phase {
    let again = context
        .jitter
        .again_at(sent, step.now, retry_after, Instant::FOREVER);
    let next_at = if context.contacted() {
        // A slow poll, for cost or because the standbys are many, stays slow in an outage.
        let poll = context.rules.poll.unwrap_or(RETRY);
        again.max(sent + poll_interval(poll, false, true, &mut context.jitter))
    } else {
        again.min(context.patience_ends())
    };
    let next_at = last_look(context, step.now, next_at.min(latest));
    Standby::until(next_at).look(context, step)
}

/// A look at the end of the wait would come too late to count.
fn last_look(context: &Context, now: Instant, next_at: Instant) -> Instant {
    let end = context.wait_ends();
    let last = end - LAST_LOOK;
    if end != Instant::FOREVER && next_at >= end && last > now {
        return last;
    }
    next_at
}

/// Look whether a task that is to be done once is over, while the machine is not fit.
#[derive(Debug)]
pub(super) struct Looking {
    sent: Instant,
}

impl Looking {
    pub(super) fn begin(context: &mut Context, step: &mut Step) -> Phase {
        context.attempt_sent(step.now);
        // This look answers the ring; else the next would follow at once, and so on.
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
                refusal(context, step, self.sent, why, denied)
            }
            Event::StopAsked(signal) => {
                context.stop.asked(step.now, signal);
                context.leave(step, Cause::Stopped(signal))
            }
            Event::Workload(WorkloadEvent::Lost) => context.leave(step, Cause::GuardianLost),
            Event::Acquired(Ok(_)) => Releasing::return_unasked_grant(context, step),
            // The rest can wait until the look, which has a time limit, is over.
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

// Control is about to change, and a drain is too short to cost much.
const FAST: u32 = 8;

const FASTEST: Duration = Duration::from_millis(250);

// A thousand standbys stay within a blob's 500 requests a second.
const SLOWEST: Duration = Duration::from_secs(2);

pub(super) fn poll_interval(
    poll: Duration,
    draining: bool,
    kept: bool,
    jitter: &mut Jitter,
) -> Duration {
    let interval = if draining {
        (poll / FAST).clamp(FASTEST, SLOWEST).min(poll)
    } else {
        poll
    };
    // Many standbys may come to an interval at one moment (one clock started them, or one drain informed
    // them). They would look together from then on.
    if kept {
        jitter.spread(interval)
    } else {
        jitter.rest_of(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn ends(poll: Duration, draining: bool, kept: bool) -> (Duration, Duration) {
        let mut jitter = Jitter::new(7);
        let waits = (0..10_000).map(|_| poll_interval(poll, draining, kept, &mut jitter));
        waits.fold((Duration::MAX, Duration::ZERO), |ends, wait| {
            (ends.0.min(wait), ends.1.max(wait))
        })
    }

    #[test]
    fn standby_waits_for_its_poll_and_an_eighth_of_it_while_the_holder_drains() {
        for (poll, fast) in [
            (100, 100),
            (250, 250),
            (500, 250),
            (2000, 250),
            (4000, 500),
            (12_000, 1500),
            (16_000, 2000),
            (3_600_000, 2000),
        ] {
            for (draining, interval) in [(false, poll), (true, fast)] {
                let fifth = ms(interval) / 5;
                assert_eq!(
                    ends(ms(poll), draining, true),
                    (ms(interval) - fifth, ms(interval) + fifth),
                    "poll {poll}, draining {draining}"
                );
            }
        }
    }

    #[test]
    fn standby_that_comes_to_an_interval_waits_for_any_part_of_it() {
        for (draining, interval) in [(false, 2000), (true, 250)] {
            let (least, most) = ends(ms(2000), draining, false);
            assert!(least < ms(interval) / 100, "{least:?}");
            assert!(most > ms(interval) && most <= ms(interval) * 6 / 5);
        }
    }

    #[test]
    fn change_at_any_moment_is_seen_after_half_a_poll_in_the_median() {
        let poll = ms(2000);
        let mut jitter = Jitter::new(7);
        let mut looks = vec![Duration::ZERO];
        for kept in std::iter::once(false).chain(std::iter::repeat_n(true, 10_000)) {
            let last = looks[looks.len() - 1];
            looks.push(last + poll_interval(poll, false, kept, &mut jitter));
        }
        let end = looks[looks.len() - 1];
        let moments = (0..20_000).map(|n| end * n / 20_000);
        let mut waits: Vec<Duration> = moments
            .map(|at| looks[looks.partition_point(|look| *look < at)] - at)
            .collect();
        waits.sort_unstable();
        let median = waits[waits.len() / 2];
        assert!(median <= poll * 51 / 100, "{median:?}");
        let mut first: Vec<Duration> = (0..10_000)
            .map(|_| poll_interval(poll, false, false, &mut jitter))
            .collect();
        first.sort_unstable();
        assert!(first[5000] <= poll * 51 / 100, "{:?}", first[5000]);
    }
}
