//! The only writer of what a person reads: the log on stderr, and the last line that says why we
//! ended. Called by everything above the core; the rooms below speak through `tracing`.
//!
//! It must never hold us up: a supervisor that waits for somebody to read its log cannot renew its
//! lease. A full pipe, a stopped terminal or a closed stderr costs the line, never the time
//! ([`Stderr`]). It must never show a secret: only our own events are logged, those of the client
//! libraries never are.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

pub(crate) mod lease_fields;
mod line;
pub mod messages;
mod prompt;
mod status_line;
pub mod stderr;
pub mod stdout;
pub mod text;

use crate::clock::Instant;
use crate::core::{Cause, Ending, Exit, Failed, Notice};
use crate::exit::ExitAction;
use crate::util::lock;
use line::LogReader;
pub use prompt::{answer, ask, is_unread, is_watched, print};
use stderr::Stderr;
pub use stderr::last_words;

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

/// The longest text of a message or a field; a server's answer can be a whole page of HTML.
const TEXT_LIMIT: usize = 1000;

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
        .event_format(Lines {
            json: format == Format::Json,
            reader: LogReader::of(io::stderr(), journal),
        })
        .with_writer(Stderr::open);
    let _ = tracing::subscriber::set_global_default(
        tracing_subscriber::registry().with(ours).with(lines),
    );
}

/// Has a standby show one line that it keeps up to date, if this terminal (`TERM`) can take a line
/// back. Not for a log that is quiet, or read by programs.
pub fn show_the_wait(terminal: Option<&str>) {
    status_line::allow(terminal);
}

/// We look once and do not wait: that we stand by is then no news.
pub fn look_once() {
    LOOKS_ONCE.store(true, Ordering::Relaxed);
}

static LOOKS_ONCE: AtomicBool = AtomicBool::new(false);

/// Says who we are: what every later line bears.
pub fn context(context: Context) {
    let _ = CONTEXT.set(context);
}

/// Tells people what the core wants them to hear.
pub fn notice(notice: &Notice, now: Instant) {
    let (level, text) = text::of_notice(notice, now);
    let held = *lease_fields::held();
    let mut line = Line {
        level,
        text,
        event: Some(text::event(notice)),
        token: held.token,
        left: held.left(now),
        exit: None,
    };
    match notice {
        // It got what it was sent: that is no trouble.
        Notice::CommandEnded(Exit::Signal(signal)) if held.is_asked && *signal != libc::SIGKILL => {
            line.level = Level::INFO;
        }
        Notice::InControl { token } => {
            status_line::end();
            lease_fields::held().begin(*token);
            line.token = Some(*token);
            // Said together with its deadline, which is told in the same breath.
            *pending() = Some(line);
            return;
        }
        Notice::StandingBy(sight) => {
            lease_fields::held().end();
            (line.token, line.left) = (sight.token, None);
            // Whoever looks once says at its end what it saw.
            if LOOKS_ONCE.load(Ordering::Relaxed) {
                line.level = Level::DEBUG;
            }
            // What is said goes above the line, so it is said first.
            say(line);
            status_line::stand_by(sight, now);
            return;
        }
        Notice::Draining(cause) => {
            lease_fields::held().is_asked = text::is_asked(cause);
            line.text.extend(line.left.map(text::until_the_kill));
        }
        Notice::Released | Notice::FoundLost { .. } | Notice::LeftToRunOut { .. } => {
            lease_fields::held().end();
            line.left = None;
        }
        Notice::CoolingDown { .. } => line.left = None,
        Notice::Cordoned { .. } => {
            status_line::end();
            lease_fields::held().end();
            (line.token, line.left) = (None, None);
        }
        Notice::Uncordoned => (line.token, line.left) = (None, None),
        Notice::Doubt { .. }
        | Notice::Recovered
        | Notice::CommandEnded(_)
        | Notice::BackingOff { .. }
        | Notice::Restarting
        | Notice::RestartsSpent
        | Notice::HookFailed(_)
        | Notice::HoldOver
        | Notice::Keeping { .. }
        | Notice::Recorded { .. }
        | Notice::Unrecorded { .. }
        | Notice::Pausing { .. }
        | Notice::NotDone
        | Notice::LeftBehind
        | Notice::Overlapped => {}
    }
    say(line);
}

/// What a notice says, for the event log.
#[must_use]
pub fn text(notice: &Notice, now: Instant) -> String {
    text::of_notice(notice, now).1
}

/// What happened, in one word: the same in a JSON log and in the event log.
#[must_use]
pub fn event(notice: &Notice) -> &'static str {
    text::event(notice)
}

/// The command is being started, and may live until `deadline` if nothing is heard of the lease.
pub fn starts(now: Instant, deadline: Instant, lock: &str) {
    lease_fields::held().deadline(deadline);
    lease_fields::held().grace(None);
    let Some(mut line) = pending().take() else {
        return;
    };
    line.left = lease_fields::held().left(now);
    line.text.push_str(&format!(" of {lock}"));
    if let Some(left) = line.left {
        line.text
            .push_str(&format!(": good for {} unless renewed", text::left(left)));
    }
    put(line);
}

/// The lease was renewed: the command may live until `deadline` if nothing more is heard.
pub fn renewed(now: Instant, deadline: Instant) {
    lease_fields::held().deadline(deadline);
    let held = *lease_fields::held();
    if let Some(left) = held.left(now) {
        let text = format!("renewed: good for {}", text::left(left));
        say(Line {
            level: Level::DEBUG,
            text,
            event: Some("renewed"),
            token: held.token,
            left: Some(left),
            exit: None,
        });
    }
}

/// The command is asked to end, or to go at once, and is killed at `end` at the latest.
pub fn drains_until(end: Instant) {
    lease_fields::held().grace(Some(end));
}

/// The terminal has another size.
pub fn resized() {
    status_line::resized();
}

/// While standing by: the lock is looked at next then ([`Instant::FOREVER`]: when the store wakes
/// us).
pub fn next_look(at: Instant) {
    status_line::next_look(at);
}

/// The last line: why we end as we do. Silent where the command's own end said it all.
pub fn ending(ending: &Ending, leave: ExitAction) {
    status_line::end();
    if let Some((level, text)) = text::of_ending(ending, leave, command()) {
        say(Line {
            exit: Some(leave.status()),
            event: Some("done"),
            ..Line::new(level, text)
        });
    }
}

/// Why a tenure ended, in a few words, for the status file.
#[must_use]
pub fn cause(cause: &Cause) -> String {
    text::reason(cause, command())
}

/// What became of a command, as the end of a sentence.
#[must_use]
pub fn failed(how: Failed) -> String {
    text::failed(how)
}

/// Why nothing was started, or what else failed in `main`: the whole chain in one line.
pub fn failure(error: &anyhow::Error) {
    let status = ExitAction::of_error(error).status();
    say(Line {
        exit: Some(status),
        ..Line::new(Level::ERROR, format!("{error:#}"))
    });
}

/// A text from outside, fit for a terminal: one line, no control characters, not too long.
#[must_use]
pub fn plain(text: &str) -> String {
    one_line(text)
}

fn command() -> &'static str {
    CONTEXT
        .get()
        .map_or("the command", |context| &context.command)
}

/// One line to be.
pub(crate) struct Line {
    pub(crate) level: Level,
    pub(crate) text: String,
    pub(crate) event: Option<&'static str>,
    pub(crate) token: Option<u64>,
    pub(crate) left: Option<Duration>,
    pub(crate) exit: Option<i32>,
}

impl Line {
    pub(crate) fn new(level: Level, text: String) -> Line {
        Line {
            level,
            text,
            event: None,
            token: None,
            left: None,
            exit: None,
        }
    }
}

/// "In control", until its deadline is known or something else is to be said.
static PENDING: Mutex<Option<Line>> = Mutex::new(None);

fn pending() -> MutexGuard<'static, Option<Line>> {
    lock(&PENDING)
}

pub(crate) fn say(line: Line) {
    let before = pending().take();
    before.into_iter().for_each(put);
    put(line);
}

fn put(line: Line) {
    let Line {
        text,
        event,
        token,
        exit,
        ..
    } = &line;
    let (event, token, exit) = (*event, *token, *exit);
    let left_ms = line
        .left
        .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    // The macros want their level as a constant.
    match line.level {
        Level::ERROR => tracing::error!(event, token, left_ms, exit, "{text}"),
        Level::WARN => tracing::warn!(event, token, left_ms, exit, "{text}"),
        Level::INFO => tracing::info!(event, token, left_ms, exit, "{text}"),
        _ => tracing::debug!(event, token, left_ms, exit, "{text}"),
    }
}

/// One line for one event.
struct Lines {
    json: bool,
    reader: LogReader,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        let level = *event.metadata().level();
        let context = CONTEXT.get();
        if self.json {
            let line = line::json(level, said, &now_utc(), context);
            writeln!(to, "{}{line}", self.reader.priority(level))
        } else {
            let who = context.map(|context| &*context.identity);
            let line = line::text(self.reader, level, &said.message, &now_utc(), who);
            writeln!(to, "{line}")
        }
    }
}

/// What an event says.
#[derive(Default)]
struct Said {
    message: String,
    fields: Map<String, Value>,
}

impl Visit for Said {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.insert(field.name().into(), value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.insert(field.name().into(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.insert(field.name().into(), value.into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = one_line(&format!("{value:?}"));
        if field.name() == "message" {
            self.message = text;
        } else {
            self.fields.insert(field.name().into(), text.into());
        }
    }
}

/// Keeps a text in its line: what came from a server or a lock's record may not forge lines or
/// talk to the terminal.
pub(crate) fn one_line(text: &str) -> String {
    let mut line: String = text
        .chars()
        .take(TEXT_LIMIT)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(TEXT_LIMIT).is_some() {
        line.push_str("...");
    }
    line
}

/// The wall clock, for people.
pub(crate) fn now_utc() -> String {
    time::OffsetDateTime::now_utc()
        .replace_nanosecond(0)
        .ok()
        .and_then(|now| {
            now.format(&time::format_description::well_known::Rfc3339)
                .ok()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_s_answer_stays_in_its_line() {
        assert_eq!(one_line("a\nb\x1b[2J"), "a b [2J");
        let long = one_line(&"é".repeat(5000));
        assert!(long.len() < 2100 && long.ends_with("..."));
    }
}
