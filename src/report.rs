//! The only writer of what a person reads: the log on stderr, and the last line that says why we
//! ended. Called by everything above the core; the rooms below speak through `tracing`.
//!
//! It must never hold us up: a supervisor that waits for somebody to read its log cannot renew its
//! lease. A full pipe, a stopped terminal or a closed stderr costs the line, never the time
//! ([`Stderr`]). It must never show a secret: only our own events are logged, those of the client
//! libraries never are.

use std::ffi::OsString;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;

/// Emits an event of a level that is a value: the macros of `tracing` want it as a constant.
macro_rules! emit {
    ($level:expr, $($what:tt)*) => {
        match $level {
            tracing::Level::ERROR => tracing::error!($($what)*),
            tracing::Level::WARN => tracing::warn!($($what)*),
            tracing::Level::INFO => tracing::info!($($what)*),
            _ => tracing::debug!($($what)*),
        }
    };
}

pub(crate) use emit;

mod line;
mod log;
mod status_line;
pub mod stderr;
pub mod stdout;
pub mod text;

use crate::clock::Instant;
use crate::core::{Cause, Ending, Notice};
use crate::exit::ExitAction;
pub(crate) use line::now_utc;
pub use line::plain;
use line::{LogReader, OneLine};
pub use log::MessageRow;
pub(crate) use log::{LogObserver, message_notice, message_renewed, message_row};
pub(crate) use status_line::StatusLine;
use stderr::Stderr;
pub use stderr::last_words;
pub use stdout::{answer, ask, is_unread, is_watched, print};
pub(crate) use text::{event, failed, failing_health, not_started, recorded_health};

/// How the log is written; as it is typed, with its help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One plain line for each change of state
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Volume {
    /// Warnings and errors.
    Quiet,
    /// Changes of state.
    #[default]
    Normal,
    /// Each renewal, too.
    Verbose,
}

/// The fields of a JSON log that do not change their names, and what they mean.
pub const FIELDS: &[(&str, &str)] = &[
    ("ts", "when, by the wall clock (RFC 3339, UTC)"),
    ("level", "error, warn, info, or debug (with --verbose)"),
    ("message", "what a text log says; its wording may change"),
    ("lock", "the lock's address, as soon as it is known"),
    (
        "identity",
        "the instance's identity, as soon as it is known",
    ),
    (
        "pid",
        "the process that says it: the supervisor's, or its guardian's",
    ),
    (
        "event",
        "on a change of state: what happened, in the event log's words",
    ),
    (
        "token",
        "the fencing token of our tenure; while standing by that of the holder",
    ),
    (
        "left_ms",
        "for how many milliseconds the command may still live if nothing more is heard of the lease, or until its grace is over; left out without a deadline",
    ),
    (
        "exit",
        "on the last line: our own exit status (128+n where we die of signal n)",
    ),
    (
        "contain",
        "on the first line: what keeps the command's processes together",
    ),
    ("slot", "with --slots: the number of the slot"),
    ("errno", "the kernel's error number, where there is one"),
    (
        "message_id",
        "of work: the message it is about, by its id in the queue",
    ),
    (
        "attempt",
        "on the line of a message that was done with (event: message): which attempt it was",
    ),
    ("outcome", "on that line: what became of it, in one word"),
    ("reason", "on that line: why, in one word"),
    (
        "command_exit",
        "on that line: the command's exit status, or 128+n for signal n",
    ),
    (
        "duration_ms",
        "on that line: for how many milliseconds the command ran",
    ),
    ("renewals", "on that line: how often its lock was renewed"),
];

/// What every line bears, once it is known.
#[derive(Clone, Debug)]
pub struct Context {
    /// The lock's address.
    pub lock: String,
    /// Our identity.
    pub identity: String,
    /// The command, as it could be typed; only said where it cannot be run.
    pub command: String,
}

// A global, as the subscriber is that makes lines of events: rooms below this one emit them, too.
static CONTEXT: OnceLock<Context> = OnceLock::new();

/// Sets up the log; only the first call counts. Starts no thread, so it may come before the
/// guardian is forked. `journal` is what systemd says of who reads stderr (`JOURNAL_STREAM`).
pub fn init(format: Format, volume: Volume, journal: Option<OsString>) {
    let level = match volume {
        Volume::Quiet => LevelFilter::WARN,
        Volume::Normal => LevelFilter::INFO,
        Volume::Verbose => LevelFilter::DEBUG,
    };
    // Only ourselves: the client libraries print requests at DEBUG, credentials included.
    let ours = Targets::new().with_target(env!("CARGO_CRATE_NAME"), level);
    let lines = tracing_subscriber::fmt::layer()
        .event_format(OneLine {
            json: format == Format::Json,
            reader: LogReader::of(io::stderr(), journal),
        })
        .with_writer(|| Stderr);
    // A second call (a test) keeps the first.
    let _ = tracing::subscriber::set_global_default(
        tracing_subscriber::registry().with(ours).with(lines),
    );
}

/// Has a standby show one line that it keeps up to date, if this terminal (`TERM`) can take a line
/// back. Not for a log that is quiet, or read by programs.
pub fn show_the_wait(terminal: Option<&str>) {
    status_line::allow(terminal);
}

/// Says who we are: what every later line bears.
pub fn context(context: Context) {
    let _ = CONTEXT.set(context);
}

/// What a notice says, for the event log and the service manager.
pub(crate) fn text(notice: &Notice, now: Instant) -> String {
    text::of_notice(notice, now).1
}

/// The last line: why we end as we do, and how (with this status if control was not obtained). Silent
/// where the command's own end said it all.
pub fn ending(ending: &Ending, conflict_status: u8) -> ExitAction {
    // The line that is kept up to date would stay on the terminal for good.
    status_line::end();
    // One map for the line and for the status: what is said and how we end cannot differ.
    let leave = ExitAction::of(ending, conflict_status);
    if let Some((level, text)) = text::of_ending(ending, leave, command()) {
        last(level, text, leave.status());
    }
    leave
}

/// A last line, before we end with this status.
pub(crate) fn last(level: Level, text: String, status: i32) {
    Line {
        event: Some("done"),
        exit: Some(status),
        ..Line::new(level, text)
    }
    .say();
}

/// Why a tenure ended, in a few words, for the status file.
#[must_use]
pub fn cause(cause: &Cause) -> String {
    text::reason(cause, command())
}

/// Why nothing was started, or what else failed in `main`: the whole chain in one line.
pub fn failure(error: &anyhow::Error) {
    Line {
        exit: Some(ExitAction::of_error(error).status()),
        ..Line::new(Level::ERROR, format!("{error:#}"))
    }
    .say();
}

fn command() -> &'static str {
    CONTEXT
        .get()
        .map_or("the command", |context| &context.command)
}

/// A span in whole milliseconds, as a field bears it.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A line of the log about the instance, with its fields.
struct Line {
    level: Level,
    text: String,
    event: Option<&'static str>,
    token: Option<u64>,
    left: Option<Duration>,
    exit: Option<i32>,
}

impl Line {
    fn new(level: Level, text: String) -> Line {
        Line {
            level,
            text,
            event: None,
            token: None,
            left: None,
            exit: None,
        }
    }

    fn say(self) {
        let (event, token, exit, text) = (self.event, self.token, self.exit, self.text);
        let left_ms = self.left.map(millis);
        // Fields that are `None` are left out of the line by `tracing` itself.
        emit!(self.level, event, token, left_ms, exit, "{text}");
    }
}
