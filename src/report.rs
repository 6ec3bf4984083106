//! Writes everything that a person reads: the log on stderr, and the last line with the reason for the exit.
//! Lower modules log through `tracing`.
//!
//! It must never block: see [`Stderr`]. It must never show a secret: events of the client libraries are never logged.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::stat::fstat;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

use crate::core::{Cause, Ending};
use crate::exit::ExitAction;
pub(crate) use crate::util::plain;
use crate::util::wall_clock;
use stdio::Stderr;

pub(crate) use happened::{EventKind, Fold, Happened, Place, REFUSED, Row, UNFIT};
pub use log::MessageRow;
pub(crate) use log::{LogObserver, message_news, message_row};
pub(crate) use stdio::answer;
pub use stdio::{ask, is_unread, is_watched, last_words};
pub(crate) use text::{failed, failing_health, not_started, recorded_health};

/// Emits an event of any level: the macros of `tracing` need a constant.
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

mod happened;
mod log;
pub mod stdio;
pub mod text;

/// Form of the log, with the help of the flag's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One plain line for each change of state
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Amount of log.
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

/// Stable fields of a JSON log.
pub const FIELDS: &[(&str, &str)] = &[
    ("ts", "when, by the wall clock (RFC 3339, UTC)"),
    ("level", "error, warn, info, or debug (with --verbose)"),
    (
        "message",
        "the message of a text log; its wording may change",
    ),
    ("lock", "the lock's address, as soon as it is known"),
    (
        "identity",
        "the instance's identity, as soon as it is known",
    ),
    (
        "pid",
        "the process that logs it: the supervisor, or its guardian",
    ),
    (
        "event",
        "on a change of state: what happened, in the event log's words",
    ),
    (
        "token",
        "the fencing token of the tenure; while standing by that of the holder",
    ),
    (
        "left_ms",
        "for how many milliseconds the command may still live if nothing more is heard of the lease, \
         or until its grace is over; left out without a deadline",
    ),
    (
        "exit",
        "on the last line: the exit status of trafficcop (128+n if it dies of signal n)",
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

/// Values that every line carries.
#[derive(Clone, Debug)]
pub struct Context {
    /// Address of the lock.
    pub lock: String,
    /// Name of the instance.
    pub identity: String,
    /// The command as it would be typed.
    pub command: String,
}

// Global, like the subscriber: lower modules emit events, too.
static CONTEXT: OnceLock<Context> = OnceLock::new();

/// Sets up the log; only the first call counts. `journal` is systemd's `JOURNAL_STREAM`.
///
/// Starts no thread: it may come before the fork.
pub fn init(format: Format, volume: Volume, journal: Option<OsString>) {
    let level = match volume {
        Volume::Quiet => LevelFilter::WARN,
        Volume::Normal => LevelFilter::INFO,
        Volume::Verbose => LevelFilter::DEBUG,
    };
    // Only trafficcop's crates, by this one's prefix: client libraries print requests at DEBUG, with credentials.
    let ours = Targets::new().with_target(env!("CARGO_CRATE_NAME"), level);
    let lines = tracing_subscriber::fmt::layer()
        .event_format(OneLine {
            json: format == Format::Json,
            reader: LogReader::of(io::stderr(), journal),
        })
        .with_writer(|| Stderr);
    let _ = tracing::subscriber::set_global_default(
        tracing_subscriber::registry().with(ours).with(lines),
    );
}

/// Sets the values that every later line carries.
pub fn context(context: Context) {
    let _ = CONTEXT.set(context);
}

/// Logs the reason for the exit, unless the command's own end explains it, and returns the exit.
/// `conflict_status` is for control that was not obtained.
pub fn ending(ending: &Ending, conflict_status: u8) -> ExitAction {
    // One function for both, so that line and exit cannot differ.
    let leave = ExitAction::of(ending, conflict_status);
    if let Some((level, text)) = text::of_ending(ending, leave, command()) {
        last(level, text, leave.status());
    }
    leave
}

pub(crate) fn last(level: Level, text: String, status: i32) {
    Line {
        event: Some("done"),
        exit: Some(status),
        ..Line::new(level, text)
    }
    .say();
}

/// Describes why a tenure ended, for the status file.
#[must_use]
pub fn cause(cause: &Cause) -> String {
    text::reason(cause, command())
}

/// Logs an error of `main` with its whole chain in one line.
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

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

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
        // `tracing` leaves out fields that are `None`.
        emit!(self.level, event, token, left_ms, exit, "{text}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogReader {
    Journal,
    /// A person, who knows the date.
    Terminal,
    Other,
}

impl LogReader {
    /// Compares the file: the variable is inherited even with a redirected stderr (systemd.exec(5)).
    fn of(stderr: impl AsFd, stream: Option<OsString>) -> LogReader {
        if stderr.as_fd().is_terminal() {
            return LogReader::Terminal;
        }
        let named = stream.and_then(|stream| stream.into_string().ok());
        match (named, fstat(stderr)) {
            (Some(named), Ok(stat)) if named == format!("{}:{}", stat.st_dev, stat.st_ino) => {
                LogReader::Journal
            }
            _ => LogReader::Other,
        }
    }

    /// Prefixes of sd-daemon(3).
    fn priority(self, level: Level) -> &'static str {
        match (self, level) {
            (LogReader::Other | LogReader::Terminal, _) => "",
            (LogReader::Journal, Level::ERROR) => "<3>",
            (LogReader::Journal, Level::WARN) => "<4>",
            (LogReader::Journal, Level::INFO) => "<6>",
            (LogReader::Journal, _) => "<7>",
        }
    }
}

/// Names the instance as soon as there is one: several may write into one log.
fn for_people(
    reader: LogReader,
    level: Level,
    message: &str,
    ts: &str,
    who: Option<&str>,
) -> String {
    // Warnings and errors must stand out in a long log.
    let word = match level {
        Level::ERROR => "error: ",
        Level::WARN => "warning: ",
        _ => "",
    };
    let priority = reader.priority(level);
    match (reader, who) {
        // The journal adds the program and the time itself.
        (LogReader::Journal, Some(who)) => format!("{priority}{who}: {word}{message}"),
        (LogReader::Journal, None) => format!("{priority}{word}{message}"),
        (LogReader::Other, Some(who)) => format!("{ts} trafficcop[{who}]: {word}{message}"),
        (LogReader::Terminal, Some(who)) => {
            let time = ts.split_once('T').map_or(ts, |(_, time)| time);
            format!("{time} trafficcop[{who}]: {word}{message}")
        }
        (LogReader::Other | LogReader::Terminal, None) => format!("trafficcop: {word}{message}"),
    }
}

fn for_programs(level: Level, said: LineFields, ts: &str, context: Option<&Context>) -> Value {
    let mut line = Map::new();
    line.insert("ts".into(), ts.into());
    line.insert("level".into(), level.as_str().to_lowercase().into());
    line.insert("message".into(), said.message.into());
    if let Some(context) = context {
        line.insert("lock".into(), context.lock.clone().into());
        line.insert("identity".into(), context.identity.clone().into());
    }
    line.insert("pid".into(), std::process::id().into());
    line.extend(said.fields);
    Value::Object(line)
}

struct OneLine {
    json: bool,
    reader: LogReader,
}

impl<S, N> FormatEvent<S, N> for OneLine
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
        let mut said = LineFields::default();
        event.record(&mut said);
        let level = *event.metadata().level();
        let context = CONTEXT.get();
        if self.json {
            let line = for_programs(level, said, &wall_clock(), context);
            // The journal removes the priority before the object: its readers see JSON alone.
            writeln!(to, "{}{line}", self.reader.priority(level))
        } else {
            let who = context.map(|context| &*context.identity);
            let line = for_people(self.reader, level, &said.message, &wall_clock(), who);
            writeln!(to, "{line}")
        }
    }
}

/// Removes the numbers that the standard library appends to the kernel's errors.
fn without_numbers(mut text: String) -> String {
    while let Some(at) = text.find(" (os error ") {
        let end = text[at..].find(')').map_or(text.len(), |end| at + end + 1);
        text.replace_range(at..end, "");
    }
    text
}

#[derive(Default)]
struct LineFields {
    message: String,
    fields: Map<String, Value>,
}

impl Visit for LineFields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.insert(field.name().into(), value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.insert(field.name().into(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.insert(field.name().into(), value.into());
    }
    // The next function makes a server's text safe to print.
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = without_numbers(plain(&format!("{value:?}")));
        if field.name() == "message" {
            self.message = text;
        } else {
            self.fields.insert(field.name().into(), text.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::util::lock;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            lock(&self.0).write(text)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Format {
        /// Returns the lines that `work` logs, as text and as JSON.
        pub(crate) fn logged(work: impl FnOnce()) -> [String; 2] {
            let lines = [Lines::default(), Lines::default()];
            let layers = [false, true].map(|json| {
                let to = lines[usize::from(json)].clone();
                let reader = LogReader::Other;
                let format = OneLine { json, reader };
                tracing_subscriber::fmt::layer()
                    .event_format(format)
                    .with_writer(move || to.clone())
            });
            let both = tracing_subscriber::registry().with(Vec::from(layers));
            tracing::subscriber::with_default(both.with(LevelFilter::DEBUG), work);
            lines.map(|lines| String::from_utf8(lock(&lines.0).clone()).unwrap())
        }
    }

    #[test]
    fn each_reader_gets_a_suitable_prefix() {
        let line = |reader, level, who| for_people(reader, level, "a", "T", who);
        let web = Some("web1");
        for (reader, level, who, expected) in [
            (LogReader::Other, Level::INFO, None, "trafficcop: a"),
            (
                LogReader::Other,
                Level::WARN,
                None,
                "trafficcop: warning: a",
            ),
            (
                LogReader::Other,
                Level::ERROR,
                web,
                "T trafficcop[web1]: error: a",
            ),
            (LogReader::Journal, Level::ERROR, None, "<3>error: a"),
            (LogReader::Journal, Level::WARN, web, "<4>web1: warning: a"),
            (LogReader::Journal, Level::INFO, web, "<6>web1: a"),
            (LogReader::Journal, Level::DEBUG, web, "<7>web1: a"),
        ] {
            assert_eq!(line(reader, level, who), expected);
        }
    }

    #[test]
    fn errors_of_the_kernel_are_shown_without_their_numbers() {
        let error = std::io::Error::from_raw_os_error(libc::ENOENT);
        let text = without_numbers(format!("a: {error}: b, {error}"));
        let why = "No such file or directory";
        assert_eq!(text, format!("a: {why}: b, {why}"));
    }

    #[test]
    fn journal_is_recognised_by_its_file_not_by_the_variable_alone() {
        let file = tempfile::tempfile().unwrap();
        let stat = fstat(&file).unwrap();
        let named = |ino| Some(format!("{}:{ino}", stat.st_dev).into());
        assert_eq!(LogReader::of(&file, named(stat.st_ino)), LogReader::Journal);
        assert_eq!(
            LogReader::of(&file, named(stat.st_ino + 1)),
            LogReader::Other
        );
        assert_eq!(LogReader::of(&file, None), LogReader::Other);
    }

    #[test]
    fn json_line_has_the_context_and_the_fields() {
        let mut said = LineFields {
            message: "in control".into(),
            ..LineFields::default()
        };
        said.fields.insert("token".into(), 7.into());
        let context = Context {
            lock: "file:/x".into(),
            identity: "web1-42".into(),
            command: "job".into(),
        };
        let line = for_programs(Level::INFO, said, "2020-01-01T00:00:00Z", Some(&context));
        assert_eq!(line["level"], "info");
        assert_eq!(line["message"], "in control");
        assert_eq!(line["token"], 7);
        assert_eq!(line["lock"], "file:/x");
        assert_eq!(line["ts"], "2020-01-01T00:00:00Z");
        assert!(!line.to_string().contains('\n'));
    }
}
