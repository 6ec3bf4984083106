//! Whether this machine is fit to take control, as far as the rounds of one instance need to know.
//!
//! Called by the states that wait for control. When an answer counts is [`Condition`]'s to say.

use std::time::Duration;

use super::{Context, LEAST_ATTEMPT, Step};
use crate::clock::Instant;
use crate::condition::Condition;
use crate::{Action, Event, Notice, Unfit, WorkloadEvent};

// How long before the end of a wait there is no answer any more of whether this machine is fit, so that
// what follows from that is done in time.
const LAST_WORD: Duration = Duration::from_millis(250);

impl Context {
    /// Only while it is fit to does this machine take control: asked so often, by somebody who answers.
    pub(in super::super) fn only_if(&mut self, every: Duration) {
        self.condition = Some(Condition::new(every));
    }

    /// Takes in an answer, whatever else it means. People are told where we stand by.
    pub(in super::super) fn hears_of_the_condition(&mut self, now: Instant, event: &Event) {
        if let Event::Workload(WorkloadEvent::Condition(answer)) = event
            && let Some(condition) = &mut self.condition
        {
            condition.answered(now, *answer);
        }
    }

    /// When this machine is to be asked whether it is fit.
    pub(in super::super) fn asks_at(&self) -> Instant {
        let condition = self.condition.as_ref();
        condition.map_or(Instant::FOREVER, Condition::due)
    }

    /// Asks, if it is time to.
    pub(in super::super) fn asks(&mut self, step: &mut Step) {
        if step.now < self.asks_at() {
            return;
        }
        // Whoever does not wait long hears of a condition that hangs before the wait is over.
        let end = self.wait_ends() - LAST_WORD;
        let end = match end > step.now + LEAST_ATTEMPT {
            true => end,
            false => Instant::FOREVER,
        };
        if let Some(condition) = &mut self.condition {
            let give_up_at = condition.ask(step.now, end);
            step.act(Action::Ask { give_up_at });
        }
    }

    /// Why this machine is not fit to take control, as it was said last.
    pub(in super::super) fn unfit(&self) -> Option<Unfit> {
        self.condition.as_ref().and_then(Condition::refusal)
    }

    /// Whether people were told that it is not.
    pub(in super::super) fn is_known_as_unfit(&self) -> bool {
        self.told_unfit.is_some()
    }

    /// Whether it is being asked.
    pub(in super::super) fn is_asking(&self) -> bool {
        self.condition.as_ref().is_some_and(Condition::is_asking)
    }

    /// Whether it is fit, by an answer that counts at this moment.
    pub(in super::super) fn is_fit_at(&self, now: Instant) -> bool {
        let condition = self.condition.as_ref();
        condition.is_none_or(|condition| condition.holds(now))
    }

    /// Whether it is, for as long as the last answer counts.
    pub(in super::super) fn is_fit(&self) -> bool {
        self.condition.as_ref().is_none_or(Condition::is_yes)
    }

    /// Says whether it is fit, where that is news.
    pub(in super::super) fn tells_of_fitness(&mut self, step: &mut Step) {
        if let Some(unfit) = self.unfit() {
            if self.told_unfit.replace(unfit) != Some(unfit) {
                step.report(Notice::Unfit(unfit));
                // Whoever is in control by the time we compete again is news.
                self.seen = None;
            }
        } else if self.told_unfit.take().is_some() {
            step.report(Notice::Fit);
        }
    }
}
