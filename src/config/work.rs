//! What was typed of work, made sense of: the queue, and how its messages are worked on. Called by
//! main.

#[cfg(feature = "service-bus")]
mod service_bus;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::azure::{options, withheld};
use super::command::refuse_no_command;
use super::outputs::listen;
use super::outputs::{Beside, Outputs};
use super::run::{DEFAULT_PATIENCE, identity, refuse_first};
use super::{Host, UsageError};
use crate::args::{self, ExitStatuses};
use crate::azure::AuthOptions;
#[cfg(feature = "service-bus")]
use crate::azure::ServiceBusOptions;
use crate::core::{AUTH_PATIENCE, Budget};
use crate::guardian::{Contain, StopTo};
use crate::queue::storage::Encoding;
use crate::units::show;

// What a storage queue can lock a message for, as far as there is time to renew it.
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
    /// How long the queue may refuse the credential that it accepted before.
    pub auth_patience: Duration,
    /// Messages are handed over in directories.
    pub in_directories: bool,
    /// The longest a command may run.
    pub timeout: Option<Duration>,
    /// What a command is sent first when it is to end.
    pub stop_signal: i32,
    /// Who gets it.
    pub stop_to: StopTo,
    /// What keeps a command's tree together.
    pub contain: Contain,
    /// A message is settled before its command starts.
    pub at_most_once: bool,
    /// How often a message is tried; `None`: as often as its queue gives it to us.
    pub max_attempts: Option<u32>,
    /// How long a message that failed stays away, at first and at most.
    pub retry_delay: (Duration, Duration),
    /// Exit statuses that dead-letter a message.
    pub dead_letter_exit: ExitStatuses,
    /// Exit statuses that do not.
    pub retry_exit: ExitStatuses,
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

impl Work {
    /// Makes sense of what was typed.
    ///
    /// # Errors
    /// The first thing found that cannot be.
    pub fn new(typed: args::Work, host: &Host) -> Result<Work, UsageError> {
        refuse_no_command(
            &typed.command,
            "no command: write after -- what runs for each message, as in 'trafficcop work --queue NAME -- ./handle'",
        )?;
        // The queue first, as `run` has the lock: of two mistakes it is the one to be told.
        let source = Source::new(&typed)?;
        if typed.at_most_once {
            refuse_at_most_once(&typed, &source)?;
        }
        // No file is the lock: the queue is.
        let beside = Beside {
            locks: &[],
            patience: DEFAULT_PATIENCE,
        };
        let outputs = Outputs::new(&typed.operations, beside)?;
        let concurrency = typed.concurrency.unwrap_or(Ok(1))?;
        let max_messages = typed.max_messages.transpose()?;
        if typed.once {
            // `--max-messages 1` beside it says the same, and is let pass.
            if let Some(most) = max_messages.filter(|most| *most != 1) {
                return Err(UsageError::new(format!(
                    "--once and --max-messages {most} contradict each other: choose one"
                )));
            }
            if concurrency > 1 {
                return Err(UsageError::new(format!(
                    "--once and -j {concurrency} contradict each other: one message is one command at a time"
                )));
            }
        }
        let timeout = typed.timeout.transpose()?;
        let attempts = typed.max_attempts.transpose()?;
        // As sysexits.h has them: EX_DATAERR, and EX_TEMPFAIL.
        let dead_letter_exit = typed
            .dead_letter_exit
            .unwrap_or_else(|| Ok(vec![65..=65]))?;
        let retry_exit = typed.retry_exit.unwrap_or_else(|| Ok(vec![75..=75]))?;
        Ok(Work {
            max_body: typed.max_body.unwrap_or(Ok(DEFAULT_BODY))?,
            concurrency,
            once: typed.once,
            // `--once` is a limit of one that passes on the command's status, too.
            max_messages: if typed.once { Some(1) } else { max_messages },
            idle_exit: typed.idle_exit.transpose()?,
            auth_patience: typed.auth_patience.unwrap_or(Ok(AUTH_PATIENCE))?,
            in_directories: typed.message == args::Hand::File,
            timeout,
            stop_signal: typed.stop_signal.unwrap_or(Ok(libc::SIGTERM))?,
            stop_to: typed.stop_to,
            contain: typed.contain,
            at_most_once: typed.at_most_once,
            max_attempts: attempts.or(source.attempts()),
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
            listen: listen(&typed.listen, &outputs, beside)?,
            status_file: outputs.status_file,
            event_log: outputs.event_log,
            withheld: match typed.no_credentials {
                true => withheld(source.target(), source.named_variable()),
                false => Vec::new(),
            },
            command: typed.command,
            source,
        })
    }
}

/// Refuses what has no meaning where a message is gone before its command starts.
fn refuse_at_most_once(typed: &args::Work, source: &Source) -> Result<(), UsageError> {
    if source.sessions().is_some() {
        return Err(UsageError::new(
            "--at-most-once does not go with --sessions: a session's next message waits for the end of the command, which a settled message does not wait for",
        ));
    }
    let flags = [
        ("--retry-delay", typed.retry_delay.is_some()),
        ("--dead-letter-exit", typed.dead_letter_exit.is_some()),
        ("--retry-exit", typed.retry_exit.is_some()),
        ("--renew-at", typed.renew_at.is_some()),
    ];
    refuse_first(flags, |flag| {
        format!(
            "{flag} does not go with --at-most-once: the message is gone before its command starts: leave it out (or unset its variable)"
        )
    })
}

/// What a message of a storage queue is locked for.
fn lock_time(typed: &args::Work) -> Result<Duration, UsageError> {
    let lock_time = typed.lock_time.clone().unwrap_or(Ok(DEFAULT_LOCK_TIME))?;
    if !LOCK_TIME.contains(&lock_time) {
        return Err(UsageError::new(format!(
            "--lock-time {}: take 2s to 7d",
            show(lock_time)
        )));
    }
    // `visibilitytimeout` is a whole number.
    if lock_time.subsec_nanos() != 0 {
        return Err(UsageError::new(format!(
            "--lock-time {}: a message is locked for whole seconds: take {}s",
            show(lock_time),
            lock_time.as_secs()
        )));
    }
    let share = typed.renew_at.clone().unwrap_or(Ok(DEFAULT_RENEW_AT))?;
    // Two attempts to renew have to fit in: with fewer a single lost answer costs the message.
    let sound = Budget::for_lock(lock_time, share).validate();
    sound.map_err(|why| {
        UsageError::new(format!(
            "--lock-time {} with --renew-at {share}%: {why}",
            show(lock_time)
        ))
    })?;
    Ok(lock_time)
}

/// A queue, and what is particular to its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An Azure storage queue.
    Storage(Storage),
    /// A queue or a subscription on Azure Service Bus.
    #[cfg(feature = "service-bus")]
    ServiceBus(ServiceBus),
}

/// A storage queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Its name or URL; the service's rules for names are the queue's to check. May hold a secret.
    pub queue: String,
    /// It is created if it is missing.
    pub create: bool,
    /// How the account and our credential are found.
    pub options: AuthOptions,
    /// Where dead-lettered messages go, if not beside the queue.
    pub poison_queue: Option<String>,
    /// How messages are encoded; `None`: nobody has said.
    pub encoding: Option<Encoding>,
    /// For how long a message is locked.
    pub lock_time: Duration,
}

/// A queue on Service Bus.
#[cfg(feature = "service-bus")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceBus {
    /// Which one; Azure's rules for names are checked when it is opened.
    pub asked: ServiceBusOptions,
    /// How our credential is found.
    pub options: AuthOptions,
    /// For how long its messages are locked, where its own word for that is not to be believed.
    pub lock_time: Option<Duration>,
    /// Settle on the link that brought the message.
    pub link_settle: bool,
    /// How its sessions are taken, if its messages come in such.
    pub sessions: Option<Sessions>,
}

/// How sessions are taken, and given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// After how long without a message one is given up.
    pub idle: Duration,
    /// After how many messages.
    pub messages: Option<u64>,
    /// How long nothing is begun in one that was taken: so long whoever had it before may take to hear
    /// that it is lost.
    pub lock_delay: Duration,
}

impl Sessions {
    /// Longest time that a command may live on after its session's lock was lost.
    // Half of the shortest `--lock-delay`, and not of our own: the next worker waits for its own, and all that
    // is known of that is how short it may be.
    pub const GRACE_ON_LOSS: Duration = Duration::from_secs(1);
}

impl Source {
    /// Makes sense of what was typed.
    fn new(typed: &args::Work) -> Result<Source, UsageError> {
        #[cfg(feature = "service-bus")]
        {
            let bus = &typed.bus;
            let refuse = |line| Err(UsageError::new(line));
            match (&typed.queue, &bus.service_bus) {
                (Some(_), Some(_)) => {
                    return refuse(
                        "--queue and --service-bus contradict each other: choose one queue",
                    );
                }
                (None, None) => {
                    return refuse(
                        "no queue: name one with --queue NAME or its URL, or with --service-bus NAME",
                    );
                }
                (None, Some(name)) => {
                    return service_bus::queue(name.clone()?, typed).map(Source::ServiceBus);
                }
                (Some(_), None) => {}
            }
            let string_in = bus.connection_string_env.is_some();
            let foreign = [
                ("--dead-letter-queue", bus.dead_letter_queue),
                ("--connection-string-env", string_in),
                ("--sessions", bus.sessions),
            ];
            refuse_first(foreign, |flag| {
                format!(
                    "{flag} belongs to --service-bus: a storage queue has no such setting: leave it out"
                )
            })?;
            service_bus::sessions(typed)?;
        }
        storage(typed).map(Source::Storage)
    }

    /// Whether what fails for good can be dead-lettered.
    #[must_use]
    pub fn puts_aside(&self) -> bool {
        match self {
            Source::Storage(_) => true,
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(bus) => !bus.asked.dead_letters,
        }
    }

    /// How sessions are taken, if messages come in such.
    #[must_use]
    pub fn sessions(&self) -> Option<Sessions> {
        match self {
            Source::Storage(_) => None,
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(bus) => bus.sessions,
        }
    }

    /// The queue as it was named, if that can hold a secret.
    fn target(&self) -> &str {
        match self {
            Source::Storage(storage) => &storage.queue,
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(_) => "",
        }
    }

    /// The variable that was named to hold a connection string.
    fn named_variable(&self) -> Option<&str> {
        match self {
            Source::Storage(_) => None,
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(bus) => bus.asked.string_in.as_deref(),
        }
    }

    /// How often a message is tried where nothing was said; `None`: that is for the queue to say.
    fn attempts(&self) -> Option<u32> {
        match self {
            // The service counts, and does nothing with the number: without a limit a bad message
            // comes for ever.
            Source::Storage(_) => Some(DEFAULT_ATTEMPTS),
            // It has a number of its own, which its owner has chosen and which cannot be switched off.
            #[cfg(feature = "service-bus")]
            Source::ServiceBus(_) => None,
        }
    }
}

fn storage(typed: &args::Work) -> Result<Storage, UsageError> {
    let missing = || UsageError::new("no queue: name one with --queue NAME or its URL");
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
