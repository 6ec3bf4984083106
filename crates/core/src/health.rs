//! Whether a command that runs still works: it says so itself (`--watchdog`), or it is asked (`--health`);
//! and what of it the lock's record says ([`HealthRecord`], owned by the tenure).
//!
//! [`Health`] belongs to the workload of `run`, which looks when [`Health::wake_at`] says, hands in what was
//! heard, and starts the probes. Pure. What it must never do: take a pause of ours (stopped, suspended,
//! starved) for silence. So it wants to be looked after at short intervals, and where a look comes
//! late, nobody was there to hear the command: it gets another full period, and a probe that failed
//! meanwhile does not count. A command that alone is stopped or stuck makes no look late.

use std::time::Duration;

use super::{Cause, Exit, HandOverReason};
use crate::clock::Instant;

// Eight looks in a period: a pause that fits in between two of them, and so is not noticed, takes an
// eighth of what a command that speaks twice in its period (sd_watchdog_enabled(3)) has to spare.
const LOOKS: u32 = 8;
// A longer one would leave a pause unnoticed that takes a good part of a probe's time.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
// How late a look on a busy machine is without anybody having been stopped.
const LATE: Duration = Duration::from_millis(250);
/// The shortest silence that means anything: a command on a busy machine is late by less.
pub const LEAST_WATCHDOG: Duration = Duration::from_secs(1);

/// What is expected of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthRules {
    /// It says `WATCHDOG=1` at least this often.
    pub watchdog: Option<Duration>,
    /// From the command's start to its first `READY=1` or `WATCHDOG=1` at most, where it has a watchdog.
    pub start: Duration,
    /// How it is asked.
    pub probe: Option<ProbeRules>,
}

impl HealthRules {
    /// How often the lock's record may tell of it anew; `None`: there is nothing to tell.
    #[must_use]
    pub fn is_told_every(&self) -> Option<Duration> {
        self.probe.map(|probe| probe.every).or(self.watchdog)
    }

    /// Whether nothing is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == HealthRules::default()
    }
}

/// How a command is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeRules {
    /// From the beginning of one probe to that of the next.
    pub every: Duration,
    /// How long one may take: not longer than `every`.
    pub timeout: Duration,
    /// So many in a row that fail mean that the command is hung; at least one.
    pub failures: u32,
    /// From the command's start to the first.
    pub delay: Duration,
}

/// How a probe failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFailure {
    /// It took longer than it may.
    TimedOut,
    /// The command that asks ended so.
    Exited(Exit),
    /// It could not be started, for this error number of the kernel.
    NotStarted(i32),
    /// This machine had no process, memory or descriptor for the probe, for this error number: that is no
    /// answer about the command, and does not count.
    NoRoom(i32),
    /// The server answered with this status, which is none of 2xx.
    Answered(u16),
    /// The server cannot be connected to.
    NoConnection,
    /// There is no TLS with it, for this reason.
    NoTls(TlsFailure),
    /// The connection broke before the end of the answer.
    BrokeOff,
}

/// Why there is no TLS with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFailure {
    /// Nobody whom this machine trusts vouches for it.
    UnknownIssuer,
    /// Its certificate is for another name.
    OtherName,
    /// Its certificate is not valid at this time.
    OutOfDate,
    /// Its certificate is an authority's own.
    IsAuthority,
    /// It does not speak TLS.
    NotSpoken,
    /// Another.
    Other,
}

/// Why a command counts as hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hung {
    /// It did not say `WATCHDOG=1` for this time.
    Silent(Duration),
    /// It said neither `READY=1` nor `WATCHDOG=1` within this time from its start.
    NotReady(Duration),
    /// It said `WATCHDOG=trigger`.
    Triggered,
    /// So many probes in a row failed, the last of them so.
    Unhealthy(u32, ProbeFailure),
}

impl Cause {
    /// Whether the command ran, and did not work any more.
    #[must_use]
    pub fn is_hung(&self) -> bool {
        matches!(self, Cause::GivenUp(HandOverReason::Hung(_)))
    }
}

/// What is told of a command's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthEvent {
    /// It works: it has said so, or a probe has succeeded.
    Answered {
        /// Probes had failed before.
        again: bool,
    },
    /// A probe failed, which is not yet too much.
    Failed {
        /// How.
        how: ProbeFailure,
        /// As which in a row.
        number: u32,
        /// So many are too much.
        of: u32,
    },
    /// A probe could not begin, for want of room on this machine.
    NotAsked {
        /// The kernel's error number.
        errno: i32,
        /// As which in a row.
        number: u32,
    },
    /// It is hung, and is to end.
    Hung(Hung),
    /// The guardian of the probes is dead: nobody can say whether it is hung.
    GuardianLost,
}

/// What a command says on its notification socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogWord {
    /// `WATCHDOG=1`, or `READY=1`: it works.
    Alive,
    /// `EXTEND_TIMEOUT_USEC=`: its start may take at least so long from now on.
    Extend(Duration),
    /// `WATCHDOG=trigger`: it does not.
    Trigger,
    /// `WATCHDOG_USEC=`: how often it will say so from now on. Zero, or without end: no more.
    Period(Duration),
}

/// What a look leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing to do before [`Health::wake_at`].
    Quiet,
    /// Begin a probe that is ended at this moment.
    Probe {
        /// When.
        kill_at: Instant,
    },
    /// The command is hung.
    Hung(Hung),
}

/// The health of one instance's commands, one after another.
#[derive(Clone, Debug)]
pub struct Health {
    rules: HealthRules,
    running: Option<Running>,
}

/// What is known of the command that runs.
#[derive(Clone, Copy, Debug)]
struct Running {
    // How often it is to speak: the rules', until it says another time.
    period: Option<Duration>,
    // When it spoke last, or was given a new period.
    heard: Instant,
    // Until when it is to speak first; `None`: it has.
    ready_by: Option<Instant>,
    // When the next probe begins.
    next: Instant,
    // A probe is under way; whether it counts if it fails.
    probing: Option<bool>,
    // Probes in a row that failed.
    failed: u32,
    // Probes in a row that could not begin.
    not_asked: u32,
    // When we wanted to look, as we said when we looked last.
    due: Instant,
}

impl Health {
    /// Nothing runs yet.
    #[must_use]
    pub fn new(rules: HealthRules) -> Health {
        Health {
            rules,
            running: None,
        }
    }

    /// The command was started, or counts as started from this moment on, and then again when it is known to be:
    /// what it has said by then stands, and how a probe that asks already ends counts for nothing.
    pub fn started(&mut self, now: Instant) {
        if self.rules.is_empty() {
            return;
        }
        let probe = self.rules.probe;
        let before = self.running;
        let mut running = Running {
            period: before.map_or(self.rules.watchdog, |before| before.period),
            heard: now,
            ready_by: before
                .is_none_or(|before| before.ready_by.is_some())
                .then(|| now + self.rules.start),
            next: probe.map_or(Instant::FOREVER, |probe| now + probe.delay),
            probing: before.and_then(|before| before.probing).map(|_| false),
            failed: 0,
            not_asked: 0,
            due: Instant::FOREVER,
        };
        running.due = running.wake_after(now);
        self.running = Some(running);
    }

    /// It has ended, or is to end: nothing more is expected of it.
    pub fn ended(&mut self) {
        self.running = None;
    }

    /// Whether a command runs of which something is expected.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// When to come back with [`Health::look`] if nothing happens before.
    #[must_use]
    pub fn wake_at(&self) -> Instant {
        let running = self.running.as_ref();
        running.map_or(Instant::FOREVER, |running| running.due)
    }

    /// Looks at the clock. To be called after what the command said is handed in, which may have waited,
    /// and before the end of a probe, which may have come late.
    pub fn look(&mut self, now: Instant) -> Look {
        let (rules, start) = (self.rules.probe, self.rules.start);
        let Some(running) = &mut self.running else {
            return Look::Quiet;
        };
        if now > running.due + running.lateness() {
            running.was_paused(now, rules, start);
        }
        let look = match (running.period, rules) {
            (Some(period), _) if now >= running.silent_at() => Look::Hung(match running.ready_by {
                Some(_) => Hung::NotReady(start),
                None => Hung::Silent(period),
            }),
            (_, Some(probe)) if running.probing.is_none() && now >= running.next => {
                running.probing = Some(true);
                running.next = now + probe.every;
                let kill_at = now + probe.timeout;
                Look::Probe { kill_at }
            }
            _ => Look::Quiet,
        };
        running.due = running.wake_after(now);
        if let Look::Hung(_) = look {
            self.running = None;
        }
        look
    }

    /// The command said this.
    pub fn hears(&mut self, now: Instant, word: WatchdogWord) -> Option<HealthEvent> {
        // Without a watchdog nobody listens for it, as systemd has it without WatchdogSec=.
        let watched = self.rules.watchdog.is_some();
        let running = self.running.as_mut().filter(|_| watched)?;
        match word {
            WatchdogWord::Alive => {
                (running.heard, running.ready_by) = (now, None);
                running.due = running.due.min(running.wake_after(now));
                return Some(HealthEvent::Answered { again: false });
            }
            // As systemd has it: it moves the end of a start on, and never brings it nearer.
            WatchdogWord::Extend(more) => {
                running.ready_by = running.ready_by.map(|by| by.max(now + more));
            }
            WatchdogWord::Trigger => {
                self.running = None;
                return Some(HealthEvent::Hung(Hung::Triggered));
            }
            WatchdogWord::Period(period) => {
                let without_end = period.is_zero() || period == Duration::MAX;
                running.period = (!without_end).then(|| period.max(LEAST_WATCHDOG));
                running.heard = now;
                running.due = running.due.min(running.wake_after(now));
            }
        }
        None
    }

    /// The probe that was begun has ended.
    pub fn probed(
        &mut self,
        now: Instant,
        result: Result<(), ProbeFailure>,
    ) -> Option<HealthEvent> {
        let of = self.rules.probe?.failures;
        let running = self.running.as_mut()?;
        let counts = running.probing.take()?;
        running.due = running.wake_after(now);
        let how = match result {
            Ok(()) => {
                running.not_asked = 0;
                let again = std::mem::take(&mut running.failed) > 0;
                return Some(HealthEvent::Answered { again });
            }
            // We were not there when it should have been answered.
            Err(_) if !counts => return None,
            Err(ProbeFailure::NoRoom(errno)) => {
                running.not_asked = running.not_asked.saturating_add(1);
                let number = running.not_asked;
                return Some(HealthEvent::NotAsked { errno, number });
            }
            Err(how) => how,
        };
        running.not_asked = 0;
        running.failed = running.failed.saturating_add(1);
        let number = running.failed;
        if number < of {
            return Some(HealthEvent::Failed { how, number, of });
        }
        self.running = None;
        Some(HealthEvent::Hung(Hung::Unhealthy(number, how)))
    }
}

impl Running {
    /// From one look to the next.
    fn interval(&self) -> Duration {
        let period = self.period.map_or(Duration::MAX, |period| period / LOOKS);
        LONGEST_LOOK.min(period)
    }

    /// By how much a look may be late without a pause.
    fn lateness(&self) -> Duration {
        LATE.max(self.interval())
    }

    fn wake_after(&self, now: Instant) -> Instant {
        // Between two probes nobody waits for an answer, and nothing wakes us.
        let is_waiting = self.period.is_some() || self.probing.is_some();
        let look = if is_waiting {
            now + self.interval()
        } else {
            Instant::FOREVER
        };
        let next = match self.probing {
            Some(_) => Instant::FOREVER,
            None => self.next,
        };
        self.silent_at().min(look).min(next)
    }

    /// When its silence is too long.
    fn silent_at(&self) -> Instant {
        let silent = |period| self.ready_by.unwrap_or(self.heard + period);
        self.period.map_or(Instant::FOREVER, silent)
    }

    /// We were not there to hear it: all that it had to do by now, it has its full time for.
    fn was_paused(&mut self, now: Instant, rules: Option<ProbeRules>, start: Duration) {
        self.heard = self.heard.max(now);
        self.ready_by = self.ready_by.map(|by| by.max(now + start));
        self.failed = 0;
        if let Some(counts) = &mut self.probing {
            *counts = false;
        }
        if let Some(probe) = rules {
            self.next = self.next.max(now + probe.every);
        }
    }
}

/// What the record says after this, in words: empty where nothing is wrong; `None`: what it said.
pub type HealthWords = fn(&HealthEvent) -> Option<String>;

/// How well a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Degree {
    Good,
    Failing,
    Hung,
}

/// See the module's text.
#[derive(Debug)]
pub struct HealthRecord {
    every: Duration,
    words: HealthWords,
    degree: Degree,
    text: String,
    /// What the record says; `None`: a write of ours was lost.
    written: Option<Degree>,
    /// There is no write before.
    next: Instant,
}

impl HealthRecord {
    /// Of a command that is asked so often.
    pub(super) fn new(every: Duration, words: HealthWords) -> HealthRecord {
        HealthRecord {
            every,
            words,
            degree: Degree::Good,
            text: String::new(),
            written: Some(Degree::Good),
            next: Instant::ZERO,
        }
    }

    /// A tenure begins, and with it a record that says nothing yet.
    pub(super) fn begins(&mut self) {
        *self = HealthRecord::new(self.every, self.words);
    }

    /// The command was started (again): what was wrong was wrong with another.
    pub(super) fn started(&mut self) {
        (self.degree, self.text) = (Degree::Good, String::new());
    }

    pub(super) fn hears(&mut self, event: &HealthEvent) {
        let degree = match event {
            HealthEvent::Answered { .. } => Degree::Good,
            HealthEvent::Failed { .. } => Degree::Failing,
            HealthEvent::Hung(_) => Degree::Hung,
            // Nobody knows how it is.
            HealthEvent::NotAsked { .. } | HealthEvent::GuardianLost => return,
        };
        if let Some(text) = (self.words)(event) {
            (self.degree, self.text) = (degree, text);
        }
    }

    /// When there is something to write.
    pub(super) fn due(&self) -> Instant {
        match self.written {
            Some(written) if written == self.degree => Instant::FOREVER,
            _ => self.next,
        }
    }

    /// What is to be written now, if something is; it counts as written from here on.
    pub fn write(&mut self, now: Instant) -> Option<String> {
        if now < self.due() {
            return None;
        }
        self.next = now + self.every;
        Some(self.announce())
    }

    /// What a write says that is made anyway.
    pub fn announce(&mut self) -> String {
        self.written = Some(self.degree);
        self.text.clone()
    }

    /// The last write was not answered as it should be.
    pub fn was_lost(&mut self) {
        self.written = None;
    }
}

#[cfg(test)]
mod tests;
