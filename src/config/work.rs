//! The configuration of `work`: the queue, and how its messages are processed.

#[cfg(feature = "service-bus")]
mod service_bus;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::azure::{options, withheld};
use super::command::refuse_no_command;
use super::outputs::Outputs;
use super::run::{DEFAULT_PATIENCE, identity};
use super::{Host, UsageError};
use crate::args::{self, ExitStatuses};
use crate::azure::AuthOptions;
#[cfg(feature = "service-bus")]
use crate::azure::ServiceBusOptions;
use crate::core::{AUTH_PATIENCE, Budget};
use crate::guardian::{Contain, StopTo};
use crate::queue::storage::Encoding;
use crate::units::show;

// A storage queue allows these, and they leave time to renew.
const LOCK_TIME: RangeInclusive<Duration> =
    Duration::from_secs(2)..=Duration::from_secs(7 * 24 * 3600);

const DEFAULT_LOCK_TIME: Duration = Duration::from_secs(60);
const DEFAULT_RENEW_AT: u32 = 70;
const DEFAULT_ATTEMPTS: u32 = 5;
const DEFAULT_RETRY_DELAY: (Duration, Duration) =
    (Duration::from_secs(10), Duration::from_secs(300));
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(10);
const DEFAULT_BODY: u64 = 100 << 20;

/// Validated configuration of `work`.
#[derive(Clone, Debug)]
pub struct Work {
    pub source: Source,
    /// Limit in bytes.
    pub max_body: u64,
    pub concurrency: usize,
    /// Process one message, and end with its command's status.
    pub once: bool,
    pub max_messages: Option<u64>,
    pub idle_exit: Option<Duration>,
    /// Time for which the queue may refuse a credential that it has accepted.
    pub auth_patience: Duration,
    pub in_directories: bool,
    pub timeout: Option<Duration>,
    pub stop_signal: i32,
    pub stop_to: StopTo,
    pub contain: Contain,
    /// Settle a message before its command starts.
    pub at_most_once: bool,
    /// `None` leaves it to the queue.
    pub max_attempts: Option<u32>,
    /// Delay of a failed message: first and longest.
    pub retry_delay: (Duration, Duration),
    pub dead_letter_exit: ExitStatuses,
    pub retry_exit: ExitStatuses,
    /// Share of the lock time, in per cent.
    pub renew_at: u32,
    /// Time for commands to end after a requested stop.
    pub grace: Duration,
    /// From the stop signal to SIGKILL.
    pub kill_after: Duration,
    pub identity: String,
    pub host: String,
    pub pid: u32,
    /// Seed that spreads polls and retries.
    pub seed: u64,
    pub status_file: Option<PathBuf>,
    pub event_log: Option<PathBuf>,
    pub listen: Option<crate::serve::Address>,
    pub withheld: Vec<OsString>,
    /// Command and arguments; not empty.
    pub command: Vec<OsString>,
}

impl Work {
    /// Validates the settings.
    pub fn new(typed: args::Work, host: &Host) -> Result<Work, UsageError> {
        refuse_no_command(
            &typed.command,
            "no command: write after -- what runs for each message, as in 'trafficcop work --queue NAME -- ./handle'",
        )?;
        // First, like the lock in `run`.
        let source = Source::new(&typed)?;
        let (operations, listen) = (&typed.operations, &typed.listen);
        let outputs = Outputs::new(operations, listen, None, Vec::new(), DEFAULT_PATIENCE)?;
        let max_messages = typed.max_messages.transpose()?;
        // A storage queue counts without a limit: a bad message would come for ever. On Service Bus the queue's owner
        // sets a limit that cannot be switched off.
        let is_storage = matches!(source, Source::Storage(_));
        let default_attempts = is_storage.then_some(DEFAULT_ATTEMPTS);
        // EX_DATAERR and EX_TEMPFAIL of sysexits.h.
        let dead_letter_exit = typed
            .dead_letter_exit
            .unwrap_or_else(|| Ok(vec![65..=65]))?;
        let retry_exit = typed.retry_exit.unwrap_or_else(|| Ok(vec![75..=75]))?;
        Ok(Work {
            max_body: typed.max_body.unwrap_or(Ok(DEFAULT_BODY))?,
            concurrency: typed.concurrency.unwrap_or(Ok(1))?,
            once: typed.once,
            max_messages: if typed.once { Some(1) } else { max_messages },
            idle_exit: typed.idle_exit.transpose()?,
            auth_patience: typed.auth_patience.unwrap_or(Ok(AUTH_PATIENCE))?,
            in_directories: typed.message == args::Hand::File,
            timeout: typed.timeout.transpose()?,
            stop_signal: typed.stopping.stop_signal.unwrap_or(Ok(libc::SIGTERM))?,
            stop_to: typed.stopping.stop_to,
            contain: typed.stopping.contain,
            at_most_once: typed.at_most_once,
            max_attempts: typed.max_attempts.transpose()?.or(default_attempts),
            retry_delay: typed.retry_delay.unwrap_or(Ok(DEFAULT_RETRY_DELAY))?,
            dead_letter_exit,
            retry_exit,
            renew_at: typed.renew_at.unwrap_or(Ok(DEFAULT_RENEW_AT))?,
            grace: typed.grace.unwrap_or(Ok(DEFAULT_GRACE))?,
            kill_after: typed.kill_after.unwrap_or(Ok(DEFAULT_KILL_AFTER))?,
            identity: identity(&typed.operations, host)?,
            host: host.host.clone(),
            pid: host.pid,
            seed: host.seed,
            listen: outputs.listen,
            status_file: outputs.status_file,
            event_log: outputs.event_log,
            withheld: match typed.no_credentials {
                true => source.withheld(),
                false => Vec::new(),
            },
            command: typed.command,
            source,
        })
    }
}

fn lock_time(typed: &args::Work) -> Result<Duration, UsageError> {
    let lock_time = typed.lock_time.clone().unwrap_or(Ok(DEFAULT_LOCK_TIME))?;
    if !LOCK_TIME.contains(&lock_time) {
        refuse!("--lock-time {}: take 2s to 7d", show(lock_time));
    }
    if lock_time.subsec_nanos() != 0 {
        refuse!(
            "--lock-time {}: a message is locked for whole seconds: take {}s",
            show(lock_time),
            lock_time.as_secs()
        );
    }
    let share = typed.renew_at.clone().unwrap_or(Ok(DEFAULT_RENEW_AT))?;
    // Otherwise one lost answer costs the message.
    let sound = Budget::for_lock(lock_time, share).validate();
    sound.map_err(|why| {
        UsageError::new(format!(
            "--lock-time {} with --renew-at {share}%: {why}",
            show(lock_time)
        ))
    })?;
    Ok(lock_time)
}

/// Queue with the settings of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Storage(Storage),
    /// Queue or subscription on Azure Service Bus.
    #[cfg(feature = "service-bus")]
    ServiceBus(ServiceBus),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Name or URL, which may contain a secret.
    pub queue: String,
    pub create: bool,
    pub options: AuthOptions,
    /// `QUEUE-poison` by default.
    pub poison_queue: Option<String>,
    pub encoding: Option<Encoding>,
    pub lock_time: Duration,
}

#[cfg(feature = "service-bus")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceBus {
    /// Checked against Azure's rules when it is opened.
    pub asked: ServiceBusOptions,
    pub options: AuthOptions,
    /// Overrides the queue's own value.
    pub lock_time: Option<Duration>,
    /// Settle on the link that brought the message.
    pub link_settle: bool,
    pub sessions: Option<Sessions>,
}

/// Taking and giving up sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// Time without a message until a session is given up.
    pub idle: Duration,
    pub messages: Option<u64>,
    /// Wait before the first message: the last worker may need as long to hear that the session is lost.
    pub lock_delay: Duration,
}

impl Sessions {
    /// Longest that a command may run after its session's lock was lost: half of the shortest `--lock-delay`. Not of
    /// this worker's: the next worker waits for its own, known only to be no shorter.
    pub const GRACE_ON_LOSS: Duration = Duration::from_secs(1);
}

impl Source {
    fn new(typed: &args::Work) -> Result<Source, UsageError> {
        #[cfg(feature = "service-bus")]
        if let Some(name) = &typed.bus.service_bus {
            return service_bus::queue(name.clone()?, typed).map(Source::ServiceBus);
        }
        storage(typed).map(Source::Storage)
    }

    /// Returns whether a message can be dead-lettered.
    #[must_use]
    pub fn puts_aside(&self) -> bool {
        match self {
            Source::Storage(_) => true,
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(bus) => !bus.asked.dead_letters,
        }
    }

    #[must_use]
    pub fn sessions(&self) -> Option<Sessions> {
        match self {
            Source::Storage(_) => None,
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(bus) => bus.sessions,
        }
    }

    fn withheld(&self) -> Vec<OsString> {
        match self {
            // A URL can contain a secret.
            Source::Storage(storage) => withheld(&storage.queue, None),
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(bus) => withheld("", bus.asked.string_in.as_deref()),
        }
    }

    /// Returns how long a message's lock lasts, if that does not depend on the queue.
    pub(crate) fn lock_time(&self) -> Option<Duration> {
        match self {
            Source::Storage(storage) => Some(storage.lock_time),
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(bus) => bus.lock_time,
        }
    }
}

fn storage(typed: &args::Work) -> Result<Storage, UsageError> {
    const MISSING: &str = match cfg!(feature = "service-bus") {
        true => "no queue: name one with --queue NAME or its URL, or with --service-bus NAME",
        false => "no queue: name one with --queue NAME or its URL",
    };
    let missing = || UsageError::new(MISSING);
    Ok(Storage {
        queue: typed.queue.clone().ok_or_else(missing)??,
        create: typed.create,
        options: options(typed.emulator, &typed.access),
        poison_queue: typed.poison_queue.clone().transpose()?,
        encoding: typed.encoding,
        lock_time: lock_time(typed)?,
    })
}

#[cfg(test)]
mod tests;
