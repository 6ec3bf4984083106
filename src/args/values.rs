//! How values are typed: for each kind a parser, which says in one line what is wrong with a value.

use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, StringValueParser, TypedValueParser};
use clap::{Arg, Command};

use crate::azure::scheduled_events::Endpoint;
use crate::exit::UsageError;
use crate::host::unfit_identity;
use crate::units::{self, show};

/// What a standby may sleep between two looks: less is a flood, more is a forgotten standby.
const POLL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// The most slots: a standby that looks at four with each poll must get round.
const SLOTS: u32 = 1000;
/// The longest key, in bytes: it travels in the metadata of a blob.
const KEY_LIMIT: usize = 128;
/// The most commands at once: each has a guardian.
const CONCURRENCY: RangeInclusive<usize> = 1..=128;
/// The longest a message can stay away: what a storage queue can hide it for.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The longest body that can be asked for, in bytes.
const BODY: RangeInclusive<u64> = 1..=1 << 30;

/// The value of a flag, or why it has none. The refusal waits here until the configuration asks for
/// the value: said by clap it would take several lines, be no JSON where the log is, and come before
/// what is wrong with the lock, or with a flag that excludes this one.
pub type Checked<T> = Result<T, UsageError>;

/// Exit statuses, as single ones and ranges.
pub type ExitStatuses = Vec<RangeInclusive<u8>>;

/// A value parser of a function that is given the flag's name and the value's text. clap refuses no
/// value for it, but one that is no text.
pub(super) fn checked<F>(read: F) -> Reader<F> {
    Reader(read)
}

#[derive(Clone)]
pub(super) struct Reader<F>(F);

impl<F, T> TypedValueParser for Reader<F>
where
    F: Fn(&str, &str) -> Checked<T> + Clone + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    type Value = Checked<T>;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Checked<T>, clap::Error> {
        let text = StringValueParser::new().parse_ref(command, arg, value)?;
        let long = arg.and_then(Arg::get_long).unwrap_or_default();
        Ok((self.0)(&format!("--{long}"), &text))
    }
}

/// A path, or the empty one: clap's own parser has its say about that, and ours is the better one.
pub(super) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn refuse<T>(line: impl Into<String>) -> Checked<T> {
    Err(UsageError::new(line))
}

fn about(flag: &str, why: impl Display) -> UsageError {
    UsageError::new(format!("{flag}: {why}"))
}

pub(super) fn duration(flag: &str, text: &str) -> Checked<Duration> {
    units::duration(text).map_err(|why| about(flag, why))
}

/// A whole number of seconds; `what` says of what.
fn whole_seconds(flag: &str, what: &str, span: Duration) -> Checked<Duration> {
    match span.subsec_nanos() {
        0 => Ok(span),
        _ => refuse(format!(
            "{flag} {}: {what}: take {}s",
            show(span),
            span.as_secs().max(1)
        )),
    }
}

pub(super) fn lease(flag: &str, text: &str) -> Checked<Duration> {
    let endless = ["infinite", "infinity", "inf", "forever", "-1"];
    if endless.contains(&text.to_lowercase().as_str()) {
        return refuse(
            "--lease: an infinite lease is never given back by a machine that died: take 15s to 60s, it is renewed for as long as we live",
        );
    }
    duration(flag, text)
}

pub(super) fn poll(flag: &str, text: &str) -> Checked<Duration> {
    let poll = duration(flag, text)?;
    match POLL.contains(&poll) {
        true => Ok(poll),
        false => refuse(format!("{flag} {}: take 100ms to 1h", show(poll))),
    }
}

pub(super) fn min_hold(flag: &str, text: &str) -> Checked<Duration> {
    match duration(flag, text)? {
        Duration::ZERO => refuse("--min-hold 0s keeps nothing: leave it out, or say how long"),
        span => Ok(span),
    }
}

pub(super) fn once_per(flag: &str, text: &str) -> Checked<Duration> {
    match duration(flag, text)? {
        Duration::ZERO => refuse(
            "--once-per 0s: a slot needs a length, like 1h; for once and for all take --once alone",
        ),
        // Clocks of services tell whole seconds.
        span => whole_seconds(flag, "slots are of whole seconds", span),
    }
}

pub(super) fn timeout(flag: &str, text: &str) -> Checked<Duration> {
    match duration(flag, text)? {
        Duration::ZERO => {
            refuse("--timeout 0s: no command could do anything: leave it out for no limit")
        }
        span => Ok(span),
    }
}

/// `10s..5m`, or one that does not grow.
pub(super) fn retry_delay(flag: &str, text: &str) -> Checked<(Duration, Duration)> {
    let (first, most) = text.split_once("..").unwrap_or((text, text));
    let read = |text: &str| units::duration(text.trim()).map_err(|why| about(flag, why));
    let (first, most) = (read(first)?, read(most)?);
    if most < first {
        return refuse(format!(
            "{flag} {text}: it grows from the shorter to the longer: swap them"
        ));
    }
    if most > RETRY_DELAY_MAX {
        return refuse(format!(
            "{flag} {text}: a message can stay away for 7d at most"
        ));
    }
    Ok((first, most))
}

pub(super) fn signal(flag: &str, text: &str) -> Checked<i32> {
    units::signal(text).map_err(|why| about(flag, why))
}

pub(super) fn page_blob(flag: &str, text: &str) -> Checked<u64> {
    units::page_blob_size(text).map_err(|why| about(flag, why))
}

pub(super) fn body_size(flag: &str, text: &str) -> Checked<u64> {
    let typed = text.trim();
    let (digits, unit) = match typed.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&typed[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&typed[..at], 1 << 20),
        _ => (typed, 1),
    };
    let bytes = digits.parse::<u64>().ok();
    let bytes = bytes.and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| BODY.contains(bytes)).ok_or_else(|| {
        UsageError::new(format!(
            "{flag} {text}: take a number of bytes from 1 to 1024M, as in 64K"
        ))
    })
}

/// A number in these limits.
pub(super) fn number<T>(
    within: RangeInclusive<T>,
) -> impl Fn(&str, &str) -> Checked<T> + Clone + Send + Sync
where
    T: FromStr + PartialOrd + Display + Copy + Send + Sync,
{
    move |flag, text| match text.trim().parse() {
        Ok(number) if within.contains(&number) => Ok(number),
        _ => refuse(format!(
            "{flag} {text}: take a number from {} to {}",
            within.start(),
            within.end()
        )),
    }
}

pub(super) fn concurrency(_: &str, text: &str) -> Checked<usize> {
    number(CONCURRENCY)("-j", text)
}

pub(super) fn slots(flag: &str, text: &str) -> Checked<u32> {
    match text.parse() {
        Ok(0) => refuse("--slots 0: nobody could ever have control: take 1 or more"),
        Ok(count) if count <= SLOTS => Ok(count),
        _ => refuse(format!("{flag} {text}: take a number from 1 to {SLOTS}")),
    }
}

pub(super) fn restart_limit(flag: &str, text: &str) -> Checked<u32> {
    match text.parse() {
        Ok(0) => refuse(
            "--restart-limit 0 allows no restart at all: take --restart never, or a limit of 1 or more",
        ),
        Ok(limit) => Ok(limit),
        Err(_) => refuse(format!(
            "{flag}: '{text}' is not a number of restarts, like 5"
        )),
    }
}

pub(super) fn once_attempts(flag: &str, text: &str) -> Checked<u32> {
    match text.parse() {
        Ok(0) => refuse("--once-attempts 0 allows no run at all: take 1 or more"),
        Ok(most) => Ok(most),
        Err(_) => refuse(format!("{flag}: '{text}' is not a number of runs, like 3")),
    }
}

pub(super) fn exit_status(flag: &str, text: &str) -> Checked<u8> {
    // flock once took 600 for 88.
    let status = text.parse().map_err(|_| {
        UsageError::new(format!(
            "{flag} {text}: an exit status is a number from 0 to 255"
        ))
    })?;
    Ok(status)
}

/// `65`, `65,70-75`, or `none`.
pub(super) fn exit_statuses(flag: &str, text: &str) -> Checked<ExitStatuses> {
    if text.trim() == "none" {
        return Ok(Vec::new());
    }
    let refuse = |why: &str| refuse(format!("{flag} {text}: {why}"));
    let mut list = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let status = |text: &str| text.trim().parse::<u8>();
        let (Ok(first), Ok(last)) = (status(first), status(last)) else {
            return refuse("take exit statuses from 1 to 255, as in 65,70-75, or 'none'");
        };
        if first == 0 {
            return refuse("0 is what a command exits with that has done its work");
        }
        if last < first {
            return refuse("a range goes from the smaller to the greater");
        }
        list.push(first..=last);
    }
    Ok(list)
}

/// In per cent.
pub(super) fn renew_at(flag: &str, text: &str) -> Checked<u32> {
    let share = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    let share = share.filter(|share| (10..=90).contains(share));
    share.ok_or_else(|| UsageError::new(format!("{flag} {text}: take 10% to 90%")))
}

pub(super) fn identity(flag: &str, text: &str) -> Checked<String> {
    match unfit_identity(text) {
        Some(why) => Err(about(flag, why)),
        None => Ok(text.to_owned()),
    }
}

pub(super) fn once_key(flag: &str, text: &str) -> Checked<String> {
    match text.len() {
        0 => refuse("--once-key is empty: name the task (is a variable unset?)"),
        1..=KEY_LIMIT => Ok(text.to_owned()),
        bytes => refuse(format!(
            "{flag}: {bytes} bytes are too many: {KEY_LIMIT} at most"
        )),
    }
}

#[cfg(feature = "service-bus")]
pub(super) fn variable_name(flag: &str, text: &str) -> Checked<String> {
    match text.is_empty() || text.contains(['=', ';', ' ', '\0']) {
        false => Ok(text.to_owned()),
        // Not repeated: it may be the string itself.
        true => refuse(format!(
            "{flag} takes the name of a variable, not the connection string"
        )),
    }
}

pub(super) fn vm_name(flag: &str, text: &str) -> Checked<String> {
    match text.trim().is_empty() || text.chars().any(char::is_control) {
        false => Ok(text.to_owned()),
        true => refuse(format!(
            "{flag} is no name of a machine: take what Azure calls it, or leave it out"
        )),
    }
}

pub(super) fn endpoint(flag: &str, text: &str) -> Checked<Endpoint> {
    Endpoint::parse(text).map_err(|why| about(flag, why))
}
