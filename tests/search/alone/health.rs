//! The command's health: the real [`Health`], watchdog messages and probes, in the order in which
//! the workload of `run` passes them on.

use std::time::Duration;

use fastrand::Rng;
use trafficcop::Instant;
use trafficcop_core::{
    Event, Exit, Health, HealthEvent, HealthRules, Look, ProbeFailure, ProbeRules, WatchdogWord,
    WorkloadEvent,
};

use super::plan::{maybe, ms, one, secs};
use super::world::{Due, World};

pub(crate) struct Monitor {
    pub(crate) health: Health,
    words: Vec<WatchdogWord>,
    probe: Option<(u64, Result<(), ProbeFailure>)>,
    probes: u64,
    ended: Option<Result<(), ProbeFailure>>,
    lost: bool,
    armed: u64,
    pub(crate) said_at: Instant,
}

impl Monitor {
    pub(crate) fn new(rules: HealthRules) -> Monitor {
        Monitor {
            health: Health::new(rules),
            words: Vec::new(),
            probe: None,
            probes: 0,
            ended: None,
            lost: false,
            armed: 0,
            said_at: Instant::ZERO,
        }
    }

    pub(crate) fn stops(&mut self) {
        self.health.ended();
        self.probe = None;
    }
}

impl World {
    pub(crate) fn monitor_hears(&mut self, event: &Event) {
        let Event::Workload(event) = event else {
            return;
        };
        if !self.has_health() {
            return;
        }
        match event {
            WorkloadEvent::Started { .. } if self.tree.is_some() => {
                (self.monitor.ended, self.monitor.probe) = (None, None);
                self.monitor.health.started(self.now);
                if !self.monitor.health.is_running() {
                    self.violate("the command is not watched");
                }
                self.watches();
                self.rearm();
            }
            WorkloadEvent::Exited(_)
            | WorkloadEvent::NotStarted { .. }
            | WorkloadEvent::TreeEmpty { .. }
            | WorkloadEvent::Lost
            | WorkloadEvent::HookFailed { .. } => self.stops_watching(),
            _ => {}
        }
    }

    fn has_health(&self) -> bool {
        self.plan.health.watchdog.is_some() || self.plan.health.probe.is_some()
    }

    pub(crate) fn stops_watching(&mut self) {
        self.monitor.stops();
        let health = &self.monitor.health;
        if health.is_running() || health.wake_at() < Instant::FOREVER {
            self.violate("something is expected of what is to end");
        }
    }

    /// Sends a message of the command, and schedules the next.
    pub(crate) fn speaks(&mut self, generation: u64, number: usize) {
        if number == 0 {
            self.monitor.words.clear();
        }
        if self.plan.health.watchdog.is_none() {
            return;
        }
        let (word, pause) = self.plan.words[(generation as usize * 7 + number) % 32];
        let lives = self.tree.as_ref();
        let lives = lives.is_some_and(|tree| tree.generation == generation && tree.main);
        if !lives || number >= self.plan.speaks {
            return;
        }
        // The first may come before the command is known to run.
        if word == WatchdogWord::Alive {
            self.monitor.said_at = self.now;
        }
        self.say(|| format!("the command says {word:?}"));
        // For a reader that was stopped, a few messages do as much as many.
        if self.monitor.words.len() < 8 {
            self.monitor.words.push(word);
        }
        let next = self.now + pause.max(ms(1));
        self.due(next, Due::Speaks(generation, number + 1));
        if !self.paused {
            self.looks_after_health();
        }
    }

    pub(crate) fn is_heard(&mut self, due: Due) {
        match due {
            Due::Speaks(generation, number) => self.speaks(generation, number),
            Due::Probed(number) => {
                if let Some((of, result)) = self.monitor.probe
                    && of == number
                {
                    (self.monitor.probe, self.monitor.ended) = (None, Some(result));
                    if !self.paused {
                        self.looks_after_health();
                    }
                }
            }
            Due::Health(armed) if armed == self.monitor.armed => self.looks_after_health(),
            _ => {}
        }
    }

    pub(crate) fn prober_dies(&mut self) {
        self.monitor.lost = true;
        if !self.paused {
            self.looks_after_health();
        }
    }

    /// Handles the messages first, then the clock, then a probe's result.
    pub(crate) fn looks_after_health(&mut self) {
        if !self.has_health() || self.over || !self.monitor.health.is_running() {
            return;
        }
        let now = self.now;
        let mut events: Vec<HealthEvent> = Vec::new();
        for word in std::mem::take(&mut self.monitor.words) {
            if self.monitor.health.is_running() {
                let said = self.monitor.health.hears(now, word);
                self.judge_word(word, said);
                events.extend(said);
            }
        }
        let look = self.monitor.health.look(now);
        self.judge_look_after(look);
        if let Look::Hung(hung) = look {
            events.push(HealthEvent::Hung(hung));
        }
        if let Some(result) = self.monitor.ended.take() {
            let said = self.monitor.health.probed(now, result);
            self.judge_probe(result, said);
            events.extend(said);
        }
        if self.monitor.lost && self.monitor.health.is_running() {
            events.push(HealthEvent::GuardianLost);
            self.monitor.health.ended();
        }
        if self.monitor.health.is_running() {
            self.judge_wake();
        } else {
            self.monitor.stops();
        }
        if let Look::Probe { kill_at } = look
            && self.monitor.health.is_running()
        {
            self.probes(kill_at);
        }
        self.rearm();
        for event in events {
            self.say(|| format!("health: {event:?}"));
            self.tell(Event::Workload(WorkloadEvent::Health(event)));
        }
    }

    fn probes(&mut self, kill_at: Instant) {
        let monitor = &mut self.monitor;
        monitor.probes += 1;
        let (number, now) = (monitor.probes, self.now);
        let (result, span) = self.plan.probes[(number % 16) as usize];
        let at = span.map_or(kill_at, |span: Duration| now + span);
        let result = match at < kill_at {
            true => result,
            false => Err(ProbeFailure::TimedOut),
        };
        monitor.probe = Some((number, result));
        self.due(at.min(kill_at), Due::Probed(number));
    }

    fn rearm(&mut self) {
        self.monitor.armed += 1;
        let (at, armed) = (self.monitor.health.wake_at(), self.monitor.armed);
        if at < Instant::FOREVER {
            self.due(at, Due::Health(armed));
        }
    }
}

pub(super) fn health(rng: &mut Rng) -> HealthRules {
    let every = ms(one(rng, &[300, 1000, 10_000]));
    let watchdog = maybe(rng, 60, |rng| {
        ms(one(rng, &[1000, 2000, 6000, 20_000, 60_000]))
    });
    HealthRules {
        start: watchdog.map_or(Duration::ZERO, |_| ms(one(rng, &[1000, 5000, 90_000]))),
        watchdog,
        probe: maybe(rng, 60, |rng| ProbeRules {
            every,
            timeout: every / one(rng, &[1, 2, 5]),
            failures: rng.u32(1..4),
            delay: ms(one(rng, &[0, 0, 1000, 20_000])),
        }),
    }
}

pub(super) fn word(rng: &mut Rng, period: Duration) -> (WatchdogWord, Duration) {
    let word = match rng.u8(0..40) {
        0 => WatchdogWord::Trigger,
        3 => WatchdogWord::Extend(one(rng, &[Duration::ZERO, secs(3), secs(40)])),
        1 | 2 => WatchdogWord::Period(one(
            rng,
            &[Duration::ZERO, Duration::MAX, ms(20), secs(3), secs(40)],
        )),
        _ => WatchdogWord::Alive,
    };
    // Mostly as sd_watchdog_enabled(3) recommends; rarely at the period's very end, or too late.
    let pause = match rng.u8(0..24) {
        0 => period,
        1 => period - Duration::from_nanos(1),
        2 => period * 5 / 4,
        _ => period / 2,
    };
    (word, pause)
}

/// Draws a probe's result, and when it comes; `None`: never.
pub(super) fn probe(
    rng: &mut Rng,
    rule: Option<ProbeRules>,
) -> (Result<(), ProbeFailure>, Option<Duration>) {
    let failures = [
        ProbeFailure::Exited(Exit::Code(1)),
        ProbeFailure::NotStarted(2),
        ProbeFailure::NoRoom(11),
        ProbeFailure::Answered(503),
        ProbeFailure::NoConnection,
    ];
    let result = match rng.u8(0..3) {
        0 => Err(one(rng, &failures)),
        _ => Ok(()),
    };
    let timeout = rule.map_or(Duration::ZERO, |rule| rule.timeout);
    let part = one(rng, &[0, 1, 2, 8, 9]);
    (result, maybe(rng, 90, |_| timeout * part / 10))
}
