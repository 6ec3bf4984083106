use trafficcop_core::{Cause, Ending, Exit, HandOverReason, IfLost};

use super::{Held, Why, why};
use crate::alone::world::World;

impl World {
    pub(super) fn judge_end_of_tenure(&mut self, cause: &Cause) -> Option<&'static str> {
        if !std::mem::take(&mut self.ledger.tenure) {
            return Some("no tenure ends");
        }
        if self.ledger.run.is_some() && !self.ledger.stuck {
            return Some("the tenure ends beside its command");
        }
        self.ledger.last = Some(why(cause));
        self.ledger.was_hung = matches!(cause, Cause::GivenUp(HandOverReason::Hung(_)));
        if !self.ledger.stuck
            && self
                .ledger
                .expected
                .is_some_and(|expected| expected != why(cause))
        {
            return Some("the tenure ends for another reason");
        }
        self.judge_cause(cause)
    }

    fn judge_cause(&self, cause: &Cause) -> Option<&'static str> {
        if self.ledger.stuck {
            return None;
        }
        let (now, rules, ledger) = (self.now, self.rules(), &self.ledger);
        let long = rules.hold_policy.max_hold.is_some();
        let lost = |held: &Held| held.safe_until.is_some();
        let paused = ledger.paused;
        let holds = match why(cause) {
            Why::Ended => ledger.natural || ledger.hung.is_some() && rules.once.is_some(),
            Why::NotStarted => ledger.not_started.is_some(),
            Why::Stopped => {
                let first = ledger.stop.map(|(_, signal)| signal);
                matches!(cause, Cause::Stopped(signal) if first == Some(*signal))
            }
            Why::Doubt => ledger.held.as_ref().is_some_and(|held| held.doubted),
            Why::Lost => ledger.held.as_ref().is_some_and(lost),
            Why::Guardian => ledger.guardian_lost || ledger.stuck,
            Why::HandOver => long || paused,
            Why::Cordoned if ledger.last.is_some() => ledger.cordoned,
            Why::Cordoned => ledger.cordon.is_some() && ledger.is_out_of_time(rules, now),
            Why::GivenUp => match cause {
                Cause::GivenUp(HandOverReason::Hung(hung)) => ledger.hung == Some(*hung),
                _ => ledger.spent || ledger.hook_failed,
            },
            Why::NotRecorded => {
                // The loss takes precedence.
                let was_lost = ledger.held.as_ref().is_some_and(lost);
                let tells = match cause {
                    Cause::NotRecorded { why } => why.contains("lost"),
                    _ => false,
                };
                let other = !was_lost || ledger.urgent || ledger.record_failed;
                let other = other || ledger.exit.is_none();
                let ended = ledger.natural || ledger.hung.is_some();
                rules.once.is_some() && ended && (other || tells)
            }
            Why::AlreadyDone => ledger.done_told,
            Why::Unfit => {
                let said = matches!(cause, Cause::Unfit(why) if self.is_unfit(*why));
                said && ledger.is_out_of_time(rules, now)
            }
            _ if self.is_kept_by_fitness(why(cause)) => false,
            Why::NotObtained if ledger.cordon.is_some() && ledger.leaving.is_none() => false,
            Why::NotObtained => ledger.contacted && ledger.is_out_of_time(rules, now),
            Why::Store => {
                let tired = now >= ledger.patience_ends(rules) || ledger.is_out_of_time(rules, now);
                !ledger.contacted && (ledger.fatal || tired)
            }
        };
        (!holds).then_some("it ends for no such reason")
    }

    pub(super) fn judge_ending(&mut self, ending: &Ending) -> Option<&'static str> {
        let rules = self.rules().clone();
        if self.tree.is_some() && !self.ledger.stuck {
            return Some("it ends while its command lives");
        }
        if self.ledger.tenure {
            return Some("a tenure does not end");
        }
        if self.ledger.ambiguous {
            return Some("it leaves what it may have");
        }
        let ended = why(&ending.cause);
        let look = self.ledger.due();
        let left = self.ledger.leaving.map_or(self.now, |(began, _)| began);
        let lately = self.resumed.max(self.ledger.free_since);
        let missed = look.is_some_and(|look| look.1 < left && look.1 >= lately);
        // Nothing is due while the condition's answer is missing.
        let fitness = self.ledger.fitness.as_ref();
        let fit = fitness.is_none_or(|fitness| {
            fitness.is_said() && look.is_some_and(|look| look.1 < fitness.due())
        });
        let fit =
            fit && fitness.is_none_or(|fitness| look.is_some_and(|look| look.1 >= fitness.yes_at));
        if missed && fit && ended == Why::NotObtained {
            return Some("it gives up before its last look");
        }
        let competes = match self.ledger.last {
            Some(Why::HandOver | Why::GivenUp | Why::Cordoned) => true,
            Some(Why::Doubt | Why::Lost) => rules.if_lost == IfLost::Compete,
            _ => false,
        };
        if !self.ledger.stuck {
            // Or the wait is over, which a tenure without a command does not end.
            let asked = matches!(ended, Why::Stopped | Why::Guardian)
                || self.ledger.is_out_of_time(&rules, self.now);
            if self
                .ledger
                .last
                .is_some_and(|last| !competes && last != ended || competes && !asked)
            {
                return Some("it ends for another reason than its tenure");
            }
            // A lease that an attempt may have obtained need not be reported.
            let released = self.ledger.released && (self.ledger.last.is_some() || ending.released);
            if released != ending.released {
                return Some("it does not know whether the lease was given back");
            }
            let unfinished = rules.once.is_some() && ended == Why::Stopped;
            let exit = self
                .ledger
                .exit
                .filter(|exit| !unfinished || *exit != Exit::Code(0));
            if exit != ending.exit {
                return Some("it ends with another status");
            }
            // An operator can break it unknown to the instance.
            let known = self.ledger.overlapped && self.ledger.broken.is_none();
            let known = known || self.ledger.found_lost;
            if known && !ending.overlap && !self.ledger.said {
                return Some("it overlapped with another, and does not report it");
            }
            if ending.overlap && !self.may_have_overlapped() {
                return Some("there was no overlap");
            }
            let told = self
                .ledger
                .held
                .as_ref()
                .is_some_and(|held| held.safe_until.is_some());
            // It cannot know of a later break.
            let knew = self.ledger.broken;
            let told = told && knew.is_none_or(|broken| broken <= self.ledger.told_of);
            if told && self.ledger.overlapped && !ending.overlap {
                return Some("it overlapped with another, and does not report it");
            }
        } else if !ending.overlap || ending.released {
            return Some("what cannot be killed may run beside another");
        }
        self.judge_cause(&ending.cause)
    }

    pub(super) fn may_have_overlapped(&self) -> bool {
        let held = self.ledger.held.as_ref();
        let lost = held.is_some_and(|held| held.safe_until.is_some());
        // A lease confirmed after the tree's end was not lost before.
        let since = held
            .zip(self.ledger.empty_at)
            .is_some_and(|(held, at)| held.confirmed >= at);
        self.ledger.overlapped || self.ledger.outlived || lost && !since || self.ledger.found_lost
    }
}
