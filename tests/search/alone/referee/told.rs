use trafficcop::Instant;
use trafficcop_core::{Event, Failure, Grant, State, WorkloadEvent};

use super::settings::{backoff, outcome};
use super::window::{Window, again};
use super::{Held, Next, RETRY, Reason};
use crate::alone::plan::{ms, secs};
use crate::alone::world::{Kind, World};

impl World {
    pub(crate) fn hear(&mut self, event: &Event) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let state = *self.tenure.state();
        let resting = matches!(state, State::Resting | State::Recording);
        if let Some(held) = &mut self.ledger.held {
            held.doubted |= now >= held.term(&rules);
        }
        self.ledger.urgent = false;
        self.ledger.followed = false;
        if state != State::Standby {
            self.ledger.came = now;
        }
        if let Event::Workload(WorkloadEvent::Condition(answer)) = event {
            self.hear_of_the_condition(state, *answer);
        }
        self.hear_of_health(event);
        let over = self.is_over_by(event);
        // The time counts before the event.
        if let (Some(held), Some(run), false) = (&self.ledger.held, &mut self.ledger.run, over)
            && run.reason.is_none()
        {
            let long = rules
                .hold_policy
                .max_hold
                .map_or(Instant::FOREVER, |span| held.began + span);
            if now >= held.term(&rules) {
                run.reason = Some((Reason::Doubt, held.term(&rules)));
                run.doubt_ends = Some(held.kill(&rules));
            } else if now >= long {
                run.reason = Some((Reason::HandOver, now));
            }
        }
        if let (Some(held), Some(Next::Restart { until })) =
            (&mut self.ledger.held, self.ledger.next)
            && state == State::Resting
            && now >= until
            && held.is_half_gone(&rules, now)
            && !std::mem::replace(&mut self.ledger.hurried, true)
        {
            held.hurry(now);
        }
        if let Event::Renewed {
            reply: Err(failure),
            ..
        }
        | Event::Acquired(Err(failure)) = event
            && let Failure::Transient { why, .. } | Failure::Fatal { why, .. } = failure
            && state != State::Releasing
        {
            self.ledger.doubt_was = self.ledger.doubt_is.replace(why.clone());
        }
        match event {
            Event::StopAsked(signal) => match self.ledger.stop {
                None => {
                    self.ledger.stop = Some((now, *signal));
                    self.is_to_end(Reason::Asked, now);
                }
                Some((first, _)) => {
                    let urgent = [2, 15].contains(signal) && now.since(first) >= ms(100);
                    self.ledger.urgent = urgent;
                    self.ledger.at_once |= urgent && self.ledger.run.is_some();
                }
            },
            Event::Cordoned(cordon) => {
                self.ledger.cordon = Some(cordon.clone());
                self.ledger.cordoned = true;
                self.is_to_end(Reason::Cordon, now);
            }
            Event::Uncordoned => {
                let lifted = self.ledger.cordon.take().is_some();
                if lifted {
                    self.ledger.free_since = now;
                }
                let looking = self.ledger.looking.is_some();
                if state == State::Standby && self.ledger.look.is_none() && !looking {
                    self.ledger.look = Some(Window::at(now));
                }
            }
            Event::Freed if state == State::Standby && self.ledger.looking.is_none() => {
                let next = self
                    .ledger
                    .woken
                    .map_or(now, |woken| (woken + ms(50)).max(now));
                self.ledger.woken = Some(next);
                self.ledger.offered = true;
                self.ledger.look = Some(Window::at(next));
            }
            Event::Acquired(reply) => self.hear_of_an_attempt(state, reply),
            Event::Renewed { t0, reply } => self.hear_of_a_renewal(state, *t0, reply),
            Event::Recorded(reply) => self.hear_of_a_record(state, reply),
            Event::Released(reply) => self.hear_of_a_release(state, reply),
            Event::Workload(WorkloadEvent::ClockJumped) if resting || state == State::Holding => {
                let ends = self
                    .ledger
                    .run
                    .as_ref()
                    .is_some_and(|run| run.reason.is_some());
                if let Some(held) = &mut self.ledger.held
                    && !ends
                {
                    held.hurry(now);
                }
            }
            Event::Workload(event) => self.hear_of_the_tree(*event, over),
            Event::Looked(reply) => self.hear_of_a_look(reply),
            Event::Ticked | Event::Freed | Event::CommandStopping => {}
        }
    }

    pub(super) fn is_to_end(&mut self, reason: Reason, due: Instant) {
        if let Some(run) = &mut self.ledger.run {
            let lost = matches!(reason, Reason::Lost);
            match &mut run.reason {
                None => run.reason = Some((reason, due)),
                Some((before, _)) if lost => {
                    let may = [
                        Reason::Doubt,
                        Reason::HandOver,
                        Reason::Cordon,
                        Reason::Hung,
                    ];
                    if may.contains(before) {
                        *before = Reason::Lost;
                    }
                }
                Some((before, _)) if reason == Reason::Guardian => {
                    if !matches!(before, Reason::Exited | Reason::Asked) {
                        *before = Reason::Guardian;
                    }
                }
                Some(_) => {}
            }
        }
    }

    fn hear_of_an_attempt(&mut self, state: State, reply: &Result<Grant, Failure>) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let ledger = &mut self.ledger;
        if state == State::Standby && reply.is_ok() {
            // Nothing waits for it.
            ledger.leaving = Some((now, Window::at(now)));
        }
        if state != State::Acquiring {
            return;
        }
        let sent = ledger.sent;
        match reply {
            Ok(grant) => {
                (ledger.contacted, ledger.ambiguous) = (true, false);
                let t0 = grant.t0.min(now);
                let every = rules
                    .budget
                    .map_or(Instant::FOREVER, |b| t0 + b.renew_every);
                let mut held = Held {
                    began: t0,
                    confirmed: t0,
                    asked: t0,
                    token: grant.token,
                    failed: grant.failed,
                    safe_until: None,
                    renewal: Window(every, every.max(now)),
                    renewing: None,
                    doubted: false,
                    restarts: Vec::new(),
                    in_a_row: 0,
                };
                held.doubted = now >= held.term(&rules);
                ledger.exit = None;
                if held.is_half_gone(&rules, now) {
                    held.hurry(now);
                }
                ledger.held = Some(held);
            }
            Err(Failure::Held(holder)) => {
                (ledger.contacted, ledger.ambiguous) = (true, false);
                let kept = ledger.seen.replace(holder.draining) == Some(holder.draining);
                let Some(poll) = rules.poll else {
                    ledger.look = None;
                    return;
                };
                let fast = (poll / 8).clamp(ms(250), secs(2)).min(poll);
                let span = if holder.draining { fast } else { poll };
                let about = Window::about(now, span);
                let mut look = if kept { about } else { Window(now, about.1) };
                if let Some(rung) = ledger.bell.finds(now, poll, holder) {
                    look = rung;
                }
                if let Some(expires) = holder.expires.filter(|expires| *expires > now) {
                    look = look.no_later(expires);
                }
                let plain = look.1 == about.1 && rules.wait.is_none();
                let look = ledger.last_look(&rules, now, look);
                ledger.waits = plain.then_some((now, span, kept));
                ledger.bell.waits(now);
                ledger.look = Some(look);
            }
            Err(Failure::AlreadyDone(_)) => {
                ledger.done_told = true;
                ledger.leaving = Some((now, Window::at(now)));
            }
            Err(Failure::Fatal { .. }) if !ledger.contacted => ledger.fatal = true,
            Err(failure) => {
                ledger.ambiguous = true;
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
                let look = ledger.last_look(&rules, now, look);
                ledger.bell.waits(now);
                ledger.look = Some(look);
            }
        }
    }

    fn hear_of_a_renewal(&mut self, state: State, t0: Instant, reply: &Result<(), Failure>) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let ends = self
            .ledger
            .run
            .as_ref()
            .is_some_and(|run| run.reason.is_some());
        let limit = self.limit(if ends { State::Draining } else { state });
        (self.ledger.told_at, self.ledger.told_of) = (now, t0);
        let Some(held) = &mut self.ledger.held else {
            return;
        };
        let sent = held.renewing.take();
        // The time counts before the answer.
        if matches!(state, State::Confirming | State::Resting) && now >= limit {
            return;
        }
        if state == State::Releasing {
            let waits = self.call.is_some_and(|call| call.kind == Kind::Release);
            if let Some((began, _)) = self.ledger.leaving.filter(|_| !waits && sent.is_some()) {
                self.ledger.leaving = Some((began, Window::at(now)));
            }
            if matches!(reply, Err(Failure::Held(_) | Failure::Lost { .. })) {
                held.safe_until = Some(Instant::ZERO);
            }
            return;
        }
        let pace = rules.budget.map_or(RETRY, |b| RETRY.min(b.attempt));
        match reply {
            Ok(()) => {
                if now < held.kill(&rules) && held.safe_until.is_none() {
                    held.confirmed = held.confirmed.max(t0.min(now));
                    held.asked = held.asked.max(held.confirmed);
                    let every = rules
                        .budget
                        .map_or(Instant::FOREVER, |b| held.confirmed + b.renew_every);
                    held.renewal = Window(every, every.max(now));
                    if state == State::Confirming && held.is_half_gone(&rules, now) {
                        held.hurry(now);
                    }
                } else {
                    held.renewal = Window::at(Instant::FOREVER);
                }
            }
            Err(Failure::Lost { until, .. }) => {
                let until_known = until.unwrap_or(Instant::ZERO);
                let safe = held.safe_until.unwrap_or(Instant::FOREVER).min(until_known);
                held.safe_until = Some(safe);
                held.renewal = Window::at(until.map_or(Instant::FOREVER, |_| now + secs(1)));
                self.is_to_end(Reason::Lost, now);
            }
            Err(Failure::Held(_)) => {
                held.safe_until = Some(Instant::ZERO);
                held.renewal = Window::at(Instant::FOREVER);
                self.is_to_end(Reason::Lost, now);
            }
            Err(failure) => {
                let wish = match failure {
                    Failure::Transient { retry_after, .. } => *retry_after,
                    _ => None,
                };
                if let Some((sent, _)) = sent {
                    held.renewal = again(pace, sent, now, wish, limit - pace);
                }
            }
        }
    }

    fn hear_of_a_record(&mut self, state: State, reply: &Result<(), Failure>) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let Some((sent, _)) = self.ledger.record.filter(|_| state == State::Recording) else {
            return;
        };
        if self.ledger.next != Some(Next::Record) {
            return;
        }
        let latest = self.limit(state) - RETRY;
        let Some(held) = &mut self.ledger.held else {
            return;
        };
        match reply {
            Ok(()) => {
                let over = self
                    .ledger
                    .exit
                    .is_none_or(|exit| outcome(&rules, exit, held.failed).over);
                self.ledger.record = None;
                let until = now + backoff(held.failed);
                self.ledger.paused |= !over;
                self.ledger.next = Some(if over || self.ledger.stop.is_some() {
                    Next::Leave
                } else {
                    Next::Pause { until }
                });
            }
            Err(Failure::Transient { retry_after, .. }) => {
                let due = again(RETRY, sent, now, *retry_after, latest);
                self.ledger.record = Some((sent, due));
            }
            Err(failure) => {
                match failure {
                    Failure::Lost { until, .. } => {
                        let until = until.unwrap_or(Instant::ZERO);
                        let safe = held.safe_until.unwrap_or(Instant::FOREVER).min(until);
                        held.safe_until = Some(safe);
                    }
                    Failure::Held(_) => held.safe_until = Some(Instant::ZERO),
                    _ => {}
                }
                self.ledger.record_failed = true;
                self.ledger.next = Some(Next::Leave);
            }
        }
    }

    fn hear_of_a_release(&mut self, state: State, reply: &Result<(), Failure>) {
        let now = self.now;
        let sent = self.ledger.sent;
        let Some((began, _)) = self.ledger.leaving.filter(|_| state == State::Releasing) else {
            return;
        };
        if let Err(Failure::Transient { retry_after, .. }) = reply {
            let latest = self.release_limit(began);
            let due = again(RETRY, sent, now, *retry_after, latest);
            self.ledger.leaving = Some((began, due));
        } else {
            self.ledger.released = matches!(reply, Ok(()) | Err(Failure::Held(_)));
            self.ledger.refused =
                matches!(reply, Err(Failure::Fatal { .. } | Failure::AlreadyDone(_)));
            self.ledger.ambiguous = false;
        }
    }
}
