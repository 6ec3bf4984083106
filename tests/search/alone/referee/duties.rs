use trafficcop::Instant;
use trafficcop_core::{Action, Event, Failure, State};

use super::condition::Fitness;
use super::{Next, Reason, Why, why};
use crate::alone::plan::ms;
use crate::alone::world::{Kind, World};

impl World {
    pub(crate) fn judge_step(&mut self, event: &Event, before: State, actions: &[Action]) {
        let wrong = self.judge_duties(event, before, actions);
        if let Some(wrong) = wrong {
            self.violate(wrong);
        }
    }

    fn judge_duties(&mut self, event: &Event, before: State, actions: &[Action]) -> Option<String> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let state = *self.tenure.state();
        let said = |text: &str| Some(format!("{text} ({before:?} to {state:?} at {event:?})"));
        if before == State::Confirming
            && !matches!(state, State::Confirming | State::Holding)
            && let Some(held) = &self.ledger.held
        {
            let must = self.ledger.stop.is_some() || self.ledger.cordon.is_some();
            let lost = held.safe_until.is_some() || self.ledger.guardian_lost;
            if !must && !lost && now < held.term(&rules) {
                return said("it gives back what it could have confirmed");
            }
        }
        if state == State::Releasing && before != state {
            if !self.may_leave() {
                return said("it gives back what is kept");
            }
            self.ledger.next = Some(Next::Leave);
        }
        self.ledger.follow(now, before, state, &rules);
        if std::mem::take(&mut self.ledger.owes_a_word) {
            return said("it overlapped with another, and does not report it");
        }
        if let Some(ending) = self.tenure.ending().cloned() {
            return self.judge_ending(&ending).and_then(said);
        }
        let runs = self.ledger.run.is_some();
        if let Some(run) = &self.ledger.run {
            let killed = run.killed || self.ledger.corpse;
            if killed != (state == State::Killing) {
                return said("it does not know whether its command is killed");
            }
        }
        if runs != matches!(state, State::Holding | State::Draining | State::Killing) {
            return said("it does not know whether its command runs");
        }
        let limit = self.limit(state);
        let held = self.ledger.held.as_ref();
        if let Some(run) = &self.ledger.run
            && let Some(held) = held
        {
            let asked = run.drained.is_some() || run.killed;
            match run.reason {
                None if asked => return said("a command is stopped without need"),
                Some((Reason::Guardian, _)) | None => {}
                Some(_) if !asked && !self.ledger.corpse => {
                    return said("a command is not asked to end");
                }
                Some(_) => {
                    let end = run.drained.map_or(Instant::FOREVER, |(_, end)| end);
                    let due = now >= end.min(held.kill(&rules)) || self.ledger.at_once;
                    if due && before == State::Draining && !run.killed && !self.ledger.corpse {
                        return said("a command is not killed");
                    }
                    let kept = self.will_be_kept();
                    let announces = run.drained.is_some_and(|(since, _)| now >= since + ms(200));
                    if announces && !run.announced && !run.killed && !kept && !self.ledger.corpse {
                        return said("the drain is not reported");
                    }
                }
            }
        }
        if let Some(held) = held
            && held.renewing.is_none()
            && now >= held.renewal.1
            && before == state
            && now < limit
        {
            return said("it does not renew");
        }
        let breaking = matches!(
            event,
            Event::Renewed {
                reply: Err(Failure::Lost { until: Some(_), .. }),
                ..
            }
        );
        if breaking
            && before == State::Draining
            && state == before
            && !matches!(actions.first(), Some(Action::Extend(_)))
        {
            return said("the guardian is not told of what is left");
        }
        if matches!(event, Event::Renewed { reply: Ok(()), .. })
            && before == state
            && matches!(state, State::Holding | State::Draining)
            && held.is_some_and(|held| held.safe_until.is_none() && now < held.kill(&rules))
            && !matches!(actions.first(), Some(Action::Extend(_)))
        {
            return said("the guardian is not told");
        }
        if self.ledger.bell.attend.is_some() {
            return said("it does not listen to the bell");
        }
        let failed = matches!(
            event,
            Event::Renewed {
                reply: Err(Failure::Transient { .. } | Failure::Fatal { .. }),
                ..
            }
        );
        if failed && before == state && state == State::Holding && self.ledger.doubt.is_none() {
            return said("a doubt is not reported");
        }
        let wrong = match state {
            State::Standby => {
                let due = self.ledger.due().is_some_and(|look| now >= look.1);
                let looking = self.ledger.looking.is_some();
                let free = self.ledger.cordon.is_none();
                let may = free && self.is_fit() && !looking;
                let fitness = self.ledger.fitness.as_ref();
                let listens = free && fitness.is_none_or(Fitness::is_said) && !looking;
                let knows = !free || may || self.unfit().is_some();
                if self.ledger.stop.is_some() || self.ledger.guardian_lost {
                    Some("it waits although it is to end")
                } else if self.ledger.is_out_of_time(&rules, now) && !looking {
                    Some("it waits although the wait is over")
                } else if due && may {
                    Some("it does not look")
                } else if !free && !looking && !self.ledger.told_cordoned {
                    Some("the cordon is not reported")
                } else if !self.ledger.standing && knows && !looking {
                    Some("nothing stands by")
                } else if self.tenure.listens() != (listens && self.ledger.look.is_none()) {
                    Some("it listens, or does not")
                } else {
                    self.judge_fitness()
                }
            }
            State::Acquiring => {
                let waits = self.call.is_some_and(|call| call.kind == Kind::Acquire);
                (!waits && !self.has_news).then_some("it waits for nothing")
            }
            State::Confirming => {
                let held = held?;
                let stale = held.is_half_gone(&rules, now) && now < held.term(&rules);
                let free = self.ledger.stop.is_none()
                    && self.ledger.cordon.is_none()
                    && !self.ledger.guardian_lost;
                (!stale || !free || held.safe_until.is_some()).then_some("it confirms what it has")
            }
            State::Resting => self.judge_rest(limit),
            State::Recording => self.judge_recording(limit),
            State::Releasing => {
                let due = self.ledger.leaving.is_none_or(|(_, due)| now >= due.1);
                let renews = held.is_some_and(|held| held.renewing.is_some());
                let is_said = self.tenure.leaving().is_some_and(|(cause, exit)| {
                    let of_a_tenure = self.ledger.tenure == cause.is_some() || held.is_none();
                    let expected = self.ledger.expected.filter(|_| self.ledger.tenure);
                    let right = expected.is_none_or(|expected| cause.map(why) == Some(expected));
                    let stops = cause.is_some_and(|cause| why(cause) == Why::Stopped);
                    (of_a_tenure || !self.ledger.tenure && cause.is_some())
                        && (right || stops)
                        && exit == self.ledger.exit
                });
                if !is_said {
                    Some("it does not say why it leaves")
                } else if due && !renews {
                    Some("it does not give back")
                } else if self.ledger.urgent && before == state {
                    Some("it gives back although it is to end at once")
                } else {
                    None
                }
            }
            State::Holding | State::Draining | State::Killing | State::Done => None,
        };
        if wrong.is_some() {
            return said(wrong.unwrap_or_default());
        }
        let wakes = self.tenure.wake_at();
        let calls = self.call.is_some() || self.recording.is_some();
        let busy = self.has_news || calls || self.ledger.is_asking() || runs;
        if wakes == Instant::FOREVER
            && !busy
            && !self.tenure.listens()
            && self.ledger.cordon.is_none()
            && state != State::Killing
        {
            return said("it never wakes");
        }
        None
    }

    fn judge_rest(&self, limit: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.rules());
        let held = self.ledger.held.as_ref()?;
        if self.tree.is_some() {
            return Some("it rests beside its command");
        }
        if now >= limit || held.safe_until.is_some() || self.ledger.stop.is_some() {
            return Some("it keeps what it has to leave");
        }
        let long = rules
            .hold_policy
            .max_hold
            .is_some_and(|span| now >= held.began + span);
        match self.ledger.next {
            Some(Next::Restart { until }) => {
                let over = self.ledger.cordon.is_some() || self.ledger.guardian_lost || long;
                let due = now >= until && !held.is_half_gone(rules, now);
                (over || due).then_some("it rests for too long")
            }
            Some(Next::Keep { until }) => (now >= until).then_some("it keeps for too long"),
            _ => Some("it rests for nothing"),
        }
    }

    fn judge_recording(&self, limit: Instant) -> Option<&'static str> {
        let now = self.now;
        if self.tree.is_some() {
            return Some("it records beside its command");
        }
        match self.ledger.next {
            Some(Next::Record) => {
                let waits = self.recording.is_some() || self.has_news;
                let due = self.ledger.record.is_none_or(|(_, due)| now >= due.1);
                let tired = now >= limit || now >= self.ledger.tired_at;
                (!waits && (due || tired) || self.ledger.urgent).then_some("it does not record")
            }
            Some(Next::Pause { until }) => {
                let over = now >= until || now >= limit || self.ledger.stop.is_some();
                over.then_some("it pauses for too long")
            }
            _ => Some("it records nothing"),
        }
    }
}
