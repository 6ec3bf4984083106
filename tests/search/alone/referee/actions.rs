use trafficcop::Instant;
use trafficcop_core::{Action, Outcome, State};

use super::settings::outcome;
use super::window::Window;
use super::{ATTEMPT, Next};
use crate::alone::plan::secs;
use crate::alone::world::{BEGIN, Kind, World};

impl World {
    pub(crate) fn judge(&mut self, at: usize, action: &Action, actions: &[Action]) {
        let wrong = match action {
            Action::Acquire { give_up_at } => self.judge_attempt(*give_up_at),
            Action::Withdraw { give_up_at } => self.judge_withdrawal(*give_up_at),
            Action::Renew { give_up_at } => self.judge_renewal(*give_up_at),
            Action::Start(start) => {
                self.judge_start(*start, at.checked_sub(1).map(|at| &actions[at]))
            }
            Action::Extend(deadlines) => self.judge_extension(at, *deadlines),
            Action::Drain {
                signal,
                end_of_grace,
            } => self.judge_drain(*signal, *end_of_grace),
            Action::Kill => self.judge_kill(),
            Action::Announce => self.judge_announcement(),
            Action::Record {
                outcome,
                give_up_at,
            } => self.judge_record(*outcome, *give_up_at),
            Action::Release { give_up_at } => self.judge_release(*give_up_at),
            Action::Abandon => self.judge_abandonment(actions),
            Action::StandBy => {
                let twice = std::mem::replace(&mut self.ledger.standing, true);
                let knows = self.ledger.cordon.is_some() || self.unfit().is_some() || self.is_fit();
                let wrong = (!knows).then_some("it stands by before it is known to be fit");
                wrong.or(twice.then_some("it is told to stand by twice"))
            }
            Action::TenureOver { cause } => self.judge_end_of_tenure(cause),
            Action::Notify(notice) => self.judge_notice(notice),
            Action::Attend { bell } => self.judge_listening(*bell),
            Action::Ask { give_up_at } => self.judge_question(*give_up_at),
            Action::Look { give_up_at } => self.judge_look(*give_up_at),
        };
        if let Some(wrong) = wrong {
            self.violate(format!("{wrong}: {action:?}"));
        }
    }

    fn judge_attempt(&mut self, give_up_at: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        self.goes_on();
        if !self.is_fit() {
            return Some("it competes without a positive answer of its condition");
        }
        let ledger = &mut self.ledger;
        if ledger.held.is_some() || ledger.run.is_some() || ledger.tenure || self.call.is_some() {
            return Some("it competes for what it has");
        }
        if ledger.cordon.is_some() || ledger.stop.is_some() || ledger.guardian_lost {
            return Some("it competes although it must not");
        }
        if ledger.is_out_of_time(&rules, now) {
            return Some("it competes although the wait is over");
        }
        let Some(look) = ledger.due() else {
            return Some("it looks unasked");
        };
        (ledger.look, ledger.offered) = (None, false);
        if let Some((since, span, kept)) = ledger
            .waits
            .take()
            .filter(|_| ledger.bell.look.is_none() && ledger.fitness.is_none())
        {
            let hundredths = now.since(since).as_secs_f64() / span.as_secs_f64() * 100.0;
            self.waited.push((kept, hundredths));
        }
        self.ledger.first_sent.get_or_insert(now);
        let expected = self.attempt_ends();
        let ledger = &mut self.ledger;
        (ledger.bell.looked, ledger.bell.look) = (Some(now), None);
        ledger.sent = now;
        if now < look.0 {
            return Some("it looks too soon");
        }
        let fitness = self.ledger.fitness.as_ref();
        let yes_at = fitness.map_or(BEGIN, |fitness| fitness.yes_at);
        if self.is_late(look.1.max(self.ledger.free_since).max(yes_at)) {
            return Some("it looks too late");
        }
        (give_up_at != expected).then_some("an attempt has another limit")
    }

    /// Requires that a tenure has ended before the next attempt, even after a ring.
    pub(super) fn goes_on(&mut self) {
        let waits = *self.tenure.state() == State::Standby;
        let had = self.ledger.leaving.is_some() || self.ledger.held.is_some() && waits;
        if had && !self.ledger.tenure {
            let (now, rules) = (self.now, self.plan.rules.clone());
            self.ledger
                .follow(now, State::Releasing, State::Standby, &rules);
            self.ledger.followed = true;
        }
    }

    pub(super) fn attempt_ends(&self) -> Instant {
        let (now, rules) = (self.now, self.rules());
        let end = now + rules.budget.map_or(ATTEMPT, |b| ATTEMPT.min(b.lease / 2));
        if self.ledger.contacted {
            return end;
        }
        end.min(self.ledger.patience_ends(rules).max(now + secs(1)))
    }

    fn judge_withdrawal(&mut self, give_up_at: Instant) -> Option<&'static str> {
        let now = self.now;
        let asked = self.ledger.stop.is_some() || self.ledger.guardian_lost;
        if !asked || !self.call.is_some_and(|call| call.kind == Kind::Acquire) {
            return Some("an attempt is withdrawn for nothing");
        }
        self.ledger.leaving = Some((now, Window(now, Instant::FOREVER)));
        self.ledger.sent = now;
        self.ledger.ambiguous = false;
        (give_up_at != now + ATTEMPT).then_some("a withdrawal has another limit")
    }

    fn judge_renewal(&mut self, give_up_at: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        // The limit of the following state applies.
        let limit = self.limit(*self.tenure.state());
        let Some(held) = &mut self.ledger.held else {
            return Some("it renews what it has not");
        };
        if held.renewing.is_some() || self.ledger.leaving.is_some() {
            return Some("a renewal overtakes what is in flight");
        }
        if now >= limit {
            return Some("it renews what is over");
        }
        let attempt = rules.budget.map_or(ATTEMPT, |b| b.attempt);
        let due = held.renewal;
        (held.renewing, held.asked) = (Some((now, give_up_at)), now);
        if now < due.0 {
            return Some("it renews too soon");
        }
        if self.is_late(due.1) {
            return Some("it renews too late");
        }
        (give_up_at != limit.min(now + attempt)).then_some("a renewal has another limit")
    }

    fn judge_record(&mut self, is: Outcome, give_up_at: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let limit = self.limit(State::Recording);
        let (Some(held), Some((_, due))) = (&self.ledger.held, self.ledger.record) else {
            return Some("nothing is to be recorded");
        };
        if self.ledger.next != Some(Next::Record)
            || self.tree.is_some()
            || self.ledger.run.is_some()
        {
            return Some("it is not over");
        }
        let exit = self.ledger.exit?;
        if is != outcome(&rules, exit, held.failed) {
            return Some("another outcome");
        }
        if now < due.0 || self.is_late(due.1) {
            return Some("it is recorded too soon or too late");
        }
        self.ledger.record = Some((now, Window::at(Instant::FOREVER)));
        (now >= limit || give_up_at != limit.min(now + ATTEMPT))
            .then_some("a record has another limit")
    }
}
