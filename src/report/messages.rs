//! What people are told of messages: one line for each that was done with, and what is wrong
//! meanwhile. Called by `work` alone. It never decides anything.

use std::fmt::Write as _;
use std::time::Duration;

use tracing::Level;

use super::{millis, text};
use crate::clock::Instant;
use crate::core::Notice;
use crate::units;

/// One message that was done with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its id in the queue.
    pub id: String,
    /// Which attempt it was.
    pub attempt: u32,
    /// What became of it, in one word.
    pub outcome: &'static str,
    /// Why, in one word, if something went wrong.
    pub reason: Option<String>,
    /// The same for a person, where there is more to say.
    pub detail: Option<String>,
    /// How the command ended: its status, or 128+n for signal n.
    pub exit: Option<i32>,
    /// How long the command ran.
    pub duration: Option<Duration>,
    /// How often the message's lock was renewed.
    pub renewals: u32,
    /// The command may have run beside another one for the same message.
    pub overlap: bool,
}

impl Row {
    fn text(&self) -> String {
        let mut text = format!(
            "message {}: {}, attempt {}",
            self.id, self.outcome, self.attempt
        );
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
            _ if self.overlap => Level::ERROR,
            "completed" | "retried" | "released" => Level::INFO,
            _ => Level::WARN,
        }
    }
}

/// A span as a person wants it: `74ms`, `1.2s`, `2m5s`.
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

/// The line for a message that was done with.
pub fn row(row: &Row) {
    emit!(
        row.level(),
        event = "message",
        message_id = &*row.id,
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
    // A line of its own, as run has: alerts look for the level.
    if row.overlap {
        tracing::error!(
            message_id = id,
            "message {id}: the command may have run beside another one for the same message: look at what both have written"
        );
    }
}

/// What the core says of the lock of one message. What its line will say is not said twice.
pub fn notice(id: &str, notice: &Notice, now: Instant) {
    let (level, text) = text::of_notice(notice, now);
    if matches!(
        notice,
        Notice::InControl { .. } | Notice::CommandEnded(_) | Notice::Released
    ) {
        return;
    }
    let event = text::event(notice);
    emit!(level, event, message_id = id, "message {id}: {text}");
}

/// A lock was renewed.
pub fn renewed(id: &str) {
    tracing::debug!(event = "renewed", message_id = id, "message {id}: renewed");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_row() -> Row {
        Row {
            id: "7f".into(),
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
    fn a_line_says_it_all() {
        assert_eq!(
            a_row().text(),
            "message 7f: completed, attempt 2, exit 0, 1.2s, 1 renewal"
        );
        let poisoned = Row {
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
