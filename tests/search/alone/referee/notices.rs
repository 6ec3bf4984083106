use trafficcop_core::{Cause, Exit, HandOverReason, Notice};

use super::Next;
use super::settings::outcome;
use crate::alone::plan::secs;
use crate::alone::world::World;

impl World {
    pub(super) fn judge_notice(&mut self, notice: &Notice) -> Option<&'static str> {
        let now = self.now;
        match notice {
            Notice::Doubt { .. } => {
                let last = self.ledger.doubt.replace(now);
                last.is_some_and(|last| now < last + secs(60))
                    .then_some("it is reported again and again")
            }
            // Reported at once despite a doubt; the holder is reported again after it.
            Notice::Refused { .. } => {
                self.ledger.doubt = Some(now);
                self.ledger.seen = None;
                let last = self.ledger.denied_at.replace(now);
                last.is_some_and(|last| now < last + secs(60))
                    .then_some("a refusal is reported again and again")
            }
            Notice::Recovered => {
                self.ledger.doubt_is = None;
                self.ledger.denied_at = None;
                let none = self.ledger.doubt.take().is_none();
                none.then_some("there was no doubt")
            }
            Notice::Overlapped => {
                self.ledger.said = true;
                (!self.may_have_overlapped()).then_some("there was no overlap")
            }
            Notice::Unfit(_) | Notice::Fit => self.judge_word_of_fitness(notice),
            Notice::Draining(Cause::GivenUp(HandOverReason::Hung(hung))) => {
                (self.ledger.hung != Some(*hung)).then_some("it does not hang so")
            }
            Notice::Cordoned { .. } => {
                let twice = std::mem::replace(&mut self.ledger.told_cordoned, true);
                // The holder at the next look is reported anew.
                self.ledger.seen = None;
                (twice || self.ledger.cordon.is_none())
                    .then_some("it says again that it is cordoned")
            }
            Notice::Uncordoned => {
                let told = std::mem::take(&mut self.ledger.told_cordoned);
                (!told).then_some("a cordon was not reported")
            }
            Notice::Draining(Cause::Doubt { why }) => {
                let before = self.ledger.doubt_was.as_ref().is_none_or(|was| was == why);
                let last = self.ledger.doubt_is.as_ref().filter(|_| !before);
                last.is_some_and(|last| last != why && !self.ledger.acting)
                    .then_some("it is stopped for another doubt")
            }
            Notice::InControl { token } => {
                let ours = self.ledger.held.as_ref().map(|held| held.token);
                (ours != Some(*token)).then_some("another token")
            }
            Notice::CommandEnded(exit) => {
                let number = match exit {
                    Exit::Code(status) => i32::from(*status),
                    Exit::Signal(signal) => 128 + signal,
                };
                (exit.as_status() != number).then_some("no shell shows that status")
            }
            Notice::BackingOff { until, number } => {
                let held = self.ledger.held.as_ref();
                let restarts = held.map_or(0, |held| held.restarts.len());
                let next = Next::Restart { until: *until };
                let is = self.ledger.next == Some(next) && restarts == *number as usize;
                (!is).then_some("it is not started again then")
            }
            Notice::Keeping { until } => {
                let next = Next::Keep { until: *until };
                (self.ledger.next != Some(next)).then_some("it is not kept until then")
            }
            Notice::Pausing { until } => {
                let next = Next::Pause { until: *until };
                (self.ledger.next != Some(next)).then_some("it does not pause until then")
            }
            Notice::Recorded {
                outcome: is,
                attempt,
            } => {
                let failed = self.ledger.held.as_ref().map_or(0, |held| held.failed);
                let exit = self.ledger.exit.unwrap_or(Exit::Code(0));
                let wrong = *is != outcome(self.rules(), exit, failed) || *attempt != failed + 1;
                wrong.then_some("that is not what was recorded")
            }
            Notice::FoundLost { .. } => {
                let (held, empty) = (self.ledger.held.as_ref(), self.ledger.empty_at);
                let lease = self
                    .rules()
                    .budget
                    .map(|budget| budget.lease - budget.lease / 50);
                let since = held.is_some_and(|held| empty.is_some_and(|at| at > held.confirmed));
                let ran_out = held
                    .zip(lease)
                    .is_some_and(|(held, lease)| now >= held.confirmed + lease);
                self.ledger.found_lost = since && !ran_out;
                None
            }
            _ => None,
        }
    }
}
