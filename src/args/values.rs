//! Parsers of values, one for each kind.

use std::ffi::OsStr;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, Command};

use crate::core::health::LEAST_WATCHDOG;
use crate::doorbell::DoorbellAddress;
use crate::exit::UsageError;
use crate::host::unfit_identity;
use crate::units::{self, show};
use crate::util::is_unprintable;

// Less is a flood, more is a forgotten standby.
const POLL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
// `--doorbell` without an address.
pub(super) const AUTO: &str = "auto";
// In bytes: it travels in the metadata of a blob.
const KEY_LIMIT: usize = 128;
// Each command has a guardian.
const CONCURRENCY: RangeInclusive<usize> = 1..=128;
// A storage queue hides a message no longer than this.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
// Each concurrent message's body is in memory twice: here, and in what the command gets.
const BODY: RangeInclusive<u64> = 1..=1 << 30;

/// Value of a flag, or its refusal, which waits until the configuration needs the value.
///
/// clap's own error would take several lines, ignore the log's format, and come before a mistake in the lock or
/// in a flag that excludes this one.
pub type Checked<T> = Result<T, UsageError>;

/// Exit statuses and ranges of them.
pub type ExitStatuses = Vec<RangeInclusive<u8>>;

/// Makes a parser of a function that gets the name and the text of a value. The name is the typed flag, or the
/// variable. clap refuses only what is no text.
pub(super) fn checked<F>(read: F) -> CheckedParser<F> {
    CheckedParser(read)
}

#[derive(Clone)]
pub(super) struct CheckedParser<F>(F);

impl<F, T> TypedValueParser for CheckedParser<F>
where
    F: Fn(&str, &str) -> T + Clone + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        self.parse_ref_(command, arg, value, ValueSource::CommandLine)
    }

    fn parse_ref_(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
        source: ValueSource,
    ) -> Result<T, clap::Error> {
        let variable = arg.and_then(Arg::get_env);
        let name = match variable.filter(|_| source == ValueSource::EnvVariable) {
            Some(variable) => variable.to_string_lossy().into_owned(),
            None => format!("--{}", arg.and_then(Arg::get_long).unwrap_or_default()),
        };
        // A line of the log could not repeat it.
        let text = value.to_str().ok_or_else(|| {
            let mut error = clap::Error::new(ErrorKind::InvalidUtf8).with_cmd(command);
            error.insert(ContextKind::InvalidArg, ContextValue::String(name.clone()));
            error
        })?;
        Ok((self.0)(&name, text))
    }
}

/// Returns a setting as it was given: `--poll 1ms`, or `TRAFFICCOP_POLL=1ms`.
fn given(name: &str, value: impl Display) -> String {
    match name.starts_with('-') {
        true => format!("{name} {value}"),
        false => format!("{name}={value}"),
    }
}

/// Accepts the empty path, too: the configuration refuses it in better words than clap.
pub(super) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn refuse<T>(line: impl Into<String>) -> Checked<T> {
    Err(UsageError::new(line))
}

fn about(flag: &str, why: impl Display) -> UsageError {
    UsageError::new(format!("{flag}: {why}"))
}

pub(super) fn is_https(text: &OsStr) -> bool {
    const SCHEME: &[u8] = b"https://";
    let scheme = text.as_encoded_bytes().get(..SCHEME.len());
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
}

pub(super) fn duration(flag: &str, text: &str) -> Checked<Duration> {
    units::duration(text).map_err(|why| about(flag, why))
}

pub(super) fn watchdog(flag: &str, text: &str) -> Checked<Duration> {
    let span = duration(flag, text)?;
    match span >= LEAST_WATCHDOG {
        true => Ok(span),
        false => refuse(format!(
            "{}: on a busy machine a command is late by that much: take {} or more",
            given(flag, show(span)),
            show(LEAST_WATCHDOG)
        )),
    }
}

pub(super) fn lease(flag: &str, text: &str) -> Checked<Duration> {
    // The service's own word is -1. People who know such leases mean them, so this is no mistyped duration.
    let endless = ["infinite", "infinity", "inf", "forever", "-1"];
    if endless.contains(&text.to_lowercase().as_str()) {
        return refuse(format!(
            "{flag}: an infinite lease is never given back by a machine that died: take 15s to 60s, \
             which trafficcop renews while it lives"
        ));
    }
    duration(flag, text)
}

pub(super) fn poll(flag: &str, text: &str) -> Checked<Duration> {
    let poll = duration(flag, text)?;
    match POLL.contains(&poll) {
        true => Ok(poll),
        false => refuse(format!("{}: take 100ms to 1h", given(flag, show(poll)))),
    }
}

/// Accepts `auto`, an address, or an address and a port.
pub(super) fn doorbell(flag: &str, text: &str) -> Checked<DoorbellAddress> {
    // An empty variable counts as unset, so these words stand for a flag without a value.
    if [AUTO, "1", "true", "yes", "on"].contains(&text) {
        return Ok(DoorbellAddress::default());
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if let Ok(ip) = bare.unwrap_or(text).parse() {
        return Ok(DoorbellAddress {
            ip: Some(ip),
            port: 0,
        });
    }
    match text.parse::<SocketAddr>() {
        Ok(address) => Ok(DoorbellAddress {
            ip: Some(address.ip()),
            port: address.port(),
        }),
        Err(_) => refuse(format!(
            "{flag}={text}: name an address of this machine, as in 10.0.0.4 or 10.0.0.4:7000, or auto"
        )),
    }
}

/// Parses a duration above 0; `zero` says what is wrong with that.
pub(super) fn positive(
    zero: &'static str,
) -> impl Fn(&str, &str) -> Checked<Duration> + Clone + Send + Sync {
    move |flag, text| match duration(flag, text)? {
        Duration::ZERO => refuse(given(flag, "0s") + zero),
        span => Ok(span),
    }
}

pub(super) fn once_per(flag: &str, text: &str) -> Checked<Duration> {
    let zero = ": a period needs a length, like 1h; for once and for all take --once alone";
    let span = positive(zero)(flag, text)?;
    // Services' clocks have whole seconds.
    match span.subsec_nanos() {
        0 => Ok(span),
        _ => refuse(format!(
            "{}: periods are of whole seconds: take {}s",
            given(flag, show(span)),
            span.as_secs().max(1)
        )),
    }
}

/// Parses `10s..5m`, or one delay that does not grow.
pub(super) fn retry_delay(flag: &str, text: &str) -> Checked<(Duration, Duration)> {
    let (first, most) = text.split_once("..").unwrap_or((text, text));
    let read = |text: &str| units::duration(text.trim()).map_err(|why| about(flag, why));
    let (first, most) = (read(first)?, read(most)?);
    if most < first {
        return refuse(format!(
            "{}: the shorter duration comes first: swap them",
            given(flag, text)
        ));
    }
    if most > RETRY_DELAY_MAX {
        return refuse(format!(
            "{}: a message can be hidden for 7d at most",
            given(flag, text)
        ));
    }
    Ok((first, most))
}

/// Returns 0 for `none`.
pub(super) fn signal(flag: &str, text: &str) -> Checked<i32> {
    if text.trim().eq_ignore_ascii_case("none") {
        return Ok(0);
    }
    units::signal(text).map_err(|why| about(flag, why))
}

pub(super) fn page_blob(flag: &str, text: &str) -> Checked<u64> {
    units::page_blob_size(text).map_err(|why| about(flag, why))
}

pub(super) fn body_size(flag: &str, text: &str) -> Checked<u64> {
    let typed = text.trim();
    let (digits, unit) = match typed.char_indices().next_back() {
        // Powers of two, as the service measures its own limits.
        Some((at, 'K' | 'k')) => (&typed[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&typed[..at], 1 << 20),
        _ => (typed, 1),
    };
    let bytes = digits.parse::<u64>().ok();
    let bytes = bytes.and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| BODY.contains(bytes)).ok_or_else(|| {
        UsageError::new(format!(
            "{}: take a number of bytes from 1 to 1024M, as in 64K",
            given(flag, text)
        ))
    })
}

pub(super) fn number<T>(
    within: RangeInclusive<T>,
) -> impl Fn(&str, &str) -> Checked<T> + Clone + Send + Sync
where
    T: FromStr + PartialOrd + Display + Copy + Send + Sync,
{
    move |flag, text| match text.trim().parse() {
        Ok(number) if within.contains(&number) => Ok(number),
        _ => refuse(format!(
            "{}: take a number from {} to {}",
            given(flag, text),
            within.start(),
            within.end()
        )),
    }
}

pub(super) fn concurrency(flag: &str, text: &str) -> Checked<usize> {
    // People type the short one.
    let name = if flag.starts_with('-') { "-j" } else { flag };
    number(CONCURRENCY)(name, text)
}

/// Parses a number above 0; `none` is the error for 0.
pub(super) fn count(
    what: &'static str,
    none: &'static str,
) -> impl Fn(&str, &str) -> Checked<u32> + Clone + Send + Sync {
    move |flag, text| match text.parse() {
        Ok(0) => refuse(format!("{} {none}", given(flag, 0))),
        Ok(count) => Ok(count),
        Err(_) => refuse(format!("{flag}: '{text}' is not a number of {what}")),
    }
}

/// Parses `65`, `65,70-75`, or `none`.
pub(super) fn exit_statuses(flag: &str, text: &str) -> Checked<ExitStatuses> {
    if text.trim() == "none" {
        return Ok(Vec::new());
    }
    let refuse = |why: &str| refuse(format!("{}: {why}", given(flag, text)));
    let mut list = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let status = |text: &str| text.trim().parse::<u8>();
        let (Ok(first), Ok(last)) = (status(first), status(last)) else {
            return refuse("take exit statuses from 1 to 255, as in 65,70-75, or 'none'");
        };
        // Every message whose work is done would be dead-lettered.
        if first == 0 {
            return refuse("0 is the exit status of a command that has done its work");
        }
        if last < first {
            return refuse("a range goes from the smaller to the greater");
        }
        list.push(first..=last);
    }
    Ok(list)
}

pub(super) fn renew_at(flag: &str, text: &str) -> Checked<u32> {
    let share = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    let share = share.filter(|share| (10..=90).contains(share));
    share.ok_or_else(|| UsageError::new(given(flag, text) + ": take 10% to 90%"))
}

pub(super) fn identity(flag: &str, text: &str) -> Checked<String> {
    match unfit_identity(text) {
        Some(why) => Err(about(flag, why)),
        None => Ok(text.to_owned()),
    }
}

/// `advice` tells what to do about an empty text.
pub(super) fn not_empty(
    advice: &'static str,
) -> impl Fn(&str, &str) -> Checked<String> + Clone + Send + Sync {
    move |flag, text| match text.is_empty() {
        false => Ok(text.to_owned()),
        true => refuse(format!("{flag} is empty: {advice}")),
    }
}

pub(super) fn once_key(flag: &str, text: &str) -> Checked<String> {
    match text.len() {
        ..=KEY_LIMIT => not_empty("name the task (is a variable unset?)")(flag, text),
        bytes => refuse(format!(
            "{flag}: {bytes} bytes are too many: take {KEY_LIMIT} at most"
        )),
    }
}

#[cfg(feature = "service-bus")]
pub(super) fn variable_name(flag: &str, text: &str) -> Checked<String> {
    // The string itself would put a key into `ps` and the shell's history.
    match text.is_empty() || text.contains(['=', ';', ' ', '\0']) {
        false => Ok(text.to_owned()),
        // Not repeated: it may be the string.
        true => refuse(format!(
            "{flag} takes the name of a variable, not the connection string"
        )),
    }
}

pub(super) fn vm_name(flag: &str, text: &str) -> Checked<String> {
    // Such a name would match no event, and no message would report it.
    match text.trim().is_empty() || text.chars().any(is_unprintable) {
        false => Ok(text.to_owned()),
        true => refuse(format!(
            "{flag} is no name of a machine: take its name in Azure, or leave it out"
        )),
    }
}
