//! The judgement of the command's health: a command is not called hung while it sends heartbeats,
//! nor because the supervisor was stopped; and a hang is found in time.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{HealthEvent, Hung, Look, ProbeFailure, WatchdogWord};

use crate::alone::plan::{ms, secs};
use crate::alone::world::World;

#[derive(Clone, Debug)]
pub(super) struct Watched {
    period: Option<Duration>,
    heard: Instant,
    /// Deadline of its first heartbeat, until that comes.
    ready_by: Option<Instant>,
    next: Instant,
    /// Whether the running check's failure would count.
    asking: Option<bool>,
    failed: u32,
    /// Consecutive checks that could not start.
    not_asked: u32,
    due: Instant,
}

impl Watched {
    /// Returns an eighth of the period, or a second during a check.
    fn interval(&self) -> Duration {
        let often = self.period.map_or(Duration::MAX, |period| period / 8);
        often.min(secs(1))
    }

    fn hung_at(&self) -> Option<Instant> {
        let period = self.period?;
        Some(self.ready_by.unwrap_or(self.heard + period))
    }

    fn looks_again(&mut self, now: Instant) {
        let waits = self.period.is_some() || self.asking.is_some();
        let hung = self.hung_at();
        let asks = Some(self.next).filter(|_| self.asking.is_none());
        let soon = waits.then(|| now + self.interval());
        let all = [hung, asks, soon].into_iter().flatten();
        self.due = all.min().unwrap_or(Instant::FOREVER);
    }
}

impl World {
    pub(crate) fn watches(&mut self) {
        let (now, rules) = (self.now, &self.plan.health);
        let mut watched = Watched {
            period: rules.watchdog,
            heard: now,
            ready_by: Some(now + rules.start),
            next: rules
                .probe
                .map_or(Instant::FOREVER, |rule| now + rule.delay),
            asking: None,
            failed: 0,
            not_asked: 0,
            due: now,
        };
        watched.looks_again(now);
        self.ledger.watched = Some(watched);
        self.judge_wake();
    }

    pub(crate) fn judge_wake(&mut self) {
        let due = self.ledger.watched.as_ref().map(|watched| watched.due);
        if due.is_some_and(|due| due != self.monitor.health.wake_at()) {
            self.violate("the command's health is to be looked at at another time");
        }
    }

    pub(crate) fn judge_word(&mut self, word: WatchdogWord, said: Option<HealthEvent>) {
        let now = self.now;
        let is_watched = self.plan.health.watchdog.is_some();
        let Some(watched) = self.ledger.watched.as_mut().filter(|_| is_watched) else {
            return;
        };
        let expected = match word {
            WatchdogWord::Alive => {
                (watched.heard, watched.ready_by) = (now, None);
                let due = watched.due;
                watched.looks_again(now);
                watched.due = watched.due.min(due);
                Some(HealthEvent::Answered { again: false })
            }
            WatchdogWord::Extend(more) => {
                watched.ready_by = watched.ready_by.map(|by| by.max(now + more));
                None
            }
            WatchdogWord::Trigger => Some(HealthEvent::Hung(Hung::Triggered)),
            WatchdogWord::Period(period) => {
                let none = period.is_zero() || period == Duration::MAX;
                watched.period = (!none).then_some(period.max(secs(1)));
                watched.heard = now;
                let due = watched.due;
                watched.looks_again(now);
                watched.due = watched.due.min(due);
                None
            }
        };
        if let Some(HealthEvent::Hung(_)) = expected {
            self.ledger.watched = None;
        }
        if said != expected {
            self.violate(format!("the command said {word:?}: {said:?}"));
        }
    }

    pub(crate) fn judge_look_after(&mut self, look: Look) {
        let (now, probe) = (self.now, self.plan.health.probe);
        let start = self.plan.health.start;
        let said_at = self.monitor.said_at;
        let Some(watched) = &mut self.ledger.watched else {
            return;
        };
        // The supervisor was stopped: all limits restart, and no failure counts.
        let late = watched.interval().max(ms(250));
        if now > watched.due + late {
            (watched.heard, watched.failed) = (now, 0);
            watched.ready_by = watched.ready_by.map(|by| by.max(now + start));
            watched.asking = watched.asking.map(|_| false);
            if let Some(probe) = probe {
                watched.next = watched.next.max(now + probe.every);
            }
        }
        let is_silent = watched.hung_at().is_some_and(|at| now >= at);
        let silent = watched.period.filter(|_| is_silent);
        let asks = probe.filter(|_| watched.asking.is_none() && now >= watched.next);
        let expected = match (silent, asks) {
            (Some(_), _) if watched.ready_by.is_some() => Look::Hung(Hung::NotReady(start)),
            (Some(period), _) => Look::Hung(Hung::Silent(period)),
            (None, Some(probe)) => Look::Probe {
                kill_at: now + probe.timeout,
            },
            (None, None) => Look::Quiet,
        };
        if let Look::Probe { .. } = expected {
            watched.asking = Some(true);
            watched.next = now + probe.map_or(Duration::ZERO, |probe| probe.every);
        }
        watched.looks_again(now);
        if let Look::Hung(_) = expected {
            self.ledger.watched = None;
        }
        if let Look::Hung(Hung::Silent(period)) = look
            && now < said_at + period
        {
            return self.violate("a command that speaks is stopped without need");
        }
        if look != expected {
            self.violate(format!(
                "the command's health: {look:?} instead of {expected:?}"
            ));
        }
    }

    pub(crate) fn judge_probe(
        &mut self,
        result: Result<(), ProbeFailure>,
        said: Option<HealthEvent>,
    ) {
        let now = self.now;
        let of = self.plan.health.probe.map_or(0, |probe| probe.failures);
        let mut expected = None;
        if let Some(watched) = &mut self.ledger.watched {
            let counts = watched.asking.take();
            expected = match result {
                Ok(()) => {
                    watched.not_asked = 0;
                    let again = std::mem::take(&mut watched.failed) > 0;
                    counts.map(|_| HealthEvent::Answered { again })
                }
                Err(ProbeFailure::NoRoom(errno)) => counts.filter(|counts| *counts).map(|_| {
                    watched.not_asked += 1;
                    let number = watched.not_asked;
                    HealthEvent::NotAsked { errno, number }
                }),
                Err(how) => counts.filter(|counts| *counts).map(|_| {
                    watched.not_asked = 0;
                    watched.failed += 1;
                    let number = watched.failed;
                    match number < of {
                        true => HealthEvent::Failed { how, number, of },
                        false => HealthEvent::Hung(Hung::Unhealthy(number, how)),
                    }
                }),
            };
            watched.looks_again(now);
        }
        if let Some(HealthEvent::Hung(_)) = expected {
            self.ledger.watched = None;
        }
        if said != expected {
            self.violate(format!("a probe ended with {result:?}: {said:?}"));
        }
    }
}
