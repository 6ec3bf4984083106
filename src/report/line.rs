//! What a line of the log looks like to whoever reads it: systemd's journal, which wants a priority
//! and knows the time; anybody else, who wants the time; a person who typed something wrong. Called
//! by `report` alone; pure but for [`LogReader::of`].

use std::ffi::OsString;
use std::fmt;
use std::os::fd::AsFd;

use nix::sys::stat::fstat;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::{CONTEXT, Context};

/// Who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogReader {
    /// The journal, or what else systemd has put there.
    Journal,
    /// Anybody else.
    Other,
}

impl LogReader {
    /// Who reads our stderr: systemd says which file is its own (systemd.exec(5)), because a variable
    /// alone would be inherited by whoever redirects.
    pub(super) fn of(stderr: impl AsFd, stream: Option<OsString>) -> LogReader {
        let named = stream.and_then(|stream| stream.into_string().ok());
        match (named, fstat(stderr)) {
            // By device and inode: of a stderr that was redirected the variable still speaks.
            (Some(named), Ok(stat)) if named == format!("{}:{}", stat.st_dev, stat.st_ino) => {
                LogReader::Journal
            }
            _ => LogReader::Other,
        }
    }

    /// What stands before a line of this level: sd-daemon(3).
    fn priority(self, level: Level) -> &'static str {
        match (self, level) {
            (LogReader::Other, _) => "",
            (LogReader::Journal, Level::ERROR) => "<3>",
            (LogReader::Journal, Level::WARN) => "<4>",
            (LogReader::Journal, Level::INFO) => "<6>",
            (LogReader::Journal, _) => "<7>",
        }
    }
}

/// A line for people. Who speaks, and when, is said as soon as there is an instance: several may
/// write into one log. Before that it is an answer to what was typed.
fn text(reader: LogReader, level: Level, message: &str, ts: &str, who: Option<&str>) -> String {
    // Changes of state are the rule and bear no word; what is left of a long log is seen at once.
    let word = match level {
        Level::ERROR => "error: ",
        Level::WARN => "warning: ",
        _ => "",
    };
    let priority = reader.priority(level);
    match (reader, who) {
        // It says by itself which program this is, and when.
        (LogReader::Journal, Some(who)) => format!("{priority}{who}: {word}{message}"),
        (LogReader::Journal, None) => format!("{priority}{word}{message}"),
        (LogReader::Other, Some(who)) => format!("{ts} trafficcop[{who}]: {word}{message}"),
        (LogReader::Other, None) => format!("trafficcop: {word}{message}"),
    }
}

/// A line for programs.
fn json(level: Level, said: LineFields, ts: &str, context: Option<&Context>) -> Value {
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

/// The format of the log: one line for each event.
pub(super) struct OneLine {
    pub(super) json: bool,
    pub(super) reader: LogReader,
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
            let line = json(level, said, &now_utc(), context);
            // The priority before the object: the journal takes it off, and a program behind it
            // sees JSON alone.
            writeln!(to, "{}{line}", self.reader.priority(level))
        } else {
            let who = context.map(|context| &*context.identity);
            let line = text(self.reader, level, &said.message, &now_utc(), who);
            writeln!(to, "{line}")
        }
    }
}

/// What an event says.
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
    // By the same way as everything else: what came from a server is made plain in one place.
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = plain(&format!("{value:?}"));
        if field.name() == "message" {
            self.message = text;
        } else {
            self.fields.insert(field.name().into(), text.into());
        }
    }
}

// The longest text of a message or a field; a server's answer can be a whole page of HTML.
const TEXT_LIMIT: usize = 1000;

/// A text from outside, fit for a terminal: one line, no control characters, not too long. What came
/// from a server or a lock's record may not forge lines or talk to the terminal.
#[must_use]
pub fn plain(text: &str) -> String {
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
        // Whole seconds: nobody orders by the wall clock, and a line is to be read.
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
        assert_eq!(plain("a\nb\x1b[2J"), "a b [2J");
        let long = plain(&"é".repeat(5000));
        assert!(long.len() < 2100 && long.ends_with("..."));
    }

    #[test]
    fn each_reader_gets_what_he_has_not() {
        let line = |reader, level, who| text(reader, level, "a", "T", who);
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
    fn the_journal_is_known_by_its_file_and_not_by_a_variable_alone() {
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
    fn json_bears_what_is_known() {
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
        let line = json(Level::INFO, said, "2020-01-01T00:00:00Z", Some(&context));
        assert_eq!(line["level"], "info");
        assert_eq!(line["message"], "in control");
        assert_eq!(line["token"], 7);
        assert_eq!(line["lock"], "file:/x");
        assert_eq!(line["ts"], "2020-01-01T00:00:00Z");
        assert!(!line.to_string().contains('\n'));
    }
}
