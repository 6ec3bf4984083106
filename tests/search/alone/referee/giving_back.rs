use trafficcop::Instant;
use trafficcop_core::{Action, Notice};

use super::window::Window;
use super::{ATTEMPT, Next};
use crate::alone::plan::secs;
use crate::alone::world::World;

impl World {
    pub(super) fn release_limit(&self, began: Instant) -> Instant {
        let lease = self.rules().budget.map(|budget| budget.lease);
        let asked = self.ledger.held.as_ref().map(|held| held.asked);
        let lasts = asked
            .zip(lease)
            .map_or(Instant::FOREVER, |(asked, lease)| asked + lease);
        lasts.min(began + secs(10))
    }

    pub(super) fn judge_release(&mut self, give_up_at: Instant) -> Option<&'static str> {
        let now = self.now;
        if self.tree.is_some() || self.ledger.run.is_some() {
            return Some("the lease is given back beside a command");
        }
        let began = self.ledger.leaving.map_or(now, |(began, _)| began);
        let limit = self.release_limit(began);
        let may_leave = self.may_leave();
        let ledger = &mut self.ledger;
        if let Some(held) = &ledger.held {
            if held.renewing.is_some_and(|(_, until)| now < until) {
                return Some("a release overtakes a renewal");
            }
            if held.safe_until.is_some() {
                return Some("it gives back what was lost");
            }
            if !may_leave {
                return Some("it gives back what is kept");
            }
        } else if !ledger.ambiguous && ledger.leaving.is_none() && !ledger.offered {
            return Some("there is nothing to give back");
        }
        ledger.next = Some(Next::Leave);
        let due = ledger.leaving.map_or(Window::at(now), |(_, due)| due);
        ledger.leaving = Some((began, Window::at(Instant::FOREVER)));
        ledger.sent = now;
        if now < due.0 || self.is_late(due.1) && due.1 < Instant::FOREVER {
            return Some("it gives back too soon or too late");
        }
        (now >= limit || give_up_at != limit.min(now + ATTEMPT))
            .then_some("a release has another limit")
    }

    pub(super) fn may_leave(&self) -> bool {
        let (now, rules, ledger) = (self.now, self.rules(), &self.ledger);
        let Some(held) = &ledger.held else {
            return true;
        };
        let stopped = ledger.stop.is_some() || held.safe_until.is_some();
        match ledger.next {
            Some(Next::Restart { .. }) => {
                let long = rules
                    .hold_policy
                    .max_hold
                    .is_some_and(|span| now >= held.began + span);
                let lost = ledger.cordon.is_some() || ledger.guardian_lost;
                stopped || lost || long || now >= held.term(rules)
            }
            Some(Next::Keep { until } | Next::Pause { until }) => {
                stopped || now >= until || now >= held.kill(rules)
            }
            Some(Next::Record) => {
                self.ledger.urgent || now >= held.kill(rules) || now >= ledger.tired_at
            }
            Some(Next::Leave) | None => true,
        }
    }

    pub(super) fn judge_abandonment(&mut self, actions: &[Action]) -> Option<&'static str> {
        let now = self.now;
        let lost = self
            .ledger
            .held
            .as_ref()
            .is_some_and(|held| held.safe_until.is_some());
        let said = actions
            .iter()
            .any(|action| matches!(action, Action::Notify(Notice::LeftToRunOut { .. })));
        if self.tree.is_some() && !self.ledger.stuck {
            return Some("it is forgotten beside a command");
        }
        let tired = match self.ledger.leaving {
            Some((began, due)) => now.max(due.1) >= self.release_limit(began),
            None => now >= self.release_limit(now),
        };
        let may = lost || tired || self.ledger.stuck || self.ledger.urgent || self.ledger.refused;
        if !may {
            return Some("it is left to run out for nothing");
        }
        self.ledger.run_out = true;
        self.ledger.ambiguous = false;
        (!lost && !said).then_some("it is left to run out, which is not reported")
    }
}
