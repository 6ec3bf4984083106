//! Fitness of this machine to take control, for the states that wait.

use std::time::Duration;

use super::{Context, LEAST_ATTEMPT, Step};
use crate::clock::Instant;
use crate::condition::Condition;
use crate::{Action, Event, Notice, Unfit, WorkloadEvent};

const LAST_WORD: Duration = Duration::from_millis(250);

impl Context {
    pub(in super::super) fn only_if(&mut self, every: Duration) {
        self.condition = Some(Condition::new(every));
    }

    pub(in super::super) fn hears_of_the_condition(&mut self, now: Instant, event: &Event) {
        if let Event::Workload(WorkloadEvent::Condition(answer)) = event
            && let Some(condition) = &mut self.condition
        {
            condition.answered(now, *answer);
        }
    }

    pub(in super::super) fn asks_at(&self) -> Instant {
        let condition = self.condition.as_ref();
        condition.map_or(Instant::FOREVER, Condition::due)
    }

    pub(in super::super) fn asks(&mut self, step: &mut Step) {
        if step.now < self.asks_at() {
            return;
        }
        // The end of a short wait must come after that of a condition that hangs.
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

    pub(in super::super) fn unfit(&self) -> Option<Unfit> {
        self.condition.as_ref().and_then(Condition::refusal)
    }

    pub(in super::super) fn is_known_as_unfit(&self) -> bool {
        self.told_unfit.is_some()
    }

    pub(in super::super) fn is_asking(&self) -> bool {
        self.condition.as_ref().is_some_and(Condition::is_asking)
    }

    pub(in super::super) fn is_fit_at(&self, now: Instant) -> bool {
        let condition = self.condition.as_ref();
        condition.is_none_or(|condition| condition.holds(now))
    }

    /// For as long as the answer counts.
    pub(in super::super) fn is_fit(&self) -> bool {
        self.condition.as_ref().is_none_or(Condition::is_yes)
    }

    pub(in super::super) fn report_fitness(&mut self, step: &mut Step) {
        if let Some(unfit) = self.unfit() {
            if self.told_unfit.replace(unfit) != Some(unfit) {
                step.report(Notice::Unfit(unfit));
                // Report the holder anew when this instance competes again.
                self.seen = None;
            }
        } else if self.told_unfit.take().is_some() {
            step.report(Notice::Fit);
        }
    }
}
