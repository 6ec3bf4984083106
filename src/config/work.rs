//! What was typed of work, made sense of. Called by main.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::source::Source;
use super::{Host, Lock, UsageError, about, identity, span, status_file, telling};
use crate::args;
use crate::azure::AuthOptions;
use crate::core::Budget;
use crate::guardian::Contain;
use crate::report::Volume;
use crate::units::{self, show};

/// What a storage queue can lock a message for, as far as there is time to renew it.
const LOCK_TIME: RangeInclusive<Duration> =
    Duration::from_secs(2)..=Duration::from_secs(7 * 24 * 3600);
/// After how much of its time a lock can be renewed, in per cent.
const RENEW_AT: RangeInclusive<u32> = 10..=90;
/// The most commands at once: each has a guardian.
const CONCURRENCY: RangeInclusive<usize> = 1..=128;
/// How often a message can be tried.
const ATTEMPTS: RangeInclusive<u32> = 1..=1_000_000;
/// The longest a message can stay away: what a storage queue can hide it for.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The longest body that can be asked for, in bytes.
const BODY: RangeInclusive<u64> = 1..=1 << 30;

const DEFAULT_LOCK_TIME: Duration = Duration::from_secs(60);
const DEFAULT_RENEW_AT: u32 = 70;
pub(super) const DEFAULT_ATTEMPTS: u32 = 5;
const DEFAULT_RETRY_DELAY: (Duration, Duration) =
    (Duration::from_secs(10), Duration::from_secs(300));
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(10);
const DEFAULT_BODY: u64 = 100 << 20;

/// What is to be done with the messages of a queue, and how.
#[derive(Clone, Debug)]
pub struct Work {
    /// Which queue.
    pub source: Source,
    /// The longest body, in bytes.
    pub max_body: u64,
    /// How many messages are worked on at once.
    pub concurrency: usize,
    /// Only one message, and we end as its command does.
    pub once: bool,
    /// After how many messages we leave.
    pub max_messages: Option<u64>,
    /// After how long without a message we leave.
    pub idle_exit: Option<Duration>,
    /// Messages are handed over in directories.
    pub in_directories: bool,
    /// The longest a command may run.
    pub timeout: Option<Duration>,
    /// What a command is sent first when it is to end.
    pub stop_signal: i32,
    /// What keeps a command's tree together.
    pub contain: Contain,
    /// How often a message is tried; `None`: as often as its queue gives it to us.
    pub max_attempts: Option<u32>,
    /// How long a message that failed stays away, at first and at most.
    pub retry_delay: (Duration, Duration),
    /// Exit statuses that put a message aside.
    pub dead_letter_exit: Vec<RangeInclusive<u8>>,
    /// Exit statuses that do not.
    pub retry_exit: Vec<RangeInclusive<u8>>,
    /// After how much of its time a message's lock is renewed, in per cent.
    pub renew_at: u32,
    /// How long commands may go on after a stop was requested.
    pub grace: Duration,
    /// From the stop signal to SIGKILL.
    pub kill_after: Duration,
    /// Who we are in the log.
    pub identity: String,
    /// The machine's name.
    pub host: String,
    /// Our process id.
    pub pid: u32,
    /// Seeds the spread of polls and retries.
    pub seed: u64,
    /// Where the present state is kept.
    pub status_file: Option<PathBuf>,
    /// Where what happens is appended.
    pub event_log: Option<PathBuf>,
    /// Where questions are answered over HTTP.
    pub listen: Option<crate::serve::Address>,
    /// Variables of ours that no command inherits.
    pub withheld: Vec<OsString>,
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
}

impl From<&args::Work> for Volume {
    fn from(typed: &args::Work) -> Volume {
        (&what_it_shares(typed)).into()
    }
}

impl Work {
    /// Makes sense of what was typed.
    ///
    /// # Errors
    /// The first thing found that cannot be.
    pub fn new(typed: args::Work, place: &Host) -> Result<Work, UsageError> {
        let Some(program) = typed.command.first() else {
            return Err(UsageError::new(
                "no command: name what is to be run for each message after --, as in 'trafficcop work --queue NAME -- ./handle'",
            ));
        };
        if program.is_empty() {
            return Err(UsageError::new(
                "the command's name is empty: is a variable unset in what was typed after --?",
            ));
        }
        let source = Source::new(&typed)?;
        let common = what_it_shares(&typed);
        // No file of the lock's own could be named twice, as with a blob.
        let lock = Lock::Blob {
            target: String::new(),
            options: AuthOptions::default(),
            create: false,
            page_blob: None,
        };
        let status_file = status_file(&common, &lock, 1)?;
        let (_, event_log) = telling::telling(&common, &lock, 1)?;
        let concurrency = number("-j", typed.concurrency.as_deref(), &CONCURRENCY)?.unwrap_or(1);
        let max_messages = number(
            "--max-messages",
            typed.max_messages.as_deref(),
            &(1..=u64::MAX),
        )?;
        if typed.once {
            if let Some(most) = max_messages.filter(|most| *most != 1) {
                return Err(UsageError::new(format!(
                    "--once and --max-messages {most} contradict each other: choose one"
                )));
            }
            if concurrency > 1 {
                return Err(UsageError::new(format!(
                    "--once and -j {concurrency} contradict each other: one message needs one slot"
                )));
            }
        }
        let timeout = span("--timeout", typed.timeout.as_deref())?;
        if timeout.is_some_and(|limit| limit.is_zero()) {
            return Err(UsageError::new(
                "--timeout 0s: no command could do anything: leave it out for no limit",
            ));
        }
        let attempts = number("--max-attempts", typed.max_attempts.as_deref(), &ATTEMPTS)?;
        let dead_letter_exit = statuses("--dead-letter-exit", typed.dead_letter_exit.as_deref())?;
        let retry_exit = statuses("--retry-exit", typed.retry_exit.as_deref())?;
        Ok(Work {
            max_body: size(typed.max_body.as_deref())?,
            concurrency,
            once: typed.once,
            max_messages: if typed.once { Some(1) } else { max_messages },
            idle_exit: span("--idle-exit", typed.idle_exit.as_deref())?,
            in_directories: typed.message == args::Hand::File,
            timeout,
            stop_signal: match typed.stop_signal.as_deref() {
                Some(text) => units::signal(text).map_err(|why| about("--stop-signal", &why))?,
                None => libc::SIGTERM,
            },
            contain: match typed.contain {
                args::Contain::Auto => Contain::Auto,
                args::Contain::Cgroup => Contain::Cgroup,
                args::Contain::Pidns => Contain::Pidns,
                args::Contain::None => Contain::None,
            },
            max_attempts: attempts.or(source.attempts()),
            retry_delay: retry_delay(typed.retry_delay.as_deref())?,
            dead_letter_exit: dead_letter_exit.unwrap_or_else(|| vec![65..=65]),
            retry_exit: retry_exit.unwrap_or_else(|| vec![75..=75]),
            renew_at: renew_at(&typed)?,
            grace: span("--grace", typed.grace.as_deref())?.unwrap_or(DEFAULT_GRACE),
            kill_after: span("--kill-after", typed.kill_after.as_deref())?
                .unwrap_or(DEFAULT_KILL_AFTER),
            identity: identity(&common, place)?,
            host: place.host.clone(),
            pid: place.pid,
            seed: place.seed,
            listen: super::listen::listen(&typed.listen, &lock, 1, status_file.as_deref())?,
            status_file,
            event_log,
            withheld: super::access::withheld(typed.no_credentials, named_variable(&typed)),
            command: typed.command,
            source,
        })
    }
}

/// The variable that was named to hold a connection string.
#[cfg(feature = "service-bus")]
fn named_variable(typed: &args::Work) -> Option<&str> {
    typed.bus.connection_string_env.as_deref()
}

#[cfg(not(feature = "service-bus"))]
fn named_variable(_: &args::Work) -> Option<&str> {
    None
}

/// The flags that a worker has in common with who competes for a lock.
fn what_it_shares(typed: &args::Work) -> args::Common {
    args::Common {
        blob: None,
        file: None,
        no_wait: false,
        wait: None,
        connect_timeout: None,
        conflict_exit_code: None,
        slots: None,
        poll: None,
        lease: None,
        grace_on_loss: None,
        margin: None,
        if_lost: args::IfLost::Exit,
        emulator: typed.emulator,
        access: typed.access.clone(),
        no_create: false,
        page_blob: None,
        shared: false,
        heartbeat: None,
        identity: typed.identity.clone(),
        status_file: typed.status_file.clone(),
        log: typed.log,
        telling: typed.telling.clone(),
        quiet: typed.quiet,
    }
}

/// What a message of a storage queue is locked for.
pub(super) fn lock_time(typed: &args::Work) -> Result<Duration, UsageError> {
    let lock_time = span("--lock-time", typed.lock_time.as_deref())?.unwrap_or(DEFAULT_LOCK_TIME);
    if !LOCK_TIME.contains(&lock_time) {
        return Err(UsageError::new(format!(
            "--lock-time {}: take 2s to 7d",
            show(lock_time)
        )));
    }
    if lock_time.subsec_nanos() != 0 {
        return Err(UsageError::new(format!(
            "--lock-time {}: a message is locked for whole seconds: take {}s",
            show(lock_time),
            lock_time.as_secs()
        )));
    }
    let share = renew_at(typed)?;
    let sound = Budget::for_lock(lock_time, share).validate();
    sound.map_err(|why| {
        UsageError::new(format!(
            "--lock-time {} with --renew-at {share}%: {why}",
            show(lock_time)
        ))
    })?;
    Ok(lock_time)
}

fn renew_at(typed: &args::Work) -> Result<u32, UsageError> {
    let Some(text) = typed.renew_at.as_deref() else {
        return Ok(DEFAULT_RENEW_AT);
    };
    let share = text.strip_suffix('%').unwrap_or(text).trim().parse();
    let share = share.ok().filter(|share| RENEW_AT.contains(share));
    share.ok_or_else(|| UsageError::new(format!("--renew-at {text}: take 10% to 90%")))
}

fn number<T>(
    flag: &str,
    text: Option<&str>,
    within: &RangeInclusive<T>,
) -> Result<Option<T>, UsageError>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display + Copy,
{
    let Some(text) = text else {
        return Ok(None);
    };
    match text.trim().parse() {
        Ok(number) if within.contains(&number) => Ok(Some(number)),
        _ => Err(UsageError::new(format!(
            "{flag} {text}: take a number from {} to {}",
            within.start(),
            within.end()
        ))),
    }
}

/// `65`, `65,70-75`, or `none`.
fn statuses(flag: &str, text: Option<&str>) -> Result<Option<Vec<RangeInclusive<u8>>>, UsageError> {
    let Some(text) = text else {
        return Ok(None);
    };
    if text.trim() == "none" {
        return Ok(Some(Vec::new()));
    }
    let refuse = |why: &str| UsageError::new(format!("{flag} {text}: {why}"));
    let mut list = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let status = |text: &str| text.trim().parse::<u8>();
        let (Ok(first), Ok(last)) = (status(first), status(last)) else {
            return Err(refuse(
                "take exit statuses from 1 to 255, as in 65,70-75, or 'none'",
            ));
        };
        if first == 0 {
            return Err(refuse(
                "0 is what a command exits with that has done its work",
            ));
        }
        if last < first {
            return Err(refuse("a range goes from the smaller to the greater"));
        }
        list.push(first..=last);
    }
    Ok(Some(list))
}

/// `10s..5m`, or one that does not grow.
fn retry_delay(text: Option<&str>) -> Result<(Duration, Duration), UsageError> {
    const FLAG: &str = "--retry-delay";
    let Some(text) = text else {
        return Ok(DEFAULT_RETRY_DELAY);
    };
    let (first, most) = text.split_once("..").unwrap_or((text, text));
    let read = |text: &str| units::duration(text.trim()).map_err(|why| about(FLAG, &why));
    let (first, most) = (read(first)?, read(most)?);
    if most < first {
        return Err(UsageError::new(format!(
            "{FLAG} {text}: it grows from the shorter to the longer: swap them"
        )));
    }
    if most > RETRY_DELAY_MAX {
        return Err(UsageError::new(format!(
            "{FLAG} {text}: a message can stay away for 7d at most"
        )));
    }
    Ok((first, most))
}

fn size(text: Option<&str>) -> Result<u64, UsageError> {
    let Some(text) = text else {
        return Ok(DEFAULT_BODY);
    };
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
            "--max-body {text}: take a number of bytes from 1 to 1024M, as in 64K"
        ))
    })
}

#[cfg(test)]
mod tests;
