//! The log as an observer: words each change of state, and remembers what its lines reported of control. Nothing
//! depends on it.

use std::fmt::Write as _;
use std::time::Duration;

use tracing::Level;

use super::{Fold, Happened, Line, Place, millis, text};
use crate::clock::Instant;
use crate::core::{Exit, Notice, Ring, WorkloadEvent};
use crate::driver::Observation;
use crate::units;

#[derive(Default)]
pub(crate) struct LogObserver {
    looks_once: bool,
    slots: u32,
    lock: String,
    tenure: Tenure,
    ring: Option<Ring>,
    /// Line "in control", held back until its deadline is known.
    pending: Option<Line>,
}

#[derive(Default)]
struct Tenure {
    token: Option<u64>,
    /// End of the command without a renewal.
    deadline: Option<Instant>,
    /// End of the command after the stop signal.
    grace: Option<Instant>,
    is_asked: bool,
    /// The command ended by itself with 0, which its caller sees.
    succeeded: bool,
}

impl Tenure {
    /// Returns the shortest time that the command has left without a renewal.
    fn left(&self, now: Instant) -> Option<Duration> {
        // SIGKILL comes at the earlier one; a renewal moves only the first.
        let ends = [self.deadline, self.grace];
        ends.into_iter().filter_map(|end| until(end, now)).min()
    }
}

fn until(end: Option<Instant>, now: Instant) -> Option<Duration> {
    Some(end.filter(|end| *end != Instant::FOREVER)?.since(now))
}

impl LogObserver {
    /// Creates the log; if it looks only `once`, standing by is no news.
    pub(crate) fn new(once: bool, slots: u32) -> LogObserver {
        LogObserver {
            looks_once: once,
            slots,
            ..LogObserver::default()
        }
    }

    pub(crate) fn reworded(&self, happened: &Happened<'_>, text: String) {
        if let Some(line) = self.told(happened) {
            Line { text, ..line }.say();
        }
    }

    fn told(&self, happened: &Happened<'_>) -> Option<Line> {
        let (level, text) = happened.row.line.clone()?;
        Some(self.line(happened.now, happened.row.word(), level, text))
    }

    fn line(&self, now: Instant, event: Option<&'static str>, level: Level, text: String) -> Line {
        Line {
            event,
            token: self.tenure.token,
            left: self.tenure.left(now),
            ..Line::new(level, text)
        }
    }

    fn notice(&mut self, happened: &Happened<'_>, notice: &Notice) {
        let (now, place) = (happened.now, happened.row.place);
        if let Place::First | Place::Outside = place {
            self.tenure = Tenure::default();
        }
        if let Notice::InControl { token } = notice {
            self.tenure.token = Some(*token);
        }
        let Some(mut line) = self.told(happened) else {
            return;
        };
        match notice {
            // It died of the signal that it was sent: no reason for a warning.
            Notice::CommandEnded(Exit::Signal(signal))
                if self.tenure.is_asked && *signal != libc::SIGKILL =>
            {
                line.level = Level::INFO;
            }
            Notice::CommandEnded(Exit::Code(0)) if !self.tenure.is_asked => {
                self.tenure.succeeded = true;
                line.level = Level::DEBUG;
            }
            Notice::StandingBy(info) => {
                // The holder's token.
                line.token = info.token;
                line.text += &text::other_command(info, super::command());
                // An instance that looks once reports the holder at its end.
                if self.looks_once {
                    line.level = Level::DEBUG;
                }
            }
            Notice::Draining(cause) => {
                self.tenure.is_asked = text::is_asked(cause);
                // A reader of "stopping" wants to know how long that takes.
                let (grace, deadline) = (self.tenure.grace, self.tenure.deadline);
                line.text.push_str(&text::until_the_kill(
                    until(grace, now),
                    until(deadline, now),
                ));
            }
            Notice::Released if self.tenure.succeeded => line.level = Level::DEBUG,
            Notice::CoolingDown { .. } => line.left = None,
            _ => {}
        }
        match place {
            // `starts` follows in the same list of the core's actions.
            Place::First => return self.pending = Some(line),
            // This line still has the tenure's token, later ones do not.
            Place::Last => {
                self.tenure = Tenure::default();
                line.left = None;
            }
            Place::Within | Place::Outside => {}
        }
        line.say();
    }

    /// Logs the start; without a renewal the command is killed at `kill_at`.
    fn starts(&mut self, now: Instant, kill_at: Instant, slot: u32) {
        (self.tenure.deadline, self.tenure.grace) = (Some(kill_at), None);
        self.tenure.succeeded = false;
        let (lock, slots) = (&self.lock, self.slots);
        if slots > 1 {
            tracing::info!(slot, "slot {slot} of {slots}: {lock}");
        }
        let Some(mut line) = self.pending.take() else {
            return;
        };
        line.left = self.tenure.left(now);
        line.text.push_str(&format!(" of {lock}"));
        if let Some(left) = line.left {
            let left = text::left(left);
            line.text
                .push_str(&format!(": good for {left} unless renewed"));
        }
        line.say();
    }
}

impl LogObserver {
    fn rang(&mut self, now: Instant, ring: Ring) {
        // A silent doorbell is tried at each look.
        if self.ring.replace(ring) == Some(ring) {
            return;
        }
        let text = match ring {
            Ring::Greeted { rank } => {
                format!("hears the holder's doorbell, {rank} standbys before this one")
            }
            Ring::Draining => "the holder rings: it drains".to_owned(),
            Ring::Released => "the holder rings: it has released".to_owned(),
            Ring::Closed => "the holder's doorbell has gone".to_owned(),
            Ring::Silent => "the holder's doorbell is silent: polls as usual".to_owned(),
        };
        self.line(now, Some("doorbell"), Level::DEBUG, text).say();
    }
}

impl Fold for LogObserver {
    fn take(&mut self, happened: &Happened<'_>) {
        let now = happened.now;
        match *happened.observation {
            Observation::Notice { notice, lock } => {
                lock.clone_into(&mut self.lock);
                self.notice(happened, notice);
            }
            Observation::Starts { kill_at, slot, .. } => self.starts(now, kill_at, slot),
            Observation::Extended { kill_at, .. } => {
                self.tenure.deadline = Some(kill_at);
                if let Some(left) = self.tenure.left(now) {
                    let text = format!("renewed: good for {}", text::left(left));
                    self.line(now, Some("renewed"), Level::DEBUG, text).say();
                }
            }
            Observation::Drains { kill_at } => self.tenure.grace = Some(kill_at),
            Observation::Rang(ring) => self.rang(now, ring),
            Observation::Workload(WorkloadEvent::Lost) => {
                tracing::warn!("the guardian died or fell silent; killing the command");
            }
            Observation::Workload(event) => {
                if let Some(mut line) = self.told(happened) {
                    if let WorkloadEvent::Health(_) = event {
                        line.event = Some("health");
                    }
                    line.say();
                }
            }
            _ => {}
        }
    }
}

/// Line about a message that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRow {
    /// Id of the message in its queue.
    pub id: String,
    /// Session of the message.
    pub session: Option<String>,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Outcome in one word.
    pub outcome: &'static str,
    /// Reason in one word, if something went wrong.
    pub reason: Option<String>,
    /// Details for a person.
    pub detail: Option<String>,
    /// Exit status, or 128+n for signal n.
    pub exit: Option<i32>,
    /// Running time.
    pub duration: Option<Duration>,
    /// Number of renewals of the message's lock.
    pub renewals: u32,
    /// The command may have run at the same time as another one for this message.
    pub overlap: bool,
}

impl MessageRow {
    fn text(&self) -> String {
        let mut text = format!("message {}", self.id);
        if let Some(session) = &self.session {
            let _ = write!(text, " of session {session}");
        }
        let _ = write!(text, ": {}, attempt {}", self.outcome, self.attempt);
        if let Some(exit) = self.exit {
            let _ = write!(text, ", exit {exit}");
        }
        if let Some(duration) = self.duration {
            let _ = write!(text, ", {}", short(duration));
        }
        let renewals = if self.renewals == 1 {
            "renewal"
        } else {
            "renewals"
        };
        let _ = write!(text, ", {} {renewals}", self.renewals);
        if let Some(reason) = &self.reason {
            let _ = write!(text, ": {reason}");
        }
        if let Some(detail) = &self.detail {
            let _ = write!(text, " ({detail})");
        }
        text
    }

    fn level(&self) -> Level {
        match self.outcome {
            // First: it needs a person's attention.
            _ if self.overlap => Level::ERROR,
            "completed" | "retried" | "released" => Level::INFO,
            _ => Level::WARN,
        }
    }
}

/// Formats a duration for a person: `74ms`, `1.2s`, `2m5s`.
fn short(span: Duration) -> String {
    let millis = span.as_millis();
    if millis < 1000 {
        format!("{millis}ms")
    } else if millis < 100_000 {
        format!("{:.1}s", span.as_secs_f64())
    } else {
        units::show(Duration::from_secs(span.as_secs()))
    }
}

pub(crate) fn message_row(row: &MessageRow) {
    emit!(
        row.level(),
        event = "message",
        message_id = &*row.id,
        session_id = row.session.as_deref(),
        attempt = row.attempt,
        outcome = row.outcome,
        reason = row.reason.as_deref(),
        command_exit = row.exit,
        duration_ms = row.duration.map(millis),
        renewals = row.renewals,
        "{}",
        row.text()
    );
    let id = &*row.id;
    // A separate line, as with `run`: alerts look for the level.
    if row.overlap {
        tracing::error!(
            message_id = id,
            "message {id}: the command may have run at the same time as another one for the same message: \
             check what both have written"
        );
    }
}

/// Logs what happened, unless the message's own line reports it.
pub(crate) fn message_news(id: &str, happened: &Happened<'_>) {
    let row = &happened.row;
    match *happened.observation {
        Observation::Notice {
            notice: Notice::InControl { .. } | Notice::CommandEnded(_) | Notice::Released,
            ..
        } => {}
        // The core reports failed renewals as doubt, once.
        Observation::Renewed { reply: Ok(()), .. } => {
            tracing::debug!(event = "renewed", message_id = id, "message {id}: renewed");
        }
        Observation::Workload(WorkloadEvent::Lost) => tracing::warn!(
            "message {}: the guardian died or fell silent; killing the command",
            super::plain(id)
        ),
        Observation::Notice { .. } | Observation::Workload(WorkloadEvent::LeftBehind) => {
            if let Some((level, text)) = &row.line {
                let (level, event) = (*level, row.word());
                emit!(level, event, message_id = id, "message {id}: {text}");
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_row() -> MessageRow {
        MessageRow {
            id: "7f".into(),
            session: None,
            attempt: 2,
            outcome: "completed",
            reason: None,
            detail: None,
            exit: Some(0),
            duration: Some(Duration::from_micros(1_200_345)),
            renewals: 1,
            overlap: false,
        }
    }

    #[test]
    fn message_line_has_result_exit_duration_and_reason() {
        assert_eq!(
            a_row().text(),
            "message 7f: completed, attempt 2, exit 0, 1.2s, 1 renewal"
        );
        let of_session = MessageRow {
            session: Some("s-1".into()),
            ..a_row()
        };
        assert_eq!(
            of_session.text(),
            "message 7f of session s-1: completed, attempt 2, exit 0, 1.2s, 1 renewal"
        );
        let poisoned = MessageRow {
            outcome: "dead-lettered",
            reason: Some("TooLarge".into()),
            detail: Some("70000 bytes".into()),
            exit: None,
            duration: None,
            renewals: 0,
            ..a_row()
        };
        assert_eq!(
            poisoned.text(),
            "message 7f: dead-lettered, attempt 2, 0 renewals: TooLarge (70000 bytes)"
        );
        assert_eq!(
            (a_row().level(), poisoned.level()),
            (Level::INFO, Level::WARN)
        );
    }
}
