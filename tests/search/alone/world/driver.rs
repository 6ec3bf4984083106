//! The driver: sends the core's requests, passes on events, and shows each step to the referee.

use trafficcop::Instant;
use trafficcop_core::{Action, Event, Failure, Unfit};

use super::{Call, Due, Id, Kind, Order, READER, RIVAL, Reply, STEPS, World};
use crate::alone::plan::{Weather, ms};

impl World {
    pub(crate) fn ask(&mut self, kind: Kind, id: Id, give_up_at: Instant) {
        self.made += 1;
        let call = Call {
            number: self.made,
            kind,
            id,
            sent: self.now,
        };
        let slot = match kind {
            Kind::Record(_) => &mut self.recording,
            Kind::Acquire | Kind::Look | Kind::Renew | Kind::Release => &mut self.call,
        };
        if slot.replace(call).is_some() {
            return self.violate("two calls to the store at once");
        }
        self.due(give_up_at, Due::GivesUp(call.number));
        let way = self.plan.way;
        // There is no own lease, so no request is sent.
        if id == 0 {
            let reply = match kind {
                Kind::Release => Reply::Done,
                _ => Reply::Failed(Failure::Lost {
                    until: None,
                    why: "nothing".to_owned(),
                }),
            };
            return self.due(self.now, Due::Answers(call.number, reply));
        }
        if self.is_busy() {
            let why = "the request before this one still hangs".to_owned();
            let busy = Failure::Transient {
                why,
                retry_after: None,
            };
            return self.due(self.now, Due::Answers(call.number, Reply::Failed(busy)));
        }
        self.weather.retain(|(_, until)| self.now < *until);
        let refused = |why: &str, retry_after| {
            let why = why.to_owned();
            Reply::Failed(Failure::Transient { why, retry_after })
        };
        match self.weather.last().map(|(weather, _)| weather.clone()) {
            None => self.due(self.now + way, Due::Arrives(call, Some(way))),
            Some(Weather::RequestsLost) => {}
            Some(Weather::AnswersLost) => self.due(self.now + way, Due::Arrives(call, None)),
            Some(Weather::Slow(span)) => {
                self.due(self.now + way, Due::Arrives(call, Some(span)));
            }
            Some(Weather::Refused(wish)) => {
                self.due(
                    self.now + way * 2,
                    Due::Answers(call.number, refused("503", wish)),
                );
            }
            Some(Weather::Forbidden) => {
                let (why, denied) = ("403".to_owned(), true);
                let reply = Reply::Failed(Failure::Fatal { why, denied });
                self.due(self.now + way * 2, Due::Answers(call.number, reply));
            }
        }
    }

    pub(super) fn answers(&mut self, give_up_at: Instant) {
        let (answer, span) = self.plan.answers[self.asked % 16];
        self.asked += 1;
        // During the final rest each answer comes soon.
        let (answer, span) = match self.rests {
            true => (Ok(()), Some(span.unwrap_or_default().min(ms(100)))),
            false => (answer, span),
        };
        let at = span.map_or(give_up_at, |span| self.now + span);
        let answer = match at < give_up_at {
            true => answer,
            false => Err(Unfit::TimedOut),
        };
        self.due(at.min(give_up_at), Due::Fitness(answer));
    }

    /// Starts another process, which knows nothing.
    pub(crate) fn begins_anew(&mut self) {
        (self.call, self.recording, self.withdrawn) = (None, None, None);
        (self.held, self.proposed, self.spent) = (0, 0, 0);
        (self.over, self.freed_planned) = (false, false);
        self.tells_no_more();
        self.tell(Event::Ticked);
    }

    pub(super) fn release(&mut self, give_up_at: Instant) {
        let ours = [self.held, self.proposed, self.spent];
        let id = ours.into_iter().find(|id| *id != 0).unwrap_or(0);
        (self.held, self.proposed, self.spent) = (0, 0, id);
        self.ask(Kind::Release, id, give_up_at);
    }

    pub(super) fn answered(&mut self, number: u64, reply: Reply) {
        let recorded = self.recording.take_if(|call| call.number == number);
        let answered = || self.call.take_if(|call| call.number == number);
        let Some(call) = recorded.or_else(answered) else {
            return;
        };
        let result = match &reply {
            Reply::Failed(failure) => Err(failure.clone()),
            Reply::Done | Reply::Granted(_) => Ok(()),
        };
        match call.kind {
            Kind::Acquire => {
                if matches!(reply, Reply::Granted(_)) {
                    self.drive.iter_mut().for_each(|drive| drive.granted = true);
                    (self.held, self.proposed) = (call.id, 0);
                }
                if let Some(give_up_at) = self.withdrawn.take() {
                    return self.release(give_up_at);
                }
                self.tell(Event::Acquired(match reply {
                    Reply::Granted(grant) => Ok(grant),
                    Reply::Done => unreachable!("an attempt is granted or fails"),
                    Reply::Failed(failure) => Err(failure),
                }));
            }
            Kind::Renew => {
                if matches!(
                    result,
                    Err(Failure::Lost { until: None, .. } | Failure::Held(_))
                ) {
                    self.held = 0;
                }
                let t0 = call.sent;
                self.tell(Event::Renewed { t0, reply: result });
            }
            Kind::Record(_) => self.tell(Event::Recorded(result)),
            Kind::Look => self.tell(Event::Looked(result)),
            Kind::Release => {
                if !matches!(result, Err(Failure::Transient { .. })) {
                    self.spent = 0;
                }
                self.tell(Event::Released(result));
            }
        }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.monitor_hears(&event);
        if self.over || self.violation.is_some() {
            return;
        }
        if event != Event::Ticked && self.plan.ticks_first {
            self.has_news = true;
            self.step(Event::Ticked);
            self.has_news = false;
        }
        self.step(event);
        self.arm();
    }

    pub(super) fn arm(&mut self) {
        if self.tenure.ending().is_some() {
            self.over = true;
            (self.call, self.recording) = (None, None);
            return;
        }
        self.armed += 1;
        let (wake_at, armed) = (self.tenure.wake_at(), self.armed);
        if wake_at < Instant::FOREVER {
            self.due(wake_at, Due::Wake(armed));
        }
        self.tells_of_health();
    }

    pub(super) fn step(&mut self, event: Event) {
        if self.over || self.violation.is_some() || self.tenure.ending().is_some() {
            return;
        }
        if self.steps.0 != self.now {
            self.steps = (self.now, 0);
        }
        self.steps.1 += 1;
        if self.steps.1 > STEPS {
            return self.violate("it loops");
        }
        let before = *self.tenure.state();
        self.hear(&event);
        let actions = self.tenure.step(self.now, event.clone());
        let after = *self.tenure.state();
        self.say(|| format!("{before:?} -> {after:?} at {event:?}: {actions:?}"));
        for (at, action) in actions.iter().enumerate() {
            self.judge(at, action, &actions);
            if self.violation.is_some() {
                return;
            }
            self.does(action.clone());
        }
        self.judge_step(&event, before, &actions);
    }

    pub(super) fn does(&mut self, action: Action) {
        match action {
            Action::Acquire { give_up_at } => {
                if std::mem::take(&mut self.held) != 0 {
                    self.proposed = 0;
                }
                self.spent = 0;
                if self.proposed == 0 {
                    self.ids += 1;
                    self.proposed = self.ids;
                }
                self.ask(Kind::Acquire, self.proposed, give_up_at);
            }
            Action::Withdraw { give_up_at } => {
                self.withdrawn = Some(give_up_at);
                let number = self.call.map_or(0, |call| call.number);
                self.due(give_up_at, Due::Undo(number));
            }
            Action::Renew { give_up_at } => self.ask(Kind::Renew, self.held, give_up_at),
            Action::Record {
                outcome,
                give_up_at,
            } => {
                self.ask(Kind::Record(outcome), self.held, give_up_at);
            }
            Action::Release { give_up_at } => {
                (self.call, self.recording) = (None, None);
                self.tells_no_more();
                self.release(give_up_at);
            }
            Action::Abandon => {
                (self.call, self.recording) = (None, None);
                self.tells_no_more();
                // A lock without a lease lasts as long as its descriptor is open.
                if self.plan.rules.budget.is_none() && self.lock.holder != RIVAL {
                    self.lock.holder = 0;
                }
            }
            Action::Start(start) => {
                self.tenures += 1;
                self.order(Order::Start(start.deadlines));
            }
            Action::Extend(deadlines) => self.order(Order::Extend(deadlines)),
            Action::Drain {
                signal,
                end_of_grace,
            } => {
                self.stops_watching();
                self.order(Order::Drain(signal, end_of_grace));
            }
            Action::Kill => {
                self.stops_watching();
                self.order(Order::Kill);
            }
            Action::Ask { give_up_at } => self.answers(give_up_at),
            Action::Look { give_up_at } => self.ask(Kind::Look, READER, give_up_at),
            Action::Announce => self.announces(),
            Action::Attend { .. }
            | Action::StandBy
            | Action::TenureOver { .. }
            | Action::Notify(_) => {}
        }
    }
}
