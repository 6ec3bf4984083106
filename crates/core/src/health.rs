//! Health of a running command, which reports it (`--watchdog`) or is probed (`--health`).
//!
//! A pause of this process (stopped, suspended, starved) must never count as silence of the command. So
//! [`Health`] looks at short intervals. After a late look, the command gets another full period, and a
//! probe that failed meanwhile does not count.

use std::time::Duration;

use super::{Cause, Exit, HandOverReason};
use crate::clock::Instant;

// An unnoticed pause between two looks takes at most an eighth of the slack of a command that speaks twice
// in its period (sd_watchdog_enabled(3)).
const LOOKS: u32 = 8;
// A longer pause would take a good part of a probe's time unnoticed.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
// Lateness of a look on a busy machine without a pause.
const LATE: Duration = Duration::from_millis(250);
/// Shortest silence that counts: a command on a busy machine is late by less.
pub const LEAST_WATCHDOG: Duration = Duration::from_secs(1);

/// Expectations of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthRules {
    /// Longest time between two `WATCHDOG=1`.
    pub watchdog: Option<Duration>,
    /// Longest time from the start to the first `READY=1` or `WATCHDOG=1`.
    pub start: Duration,
    /// Rules of the probes.
    pub probe: Option<ProbeRules>,
}

impl HealthRules {
    /// Returns how often the lock's record may report health; `None`: never.
    #[must_use]
    pub fn is_told_every(&self) -> Option<Duration> {
        self.probe.map(|probe| probe.every).or(self.watchdog)
    }

    /// Tells whether nothing is expected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == HealthRules::default()
    }
}

/// Rules of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeRules {
    /// Time from the beginning of one probe to the next.
    pub every: Duration,
    /// Time limit of a probe, at most `every`.
    pub timeout: Duration,
    /// Failures in a row that mean a hung command.
    pub failures: u32,
    /// Time from the command's start to the first probe.
    pub delay: Duration,
}

/// Failure of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFailure {
    /// The probe exceeded its time limit.
    TimedOut,
    /// The probe's command ended.
    Exited(Exit),
    /// The probe did not start, for this error number of the kernel.
    NotStarted(i32),
    /// This machine lacked resources, so the failure does not count.
    NoRoom(i32),
    /// The server's status was not 2xx.
    Answered(u16),
    /// The server is out of reach.
    NoConnection,
    /// TLS failed.
    NoTls(TlsFailure),
    /// The connection broke before the end of the answer.
    BrokeOff,
}

/// Reason why TLS with a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFailure {
    /// This machine trusts no issuer of the certificate.
    UnknownIssuer,
    /// The certificate is for another name.
    OtherName,
    /// The certificate is not valid now.
    OutOfDate,
    /// The certificate is an authority's.
    IsAuthority,
    /// The server does not speak TLS.
    NotSpoken,
    /// Another reason.
    Other,
}

/// Reason why a command counts as hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hung {
    /// No `WATCHDOG=1` for this time.
    Silent(Duration),
    /// Neither `READY=1` nor `WATCHDOG=1` within this time.
    NotReady(Duration),
    /// The command sent `WATCHDOG=trigger`.
    Triggered,
    /// This many probes in a row failed, the last one so.
    Unhealthy(u32, ProbeFailure),
}

impl Cause {
    /// Tells whether the command hung.
    #[must_use]
    pub fn is_hung(&self) -> bool {
        matches!(self, Cause::GivenUp(HandOverReason::Hung(_)))
    }
}

/// Report about a command's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthEvent {
    /// The command works.
    Answered {
        /// Probes had failed before.
        again: bool,
    },
    /// A probe failed, but not yet too many.
    Failed {
        /// Failure.
        how: ProbeFailure,
        /// Number of failures in a row.
        number: u32,
        /// Number that means a hung command.
        of: u32,
    },
    /// This machine lacked resources for a probe.
    NotAsked {
        /// Error number of the kernel.
        errno: i32,
        /// Number in a row.
        number: u32,
    },
    /// The command hangs, and must end.
    Hung(Hung),
    /// The guardian of the probes is dead.
    GuardianLost,
}

/// Message on the notification socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogWord {
    /// `WATCHDOG=1` or `READY=1`: the command works.
    Alive,
    /// `EXTEND_TIMEOUT_USEC=`: the start may take at least this long from now.
    Extend(Duration),
    /// `WATCHDOG=trigger`: the command does not work.
    Trigger,
    /// `WATCHDOG_USEC=`: new period. Zero or infinity turns the watchdog off.
    Period(Duration),
}

/// Result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// No work before [`Health::wake_at`].
    Quiet,
    /// Begin a probe.
    Probe {
        /// End of the probe.
        kill_at: Instant,
    },
    /// The command is hung.
    Hung(Hung),
}

/// Health of one instance's commands, one after another.
#[derive(Clone, Debug)]
pub struct Health {
    rules: HealthRules,
    running: Option<Running>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    // The command may set another period than the rules'.
    period: Option<Duration>,
    heard: Instant,
    // Deadline of the first word; `None`: it came.
    ready_by: Option<Instant>,
    next: Instant,
    // Set while a probe runs: whether its failure counts.
    probing: Option<bool>,
    failed: u32,
    not_asked: u32,
    due: Instant,
}

impl Health {
    /// Makes the health of an instance without a command.
    #[must_use]
    pub fn new(rules: HealthRules) -> Health {
        Health {
            rules,
            running: None,
        }
    }

    /// Begins with a command. Called again when it is known to run: earlier words stand, and a failure of a
    /// probe under way does not count.
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

    /// Notes that the command ended, or must end.
    pub fn ended(&mut self) {
        self.running = None;
    }

    /// Tells whether anything is expected of a command.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns when to call [`Health::look`] if nothing happens before.
    #[must_use]
    pub fn wake_at(&self) -> Instant {
        let running = self.running.as_ref();
        running.map_or(Instant::FOREVER, |running| running.due)
    }

    /// Looks at the clock. Call it after passing on the command's words, which may have waited, and before
    /// a probe's end, which may come late.
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

    /// Takes a word of the command.
    pub fn hears(&mut self, now: Instant, word: WatchdogWord) -> Option<HealthEvent> {
        // As in systemd without WatchdogSec=.
        let watched = self.rules.watchdog.is_some();
        let running = self.running.as_mut().filter(|_| watched)?;
        match word {
            WatchdogWord::Alive => {
                (running.heard, running.ready_by) = (now, None);
                running.due = running.due.min(running.wake_after(now));
                return Some(HealthEvent::Answered { again: false });
            }
            // As in systemd: it never shortens the time for a start.
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

    /// Takes the result of the probe.
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
            // This process was paused when the answer was due.
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
    fn interval(&self) -> Duration {
        let period = self.period.map_or(Duration::MAX, |period| period / LOOKS);
        LONGEST_LOOK.min(period)
    }

    fn lateness(&self) -> Duration {
        LATE.max(self.interval())
    }

    fn wake_after(&self, now: Instant) -> Instant {
        // Between two probes there is no answer to wait for.
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

    fn silent_at(&self) -> Instant {
        let silent = |period| self.ready_by.unwrap_or(self.heard + period);
        self.period.map_or(Instant::FOREVER, silent)
    }

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

/// Returns the text of the record after an event: empty if nothing is wrong; `None`: unchanged.
pub type HealthWords = fn(&HealthEvent) -> Option<String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Degree {
    Good,
    Failing,
    Hung,
}

/// Health in the lock's record.
#[derive(Debug)]
pub struct HealthRecord {
    every: Duration,
    words: HealthWords,
    degree: Degree,
    text: String,
    /// State in the record; `None`: a write was lost.
    written: Option<Degree>,
    next: Instant,
}

impl HealthRecord {
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

    pub(super) fn begins(&mut self) {
        *self = HealthRecord::new(self.every, self.words);
    }

    pub(super) fn started(&mut self) {
        (self.degree, self.text) = (Degree::Good, String::new());
    }

    pub(super) fn hears(&mut self, event: &HealthEvent) {
        let degree = match event {
            HealthEvent::Answered { .. } => Degree::Good,
            HealthEvent::Failed { .. } => Degree::Failing,
            HealthEvent::Hung(_) => Degree::Hung,
            HealthEvent::NotAsked { .. } | HealthEvent::GuardianLost => return,
        };
        if let Some(text) = (self.words)(event) {
            (self.degree, self.text) = (degree, text);
        }
    }

    pub(super) fn due(&self) -> Instant {
        match self.written {
            Some(written) if written == self.degree => Instant::FOREVER,
            _ => self.next,
        }
    }

    /// Returns the text to write now, if any; it counts as written.
    pub fn write(&mut self, now: Instant) -> Option<String> {
        if now < self.due() {
            return None;
        }
        self.next = now + self.every;
        Some(self.announce())
    }

    /// Returns the text for a write that happens anyway.
    pub fn announce(&mut self) -> String {
        self.written = Some(self.degree);
        self.text.clone()
    }

    /// Notes that the last write failed.
    pub fn was_lost(&mut self) {
        self.written = None;
    }
}

#[cfg(test)]
mod tests;
