use trafficcop::Instant;
use trafficcop_core::{Cordon, Event, Exit, Failed, Failure, Grant, State, WorkloadEvent};

use super::{Due, Kind, RIVAL, World};
use crate::alone::plan::{Deed, secs};

impl World {
    pub(super) fn act(&mut self, at: usize) {
        let deed = self.plan.acts[at].deed.clone();
        self.say(|| format!("DEED: {deed:?}"));
        match deed {
            Deed::Weather(weather, span) => self.weather.push((weather, self.now + span)),
            Deed::Break(_) if self.drive.is_some() => self.breaks_on_drive(),
            Deed::Break(span) => {
                if self.lock.keeps_out(self.now)
                    && self.lock.holder != RIVAL
                    && self.plan.rules.budget.is_some()
                {
                    self.lock.breaking = true;
                    self.lock.until = self.lock.until.min(self.now + span.unwrap_or_default());
                    self.ledger.broken = Some(self.now);
                }
            }
            Deed::Taken => {
                let ours = self.lock.keeps_out(self.now) && self.lock.holder != RIVAL;
                if ours && self.drive.is_none() {
                    self.ledger.broken = Some(self.now);
                    self.rival_takes_it();
                }
            }
            Deed::Stop(signal) => self.hears(Event::StopAsked(signal)),
            Deed::Cordon(before, span) => {
                let before = before.map_or(Instant::FOREVER, |before| self.now + before);
                let why = "a reboot".to_owned();
                self.hears(Event::Cordoned(Cordon { why, before }));
                if let Some(span) = span {
                    self.due(self.now + span, Due::Uncordoned);
                }
            }
            Deed::Pause(span) => {
                self.paused = true;
                self.due(self.now + span, Due::Resumes);
            }
            Deed::GuardianDies => {
                if std::mem::replace(&mut self.guardian_lives, false) {
                    self.news(WorkloadEvent::Lost);
                    self.tree = None;
                    self.news(WorkloadEvent::TreeEmpty { at: self.now });
                }
            }
            Deed::Hush(span) => self.news_at = self.news_at.max(self.now + span),
            Deed::ClockJumps => self.hears(Event::Workload(WorkloadEvent::ClockJumped)),
            Deed::CommandStopping => self.hears(Event::CommandStopping),
            Deed::Echo(which) => self.echo(which),
            Deed::Stuck(span) => (self.stuck, self.dies_within) = (true, span),
            Deed::ProberDies => self.prober_dies(),
        }
    }

    pub(super) fn hears(&mut self, event: Event) {
        // Not lost while it is stopped; its order among waiting events does not matter.
        if !self.paused && self.began {
            self.tell(event);
        }
    }

    pub(super) fn echo(&mut self, which: u8) {
        let stale = Instant::ZERO + secs(1);
        let kind = self.call.map(|call| call.kind);
        let standby = *self.tenure.state() == State::Standby && !self.paused;
        let standby = standby && self.began;
        let event = match which % 12 {
            0 if self.plan.condition.is_some() && which > 60 && !self.ledger.is_asking() => {
                Event::Workload(WorkloadEvent::Condition(Ok(())))
            }
            0 => Event::Workload(WorkloadEvent::TreeEmpty { at: stale }),
            1 if *self.tenure.state() != State::Releasing => Event::Released(Ok(())),
            2 if self.recording.is_none() => Event::Recorded(Ok(())),
            3 if kind != Some(Kind::Renew) => Event::Renewed {
                t0: stale,
                reply: Ok(()),
            },
            4 if standby
                && self.drive.is_none()
                && kind.is_none()
                && !self.lock.keeps_out(self.now) =>
            {
                self.ids += 1;
                (self.lock.holder, self.held, self.proposed) = (self.ids, self.ids, 0);
                self.lock.until = self.until();
                self.lock.token += 1;
                let (t0, token, failed) = (self.now, self.lock.token, 0);
                Event::Acquired(Ok(Grant { t0, token, failed }))
            }
            5 => Event::Workload(WorkloadEvent::Standby(Some(5))),
            6 if self.ledger.has_started() => {
                Event::Workload(WorkloadEvent::NotStarted { errno: 2 })
            }
            7 => Event::Workload(WorkloadEvent::HookFailed {
                at: match which > 128 && self.ledger.has_started() {
                    true => self.now,
                    false => stale,
                },
                how: Failed::NotStarted(2),
            }),
            8 => Event::Workload(WorkloadEvent::LeftBehind),
            9 if kind != Some(Kind::Acquire) => Event::Acquired(Err(Failure::Lost {
                until: None,
                why: String::new(),
            })),
            10 if *self.tenure.state() == State::Releasing && self.ledger.has_ended() => {
                Event::Workload(WorkloadEvent::Exited(Exit::Code(77)))
            }
            10 => Event::Workload(WorkloadEvent::Stopped),
            _ => Event::Uncordoned,
        };
        self.hears(event);
    }
}
