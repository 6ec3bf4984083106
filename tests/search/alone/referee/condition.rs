//! The condition must be asked in time, and nothing is taken without a positive answer.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{Failure, Notice, State, Unfit};

use super::window::{Window, again};
use super::{RETRY, Why};
use crate::alone::plan::{ms, secs};
use crate::alone::world::World;

#[derive(Clone, Debug)]
pub(super) struct Fitness {
    every: Duration,
    /// Time until which the answer to the pending question counts.
    asking: Option<Instant>,
    pub(super) answer: Option<(Instant, Result<(), Unfit>)>,
    /// The answer known when the instance began to leave.
    left: Option<Option<Result<(), Unfit>>>,
    pub(super) yes_at: Instant,
    pub(super) told: Option<Unfit>,
}

impl Fitness {
    pub(super) fn new(every: Duration) -> Fitness {
        Fitness {
            every: every.max(ms(50)),
            asking: None,
            answer: None,
            left: None,
            yes_at: Instant::ZERO,
            told: None,
        }
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    pub(super) fn is_fit(&self, now: Instant) -> bool {
        self.is_said() && now < self.due()
    }

    pub(super) fn is_said(&self) -> bool {
        self.asking.is_none() && matches!(self.answer, Some((_, Ok(()))))
    }

    pub(super) fn unfit(&self) -> Option<Unfit> {
        self.answer.and_then(|(_, answer)| answer.err())
    }

    pub(super) fn leaves(&mut self, leaves: bool) {
        let known = self.answer.map(|(_, answer)| answer);
        self.left = leaves.then_some(known);
    }

    fn when_it_left(&self) -> Option<Result<(), Unfit>> {
        let known = self.answer.map(|(_, answer)| answer);
        self.left.unwrap_or(known)
    }

    pub(super) fn due(&self) -> Instant {
        self.answer.map_or(Instant::ZERO, |(at, _)| at + self.every)
    }
}

impl World {
    pub(super) fn unfit(&self) -> Option<Unfit> {
        self.ledger.fitness.as_ref().and_then(Fitness::unfit)
    }

    pub(super) fn is_fit(&self) -> bool {
        let fitness = self.ledger.fitness.as_ref();
        fitness.is_none_or(|fitness| fitness.is_fit(self.now))
    }

    pub(super) fn hear_of_the_condition(&mut self, state: State, answer: Result<(), Unfit>) {
        let (now, once) = (self.now, self.plan.rules.once.is_some());
        let waits = state == State::Standby && self.ledger.looking.is_none();
        let Some(fitness) = &mut self.ledger.fitness else {
            return;
        };
        if let Some(give_up_at) = fitness.asking.take() {
            let answer = match answer {
                Ok(()) if now > give_up_at => Err(Unfit::TimedOut),
                answer => answer,
            };
            fitness.answer = Some((now, answer));
            if answer.is_ok() {
                fitness.yes_at = now;
            }
        }
        // A ring during the question has no effect.
        let looks = match answer {
            Ok(()) => fitness.told.is_some(),
            Err(_) => once,
        };
        if waits && looks && self.ledger.look.is_none() {
            self.ledger.look = Some(Window::at(now));
        }
    }

    pub(super) fn judge_question(&mut self, give_up_at: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        self.goes_on();
        let ledger = &self.ledger;
        let Some(fitness) = &ledger.fitness else {
            return Some("this plan has no condition");
        };
        let busy = ledger.held.is_some() || ledger.tenure || self.call.is_some();
        if busy || ledger.looking.is_some() {
            return Some("it asks without waiting for control");
        }
        if ledger.cordon.is_some() || ledger.stop.is_some() || ledger.guardian_lost {
            return Some("it asks although it must not compete");
        }
        if ledger.is_out_of_time(&rules, now) {
            return Some("it asks although the wait is over");
        }
        if fitness.asking.is_some() || now < fitness.due() {
            return Some("it asks too often");
        }
        let due = fitness.due().max(ledger.came).max(ledger.free_since);
        if self.is_late(due) {
            return Some("it asks too late");
        }
        let end = ledger.wait_ends(&rules) - ms(250);
        let limit = now + fitness.every.max(secs(5));
        let expected = match end > now + secs(1) {
            true => limit.min(end),
            false => limit,
        };
        if let Some(fitness) = &mut self.ledger.fitness {
            fitness.asking = Some(give_up_at);
        }
        (give_up_at != expected).then_some("a question has another limit")
    }

    /// Judges a look at a task's record, which may take nothing.
    pub(super) fn judge_look(&mut self, give_up_at: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        self.goes_on();
        let fitness = self.ledger.fitness.as_ref();
        let asking = fitness.is_some_and(|fitness| fitness.asking.is_some());
        if rules.once.is_none() || self.unfit().is_none() || asking {
            return Some("it looks for nothing");
        }
        let ledger = &self.ledger;
        if ledger.held.is_some() || ledger.tenure || self.call.is_some() {
            return Some("it looks for what it has");
        }
        if ledger.cordon.is_some() || ledger.stop.is_some() || ledger.guardian_lost {
            return Some("it looks although it must not");
        }
        let Some(look) = ledger.due() else {
            return Some("it looks unasked");
        };
        let answered = fitness.and_then(|fitness| fitness.answer);
        let since = answered.map_or(now, |(at, _)| at).max(ledger.free_since);
        if now < look.0 || self.is_late(look.1.max(since)) {
            return Some("it looks too soon or too late");
        }
        self.ledger.first_sent.get_or_insert(now);
        let expected = self.attempt_ends();
        let ledger = &mut self.ledger;
        (ledger.look, ledger.waits, ledger.offered) = (None, None, false);
        (ledger.bell.looked, ledger.bell.look) = (Some(now), None);
        (ledger.sent, ledger.looking) = (now, Some(now));
        (give_up_at != expected).then_some("a look has another limit")
    }

    pub(super) fn hear_of_a_look(&mut self, reply: &Result<(), Failure>) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let ledger = &mut self.ledger;
        let Some(sent) = ledger.looking.take() else {
            return;
        };
        ledger.came = now;
        ledger.bell.waits(now);
        match reply {
            Ok(()) | Err(Failure::Held(_)) => {
                ledger.contacted = true;
                ledger.look = Some(Window::about(now, rules.poll.unwrap_or(RETRY)));
            }
            Err(Failure::AlreadyDone(_)) => ledger.done_told = true,
            Err(Failure::Fatal { .. }) if !ledger.contacted => ledger.fatal = true,
            Err(failure) => {
                let wish = match failure {
                    Failure::Transient { retry_after, .. } => *retry_after,
                    _ => None,
                };
                let look = again(RETRY, sent, now, wish, Instant::FOREVER);
                let look = if ledger.contacted {
                    look.no_sooner(Window::about(sent, rules.poll.unwrap_or(RETRY)))
                } else {
                    look.no_later(ledger.patience_ends(&rules))
                };
                ledger.look = Some(ledger.last_look(&rules, now, look));
            }
        }
    }

    pub(super) fn judge_word_of_fitness(&mut self, notice: &Notice) -> Option<&'static str> {
        let unfit = self.unfit();
        let Some(fitness) = &mut self.ledger.fitness else {
            return Some("this plan has no condition");
        };
        let said = match notice {
            Notice::Unfit(why) => Some(*why),
            _ => None,
        };
        let known = std::mem::replace(&mut fitness.told, said);
        self.ledger.seen = self.ledger.seen.filter(|_| said.is_none());
        (said != unfit || known == said).then_some("that is not whether it is fit, or no news")
    }

    pub(super) fn judge_fitness(&self) -> Option<&'static str> {
        let (now, ledger) = (self.now, &self.ledger);
        let fitness = ledger.fitness.as_ref()?;
        if ledger.cordon.is_some() || ledger.looking.is_some() {
            return None;
        }
        let unfit = fitness.unfit();
        if fitness.told != unfit {
            return Some("people do not know whether it is fit");
        }
        if unfit.is_some() && (ledger.offered || ledger.ambiguous) {
            return Some("it keeps from others what it does not take");
        }
        let due = ledger.due().is_some_and(|look| now >= look.1);
        if unfit.is_some() && due && fitness.asking.is_none() && self.plan.rules.once.is_some() {
            return Some("it does not look for a result");
        }
        if fitness.asking.is_none() && now >= fitness.due() {
            return Some("it does not ask");
        }
        None
    }

    pub(super) fn is_unfit(&self, why: Unfit) -> bool {
        let Some(fitness) = &self.ledger.fitness else {
            return false;
        };
        match fitness.when_it_left() {
            None => why == Unfit::TimedOut,
            Some(answer) => answer == Err(why),
        }
    }

    pub(super) fn is_kept_by_fitness(&self, ended: Why) -> bool {
        let fitness = self.ledger.fitness.as_ref();
        let unasked = ended == Why::Store && self.ledger.first_sent.is_none();
        (unasked || ended == Why::NotObtained)
            && fitness.is_some_and(|fitness| fitness.when_it_left() != Some(Ok(())))
    }
}
